"""The gate before the log: who has sent something, whether it is what it says, and how much one client may send.

Nothing here does I/O. What cannot be verified is counted under its code and goes no further. A client over its budget
waits: its messages stay with the broker, which refuses more than a few of them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.envelope import Channel, digest_of
from offbeat.deploy.journal import MemberKeys, Scribe

RATE, BURST = 1000.0, 2000.0  # messages a second, and at once
BYTES = 256 << 20  # a second; as many at once, or two of the largest messages
USELESS = 20.0  # what a message that brings nothing costs: as much as so many that do
MANY = 4096  # pieces of one envelope at most


class Budget:
    """What one client may send: messages and bytes a second, with some saved up."""

    def __init__(self, largest: int, clock: float) -> None:
        self.most = float(max(BYTES, 2 * largest))
        self.messages, self.bytes, self.at = BURST, self.most, clock

    def wait(self, clock: float) -> float:
        """Seconds until the client may send again; 0: now."""
        passed, self.at = max(0.0, clock - self.at), clock
        self.messages = min(BURST, self.messages + RATE * passed)
        self.bytes = min(self.most, self.bytes + BYTES * passed)
        return max(0.0, -self.messages / RATE, -self.bytes / BYTES)

    def spend(self, size: int, weight: float = 1.0, effort: float = 1.0) -> None:
        """weight: what this message costs for each one that it counts as (`effort`)."""
        self.messages -= weight * effort
        self.bytes -= weight * size


@dataclass(frozen=True)
class Parts:
    """Where the pieces of a large envelope are, as its client says: their numbers, and what they make together."""

    numbers: tuple[int, ...]
    size: int
    digest: str


def write_parts(numbers: list[int], size: int, digest: str) -> bytes:
    """What a client says about an envelope that it has sent in pieces. digest: its `digest_of`."""
    found = {"numbers": numbers, "size": size, "digest": digest}
    return json.dumps(found, separators=(",", ":")).encode()


def read_parts(data: bytes, largest: int) -> Parts:
    """Raises `RefusedError` and nothing else."""
    try:
        if len(data) > 32 * MANY:
            raise ValueError
        found = json.loads(data)
        numbers, size, digest = found["numbers"], found["size"], found["digest"]
        plain = all(type(number) is int and 0 < number < 1 << 53 for number in [*numbers, size])
        if (
            not plain
            or not 0 < len(set(numbers)) == len(numbers) <= MANY
            or type(digest) is not str
            or len(digest) != 64
        ):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise RefusedError("malformed", "does not say where its pieces are") from None
    if size > largest:
        raise RefusedError("oversized", f"{size} bytes in pieces, at most {largest} are taken")
    return Parts(tuple(numbers), size, digest)


class Sender(NamedTuple):
    """Who has sent something: a client by its name and keys."""

    name: str
    keys: MemberKeys


class Gate:
    """Knows the clients by their accounts. largest: bytes of an envelope at most."""

    def __init__(self, scribe: Scribe, members: Mapping[str, MemberKeys], largest: int) -> None:
        self.scribe, self.largest = scribe, largest
        self.refused: Counter[str] = Counter()
        self.held: Counter[str] = Counter()  # by client: messages that had to wait because it was over its budget
        self.budgets: dict[str, Budget] = {}
        self.admit(members)

    def admit(self, members: Mapping[str, MemberKeys]) -> None:
        """These are the members now, by name."""
        self.members = {keys.account: Sender(name, keys) for name, keys in members.items()}

    def sender(self, subject: str) -> Sender:
        """Who has sent to this subject, whose second part is an account; raises `RefusedError`."""
        account = subject.split(".")[1]
        if account not in self.members:
            raise RefusedError("identity", f"{account} is not the account of a member")
        return self.members[account]

    def channel(self, sender: Sender) -> Channel:
        return self.scribe.channel(sender.keys)

    def budget(self, sender: Sender, clock: float) -> Budget:
        if sender.name not in self.budgets:
            self.budgets[sender.name] = Budget(self.largest, clock)
        return self.budgets[sender.name]

    def open(self, sender: Sender, data: bytes) -> bytes | Parts:
        """The message in an envelope, or where its pieces are; raises `RefusedError`."""
        if len(data) > self.largest:
            raise RefusedError("oversized", f"{len(data)} bytes, at most {self.largest} are taken")
        channel = self.channel(sender)
        if data[:1] == PARTED:
            return read_parts(channel.open("parts", data[1:]), self.largest)
        return channel.open("entry", data)

    def join(self, sender: Sender, parts: Parts, found: bytes | None) -> bytes:
        """The message in an envelope that came in pieces; raises `RefusedError`."""
        if found is None or len(found) != parts.size or digest_of(found) != parts.digest:
            raise RefusedError("damaged", "its pieces are missing or have changed")
        return self.channel(sender).open("entry", found, parts.digest)


PARTED = b"P"  # before an envelope that says where the pieces of another one are
