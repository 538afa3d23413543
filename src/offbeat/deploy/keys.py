"""Who may take part: the keys of each client and the server, the signed roster, and the broker's configuration.

An identity has separate secrets for separate uses: the NKey answers the broker's challenge and nothing else (its holder
signs whatever nonce a broker chooses), `sign` signs messages, `seal` encrypts between client and server, and `copy`
encrypts the state that a client leaves with the broker. The coordinator, who holds `operator.key`, signs the accounts
that the broker accepts and the roster that the server accepts.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from offbeat.core.errors import FolderError, SettingError
from offbeat.deploy import certificates, jwt
from offbeat.deploy.encoding import check_name
from offbeat.watch.files import locked

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
_SYS = "$SYS"  # stands for the coordinator's identity where a client's name stands otherwise
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
    creds = _read_creds(path)
    if creds.client == _SYS:
        raise FolderError(f"{path} manages the broker; a server or a client has its own file")
    return creds


def read_system(folder: Path, path: Path | None = None) -> Creds:
    """The coordinator's identity at the broker. path: a file of NATS' own format, for another operator's broker."""
    if path is None:
        return _read_creds(folder / SYSTEM)
    ours = read_creds(folder / SERVER)
    found = re.findall(r"-----BEGIN [A-Z ]+-----\s+(\S+)\s+-+END", _private_text(path))
    if len(found) != 2:
        raise FolderError(f"{path} does not hold NATS credentials: a user's token and its seed")
    return Creds(ours.federation, _SYS, "", found[0], found[1], ca=ours.ca)


def _read_creds(path: Path) -> Creds:
    try:
        content = json.loads(_private_text(path))
        texts = {name: str(content[name]) for name in ("federation", "client", "account", "jwt", "seed", "ca")}
        raw = ("sign", "seal", "copy", "server_sign", "server_seal", "coordinator")
        keys = {name: bytes.fromhex(content[name]) for name in raw}
        keys["helper"] = bytes.fromhex(content.get("helper", ""))
        creds = Creds(**texts, **keys, copies_before=tuple(map(bytes.fromhex, content["copies_before"])))  # type: ignore[arg-type]
        jwt.private_key(creds.seed)
        check_name("federation", creds.federation)
        if creds.client != _SYS:
            check_name("client", creds.client or "server")
            if {len(keys[name]) for name in raw} != {32} or len(keys["helper"]) not in (0, 32):
                raise ValueError("a key of another length")
        return creds
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FolderError(f"{path} does not hold keys; `offbeat keys init` makes them") from None


def _private_text(path: Path) -> str:
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


# The coordinator's secrets


@dataclass
class _Coordinator:
    """What `operator.key` holds: the secrets that sign accounts and the roster, and whom the broker is to refuse.

    accounts: name -> seed of its NATS account; "" for the server's, `$SYS` for the broker's own.
    revoked: name -> users that are cut off -> the time before which their tokens were issued.
    closed: clients that may not connect.
    """

    federation: str
    operator: str
    sign: str
    accounts: dict[str, str]
    revoked: dict[str, dict[str, int]] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)

    @property
    def key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(self.sign))

    @property
    def public(self) -> bytes:
        return self.key.public_key().public_bytes_raw()

    def new_user(self, client: str) -> tuple[str, str, str]:
        """(account, token, seed) of a new user of a client's account."""
        account, seed = self.accounts[client], jwt.new_seed(jwt.USER)
        return jwt.public_of(account), jwt.issue(account, jwt.public_of(seed), client or "server", jwt.user()), seed

    def revoke(self, client: str, user: str) -> None:
        """Cut a user off for good; a token is refused if it was issued before the time given here."""
        if user:
            self.revoked.setdefault(client, {})[user] = int(time.time()) + 1

    def claims(self, name: str) -> dict[str, Any]:
        """What the broker is to know about an account."""
        if name == _SYS:
            return jwt.system_account()
        if not name:
            return jwt.server_account()
        account = jwt.public_of(self.accounts[name])
        access = jwt.Access(name, account, self.revoked.get(name, {}), name not in self.closed)
        return jwt.client_account(access, self.accounts[""])


def _read_coordinator(folder: Path) -> _Coordinator:
    try:
        return _Coordinator(**json.loads(_private_text(folder / OPERATOR)))
    except (ValueError, TypeError):
        raise FolderError(f"{folder / OPERATOR} is damaged; restore it from a backup") from None


# Making and changing


def init(
    folder: Path,
    clients: Sequence[str],
    federation: str = "fed",
    hosts: Sequence[str] = (),
    port: int = 4222,
    tls: bool = True,
) -> Roster:
    """Make keys for these clients and the server, and the broker's configuration, in a new folder.

    hosts: names and addresses under which the broker is reached, for its certificate.
    """
    check_name("federation", federation)
    _check_new(clients, ())
    if not clients:
        raise SettingError("clients = []: name at least one")
    with _writing(folder, new=True):
        if any((folder / name).exists() for name in (ROSTER, OPERATOR, AUTHORITY_KEY)):
            raise FolderError(f"{folder} already holds keys; name another folder, or add to it with `offbeat keys add`")
        ca = _new_certificates(folder, hosts) if tls else ""
        accounts = {name: jwt.new_seed(jwt.ACCOUNT) for name in ("", _SYS)}
        made = _Coordinator(federation, jwt.new_seed(jwt.OPERATOR), secrets.token_bytes(32).hex(), accounts)
        server = _new_creds(made, "", ca)
        _write_creds(folder / SERVER, server)
        _write_creds(folder / SYSTEM, Creds(federation, _SYS, *made.new_user(_SYS), coordinator=made.public, ca=ca))
        roster = Roster(federation, 0, made.public, _public(server, 1), {})
        (folder / TOKENS).mkdir(exist_ok=True)
        token = jwt.operator(made.operator, federation, jwt.public_of(accounts[_SYS]))
        _write(folder / OPERATOR_TOKEN, token)
        roster = _enroll(folder, made, roster, clients)
        _write(folder / BROKER, configuration(folder, port))
    return roster


def add(folder: Path, clients: Sequence[str]) -> Roster:
    """Keys for more clients."""
    with _changing(folder) as (made, roster):
        _check_new(clients, roster.clients)
        return _enroll(folder, made, roster, clients)


def add_helper(folder: Path) -> Roster:
    """Keys for the helper; the file of every client in the folder gets its public key, and has to be sent out again."""
    with _changing(folder) as (made, roster):
        if roster.helper is not None:
            raise SettingError(f"{folder} already has a helper")
        made.accounts[HELPER] = jwt.new_seed(jwt.ACCOUNT)
        creds = _new_creds(made, HELPER, read_creds(folder / SERVER).ca, roster)
        _write_creds(folder / f"{HELPER}.creds", creds)
        roster = replace(roster, helper=_public(creds, roster.serial + 1))
        assert roster.helper is not None
        for path in [folder / f"{name}.creds" for name in roster.active]:
            if path.exists():
                _write_creds(path, replace(_read_creds(path), helper=roster.helper.seal))
        return _save(folder, made, roster, {}, HELPER)


def remove(folder: Path, clients: Sequence[str]) -> Roster:
    """Take clients off the federation for good: the broker refuses them, and so does the server."""
    with _changing(folder) as (made, roster):
        changed = {}
        for name in clients:
            member = roster.client(name)
            made.closed = sorted(
                {*made.closed, name}
            )  # its user is not revoked: the broker says which of the two it is
            changed[name] = replace(member, user="", state=REMOVED, since=roster.serial + 1)
        return _save(folder, made, roster, changed)


def rotate(folder: Path, clients: Sequence[str], everything: bool = False) -> Roster:
    """New keys for clients; the broker and the server refuse the old ones. The key of a client's copies stays.

    everything: also another key for copies; older copies can still be opened.
    """
    with _changing(folder) as (made, roster):
        changed = {}
        for name in clients:
            member = _active(roster, name)
            made.revoke(name, member.user)
            made.closed = [other for other in made.closed if other != name]
            before = _read_creds(folder / f"{name}.creds")
            creds = replace(_new_creds(made, name, before.ca, roster), copy=before.copy)
            if everything:
                creds = replace(creds, copy=secrets.token_bytes(32))
                creds = replace(creds, copies_before=(before.copy, *before.copies_before))
            else:
                creds = replace(creds, copies_before=before.copies_before)
            _write_creds(folder / f"{name}.creds", creds)
            changed[name] = _after(member, _public(creds, roster.serial + 1))
        return _save(folder, made, roster, changed)


def revoke(folder: Path, clients: Sequence[str]) -> Roster:
    """Refuse the present keys of clients, for example after a theft; they stay members, and `rotate` lets them in."""
    with _changing(folder) as (made, roster):
        changed = {}
        for name in clients:
            member = _active(roster, name)
            made.revoke(name, member.user)
            made.closed = sorted({*made.closed, name})
            nobody = _new_creds(made, name, "", roster)  # keys that nobody has: what the old ones sign is refused
            changed[name] = _after(member, replace(_public(nobody, roster.serial + 1), user=""))
        return _save(folder, made, roster, changed)


def renew(folder: Path, hosts: Sequence[str] = ()) -> None:
    """A new certificate for the broker, from the same authority. hosts: besides those that the old one has."""
    if not has_tls(folder):
        raise FolderError(f"{folder} has no certificate to renew: its federation was made without TLS")
    authority = _private_text(folder / AUTHORITY_KEY)
    with _writing(folder):
        before = certificates.hosts_of((folder / CERTIFICATE).read_text(encoding="utf-8"))
        _certify(folder, authority, [*before, *hosts])


def valid_until(folder: Path) -> datetime.datetime:
    """When the broker's certificate ends."""
    return certificates.expiry((folder / CERTIFICATE).read_text(encoding="utf-8"))


@contextlib.contextmanager
def _changing(folder: Path) -> Iterator[tuple[_Coordinator, Roster]]:
    read_roster(folder)  # what is no folder of keys is not locked
    with _writing(folder):
        yield _read_coordinator(folder), read_roster(folder)  # as the last one that was at work has left it


@contextlib.contextmanager
def _writing(folder: Path, new: bool = False) -> Iterator[None]:
    """Within, nobody else changes the folder; one that cannot be written to is an error that names it."""
    try:
        if new:
            folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, f"another `offbeat keys` is at work in {folder}; run this again when it has ended"):
            yield
    except OSError as error:
        raise FolderError(f"cannot write to {folder}: {error.strerror}; make room there, or name another") from None


def _check_new(clients: Sequence[str], known: Mapping[str, Member] | Sequence[str]) -> None:
    if len(set(clients)) != len(clients):
        raise SettingError(f"clients = {list(clients)}: name each once")
    for client in clients:
        check_name("client", client)
        if client.lower() in RESERVED:
            raise SettingError(f"client {client!r}: the federation's own files have this name; choose another")
        if client in known:
            if isinstance(known, Mapping) and known[client].state == REMOVED:
                raise SettingError(f"{client} was on the roster and was removed; choose another name")
            raise SettingError(f"{client} is already on the roster; `offbeat keys rotate` replaces its keys")
    names = [name.lower() for name in (*known, *clients)]
    if len(set(names)) != len(names):
        raise SettingError(f"clients = {list(clients)}: names that differ in capitals only are one file on some disks")


def _active(roster: Roster, name: str) -> Member:
    member = roster.client(name)
    if member.state != ACTIVE:
        raise SettingError(f"{name} was removed; add the site under another name")
    return member


def _enroll(folder: Path, made: _Coordinator, roster: Roster, clients: Sequence[str]) -> Roster:
    server = read_creds(folder / SERVER)
    members = {}
    for name in clients:
        made.accounts[name] = jwt.new_seed(jwt.ACCOUNT)
        creds = _new_creds(made, name, server.ca, roster)
        _write_creds(folder / f"{name}.creds", creds)
        members[name] = _public(creds, roster.serial + 1)
    return _save(folder, made, roster, members)


def _new_creds(made: _Coordinator, client: str, ca: str, roster: Roster | None = None) -> Creds:
    sign, seal, copy = (secrets.token_bytes(32) for _ in range(3))
    creds = Creds(made.federation, client, *made.new_user(client), sign, seal, copy, coordinator=made.public, ca=ca)
    server = _public(creds, 1) if roster is None else roster.server
    helper = roster.helper.seal if roster is not None and roster.helper is not None else b""
    return replace(creds, server_sign=server.sign, server_seal=server.seal, helper=helper)


def _public(creds: Creds, serial: int) -> Member:
    sign = Ed25519PrivateKey.from_private_bytes(creds.sign).public_key().public_bytes_raw()
    seal = X25519PrivateKey.from_private_bytes(creds.seal).public_key().public_bytes_raw()
    return Member(creds.account, creds.user, sign, seal, ACTIVE, serial)


def _after(before: Member, now: Member) -> Member:
    """A client whose keys were replaced."""
    return replace(now, before=(before.seal, *before.before)[:BEFORE])


def _save(folder: Path, made: _Coordinator, roster: Roster, changed: Mapping[str, Member], *others: str) -> Roster:
    """Write down the coordinator's secrets, the accounts that have changed, and last the roster."""
    clients = {**roster.clients, **changed}
    roster = replace(roster, serial=roster.serial + 1, clients=clients).signed(made.key)
    _write_private(folder / OPERATOR, json.dumps(asdict(made), indent=1))
    issuer = jwt.public_of(made.operator)
    for name in ["", _SYS, *changed, *others]:
        account, content = jwt.public_of(made.accounts[name]), made.claims(name)
        path, issued = folder / TOKENS / f"{account}.jwt", 0
        if path.exists():
            before = jwt.verified(path.read_text(encoding="utf-8"), issuer)
            if before["nats"] == {**content, "version": 2}:
                continue
            issued = int(before["iat"])
        _write(path, jwt.issue(made.operator, account, name or "FED", content, issued))
    _write(folder / ROSTER, roster.to_json().decode())
    return roster


def _new_certificates(folder: Path, hosts: Sequence[str]) -> str:
    key, ca = certificates.new_authority()
    _write_private(folder / AUTHORITY_KEY, key)
    _write(folder / AUTHORITY, ca)
    _certify(folder, key, ["localhost", "127.0.0.1", *hosts])
    return ca


def _certify(folder: Path, authority: str, hosts: Sequence[str]) -> None:
    key, certificate = certificates.new_certificate(authority, hosts)
    _write_private(folder / CERTIFICATE_KEY, key)
    _write(folder / CERTIFICATE, certificate)


def _write_creds(path: Path, creds: Creds) -> None:
    table = {name: value.hex() if isinstance(value, bytes) else value for name, value in asdict(creds).items()}
    table["copies_before"] = [value.hex() for value in creds.copies_before]
    _write_private(path, json.dumps(table, indent=1))


def _write_private(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    part.replace(path)


def _write(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


# The broker's configuration


def configuration(
    folder: Path, port: int = 4222, host: str = "0.0.0.0", store: Path | None = None, sync: bool = True
) -> str:
    """The broker's configuration for this folder of keys.

    store: folder for the broker's own data; None: streams in `jetstream` where it is started, tokens in the folder of
    keys.   sync: every message is on disk when it is acknowledged; without it a power failure (not a crash) may cost
    the last ones.
    """
    tokens = (folder if store is None else store).resolve() / TOKENS
    token = (folder / OPERATOR_TOKEN).read_text(encoding="utf-8")
    accounts = [str(jwt.operator_claims(token)["nats"]["system_account"]), read_roster(folder).server.account]
    preload = [f"  {account}: {text}" for account, text in read_tokens(folder, accounts).items()]
    lines = [
        f"listen: {_quoted(f'{host}:{port}')}",
        f"max_payload: {jwt.MAX_PAYLOAD}",
        "jetstream {",
        f"  store_dir: {_quoted('jetstream' if store is None else store.resolve() / 'jetstream')}",
        *(["  sync_interval: always"] if sync else []),
        "}",
        f"operator: {token}",
        f"system_account: {accounts[0]}",
        f'resolver {{ type: full, dir: {_quoted(tokens)}, allow_delete: true, timeout: "500ms" }}',
        *["resolver_preload {", *preload, "}"],
    ]
    if store is not None:
        lines.append(f"pid_file: {_quoted(store.resolve() / PROCESS)}")
    if has_tls(folder):
        cert, key = (_quoted((folder / name).resolve()) for name in (CERTIFICATE, CERTIFICATE_KEY))
        lines += ["tls {", f"  cert_file: {cert}", f"  key_file: {key}"]
        lines += ["  handshake_first: true", "}"]
    return "\n".join([*lines, ""])


def _quoted(text: str | Path) -> str:
    """As the broker's configuration has text: not as JSON, whose escapes of other alphabets it does not know."""
    return '"' + "".join(f"\\x{ord(c):02x}" if c < " " or c in '"\\' else c for c in str(text)) + '"'


def has_tls(folder: Path) -> bool:
    """Whether the broker of this folder of keys has a certificate."""
    return (folder / CERTIFICATE).exists()


def read_tokens(folder: Path, accounts: Sequence[str] | None = None) -> dict[str, str]:
    """Tokens in a folder of keys by their account; refuses one that the operator there has not signed.

    The broker takes any token, and a client whose account has a wrong one is locked out when the broker is restarted.
    accounts: which; None: all.
    """
    found = {}
    try:
        issuer = str(jwt.operator_claims((folder / OPERATOR_TOKEN).read_text(encoding="utf-8"))["sub"])
        for account in list_tokens(folder) if accounts is None else accounts:
            found[account] = (folder / TOKENS / f"{account}.jwt").read_text(encoding="utf-8")
    except OSError as error:
        raise FolderError(f"cannot read {error.filename}: {error.strerror}") from None
    for account, token in found.items():
        if jwt.verified(token, issuer)["sub"] != account:
            raise FolderError(f"{folder / TOKENS / account}.jwt is the token of another account")
    return found


def list_tokens(folder: Path) -> list[str]:
    """The accounts that have tokens in a folder of keys."""
    return sorted(path.stem for path in (folder / TOKENS).glob("A*.jwt"))
