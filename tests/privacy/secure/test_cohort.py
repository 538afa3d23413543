"""Cohorts: exact sums with drop-outs, nothing beyond the threshold, golden vectors, and every refusal of a client."""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from rounds import SIGN, SIGNERS, Round, assert_uniform, called, drawing, own_mask, pair_mask
from slow_crypto import NINE, chacha_seal, hkdf, keystream as slow_keystream, parts, shamir_value, x25519

from offbeat.privacy.secure import opening
from offbeat.privacy.secure.calls import (
    MEMBERS,
    SEALED,
    Call,
    ReadyKeys,
    commitment,
    cut,
    read_call,
    read_ready,
    threshold,
)
from offbeat.privacy.secure.member import begin, read_member
from offbeat.privacy.secure.opening import left_masks
from offbeat.privacy.secure.shamir import PRIME, SHARE, combine, corrected, split
from offbeat.privacy.secure.streams import Words
from offbeat.privacy.secure.tickets import TicketError


def plain(count: int, dim: int) -> list[Words]:
    draw = np.random.default_rng(dim)
    return [draw.integers(0, 2**32, dim, dtype=np.uint32) for _ in range(count)]


def summed(count: int, dim: int, silent: int, late: int, order: random.Random) -> tuple[Words, Words]:
    """(what the server comes to, what it should be): some share nothing, some send nothing, `threshold` answer."""
    made, q = called(count, dim), plain(count, dim)
    places = order.sample(range(count), count)
    sharers, survivors = sorted(places[silent:]), places[silent + late :]
    dropped = places[silent : silent + late]
    heard = {place: made.hear(place, sharers) for place in sharers}
    total = sum(heard[place].masked(q[place]) for place in survivors)
    answering = order.sample(survivors, threshold(count))
    answers = {place: heard[place].answer(survivors, dropped)[1] for place in answering}
    masks = left_masks(made.call, survivors, dropped, answers)
    return total - masks, sum(q[place] for place in survivors)  # type: ignore[operator, return-value]


# The arithmetic


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 12), st.integers(1, 9), st.integers(0, 99), st.randoms(use_true_random=False))
def test_sums_are_exact_with_any_drop_outs_and_in_any_order(count: int, dim: int, gone: int, order: object) -> None:
    gone %= count - threshold(count) + 1
    silent = order.randint(0, gone)  # type: ignore[attr-defined]
    found, expected = summed(count, dim, silent, gone - silent, order)  # type: ignore[arg-type]
    assert np.array_equal(found, expected)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(st.integers(3, 30), st.integers(1, 40), st.integers(0, 99), st.randoms(use_true_random=False))
def test_sums_are_exact_over_many_cohorts(count: int, dim: int, gone: int, order: object) -> None:
    test_sums_are_exact_with_any_drop_outs_and_in_any_order.hypothesis.inner_test(count, dim, gone, order)  # type: ignore[attr-defined]


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 12), st.randoms(use_true_random=False))
def test_with_one_answer_too_few_nothing_is_opened(count: int, order: object) -> None:
    made, everybody = called(count), range(count)
    heard = [made.hear(place, everybody) for place in everybody]
    few = order.sample(everybody, threshold(count) - 1)  # type: ignore[attr-defined]
    answers = {place: heard[place].answer(everybody, ())[1] for place in few}
    with pytest.raises(TicketError, match="have answered"):
        left_masks(made.call, everybody, (), answers)


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(2, 12), st.data())
def test_any_t_shares_give_the_secret_and_fewer_another_number(secret: bytes, n: int, data: st.DataObject) -> None:
    t = data.draw(st.integers(1, n))
    drawn = data.draw(st.lists(st.integers(0, PRIME - 1), min_size=t - 1, max_size=t - 1))
    shares = dict(enumerate(split(secret, drawn, n), 1))
    chosen = data.draw(st.permutations(sorted(shares)))
    some = {x: shares[x] for x in chosen[:t]}
    assert combine(some) == int.from_bytes(secret, "big") == shamir_value(some, PRIME)


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(2, 40), st.data())
def test_wrong_shares_are_found_if_they_are_half_of_those_beyond_t(secret: bytes, n: int, data: st.DataObject) -> None:
    t = data.draw(st.integers(1, n))
    drawn = data.draw(st.lists(st.integers(0, PRIME - 1), min_size=t - 1, max_size=t - 1))
    shares = dict(enumerate(split(secret, drawn, n), 1))
    wrong = data.draw(st.sets(st.sampled_from(sorted(shares)), max_size=(n - t) // 2))
    given_ = {x: (y + 1 + x) % PRIME if x in wrong else y for x, y in shares.items()}
    assert corrected(given_, t) == (int.from_bytes(secret, "big"), [x for x in shares if x not in wrong])


def test_fewer_shares_than_t_say_nothing() -> None:
    """Over a small prime, all polynomials: each pair of shares goes with each secret equally often."""
    prime, seen = 11, dict[tuple[int, int], list[int]]()
    for secret in range(prime):
        for a in range(prime):
            for b in range(prime):
                one, two, _ = split(bytes([secret]), [a, b], 3, prime)
                seen.setdefault((one, two), []).append(secret)
    assert {tuple(sorted(each)) for each in seen.values()} == {tuple(range(prime))}
    assert len(seen) == prime * prime


def test_the_modulus_is_prime() -> None:
    """Miller and Rabin's test, with the first 40 primes as bases."""
    d, s = PRIME - 1, 0
    while d % 2 == 0:
        d, s = d // 2, s + 1
    for base in (p for p in range(2, 174) if all(p % q for q in range(2, p))):
        powers = [pow(base, d * 2**r, PRIME) for r in range(s)]
        assert powers[0] == 1 or PRIME - 1 in powers


def test_masked_words_are_uniform_and_say_nothing_about_the_numbers() -> None:
    dim = 1_000_000
    made, q = called(3, dim), (np.arange(dim) % 7).astype(np.uint32)
    words = made.hear(1, range(3)).masked(q)
    assert_uniform(words, q)


def test_the_same_numbers_in_two_cohorts_look_unlike() -> None:
    """Also with the same keys, which no client would use twice: the cohort is part of every derivation."""
    made = called(3, dim=64)
    other = replace(made.call, number=8)
    again = [replace(each, call=None).join(other, SIGNERS) for each in made.members]
    second = Round(again, other, [cut(each.sealed_shares(), SEALED, 2) for each in again])
    first = made.hear(0, range(3)).masked(np.zeros(64, np.uint32))
    assert not np.any(first == second.hear(0, range(3)).masked(np.zeros(64, np.uint32)))


def test_a_message_that_comes_too_late_keeps_its_own_mask() -> None:
    """Its sender was given up and its mask key put together; what is left is the mask of its seed."""
    made = called(4, dim=64)
    heard = [made.hear(place, range(4)) for place in range(4)]
    late, key = heard[3].masked(np.zeros(64, np.uint32)), made.members[3]
    for other in range(3):
        shared = x25519(key.mask, made.call.members[other].mask)
        late = late - pair_mask(made.call, shared, 3, other)
    assert np.array_equal(late, own_mask(made.call, key.seed))
    assert np.count_nonzero(late) == 64


# Golden vectors, by an implementation of its own


def test_what_a_member_sends_is_what_a_slow_implementation_of_its_own_makes_of_its_keys() -> None:
    made = called(3)
    me, other = made.members[0], made.members[1]
    entries = []
    for n, each in enumerate(made.members):
        seal, mask = x25519(each.seal, NINE), x25519(each.mask, NINE)
        keys = seal + mask + hashlib.sha256(b"offbeat/seed/1" + each.seed).digest() + each.own.signature
        entries.append(parts(b"c%d" % n, struct.pack(">QQQ", 1, 1, 0), keys))
    context = parts(b"fed", b"run", struct.pack(">QQQQ", 0, 5, 2, 20))
    digest = hashlib.sha256(parts(b"offbeat/cohort/1", struct.pack(">QI", 7, 3), context, *entries)).digest()
    assert digest == made.call.digest

    expected = slow_keystream(hkdf(me.seed, parts(b"self", digest)), 5)
    for place in (1, 2):
        shared = x25519(me.mask, x25519(made.members[place].mask, NINE))
        pair = slow_keystream(hkdf(shared, parts(b"pair", digest, struct.pack(">II", 0, place))), 5)
        expected = [(a + b) % 2**32 for a, b in zip(expected, pair, strict=True)]
    words = made.hear(0, range(3)).masked(np.zeros(5, np.uint32))
    assert words.tolist() == expected

    shares = []
    for name, secret in ((b"seed", me.seed), (b"mask", me.mask)):
        raw = slow_keystream(hkdf(me.deal, parts(name, digest)), 24)
        drawn = [int.from_bytes(struct.pack("<12I", *raw[at : at + 12]), "big") for at in (0, 12)]
        value = sum(c * 2**power for power, c in enumerate([int.from_bytes(secret, "big"), *drawn])) % PRIME
        shares.append(value.to_bytes(33, "big"))
    shared = x25519(me.seal, x25519(other.seal, NINE))
    key, about = hkdf(shared, parts(b"seal", digest, struct.pack(">II", 0, 1))), digest + struct.pack(">II", 0, 1)
    sealed = chacha_seal(key, bytes(12), b"".join(shares), about)
    assert made.dealt[0][0] == sealed
    assert hashlib.sha256(words.astype("<u4").tobytes() + sealed).hexdigest() == GOLDEN


GOLDEN = "bad0711fa1473f9543374e26beeb0ce4c0cadb7080d3990b14965f2dc9d21892"


# What a client refuses


def refused(code: str, action: Callable[[], object]) -> None:
    with pytest.raises(TicketError) as error:
        action()
    assert error.value.code == code


def fresh(n: int, attempt: int = 1, name: str = "") -> ReadyKeys:
    """Keys of another attempt of a client."""
    context = called(2).call.context
    return begin(context, name or f"c{n}", (1, 1, attempt), SIGN[f"c{n}"], drawing(99 + n)).own


def joining(change: Callable[[Call], Call], **given: int) -> Callable[[], object]:
    """A client is called to a cohort that was changed."""
    made = called(4)
    return lambda: replace(made.members[0], call=None).join(change(made.call), SIGNERS, **given)


def test_a_second_unmasking_for_other_survivors_is_refused() -> None:
    made = called(5)
    member, first = made.hear(0, range(5)).answer((0, 1, 2, 3), (4,))
    assert member.answer((3, 2, 1, 0), (4,)) == (member, first)  # said again, it is the same
    refused("repeated", lambda: member.answer((0, 1, 2, 4), (3,)))
    refused("repeated", lambda: read_member(member.to_bytes()).answer(range(5), ()))


def test_both_kinds_of_share_of_one_member_are_refused() -> None:
    made = called(5)
    refused("both", lambda: made.hear(0, range(5)).answer((0, 1, 2, 3, 4), (4,)))
    refused("both", lambda: made.hear(0, range(5)).answer((0, 1, 2, 3, 3), (4,)))


def test_survivors_who_have_not_shared_are_refused() -> None:
    made = called(5)
    refused("members", lambda: made.hear(0, range(4)).answer((0, 1, 2, 3, 4), ()))
    refused("members", lambda: made.hear(0, range(5)).answer((0, 1, 2, 3), ()))


def test_a_cohort_of_fewer_than_the_run_or_the_client_asks_for_is_refused() -> None:
    refused("cohort", joining(lambda call: call, least=5))
    refused("cohort", lambda: called(3, cohort=4))
    refused("cohort", lambda: called(6).hear(0, range(4)))  # of six, five have to share
    refused("cohort", lambda: called(6).hear(0, range(6)).answer((0, 1, 2, 3), (4, 5)))
    refused("cohort", lambda: called(6).hear(0, range(6)).answer((1, 2, 3, 4, 5), (0,)))


def test_a_member_whom_no_client_of_the_roster_has_signed_is_refused() -> None:
    def with_(third: ReadyKeys) -> Callable[[Call], Call]:
        return lambda call: replace(call, members=(*call.members[:3], third))

    refused("signer", joining(with_(fresh(3, name="stranger"))))
    refused("signer", joining(with_(replace(fresh(3), signature=bytes(64)))))
    refused("signer", joining(with_(replace(fresh(5), client="c3"))))
    refused("signer", joining(with_(replace(fresh(3), attempt=2))))  # signed for another attempt
    joining(with_(fresh(3)))()


def test_a_cohort_of_a_number_that_was_there_before_is_refused() -> None:
    refused("replayed", joining(lambda call: call, last=7))
    joining(lambda call: call, last=6)()


def test_a_client_whose_own_key_was_altered_refuses() -> None:
    refused("own", joining(lambda call: replace(call, members=(fresh(0), *call.members[1:]))))
    refused("members", joining(lambda call: replace(call, members=call.members[1:])))


def test_a_name_or_a_key_that_is_there_twice_is_refused() -> None:
    refused("members", joining(lambda call: replace(call, members=(*call.members, call.members[1]))))
    refused("members", joining(lambda call: replace(call, members=(*call.members, call.members[0]))))


def test_keys_of_one_cohort_serve_no_other_and_what_was_heard_stays() -> None:
    made = called(5)
    refused("repeated", lambda: made.members[0].join(replace(made.call, number=8), SIGNERS))
    heard = made.hear(0, range(5))
    refused("repeated", lambda: Round([heard], made.call, made.dealt).hear(0, range(4)))
    assert Round([heard], made.call, made.dealt).hear(0, range(5)) == heard


def test_other_terms_than_those_of_the_run_are_refused() -> None:
    refused("context", joining(lambda call: replace(call, context=replace(call.context, cohort=3))))


# Nothing that was changed on its way is taken


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 7))
def test_any_flipped_bit_of_a_call_is_refused_or_makes_another_cohort(at: int, bit: int) -> None:
    made = called(4)
    data = bytearray(made.call.to_bytes())
    data[at % len(data)] ^= 1 << bit
    try:
        other = replace(made.members[0], call=None).join(read_call(bytes(data)), SIGNERS, last=6)
    except TicketError:
        return
    assert other.call == replace(made.call, number=other.call.number)  # type: ignore[union-attr]
    made.dealt[0] = cut(other.sealed_shares(), SEALED, 3)
    refused("sealed", lambda: made.hear(1, range(4)))  # in another cohort nothing fits


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 7))
def test_any_flipped_bit_of_a_sealed_share_is_refused(at: int, bit: int) -> None:
    made = called(4)
    sealed = bytearray(made.dealt[2][0])
    sealed[at % len(sealed)] ^= 1 << bit
    made.dealt[2][0] = bytes(sealed)
    refused("sealed", lambda: made.hear(0, range(4)))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 7), st.booleans())
def test_any_flipped_bit_of_an_answer_is_refused(at: int, bit: int, drops: bool) -> None:
    made = called(5, dim=2)
    survivors, dropped = (range(4), [4]) if drops else (range(5), [])
    answers = {place: made.hear(place, range(5)).answer(survivors, dropped)[1] for place in range(4)}
    data = bytearray(answers[1])
    data[at % len(data)] ^= 1 << bit
    refused("masks", lambda: left_masks(made.call, survivors, dropped, {**answers, 1: bytes(data)}))


def garbled(answer: bytes, *places: int) -> bytes:
    """An answer with other shares of the members at these places."""
    data = bytearray(answer)
    for place in places:
        data[SHARE * (place + 1) - 1] ^= 1
    return bytes(data)


def test_members_who_answer_with_wrong_shares_spoil_no_sum_unless_they_are_more_than_a_sixth() -> None:
    made, q = called(36, dim=2), plain(36, 2)
    heard = [made.hear(place, range(36)) for place in range(36)]
    answers = {place: each.answer(range(36), ())[1] for place, each in enumerate(heard)}
    liars = {place: garbled(answers[place], *range(place, 36, 5)) for place in (0, 7, 8, 30, 35)}
    total = sum(each.masked(q[place]) for place, each in enumerate(heard))
    found = total - left_masks(made.call, range(36), (), {**answers, **liars})
    assert np.array_equal(found, sum(q))
    more = {place: garbled(answers[place], 3) for place in range(6)}
    refused("masks", lambda: left_masks(made.call, range(36), (), {**answers, **more}))


@pytest.mark.parametrize("lies", ["a member deals shares of nothing", "members answer with wrong ones"])
def test_wrong_shares_take_a_bounded_time(monkeypatch: pytest.MonkeyPatch, lies: str) -> None:
    """Trying choices of the answers took seconds in a cohort of 100, and again with every answer that came."""
    made, done = called(36, dim=2), []
    answers = {place: made.hear(place, range(36)).answer(range(36), ())[1] for place in range(36)}
    wrong = answers if lies.startswith("a member") else {place: answers[place] for place in range(1, 14, 2)}
    answers |= {place: garbled(answer, 3) for place, answer in wrong.items() if place != 35}
    monkeypatch.setattr(opening, "combine", lambda shares: done.append(len(shares)) or combine(shares))
    for count in (25, 26, 28, 32, 36):
        done.clear()
        some = dict(list(answers.items())[:count])
        refused("masks", partial(left_masks, made.call, range(36), (), some))
        assert sum(each**2 for each in done) <= opening.WORK + 36 * 25**2


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    for read in (read_call, read_member, lambda raw: read_ready("c0", (1, 1, 0), raw)):
        with pytest.raises(TicketError):
            read(data)


def test_what_is_written_down_comes_back() -> None:
    made = called(5)
    member = made.hear(0, range(5)).answer(range(5), ())[0]
    for each in (member, made.members[0], replace(made.members[0], call=None)):
        assert read_member(each.to_bytes()) == each
    assert "…" in repr(member)
    assert member.seed.hex() not in repr(member)


def test_a_cohort_larger_than_any_is_not_read() -> None:
    member = called(2).call.members[0]
    context = called(2).call.context
    refused("malformed", lambda: read_call(Call(1, context, (member,) * (MEMBERS + 1)).to_bytes()))
    assert len(commitment(bytes(32))) == 32
    assert SHARE == 33
