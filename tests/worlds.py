"""Small worlds for tests: problems that fit on a line, clocks that follow a script, saving through JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from offbeat.core.algorithm import Algorithm
from offbeat.core.events import Alarm, Command, Job, Send, Update
from offbeat.core.local import Local
from offbeat.core.metric import Goal, Metric, all_metrics
from offbeat.core.random import Stream
from offbeat.core.server import Commands, Model, Server, View
from offbeat.core.state import State, Tensors, dump, load
from offbeat.core.until import Until
from offbeat.core.vectors import Vector
from offbeat.core.watcher import EventRow
from offbeat.experiment.run import Run, run as simulate
from offbeat.local.gradient import Gradient
from offbeat.local.sgd import SGD
from offbeat.simulate.execute import Executor
from offbeat.simulate.loop import Simulation
from offbeat.simulate.run import prepare
from offbeat.simulate.world import World
from offbeat.timing.base import Clock, Durations, Timing
from offbeat.watch.history import History

ACCURACY = Metric("accuracy", higher=True, share=True)
MEASURED = all_metrics([ACCURACY])


def accuracies(*values: float | None) -> tuple[Goal | None, ...]:
    """An accuracy for each task to reach, or none."""
    return tuple(None if value is None else Goal(ACCURACY, value) for value in values)


@dataclass(frozen=True)
class Line:
    """f_i(w) = ½ (w − c_i)² on the real line, in double precision: everything can be checked with a pencil."""

    centres: Sequence[float]
    start: float = 0.0
    name: str = "line"
    dim: int = 1
    stacks: bool = True
    metrics: Sequence[Metric] = (ACCURACY,)

    @property
    def clients(self) -> int:
        return len(self.centres)

    def initial(self) -> torch.Tensor:
        return torch.full((self.dim,), self.start, dtype=torch.float64)

    def oracle(self, clients: Sequence[int], keys: Sequence[int], steps: int, batch: int | None, shuffle: bool) -> Any:
        return _Points(torch.tensor([[self.centres[c]] for c in clients], dtype=torch.float64))

    def measure(self, models: torch.Tensor) -> list[Mapping[str, float]]:
        """`accuracy` is made up: 1 at a distance of 0 from the mean centre."""
        best = sum(self.centres) / self.clients
        return [{"loss": abs(float(w) - best), "accuracy": 1.0 / (1.0 + abs(float(w) - best))} for w in models]


class _Points:
    def __init__(self, centres: torch.Tensor) -> None:
        self.centres = centres

    def gradient(self, w: torch.Tensor, step: int, sample: int = 0) -> torch.Tensor:
        return w - self.centres

    def full(self, w: torch.Tensor) -> torch.Tensor:
        return w - self.centres

    def hvp(self, w: torch.Tensor, v: torch.Tensor, step: int, sample: int = 0) -> torch.Tensor:
        return v

    def loss(self, w: torch.Tensor, step: int, sample: int = 0) -> torch.Tensor:
        return (0.5 * (w - self.centres) ** 2).sum(dim=1)


@dataclass(frozen=True)
class Scripted:
    """A clock that follows a script: the times of each client's jobs, repeated from the start when they run out.

    jobs: for each client the compute time, or all `Durations`, of its jobs.   flips: when each client comes or goes;
    everybody not in `away` is there at first.   unwilling: clients that are there and take no work.
    """

    jobs: Sequence[Sequence[float | Durations]]
    flips: Mapping[int, Sequence[float]] = field(default_factory=dict)
    away: frozenset[int] = frozenset()
    unwilling: frozenset[int] = frozenset()

    def bind(self, clients: int, seed: int, tasks: Sequence[str] = ("",)) -> Clock:
        return self

    @property
    def always(self) -> bool:
        return not (self.flips or self.away or self.unwilling)

    def durations(self, job: Job, down: int, up: int) -> Durations:
        mine = self.jobs[job.client % len(self.jobs)]
        time = mine[job.number % len(mine)]
        return time if isinstance(time, Durations) else Durations(0.0, float(time), 0.0)

    def available(self, client: int, now: float, stream: Stream) -> bool:
        return client not in self.unwilling

    def present(self, client: int, now: float) -> bool:
        passed = sum(time <= now for time in self.flips.get(client, ()))
        return (client not in self.away) ^ bool(passed % 2)

    def flip(self, client: int, after: float) -> float | None:
        return next((time for time in self.flips.get(client, ()) if time > after), None)


@dataclass
class Diary(State):
    """What a `Scenario` saw: (time, client, job, first number of the vector) of arrivals, and all else as text."""

    model: Model
    arrived: list[tuple[float, int, int, float]]
    heard: list[str]


@dataclass(frozen=True)
class Scenario(Server[Diary]):
    """A server that says at given times what its script says, and notes what it hears."""

    script: Mapping[float, Sequence[Command]]

    def begin(self, models: Sequence[Vector], view: View) -> Diary:
        return Diary(Model(models[0]), [], [])

    def started(self, state: Diary, view: View) -> Commands:
        for time, commands in self.script.items():
            yield from commands if time == 0 else (Alarm(time, str(time)),)

    def rang(self, state: Diary, key: str, view: View) -> Commands:
        yield from self.script[float(key)]

    def arrived(self, state: Diary, update: Update, view: View) -> Commands:
        state.arrived.append(
            (view.now, update.job.client, update.job.id, float(next(iter(update.vectors.values()))[0]))
        )
        yield from ()

    def lost(self, state: Diary, job: Job, reason: str, view: View) -> Commands:
        state.heard.append(f"{view.now:g}: job {job.id} of client {job.client} {reason}")
        yield from ()


class TwoTasks(Scenario):
    """A scenario of two tasks, whose models stay what they are."""

    several = True

    def models(self, state: Diary) -> Sequence[Model]:
        return (state.model, state.model)


def send(client: int, start: float = 0.0, **options: Any) -> Send:
    """Work for a client, from this point of the line."""
    return Send(client, {"model": torch.tensor([start], dtype=torch.float64)}, 0, **options)


def run(problem: Any, server: Server[Any], local: Local, timing: Timing, until: Until, **options: Any) -> Run:
    """A run that keeps its events."""
    return simulate(problem, Algorithm(server, local), timing, until, keep_events=True, **options)


def after_each(problem: Any, server: Server[Any], clock: Any, updates: int) -> list[float]:
    """The first number of a server's model after each of so many gradients."""
    steps = prepare(problem, Algorithm(server, Gradient()), clock, Until(updates=updates)).steps()
    next(steps)  # Started
    return [float(world.server.model.vector[0]) for world in steps][:updates]


def play(
    server: Server[Any],
    clock: Any,
    until: Until,
    *,
    problems: Sequence[Any] = (),
    locals_: Sequence[Local] = (),
    clients: int = 1,
    stacked: bool = True,
    evaluate: float | None = None,
    **options: Any,
) -> tuple[Simulation, History]:
    """A simulation of one server, with a problem on the line where none is given, run to its end."""
    history = History(keep_events=True)
    problems = problems or [Line([1.0] * clients)]
    simulation = Simulation(
        problems,
        server,
        locals_ or [SGD(lr=0.5) for _ in problems],
        clock,
        Executor(stacked),
        until,
        every=evaluate,
        watchers=[history],
        **options,
    )
    simulation.run()
    return simulation, history


def through_text(world: World) -> World:
    """The world after it was written down as JSON text and a table of tensors, and read back."""
    tensors = Tensors()
    text = json.dumps(dump(world, tensors), allow_nan=False)
    back: World = load(json.loads(text), {name: t.clone() for name, t in tensors.table.items()})
    return back


def same_world(a: World, b: World) -> bool:
    """Whether two worlds are equal to the last bit."""
    first, second = Tensors(), Tensors()
    if dump(a, first) != dump(b, second):
        return False
    return all(torch.equal(t, second.table[name]) for name, t in first.table.items())


def seen(rows: Sequence[EventRow]) -> list[str]:
    """An event log as text, to compare and to read: every field, numbers in full."""
    return [" ".join(map(repr, row)) for row in rows]


def brief(rows: Sequence[EventRow]) -> list[tuple[float, str, int]]:
    """(time, event, client) of every row."""
    return [(row.time, row.event, row.client) for row in rows]
