"""The loop: take the next entry from the heap, let the server handle it, carry out what it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop
from typing import Any

from offbeat.core.course import Course
from offbeat.core.errors import SettingError
from offbeat.core.events import Job, Rang, Send, Started, Update
from offbeat.core.local import Local, allowed_steps, planned_steps
from offbeat.core.metric import in_order
from offbeat.core.periods import multiple
from offbeat.core.problem import Named, Problem
from offbeat.core.server import SPENT, Server
from offbeat.core.state import exchange
from offbeat.core.sums import Secure
from offbeat.core.until import Until
from offbeat.core.vectors import Vector, materialise, stacked
from offbeat.core.watcher import Measurement, Watcher
from offbeat.privacy.attack import Adversary, Plot
from offbeat.problems.supervised import Supervised
from offbeat.simulate.arena import Arena, Arenas
from offbeat.simulate.compiling import worth
from offbeat.simulate.compute import Computing, Team
from offbeat.simulate.execute import Executor
from offbeat.simulate.personal import Personal, PersonalProblem, counted, measured_metrics, personal_models, summarise
from offbeat.simulate.traffic import SimulatedTraffic
from offbeat.simulate.view import WorldView
from offbeat.simulate.world import ARRIVE, MEASURE, RING, TURN, ClientSet, Flight, PendingEvaluation, World
from offbeat.timing.base import Clock

_FOREVER = float("inf")
_AT_ONCE = 8  # models evaluated in one pass


class Simulation(Course[Flight]):
    """One run in virtual time. `world` is all of its state; everything else is fixed."""

    def __init__(
        self,
        problems: Sequence[Problem],
        server: Server[Any],
        locals_: Sequence[Local],
        clock: Clock,
        executor: Executor,
        until: Until,
        seed: int = 0,
        every: float | None = None,
        watchers: Sequence[Watcher] = (),
        world: World | None = None,
        personal: Personal | None = None,
        terms: Sequence[tuple[float, float]] = (),
        arenas: Arenas | None = None,
        adversary: Adversary | None = None,
        secure: Secure | None = None,
        weigh: bool = False,
    ) -> None:
        self.problems, self.clock, self.seed = problems, clock, seed
        self.weigh, self.compiling = weigh, ""  # why local steps are compiled or not, if that is weighed
        self.every, self.judged = every, personal
        # tasks whose clients' own models are still to be evaluated, at the end
        self.owed = set(range(len(problems))) if personal is not None and personal.last else set[int]()
        self.clients = problems[0].clients
        for problem in problems:
            if problem.clients != self.clients:
                raise SettingError(
                    f"{problem.name} is split over {problem.clients} clients and {problems[0].name} over "
                    f"{self.clients}: tasks share their clients"
                )
        initial = [p.initial() for p in problems]
        if secure is not None:
            secure.check_clients(self.clients)
            initial = [secure.round(x) for x in initial]
        firsts = [local.remember(x) for local, x in zip(locals_, initial, strict=True)]
        self.world = self._empty() if world is None else world
        for flight in self.world.flights.values():
            flight.job = Job(*flight.job)  # a saved one comes back as a plain tuple
        self.limit = _FOREVER if until.time is None else until.time
        self.computing = Computing(self.world, firsts, executor, seed, until)
        wires = [local.wire(p.dim) for local, p in zip(locals_, problems, strict=True)]
        planned = [planned_steps(local, p) for local, p in zip(locals_, problems, strict=True)]
        allowed = [allowed_steps(local, p) for local, p in zip(locals_, problems, strict=True)]
        self.traffic = SimulatedTraffic(self.world, clock, locals_, wires, [bool(m) for m in firsts], planned, allowed)
        super().__init__(
            self.world,
            server,
            locals_,
            until,
            [measured_metrics(p, personal) for p in problems],
            terms,
            WorldView(self.world, clock, seed),
            self.traffic,
            watchers,
            secure,
        )
        self.adversary = adversary
        if adversary is not None:
            self.send, self._sends = self._send_watched, self.send
            for task in range(len(problems)):
                self.world.plots.setdefault(task, Plot())
        # Measurements may be collected unless the server or a goal acts on them.
        self.at_once = _AT_ONCE
        self.prompt = self.listens or any(self.goals)
        if world is None:
            self.begin(initial)
            self._compute_with(executor, arenas)
        else:
            if world.compiled is not None:
                self._compile(world.compiled, "as the run began")
            self._compute_with(executor.settle(), arenas)

    @property
    def client_names(self) -> Sequence[str]:
        """The names of the clients, by number; none where the problem knows none."""
        problem = self.problems[0]
        return problem.client_names if isinstance(problem, Named) else ()

    def _settle(self) -> None:
        """Choose how jobs are computed, now that the first ones are there."""
        world, chosen = self.world, self.executor.settle()
        if self.weigh:
            alone = f"clients are computed by {chosen.name}"
            found = worth(self.problems, self.locals, world, self.until) if chosen.stacked else (False, alone)
            self._compile(*found)
        if chosen is not self.executor or world.compiled:
            self._compute_with(chosen, self.rows)
            world.executor = chosen.name

    def _compile(self, compile: bool, reason: str) -> None:
        self.world.compiled = compile
        self.compiling = f"{'' if compile else 'not '}compiled: {reason}"
        if compile:
            self.problems = [p.compiled_form if isinstance(p, Supervised) else p for p in self.problems]

    def _compute_with(self, executor: Executor, arenas: Arenas | None = None) -> None:
        """Have jobs computed like this. Where they are stacked, vectors are rows and may be lazy."""
        self.executor, self.rows = executor, arenas
        self.computing.executor = executor
        self.arenas: list[Arena | None] = [None] * len(self.problems)
        if executor.stacked:
            rows = Arenas() if arenas is None else arenas
            self.arenas = [rows.like(problem.initial()) for problem in self.problems]
            self.computing.firsts = exchange(self.computing.firsts, rows.adopt)
            exchange(self.world, rows.adopt)
        self.computing.teams = [Team(*parts) for parts in zip(self.problems, self.locals, self.arenas, strict=True)]

    # Running

    def run(self) -> World:
        """Until the end; the vectors of the world are then plain tensors."""
        while not self.advance(1 << 30):
            pass
        self.finish()
        return self.world

    def steps(self) -> Iterator[World]:
        """The run, an event at a time; stop iterating whenever you like and go on later with the same world."""
        over = False
        while not over:
            over = self.advance(1, evaluations=True)
            yield self.world
        self.finish()

    def advance(self, events: int, pause: bool = False, evaluations: bool = False) -> bool:
        """Handle up to so many events; tells whether the run is over.

        pause: also stop where a result is needed that has not been computed, and leave it to the caller.
        evaluations: they count as events, so that a caller can stop between two of them.
        """
        world = self.world
        if world.events == 0:
            self.handle(Started())
            events -= 1
            self._settle()
        heap, flights, computing = world.heap, world.flights, self.computing
        last = world.events + events
        while not world.stopped and world.events < last:
            if computing.owed and computing.blocked():
                if pause:
                    return False
                computing.pay()
            if not heap or heap[0][0] > self.limit:
                if self.until.time is not None:
                    world.now = self.until.time
                self.end("time" if self.until.time is not None else "nothing left to do")
                break
            time, kind, _, ref = heap[0]
            if kind == ARRIVE:
                flight = flights.get(ref)  # type: ignore[arg-type]
                if flight is None or flight.arrive != time:
                    heappop(heap)  # recalled, replaced or lost meanwhile
                    continue
                if pause and flight.result is None and not flight.lost and not computing.defers(flight.job.task):
                    return False
                if computing.error is not None and not flight.lost:
                    world.now = time
                    raise computing.error
                heappop(heap)
                world.now = time
                if flight.lost:
                    self.lose(flight, flight.lost)
                    if flight.lost == SPENT and not world.stopped and self.traffic.exhausted():
                        self.end(SPENT)
                    continue
                result = flight.result
                if result is None or result[1]:
                    result = computing.result(flight)
                self.arrived(flight, Update(flight.job, result[0]))
            else:
                heappop(heap)
                world.now = time
                self._occur(kind, ref)
                last -= evaluations and kind == MEASURE
        if world.stopped and computing.owed:
            computing.pay()
        return bool(world.stopped)

    def finish(self) -> None:
        """After the end: evaluate what is waiting for it, and turn all vectors into plain tensors."""
        self.flush()
        self.computing.review()
        exchange(self.world, materialise)

    def _empty(self) -> World:
        n, always = self.clients, self.clock.always
        there = [c for c in range(n) if always or self.clock.present(c, 0.0)]
        return World(
            present=ClientSet.of(there, n),
            idle=ClientSet.of(there, n),
            free=[0.0] * n,
            numbers=[0] * n,
        )

    def begin(self, initial: Sequence[Vector]) -> None:
        super().begin(initial)
        if not self.clock.always:
            for client in range(self.clients):
                self.traffic.push_flip(client, 0.0)
        for time, task in self.turns():
            self.traffic.push(time, TURN, task)
        if self.every is not None:
            for task, (opens, _) in enumerate(self.terms):
                self.traffic.push(opens, MEASURE, task)

    def _send_watched(self, send: Send) -> None:
        """Put a job on its way, and let attackers know the model."""
        self._sends(send)
        flight = self.world.flights.get(self.world.jobs - 1)
        if self.adversary is not None and flight is not None:
            self.adversary.sent(self.world.plots[send.task], flight.job, send.payload["model"])

    def arrived(self, flight: Flight, update: Update, result: Any = None) -> None:
        if self.adversary is not None:
            update = self.adversary.forged(self.world.plots[update.job.task], update)
        super().arrived(flight, update, result)

    def _occur(self, kind: int, ref: int | str) -> None:
        """Handle an entry of the heap that is no arrival."""
        world = self.world
        if kind == MEASURE:
            self._measure(int(ref))
            # unless nothing but measurements would ever happen again, and no time limit would end that
            stuck = self.until.time is None and all(entry[1] == MEASURE for entry in world.heap)
            if self.every is not None and int(ref) not in world.finished and not stuck:
                opens = self.terms[int(ref)][0]
                number = round((world.now - opens) / self.every) + 1
                self.traffic.push(opens + multiple(self.every, number), MEASURE, ref)
        elif kind == RING:
            self.handle(Rang(str(ref)))
        elif kind == TURN:
            self.turn(int(ref))
        else:  # the client comes or goes
            client = int(ref)
            if self.view.present(client):
                self.left(client)
            else:
                self.joined(client)
            self.traffic.push_flip(client, world.now)

    # What the course of events leaves to a runtime

    def alarm(self, time: float, key: str) -> None:
        self.traffic.push(time, RING, key)

    def times(self, flight: Flight, result: Any) -> tuple[float, float, float]:
        return flight.sent, flight.start, flight.end

    def place(self) -> str:
        return f"on event {self.world.events} at time {self.world.now:g}"

    def called(self, task: int) -> str:
        return self.problems[task].name

    def look(self, task: int) -> None:
        if self.every is not None and (task in self.owed or self.world.measured[task] < self.world.now):
            self._measure(task, last=True)

    def over(self) -> None:
        for task in range(len(self.problems)):
            if task not in self.world.finished:
                self.look(task)

    # Measuring

    def _measure(self, task: int, last: bool = False) -> None:
        world = self.world
        if task in world.finished:
            return
        model = self.server.models(world.server)[task]
        world.measured[task] = world.now
        due = last or world.now >= self.limit or task not in self.owed
        if due:
            self.owed.discard(task)
        each = self._judge(task, materialise(model.vector)) if due and self.judged else []
        world.pending.append(PendingEvaluation(task, world.now, world.tally.updates, model.version, model.vector, each))
        if self.prompt or len(world.pending) >= self.at_once:
            self.flush()

    def _judge(self, task: int, vector: Vector) -> list[float]:
        """The own metric of the clients' own models, made from this one; at once, because clients' memories change."""
        problem = self.problems[task]
        if self.judged is None or not isinstance(problem, PersonalProblem):
            return []
        clients = range(counted(self.judged, self.clients))
        return [
            value
            for some, models in self.personal(task, vector, clients, self.judged.steps)
            for value in problem.judge(models, some)
        ]

    def personal(
        self, task: int, vector: Vector, clients: Sequence[int], steps: int
    ) -> Iterator[tuple[Sequence[int], Vector]]:
        """(clients, their own models [n, d]) as of now, with so many gradients each."""
        memories = {c: m for (c, t), (_, m) in self.world.memories.items() if t == task}
        return personal_models(self.problems[task], self.locals[task], vector, memories, clients, steps, self.seed)

    def flush(self) -> None:
        """Evaluate the models that are waiting for it."""
        world = self.world
        waiting, world.pending = world.pending, []
        for task, problem in enumerate(self.problems):
            mine = [p for p in waiting if p.task == task]
            if not mine:
                continue
            for p, metrics in zip(mine, problem.measure(stacked(p.vector for p in mine)), strict=True):
                self.measured(p, metrics)

    def measured(self, pending: PendingEvaluation, metrics: Mapping[str, float]) -> None:
        """A model that was waiting has been evaluated."""
        if pending.each:
            found = {**metrics, **summarise(pending.each, self.metrics[pending.task][0])}
            metrics = in_order(found, self.metrics[pending.task])
        self.scored(Measurement(pending.task, pending.time, pending.updates, pending.version, metrics, pending.each))
