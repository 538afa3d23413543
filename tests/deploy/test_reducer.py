"""The fold: what is refused and under which code, held work, the end, and the same course of events as simulated."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from ideal import Ideal
from logs import Log, plan
from worlds import Scenario, TwoTasks, run as simulate, send

from offbeat.algorithms import (
    AREA,
    AsyncDiLoCo,
    DeFedAvg,
    Favano,
    FedAST,
    FedAsync,
    FedBuff,
    Rennala,
    Ringmaster,
)
from offbeat.algorithms.optimisers import DelayedNesterov, FedAdam, FedAvgM, HeLoCo
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.events import Cancel, Job, Recall
from offbeat.core.local import Local
from offbeat.core.server import Server
from offbeat.core.until import Until
from offbeat.deploy import effects as client_side, encoding, server_core as server_side, wire
from offbeat.deploy.admission import Limits
from offbeat.deploy.assignment import read_assignment
from offbeat.deploy.client_core import ClientCore
from offbeat.deploy.client_state import ClientState
from offbeat.deploy.effects import Done
from offbeat.deploy.server_core import ServerCore
from offbeat.deploy.train import Training
from offbeat.local import SGD, Adam, AdamW, Gradient, Moreau
from offbeat.local.compress import QSGD, LargestK, Quantise, RandomK, Signs
from offbeat.local.schedules import CosineDecay
from offbeat.privacy.robust import Robust
from offbeat.privacy.rules import Median, TrimmedMean
from offbeat.problems.quadratic import Quadratic
from offbeat.timing import Exponential, Times


def one(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float64)


REFUSALS: dict[str, Callable[[Log], str]] = {
    "malformed": lambda log: log.raw("a", b"rubbish"),
    "oversized": lambda log: log.result("a", 1, 0, parts={"delta": torch.zeros(10_000)}),
    "run": lambda log: log.raw("a", encoding.pack("hello", {"run": "other", "client": "a"})),
    "identity": lambda log: log.raw("a", encoding.pack("trained", {"run": "run", "client": "b"})),
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
    "removed": lambda log: [log.add("", "removed", client=0), log.add("a", "hello", epoch=2, nonce="z")][1],
    "behind": lambda log: log.add("a", "hello", epoch=2, nonce="z", after_epoch=1, after_seq=7),
}


@pytest.mark.parametrize("expected", REFUSALS)
def test_every_refusal_has_its_code_is_counted_and_the_run_goes_on(expected: str) -> None:
    log = Log(plan(FedAsync(lr=0.1))).begin()
    assert REFUSALS[expected](log) == expected
    assert log.refused == {expected: 1}
    if expected not in ("over", "removed"):
        job = log.reducer.ledger.clients[1].queue[0]
        assert log.result("b", log.reducer.ledger.clients[1].seq + 1, job) == "applied"


def test_epochs_go_up_by_one() -> None:
    log = Log(plan(FedAsync(lr=0.1))).begin()
    assert log.add("a", "hello", epoch=2**53 - 1, nonce="z", after_epoch=1) == "epoch"
    assert log.reducer.ledger.clients[0].epoch == 1
    assert log.add("a", "hello", epoch=2, nonce="z", after_epoch=1) == ""


def test_a_stranger_is_refused() -> None:
    log = Log(plan(FedAsync(lr=0.1)))
    assert log.add("mallory", "hello", epoch=1, nonce="m") == "identity"


def test_an_answer_that_the_broker_was_tricked_into_sending_is_nobody_s() -> None:
    log = Log(plan(FedAsync(lr=0.1)))
    assert log.raw("?", encoding.pack("halted", {"run": "run", "reason": "trick"})) == "identity"


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


def cancelling() -> Log:
    """Job 0 of client a was cancelled, and it was sent job 1 instead."""
    log = Log(plan(Scenario({0: [send(0), send(1)], 1.0: [Cancel(0), send(0)]}))).begin()
    log.add("", "rung", alarm=1, wait=1.0)
    return log


def test_a_result_that_has_crossed_its_cancellation_is_refused_under_its_own_code_and_nothing_is_lost() -> None:
    log = cancelling()
    client = log.reducer.ledger.clients[0]
    assert [log.result("a", 1, 0), log.result("a", 1, 0)] == ["cancelled", ""]  # once, however often it is said
    assert (client.verdict, client.refused, client.strikes, client.queue) == ("cancelled", 1, 0, [2])
    assert log.refused == {"cancelled": 1}
    assert log.reducer.ledger.tally.lost == 0
    assert log.result("a", 2, 2) == "applied"


def test_only_a_client_s_next_message_can_have_crossed_a_cancellation() -> None:
    log = cancelling()
    assert [log.result("a", 1, 2), log.result("a", 2, 0)] == ["applied", "late"]
    fenced = cancelling()
    fenced.add("a", "hello", epoch=2, nonce="z", after_epoch=1)
    assert fenced.reducer.ledger.clients[0].cancelled == []


def test_the_jobs_that_are_remembered_as_cancelled_are_bounded() -> None:
    script = {0: [send(0)], **{float(at): [Cancel(0), send(0)] for at in range(1, 9)}}
    log = Log(plan(Scenario(script), limits=Limits(held=4))).begin()
    for alarm in range(1, 9):
        log.add("", "rung", alarm=alarm, wait=1.0)
    assert log.reducer.ledger.clients[0].cancelled == [4, 5, 6, 7]


def test_cancelling_what_waits_behind_a_job_does_not_prolong_that_job_s_lease() -> None:
    one_task = plan(TwoTasks({0: [send(0, task=1), send(0)], 1.0: [Cancel(0)]}))
    log = Log(replace(one_task, locals=[SGD(lr=0.5)] * 2, initial=[one(0.0)] * 2)).begin()
    since = log.reducer.ledger.flights[0].since
    log.add("", "rung", alarm=1, wait=1.0)
    assert log.reducer.ledger.clients[0].queue == [0]
    assert log.reducer.ledger.flights[0].since == since


class Heard:
    """A client that hears of everything the server of a log says to it."""

    def __init__(self, log: Log, name: str = "a") -> None:
        self.log, self.client = log, "ab".index(name)
        self.server = ServerCore(log.reducer.plan, log.reducer.ledger)
        self.core = ClientCore("run", name, [{}], lambda: name, retry=1e9, beat=1e9)
        self.core.state = ClientState("run", name, 1, name, accepted=True, settled=(1, 0))

    def hear(self) -> list[client_side.Effect]:
        posts = self.server.post(self.client, 0.0)
        return self.core.hear(next(post.data for post in posts if isinstance(post, server_side.Post)), 0.0)

    def done(self) -> list[client_side.Effect]:
        assert self.core.current is not None
        return self.core.done(Done(self.core.current, {"delta": one(1.0)}, {}, 1), 0.0)


def test_a_client_stops_the_job_that_was_cancelled_and_takes_the_next() -> None:
    log = Log(plan(Scenario({0: [send(0)], 1.0: [Cancel(0), send(0)]}))).begin()
    site = Heard(log)
    assert [type(effect).__name__ for effect in site.hear()] == ["Train"]
    log.add("", "rung", alarm=1, wait=1.0)
    stop, train = site.hear()
    assert stop == client_side.Interrupt(False)
    assert isinstance(train, client_side.Train)
    assert train.job.id == 1


def test_a_client_throws_held_results_of_cancelled_jobs_away() -> None:
    script = {0: [send(0, hold=True)], 1.0: [Cancel(0)], 2.0: [send(0, hold=True)], 3.0: [Recall(0)]}
    log = Log(plan(Scenario(script))).begin()
    site = Heard(log)
    site.hear()
    site.done()
    for alarm in (1, 2, 3):
        assert (0 in site.core.kept) == (alarm == 1)
        log.add("", "rung", alarm=alarm, wait=1.0)
        site.hear()
    told = [effect for effect in site.done() if isinstance(effect, client_side.Tell)]
    assert encoding.unpack(told[0].data).header["job"] == 1
    assert log.raw("a", told[0].data) == "applied"


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


def test_compressed_vectors_come_as_bytes_and_others_are_refused() -> None:
    signs = Signs()
    log = Log(plan(FedAsync(lr=0.1), SGD(lr=0.5, compress=signs))).begin()
    before, packed = log.reducer.model(0), signs.pack(signs.code(torch.tensor([[-3.0]], dtype=torch.float64), list))
    assert packed.shape == (1, 9)
    assert log.result("a", 1, 0, parts={"delta": packed[0]}) == "applied"
    assert (log.reducer.model(0) - before).item() == pytest.approx(0.3)
    assert log.result("b", 1, 1) == "dtype"
    assert log.result("b", 2, 3, parts={"delta": packed[0, :8]}) == "length"
    far = torch.cat([torch.tensor([math.nan], dtype=torch.float64).view(torch.uint8), packed[0, 8:]])
    assert log.result("b", 3, 4, parts={"delta": far}) == "nonfinite"


def test_bytes_that_no_client_would_pack_are_refused() -> None:
    levels = QSGD(4)  # nine of them, in 4 bits
    log = Log(plan(FedAsync(lr=0.1), SGD(lr=0.5, compress=levels))).begin()
    scale = torch.ones(1, dtype=torch.float64).view(torch.uint8)
    assert (
        log.result("a", 1, 0, parts={"delta": torch.cat([scale, torch.tensor([9], dtype=torch.uint8)])}) == "malformed"
    )


@pytest.mark.parametrize("coder", [LargestK(0.01), RandomK(0.2), Signs(), QSGD(7), Quantise(8)], ids=repr)
def test_a_real_message_has_the_bytes_that_are_counted(coder: Any) -> None:
    problem, local = Quadratic(2, dim=500, noise=0.5), Algorithm(AREA(), Moreau(lr=0.1, compress=coder)).local
    assert isinstance(local, Local)
    training = Training(
        problem, local, Job(0, 0, 0, 0, 1, 0.1, 0), {"model": problem.initial()}, local.remember(problem.initial()), 0
    )
    training.step()
    message = encoding.unpack(encoding.pack("trained", {}, training.result()[0]))
    assert sum(len(raw) for _, raw in message.parts.values()) == local.wire(500)[1]


def test_bfloat16_is_refused_where_clients_have_a_memory() -> None:
    with pytest.raises(SettingError, match="bfloat16"):
        plan(AREA(), dtype="bfloat16")


# The same course of events as in the simulator


COURSES = {
    "fedasync": (FedAsync(lr=0.3), SGD(lr=0.05, steps=2)),
    "fedbuff": (FedBuff(size=3), SGD(lr=0.05)),
    "area": (AREA(size=3), SGD(lr=0.05, steps=2)),
    "area, averaged": (AREA(size=3, average=True), SGD(lr=0.05, steps=2)),
    "server adam, kept adam": (FedBuff(size=3, server=FedAdam(lr=0.1)), Adam(lr=0.05, steps=2, keep=True)),
    "area, momentum on both sides": (
        AREA(size=3, server=FedAvgM(0.5, lr=0.7)),
        SGD(lr=0.05, momentum=0.9, keep=True, schedule=CosineDecay(40, over="job")),
    ),
    "ringmaster with stops": (Ringmaster(threshold=2, lr=0.02, stop=True), Gradient()),
    "rennala with stops": (Rennala(size=3, lr=0.05, stop=True), Gradient()),
    "asynchronous diloco": (
        AsyncDiLoCo(server=DelayedNesterov(0.5, lr=0.5, size=3), dynamic=True),
        AdamW(lr=0.05, steps=4, keep=True),
    ),
    "heloco": (AsyncDiLoCo(server=HeLoCo(0.5, lr=0.3), ahead=True), SGD(lr=0.05, steps=2)),
    "fedbuff, trimmed": (FedBuff(size=5, guard=Robust(TrimmedMean(0.2), one_slot=True)), SGD(lr=0.05, steps=2)),
    "area, median of the table": (AREA(size=2, guard=Robust(Median())), SGD(lr=0.05, steps=2)),
    "top-k with feedback": (FedAsync(lr=0.3), SGD(lr=0.05, steps=2, compress=LargestK(0.3, feedback=True))),
    "random-k": (FedBuff(size=3), SGD(lr=0.05, compress=RandomK(0.6))),
    "signs": (FedBuff(size=3), Adam(lr=0.05, steps=2, keep=True, compress=Signs(feedback=True))),
    "area, quantised": (AREA(size=3), Moreau(lr=0.05, penalty=20.0, inner=3, compress=Quantise(3))),
    "area, qsgd": (AREA(size=3), SGD(lr=0.05, steps=2, compress=QSGD(4, feedback=True))),
    "area by local envelope": (AREA(size=2), Moreau(lr=0.05, penalty=20.0, inner=3)),
}
HELD = {
    "defedavg": (DeFedAvg(sampled=3), SGD(lr=0.05, steps=2)),
    "defedavg, drawn only": (DeFedAvg(sampled=3, renew="drawn"), SGD(lr=0.05, steps=2)),
    "favano": (Favano(sampled=3, period=0.7), SGD(lr=0.05, steps=4)),
}


def both(server: Server[Any], local: Any, listed: int = 99, ghost: bool = False) -> tuple[Any, Any, Ideal]:
    """A simulation, and the fold over an ideal network with its history.

    listed: clients from the beginning; the others are enrolled before the run begins.   ghost: one more is enrolled in
    the middle of it, never comes, and is removed.
    """
    problem = Quadratic(6, dim=4, noise=0.5)
    timing, until = Times(Exponential(tuple(0.3 * 1.5**i for i in range(6)))), Until(updates=120)
    expected = simulate(problem, server, local, timing, until, seed=3, executor="serial")
    ideal = Ideal(problem, server, local, timing, until, seed=3, listed=listed)
    if ghost:
        ideal.later(2.0, lambda: ideal.enrol("ghost"))
        ideal.later(5.0, lambda: ideal.append("", wire.say(wire.Removed("run", problem.clients))))
    return expected, ideal.run(), ideal


@pytest.mark.parametrize("membership", [{}, {"listed": 4}, {"ghost": True}], ids=["fixed", "enrolled", "ghost"])
@pytest.mark.parametrize("name", COURSES)
def test_on_an_ideal_network_it_runs_event_for_event_and_bit_for_bit_as_simulated(
    name: str, membership: dict[str, Any]
) -> None:
    expected, found, ideal = both(*COURSES[name], **membership)
    assert found.ledger.members == 6
    if membership.get("ghost"):
        assert [row.event for row in ideal.history.events if row.client == 6] == ["Admitted", "Dismissed"]

    def course(rows: Any) -> list[tuple[Any, ...]]:
        kept = [row for row in rows if row.event == "Arrived"]
        return [(round(row.time, 9), row.client, row.job, row.version, row.staleness) for row in kept]

    assert course(ideal.history.events) == course(expected.events)
    assert torch.equal(found.reducer.model(0), expected.model)
    given = found.reducer.server.outputs(found.ledger.server)
    assert given.keys() == expected.outputs.keys() == ({"average"} if "averaged" in name else set())
    assert all(torch.equal(given[each], expected.outputs[each]) for each in given)


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
        (assignment,) = (effect.data for effect in server_core.post(other, 0.0) if isinstance(effect, server_side.Post))
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
    assert encoding.unpack(told[0].data).header["job"] == first.id
    assert client_core.current is not None  # it goes on
    client_core.done(
        Done(client_core.current, {"delta": one(1.0)}, {}, 1), 0.0
    )  # before the verdict: kept for the next time
    assert log.raw("ab"[other], told[0].data) == "applied"
    assert 0 in client_core.kept


class Ahead:
    """A client with three jobs in its queue."""

    def __init__(self, first: dict[str, torch.Tensor]) -> None:
        self.log = Log(plan(FedAST(requests=6, size=6), until=Until(updates=10**6))).begin()
        reducer = self.log.reducer
        self.client = max((0, 1), key=lambda client: len(reducer.ledger.clients[client].queue))
        self.name = "ab"[self.client]
        self.core = ClientCore("run", self.name, [first], lambda: self.name, retry=1e9, beat=1e9)
        memory = {0: first} if first else {}
        self.core.state = ClientState("run", self.name, 1, self.name, accepted=True, settled=(1, 0), memory=memory)
        self.server = ServerCore(reducer.plan, reducer.ledger)

    def hear(self) -> list[client_side.Effect]:
        posts = self.server.post(self.client, 0.0)
        return self.core.hear(next(each.data for each in posts if isinstance(each, server_side.Post)), 0.0)

    def finish(self) -> list[client_side.Effect]:
        assert self.core.current is not None
        return self.core.done(Done(self.core.current, {"delta": one(1.0)}, {}, 1), 0.0)


def told(effects: list[client_side.Effect]) -> list[int]:
    return [encoding.unpack(each.data).header["job"] for each in effects if isinstance(each, client_side.Tell)]


def begun(effects: list[client_side.Effect]) -> list[int]:
    return [each.job.id for each in effects if isinstance(each, client_side.Train)]


def test_the_next_job_begins_before_the_verdict_and_its_result_goes_out_after_it() -> None:
    world = Ahead({})
    first, second, third = world.log.reducer.ledger.clients[world.client].queue[:3]
    assert begun(world.hear()) == [first]
    said = world.finish()
    assert (told(said), begun(said)) == ([first], [second])
    again = world.finish()
    assert (told(again), begun(again)) == ([], [])
    assert world.log.raw(world.name, next(e.data for e in said if isinstance(e, client_side.Tell))) == "applied"
    after = world.hear()
    assert (told(after), begun(after)) == ([second], [third])


def test_a_result_whose_job_is_gone_by_the_verdict_is_dropped() -> None:
    world = Ahead({})
    _, second, third = world.log.reducer.ledger.clients[world.client].queue[:3]
    world.hear()
    said = world.finish()
    world.finish()
    world.log.raw(world.name, next(e.data for e in said if isinstance(e, client_side.Tell)))
    world.log.add("", "expired", job=second)
    after = world.hear()
    assert (told(after), begun(after)) == ([], [third])


def test_a_job_that_fails_ahead_of_a_verdict_is_reported_after_it() -> None:
    world = Ahead({})
    second = world.log.reducer.ledger.clients[world.client].queue[1]
    world.hear()
    said = world.finish()
    assert world.core.current is not None
    assert told(world.core.failed(world.core.current, "no power", 0.0)) == []
    world.log.raw(world.name, next(e.data for e in said if isinstance(e, client_side.Tell)))
    assert told(world.hear()) == [second]


def test_a_client_with_a_memory_waits_for_the_verdict() -> None:
    world = Ahead({"own": one(1.0)})
    world.hear()
    assert begun(world.finish()) == []


def test_assignments_list_jobs_in_the_order_of_sending() -> None:
    log = Log(plan(DeFedAvg(sampled=1))).begin()
    server_core = ServerCore(log.reducer.plan, log.reducer.ledger)
    posts = [
        effect for client in (0, 1) for effect in server_core.post(client, 0.0) if isinstance(effect, server_side.Post)
    ]
    jobs: list[Job] = [job for post in posts for job, _ in read_assignment(post.data).jobs]
    assert [job.client for job in jobs] == [0, 1]
    assert all(job.hold for job in jobs)


def test_epochs_need_a_server_that_knows_the_samples_and_become_each_client_s_steps() -> None:
    with pytest.raises(SettingError, match="epochs: how many samples the clients have is not known"):
        plan(FedBuff(), SGD(lr=0.5, epochs=2))
    log = Log(plan(FedBuff(), SGD(lr=0.5, epochs=2), planned=[[3, 7]])).begin()
    assert [flight.job.steps for flight in log.reducer.ledger.flights.values()] == [3, 7]


def test_a_list_of_batch_sizes_is_refused_where_clients_may_come_later() -> None:
    with pytest.raises(SettingError, match="batch: clients that come later"):
        plan(FedBuff(), SGD(lr=0.5, batch=(4, 8)))
    assert plan(FedBuff(), SGD(lr=0.5, batch=(4, 8)), grows=False).steps(0, 1) == 1


def test_a_restored_run_leaves_clients_what_is_their_own_affair() -> None:
    """A kept optimiser agrees with nothing at the server: only AREA's y_i have to be those of the backup."""
    found = []
    for server in (FedBuff(size=2), AREA(size=2)):
        log = Log(plan(server, Adam(0.1, keep=True))).begin()
        log.add("", "restored", epoch=5)
        resync = log.reducer.ledger.clients[0].resync
        assert resync is not None
        found.append({task: sorted(memory) for task, memory in resync.items()})
    assert found == [{}, {0: ["y"]}]
