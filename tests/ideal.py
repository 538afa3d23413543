"""A real run without its network: what the simulator's course of events is compared with."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from offbeat.core.algorithm import Algorithm
from offbeat.core.random import SERVER, Stream, key
from offbeat.core.server import Server
from offbeat.core.sums import Secure
from offbeat.core.until import Until
from offbeat.deploy import effects as client_side, server_core as server_side, wire
from offbeat.deploy.admission import Limits
from offbeat.deploy.client_core import ClientCore
from offbeat.deploy.effects import Done
from offbeat.deploy.envelope import public_seal
from offbeat.deploy.helper_core import HelperCore, HelperMemory
from offbeat.deploy.helping import write_helping
from offbeat.deploy.identity import HELPER
from offbeat.deploy.masking import Masking
from offbeat.deploy.plan import Plan
from offbeat.deploy.server_core import ServerCore
from offbeat.deploy.train import Training
from offbeat.deploy.view import LedgerView
from offbeat.deploy.wire import LogEntry
from offbeat.experiment.real import HoldoutJudge
from offbeat.simulate.personal import Personal
from offbeat.timing import Times
from offbeat.watch.history import History


class Ideal:
    """A network without delay: only the jobs take time, as long as a timing model says."""

    def __init__(
        self,
        problem: Any,
        server: Server[Any],
        local: Any,
        timing: Times,
        until: Until,
        seed: int,
        listed: int = 99,
        personal: Personal | None = None,
        own: Sequence[Any] | None = None,
        secure: Secure | None = None,
    ) -> None:
        """own: what each client trains on, if not its part of `problem`."""
        made = Algorithm(server, local, secure=secure)
        secure = made.secure
        names = [f"c{number}" for number in range(problem.clients)]
        self.plan = Plan(
            "run",
            names[:listed],
            made.server_for([problem]),
            made.trainers([problem]),
            [problem.initial() if secure is None else secure.round(problem.initial())],
            until,
            seed=seed,
            limits=Limits(lease=1e9, patience=1e9),
            personal=personal,
            secure=secure,
            federation="fed",
        )
        self.secrets = {name: bytes([1 + n]) * 32 for n, name in enumerate([*names, HELPER])}
        self.seals = {name: public_seal(secret) for name, secret in self.secrets.items()}
        self.helper = HelperCore("fed", "run", self.secrets[HELPER], b"", retry=1e9)
        self.helper.kept = HelperMemory(seals={name: [self.seals[name].hex()] for name in names})
        self.problem, self.clock = problem, timing.bind(problem.clients, seed)
        self.own = own or [problem] * problem.clients
        self.history = History(keep_events=True)
        every = None if personal is None else 1e9  # after the first, evaluations are asked for from outside
        self.core = ServerCore(self.plan, None, [self.history], wait=problem.clients, every=every)
        self.at_work: dict[str, tuple[Training, float, float]] = {}  # by client: its job, when that began and ends
        self.draw_as_simulated(self.core.reducer.draws, seed)
        for record in self.core.ledger.clients:
            record.seal = self.seals[record.name].hex() if secure else ""
        firsts = [made.trainers([problem])[0].remember(problem.initial())]
        self.client_cores = [
            ClientCore("run", name, firsts, lambda name=name: name, retry=1e9, beat=1e9, mask=self.mask(name))
            for name in names
        ]
        self.allowed: dict[int, int] = {}  # local steps of a job
        self.heap: list[Any] = []
        self.counter, self.now, self.seq = itertools.count(), 0.0, 0

    def draw_as_simulated(self, view: LedgerView, seed: int) -> None:
        """Random numbers by the count of events, where a log has more entries than a simulation has events."""

        def renew(_: int) -> None:
            view._rng = Stream(key(seed, SERVER, self.core.ledger.events + 1))

        view.renew = renew  # type: ignore[method-assign]

    def mask(self, name: str) -> Masking | None:
        """A client's masks, if there are any."""
        secure = self.plan.secure
        return Masking("fed", "run", secure, self.secrets[name], self.seals[HELPER]) if secure else None

    def later(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.heap, (self.now + delay, next(self.counter), action))

    def run(self) -> ServerCore:
        for client_core in self.client_cores:
            client_core.start(None, 0.0)
        self.obey(self.core.boot(0.0))
        for client_core in self.client_cores[len(self.plan.roster) :]:
            self.enrol(client_core.client)
        self.tick()
        while self.heap and (not self.core.ledger.stopped or self.core.ledger.judging):
            self.now, _, action = heapq.heappop(self.heap)
            action()
        return self.core

    def tick(self) -> None:
        self.obey(self.core.due(self.now))
        for task in self.core.next_evaluation(self.now):
            vector, *when = self.core.evaluated(task, self.now)
            self.obey([self.core.score(task, *when, self.problem.measure(vector.unsqueeze(0))[0])])  # type: ignore[arg-type, call-arg]
        wait = self.core.wait_for(self.now, 1e9)
        if wait < 1e9:
            self.later(max(wait, 1e-9), lambda: self.obey(self.core.due(self.now)))

    def obey(self, effects: list[server_side.Effect]) -> None:
        called = list(getattr(self.core.ledger.server, "drawn", ()))  # the simulator asks in the order of drawing
        for effect in sorted(
            effects, key=lambda e: called.index(e.client) if getattr(e, "client", -1) in called else -1
        ):
            if isinstance(effect, server_side.Consult):
                told = write_helping(self.plan, self.core.ledger, b"")
                for said in self.helper.hear(told, self.now):
                    if isinstance(said, client_side.Tell):
                        self.append(HELPER, said.data)
            elif isinstance(effect, server_side.Append):
                self.later(0.0, lambda data=effect.data: self.append("", data))
            elif isinstance(effect, server_side.Post):
                if effect.client >= len(self.client_cores):
                    continue  # enrolled, and never there
                client_core, data = self.client_cores[effect.client], effect.data
                self.later(
                    0.0,
                    lambda client_core=client_core, data=data: self.act(client_core, client_core.hear(data, self.now)),
                )

    def append(self, sender: str, data: bytes) -> None:
        self.seq += 1
        record = self.core.reducer.index.get(sender)
        seal = "" if record is None else self.core.ledger.clients[record].seal
        self.obey(self.core.fold(LogEntry(self.seq, self.now, sender, data, ("", "", seal)), self.now))
        self.later(0.0, self.tick)

    def ask(self, time: float) -> None:
        """At this time, all models are evaluated."""
        self.later(time, lambda: self.append("", wire.say(wire.Asked("run", 0, True))))

    def enrol(self, name: str) -> None:
        self.append("", wire.say(wire.Enrolled("run", len(self.core.ledger.clients), name)))

    def act(self, client_core: ClientCore, effects: list[client_side.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, client_side.Tell):
                self.later(0.0, lambda data=effect.data: self.append(client_core.client, data))
            elif isinstance(effect, client_side.Mirror):
                self.act(client_core, client_core.mirrored(effect.data, self.now))
            elif isinstance(effect, client_side.Train):
                self.train(client_core, effect)
            elif isinstance(effect, client_side.Judge):
                number = self.client_cores.index(client_core)
                judge = HoldoutJudge([self.problem], self.plan.locals, number, self.plan.seed, self.plan.personal)
                answer = judge(effect.task, effect.payload["model"], effect.memory)
                self.act(client_core, client_core.judged(effect.number, answer, self.now))
            elif isinstance(effect, client_side.Interrupt):
                self.interrupt(client_core, effect.keep)

    def train(self, client_core: ClientCore, effect: client_side.Train) -> None:
        job = effect.job
        local, length = self.plan.locals[job.task], self.clock.durations(job, 0, 0).compute
        self.allowed[job.id] = job.steps  # what an interruption leaves of them
        given = (self.own[job.client], local, job, effect.payload, effect.memory, self.plan.seed)
        training = Training(*given, lambda made: made < self.allowed[job.id])
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
            done = self.allowed[training.job.id] = int(training.job.steps * (self.now - start) / (end - start))
            while training.steps < done:
                training.step()
            self.report(client_core, training)

    def report(self, client_core: ClientCore, training: Training) -> None:
        self.at_work.pop(client_core.client, None)
        self.act(client_core, client_core.done(Done(training.job, *training.result(), training.steps), self.now))
