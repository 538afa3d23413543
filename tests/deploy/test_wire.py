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

from offbeat.deploy import wire
from offbeat.deploy.assignment import read_assignment, read_model
from offbeat.deploy.client_state import ClientState, PendingResult, read_client_state, write_client_state
from offbeat.deploy.wire import RefusedError, pack, read, unpack

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


def test_bfloat16_halves_what_travels_and_comes_back_as_float32() -> None:
    large = {"delta": torch.randn(1000)}
    half = pack("trained", {}, large, dtype="bfloat16")
    assert len(half) < 0.6 * len(pack("trained", {}, large))
    back = unpack(half).vector("delta")
    assert back.dtype == torch.float32
    torch.testing.assert_close(back, large["delta"], rtol=1e-2, atol=1e-2)


def forged(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return wire.MAGIC + struct.pack("<I", len(text)) + text + body


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "malformed"),
        (b"PK\x03\x04" + b"0" * 100, "malformed"),
        (GOOD[:-1], "malformed"),
        (GOOD + b"x", "malformed"),
        (GOOD[:-1] + b"\xff", "damaged"),
        (wire.MAGIC + b"\xff\xff\xff\xff" + b"x" * 50, "malformed"),
        (forged(b"[" * 100_000), "malformed"),
        (forged(b'{"kind": NaN}'), "malformed"),
        (forged([1]), "malformed"),
        (forged({"kind": 1}), "malformed"),
        (forged({"kind": "x", "parts": 7}), "malformed"),
        (forged({"kind": "x", "parts": [["a", "float32", 10**15]], "digest": ""}), "malformed"),
        (forged({"kind": "x", "parts": [["a", "float32", -1]], "digest": ""}), "malformed"),
        (forged({"kind": "x", "parts": [["a", "object", 1]], "digest": ""}, b"1234"), "malformed"),
        (forged({"kind": "x", "parts": [["a", "bytes", 1], ["a", "bytes", 1]], "digest": ""}, b"ab"), "malformed"),
        (b"x" * ((1 << 20) + 1), "oversized"),
    ],
)
def test_what_is_no_message_has_its_code(data: bytes, expected: str) -> None:
    assert code(data) == expected


def test_nothing_is_allocated_for_a_vector_that_is_only_promised() -> None:
    lie = forged({"kind": "x", "parts": [["a", "float32", 1 << 40]], "digest": "0"}, b"1234")
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
        (2, 4),
        {0: {"y": torch.ones(3)}},
        PendingResult(2, 5, 9, 0, GOOD, {"y": torch.zeros(3)}),
    )
)
ASSIGNMENT = pack(
    "assignment",
    {
        "run": "r", "revision": 4, "epoch": 1, "nonce": "n", "seq": 2, "digest_last": "d", "verdict": "applied",
        "present": True, "stopped": "", "jobs": [[7, 0, 0, 3, 5, 0.1, 6, False, "m"]], "recalls": [[0, True]],
        "turned_away": ["", ""], "judge": [[1, 0, "m"]],
    },
    {"m": pack("model", {}, {"model": torch.ones(2)})},
)  # fmt: skip


@given(st.one_of(mutations(GOOD), mutations(CLIENT_STATE), mutations(ASSIGNMENT), st.binary(max_size=300)))
def test_no_decoder_raises_anything_but_a_refusal(data: bytes) -> None:
    for decode in (unpack, read_assignment, read_client_state, lambda d: read_model(d, wire.digest(d))):
        assert outcome(lambda decode=decode: decode(data)) in ("", "malformed", "damaged", "oversized")


def test_a_client_s_state_comes_back_from_its_disk() -> None:
    back = read_client_state(CLIENT_STATE)
    assert (back.epoch, back.nonce, back.accepted, back.seq, back.settled) == (2, "n", True, 5, (2, 4))
    assert torch.equal(back.memory[0]["y"], torch.ones(3))
    assert back.pending is not None
    assert back.pending.message == GOOD
    assert back.pending.memory is not None
    assert read_assignment(ASSIGNMENT).jobs[0][0].version == 3
