"""The helper of a run, without its network and disk: what it is asked goes in, what it wants done comes out.

What it opens and what not is decided in `privacy.secure.helper`. Here its state is written down before an answer goes
out, and an answer is said again until the server asks for it no longer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from offbeat.core.errors import FolderError
from offbeat.deploy import effects, wire
from offbeat.deploy.effects import Effect
from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.helping import Helping, read_helping
from offbeat.deploy.identity import HELPER, parse_roster
from offbeat.privacy.secure.helper import Helper, HelperState, read_state
from offbeat.privacy.secure.masks import Unmasker
from offbeat.privacy.secure.tickets import SumRequest, TicketError

AT_ONCE = 4  # sums that are answered before the server has taken one of them: answers are as large as models


@dataclass(frozen=True)
class HelperMemory:
    """What a helper keeps on disk for a run. serial: of the newest roster.   seals: keys that clients have or had."""

    opened: HelperState = field(default_factory=HelperState)
    serial: int = 0
    seals: dict[str, list[str]] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        text = {"opened": self.opened.to_bytes().decode(), "serial": self.serial, "seals": self.seals}
        return json.dumps(text, separators=(",", ":")).encode()


def read_kept(data: bytes) -> HelperMemory:
    """From the disk."""
    try:
        found = json.loads(data)
        seals = {str(name): [str(each) for each in keys] for name, keys in found["seals"].items()}
        return HelperMemory(read_state(found["opened"].encode()), int(found["serial"]), seals)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FolderError("the helper's state is damaged; without it no sum of this run can be opened safely") from None


class HelperCore:
    """One run's helper. secret: its X25519 key.   coordinator: who signs rosters.   least: clients of a sum."""

    def __init__(
        self, federation: str, run: str, secret: bytes, coordinator: bytes, least: int = 2, retry: float = 2.0
    ) -> None:
        self.federation, self.run, self.coordinator, self.least, self.retry = federation, run, coordinator, least, retry
        self.unmasker = Unmasker(secret)
        self.kept = HelperMemory()
        self.newest = (0, -1)  # life and position of the newest question
        self.answers: dict[int, bytes] = {}  # to what is asked now, by number
        self.told = float("-inf")
        self.trouble = ""  # why something that is asked cannot be answered yet
        self.stopped = ""
        self.sums = 0  # opened by this process

    def start(self, disk: bytes | None) -> None:
        """Begin with what the disk holds."""
        if disk is not None:
            self.kept = read_kept(disk)

    def hear(self, data: bytes, now: float) -> list[Effect]:
        """The server has asked for sums."""
        try:
            asked = read_helping(data)
        except RefusedError:
            return []
        newest = (asked.header.life, asked.header.position)
        if asked.header.run != self.run or newest < self.newest:
            return []
        self.newest, self.stopped = newest, asked.header.stopped
        self._learn(asked)
        self.answers = {number: answer for number, answer in self.answers.items() if number in asked.requests}
        self.trouble = ""
        if asked.requests:
            self.kept = replace(self.kept, opened=self.kept.opened.without(min(asked.requests)))
        for number, request in sorted(asked.requests.items()):
            if number not in self.answers and (len(self.answers) >= AT_ONCE or not self._answer(request)):
                break
        return self._speak(now)

    def tick(self, now: float) -> list[Effect]:
        """Some time has passed."""
        return self._speak(now) if now - self.told >= self.retry else []

    def _speak(self, now: float) -> list[Effect]:
        if not self.answers:
            return []
        self.told = now
        tell = [effects.Tell(answer, f"unmasked.{number}") for number, answer in self.answers.items()]
        return [effects.Save(self.kept.to_bytes()), *tell]

    def _learn(self, asked: Helping) -> None:
        """Take in a roster that the coordinator has signed, unless it is older than one that we know."""
        if not asked.roster:
            return
        try:
            roster = parse_roster(asked.roster, self.coordinator)
        except FolderError:
            return
        if roster.federation == self.federation and roster.serial > self.kept.serial:
            seals = {name: list(keys) for name, keys in self.kept.seals.items()}
            for name, member in roster.clients.items():
                known = seals.setdefault(name, [])
                known += [seal.hex() for seal in (member.seal, *member.before) if seal.hex() not in known]
            self.kept = replace(self.kept, serial=roster.serial, seals=seals)

    def _answer(self, request: SumRequest) -> bool:
        """Open a sum, or say why not; whether that is final."""
        members = {name: frozenset(map(bytes.fromhex, keys)) for name, keys in self.kept.seals.items()}
        helper = Helper(self.federation, self.run, self.unmasker, members, self.least)
        try:
            opened = helper.open(self.kept.opened, request)
        except TicketError as error:
            self.trouble = f"sum {request.number} is not opened: {error}"
            if error.code == "identity":  # a newer roster may come
                return False
            if error.code != "order":
                self.kept = replace(self.kept, opened=self.kept.opened.refused(request.number))
            self.answers[request.number] = wire.say(wire.Unmasked(self.run, HELPER, request.number, str(error)[:200]))
            return True
        self.kept = replace(self.kept, opened=opened.state)
        self.sums += 1
        masks = {"masks": opened.masks.astype("<u4").tobytes()}
        self.answers[request.number] = wire.say(wire.Unmasked(self.run, HELPER, request.number), masks)
        return True
