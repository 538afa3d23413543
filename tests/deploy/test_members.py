"""Clients that are enrolled and removed while a run goes on: sums stay those of the clients that are members."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from faults import freeze, same
from logs import Log, plan

from offbeat.algorithms import (
    ACE,
    ACED,
    AFACS,
    AREA,
    CA2FL,
    MIFA,
    SCAFFOLD,
    AsGrad,
    AsyncCommSGD,
    DecoupledDiLoCo,
    DeFedAvg,
    Favano,
    FedAST,
    FedAvg,
    FedBuff,
    FedCompass,
    FedFa,
    FedFix,
    Port,
    SyncUCBST,
    buffer,
)
from offbeat.core.algorithm import Algorithm
from offbeat.deploy.plan import Plan
from offbeat.deploy.reducer import Reducer
from offbeat.local import SGD, Gradient, Scaffold
from offbeat.watch.history import History

START = 5.0


class Party:
    """Clients that come, send whole numbers, and go, over a log. memory: (client, task) -> what it remembers."""

    def __init__(self, made: Plan, seed: int = 0) -> None:
        self.history = History(keep_events=True)
        self.log, self.random = Log(made, self.history), random.Random(seed)
        self.memory: dict[tuple[int, int], float] = {}
        self.log.begin(*made.roster)

    @property
    def ledger(self) -> Any:
        return self.log.reducer.ledger

    @property
    def members(self) -> list[int]:
        return [client for client, record in enumerate(self.ledger.clients) if not record.removed]

    def enrol(self) -> int:
        client = len(self.ledger.clients)
        self.log.add("", "enrolled", client=client, name=f"new{client}", account="A", sign="S", seal="X")
        assert self.log.add(f"new{client}", "hello", epoch=1, nonce="n") == ""
        return client

    def remove(self, client: int) -> None:
        self.log.add("", "removed", client=client)

    def work(self, client: int) -> None:
        record = self.ledger.clients[client]
        waiting = [*record.queue, *(record.held[task][-1] for task in record.recalls)]
        if not waiting:
            return
        job = self.ledger.flights[waiting[0]].job
        parts, kept = self.result(client, job.task)
        vectors = {name: torch.tensor([value], dtype=torch.float64) for name, value in parts.items()}
        code = self.log.result(record.name, record.seq + 1, job.id, parts=vectors, steps=job.steps)
        assert code == "applied", code
        self.memory[client, job.task] = kept

    def result(self, client: int, task: int) -> tuple[dict[str, float], float]:
        """What a client sends, and what it remembers then."""
        new = float(self.random.randrange(-8, 9))
        before = self.memory.get((client, task))
        names = self.log.reducer.expected[task]
        if "residual" in names:
            return {"residual": new - (START if before is None else before)}, new
        if "control" in names:
            return {"delta": new, "control": new - (before or 0.0)}, new
        return dict.fromkeys(names, new), new

    def ring(self) -> None:
        for alarm in [*self.ledger.alarms]:
            self.log.add("", "rung", alarm=alarm)

    def shake(self, check: Callable[[Party], None], steps: int = 300) -> None:
        """Let clients work, come and go at random, and check after each."""
        for _ in range(steps):
            draw, members = self.random.random(), self.members
            if draw < 0.05 and len(members) < 6:
                self.enrol()
            elif draw < 0.1 and len(members) > 1:
                self.remove(self.random.choice(members))
            elif draw < 0.15:
                self.ring()
            else:
                self.work(self.random.choice(members))
            check(self)


def made(server: Any, local: Any = None, tasks: int = 1) -> Plan:
    algorithm = Algorithm(server, local or SGD(lr=0.5))
    first = torch.tensor([START], dtype=torch.float64)
    base = plan(AREA(), limits=replace(plan(AREA()).limits, norm=None, window=None))
    return replace(base, server=algorithm.server, locals=algorithm.locals(tasks), initial=[first] * tasks)


def mean(values: list[float]) -> Any:
    return pytest.approx(sum(values) / len(values), abs=1e-9)


def area_holds(party: Party) -> None:
    """mean(y_i) = x + u over the members that were there from the beginning or have sent something for the task."""
    tasks = getattr(party.ledger.server, "tasks", None)
    for task, state in enumerate([t.inner for t in tasks] if tasks else [party.ledger.server]):
        counted = [c for c in party.members if c < 2 or (c, task) in party.memory]
        if counted:
            ys = [party.memory.get((client, task), START) for client in counted]
            assert float(state.model.vector + state.u) == mean(ys)


def scaffold_holds(party: Party) -> None:
    """c and what is to be added to it are the mean of the members' controls, of which new ones are 0."""
    state, members = party.ledger.server, party.members
    total = [party.memory.get((client, 0), 0.0) for client in members]
    pending = 0.0 if state.changes is None else float(state.changes) / len(members)
    assert float(state.control) + pending == mean(total)


def mifa_holds(party: Party) -> None:
    total = [party.memory.get((client, 0), 0.0) for client in party.members]
    assert set(party.ledger.server.last) <= set(party.members)
    assert float(party.ledger.server.mean) == mean(total)


def memory_holds(party: Party) -> None:
    """The mean over the members of what each of them sent last, or 0."""
    state = party.ledger.server
    assert set(state.last) <= set(party.members)
    last = [float(state.last.get(client, torch.zeros(1))) for client in party.members]
    assert float(state.mean) == mean(last)


def aced_holds(party: Party) -> None:
    memory_holds(party)
    assert set(party.ledger.server.heard) == set(party.ledger.server.last)


def fedfix_holds(party: Party) -> None:
    assert set(party.ledger.server.began) <= set(party.members)


def fedcompass_holds(party: Party) -> None:
    state = party.ledger.server
    assert {client for group in state.groups.values() for client in group.awaited} == set(state.group)
    assert set(state.group) | set(state.pace) | set(state.sent) <= set(party.members)


def ca2fl_holds(party: Party) -> None:
    state = party.ledger.server
    assert set(state.cache) <= set(party.members)
    cached = [float(state.cache.get(client, torch.zeros(1))) for client in party.members]
    assert float(state.mean) == mean(cached)


def favano_holds(party: Party) -> None:
    assert set(party.ledger.server.taken) <= set(party.members)


def ucb_holds(party: Party) -> None:
    assert {client for client, _ in party.ledger.server.seen} <= set(party.members)


def nothing(party: Party) -> None:
    pass


HOLDS: dict[str, tuple[Callable[[], Plan], Callable[[Party], None]]] = {
    "area": (lambda: made(AREA(size=3)), area_holds),
    "fedast over area": (lambda: made(FedAST(requests=4, aggregate=AREA(size=2)), tasks=2), area_holds),
    "scaffold": (lambda: made(SCAFFOLD(), Scaffold(lr=0.5)), scaffold_holds),
    "mifa": (lambda: made(MIFA(size=2)), mifa_holds),
    "ca2fl": (lambda: made(CA2FL(size=3)), ca2fl_holds),
    "ace": (lambda: made(ACE()), memory_holds),
    "aced": (lambda: made(ACED(bound=3)), aced_holds),
    "afa-cs": (lambda: made(AFACS(size=2)), memory_holds),
    "fedfix": (lambda: made(FedFix(period=0.05)), fedfix_holds),
    "fedcompass": (lambda: made(FedCompass(least=1, most=4)), fedcompass_holds),
    "asgrad": (lambda: made(AsGrad(size=2), Gradient()), nothing),
    "port": (lambda: made(Port(size=2, bound=2)), nothing),
    "async-comm-sgd": (lambda: made(AsyncCommSGD(most=3)), nothing),
    "decoupled-diloco": (lambda: made(DecoupledDiLoCo(quorum=2, grace=0.05)), nothing),
    "fedfa": (lambda: made(FedFa(size=3)), nothing),
    "favano": (lambda: made(Favano(sampled=2, period=0.05)), favano_holds),
    "sync-ucb-st": (lambda: made(SyncUCBST(sampled=4), tasks=2), ucb_holds),
    "fedavg": (lambda: made(FedAvg()), nothing),
    "fedbuff": (lambda: made(FedBuff(size=2, concurrency=2)), nothing),
    "defedavg": (lambda: made(DeFedAvg(sampled=2)), nothing),
}


@pytest.mark.parametrize("name", HOLDS)
def test_sums_stay_those_of_the_members_and_the_log_folded_again_agrees(name: str) -> None:
    make, holds = HOLDS[name]
    for seed in range(3):
        party = Party(make(), seed)
        party.shake(holds)
        assert party.ledger.tally.updates > 15
        events = {row.event for row in party.history.events}
        assert {"Admitted", "Dismissed", "Arrived"} <= events
        again = Reducer(party.log.reducer.plan)
        for entry in party.log.entries:
            again.fold(entry)
        assert same(freeze(again.ledger), freeze(party.ledger))


def test_area_counts_a_new_client_from_its_first_message_on_and_exactly() -> None:
    party = Party(made(AREA(size=100)))
    party.memory = {(0, 0): START, (1, 0): START}
    party.remove(1)
    state = party.ledger.server
    assert float(state.model.vector + state.u) == START
    new = party.enrol()
    assert float(state.model.vector + state.u) == START  # it is there, and has said nothing
    party.work(new)
    ys = (START, party.memory[new, 0])
    assert float(state.model.vector + state.u) == sum(ys) / 2
    party.remove(0)
    assert float(state.model.vector + state.u) == party.memory[new, 0]


def test_where_area_cannot_track_its_clients_what_a_removed_one_has_contributed_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buffer, "MEMORY", 10.0)
    party = Party(made(AREA(size=100)))
    party.work(0)
    party.work(1)
    before = float(party.ledger.server.u)
    y = party.memory[1, 0]
    party.remove(1)
    assert float(party.ledger.server.u) == before
    party.work(0)
    state = party.ledger.server
    assert float(state.model.vector + state.u) == (party.memory[0, 0] + y) / 2


def test_a_removed_client_is_turned_away_for_good_and_its_name_is_not_given_again() -> None:
    party = Party(made(FedBuff(size=2)))
    party.log.add("", "removed", client=1)
    record = party.ledger.clients[1]
    assert (record.present, record.queue, party.ledger.members) == (False, [], 1)
    assert party.log.add("b", "hello", epoch=2, nonce="z", after_epoch=1) == "removed"
    assert party.log.result("b", 1, 1) == "late"
    party.log.add("", "enrolled", client=2, name="b")
    assert len(party.ledger.clients) == 2
    party.log.add("", "removed", client=1)
    assert party.ledger.members == 1


def test_entries_for_other_numbers_change_nothing() -> None:
    party = Party(made(FedBuff(size=2)))
    for kind, header in {
        "enrolled": {"client": 5, "name": "x"},
        "removed": {"client": 9},
        "rekeyed": {"client": 9, "account": "", "sign": "", "seal": ""},
    }.items():
        assert party.log.add("", kind, **header) == ""
    assert party.ledger.members == len(party.ledger.clients) == 2


def test_a_new_client_has_an_assignment_before_it_greets() -> None:
    party = Party(made(FedBuff(size=2)))
    party.log.reducer.traffic.changed.clear()
    party.log.add("", "enrolled", client=2, name="x")
    assert party.log.reducer.changed == {2}
