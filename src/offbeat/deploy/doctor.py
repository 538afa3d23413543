"""What can be wrong between a client or a server and its broker, looked at from outside: one line and a remedy each."""

from __future__ import annotations

import datetime
import json
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from offbeat.core.errors import OffbeatError
from offbeat.deploy.connection import FAILURES, REFUSED, removed
from offbeat.deploy.identity import Creds
from offbeat.deploy.link import Link

LOW_DISK, NO_DISK = 1 << 30, 100 << 20  # bytes
SOON = 30  # days before a certificate ends
PATIENCE = 1.0  # seconds that a broker has for an answer
LARGE = 512 << 10  # bytes that a message may have at least
APART = 2.0  # seconds between this clock and the broker's
_NAME_MISMATCH, _EXPIRED, _NOT_YET = (62, 64), 10, 9  # OpenSSL's codes; the others mean: not by this authority
_ADDRESS = "write tls://HOST:PORT, for a cluster several with commas"

Level = Literal["ok", "warning", "problem"]


class Finding(NamedTuple):
    """What a check has found. remedy: what to do about it, "" if all is well."""

    what: str
    level: Level
    text: str
    remedy: str = ""

    @property
    def line(self) -> str:
        return f"{self.text}; {self.remedy}" if self.remedy else self.text


class Address(NamedTuple):
    """Where a broker is."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def connection(creds: Creds, url: str, patience: float = PATIENCE) -> Iterator[Finding]:
    """Look at the way to every broker of an address: its name, its port, its certificate."""
    for each in url.split(","):
        found = address(each)
        if isinstance(found, Finding):
            yield found
            continue
        checks = [partial(name, found), partial(port, found, patience)]
        if found.scheme == "tls":
            checks.append(partial(certificate, found, creds.ca, patience))
        for check in checks:
            finding = check()
            yield finding
            if finding.level == "problem":
                break  # what comes after it fails for the same reason


def trouble(creds: Creds, url: str, patience: float = PATIENCE) -> Finding | None:
    """The first problem on the way to the brokers; None if any of them can be reached."""
    first = None
    for each in url.split(","):
        wrong = next((f for f in connection(creds, each, patience) if f.level == "problem"), None)
        if wrong is None:
            return None
        first = first or wrong
    return first


def address(url: str) -> Address | Finding:
    """What an address says, or what is wrong with it."""
    scheme, _, rest = url.strip().partition("://")
    host, _, number = rest.rpartition(":")
    if scheme not in ("tls", "nats") or not host or not number.isdigit() or not 0 < int(number) < 65536:
        return Finding("address", "problem", f"{url.strip()!r} is no address of a broker", _ADDRESS)
    return Address(scheme, host.strip("[]"), int(number))


def name(at: Address) -> Finding:
    """Whether the host's name leads to an address."""
    try:
        found = sorted({str(info[4][0]) for info in socket.getaddrinfo(at.host, at.port, type=socket.SOCK_STREAM)})
    except (OSError, UnicodeError):
        return Finding("name", "problem", f"there is no host {at.host!r}", "check --nats and the network's DNS")
    return Finding("name", "ok", f"{at.host} is {', '.join(found)}")


def port(at: Address, patience: float = PATIENCE) -> Finding:
    """Whether something listens there."""
    try:
        socket.create_connection((at.host, at.port), patience).close()
    except ConnectionRefusedError:
        text = f"nothing listens on port {at.port} of {at.host}"
        return Finding("port", "problem", text, "start the broker (`offbeat serve --embedded`), or correct --nats")
    except TimeoutError:
        text = f"{at} does not answer within {patience:g} s"
        return Finding("port", "problem", text, "check the address and the firewalls on the way")
    except OSError as error:
        return Finding("port", "problem", f"{at} cannot be reached ({error.strerror or error})", "check the network")
    return Finding("port", "ok", f"{at} takes connections")


def certificate(at: Address, ca: str, patience: float = PATIENCE) -> Finding:
    """Whether the broker proves to be this federation's, and for how long it still can."""
    if not ca:
        text = f"{at} is to be asked with TLS, but these keys have no certificate authority"
        return Finding("certificate", "problem", text, "write nats:// for a broker without TLS")
    try:
        ends = ssl.cert_time_to_seconds(str(_handshake(at, ca, patience)["notAfter"]))
    except ssl.SSLCertVerificationError as error:
        return _unverified(at, ca, patience, error)
    except (OSError, EOFError) as error:
        text = f"{at} does not begin with TLS ({getattr(error, 'reason', None) or error})"
        remedy = "set handshake_first: true in the tls block of the broker's configuration, or correct the port"
        return Finding("certificate", "problem", text, remedy)
    days = int((ends - time.time()) / 86400)
    if days < SOON:
        return Finding("certificate", "warning", f"the certificate of {at} ends in {days} days", _RENEW)
    return Finding("certificate", "ok", f"{at} is this federation's broker, for {days} days")


_RENEW = "make a new one with `offbeat keys renew`; credentials stay as they are"


def _unverified(at: Address, ca: str, patience: float, error: ssl.SSLCertVerificationError) -> Finding:
    code = error.verify_code
    if code in _NAME_MISMATCH:
        try:
            found = _handshake(at, ca, patience, any_name=True).get("subjectAltName", ())
        except OSError:
            found = ()
        known = ", ".join(str(value) for _, value in found) or "other hosts"
        text = f"the certificate of {at} is for {known}, not for {at.host}"
        remedy = f"use one of these names in --nats, or `offbeat keys renew --host {at.host}`"
        return Finding("certificate", "problem", text, remedy)
    if code == _EXPIRED:
        return Finding("certificate", "problem", f"the certificate of {at} has ended, or this clock is ahead", _RENEW)
    if code == _NOT_YET:
        return Finding("certificate", "problem", f"the certificate of {at} is not valid yet", "set this clock right")
    text = f"{at} is not this federation's broker: another authority has issued its certificate"
    return Finding("certificate", "problem", text, "use an address and a .creds file of the same federation")


def _handshake(at: Address, ca: str, patience: float, any_name: bool = False) -> dict[str, Any]:
    """The broker's certificate, once it is verified."""
    context = ssl.create_default_context(cadata=ca)
    context.check_hostname = not any_name
    with (
        socket.create_connection((at.host, at.port), patience) as plain,
        context.wrap_socket(plain, server_hostname=at.host) as secure,
    ):
        return dict(secure.getpeercert() or {})


def disk(folder: Path) -> Finding:
    """Whether there is room where state is kept; the folder may have to be made first."""
    place = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    try:
        free = shutil.disk_usage(place).free
    except OSError as error:
        return Finding("disk", "problem", f"{place} cannot be read ({error.strerror})", "mount it, or name another")
    text = f"{free / 2**30:,.1f} GB free in {folder}"
    if free < LOW_DISK:
        remedy = "make room: what cannot be saved stops the run"
        return Finding("disk", "problem" if free < NO_DISK else "warning", f"only {text}", remedy)
    return Finding("disk", "ok", text)


async def session(creds: Creds, url: str, patience: float = 5.0) -> list[Finding]:
    """Connect, and look at what the broker lets this identity do."""
    link, who = Link(creds, url), creds.client or "the server"
    try:
        await link.connect(patience)
    except OffbeatError as error:
        if (gone := removed(creds)) in link.trouble:
            return [Finding("keys", "problem", f"the broker takes no connection from {who}", gone)]
        if REFUSED in link.trouble:
            return [Finding("keys", "problem", f"the broker refuses the keys of {who}", _ASK)]
        return [Finding("keys", "problem", f"{error}", "read the broker's log")]
    try:
        found = [Finding("keys", "ok", f"the broker knows {who}"), _payload(link)]
        return found if creds.client else [*found, await _streams(link), await _clock(link)]
    finally:
        await link.close()


_ASK = "they were rotated, revoked, or never pushed to it: ask the coordinator for the newest .creds file"


def _payload(link: Link) -> Finding:
    most = link.client.max_payload
    text = f"messages of up to {most / 2**20:,.1f} MB"
    if most < LARGE:
        return Finding("broker", "problem", f"only {text}", "set max_payload to at least 512 KB on the broker")
    return Finding("broker", "ok", text)


async def _streams(link: Link) -> Finding:
    try:
        info = await link.js.account_info()
    except FAILURES as error:
        text = f"the broker keeps no streams for the server ({error or type(error).__name__})"
        return Finding("streams", "problem", text, "switch JetStream on, for the broker and for the account FED")
    return Finding("streams", "ok", f"{info.streams} streams with {info.storage / 2**20:,.1f} MB")


async def _clock(link: Link) -> Finding:
    """How far this clock and the broker's are apart, by half the time that the question took."""
    try:
        before = time.time()
        answer = await link.client.request("$SYS.REQ.ACCOUNT.PING.STATZ", b"", timeout=2)
        after = time.time()
        said = datetime.datetime.fromisoformat(json.loads(answer.data)["server"]["time"][:26].rstrip("Z") + "+00:00")
    except (*FAILURES, ValueError, KeyError, TypeError):
        return Finding("clock", "warning", "the broker does not tell its time", "compare both clocks yourself")
    apart = said.timestamp() - (before + after) / 2
    if abs(apart) > APART:
        text = f"the broker's clock is {abs(apart):,.0f} s {'ahead of' if apart > 0 else 'behind'} this one"
        return Finding("clock", "warning", text, "set both by NTP")
    return Finding("clock", "ok", f"{abs(apart):.2f} s between this clock and the broker's")
