"""The fold: what is refused and under which code, held work, the end, and the same course of events as simulated."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from logs import Log, plan
from worlds import run as simulate

from offbeat.algorithms import AREA, DeFedAvg, Favano, FedAsync, FedBuff
from offbeat.core.course import Until
from offbeat.core.errors import SettingError
from offbeat.core.events import Job
from offbeat.core.random import SERVER, Stream, key
from offbeat.core.server import Algorithm, Server
from offbeat.deploy import effects as client_side, server_core as server_side, wire
from offbeat.deploy.admission import Limits
from offbeat.deploy.assignment import read_assignment
from offbeat.deploy.client_core import ClientCore
from offbeat.deploy.client_state import ClientState
from offbeat.deploy.effects import Done
from offbeat.deploy.plan import Plan
from offbeat.deploy.reducer import LogEntry
from offbeat.deploy.server_core import ServerCore
from offbeat.deploy.train import Training
from offbeat.deploy.view import LedgerView
from offbeat.local import SGD, Moreau
from offbeat.problems.quadratic import Quadratic
from offbeat.timing import Exponential, Times
from offbeat.watch.history import History


def one(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float64)


REFUSALS: dict[str, Callable[[Log], str]] = {
    "malformed": lambda log: log.raw("a", b"rubbish"),
    "oversized": lambda log: log.result("a", 1, 0, parts={"delta": torch.zeros(10_000)}),
    "run": lambda log: log.raw("a", wire.pack("hello", {"run": "other", "client": "a"})),
    "identity": lambda log: log.raw("a", wire.pack("trained", {"run": "run", "client": "b"})),
    "fenced": lambda log: [log.add("a", "hello", epoch=2, nonce="z", after_epoch=1), log.result("a", 1, 0)][1],
    "epoch": lambda log: log.result("a", 1, 0, epoch=5),
    "replay": lambda log: [log.result("a", 1, 0), log.result("a", 1, 0, 2.0)][1],
    "order": lambda log: log.result("a", 3, 0),
    "late": lambda log: [log.add("", "expired", job=0), log.result("a", 1, 0)][1],
    "steps": lambda log: log.result("a", 1, 0, steps=0),
    "names": lambda log: log.result("a", 1, 0, parts={"other": one(1.0)}),
    "dtype": lambda log: log.result("a", 1, 0, parts={"delta": torch.ones(1)}),
    "length": lambda log: log.result("a", 1, 0, parts={"delta": torch.ones(2, dtype=torch.float64)}),
    "nonfinite": lambda log: log.result("a", 1, 0, float("nan")),
    "norm": lambda log: log.result("a", 1, 0, 1000.0),
    "stale": lambda log: [*(log.result("b", n, j) for n, j in ((1, 1), (2, 2), (3, 3), (4, 4))), log.result("a", 1, 0)][
        -1
    ],
    "over": lambda log: [log.add("", "halted", reason="enough"), log.result("a", 1, 0)][1],
    "retired": lambda log: [log.add("", "retired", client=0), log.add("a", "hello", epoch=2, nonce="z")][1],
    "behind": lambda log: log.add("a", "hello", epoch=2, nonce="z", after_epoch=1, after_seq=7),
}


@pytest.mark.parametrize("expected", REFUSALS)
def test_every_refusal_has_its_code_is_counted_and_the_run_goes_on(expected: str) -> None:
    log = Log(plan(FedAsync(lr=0.1))).begin()
    assert REFUSALS[expected](log) == expected
    assert log.refused == {expected: 1}
    if expected not in ("over", "retired"):
        job = log.reducer.ledger.clients[1].queue[0]
        assert log.result("b", log.reducer.ledger.clients[1].seq + 1, job) == "applied"


def test_a_stranger_is_refused() -> None:
    log = Log(plan(FedAsync(lr=0.1)))
    assert log.add("mallory", "hello", epoch=1, nonce="m") == "identity"


def test_an_answer_that_the_broker_was_tricked_into_sending_is_nobody_s() -> None:
    log = Log(plan(FedAsync(lr=0.1)))
    assert log.raw("?", wire.pack("halted", {"run": "run", "reason": "trick"})) == "identity"


def test_one_slot_a_client_if_asked_for() -> None:
    log = Log(plan(FedBuff(size=3), limits=Limits(slot=True))).begin()
    assert log.result("a", 1, 0) == "applied"
    assert log.result("a", 2, 2) == "slot"
    assert log.result("b", 1, 1) == "applied"


def test_a_refused_result_is_a_lost_job_and_its_client_gets_another() -> None:
    log = Log(plan(FedAsync(lr=0.1))).begin()
    log.result("a", 1, 0, float("inf"))
    ledger = log.reducer.ledger
    assert ledger.tally.lost == 1
    assert ledger.clients[0].verdict == "nonfinite"
    assert [ledger.flights[job].job.number for job in ledger.clients[0].queue] == [1]


def test_the_same_message_again_changes_nothing() -> None:
    log = Log(plan(FedAsync(lr=0.1))).begin()
    log.result("a", 1, 0)
    before = log.reducer.model(0).clone()
    assert log.result("a", 1, 0) == ""
    assert torch.equal(log.reducer.model(0), before)
    assert log.reducer.ledger.tally.repeated == 1


def test_steps_backwards_of_the_clock_do_not_count() -> None:
    log = Log(plan(FedAsync(lr=0.1))).begin()
    log.add("a", "hello", wait=5.0, epoch=1, nonce="a")
    now = log.reducer.ledger.now
    log.add("a", "hello", wait=-3600.0, epoch=1, nonce="a")
    assert log.reducer.ledger.now == now
    log.add("a", "hello", wait=2.0, epoch=1, nonce="a")
    assert log.reducer.ledger.now == pytest.approx(now + 2.0)


def test_held_work_is_taken_when_recalled_and_what_is_older_never_was() -> None:
    log = Log(plan(Favano(sampled=2, period=1.0), SGD(lr=0.5, steps=4))).begin()
    ledger = log.reducer.ledger
    assert ledger.clients[0].held == {0: [0]}
    vectors = {"start": one(0.0), "delta": one(-1.0)}
    assert log.result("a", 1, 0, parts=vectors, steps=2) == "uncalled"
    log.add("", "rung", alarm=1, wait=1.0)
    assert ledger.clients[0].recalls == {0: True}
    assert log.result("a", 2, 0, parts=vectors, steps=2) == "applied"
    assert log.result("b", 1, 1, parts=vectors, steps=4) == "applied"
    assert ledger.server.model.version == 1
    assert ledger.clients[0].held == {0: [2]}


def test_a_run_ends_at_its_time_its_updates_or_its_versions() -> None:
    by_time = Log(plan(FedAsync(lr=0.1), until=Until(time=3.0))).begin()
    assert by_time.result("a", 1, 0, wait=10.0) == "over"
    assert (by_time.reducer.ledger.stopped, by_time.reducer.ledger.now) == ("time", 3.0)
    by_updates = Log(plan(FedAsync(lr=0.1), until=Until(updates=1))).begin()
    by_updates.result("a", 1, 0)
    assert by_updates.reducer.ledger.stopped == "updates"
    by_versions = Log(plan(FedBuff(size=1), until=Until(versions=1))).begin()
    by_versions.result("a", 1, 0)
    assert by_versions.reducer.ledger.stopped == "versions"


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "", "x"]), st.binary(max_size=60)), max_size=10))
def test_the_fold_survives_any_log(entries: list[tuple[str, bytes]]) -> None:
    log = Log(plan(FedAsync(lr=0.1))).begin()
    for sender, data in entries:
        log.raw(sender, data)
    assert sum(log.refused.values()) == len(entries)


def test_bfloat16_is_refused_where_clients_have_a_memory() -> None:
    with pytest.raises(SettingError, match="bfloat16"):
        plan(AREA(), dtype="bfloat16")


# The same course of events as in the simulator


class Ideal:
    """A network without delay: only the jobs take time, as long as a timing model says."""

    def __init__(self, problem: Any, server: Server[Any], local: Any, timing: Times, until: Until, seed: int) -> None:
        made = Algorithm(server, local)
        names = [f"c{number}" for number in range(problem.clients)]
        self.plan = Plan(
            "run",
            names,
            made.server,
            made.locals(1),
            [problem.initial()],
            until,
            seed=seed,
            limits=Limits(lease=1e9, patience=1e9),
        )
        self.problem, self.clock = problem, timing.bind(problem.clients, seed)
        self.history = History(keep_events=True)
        self.core = ServerCore(self.plan, None, [self.history], wait=problem.clients)
        self.at_work: dict[str, tuple[Training, float, float]] = {}  # by client: its job, when that began and ends
        self.draw_as_simulated(self.core.reducer.draws, seed)
        firsts = [made.locals(1)[0].remember(problem.initial())]
        self.client_cores = [
            ClientCore("run", name, firsts, lambda name=name: name, retry=1e9, beat=1e9) for name in names
        ]
        self.heap: list[Any] = []
        self.counter, self.now, self.seq = itertools.count(), 0.0, 0

    def draw_as_simulated(self, view: LedgerView, seed: int) -> None:
        """Random numbers by the count of events, where a log has more entries than a simulation has events."""

        def renew(_: int) -> None:
            view._rng = Stream(key(seed, SERVER, self.core.ledger.events + 1))

        view.renew = renew  # type: ignore[method-assign]

    def later(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (self.now + delay, next(self.counter), action))

    def run(self) -> ServerCore:
        for client_core in self.client_cores:
            client_core.start(None, 0.0)
        self.obey(self.core.boot(0.0))
        self.tick()
        while self.heap and not self.core.ledger.stopped:
            self.now, _, action = heapq.heappop(self.heap)
            action()
        return self.core

    def tick(self) -> None:
        self.obey(self.core.due(self.now))
        wait = self.core.wait_for(self.now, 1e9)
        if wait < 1e9:
            self.later(max(wait, 1e-9), lambda: self.obey(self.core.due(self.now)))

    def obey(self, effects: list[server_side.Effect]) -> None:
        called = list(getattr(self.core.ledger.server, "drawn", ()))  # the simulator asks in the order of drawing
        for effect in sorted(
            effects, key=lambda e: called.index(e.client) if getattr(e, "client", -1) in called else -1
        ):
            if isinstance(effect, server_side.Append):
                self.later(0.0, lambda data=effect.data: self.append("", data))
            elif isinstance(effect, server_side.Post):
                client_core, data = self.client_cores[effect.client], effect.data
                self.later(
                    0.0,
                    lambda client_core=client_core, data=data: self.act(client_core, client_core.hear(data, self.now)),
                )

    def append(self, sender: str, data: bytes) -> None:
        self.seq += 1
        self.obey(self.core.fold(LogEntry(self.seq, self.now, sender, data), self.now))
        self.later(0.0, self.tick)

    def act(self, client_core: ClientCore, effects: list[client_side.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, client_side.Tell):
                self.later(0.0, lambda data=effect.data: self.append(client_core.client, data))
            elif isinstance(effect, client_side.Mirror):
                self.act(client_core, client_core.mirrored(effect.data, self.now))
            elif isinstance(effect, client_side.Train):
                self.train(client_core, effect)
            elif isinstance(effect, client_side.Interrupt):
                self.interrupt(client_core, effect.keep)

    def train(self, client_core: ClientCore, effect: client_side.Train) -> None:
        job = effect.job
        local, length = self.plan.locals[job.task], self.clock.durations(job, 0, 0).compute
        training = Training(self.problem, local, job, effect.payload, effect.memory, self.plan.seed)
        self.at_work[client_core.client] = training, self.now, self.now + length

        def finish() -> None:
            if self.at_work.get(client_core.client, (None,))[0] is training:
                while training.step():
                    pass
                self.report(client_core, training)

        self.later(length, finish)

    def interrupt(self, client_core: ClientCore, keep: bool) -> None:
        training, start, end = self.at_work.pop(client_core.client, (None, 0.0, 0.0))
        if training is not None and keep:
            for _ in range(int(training.job.steps * (self.now - start) / (end - start))):
                training.step()
            self.report(client_core, training)

    def report(self, client_core: ClientCore, training: Training) -> None:
        self.at_work.pop(client_core.client, None)
        self.act(client_core, client_core.done(Done(training.job, *training.result(), training.steps), self.now))


COURSES = {
    "fedasync": (FedAsync(lr=0.3), SGD(lr=0.05, steps=2)),
    "fedbuff": (FedBuff(size=3), SGD(lr=0.05)),
    "area": (AREA(size=3), SGD(lr=0.05, steps=2)),
    "area by local envelope": (AREA(size=2), Moreau(lr=0.05, penalty=20.0, inner=3)),
}
HELD = {
    "defedavg": (DeFedAvg(sampled=3), SGD(lr=0.05, steps=2)),
    "defedavg, drawn only": (DeFedAvg(sampled=3, renew="drawn"), SGD(lr=0.05, steps=2)),
    "favano": (Favano(sampled=3, period=0.7), SGD(lr=0.05, steps=4)),
}


def both(server: Server[Any], local: Any) -> tuple[Any, Any, Ideal]:
    """A simulation, and the fold over an ideal network with its history."""
    problem = Quadratic(6, dim=4, noise=0.5)
    timing, until = Times(Exponential(tuple(0.3 * 1.5**i for i in range(6)))), Until(updates=120)
    expected = simulate(problem, server, local, timing, until, seed=3, executor="serial")
    ideal = Ideal(problem, server, local, timing, until, seed=3)
    return expected, ideal.run(), ideal


@pytest.mark.parametrize("name", COURSES)
def test_on_an_ideal_network_it_runs_event_for_event_and_bit_for_bit_as_simulated(name: str) -> None:
    expected, found, ideal = both(*COURSES[name])

    def course(rows: Any) -> list[tuple[Any, ...]]:
        kept = [row for row in rows if row.event == "Arrived"]
        return [(round(row.time, 9), row.client, row.job, row.version, row.staleness) for row in kept]

    assert course(ideal.history.events) == course(expected.events)
    assert torch.equal(found.reducer.model(0), expected.model)


@pytest.mark.parametrize("name", HELD)
def test_held_work_takes_the_simulated_course_up_to_the_order_within_a_moment(name: str) -> None:
    expected, found, ideal = both(*HELD[name])

    def course(rows: Any) -> list[tuple[Any, ...]]:
        kept = [row for row in rows if row.event == "Arrived"]
        return sorted((round(row.time, 6), row.client, row.staleness) for row in kept)

    assert course(ideal.history.events) == course(expected.events)
    torch.testing.assert_close(found.reducer.model(0), expected.model, rtol=1e-5, atol=1e-5)


def test_a_finished_result_is_handed_out_while_newer_work_goes_on() -> None:
    log = Log(plan(DeFedAvg(sampled=1), seed=1)).begin()
    reducer, server_core = log.reducer, ServerCore(log.reducer.plan, log.reducer.ledger)
    called, other = (0, 1) if reducer.ledger.clients[0].recalls else (1, 0)
    client_core = ClientCore("run", "ab"[other], [{}], lambda: "ab"[other], retry=1e9, beat=1e9)
    client_core.state = ClientState("run", "ab"[other], 1, "ab"[other], accepted=True, settled=(1, 0))

    def hear() -> list[client_side.Effect]:
        (assignment,) = (e.data for e in server_core.boot(0.0) if isinstance(e, server_side.Post) and e.client == other)
        return client_core.hear(assignment, 0.0)

    def train(effects: list[client_side.Effect]) -> Job:
        return next(effect.job for effect in effects if isinstance(effect, client_side.Train))

    first = train(hear())
    client_core.done(Done(first, {"delta": one(1.0)}, {}, 1), 0.0)
    while not reducer.ledger.clients[other].recalls:  # rounds go by until this client is drawn
        at_work = reducer.ledger.clients[called].held[0][-1]
        log.result("ab"[called], reducer.ledger.clients[called].seq + 1, at_work)
        if not reducer.ledger.clients[other].recalls and client_core.current is None:
            train(hear())
    assert client_core.current is not None
    told = [effect for effect in hear() if isinstance(effect, client_side.Tell)]
    assert wire.unpack(told[0].data).header["job"] == first.id
    assert client_core.current is not None  # it goes on
    client_core.done(
        Done(client_core.current, {"delta": one(1.0)}, {}, 1), 0.0
    )  # before the verdict: kept for the next time
    assert log.raw("ab"[other], told[0].data) == "applied"
    assert 0 in client_core.kept


def test_assignments_list_jobs_in_the_order_of_sending() -> None:
    log = Log(plan(DeFedAvg(sampled=1))).begin()
    server_core = ServerCore(log.reducer.plan, log.reducer.ledger)
    posts = [effect for effect in server_core.boot(0.0) if isinstance(effect, server_side.Post)]
    jobs: list[Job] = [job for post in posts for job, _ in read_assignment(post.data).jobs]
    assert [job.client for job in jobs] == [0, 1]
    assert all(job.hold for job in jobs)
