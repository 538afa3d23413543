"""Masks and the helper: a golden vector by a slow implementation of its own, uniform words, every refusal."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from rounds import assert_uniform
from slow_crypto import NINE, hkdf, keystream as slow_keystream, parts, x25519

import offbeat.privacy.secure
from offbeat.deploy.envelope import public_seal
from offbeat.privacy.secure.helper import Helper, HelperState, read_state
from offbeat.privacy.secure.masks import Masker, Unmasker
from offbeat.privacy.secure.streams import Words, stream
from offbeat.privacy.secure.tickets import LIFE, MaskContext, MaskTicket, SumRequest, TicketError, read_request

HELPER, CONTEXT = bytes([200]) * 32, MaskContext("fed", "run", 0, 16, 3, 20)
SECRETS = {f"c{n}": bytes([n + 1]) * 32 for n in range(8)}


def helper(least: int = 2) -> Helper:
    members = {name: frozenset([public_seal(secret)]) for name, secret in SECRETS.items()}
    return Helper("fed", "run", Unmasker(HELPER), members, least)


def masked(client: str, seq: int, q: Words, epoch: int = 1, context: MaskContext = CONTEXT) -> tuple[Words, MaskTicket]:
    return Masker(SECRETS[client], public_seal(HELPER)).mask(context, client, epoch, seq, q)


def cohort(number: int = 1, seq: int = 1, clients: int = 4) -> tuple[SumRequest, Words, Words]:
    """(the request, the sum of masked words, the sum of plain ones)"""
    plain = [np.arange(16, dtype=np.uint32) * (n + 1) - 40 for n in range(clients)]
    found = [masked(f"c{n}", seq, q) for n, q in enumerate(plain)]
    request = SumRequest(number, CONTEXT, tuple(ticket for _, ticket in found))
    return request, sum(words for words, _ in found), sum(plain)  # type: ignore[return-value]


# The arithmetic


@settings(max_examples=100, deadline=None)
@given(st.integers(3, 8), st.integers(1, 50), st.randoms(use_true_random=False))
def test_masks_leave_the_exact_sum_in_any_order(clients: int, dim: int, order: object) -> None:
    context = replace(CONTEXT, dim=dim)
    draw = np.random.default_rng(dim)
    plain = [draw.integers(0, 2**32, dim, dtype=np.uint32) for _ in range(clients)]
    found = [masked(f"c{n}", 1 + n, q, context=context) for n, q in enumerate(plain)]
    order.shuffle(found)  # type: ignore[attr-defined]
    request = SumRequest(1, context, tuple(ticket for _, ticket in found))
    total = sum(words for words, _ in found) - helper().open(HelperState(), request).masks  # type: ignore[operator]
    assert np.array_equal(total, sum(plain))


def test_masked_words_are_uniform_and_say_nothing_about_the_numbers() -> None:
    dim = 1_000_000
    context = replace(CONTEXT, dim=dim)
    q = (np.arange(dim) % 7).astype(np.uint32)
    words, _ = masked("c0", 1, q, context=context)
    assert_uniform(words, q)


def test_the_same_numbers_are_never_masked_in_the_same_way_twice() -> None:
    q = np.zeros(16, dtype=np.uint32)
    first, again = masked("c0", 1, q), masked("c0", 1, q)
    assert first[1].once != again[1].once
    assert not np.any(first[0] == again[0])


def test_keys_that_agree_in_32_bits_give_other_masks() -> None:
    """A generator that folds its seed to 32 bits gives these two the same mask."""
    first, other = (np.frombuffer(stream(key, 256), dtype="<u4") for key in (bytes(32), bytes(28) + b"\0\0\0\1"))
    assert not np.any(first == other)


def test_a_mask_is_what_a_slow_implementation_of_its_own_makes_of_the_keys() -> None:
    own, once = bytes([7]) * 32, bytes([9]) * 32
    public, once_public, theirs = (x25519(secret, NINE) for secret in (own, once, HELPER))
    assert public == public_seal(own)
    numbers = struct.pack(">QQQQ", 0, 16, 3, 20)
    context = parts(b"fed", b"run", numbers)
    ticket = parts(b"c9", struct.pack(">QQ", 2, 5), public, once_public)
    info = parts(b"offbeat/mask/1", context, ticket, theirs)
    slow = slow_keystream(hkdf(x25519(HELPER, public) + x25519(HELPER, once_public), info), 16)
    quick = Unmasker(HELPER).total(CONTEXT, (MaskTicket("c9", 2, 5, public, once_public),))
    assert quick.tolist() == slow
    assert hashlib.sha256(quick.astype("<u4").tobytes()).hexdigest() == GOLDEN


GOLDEN = "f57046c0560d230820d7045cc50e0df087a1877ddc7cf33d99e0efe610c15605"


# The helper's refusals, one test each


def refused(code: str, request: SumRequest, state: HelperState | None = None, least: int = 2) -> None:
    with pytest.raises(TicketError) as error:
        helper(least).open(state or HelperState(), request)
    assert error.value.code == code


def test_it_opens_no_sum_of_fewer_clients_than_the_run_says() -> None:
    refused("cohort", cohort(clients=2)[0])


def test_it_opens_no_sum_of_fewer_clients_than_it_says_itself() -> None:
    refused("cohort", cohort(clients=4)[0], least=5)
    with pytest.raises(TicketError, match="5 is the least that this helper opens"):
        helper(5).open(HelperState(), cohort(clients=4)[0])


def test_many_messages_of_few_clients_are_no_cohort() -> None:
    request = cohort(clients=3)[0]
    more = [masked("c0", seq, np.zeros(16, dtype=np.uint32))[1] for seq in range(2, 9)]
    refused("cohort", replace(request, tickets=(*request.tickets[:2], *more)))


def test_it_knows_the_clients_of_the_roster_only() -> None:
    request = cohort()[0]
    refused("identity", replace(request, tickets=(replace(request.tickets[0], client="mallory"), *request.tickets[1:])))


def test_it_takes_no_key_that_the_roster_does_not_have() -> None:
    """Otherwise a server would fill a sum with masks of its own, and be left with one client's update."""
    request = cohort()[0]
    own = replace(request.tickets[0], seal=public_seal(bytes([99]) * 32))
    refused("identity", replace(request, tickets=(own, *request.tickets[1:])))


def test_it_opens_a_message_once() -> None:
    request = cohort()[0]
    state = helper().open(HelperState(), request).state
    other = masked("c5", 1, np.zeros(16, dtype=np.uint32))[1]
    refused("repeated", replace(request, number=2, tickets=(*request.tickets[1:], other)), state)


def test_one_message_is_in_a_sum_once() -> None:
    request = cohort()[0]
    refused("repeated", replace(request, tickets=(*request.tickets, request.tickets[0])))


def test_a_sum_is_opened_again_in_the_same_words_and_in_no_others() -> None:
    request, *_ = cohort()
    opened = helper().open(HelperState(), request)
    again = helper().open(opened.state, request)
    assert np.array_equal(again.masks, opened.masks)
    assert again.state == opened.state
    refused("repeated", replace(request, tickets=request.tickets[:3]), opened.state)


def test_sums_come_in_order_and_a_helper_without_its_state_does_not_begin_in_the_middle() -> None:
    refused("order", cohort(number=2)[0])
    state = helper().open(HelperState(), cohort(number=1)[0]).state
    refused("order", cohort(number=3, seq=2)[0], state)
    assert helper().open(state, cohort(number=LIFE + 1, seq=2)[0]).state.last == LIFE + 1


@pytest.mark.parametrize("point", [0, 1, 2**255 - 20])
def test_a_key_that_no_secret_can_be_shared_with_is_refused_and_does_not_stop_the_helper(point: int) -> None:
    request, once = cohort()[0], point.to_bytes(32, "little")
    refused("key", replace(request, tickets=(replace(request.tickets[0], once=once), *request.tickets[1:])))


def test_it_is_the_helper_of_one_run() -> None:
    request = cohort()[0]
    refused("run", replace(request, context=replace(CONTEXT, run="other")))


@pytest.mark.parametrize("changed", [{"dim": 17}, {"cohort": 2}, {"bits": 19}, {"task": 1}])
def test_what_the_server_tells_the_helper_must_be_what_it_told_the_clients(changed: dict[str, int]) -> None:
    request, total, plain = cohort()
    lied = replace(request, context=replace(CONTEXT, **changed))  # type: ignore[arg-type]
    masks = helper().open(HelperState(), lied).masks[:16]
    assert not np.any(total - masks == plain)


def test_any_flipped_bit_of_a_request_is_refused_or_opens_nothing() -> None:
    request, total, plain = cohort()
    data = request.to_bytes()
    for bit in range(0, 8 * len(data), 3):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            wrong = read_request(bytes(flipped))
            opened = helper().open(HelperState(), wrong)
        except TicketError:
            continue
        if (wrong.context, wrong.tickets) != (request.context, request.tickets):  # else it is the same sum
            assert len(opened.masks) < 16 or not np.any(total - opened.masks[:16] == plain), bit


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    for each in (data, b"OBM1" + data):
        with contextlib.suppress(TicketError):
            read_request(each)


def test_requests_and_states_come_back_as_they_were() -> None:
    request = cohort()[0]
    assert read_request(request.to_bytes()) == request
    state = helper().open(HelperState(), request).state
    assert read_state(state.to_bytes()) == state


# What is not there


def test_nothing_here_draws_from_a_generator_that_can_be_guessed() -> None:
    for path in Path(offbeat.privacy.secure.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            assert "random" not in [*names, module], path
            assert not (isinstance(node, ast.Attribute) and node.attr == "random"), path
