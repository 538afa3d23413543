"""What a NATS broker in operator mode believes: NKeys, signed claims, and one account for each client.

The operator signs accounts, an account signs its users. JetStream and every stream live in the account FED. A client's
account has no stream: it imports exactly its own subjects, under local names, each with a permit that FED has signed
for this account and subject, so that an account of another tenant of the broker imports nothing. An answer to a
request stays in the account that asked, so a client cannot direct it anywhere.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from offbeat.core.errors import FolderError

OPERATOR, ACCOUNT, USER = (number << 3 for number in (14, 0, 20))  # NKeys' prefixes: O, A and U as their first letter
_SEED = 18 << 3  # S
CLIENT_PAYLOAD = 1_100_000  # bytes of a client's message: an envelope of 1 MB and its headers
MAX_PAYLOAD = 8 << 20  # bytes of the server's: the roster of 10,000 clients is one message
_CONNECTIONS, _SUBSCRIPTIONS = 4, 32  # of a client; a reconnecting one has two for a moment
_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}
_GET = "$JS.API.DIRECT.GET"

# What a client sends and asks for, and what it hears: local name -> subject in FED. `{}` stands for the client's
# account; a `*` of the subject is one of the local name, in the same order.
SERVICES: Mapping[str, str] = {
    "up.*": "up.{}.*",
    "part.*": "part.{}.*",
    "mirror.*": "mirror.{}.*",
    "beat.*": "beat.{}.*",
    "ask.*": "ask.{}.*",
    "get.desk.*": f"{_GET}.DESK.desk.{{}}.*",
    "get.board": f"{_GET}.BOARD.board",
    "get.model.*.*.*": f"{_GET}.MODEL.model.*.*.*",
}
STREAMS: Mapping[str, str] = {
    "desk.*": "desk.{}.*",
    "tell.*": "tell.{}.*",
    "pulse.*": "pulse.*",
    "board": "board",
}


# NKeys


def new_seed(kind: int) -> str:
    """A new secret key for an OPERATOR, an ACCOUNT or a USER."""
    raw = Ed25519PrivateKey.generate().private_bytes_raw()
    return _encode(bytes([_SEED | (kind >> 5), (kind & 31) << 3]) + raw)


@lru_cache(64)  # the same few keys sign everything
def public_of(seed: str) -> str:
    """The public key that belongs to a seed."""
    raw = _decode(seed)
    kind = ((raw[0] & 7) << 5) | (raw[1] >> 3)
    return _encode(bytes([kind]) + private_key(seed).public_key().public_bytes_raw())


@lru_cache(64)
def private_key(seed: str) -> Ed25519PrivateKey:
    """The key inside a seed."""
    raw = _decode(seed)
    if len(raw) != 34 or raw[0] & 0xF8 != _SEED:
        raise FolderError("a key is damaged: it is no seed")
    return Ed25519PrivateKey.from_private_bytes(raw[2:])


@lru_cache(64)
def _public_key(public: str) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(_decode(public)[1:])


def _encode(raw: bytes) -> str:
    checked = raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")
    return base64.b32encode(checked).decode().rstrip("=")


def _decode(text: str) -> bytes:
    raw = base64.b32decode(text + "=" * (-len(text) % 8))
    if binascii.crc_hqx(raw[:-2], 0).to_bytes(2, "little") != raw[-2:]:
        raise FolderError("a key is damaged: its check sum does not fit")
    return raw[:-2]


# Claims


def issue(seed: str, subject: str, name: str, content: Mapping[str, Any], after: int = 0) -> str:
    """Claims about a public key, signed. after: issued later than this: the broker keeps the newest."""
    claims = {
        "iat": max(int(time.time()), after + 1),
        "iss": public_of(seed),
        "name": name,
        "sub": subject,
        "nats": {**content, "version": 2},
    }
    claims["jti"] = base64.b32encode(hashlib.sha256(_json(claims)).digest()).decode().rstrip("=")
    body = f"{_text(_json(_HEADER))}.{_text(_json(claims))}"
    return f"{body}.{_text(private_key(seed).sign(body.encode()))}"


def verified(token: str, issuer: str) -> dict[str, Any]:
    """The claims in a token, if this public key has signed it."""
    try:
        body, _, signature = token.strip().rpartition(".")
        header, _, claims = body.partition(".")
        if json.loads(_bytes(header)) != _HEADER:
            raise ValueError(header)
        _public_key(issuer).verify(_bytes(signature), body.encode())
        found: dict[str, Any] = json.loads(_bytes(claims))
        if found["iss"] != issuer:
            raise ValueError(found["iss"])
        return found
    except (ValueError, KeyError, TypeError, InvalidSignature):
        raise FolderError(f"an account's token is damaged, or {issuer} has not signed it") from None


def operator_claims(token: str) -> dict[str, Any]:
    """The claims in an operator's token, which it has signed itself."""
    return verified(token, str(_unverified(token).get("sub")))


def issued_at(token: str) -> int:
    """When a token says that it was issued; 0 for one that cannot be read."""
    found = _unverified(token).get("iat")
    return found if isinstance(found, int) else 0


def _unverified(token: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError, IndexError):
        found = json.loads(_bytes(token.split(".")[1]))
        if isinstance(found, dict):
            return found
    return {}


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


# Accounts


@dataclass(frozen=True)
class Access:
    """What the broker lets a client do: its name, its account's key, users that are cut off, whether it may connect."""

    client: str
    account: str
    revoked: Mapping[str, int]
    open: bool = True


def operator(seed: str, name: str, system: str) -> str:
    """The operator's token, which the broker's configuration names."""
    return issue(seed, public_of(seed), name, {"type": "operator", "system_account": system})


def system_account() -> dict[str, Any]:
    """The account of the broker itself: claims are pushed and connections are watched there."""
    return {"type": "account", "limits": _limits(), "default_permissions": {}}


def server_account() -> dict[str, Any]:
    """The account FED. It does not change when clients come and go."""
    exports = [_export("service", what) for what in SERVICES.values()]
    exports += [_export("stream", what) for what in STREAMS.values()]
    unlimited = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    limits = {**_limits(), **unlimited}
    return {"type": "account", "exports": exports, "limits": limits, "default_permissions": {}}


def client_account(access: Access, fed: str) -> dict[str, Any]:
    """A client's account: nothing but its imports. fed: the seed of the account FED, which permits them."""
    imports = [_import("service", local, what, access.account, fed) for local, what in SERVICES.items()]
    imports += [_import("stream", local, what, access.account, fed) for local, what in STREAMS.items()]
    limits = {**_limits(), "conn": _CONNECTIONS, "subs": _SUBSCRIPTIONS, "payload": CLIENT_PAYLOAD, "leaf": 0}
    content = {
        "type": "account",
        "imports": imports if access.open else [],
        "limits": limits if access.open else {**limits, "conn": 0},
        "default_permissions": {
            "pub": {"allow": [*SERVICES]},
            "sub": {"allow": [*STREAMS, f"{inbox(access.client)}.>"]},
        },
    }
    return {**content, **({"revocations": dict(access.revoked)} if access.revoked else {})}


def user() -> dict[str, Any]:
    """A user: what it may do is said by its account, which can be changed while the user keeps its file."""
    return {"type": "user", "subs": -1, "data": -1, "payload": -1, "allowed_connection_types": ["STANDARD"]}


def inbox(client: str) -> str:
    """Where answers to a client's requests come, in its own account."""
    return f"_INBOX.{client or 'server'}"


def _limits() -> dict[str, Any]:
    names = ("subs", "data", "payload", "imports", "exports", "conn", "leaf")
    return {**dict.fromkeys(names, -1), "wildcards": True}


def _export(kind: str, subject: str) -> dict[str, Any]:
    answers = {"response_type": "Singleton", "response_threshold": 5_000_000_000} if kind == "service" else {}
    anybody = subject.replace("{}", "*")
    return {"name": anybody, "subject": anybody, "type": kind, "token_req": True, **answers}


def _import(kind: str, local: str, subject: str, account: str, fed: str) -> dict[str, Any]:
    tokens, number = local.split("."), 0
    for at, token in enumerate(tokens):
        if token == "*":
            number += 1
            tokens[at] = f"${number}"
    own = subject.format(account)
    permit = issue(fed, account, local, {"type": "activation", "subject": own, "kind": kind})
    where = {"account": public_of(fed), "subject": own, "local_subject": ".".join(tokens)}
    return {"name": local, "type": kind, **where, "token": permit}
