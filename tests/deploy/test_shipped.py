"""Shipped servers and sites over a stub broker, through everything that can go wrong; and mistakes that must show."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any, NamedTuple

import pytest
from faults import ALGORITHMS
from plants import caught
from shipped import Host, Mistake, Shipped
from virtual import Process

from offbeat.deploy import board, client_state, encoding, journal, questions, server
from offbeat.deploy.gate import Parts, Sender
from offbeat.deploy.intake import Intake, acknowledge
from offbeat.deploy.journal import Appender, Body, LogAudit, LogClock, Record, Sent, body_of
from offbeat.deploy.mending import Mending
from offbeat.deploy.streams import BrokerLog

# Every kind of fault; one that never happens in all schedules together fails the test.
SENT = ("log", "desk", "pulse", "up", "beat", "mirror", "part", "get", "api", "ask", "ack")
WRITTEN = {"server": ("log", "desk", "api", "tail", "checkpoint"), "client": ("up", "state")}
KINDS = {
    *(f"{how} {what}" for how in ("lost", "late", "doubled") for what in (*SENT, "tell", "answer", "pushed up")),
    *(f"{who} killed {when} {what}" for who in WRITTEN for what in WRITTEN[who] for when in ("before", "after")),
    *(
        "leader killed",
        "leader paused",
        "leader cut off",
        "leader held up",
        "broker restarted",
        "connection cut",
        "clock set",
    ),
    *("record lost", "old desk", "old board", "client killed", "disk lost", "disk restored", "cloned", "left"),
    *("enrolled", "removed", "rubbish", "slow job", "hung job", "failed job", "not finite", "job ahead"),
}


def test_without_faults_everything_is_applied_once() -> None:
    outcome = Shipped(1, "fedbuff", rate=0.0).run()
    assert outcome.violations == []
    assert outcome.updates > 50


@pytest.mark.parametrize(
    ("seed", "algorithm"), [(0, "area"), (1, "defedavg"), (3, "area"), (3015, "defedavg"), (1012, "kept")]
)
def test_nothing_is_lost_doubled_or_forgotten(seed: int, algorithm: str) -> None:
    outcome = Shipped(seed, algorithm).run()
    assert outcome.violations == []
    assert outcome.updates > 20
    assert sum(outcome.fired.values()) > 20


@pytest.mark.slow
def test_four_hundred_and_fifty_schedules() -> None:
    fired: Counter[str] = Counter()
    wrong = []
    for algorithm in ALGORITHMS:
        for seed in range(1000, 1050):
            outcome = Shipped(seed, algorithm).run()
            fired += outcome.fired
            wrong += [f"{algorithm} {seed}: {violation}" for violation in outcome.violations]
    assert wrong == []
    assert sorted(KINDS - set(fired)) == []


class Duels(Shipped):
    """Mostly two servers that take over from each other."""

    def planned(self) -> Any:
        return {self.cut_leader: 3, self.hold_leader: 3, self.pause_server: 3}


class Disks(Shipped):
    """Mostly clients that lose their disks."""

    def planned(self) -> Any:
        return {self.lose_disk: 10}


class OneThing(Shipped):
    """What is planned happens, and nothing else."""

    faults, end = 12.0, 40.0

    def chance(self, what: str, probability: float) -> bool:
        return False


class Amnesia(OneThing):
    """The broker comes back without the end of its log."""

    def planned(self) -> Any:
        return {self.lose_end: 3}


def test_a_log_whose_end_the_broker_forgot_is_mended() -> None:
    for seed in range(3):
        outcome = Amnesia(seed, "defedavg").run()
        assert outcome.fired["end of the log lost"]
        assert outcome.violations == []


class Restarts(Shipped):
    """The broker is killed again and again, and forgets the last moments of what it does not sync."""

    def planned(self) -> Any:
        return {self.restart_broker: 8}


def test_what_a_broker_forgets_when_it_is_killed_is_sent_again() -> None:
    for seed, algorithm in ((5001, "favano"), (5003, "fedbuff")):
        outcome = Restarts(seed, algorithm).run()
        assert outcome.fired["broker restarted"] == 8
        assert outcome.violations == []


class Holes(OneThing):
    """The broker loses records that the server that stands by has not read yet."""

    def planned(self) -> Any:
        return {self.miss: 3}

    def standby(self) -> Host | None:
        return next((host for host in self.hosts if host is not self.leader()), None)

    def miss(self) -> None:
        standby = self.standby()
        for client in [*self.broker.clients]:
            if standby is not None and client.process is standby.process:
                client.cut(1.5)
        self.loop.call_later(1.0, self.hole)


class Away(Holes):
    """The one that stands by is down while a record is lost. away: seconds until it is back."""

    away = 16.0  # by then the leader has no copy in its own folder any more

    def planned(self) -> Any:
        return {self.miss: 1}

    def miss(self) -> None:
        standby = self.standby()
        if standby is not None and standby.process is not None:
            process, standby.process = standby.process, Process("nobody")
            process.kill()
            self.loop.call_later(2.0, self.hole)
            self.loop.call_later(self.away, self.come_back, standby)

    def come_back(self, host: Host) -> None:
        host.process = None
        self.boot_server(host)


class Forgotten(Away):
    """And the record that is lost is older than the leader's last two checkpoints."""

    away = 14.0

    def hole(self) -> None:
        self.loop.call_later(9.0, self.lose, self.broker.streams["LOG-run"].last)

    def lose(self, seq: int) -> None:
        self.fired["record lost"] += 1
        self.broker.streams["LOG-run"].remove(seq, self.loop.now)


def test_a_leader_has_copies_of_more_records_than_those_since_its_checkpoints() -> None:
    schedule = Forgotten(1, "queued")
    outcome = schedule.run()
    assert outcome.fired["record lost"]
    assert outcome.violations == []
    assert schedule.broken == []


class Late(Away):
    """And the leader does not answer for a while when it comes back."""

    away = 2.5

    def come_back(self, host: Host) -> None:
        leader = self.leader()
        super().come_back(host)
        if leader is not None and leader.process is not None:
            leader.process.paused = True
            self.loop.call_later(12.0, self.loop.resume, leader.process)


@pytest.mark.parametrize(("world", "seed"), [(Holes, 1), (Holes, 2), (Late, 1), (Late, 2)])
def test_a_record_that_only_the_leader_has_is_asked_for(world: type[Holes], seed: int) -> None:
    unasked = Mistake([(Mending, "look", idle)])
    schedule = world(seed, "defedavg", unasked)
    outcome = schedule.run()
    assert outcome.fired["record lost"]
    assert outcome.violations == []
    assert schedule.broken == []


async def idle(*_: Any) -> None:
    """The leader does not look for what the broker has lost."""


def test_a_leader_leaves_a_copy_of_what_the_broker_has_lost_as_long_as_it_has_one() -> None:
    schedule = Away(1, "defedavg")
    outcome = schedule.run()
    assert outcome.fired["record lost"]
    assert outcome.violations == []
    assert schedule.broken == []


class Contested(Shipped):
    """Two servers take over from each other, and the broker loses the record with which one does."""

    def planned(self) -> Any:
        return {
            self.cut_leader: 3,
            self.pause_server: 2,
            self.kill_server: 2,
            self.lose_first: 4,
            self.restart_broker: 1,
        }

    def lose_first(self) -> None:
        stream = self.broker.streams.get("LOG-run")
        if stream is None or not stream.kept:
            return

        def terms() -> dict[int, int]:
            return {seq: int(each.subject.split(".")[-1]) for seq, each in stream.kept.items()}

        last = max(terms().values())

        def look() -> None:
            fresh = [seq for seq, term in terms().items() if term > last]
            if fresh:
                self.fired["first record of a term lost"] += 1
                stream.remove(min(fresh), self.loop.now)
                leader = self.leader()
                if leader is not None and leader.process is not None and self.random.random() < 0.5:
                    leader.process.kill()
            elif not self.calm:
                self.loop.call_later(self.random.choice([0.005, 0.02, 0.1]), look)

        look()


async def nothing(*_: Any) -> None:
    """Nobody is asked, and what follows does not count."""


async def always(*_: Any) -> bool:
    """A server takes whatever it has sent for the record that was lost."""
    return True


GUESSED = Mistake(
    [(Mending, "_named", nothing), (Mending, "_asked_for", nothing), (Mending, "_unseen_by_others", always)]
)


def test_a_server_does_not_take_its_own_record_for_one_of_another_server_that_was_lost() -> None:
    outcome = Contested(44, "area").run()
    assert outcome.fired["first record of a term lost"]
    assert outcome.violations == []
    forked = Contested(44, "area", GUESSED).run().violations
    assert any("does not follow record" in violation for violation in forked)


class Trimmed(Away):
    """The one that stands by is down while records that it has not read are trimmed."""

    def hole(self) -> None:
        """Nothing is lost besides."""


def test_a_server_that_was_down_while_the_log_was_trimmed_goes_on_with_the_leader_s_folder() -> None:
    schedule = Trimmed(3, "area")
    assert schedule.trim
    outcome = schedule.run()
    assert "(--trim)" in schedule.broken[0][1]
    assert outcome.fired["folder copied"]
    assert outcome.violations == []


# Planted mistakes


def unfenced(publish: Any) -> Any:
    """Records are added whatever the last one is."""

    async def publish_anyway(self: BrokerLog, raw: bytes, expected: int, term: int, own: int | None = None) -> Any:
        return await publish(self, raw, await self.end(), term)

    return publish_anyway


def numbered(publish: Any) -> Any:
    """Only the number of the last record is compared, not whose it is."""

    async def publish_by_number(self: BrokerLog, raw: bytes, expected: int, term: int, own: int | None = None) -> Any:
        return await publish(self, raw, expected, term)

    return publish_by_number


async def fold_at_once(self: Appender) -> Sent:
    """A record is folded before the broker has it."""
    await self.came.wait()
    first = self.under_way.popleft()
    self._count(-len(first.raw) - len(first.entry.data))
    self.chain.follow(first.record, first.raw)
    self.tail.acknowledge(first.record.seq)
    first.ack.add_done_callback(lambda ack: ack.cancelled() or ack.exception())
    return first


def acknowledged_early(take: Any) -> Any:
    """The inbox may forget a message before its record is stored."""

    async def take_and_acknowledge(self: Intake, message: Any) -> None:
        await take(self, message)
        with contextlib.suppress(Exception):
            await acknowledge(message)

    return take_and_acknowledge


def leads_without_term(init: Any) -> Any:
    """Who takes over goes on in the term of the leader before."""

    def begin(self: Appender, *given: Any) -> None:
        init(self, *given)
        self.term = max(1, self.chain.term)

    return begin


async def compare_nothing(self: Appender) -> None:
    """A leader takes what lies in a record's place for its own."""
    end = await self.stream.end()
    for sent in self.under_way:
        if sent.record.seq <= end:
            sent.ack = journal._known(sent.record.seq)
        else:
            sent.ack = await self._publish(sent.record.seq, sent.raw)


async def body_after(self: Intake, sender: Sender, message: Any, parts: Parts) -> None:
    """A large message's record is sent before its body is stored."""
    numbers, insist = parts.numbers, self.link.insist
    found = await insist(lambda: self.link.collect(lambda n: self._part(sender, numbers[n]), len(numbers)))
    try:
        data = self.gate.join(sender, parts, found)
    except encoding.RefusedError as error:
        await self._refuse(message, sender.name, error)
        return
    pieces, done = self.link.pieces(found or b""), dict[int, int]()
    self.bodies += 1
    body = Body(parts.digest, len(pieces), parts.size, self.bodies)
    place = body_of(self.run, self.appender.term, body.number)
    await self.appender.add(sender.name, sender.keys, b"", data, body, then=(message, 0.0))
    await asyncio.sleep(0.5)
    await insist(lambda: self.link.put(pieces, lambda n: f"{place}.{n}", done))


async def unchecked(self: LogAudit, seq: int, raw: bytes) -> list[tuple[Record, bytes]]:
    """Whatever the log shows next is taken; holes are not noticed."""
    if seq <= self.chain.seq:
        return []
    record = self.scribe.read(raw)
    self.chain.follow(record, raw)
    return [(record, raw)]


def oldest_copy(copy: Any) -> Any:
    """A client gets the oldest of its copies back."""

    async def hand_back(self: Any, say: Any, account: str, question: Any) -> int:
        handled = 0
        for skip in (2, 1, 0):
            before: list[bytes] = []

            async def note(answer: bytes, before: list[bytes] = before) -> None:
                before.append(answer)

            older = questions.Question(question.what, question.id, 0.0, question.nonce, skip)
            handled += await copy(self, note, account, older)
            if before and questions.read_answer(before[0])[0].count:
                for answer in before:
                    await say(answer)
                return handled
        return handled + int(await copy(self, say, account, question))

    return hand_back


class Plant(NamedTuple):
    """A mistake, the algorithm under which it must be seen, and the number of schedules that this takes at most."""

    mistake: Mistake
    within: int
    algorithm: str = "defedavg"
    world: type[Shipped] = Shipped


def planted(where: Any, name: str, what: Any) -> Mistake:
    return Mistake([(where, name, what)])


PLANTS = {
    "append without expected sequence": Plant(
        planted(BrokerLog, "publish", unfenced(BrokerLog.publish)), 8, "defedavg", Duels
    ),
    "fenced by number alone": Plant(planted(BrokerLog, "publish", numbered(BrokerLog.publish)), 8, "fedbuff", Duels),
    "folded before it is acknowledged": Plant(planted(Appender, "settle", fold_at_once), 12),
    "inbox acknowledged before the log": Plant(planted(Intake, "take", acknowledged_early(Intake.take)), 3),
    "led without a term": Plant(planted(Appender, "__init__", leads_without_term(Appender.__init__)), 4),
    "overtaken leader goes on": Plant(planted(Appender, "_compare", compare_nothing), 8, "defedavg", Duels),
    "record before its body": Plant(planted(Intake, "_large", body_after), 3, "fedbuff"),
    "holes unnoticed": Plant(planted(LogAudit, "take", unchecked), 16),
    "no copy of the log's end": Plant(planted(server.Tail, "_write", lambda *_: None), 2, "defedavg", Amnesia),
    "log in the machine's time": Plant(planted(LogClock, "now", lambda self: self.wall()), 12),
    "old boards accepted": Plant(planted(board.BoardSerial, "see", lambda *_: None), 16),
    "assignment of another life accepted": Plant(
        planted(client_state.ClientState, "named_by", lambda *_: True), 8, "area"
    ),
    "own record taken for a lost one": Plant(GUESSED, 16, "defedavg", Contested),
    "copies dropped by every checkpoint": Plant(
        planted(server.Tail, "rotate", lambda self, _=0, rotate=server.Tail.rotate: rotate(self)),
        3,
        "queued",
        Forgotten,
    ),
    "oldest copy handed back": Plant(
        planted(questions.Answering, "_copy", oldest_copy(questions.Answering._copy)), 12, "area", Disks
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_mistake_is_caught(name: str) -> None:
    plant = PLANTS[name]
    for seed in range(plant.within):
        if caught(plant.world(seed, plant.algorithm, plant.mistake, rate=1.5).run().violations):
            return
    pytest.fail(f"{plant.within} schedules did not show: {name}")
