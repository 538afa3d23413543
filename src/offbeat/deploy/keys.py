"""Who may take part: one key pair for each client and the server, the roster, and the broker's configuration.

Keys are NKeys (Ed25519), which NATS checks by having a nonce signed; a seed never leaves its file. The broker's
permissions are the first fence: a client can add only to its own updates and read only its own assignment.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import datetime
import ipaddress
import json
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import NameOID

from offbeat.core.errors import FolderError, SettingError
from offbeat.deploy.plan import check_name

ROSTER, BROKER, SERVER = "roster.json", "nats.conf", "server.creds"
_SEED, _USER = 18 << 3, 20 << 3  # NKeys' prefixes: an S before a seed, a U before a user
MAX_PAYLOAD = 8 << 20


@dataclass(frozen=True)
class Creds:
    """One identity. client: "" for the server.   ca: the certificate that vouches for the broker's, "" without TLS."""

    federation: str
    client: str
    public: str
    seed: str
    ca: str = ""

    def __repr__(self) -> str:  # a seed must not reach a log
        return f"Creds({self.federation!r}, {self.client or 'the server'!r}, {self.public!r})"

    @property
    def key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(_decode(self.seed)[2:34])

    def sign(self, nonce: str) -> bytes:
        """What the broker asks for when this identity connects."""
        return base64.b64encode(self.key.sign(nonce.encode()))

    @property
    def inbox(self) -> str:
        """Where answers come; nobody else may listen there."""
        return f"_INBOX.{self.federation}.{self.client or 'server'}"


@dataclass(frozen=True)
class Roster:
    """The clients of a federation, in the order of their numbers, and their public keys."""

    federation: str
    server: str
    clients: dict[str, str]


def new_creds(federation: str, client: str, ca: str = "") -> Creds:
    """A new key pair."""
    raw = secrets.token_bytes(32)
    public = Ed25519PrivateKey.from_private_bytes(raw).public_key()
    seed = bytes([_SEED | (_USER >> 5), (_USER & 31) << 3]) + raw
    own = bytes([_USER]) + public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return Creds(federation, client, _encode(own), _encode(seed), ca)


def _encode(raw: bytes) -> str:
    checked = raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")
    return base64.b32encode(checked).decode().rstrip("=")


def _decode(text: str) -> bytes:
    raw = base64.b32decode(text + "=" * (-len(text) % 8))
    if binascii.crc_hqx(raw[:-2], 0).to_bytes(2, "little") != raw[-2:]:
        raise FolderError("a key is damaged: its check sum does not fit")
    return raw[:-2]


def read_creds(path: Path) -> Creds:
    """From a file; refuses one that others may read."""
    try:
        if path.stat().st_mode & 0o077:
            raise FolderError(f"{path} can be read by others; `chmod 600 {path}` first")
        content = json.loads(path.read_text(encoding="utf-8"))
        creds = Creds(**{name: str(content[name]) for name in ("federation", "client", "public", "seed", "ca")})
        _decode(creds.seed)
        check_name("federation", creds.federation)
        check_name("client", creds.client or "server")
        return creds
    except OSError as error:
        raise FolderError(f"cannot read the keys {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise FolderError(f"{path} does not hold keys; `offbeat keys init` makes them") from None


def read_roster(folder: Path) -> Roster:
    """Who is on the roster of this folder of keys."""
    try:
        content = json.loads((folder / ROSTER).read_text(encoding="utf-8"))
        return Roster(str(content["federation"]), str(content["server"]), dict(content["clients"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise FolderError(f"{folder} holds no roster; `offbeat keys init {folder} --clients A,B` makes one") from None


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
    for client in clients:
        check_name("client", client)
    if len(set(clients)) != len(clients) or not clients:
        raise SettingError(f"clients = {list(clients)}: name at least one, and each once")
    if (folder / ROSTER).exists():
        raise FolderError(f"{folder} holds keys already; name another folder, or add to it with `offbeat keys add`")
    folder.mkdir(parents=True, exist_ok=True)
    ca = _certificates(folder, ["localhost", "127.0.0.1", *hosts]) if tls else ""
    server = new_creds(federation, "", ca)
    _write_private(folder / SERVER, json.dumps(asdict(server), indent=1))
    return _give(folder, Roster(federation, server.public, {}), clients, port)


def add(folder: Path, clients: Sequence[str], port: int | None = None) -> Roster:
    """More clients for runs to come; the broker reads its configuration again on SIGHUP."""
    roster = read_roster(folder)
    for client in clients:
        check_name("client", client)
        if client in roster.clients:
            raise SettingError(f"{client} is on the roster already; `offbeat keys rotate` gives it another key")
    return _give(folder, roster, clients, port)


def rotate(folder: Path, clients: Sequence[str], port: int | None = None) -> Roster:
    """New keys for clients that are on the roster; once the broker knows of it, it does not know the old ones."""
    roster = read_roster(folder)
    for client in clients:
        if client not in roster.clients:
            raise SettingError(f"{client} is not on the roster, which has {', '.join(roster.clients)}")
    return _give(folder, roster, clients, port)


def _give(folder: Path, roster: Roster, clients: Sequence[str], port: int | None) -> Roster:
    """Make keys for these clients and write down who is on the roster now."""
    server = read_creds(folder / SERVER)
    for client in clients:
        creds = new_creds(roster.federation, client, server.ca)
        _write_private(folder / f"{client}.creds", json.dumps(asdict(creds), indent=1))
        roster.clients[client] = creds.public
    text = configuration(roster, folder if server.ca else None, _port(folder) if port is None else port)
    (folder / ROSTER).write_text(json.dumps(asdict(roster), indent=1), encoding="utf-8")
    (folder / BROKER).write_text(text, encoding="utf-8")
    return roster


def _port(folder: Path) -> int:
    """The port that the broker's configuration names."""
    with contextlib.suppress(OSError):
        if found := re.search(r'listen: ".*:(\d+)"', (folder / BROKER).read_text(encoding="utf-8")):
            return int(found[1])
    return 4222


def configuration(
    roster: Roster, tls: Path | None, port: int = 4222, host: str = "0.0.0.0", store: str = "", sync: bool = True
) -> str:
    """The broker's configuration. tls: the folder with its certificate.   sync: every message is on disk when it is
    acknowledged; without it a power failure (not a crash) may cost the last ones."""
    users = [_user(roster.server, ["offbeat.>", "$JS.API.>", "$JS.FC.>", "_INBOX.>"], ["offbeat.>", "_INBOX.>"])]
    users += [_user(public, *permissions(roster.federation, client)) for client, public in roster.clients.items()]
    lines = [
        f"listen: {json.dumps(f'{host}:{port}')}",
        f"max_payload: {MAX_PAYLOAD}",
        "jetstream {",
        f"  store_dir: {json.dumps(store or 'jetstream')}",
        *(["  sync_interval: always"] if sync else []),
        "}",
    ]
    if tls is not None:
        cert, key = (str((tls / name).resolve()) for name in ("broker.pem", "broker.key"))
        lines += ["tls {", f"  cert_file: {json.dumps(cert)}", f"  key_file: {json.dumps(key)}", "}"]
    return "\n".join([*lines, "authorization {", "  users = [", *users, "  ]", "}", ""])


def permissions(federation: str, client: str) -> tuple[list[str], list[str]]:
    """(subjects that a client may write to, those it may read): its own, and what is for everybody."""
    ours, get = f"offbeat.{federation}", "$JS.API.DIRECT.GET.*"
    mine = [f"{ours}.*.{what}" for what in (f"up.{client}", f"beat.{client}", f"part.{client}.>", f"mirror.{client}.>")]
    read = [f"{ours}.*.assignment.{client}", f"{ours}.*.model.>", f"{ours}.*.mirror.{client}.>", f"{ours}.charter"]
    publish = [*mine, *(f"{get}.{subject}" for subject in read), f"{ours}.ask"]
    return publish, [f"{ours}.*.assignment.{client}", f"{ours}.charter", f"_INBOX.{federation}.{client}.>"]


def _user(public: str, publish: Sequence[str], subscribe: Sequence[str]) -> str:
    allowed = {"publish": {"allow": list(publish)}, "subscribe": {"allow": list(subscribe)}}
    return f"    {{ nkey: {public}, permissions: {json.dumps(allowed)} }}"


# Sealing what a client leaves with the broker


class Seal:
    """Encrypts with a key that only this identity can make; `label` says what it is for and cannot be exchanged."""

    def __init__(self, creds: Creds) -> None:
        raw = creds.key.private_bytes(
            serialization.Encoding.Raw, serialization.PrivateFormat.Raw, serialization.NoEncryption()
        )
        self.cipher = AESGCM(HKDF(hashes.SHA256(), 32, None, b"offbeat mirror").derive(raw))

    def close(self, data: bytes, label: str) -> bytes:
        nonce = os.urandom(12)
        return nonce + self.cipher.encrypt(nonce, data, label.encode())

    def open(self, data: bytes, label: str) -> bytes | None:
        """What was sealed, or None if it is not ours or was changed."""
        try:
            return self.cipher.decrypt(data[:12], data[12:], label.encode())
        except (InvalidTag, ValueError):
            return None


# Certificates


def _certificates(folder: Path, hosts: Sequence[str]) -> str:
    """A certificate authority of our own and the broker's certificate; gives the authority's, as text."""
    now = datetime.datetime.now(datetime.UTC)
    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "offbeat federation")])

    def builder(subject: x509.Name, public: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=days))
        )

    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    root = builder(issuer, authority.public_key(), 3650)
    root = root.add_extension(x509.BasicConstraints(True, 0), critical=True).add_extension(usage, critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    root = root.add_extension(identifier, critical=False)
    names = x509.SubjectAlternativeName([_host(host) for host in dict.fromkeys(hosts)])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "offbeat broker")])
    own = builder(subject, key.public_key(), 825).add_extension(names, critical=False)
    own = own.add_extension(x509.BasicConstraints(False, None), critical=True)
    above = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    own = own.add_extension(above, critical=False)
    pem = serialization.Encoding.PEM
    text = root.sign(authority, hashes.SHA256()).public_bytes(pem).decode()
    (folder / "ca.pem").write_text(text, encoding="utf-8")
    (folder / "broker.pem").write_bytes(own.sign(authority, hashes.SHA256()).public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write_private(folder / "broker.key", private.decode())
    return text


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write_private(path: Path, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
