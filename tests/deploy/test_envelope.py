"""Signing and sealing: what was changed, exchanged or said by somebody else does not open."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from offbeat.deploy import envelope
from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.envelope import Channel, ModelSeal, Ours, PrivateSeal, Theirs, public_seal, public_sign


def secrets() -> Ours:
    return Ours(os.urandom(32), os.urandom(32))


def publics(ours: Ours) -> Theirs:
    return Theirs(public_sign(ours.sign), public_seal(ours.seal))


SERVER, CLIENT, OTHER = secrets(), secrets(), secrets()
ABOUT = ("fed", "run", "ACLIENT")


def client(about: tuple[str, str, str] = ABOUT, ours: Ours = CLIENT) -> Channel:
    return Channel(*about, ours, publics(SERVER), server=False)


def server(about: tuple[str, str, str] = ABOUT, theirs: Ours = CLIENT, ours: Ours = SERVER) -> Channel:
    return Channel(*about, ours, publics(theirs), server=True)


def refused(action: Callable[[], object]) -> str:
    with pytest.raises(RefusedError) as caught:
        action()
    return caught.value.code


def every_bit_counts(data: bytes, read: Callable[[bytes], object]) -> None:
    for at in range(8 * len(data)):
        changed = bytearray(data)
        changed[at // 8] ^= 1 << at % 8
        assert refused(lambda changed=changed: read(bytes(changed))) in ("malformed", "forged", "sealed")
    for length in range(len(data)):
        refused(lambda length=length: read(data[:length]))
    refused(lambda: read(data + b"\0"))


def test_what_is_sealed_opens_at_the_other_end_and_shows_nothing_on_the_way() -> None:
    up = client().seal("entry", b"a result")
    assert b"a result" not in up
    assert server().open("entry", up) == b"a result"
    assert len(up) == len(b"a result") + envelope.OVERHEAD
    named, name = client().seal_and_digest("entry", b"a result")
    assert envelope.digest_of(named) == name
    assert server().open("entry", named, name) == b"a result"
    assert refused(lambda: server().open("entry", named, envelope.digest_of(up))) == "forged"
    down = server().seal("desk", b"")
    assert client().open("desk", down) == b""
    assert client().seal("entry", b"a result") != up


def test_every_bit_of_an_envelope_counts() -> None:
    every_bit_counts(client().seal("entry", b"result"), lambda data: server().open("entry", data))
    every_bit_counts(server().seal("desk", b"job"), lambda data: client().open("desk", data))


@pytest.mark.parametrize("about", [("fed2", "run", "ACLIENT"), ("fed", "run2", "ACLIENT"), ("fed", "run", "AOTHER")])
def test_an_envelope_is_for_one_federation_run_and_client(about: tuple[str, str, str]) -> None:
    assert refused(lambda: server(about).open("entry", client().seal("entry", b"x"))) == "forged"
    assert refused(lambda: client(about).open("desk", server().seal("desk", b"x"))) == "forged"


def test_an_envelope_is_of_one_kind_and_direction() -> None:
    entry, desk = client().seal("entry", b"x"), server().seal("desk", b"x")
    assert refused(lambda: server().open("beat", entry)) == "forged"
    assert refused(lambda: client().open("tell", desk)) == "forged"
    assert refused(lambda: client().open("desk", entry)) == "forged"
    assert refused(lambda: server().open("entry", desk)) == "forged"
    for say, kind in ((client(), "desk"), (server(), "entry")):
        with pytest.raises(ValueError, match="not for this end"):
            say.seal(kind, b"")  # type: ignore[arg-type]


def test_nobody_speaks_for_another() -> None:
    forged = client(ours=Ours(OTHER.sign, CLIENT.seal)).seal("entry", b"x")
    assert refused(lambda: server().open("entry", forged)) == "forged"
    assert refused(lambda: server(theirs=OTHER).open("entry", client().seal("entry", b"x"))) == "forged"
    # one who may sign but does not have the key it is sealed with
    unsealed = client(ours=Ours(CLIENT.sign, OTHER.seal)).seal("entry", b"x")
    assert refused(lambda: server().open("entry", unsealed)) == "sealed"
    impostor = server(ours=OTHER).seal("desk", b"x")
    assert refused(lambda: client().open("desk", impostor)) == "forged"


def test_the_same_envelope_again_is_the_same_message() -> None:
    """The fold tells repeated messages by their content: an envelope that comes twice says the same twice."""
    up, at = client().seal("entry", b"number 7"), server()
    assert at.open("entry", up) == at.open("entry", up) == b"number 7"


def test_keys_that_are_not_keys_are_refused() -> None:
    zero = Theirs(public_sign(OTHER.sign), bytes(32))  # a point of low order: everybody would know the shared key
    assert refused(lambda: Channel(*ABOUT, SERVER, zero, server=True)) == "keys"
    assert refused(lambda: Channel(*ABOUT, SERVER, Theirs(b"", b""), server=True)) == "keys"
    assert refused(lambda: envelope.verify(b"short", ("board",), envelope.sign(SERVER.sign, ("board",), b""))) == "keys"


@given(st.binary(max_size=400))
def test_any_bytes_are_opened_or_refused(data: bytes) -> None:
    for read in (
        lambda: server().open("entry", data),
        lambda: client().open("desk", envelope.ENVELOPE + data),
        lambda: envelope.verify(public_sign(SERVER.sign), ("board", "fed"), envelope.STATEMENT + data),
        lambda: PrivateSeal(bytes(32)).open(data, "x"),
        lambda: ModelSeal(bytes(32)).open("d" * 32, data),
    ):
        assert refused(read) in ("malformed", "forged", "sealed")


def test_a_statement_is_the_server_s_and_about_one_thing() -> None:
    public, made = public_sign(SERVER.sign), envelope.sign(SERVER.sign, ("board", "fed"), b"runs")
    assert envelope.verify(public, ("board", "fed"), made) == b"runs"
    every_bit_counts(made, lambda data: envelope.verify(public, ("board", "fed"), data))
    for about in (("pulse", "fed"), ("board", "fed2"), ("boardfed",), ("board", "fed", "")):
        assert refused(lambda about=about: envelope.verify(public, about, made)) == "forged"
    assert refused(lambda: envelope.verify(public_sign(OTHER.sign), ("board", "fed"), made)) == "forged"


def test_one_s_own_copy_opens_with_its_key_or_an_older_one_and_for_the_same_purpose() -> None:
    old, new = os.urandom(32), os.urandom(32)
    sealed = PrivateSeal(old).seal(b"memory", "copy", "run", "nonce")
    assert b"memory" not in sealed
    assert PrivateSeal(new, [old]).open(sealed, "copy", "run", "nonce") == b"memory"
    assert refused(lambda: PrivateSeal(new).open(sealed, "copy", "run", "nonce")) == "sealed"
    assert refused(lambda: PrivateSeal(old).open(sealed, "copy", "run", "other")) == "sealed"
    every_bit_counts(sealed, lambda data: PrivateSeal(old).open(data, "copy", "run", "nonce"))


def test_a_model_is_sealed_once_for_all_and_has_an_address_that_only_key_holders_know() -> None:
    first, again = (ModelSeal.of_run(SERVER.seal, "fed", "run", 1) for _ in range(2))
    sealed = first.seal("digest", b"weights")
    assert (sealed, first.address("digest")) == (again.seal("digest", b"weights"), again.address("digest"))
    assert first.open("digest", sealed) == b"weights"
    assert first.address("digest").isalnum()
    assert refused(lambda: first.open("other", sealed)) == "sealed"
    later = ModelSeal.of_run(SERVER.seal, "fed", "run", 2)
    assert later.address("digest") != first.address("digest")
    assert refused(lambda: later.open("digest", sealed)) == "sealed"
    every_bit_counts(sealed, lambda data: first.open("digest", data))


def test_secrets_do_not_show() -> None:
    assert str(list(CLIENT.sign)[:3]) not in repr(CLIENT)
    assert repr(CLIENT) == "Ours(…)"
