"""A server with many clients: what an entry of the log costs, what is sent after a restart, which models are kept."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from offbeat.algorithms import AREA, DeFedAvg, Favano, FedAST, FedAsync, FedAvg, FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.server import Server
from offbeat.core.state import Tensors, dump, load
from offbeat.core.until import Until
from offbeat.deploy import encoding, wire
from offbeat.deploy.admission import Limits
from offbeat.deploy.assignment import read_assignment
from offbeat.deploy.ledger import ClientRecord, Ledger
from offbeat.deploy.plan import Plan
from offbeat.deploy.reporter import Reporter
from offbeat.deploy.server_core import AGAIN, SURE, Append, Drop, Effect, Post, Put, ServerCore
from offbeat.deploy.wire import LogEntry
from offbeat.local import SGD


class Crowd:
    """A server whose clients are what its ledger says about them."""

    def __init__(self, server: Server[Any], clients: int = 6, dim: int = 2, inline: int = 1 << 17) -> None:
        made, tasks = Algorithm(server, SGD(lr=0.1)), 2 if isinstance(server, FedAST) else 1
        names = [f"c{number}" for number in range(clients)]
        limits = Limits(lease=50.0, patience=40.0)
        first = [torch.zeros(dim)] * tasks
        self.plan = Plan("run", names, made.server, made.locals(tasks), first, Until(time=1e9), limits=limits)
        self.dim, self.inline = dim, inline
        self.log: list[LogEntry] = []
        self.models: set[str] = set()
        self.sent: list[Effect] = []
        self.clock = 0.0
        self.core = self.made(None)

    def made(self, ledger: Ledger | None) -> ServerCore:
        return ServerCore(self.plan, ledger, wait=len(self.plan.roster), inline=self.inline)

    def begin(self) -> Crowd:
        self.obey(self.core.boot(self.clock))
        for name in self.plan.roster:
            self.add(name, wire.Hello("run", name, 1, name))
        self.add("", wire.Begun("run"))
        return self

    def add(self, sender: str, header: Any, parts: Any = None) -> str:
        self.clock += 0.01
        entry = LogEntry(len(self.log) + 1, self.clock, sender, wire.say(header, parts))
        self.log.append(entry)
        self.obey(self.core.fold(entry, self.clock))
        return self.core.code

    def obey(self, effects: list[Effect]) -> None:
        self.sent = effects
        for effect in effects:
            if isinstance(effect, Put):
                self.models.add(effect.digest)
            elif isinstance(effect, Drop):
                self.models.remove(effect.digest)

    def posts(self) -> list[int]:
        return [effect.client for effect in self.sent if isinstance(effect, Post)]

    def report(self, client: int) -> str:
        """The client sends the result that is waited for."""
        record = self.core.ledger.clients[client]
        waited = [*record.queue[:1], *(record.held[task][-1] for task in record.recalls)]
        job = self.core.ledger.flights[waited[0]].job
        parts = {name: torch.full((size,), 0.01 * len(self.log)) for name, size in self.plan.expected(job.task).items()}
        name = self.plan.roster[client]
        return self.add(name, wire.Trained("run", name, record.epoch, record.seq + 1, job.id, job.steps), parts)

    def able(self) -> list[int]:
        return [c for c, record in enumerate(self.core.ledger.clients) if record.queue or record.recalls]

    def restart(self, replay: int = 0) -> None:
        """The server comes back from a checkpoint, which lacks so many entries."""
        core = self.made(None)
        kept = len(self.log) - replay
        for entry in self.log[:kept]:
            core.replay(entry, self.clock)
        tensors = Tensors()
        saved = dump(core.ledger, tensors)
        self.clock += 100.0
        self.core = self.made(load(saved, tensors.table))
        for entry in self.log[kept:]:
            self.core.replay(entry, self.clock)
        self.obey(self.core.boot(self.clock))


class Watched(list[ClientRecord]):
    """The records of the clients; `looks` counts how many were looked at."""

    looks = 0

    def __getitem__(self, which: Any) -> Any:
        self.looks += 1
        return super().__getitem__(which)

    def __iter__(self) -> Iterator[ClientRecord]:
        self.looks += len(self)
        return super().__iter__()


@pytest.mark.parametrize(
    "server",
    [FedAsync(), FedBuff(size=3), FedBuff(size=3, concurrency=20), AREA(size=2, concurrency=20), FedAST(requests=30)],
    ids=["fedasync", "fedbuff", "fedbuff, some", "area", "fedast"],
)
def test_an_entry_looks_at_as_many_clients_whether_there_are_40_or_400(server: Server[Any]) -> None:
    def looks(clients: int) -> float:
        crowd = Crowd(server, clients).begin()
        ledger = crowd.core.ledger
        ledger.clients = Watched(ledger.clients)
        for _ in range(50):
            crowd.report(crowd.core.ledger.flights[next(iter(crowd.core.ledger.flights))].job.client)
            crowd.core.due(crowd.clock)
            crowd.core.wait_for(crowd.clock, 1.0)
        return ledger.clients.looks / 50

    few, many = looks(40), looks(400)
    assert many <= few + 2


def test_what_an_operator_is_told_looks_at_as_many_clients_whether_there_are_40_or_400() -> None:
    def looks(clients: int) -> float:
        crowd = Crowd(FedAsync(), clients).begin()
        ledger, reporter = crowd.core.ledger, Reporter([], lambda: crowd.core.reducer.traffic.census.present)
        for gone in range(9):
            crowd.add(f"c{gone}", wire.Bye("run", f"c{gone}", 1, ledger.clients[gone].revision + 1))
        ledger.clients = Watched(ledger.clients)
        for client in range(9):
            was = reporter.before(ledger, client)
            ledger.clients[client].present = client % 2 == 0
            reporter.after(ledger, client, crowd.log[client - 9], was)
            reporter.after(ledger, None, LogEntry(1, 0.0, "", wire.say(wire.Rung("run", 1))), was)
        return ledger.clients.looks / 9

    assert looks(400) <= looks(40)


@pytest.mark.parametrize(
    "server",
    [FedBuff(size=2, concurrency=9), AREA(size=2), DeFedAvg(sampled=2), Favano(sampled=2), FedAvg(sampled=3), FedAST()],
    ids=lambda server: type(server).__name__,
)
def test_what_is_kept_up_is_what_a_count_of_all_clients_gives(server: Server[Any]) -> None:
    crowd, draw = Crowd(server, 7).begin(), random.Random(7)
    for _ in range(150):
        client = draw.randrange(7)
        record, ledger = crowd.core.ledger.clients[client], crowd.core.ledger
        match draw.randrange(8):
            case 0:
                name = crowd.plan.roster[client]
                crowd.add(name, wire.Bye("run", name, record.epoch, record.revision + 1))
            case 1 if not record.present:
                name = crowd.plan.roster[client]
                crowd.add(name, wire.Hello("run", name, record.epoch, name, seen=record.revision + 1))
            case 2 if ledger.flights:
                crowd.add("", wire.Expired("run", draw.choice([*ledger.flights])))
            case 3 if ledger.alarms:
                crowd.add("", wire.Rung("run", draw.choice([*ledger.alarms])))
            case _ if able := crowd.able():
                crowd.report(draw.choice(able))
        _check(crowd.core)
        _check(crowd.made(crowd.core.ledger))


def _check(core: ServerCore) -> None:
    ledger, traffic, view = core.ledger, core.reducer.traffic, core.reducer.draws
    records = list(enumerate(ledger.clients))
    assert view.flying == sum(len(record.queue) + len(record.held) for _, record in records)
    assert view.everyone() == [client for client, record in records if record.present]
    assert traffic.census.idle == [client for client, record in records if record.present and not record.busy]
    waited = {number for _, record in records for number in record.queue[:1]}
    waited |= {record.held[task][-1] for _, record in records for task in record.recalls}
    assert dict(traffic.leases) == {number: ledger.flights[number].since for number in waited}
    assert list(traffic.leases.values()) == sorted(traffic.leases.values())


def test_leases_run_out_clients_fall_silent_and_what_is_not_folded_is_asked_for_again() -> None:
    crowd = Crowd(FedAsync()).begin()
    core, clock = crowd.core, crowd.clock

    def asked(clock: float) -> list[Any]:
        said = [wire.heard(encoding.unpack(effect.data)) for effect in core.due(clock) if isinstance(effect, Append)]
        return sorted((type(header).__name__, *vars(header).values()) for header in said)

    beat = wire.say(wire.Beat("run", "c0", 1, 1 << 40))
    core.beat("c0", beat, clock + 41.0)
    silent = [("Gone", "run", client, 1) for client in range(1, 6)]
    assert asked(clock + 45.0) == silent
    assert asked(clock + 46.0) == []
    assert asked(clock + 45.0 + AGAIN) == silent
    core.beat("c0", beat, clock + 51.0)
    assert [header[0] for header in asked(clock + 51.0)] == ["Expired"] * 6


def test_an_alarm_that_did_not_reach_the_log_is_asked_for_again() -> None:
    crowd = Crowd(Favano(sampled=2, period=1.0)).begin()
    core, clock = crowd.core, crowd.clock
    assert 0.8 < core.wait_for(clock, 5.0) <= 1.0
    assert len(core.due(clock + 1.1)) == 1
    assert core.due(clock + 1.2) == []
    assert core.wait_for(clock + 1.2, 5.0) == 5.0
    (again,) = core.due(clock + 1.2 + AGAIN)
    assert isinstance(again, Append)
    crowd.add("", wire.heard(encoding.unpack(again.data)))
    assert core.due(crowd.clock + 3 * AGAIN) == core.due(crowd.clock + 3 * AGAIN + 1) == []


def test_a_server_that_comes_back_sends_only_what_the_last_entries_changed() -> None:
    crowd = Crowd(FedAsync()).begin()
    assert len(crowd.posts()) == 6
    for client in (0, 1, 2):
        crowd.report(client)
    crowd.restart(replay=2)
    assert crowd.posts() == [1, 2]
    crowd.restart()
    assert crowd.posts() == []


def test_a_standby_that_takes_over_sends_what_changed_shortly_before() -> None:
    crowd = Crowd(FedAsync()).begin()
    standby = crowd.made(None)
    for entry in crowd.log:
        standby.replay(entry, 0.0)
    crowd.report(3)
    standby.replay(crowd.log[-1], SURE + 1.0)
    assert [effect.client for effect in standby.boot(SURE + 5.0) if isinstance(effect, Post)] == [3]


def test_an_assignment_that_was_lost_long_ago_is_sent_when_a_heartbeat_shows_it() -> None:
    crowd = Crowd(FedAsync()).begin()
    crowd.restart()
    revision = crowd.core.ledger.clients[4].revision
    seen = crowd.core.beat("c4", wire.say(wire.Beat("run", "c4", 1, revision + 1)), crowd.clock)
    assert seen == []
    missed = crowd.core.beat("c4", wire.say(wire.Beat("run", "c4", 1, revision)), crowd.clock)
    assert [read_assignment(e.data).revision for e in missed if isinstance(e, Post)] == [revision]


def test_what_a_client_has_seen_counts_also_if_it_has_heard_no_pulse_yet_but_is_no_sign_of_life() -> None:
    crowd = Crowd(FedAsync()).begin()
    core, heard = crowd.core, crowd.core.heard[4]
    core.beat("c4", wire.say(wire.Beat("run", "c4", 1, 3)), crowd.clock + 1.0, (1, 20))
    core.beat("c4", wire.say(wire.Beat("run", "c4", 1, 2)), crowd.clock + 2.0, (1, 20))  # said again
    assert (core.seen[4], core.heard[4]) == (3, heard)


def test_a_server_waits_at_the_end_for_who_does_not_know_it_and_not_for_who_has_answered_and_gone() -> None:
    crowd = Crowd(FedAsync(), clients=2).begin()
    core, clients = crowd.core, crowd.core.ledger.clients
    crowd.add("", wire.Asked("run", 0))
    crowd.add("", wire.Halted("run", "enough"))
    (judging,) = core.ledger.judging.values()
    for name, record in zip(crowd.plan.roster, clients, strict=True):
        assert not core.farewell()
        core.beat(name, wire.say(wire.Beat("run", name, 1, record.revision + 1)), crowd.clock)
        before = record.revision
        crowd.add(name, wire.Judged("run", name, 1, judging.number, 10, 1.0))
        assert record.revision > before  # of which it will not hear
    assert core.farewell()
    crowd.report(0)  # a result that came too late: its client waits for the verdict
    assert not core.farewell()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_large_model_is_stored_once_and_kept_exactly_as_long_as_an_assignment_names_it(restarts: bool) -> None:
    crowd, draw = Crowd(FedBuff(size=2), inline=100, dim=100).begin(), random.Random(1)
    assert len(crowd.models) == 1
    for _ in range(60):
        crowd.report(draw.choice(crowd.able()))
        if restarts and draw.random() < 0.3:
            crowd.restart(replay=draw.randrange(3))
        core = crowd.core
        wanted = {job_id for record in core.ledger.clients for job_id in record.queue}
        names = {core.models.pack(core.ledger.flights[job].payload)[0] for job in wanted}
        assert set(core.named) == names
        assert names <= crowd.models
        if not restarts:
            assert names == crowd.models
