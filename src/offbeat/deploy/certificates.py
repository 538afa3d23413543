"""The broker's TLS certificate and the authority of our own that vouches for it."""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from offbeat.core.errors import SettingError

_AUTHORITY_DAYS, _BROKER_DAYS = 3650, 825
_ISSUER = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "offbeat federation")])
_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
_PEM = serialization.Encoding.PEM


def new_authority() -> tuple[str, str]:
    """(key, certificate) of a new authority, as text."""
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    made = _builder(_ISSUER, key.public_key(), _AUTHORITY_DAYS)
    made = made.add_extension(x509.BasicConstraints(True, 0), critical=True).add_extension(usage, critical=True)
    made = made.add_extension(identifier, critical=False)
    return _private(key), made.sign(key, hashes.SHA256()).public_bytes(_PEM).decode()


def new_certificate(authority: str, hosts: Sequence[str]) -> tuple[str, str]:
    """(key, certificate) of a broker that is reached under these names and addresses. authority: its key, as text."""
    above = serialization.load_pem_private_key(authority.encode(), None)
    assert isinstance(above, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([_host(host) for host in dict.fromkeys(hosts)])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "offbeat broker")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(above.public_key())
    made = _builder(subject, key.public_key(), _BROKER_DAYS).add_extension(names, critical=False)
    made = made.add_extension(x509.BasicConstraints(False, None), critical=True)
    made = made.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
    )
    return _private(key), made.sign(above, hashes.SHA256()).public_bytes(_PEM).decode()


def hosts_of(certificate: str) -> list[str]:
    """The names and addresses in a certificate."""
    found = x509.load_pem_x509_certificate(certificate.encode())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def expiry(certificate: str) -> datetime.datetime:
    """When a certificate ends."""
    return x509.load_pem_x509_certificate(certificate.encode()).not_valid_after_utc


def _builder(subject: x509.Name, public: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(_ISSUER)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _private(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        plain = name.encode("idna").decode("ascii")
    except UnicodeError:
        plain = ""
    if not _NAME.fullmatch(plain):
        raise SettingError(f"host {name!r} is no name or address of a host; write it as in broker.example.org")
    return x509.DNSName(plain)
