"""The identities of a federation: the secrets of one party, the signed roster of all, and how both are read.

An identity has separate secrets for separate uses: the NKey answers the broker's challenge and nothing else (its holder
signs whatever nonce a broker chooses), `sign` signs messages, `seal` encrypts between client and server, and `copy`
encrypts the state that a client leaves with the broker.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from offbeat.core.errors import FolderError, SettingError
from offbeat.deploy import jwt
from offbeat.deploy.encoding import check_name

ROSTER, BROKER, SERVER, SYSTEM, OPERATOR = "roster.json", "nats.conf", "server.creds", "sys.creds", "operator.key"
AUTHORITY, AUTHORITY_KEY, CERTIFICATE, CERTIFICATE_KEY = "ca.pem", "ca.key", "broker.pem", "broker.key"
TOKENS, OPERATOR_TOKEN = "jwt", "operator.jwt"
PROCESS = "nats.pid"  # in the store of a broker: the number of its process
HELPER = "helper"  # the name of the party that takes masks off sums, where a client's name stands otherwise
RESERVED = frozenset(
    {"server", "helper", "sys", "operator", "ca", "broker", "roster", "nats", "jwt", "jetstream", "fed"}
)
ACTIVE, REMOVED = "active", "removed"
BEFORE = 8  # seals of a client that the roster names besides its present one
SYS = "$SYS"  # stands for the coordinator's identity where a client's name stands otherwise
_ROSTER_TAG = b"offbeat/roster/1\0"


@dataclass(frozen=True)
class Creds:
    """One identity.

    client: "" for the server.   account: the public key of its NATS account.   jwt, seed: for the broker.
    sign: an Ed25519 key.   seal: an X25519 key.   copy: 32 bytes; copies_before: those that it replaced.
    server_sign, server_seal, coordinator: public keys to trust.   helper: the helper's, b"" without one.
    ca: the certificate that vouches for the broker's, "" without TLS.
    """

    federation: str
    client: str
    account: str
    jwt: str
    seed: str
    sign: bytes = b""
    seal: bytes = b""
    copy: bytes = b""
    copies_before: tuple[bytes, ...] = ()
    server_sign: bytes = b""
    server_seal: bytes = b""
    coordinator: bytes = b""
    ca: str = ""
    helper: bytes = b""

    def __repr__(self) -> str:  # a secret must not reach a log
        return f"Creds({self.federation!r}, {self.client or 'the server'!r}, {self.user!r})"

    @property
    def user(self) -> str:
        """The public key of the NATS user."""
        return jwt.public_of(self.seed)

    @property
    def inbox(self) -> str:
        """Where answers come."""
        return jwt.inbox(self.client)

    def answer(self, nonce: str) -> bytes:
        """What the broker asks for when this identity connects."""
        return base64.b64encode(jwt.private_key(self.seed).sign(nonce.encode()))


@dataclass(frozen=True)
class Member:
    """The public keys of one identity. state: "active" or "removed".   since: the serial of the roster that set them.

    user: the NATS user, "" for a client whose keys were revoked and not replaced.   before: its last seals before this
    one; a helper that was away has to know whose masks those were.
    """

    account: str
    user: str
    sign: bytes
    seal: bytes
    state: str = ACTIVE
    since: int = 1
    before: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Roster:
    """The identities of a federation, signed by the coordinator; clients in the order in which they were added.

    serial: goes up with every change.   helper: who takes masks off sums, if there is one.
    """

    federation: str
    serial: int
    coordinator: bytes
    server: Member
    clients: Mapping[str, Member]
    signature: bytes = b""
    helper: Member | None = None

    def client(self, name: str) -> Member:
        """A client by its name, also one that was removed."""
        if name not in self.clients:
            raise SettingError(f"{name} is not on the roster, which has {', '.join(self.clients)}")
        return self.clients[name]

    @property
    def active(self) -> list[str]:
        """The names of the clients that were not removed."""
        return [name for name, member in self.clients.items() if member.state == ACTIVE]

    def to_json(self) -> bytes:
        """The roster as it is stored and sent."""
        return json.dumps({**self._content(), "signature": self.signature.hex()}, separators=(",", ":")).encode()

    def signed(self, key: Ed25519PrivateKey) -> Roster:
        return replace(self, signature=key.sign(self._bytes()))

    def _content(self) -> dict[str, Any]:
        return {
            "federation": self.federation,
            "serial": self.serial,
            "coordinator": self.coordinator.hex(),
            "server": _member_table(self.server),
            "clients": {name: _member_table(member) for name, member in self.clients.items()},
            **({} if self.helper is None else {"helper": _member_table(self.helper)}),
        }

    def _bytes(self) -> bytes:
        return _ROSTER_TAG + json.dumps(self._content(), separators=(",", ":")).encode()

    def verify(self, coordinator: bytes) -> Roster:
        """This roster, if the coordinator with this public key has signed it."""
        try:
            if self.coordinator != coordinator:
                raise ValueError("another coordinator")
            Ed25519PublicKey.from_public_bytes(coordinator).verify(self.signature, self._bytes())
        except (ValueError, InvalidSignature):
            raise FolderError("the roster was not signed by this federation's coordinator") from None
        return self


def parse_roster(data: bytes, coordinator: bytes) -> Roster:
    """A roster from its JSON; refuses one that this coordinator has not signed."""
    try:
        content = json.loads(data)
        roster = Roster(
            check_name("federation", content["federation"]),
            int(content["serial"]),
            bytes.fromhex(content["coordinator"]),
            _member(content["server"]),
            {check_name("client", name): _member(member) for name, member in content["clients"].items()},
            bytes.fromhex(content["signature"]),
            _member(content["helper"]) if "helper" in content else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FolderError("the roster is damaged: it does not hold what a roster holds") from None
    return roster.verify(coordinator)


def _member(table: Mapping[str, Any]) -> Member:
    sign, seal = bytes.fromhex(table["sign"]), bytes.fromhex(table["seal"])
    if table["state"] not in (ACTIVE, REMOVED) or (len(sign), len(seal)) != (32, 32):
        raise ValueError(table)
    before = tuple(map(bytes.fromhex, table.get("before", ())))
    if len(before) > BEFORE or any(len(each) != 32 for each in before):
        raise ValueError(table)
    texts = str(table["account"]), str(table["user"])
    return Member(*texts, sign, seal, str(table["state"]), int(table["since"]), before)


def _member_table(member: Member) -> dict[str, Any]:
    table = {**asdict(member), "sign": member.sign.hex(), "seal": member.seal.hex()}
    table["before"] = [each.hex() for each in member.before]
    return table if member.before else {name: value for name, value in table.items() if name != "before"}


# Reading


def read_creds(path: Path) -> Creds:
    """From a file; refuses one that others may read."""
    creds = read_any_creds(path)
    if creds.client == SYS:
        raise FolderError(f"{path} manages the broker; a server or a client has its own file")
    return creds


def read_system(folder: Path, path: Path | None = None) -> Creds:
    """The coordinator's identity at the broker. path: a file of NATS' own format, for another operator's broker."""
    if path is None:
        return read_any_creds(folder / SYSTEM)
    ours = read_creds(folder / SERVER)
    found = re.findall(r"-----BEGIN [A-Z ]+-----\s+(\S+)\s+-+END", private_text(path))
    if len(found) != 2:
        raise FolderError(f"{path} does not hold NATS credentials: a user's token and its seed")
    return Creds(ours.federation, SYS, "", found[0], found[1], ca=ours.ca)


def read_any_creds(path: Path) -> Creds:
    """From a file, of a client, the server or the coordinator at the broker; refuses one that others may read."""
    try:
        content = json.loads(private_text(path))
        texts = {name: str(content[name]) for name in ("federation", "client", "account", "jwt", "seed", "ca")}
        raw = ("sign", "seal", "copy", "server_sign", "server_seal", "coordinator")
        keys = {name: bytes.fromhex(content[name]) for name in raw}
        keys["helper"] = bytes.fromhex(content.get("helper", ""))
        creds = Creds(**texts, **keys, copies_before=tuple(map(bytes.fromhex, content["copies_before"])))  # type: ignore[arg-type]
        jwt.private_key(creds.seed)
        check_name("federation", creds.federation)
        if creds.client != SYS:
            check_name("client", creds.client or "server")
            if {len(keys[name]) for name in raw} != {32} or len(keys["helper"]) not in (0, 32):
                raise ValueError("a key of another length")
        return creds
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FolderError(f"{path} does not hold keys; `offbeat keys init` makes them") from None


def private_text(path: Path) -> str:
    """The text of a file that only its owner may read."""
    try:
        if path.is_dir():
            raise FolderError(f"{path} is a folder; name the file of keys in it, such as {path / SERVER}")
        if path.stat().st_mode & 0o077:
            raise FolderError(f"{path} can be read by others; `chmod 600 {path}` first")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise FolderError(f"cannot read the keys {path}: {error.strerror}") from None


def read_roster(folder: Path, coordinator: bytes = b"") -> Roster:
    """The roster in this folder of keys. coordinator: who must have signed it; b"": as the server's keys there say."""
    try:
        data = (folder / ROSTER).read_bytes()
    except OSError:
        raise FolderError(f"{folder} holds no roster; `offbeat keys init {folder} --clients A,B` makes one") from None
    try:
        return parse_roster(data, coordinator or read_creds(folder / SERVER).coordinator)
    except FolderError as error:
        raise FolderError(f"{folder / ROSTER}: {error}") from None
