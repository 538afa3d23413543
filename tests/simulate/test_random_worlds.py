"""Random scripts of sends, holds, recalls, cancellations, losses and departures: what must hold for all of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from hypothesis import given, settings, strategies as st
from worlds import Diary, Line, Scenario, Scripted, same_world, seen, send, through_text

from offbeat.algorithms.area import Residual
from offbeat.core.events import Cancel, Recall, Send
from offbeat.core.local import Local
from offbeat.core.server import Model
from offbeat.core.until import Until
from offbeat.local.sgd import SGD
from offbeat.simulate.execute import Executor
from offbeat.simulate.loop import Simulation
from offbeat.timing.base import Durations
from offbeat.watch.history import History

N = 3
TWO = SGD(lr=0.25, steps=2)
clients = st.integers(0, N - 1)
grid = st.integers(0, 12).map(lambda k: k / 2)  # times often coincide
durations = st.builds(Durations, grid, grid, grid, st.sampled_from([False, False, True]))
commands = st.one_of(
    st.builds(send, clients, st.floats(-3, 3), hold=st.booleans(), steps=st.integers(1, 4)),
    st.builds(Recall, clients, st.just(0), st.booleans()),
    st.builds(Cancel, clients, st.just(0)),
)
scripts = st.dictionaries(grid, st.lists(commands, max_size=4), max_size=8)
flips = st.dictionaries(clients, st.lists(grid.filter(bool), max_size=3, unique=True).map(sorted))
clocks = st.builds(Scripted, st.lists(st.lists(durations, min_size=1, max_size=4), min_size=N, max_size=N), flips)


@dataclass
class Holders(Diary):
    holding: list[int] = field(default_factory=list)  # clients that surely hold something


class Careful(Scenario):
    """Recalls only clients that surely hold something."""

    def begin(self, models: Any, view: Any) -> Holders:
        return Holders(Model(models[0]), [], [])

    def started(self, state: Any, view: Any) -> Any:
        yield from self._careful(state, super().started(state, view), view)

    def rang(self, state: Any, key: str, view: Any) -> Any:
        yield from self._careful(state, super().rang(state, key, view), view)

    def lost(self, state: Any, job: Any, reason: str, view: Any) -> Any:
        if job.client in state.holding and not view.present(job.client):
            state.holding.remove(job.client)
        yield from super().lost(state, job, reason, view)

    def _careful(self, state: Any, commands: Any, view: Any) -> Any:
        for command in commands:
            if isinstance(command, Recall):
                if command.client not in state.holding:
                    continue
                state.holding.remove(command.client)
            elif isinstance(command, Cancel):
                state.holding = [client for client in state.holding if client != command.client]
            elif isinstance(command, Send) and command.hold and view.present(command.client):
                state.holding = sorted({*state.holding, command.client})
            yield command


def simulation(
    script: Any, clock: Scripted, stacked: bool, local: Local = TWO, **options: Any
) -> tuple[Simulation, History]:
    history = History(keep_events=True)
    made = Simulation(
        [Line([1.0, 2.0, 3.0])], Careful(script), [local], clock, Executor(stacked), Until(time=60.0),
        watchers=[history], **options,
    )  # fmt: skip
    return made, history


@settings(max_examples=200)
@given(scripts, clocks)
def test_serial_and_batched_see_the_same(script: Any, clock: Scripted) -> None:
    ends = []
    for stacked in (False, True):
        made, history = simulation(script, clock, stacked)
        made.run()
        ends.append((seen(history.events), made.world.server.arrived, made.world.server.heard))
    assert ends[0] == ends[1]


@settings(max_examples=200)
@given(scripts, clocks, st.booleans())
def test_serial_and_batched_remember_the_same(script: Any, clock: Scripted, hold: bool) -> None:
    """Work that is all held or all not; a client's memory under a mixture of both is not settled by the rules."""
    chosen = {t: [c for c in cs if not isinstance(c, Send) or c.hold == hold] for t, cs in script.items()}
    ends = []
    for stacked in (False, True):
        made, _ = simulation(chosen, clock, stacked, local=Residual.around(TWO))
        made.run()
        ends.append(made.world)
    assert ends[0].server.arrived == ends[1].server.arrived
    assert repr(ends[0].memories) == repr(ends[1].memories)


@settings(max_examples=200)
@given(scripts, clocks)
def test_every_job_ends_once_or_is_replaced_or_is_still_held(script: Any, clock: Scripted) -> None:
    made, history = simulation(script, clock, stacked=True)
    made.run()
    world = made.world
    ended = Counter(r.job for r in history.events if r.event in ("Arrived", "Lost", "Cancelled"))
    assert set(ended.values()) <= {1}
    assert all(flight.held for flight in world.flights.values())
    assert not set(ended) & set(world.flights)
    assert not world.todo
    held = {c.client for commands in script.values() for c in commands if isinstance(c, Send) and c.hold}
    assert held or len(ended) == world.jobs
    assert world.tally.computed <= world.jobs
    assert world.tally.cancelled == sum(r.event == "Cancelled" for r in history.events)


@settings(max_examples=200)
@given(scripts, clocks)
def test_a_client_does_one_job_at_a_time_and_none_before_it_is_sent(script: Any, clock: Scripted) -> None:
    made, history = simulation(script, clock, stacked=True)
    made.run()
    for client in range(N):
        mine = [r for r in history.events if r.event == "Arrived" and r.client == client]
        spans = sorted(
            (r.started, r.finished) for r in mine if r.started < r.finished
        )  # none: recalled before it began
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert all(r.sent <= r.started <= r.finished <= r.time for r in history.events if r.event == "Arrived")
    assert [r.time for r in history.events] == sorted(r.time for r in history.events)


@settings(max_examples=200)
@given(scripts, clocks)
def test_who_is_idle_is_who_is_there_and_has_nothing(script: Any, clock: Scripted) -> None:
    made, _ = simulation(script, clock, stacked=False)
    for world in made.steps():
        busy = {flight.job.client for flight in world.flights.values()}
        assert busy == set(world.flying)
        jobs = [flight.job for flight in world.flights.values()]
        held = {(job.client, job.task) for job in jobs if job.hold}
        assert made.view.flying == sum(not job.hold for job in jobs) + len(held)
        assert set(world.idle.items) == set(world.present.items) - busy
        assert set(world.present.items) == {c for c in range(N) if clock.present(c, world.now)} or _at_a_flip(made)


def _at_a_flip(made: Simulation) -> bool:
    """Between two clients' flips of the same moment the second one has not flipped yet."""
    return bool(made.world.heap) and made.world.heap[0][0] == made.world.now


@settings(max_examples=200)
@given(scripts, clocks, st.integers(1, 12), st.booleans())
def test_saved_anywhere_it_goes_on_the_same(script: Any, clock: Scripted, at: int, stacked: bool) -> None:
    whole, expected = simulation(script, clock, stacked)
    whole.run()
    first, before = simulation(script, clock, stacked)
    for _, _ in zip(range(at), first.steps(), strict=False):
        pass
    second, after = simulation(script, clock, stacked, world=through_text(first.world))
    second.run()
    assert seen(before.events + after.events) == seen(expected.events)
    assert same_world(second.world, whole.world)


def test_vectors_in_scripts_are_not_written() -> None:
    work = send(0, 2.0)
    made, _ = simulation({1.0: [work]}, Scripted([[1.0]]), stacked=True)
    made.run()
    assert torch.equal(work.payload["model"], torch.tensor([2.0], dtype=torch.float64))
