"""Making and changing the keys of a federation: `offbeat keys init`, `add`, `rotate`, `remove` and the others.

The coordinator, who holds `operator.key`, signs the accounts that the broker accepts and the roster that the server
accepts.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from offbeat.core.errors import FolderError, SettingError
from offbeat.deploy import certificates, jwt
from offbeat.deploy.broker_config import configuration, has_tls
from offbeat.deploy.encoding import check_name
from offbeat.deploy.identity import (
    ACTIVE,
    AUTHORITY,
    AUTHORITY_KEY,
    BEFORE,
    BROKER,
    CERTIFICATE,
    CERTIFICATE_KEY,
    HELPER,
    OPERATOR,
    OPERATOR_TOKEN,
    REMOVED,
    RESERVED,
    ROSTER,
    SERVER,
    SYS,
    SYSTEM,
    TOKENS,
    Creds,
    Member,
    Roster,
    private_text,
    read_any_creds,
    read_creds,
    read_roster,
)
from offbeat.watch.files import locked

_NEVER = (1 << 53) - 1  # seconds

# The coordinator's secrets


@dataclass
class _Coordinator:
    """What `operator.key` holds: the secrets that sign accounts and the roster, and whom the broker is to refuse.

    accounts: name -> seed of its NATS account; "" for the server's, `$SYS` for the broker's own.
    revoked: name -> users that are cut off for good -> the time before which their tokens were issued.
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
        """Cut a user off for good. A token does not count if it was issued before a time: this one never comes, as the
        clock of whoever has issued it may have been ahead."""
        if user:
            self.revoked.setdefault(client, {})[user] = _NEVER

    def claims(self, name: str) -> dict[str, Any]:
        """What the broker is to know about an account."""
        if name == SYS:
            return jwt.system_account()
        if not name:
            return jwt.server_account()
        account = jwt.public_of(self.accounts[name])
        access = jwt.Access(name, account, self.revoked.get(name, {}), name not in self.closed)
        return jwt.client_account(access, self.accounts[""])


def _read_coordinator(folder: Path) -> _Coordinator:
    try:
        return _Coordinator(**json.loads(private_text(folder / OPERATOR)))
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
        accounts = {name: jwt.new_seed(jwt.ACCOUNT) for name in ("", SYS)}
        made = _Coordinator(federation, jwt.new_seed(jwt.OPERATOR), secrets.token_bytes(32).hex(), accounts)
        server = _new_creds(made, "", ca)
        _write_creds(folder / SERVER, server)
        _write_creds(folder / SYSTEM, Creds(federation, SYS, *made.new_user(SYS), coordinator=made.public, ca=ca))
        roster = Roster(federation, 0, made.public, _public(server, 1), {})
        (folder / TOKENS).mkdir(exist_ok=True)
        token = jwt.operator(made.operator, federation, jwt.public_of(accounts[SYS]))
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
                _write_creds(path, replace(read_any_creds(path), helper=roster.helper.seal))
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
            before = read_any_creds(folder / f"{name}.creds")
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
    authority = private_text(folder / AUTHORITY_KEY)
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
    for name in ["", SYS, *changed, *others]:
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
