"""What is signed and what is sealed, so that the broker may delay and lose but neither read nor forge.

The rules, before the code:

1. One secret, one use. Messages are signed with Ed25519 and sealed with AES-256-GCM under keys derived (HKDF) for one
   federation, run, client and direction. The key that a broker's nonce is signed with signs nothing else.
2. A signature covers the kind of the message, federation, run, client and the SHA-256 of everything sealed, so that no
   message can be taken for another one. What is sealed has the same words as associated data.
3. What a client and the server say to each other is signed by its sender and sealed for its receiver (`Channel`).
   What is for everybody is signed by the server (`sign`). Models are sealed once for all clients of a run
   (`ModelSeal`); the digest in the signed assignment vouches for their bytes. What is kept for oneself is only
   sealed (`PrivateSeal`).
4. Opening is total: any bytes give what was sealed, or a `RefusedError` with the code `malformed` (too short),
   `forged` (not signed by that key, or for something else) or `sealed` (not sealed with that key).

    envelope   = "OBE1" | nonce, 12 bytes | AES-256-GCM of the content | signature, 64 bytes
    statement  = "OBS1" | content | signature, 64 bytes
    model      = nonce derived from key and content, 12 bytes | AES-256-GCM
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from offbeat.deploy.encoding import RefusedError

VERSION = "offbeat/1"
ENVELOPE, STATEMENT = b"OBE1", b"OBS1"
NONCE, TAG, SIGNATURE = 12, 16, 64  # bytes
OVERHEAD = len(ENVELOPE) + NONCE + TAG + SIGNATURE  # of an envelope
LARGEST = (1 << 31) - 1 - TAG  # bytes that AES-GCM seals in one go

FromClient: TypeAlias = Literal["entry", "parts", "beat", "ask"]
FromServer: TypeAlias = Literal["desk", "tell"]
_UP, _DOWN = ("entry", "parts", "beat", "ask"), ("desk", "tell")

Bytes: TypeAlias = bytes | memoryview


def words(*parts: str | bytes) -> bytes:
    """Parts as one byte string that no other parts give."""
    raw = [part.encode() if isinstance(part, str) else part for part in parts]
    return b"".join(len(part).to_bytes(4, "big") + part for part in raw)


def derive(secret: bytes, *what: str | bytes) -> bytes:
    """A key of 32 bytes for one use."""
    return HKDF(hashes.SHA256(), 32, None, words(VERSION, *what)).derive(secret)


def public_sign(seed: bytes) -> bytes:
    """The public key of an Ed25519 seed."""
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def public_seal(private: bytes) -> bytes:
    """The public key of an X25519 private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


@dataclass(frozen=True)
class Ours:
    """One's own secrets: an Ed25519 seed and an X25519 private key."""

    sign: bytes
    seal: bytes

    def __repr__(self) -> str:  # a secret must not reach a log
        return "Ours(…)"


@dataclass(frozen=True)
class Theirs:
    """The other party's public keys."""

    sign: bytes
    seal: bytes


class Channel:
    """What one client and the server say to each other in one run; both ends make the same from their own secrets.

    client: the public key of the client's account.   server: whether this is the server's end.
    """

    def __init__(self, federation: str, run: str, client: str, ours: Ours, theirs: Theirs, *, server: bool) -> None:
        self.about, self.server = (federation, run, client), server
        try:
            shared = X25519PrivateKey.from_private_bytes(ours.seal).exchange(
                X25519PublicKey.from_public_bytes(theirs.seal)
            )
            self.signing = Ed25519PrivateKey.from_private_bytes(ours.sign)
            self.verifying = Ed25519PublicKey.from_public_bytes(theirs.sign)
        except ValueError:
            raise RefusedError("keys", f"the keys of {client} are not keys") from None
        mine = public_seal(ours.seal)
        publics = (theirs.seal, mine) if server else (mine, theirs.seal)
        self.up = AESGCM(derive(shared, "up", *self.about, *publics))
        self.down = AESGCM(derive(shared, "down", *self.about, *publics))
        self.words = {kind: words(VERSION, kind, *self.about) for kind in (*_UP, *_DOWN)}

    def seal(self, kind: FromClient | FromServer, content: bytes) -> bytes:
        """Signed by this end and sealed for the other."""
        return self._seal(kind, content)[0]

    def seal_and_digest(self, kind: FromClient | FromServer, content: bytes) -> tuple[bytes, str]:
        """The same, with the envelope's `digest_of`."""
        sealed, digest = self._seal(kind, content)
        return sealed, digest.hex()

    def _seal(self, kind: FromClient | FromServer, content: bytes) -> tuple[bytes, bytes]:
        if (kind in _UP) is self.server:
            raise ValueError(f"{kind} is not for this end to say")
        about, nonce = self.words[kind], os.urandom(NONCE)
        sealed = self._cipher(kind).encrypt(nonce, content, about)
        digest = _digest(nonce, sealed)
        return b"".join((ENVELOPE, nonce, sealed, self.signing.sign(about + digest))), digest

    def open(self, kind: FromClient | FromServer, data: Bytes, known: str | None = None) -> bytes:
        """What the other end has sealed; raises `RefusedError` and nothing else.

        known: the `digest_of` of these bytes, where the caller has just computed it.
        """
        if (kind in _UP) is not self.server:
            raise ValueError(f"{kind} is not for this end to hear")
        view, about = memoryview(data), self.words[kind]
        if len(view) < OVERHEAD or view[: len(ENVELOPE)] != ENVELOPE:
            raise RefusedError("malformed", "not an envelope")
        nonce, sealed, signature = _cut(view[len(ENVELOPE) :])
        digest = _digest(nonce, sealed) if known is None else bytes.fromhex(known)
        _verify(self.verifying, signature, about + digest)
        try:
            return self._cipher(kind).decrypt(bytes(nonce), sealed, about)
        except (InvalidTag, OverflowError):
            raise RefusedError("sealed", "not sealed with the key of this client and run") from None

    def _cipher(self, kind: str) -> AESGCM:
        return self.up if kind in _UP else self.down


def _cut(view: memoryview) -> tuple[memoryview, memoryview, memoryview]:
    """(nonce, sealed content, signature)"""
    return view[:NONCE], view[NONCE:-SIGNATURE], view[-SIGNATURE:]


def digest_of(envelope: Bytes) -> str:
    """What an envelope is known by: the digest, in hexadecimal, that its signature covers."""
    return _digest(memoryview(envelope)[len(ENVELOPE) : -SIGNATURE]).hex()


def _digest(*content: Bytes) -> bytes:
    digest = hashlib.sha256()
    for part in content:
        digest.update(part)
    return digest.digest()


def _verify(key: Ed25519PublicKey, signature: Bytes, signed: bytes) -> None:
    try:
        key.verify(bytes(signature), signed)
    except InvalidSignature:
        raise RefusedError("forged", "not signed by who should have said it, or said about something else") from None


# For everybody


@lru_cache(maxsize=16)
def _signing(seed: bytes) -> Ed25519PrivateKey:
    """Making it takes as long as signing with it."""
    return Ed25519PrivateKey.from_private_bytes(seed)


def sign(seed: bytes, about: Sequence[str], content: bytes) -> bytes:
    """A statement that everybody may read. about: what it is, the federation, the run."""
    signature = _signing(seed).sign(words(VERSION, *about) + _digest(content))
    return b"".join((STATEMENT, content, signature))


def verify(public: bytes, about: Sequence[str], data: Bytes) -> bytes:
    """The content of a statement that the owner of this key has signed; raises `RefusedError` and nothing else."""
    view = memoryview(data)
    if len(view) < len(STATEMENT) + SIGNATURE or view[: len(STATEMENT)] != STATEMENT:
        raise RefusedError("malformed", "not a statement")
    content = view[len(STATEMENT) : -SIGNATURE]
    try:
        key = Ed25519PublicKey.from_public_bytes(public)
    except ValueError:
        raise RefusedError("keys", "not a public key") from None
    _verify(key, view[-SIGNATURE:], words(VERSION, *about) + _digest(content))
    return bytes(content)


# For oneself


class PrivateSeal:
    """Seals what its owner alone reads again. before: older keys, with which it can still be opened."""

    def __init__(self, key: bytes, before: Sequence[bytes] = ()) -> None:
        self.ciphers = [AESGCM(each) for each in (key, *before)]

    def seal(self, content: bytes, *about: str) -> bytes:
        nonce = os.urandom(NONCE)
        return nonce + self.ciphers[0].encrypt(nonce, content, words(VERSION, *about))

    def open(self, data: Bytes, *about: str) -> bytes:
        """What was sealed about the same; raises `RefusedError` and nothing else."""
        view = memoryview(data)
        if len(view) < NONCE + TAG:
            raise RefusedError("malformed", "too short to be sealed")
        for cipher in self.ciphers:
            try:
                return cipher.decrypt(bytes(view[:NONCE]), view[NONCE:], words(VERSION, *about))
            except (InvalidTag, OverflowError):
                continue
        raise RefusedError("sealed", "not sealed with a key of ours, or about something else")


class ModelSeal:
    """Seals models once for all clients of a run, under a key that their assignments carry.

    A model is known by the digest of its bytes. Its nonce and its address on the broker are derived from that and the
    key: equal models have equal addresses, and the broker learns nothing of the digest.
    """

    def __init__(self, key: bytes) -> None:
        self.key, self.cipher = key, AESGCM(key)

    @classmethod
    def of_run(cls, server_seal: bytes, federation: str, run: str, generation: int) -> ModelSeal:
        """Of a run's generation: a new one begins when a client is removed or gets other keys. Who had its old ones
        knows the keys until then."""
        return cls(derive(server_seal, "model", federation, run, str(generation)))

    def address(self, digest: str) -> str:
        """Where the model lies, in letters and digits."""
        return self._about("address", digest).hex()[:32]

    def seal(self, digest: str, content: bytes) -> bytes:
        nonce = self._about("nonce", digest)[:NONCE]
        return nonce + self.cipher.encrypt(nonce, content, words(VERSION, "model", digest))

    def open(self, digest: str, data: Bytes) -> bytes:
        """The model's bytes; raises `RefusedError` and nothing else."""
        view = memoryview(data)
        if len(view) < NONCE + TAG:
            raise RefusedError("malformed", "too short to be a model")
        try:
            return self.cipher.decrypt(bytes(view[:NONCE]), view[NONCE:], words(VERSION, "model", digest))
        except (InvalidTag, OverflowError):
            raise RefusedError("sealed", "not the model that was asked for") from None

    def _about(self, what: str, digest: str) -> bytes:
        return hmac.digest(self.key, words(VERSION, what, digest), "sha256")
