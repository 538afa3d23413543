"""Messages: what goes in comes out; what else comes is refused under a name, and nothing large is allocated for it."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from offbeat.deploy import encoding, wire
from offbeat.deploy.assignment import read_assignment, read_model
from offbeat.deploy.client_state import ClientState, PendingResult, read_client_state, write_client_state
from offbeat.deploy.encoding import SUMS, RefusedError, pack, read, unpack

VECTORS = {"delta": torch.tensor([1.0, -2.5, 3.0]), "nu": torch.tensor([0.25], dtype=torch.float64)}
GOOD = pack("trained", {"run": "r", "seq": 3}, VECTORS)
HEADERS = [value for value in vars(wire).values() if isinstance(value, type) and hasattr(value, "__dataclass_fields__")]


def code(data: bytes, limit: int = 1 << 20) -> str:
    with pytest.raises(RefusedError) as caught:
        unpack(data, limit)
    return caught.value.code


def outcome(decode: Callable[[], Any]) -> str:
    """The code of a refusal, or nothing; whatever else is raised goes through."""
    try:
        decode()
    except RefusedError as error:
        return error.code
    return ""


def test_vectors_come_out_as_they_went_in() -> None:
    message = unpack(GOOD)
    assert message.kind == "trained"
    assert message.header["seq"] == 3
    for name, vector in VECTORS.items():
        assert torch.equal(message.vector(name), vector)
        assert message.vector(name).dtype == vector.dtype


@pytest.mark.parametrize("at", [0, 20, len(GOOD) - 1])
def test_a_model_of_which_a_byte_was_changed_is_damaged(at: int) -> None:
    changed = bytearray(GOOD)
    changed[at] ^= 1
    assert outcome(lambda: read_model(bytes(changed), encoding.digest(GOOD))) == "damaged"


def test_bfloat16_halves_what_travels_and_comes_back_as_float32() -> None:
    large = {"delta": torch.randn(1000)}
    half = pack("trained", {}, large, dtype="bfloat16")
    assert len(half) < 0.6 * len(pack("trained", {}, large))
    back = unpack(half).vector("delta")
    assert back.dtype == torch.float32
    torch.testing.assert_close(back, large["delta"], rtol=1e-2, atol=1e-2)


def forged(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return encoding.MAGIC + struct.pack("<I", len(text)) + text + body


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "malformed"),
        (b"PK\x03\x04" + b"0" * 100, "malformed"),
        (GOOD[:-1], "malformed"),
        (GOOD + b"x", "malformed"),
        (encoding.MAGIC + b"\xff\xff\xff\xff" + b"x" * 50, "malformed"),
        (forged(b"[" * 100_000), "malformed"),
        (forged(b'{"kind": NaN}'), "malformed"),
        (forged([1]), "malformed"),
        (forged({"kind": 1}), "malformed"),
        (forged({"kind": "x", "parts": 7}), "malformed"),
        (forged({"kind": "x", "parts": [["a", "float32", 10**15]]}), "malformed"),
        (forged({"kind": "x", "parts": [["a", "float32", -1]]}), "malformed"),
        (forged({"kind": "x", "parts": [["a", "object", 1]]}, b"1234"), "malformed"),
        (forged({"kind": "x", "parts": [["a", "bytes", 1], ["a", "bytes", 1]]}, b"ab"), "malformed"),
        (b"x" * ((1 << 20) + 1), "oversized"),
        (b"OBT1" + GOOD[4:], "version"),
        (forged(b'{"kind": "x", "seq": %s}' % (b"9" * 400)), "malformed"),
        (forged(b'{"kind": "x", "seq": %s}' % (b"9" * 5000)), "malformed"),
        (forged(b'{"kind": "x", "seq": 1e400}'), "malformed"),
        (forged(b'{"kind": "x", "seq": 9007199254740992}'), "malformed"),
        (forged(b'{"kind": "x", "error": "\\ud800"}'), "malformed"),
        (forged(b'{"kind": "x", "\\udfff": 1}'), "malformed"),
        (forged(b'{"kind": "x", "kind": "y"}'), "malformed"),
        (forged({"kind": "x", "k" * 257: 1}), "malformed"),
        (forged({"kind": "x", "a": [[[[[1]]]]]}), "malformed"),
        (forged({"kind": "x", "parts": [["a" * 257, "bytes", 1]]}, b"a"), "malformed"),
    ],
)
def test_what_is_no_message_has_its_code(data: bytes, expected: str) -> None:
    assert code(data) == expected


def test_a_message_of_another_version_is_refused_with_both_versions() -> None:
    with pytest.raises(RefusedError, match=r"version '1', and this side speaks version 2; install the same release"):
        unpack(b"OBT1" + GOOD[4:])


HELLO = {"run": "r", "client": "c", "epoch": 1, "nonce": "n"}
TRAINED = {"run": "r", "client": "c", "epoch": 1, "seq": 1, "job": 0, "steps": 1}


@pytest.mark.parametrize(
    ("kind", "header"),
    [
        ("hello", {**HELLO, "more": 1}),
        ("hello", {**HELLO, "epoch": True}),
        ("hello", {**HELLO, "epoch": -1}),
        ("hello", {**HELLO, "epoch": 1.0}),
        ("hello", {**HELLO, "nonce": "n" * 65}),
        ("parted", {"run": "r", "client": "c", "name": "d" * 4008, "count": 1, "size": 1}),
        ("trained", {**TRAINED, "compute": True}),
        ("trained", {**TRAINED, "compute": -0.1}),
        ("trained", {**TRAINED, "compute": 1e10}),
        ("trained", {**TRAINED, "error": "e" * 1001}),
        ("trained", {**TRAINED, "others": {str(job): 0.0 for job in range(257)}}),
        ("trained", {**TRAINED, "others": {"1": "0"}}),
        ("judged", {"run": "r", "client": "c", "epoch": 1, "number": 1, "total": 1, "loss": 1e31}),
        ("judged", {"run": "r", "client": "c", "epoch": 1, "number": 1, "total": 1, "sums": {"f1": [1e31]}}),
        ("judged", {"run": "r", "client": "c", "epoch": 1, "number": 1, "total": 1, "sums": {"f1": [0] * (SUMS + 1)}}),
        ("judged", {"run": "r", "client": "c", "epoch": 1, "number": 1, "total": 1, "sums": {"f1": ["1"]}}),
        ("judged", {"run": "r", "client": "c", "epoch": 1, "number": 1, "total": 1, "sums": {"f" * 65: [1]}}),
        ("judged", {"run": "r", "client": "c", "epoch": 1, "number": 1, "total": 1, "personal": {"f1": None}}),
        ("nonsense", {"run": "r"}),
    ],
)
def test_fields_have_their_type_and_bounds_and_there_are_no_others(kind: str, header: dict[str, Any]) -> None:
    assert outcome(lambda: wire.heard(unpack(pack(kind, header)))) == "malformed"


def test_only_what_has_a_body_may_bring_one() -> None:
    assert outcome(lambda: wire.heard(unpack(pack("hello", HELLO)))) == ""
    assert outcome(lambda: wire.heard(unpack(pack("hello", HELLO, VECTORS)))) == "malformed"
    assert outcome(lambda: wire.heard(unpack(pack("trained", TRAINED, VECTORS)))) == ""


def test_nothing_is_allocated_for_a_vector_that_is_only_promised() -> None:
    lie = forged({"kind": "x", "parts": [["a", "float32", 1 << 40]]}, b"1234")
    tracemalloc.start()
    try:
        assert code(lie) == "malformed"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", HEADERS, ids=lambda kind: kind.__name__)
@given(
    header=st.dictionaries(
        st.text(max_size=8),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
            max_leaves=8,
        ),
        max_size=8,
    )
)
def test_any_header_is_read_or_refused(kind: type, header: dict[str, Any]) -> None:
    names = list(kind.__dataclass_fields__)  # type: ignore[attr-defined]
    for given_header in (header, dict(zip(names, header.values(), strict=False))):
        assert outcome(lambda given_header=given_header: read(kind, given_header)) in ("", "malformed")


def mutations(data: bytes) -> st.SearchStrategy[bytes]:
    """The message with a few bytes changed, cut off or put in."""

    def change(edits: list[tuple[int, int, int]]) -> bytes:
        changed = bytearray(data)
        for at, what, byte in edits:
            place = at % (len(changed) + 1)
            if what == 0:
                changed[place : place + 1] = bytes([byte])
            elif what == 1:
                del changed[place : place + byte]
            else:
                changed[place:place] = bytes([byte] * (1 + byte % 4))
        return bytes(changed)

    return st.lists(
        st.tuples(st.integers(0, 5000), st.integers(0, 2), st.integers(0, 255)), min_size=1, max_size=6
    ).map(change)


CLIENT_STATE = write_client_state(
    ClientState(
        "r",
        "c",
        2,
        "n",
        True,
        5,
        settled=(2, 4),
        memory={0: {"y": torch.ones(3)}},
        pending=PendingResult(2, 5, 9, 0, GOOD, {"y": torch.zeros(3)}),
    )
)
ASSIGNMENT = pack(
    "assignment",
    {
        "run": "r", "revision": 4, "epoch": 1, "nonce": "n", "seq": 2, "digest_last": "d", "verdict": "applied",
        "present": True, "stopped": "", "applied": 1, "refused": 0, "failed": 0, "known_epoch": 0, "known_seq": 0,
        "memory": None, "jobs": [[7, 0, 0, 3, 5, 0.1, 6, False, "m"]], "oldest": [[0, 5]],
        "recalls": [[0, True]], "turned_away": ["", ""], "judge": [[1, 0, "m"]],
    },
    {"m": pack("model", {}, {"model": torch.ones(2)})},
)  # fmt: skip


@given(st.one_of(mutations(GOOD), mutations(CLIENT_STATE), mutations(ASSIGNMENT), st.binary(max_size=300)))
def test_no_decoder_raises_anything_but_a_refusal(data: bytes) -> None:
    for decode in (unpack, read_assignment, read_client_state, lambda d: read_model(d, encoding.digest(d))):
        assert outcome(lambda decode=decode: decode(data)) in ("", "malformed", "damaged", "oversized", "version")


def test_a_client_s_state_comes_back_from_its_disk() -> None:
    back = read_client_state(CLIENT_STATE)
    assert (back.epoch, back.nonce, back.accepted, back.seq, back.settled) == (2, "n", True, 5, (2, 4))
    assert torch.equal(back.memory[0]["y"], torch.ones(3))
    assert back.pending is not None
    assert back.pending.message == GOOD
    assert back.pending.memory is not None
    assert read_assignment(ASSIGNMENT).jobs[0][0].version == 3
