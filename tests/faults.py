"""A world that breaks: the real server and client classes over a stub clock, network and disks, all from one seed.

The broker keeps what it has stored (the log, assignments, models, sealed copies), as a broker that syncs does.
Everything else fails: messages are lost, doubled and delayed past each other; the server and the clients crash before
and after each thing that they write or send; disks are lost, also twice in a row, or restored from an old backup, while
the old process perhaps lives on; clients are cut off, leave, come back and are retired; jobs hang; the log's clock
jumps; clients send rubbish, and other things under numbers that are settled. At `CALM` the faults stop, and everything
has to come right. Models are evaluated meanwhile, by the server or by the clients. A `Witness` sees what clients do.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from plants import overrides
from witness import SAMPLES, Fold, Witness, content, score
from worlds import Line

from offbeat.algorithms import AREA, DeFedAvg, Favano, FedAST, FedBuff
from offbeat.algorithms.area import AreaState
from offbeat.algorithms.defedavg import DeFedAvgState
from offbeat.algorithms.flow import hand_out
from offbeat.algorithms.optimisers import FedAvgM
from offbeat.core.algorithm import Algorithm
from offbeat.core.events import Cancel, Recall, Update
from offbeat.core.local import Carry, Local, Work
from offbeat.core.random import below, bits
from offbeat.core.server import Commands, View
from offbeat.core.state import Tensors, dump, load
from offbeat.core.until import Until
from offbeat.deploy import effects as client_side, encoding, server_core as server_side, wire
from offbeat.deploy.admission import Limits
from offbeat.deploy.client_core import ClientCore
from offbeat.deploy.client_state import read_client_state
from offbeat.deploy.effects import Done
from offbeat.deploy.helper_core import HelperCore
from offbeat.deploy.masking import Masking, PairMasking
from offbeat.deploy.plan import Plan
from offbeat.deploy.reducer import Reducer
from offbeat.deploy.server_core import ServerCore
from offbeat.deploy.sessions import Sessions
from offbeat.deploy.taking_part import TakingPart
from offbeat.deploy.train import Training
from offbeat.deploy.verdicts import Verdicts
from offbeat.deploy.wire import LogEntry
from offbeat.local import Adam
from offbeat.simulate.personal import Personal

CLIENTS = 4  # a power of two: every number below is exact in double precision
CALM, END = 40.0, 75.0  # when the faults stop, when the run is ended
RECOVERY = 20.0  # after which everybody must be back at work
PROBLEM = Line([1.0, 2.0, 3.0, 4.0])


@dataclass(frozen=True)
class Jump(Local):
    """Steps to whole numbers that depend on the model and on the job's own draws: no rounding anywhere."""

    def step(self, carry: Carry, work: Work) -> Carry:
        keys = torch.from_numpy(np.asarray(work.keys, dtype=np.int64)).view(-1, 1)
        z = below(bits(keys, torch.tensor([[work.step]])), 17) - 8
        return {"w": torch.floor(carry["w"]) + z.double()}


@dataclass(frozen=True)
class Restless(AREA):
    """AREA, but every other message stops another client in the middle of its work: it gets the newest model."""

    def arrived(self, state: AreaState, update: Update, view: View) -> Commands:
        yield from super().arrived(state, update, view)
        for client in view.available(view.rng.below(2)):
            if client != update.job.client:
                yield Cancel(client)
                yield from self.next(state, client, view)


@dataclass(frozen=True)
class RestlessHolder(DeFedAvg):
    """DeFedAvg, but every other result stops what a client holds, and if that was wanted asks for what comes next."""

    def arrived(self, state: DeFedAvgState, update: Update, view: View) -> Commands:
        yield from super().arrived(state, update, view)
        for client in view.available(view.rng.below(2)):
            yield Cancel(client)
            yield from hand_out(state.model, (client,), hold=True)
            if client in state.drawn:
                yield Recall(client)


ALGORITHMS: dict[str, Callable[[], Algorithm]] = {
    "area": lambda: Algorithm(AREA(size=3), Jump(lr=1.0, steps=3)),
    "fedbuff": lambda: Algorithm(FedBuff(size=2, concurrency=3), Jump(lr=1.0, steps=2)),
    "defedavg": lambda: Algorithm(DeFedAvg(sampled=3), Jump(lr=1.0, steps=3)),
    "favano": lambda: Algorithm(Favano(sampled=2, period=1.0), Jump(lr=1.0, steps=4)),
    "fedast": lambda: Algorithm(FedAST(requests=6, size=2, aggregate=AREA(size=2)), Jump(lr=1.0, steps=2)),
    "cancels": lambda: Algorithm(Restless(size=3), Jump(lr=1.0, steps=3)),
    "cancels held": lambda: Algorithm(RestlessHolder(sampled=2), Jump(lr=1.0, steps=3)),
    "kept": lambda: Algorithm(FedBuff(size=2, server=FedAvgM(0.5)), Adam(lr=1.0, steps=2, keep=True)),
    "queued": lambda: Algorithm(FedAST(requests=10, size=2), Jump(lr=1.0, steps=2)),  # without memory
}

Saved = tuple[str, dict[str, torch.Tensor]]


def freeze(state: Any) -> Saved:
    """A state written down, as a checkpoint holds it."""
    tensors = Tensors()
    text = json.dumps(dump(state, tensors), allow_nan=False)
    return text, {name: tensor.clone() for name, tensor in tensors.table.items()}


def thaw(saved: Saved) -> Any:
    return load(json.loads(saved[0]), {name: tensor.clone() for name, tensor in saved[1].items()})


def same(a: Saved, b: Saved) -> bool:
    return a[0] == b[0] and all(torch.equal(tensor, b[1][name]) for name, tensor in a[1].items())


@dataclass
class Bugs:
    """Mistakes that a schedule can be run with; each must be caught."""

    reducer: type[Reducer] = Reducer
    sessions: type[Sessions] = Sessions
    verdicts: type[Verdicts] = Verdicts
    server: type[ServerCore] = ServerCore
    core: type[ClientCore] = ClientCore
    thaw: Callable[[Any], Any] = lambda ledger: ledger  # what recovery makes of a checkpoint
    mask: type[Masking] = Masking
    helper: type[HelperCore] = HelperCore
    pairing: type[PairMasking] = PairMasking
    part: type[TakingPart] = TakingPart
    eager: bool = False  # the server takes a message and answers before it is stored

    def __post_init__(self) -> None:
        for each in fields(self):
            if isinstance(each.default, type):
                overrides(getattr(self, each.name), each.default)

    @property
    def fold(self) -> type[Reducer]:
        """The reducer with the parts that are wrong."""
        return type("Planted", (self.reducer,), {"sessions_type": self.sessions, "verdicts_type": self.verdicts})


class CrashError(Exception):
    """The process is gone."""


@dataclass
class Node:
    """A client's machine: its disk, the process on it, and what it was told."""

    name: str
    index: int
    disk: bytes | None = None
    backup: bytes | None = None
    core: ClientCore | None = None
    life: int = 0  # of the process
    cut_until: float = -1.0
    zombie: bool = False
    returned: str = ""  # the nonce on its disk when that was last put back from a backup
    rival: bool = False  # it was replaced when it had to come back itself
    left: bool = False  # on purpose: it comes back
    error: str | None = None
    training: tuple[client_side.Train, Training, float, float] | None = None  # (what, its arithmetic, start, end)

    @property
    def pending(self) -> bool:
        """Whether a result of it is under way."""
        return self.core is not None and self.core.state is not None and self.core.state.pending is not None


@dataclass
class Outcome:
    """What a schedule did, and what was wrong with it."""

    violations: list[str] = field(default_factory=list)
    fired: Counter[str] = field(default_factory=Counter)
    updates: int = 0
    entries: int = 0


class Broken:
    """One schedule."""

    problem: Any = PROBLEM

    def __init__(self, seed: int, algorithm: str = "area", bugs: Bugs | None = None, rate: float = 1.0) -> None:
        self.random, self.bugs, self.rate = random.Random(f"{seed} {algorithm}"), bugs or Bugs(), rate
        self.kind = algorithm
        made = ALGORITHMS[algorithm]()
        tasks = 2 if made.server.several else 1
        secure = made.secure
        initial = [PROBLEM.initial() + task for task in range(tasks)]
        self.plan = Plan(
            "run",
            [f"c{i}" for i in range(CLIENTS)],
            made.server,
            made.locals(tasks),
            initial if secure is None else [secure.round(x) for x in initial],
            Until(time=1e9),
            seed=seed,
            limits=Limits(lease=8.0, patience=6.0),
            personal=Personal() if seed % 4 >= 2 else None,
            secure=secure,
            federation="fed",
        )
        self.firsts = [local.remember(x) for local, x in zip(self.plan.locals, self.plan.initial, strict=True)]
        self.now, self.counter, self.heap = 0.0, itertools.count(), list[Any]()
        self.fired: Counter[str] = Counter()
        self.log: list[LogEntry] = []
        self.stored: list[float] = []  # when each of its entries was
        self.assignments: dict[int, bytes] = {}
        self.models: dict[str, bytes] = {}
        self.mirrors: dict[tuple[str, str], bytes] = {}
        self.skew = 0.0  # of the log's clock
        self.core: ServerCore | None = None
        self.server_life = 0
        self.down: list[tuple[float, float]] = []  # when the server was not there
        self.checkpoints: list[Saved] = []
        self.nodes = [Node(name, i) for i, name in enumerate(self.plan.roster)]
        self.zombies: list[Node] = []
        self.retired: set[int] = set()
        self.asks = seed % 2 == 1  # the clients evaluate
        self.witness = Witness(self.plan, self.firsts)
        self.violations = self.witness.wrong

    # Running

    def run(self) -> Outcome:
        self.later(0.0, self.boot_server)
        for node in self.nodes:
            self.later(self.random.uniform(0, 1), lambda node=node: self.boot_client(node))
        for kind in (
            lambda: self.clock_jump(-1),
            lambda: self.clock_jump(1),
            self.partition,
            self.break_client,
            self.break_disk,
            self.break_disk,
            self.restore,
            self.leave,
            self.leave,
            self.retire,
        ):
            if self.rate:
                self.later(self.random.uniform(5, CALM), kind)
        if self.rate:
            self.later(self.random.uniform(1, 8), self.break_disk)  # while numbers are small, and meet
        self.later(END, lambda: self.store("", encoding.pack("halted", {"run": "run", "reason": "end"})))
        while self.heap and self.now < END + 60 and not self.rests():
            self.now, _, action = heapq.heappop(self.heap)
            action()
        self.judge()
        return Outcome(self.violations, self.fired, self.core.ledger.tally.updates if self.core else 0, len(self.log))

    def rests(self) -> bool:
        """The run is over, everybody knows, and the last models are evaluated."""
        if self.now < END + 10 or any(node.error is None for node in self.nodes) or self.core is None:
            return False
        ledger = self.core.ledger
        return bool(ledger.stopped) and (self.asks or min(ledger.measured) >= ledger.now)

    def later(self, delay: float, action: Callable[[], Any]) -> None:
        heapq.heappush(self.heap, (self.now + delay, next(self.counter), action))

    @property
    def calm(self) -> bool:
        return self.now >= CALM

    def chance(self, what: str, probability: float) -> bool:
        """Whether this fault happens now."""
        if self.calm or self.random.random() >= probability * self.rate:
            return False
        self.fired[what] += 1
        return True

    # The network and the broker

    def carry(self, what: str, action: Callable[[], Any], node: Node | None = None) -> None:
        """Send something that may be lost, doubled or late."""
        if node is not None and self.now < node.cut_until:
            self.fired["cut off"] += 1
            return
        if self.chance(f"drop {what}", 0.05):
            return
        for copy in range(2 if self.chance(f"double {what}", 0.05) else 1):
            delay = self.random.uniform(0.001, 0.05)
            if self.chance(f"delay {what}", 0.04):
                delay = self.random.uniform(1.0, 12.0)
            self.later(delay + copy * self.random.uniform(0, 3), action)

    def store(self, sender: str, data: bytes) -> None:
        """Append to the log; the server reads it if it is there."""
        entry = LogEntry(len(self.log) + 1, self.now + self.skew, sender, data, self.keys_of(sender))
        if self.bugs.eager and self.core is not None and sender:
            life = self.server_life
            self.serve(lambda server_core: server_core.fold(entry, self.now))
            if self.core is not None and self.chance("crash between answering and storing", 0.03):
                self.crash_server()
            if self.core is None or self.server_life != life:
                return  # it answered, and was gone before the entry was stored
            self.log.append(entry)
            self.stored.append(self.now)
            return
        self.log.append(entry)
        self.stored.append(self.now)
        self.later(0.001, self.read_log)

    def keys_of(self, sender: str) -> tuple[str, str, str]:
        """The public keys with which an entry was verified."""
        return ("", "", "")

    # The server

    def boot_server(self) -> None:
        ledger = self.bugs.thaw(thaw(self.checkpoints[-1])) if self.checkpoints else None
        self.core = self.bugs.server(
            self.plan,
            ledger,
            every=5.0,
            asks=self.asks,
            wait=CLIENTS,
            inline=100 if self.kind == "fedbuff" else 1 << 17,
            reducer=self.bugs.fold,
        )
        self.server_life += 1
        for entry in self.log[self.core.ledger.position :]:
            self.core.replay(entry, self.now)
        self.serve(lambda server_core: server_core.boot(self.now))
        self.later(0.2, lambda life=self.server_life: self.tick_server(life))

    def crash_server(self) -> None:
        self.core, away = None, self.random.uniform(0.1, 8.0)
        self.down.append((self.now, self.now + away))
        self.later(away, self.boot_server)

    def serve(self, step: Callable[[ServerCore], list[server_side.Effect]]) -> None:
        """Let the server do something, and carry out what it wants, unless it crashes on the way."""
        if self.core is None:
            return
        server_core = self.core
        try:
            for effect in step(server_core):
                often = 0.04 if isinstance(effect, server_side.Put) else 0.004  # few models are large
                self.perhaps_crash("server", "before", type(effect).__name__, often)
                self.obey_server(effect)
                self.perhaps_crash("server", "after", type(effect).__name__, often)
        except CrashError:
            self.crash_server()

    def obey_server(self, effect: server_side.Effect) -> None:
        if isinstance(effect, server_side.Put):
            self.models[effect.digest] = effect.data
        elif isinstance(effect, server_side.Append):
            self.carry("append", lambda: self.store("", effect.data))
        elif isinstance(effect, server_side.Drop):
            del self.models[effect.digest]
        else:
            self.carry("assignment", lambda: self.deliver(effect.client, effect.data))

    def deliver(self, client: int, data: bytes) -> None:
        self.assignments[client] = data
        for node in [self.nodes[client], *(z for z in self.zombies if z.index == client)]:
            if self.now >= node.cut_until:
                self.act(node, lambda client_core: client_core.hear(data, self.now))

    def read_log(self) -> None:
        server_core = self.core
        if server_core is None:
            return
        for entry in self.log[server_core.ledger.position :]:
            self.serve(lambda server_core, entry=entry: server_core.fold(entry, self.now))
            if self.core is not server_core:
                return
            if entry.seq % 7 == 0:
                self.checkpoint(server_core)
            if self.core is not server_core:
                return

    def checkpoint(self, server_core: ServerCore) -> None:
        try:
            self.perhaps_crash("server", "before", "Checkpoint", 0.02)
            self.checkpoints = [*self.checkpoints[-1:], freeze(server_core.ledger)]
            self.perhaps_crash("server", "after", "Checkpoint", 0.02)
        except CrashError:
            self.crash_server()

    def tick_server(self, life: int) -> None:
        if self.core is None or life != self.server_life:
            return
        self.read_log()
        self.serve(lambda server_core: server_core.due(self.now))
        for task in self.core.next_evaluation(self.now) if self.core is not None else ():
            self.evaluate(task, life)
        self.later(0.2, lambda: self.tick_server(life))

    def evaluate(self, task: int, life: int) -> None:
        """The server evaluates a task's model, which takes it a while."""
        assert self.core is not None
        vector, when, updates, version = self.core.evaluated(task, self.now)

        def done() -> None:
            if life == self.server_life:
                right, loss = score(float(vector))
                metrics = {"accuracy": right / SAMPLES, "loss": loss / SAMPLES}
                self.serve(lambda core: [core.score(task, when, updates, version, metrics)])

        self.later(self.random.uniform(0.1, 1.0), done)

    def perhaps_crash(self, who: str, when: str, what: str, probability: float) -> None:
        if self.chance(f"{who} crash {when} {what}", probability):
            raise CrashError

    # The clients

    def boot_client(self, node: Node) -> None:
        if node.left:
            node.left, node.error = False, None
        if node.error is not None:
            return
        node.life += 1
        names = (f"{node.name}-{node.life}-{self.random.random()}-{i}" for i in itertools.count())
        how = {"mask": self.masking(node), "part": self.taking_part(node)}
        node.core = self.bugs.core("run", node.name, self.firsts, lambda: next(names), retry=0.7, beat=1.0, **how)  # type: ignore[arg-type]
        node.training = None
        self.act(node, lambda client_core: client_core.start(node.disk, self.now))
        self.look(node)
        self.later(0.3, lambda life=node.life: self.tick_client(node, life))

    def masking(self, node: Node) -> Masking | None:
        """How a client masks what it sends, if it does."""
        return None

    def taking_part(self, node: Node) -> TakingPart | None:
        """A client's part in cohorts, if it has one."""
        return None

    def look(self, node: Node) -> None:
        """A client that starts reads the assignment that the broker has."""
        if node.index in self.assignments and self.now >= node.cut_until:
            self.act(node, lambda client_core: client_core.hear(self.assignments[node.index], self.now))

    def tick_client(self, node: Node, life: int) -> None:
        if node.core is None or node.life != life:
            return
        if node.core.assignment is None:
            self.look(node)
        self.act(node, lambda client_core: client_core.tick(self.now))
        self.later(0.3, lambda: self.tick_client(node, life))

    def act(self, node: Node, step: Callable[[ClientCore], list[client_side.Effect]]) -> None:
        if node.core is None or node.error is not None:
            return
        life, before = node.life, node.core.state
        try:
            effects = step(node.core)
            self.witness.watch(node.index, node.core, before)
            for effect in effects:
                if node.life != life or node.core is None:
                    return
                self.perhaps_crash("client", "before", type(effect).__name__, 0.002)
                self.obey_client(node, effect)
                self.perhaps_crash("client", "after", type(effect).__name__, 0.002)
        except CrashError:
            self.kill(node)

    def kill(self, node: Node, within: float = 10.0) -> None:
        """The process is gone, and started again before long."""
        node.core, node.training = None, None
        node.life += 1
        if not node.zombie:
            life = node.life
            self.later(self.random.uniform(0.1, within), lambda: self.boot_client(node) if node.life == life else None)

    def obey_client(self, node: Node, effect: client_side.Effect) -> None:
        name = node.name
        match effect:
            case client_side.Save(data):
                node.backup, node.disk = node.disk, data
            case client_side.Mirror(nonce, data):
                self.carry("mirror", lambda: self.mirror(node, nonce, data), node)
            case client_side.Recover(nonce):
                self.carry("recover", lambda: self.recover(node, nonce), node)
            case client_side.Tell(data):
                if not node.zombie and self.chance("disk restored at once", 0.02):
                    self.later(self.random.uniform(2.0, 12.0), lambda: self.store(name, data))
                    self.put_back(node, node.backup, within=1.0)  # while what it has sent is under way
                    return
                self.carry("tell", lambda: self.store(name, data), node)
                if self.chance("other content", 0.02):
                    self.later(self.random.uniform(0.1, 3.0), lambda: self.contradict(name, data))
            case client_side.Sign(data):
                self.carry("sign", lambda: self.serve(lambda server_core: server_core.beat(name, data, self.now)), node)
            case client_side.Fetch(digest):
                found = self.models.get(digest)
                self.carry("fetch", lambda: self.act(node, lambda m: m.fetched(digest, found, self.now)), node)
            case client_side.Train():
                assert node.core is not None
                assert node.core.state is not None
                self.fired["job ahead"] += node.core.state.pending is not None and not effect.job.hold
                self.train(node, effect)
            case client_side.Judge(number, task, payload, memory):
                answer = self.witness.evaluate(task, payload["model"], memory)
                self.later(0.1, lambda: self.act(node, lambda m: m.judged(number, answer, self.now)))
            case client_side.Interrupt(keep):
                self.interrupt(node, keep)
            case client_side.Exit(error):
                if error and not node.zombie and node.index not in self.retired and not self.gives_way(node, error):
                    self.violations.append(f"{name} stopped at {self.now:.2f}: {error}")
                node.error = error
                if node.left:
                    self.kill(node)

    def contradict(self, name: str, data: bytes) -> None:
        """Somebody under this client's name says something else under a number that was used."""
        if any(entry.data == data for entry in self.log):
            message = encoding.unpack(data)
            if message.kind == "trained":
                header = wire.heard(message)
                parts = {part: message.vector(part) + 1 for part in message.parts}
                self.store(name, wire.say(replace(header, download=header.download + 1), parts))

    def mirror(self, node: Node, nonce: str, data: bytes) -> None:
        stored, offered = self.mirrors.get((node.name, nonce)), read_client_state(data)
        if stored is not None:  # the broker compares and sets: what was overtaken does not overwrite
            newest = read_client_state(stored)
            if newest.progress > offered.progress:
                self.fired["mirror overtaken"] += 1
                return
        self.mirrors[node.name, nonce] = data
        client_core = node.core
        if client_core is not None and client_core.mirror_of == data:
            confirmed = client_core.mirror_of
            self.carry("mirrored", lambda: self.act(node, lambda m: m.mirrored(confirmed, self.now)), node)

    def recover(self, node: Node, nonce: str) -> None:
        found = self.mirrors.get((node.name, nonce))
        if node.core is not None:
            self.witness.copied(node.index, node.core, found)
        self.act(node, lambda m: m.recovered(found, self.now))

    def train(self, node: Node, what: client_side.Train) -> None:
        job = what.job
        self.witness.train(job, what.payload)
        training = Training(self.problem, self.plan.locals[job.task], *what, self.plan.seed)
        length = self.random.uniform(0.2, 2.0) * (job.steps > 0)
        if self.chance("slow job", 0.02):
            length = self.random.uniform(9.0, 45.0)  # beyond its lease
        if self.chance("hung job", 0.015):
            length = 1e9
        node.training = (what, training, self.now, self.now + length)
        self.later(length, lambda: self.finish(node, training))

    def interrupt(self, node: Node, keep: bool) -> None:
        if node.training is None:
            return
        what, training, start, end = node.training
        if not keep:
            node.training = None
            return
        share = (self.now - start) / max(end - start, 1e-9)
        for _ in range(int(share * training.job.steps)):
            training.step()
        node.training = None
        self.later(0.0, lambda: self.report(node, what, training))

    def finish(self, node: Node, training: Training) -> None:
        if node.training is None or node.training[1] is not training:
            return
        what, node.training = node.training[0], None
        if self.chance("client crash in a job", 0.01):
            self.kill(node)
            return
        while training.step():
            pass
        self.report(node, what, training)

    def report(self, node: Node, what: client_side.Train, training: Training) -> None:
        job = training.job
        if self.chance("failed job", 0.02):
            self.act(node, lambda m: m.failed(job, "no power", self.now))
            return
        upload, memory = training.result()
        self.witness.result(job, training.steps, what.payload, what.memory, upload, memory)
        if self.chance("rubbish", 0.02):
            upload = {name: vector * float("nan") for name, vector in upload.items()}
        took = self.random.random()  # no two results are the same message
        self.act(node, lambda m: m.done(Done(job, upload, memory, training.steps, compute=took), self.now))

    # Faults that are planned

    def clock_jump(self, sign: int) -> None:
        self.fired["clock backwards" if sign < 0 else "clock forwards"] += 1
        self.skew += sign * self.random.choice([5.0, 3600.0])

    def partition(self) -> None:
        self.fired["partition"] += 1
        for node in self.random.sample(self.nodes, self.random.randint(1, CLIENTS)):
            node.cut_until = min(self.now + self.random.uniform(1.0, 15.0), CALM)

    def break_client(self) -> None:
        self.fired["client crash"] += 1
        self.kill(self.random.choice(self.nodes))

    def break_disk(self) -> None:
        """A client loses its disk; perhaps its process lives on somewhere; perhaps it happens again at once."""
        node = self.random.choice(self.nodes)
        self.fired["disk lost"] += 1
        node = self.haunt(node)
        self.lose_disk(node)
        if self.random.random() < 0.5:
            self.fired["disk lost twice"] += 1
            self.later(self.random.uniform(0.5, 6.0), lambda: self.lose_disk(self.nodes[node.index]))

    def haunt(self, node: Node) -> Node:
        """Perhaps the machine that is replaced is still running, cut off for a while; gives the new machine."""
        state = node.core.state if node.core else None
        if state is None or not state.accepted or self.random.random() > 0.9:
            return node
        self.fired["zombie"] += 1
        node.rival = state.nonce == node.returned
        node.zombie, node.cut_until = True, self.now + self.random.uniform(0, 8)
        self.zombies.append(node)
        self.nodes[node.index] = Node(node.name, node.index, node.disk, life=1000 * len(self.zombies))
        return self.nodes[node.index]

    def gives_way(self, node: Node, error: str) -> bool:
        """Whether a machine stops for the one that it replaced: if the old one has to come back under a new epoch, too,
        because its disk was put back from a backup, either may be first. The other is the client from then on."""
        if node.core is None or node.core.state is None or node.core.assignment is None:
            return False
        rivals = [each for each in self.zombies if each.index == node.index and each.rival and each.disk is not None]
        for rival in rivals:
            nonce = read_client_state(rival.disk or b"").nonce
            if error.startswith("fenced") and nonce == node.core.assignment.nonce:
                self.fired["replaced machine came back first"] += 1
                self.witness.lost.add(node.core.state.nonce)
                self.zombies[self.zombies.index(rival)], self.nodes[node.index] = node, rival
                node.zombie, rival.zombie, rival.rival = True, False, False
                if rival.core is None:
                    self.kill(rival)
                return True
        return False

    def leave(self) -> None:
        """A client goes on purpose, and comes back."""
        node = self.random.choice([node for node in self.nodes if node.pending] or self.nodes)
        if node.core is not None and node.error is None:
            self.fired["left"] += 1
            node.left = True
            self.act(node, lambda m: m.leave(self.now))

    def retire(self) -> None:
        """In some schedules, the server's administrator sends a client away for good."""
        if self.core is None or not self.core.ledger.begun or self.random.random() > 0.3:
            return
        self.fired["retired"] += 1
        client = self.random.randrange(CLIENTS)
        self.retired.add(client)
        self.store("", wire.say(wire.Removed("run", client)))

    def lose_disk(self, node: Node) -> None:
        if node.disk is not None:
            self.witness.lost.add(read_client_state(node.disk).nonce)
        node.disk = None
        self.kill(node)

    def restore(self) -> None:
        """An administrator takes a backup of a disk, and puts it back later."""
        index = self.random.randrange(CLIENTS)
        old = self.nodes[index].disk
        self.later(self.random.uniform(1.0, 10.0), lambda: self.put_back(self.nodes[index], old))

    def put_back(self, node: Node, old: bytes | None, within: float = 10.0) -> None:
        if any(zombie.index == node.index and zombie.core is not None for zombie in self.zombies):
            return  # two processes under one name: one of them would be right to stop
        if old is None or node.disk is None or read_client_state(old).nonce != read_client_state(node.disk).nonce:
            return  # from before a disk was lost: its client would be right to stop, too
        self.fired["disk restored"] += 1
        self.witness.lost.add(read_client_state(node.disk).nonce)
        node.disk, node.returned = old, read_client_state(old).nonce
        self.kill(node, within)

    # What must hold

    def judge(self) -> None:
        if self.core is None:
            self.violations.append("the server is not there at the end")
            return
        self.fired["cancelled"] += self.core.ledger.tally.cancelled
        self.fired["crossed a cancellation"] += self.core.ledger.tally.refused.get("cancelled", 0)
        fold = self.witness.judge(self.log, self.stored, CALM + RECOVERY, self.down, self.bugs.fold)
        if not same(freeze(fold.ledger), freeze(self.core.ledger)):
            self.violations.append("the log folded again gives another state")
        self.judge_progress(fold)
        self.judge_memory(fold)

    def judge_progress(self, fold: Fold) -> None:
        ledger = fold.ledger
        if ledger.stopped != "end":
            self.violations.append(f"the run is not over: {ledger.stopped!r}")
        last = {row.client: row.number for row in fold.rows if row.event == "Arrived"}
        for node in self.nodes:
            if node.index in self.retired:
                continue
            state = node.core.state if node.core else None
            if node.error is None or state is None or state.pending is not None:
                self.violations.append(f"{node.name} has not come to rest: {node.error}")
            if last.get(node.index, -1) <= fold.calm_events:
                self.violations.append(f"{node.name} did nothing after the faults had stopped")
        for task, model in enumerate(self.plan.server.models(ledger.server)):
            if model.version not in [each.version for each in fold.measurements if each.task == task]:
                self.violations.append(f"the last model of task {task} was not evaluated")

    def judge_memory(self, fold: Fold) -> None:
        """Clients remember what they have had applied; and AREA: mean(y_i) = x + u, exactly."""
        for node in self.nodes:
            state = node.core.state if node.core else None
            for task, memory in state.memory.items() if state and node.index not in self.retired else ():
                if content(memory) != fold.remembered(node.index, task):
                    self.violations.append(f"{node.name} remembers {memory}, not {fold.remembered(node.index, task)}")
        if self.kind in ("area", "cancels"):
            state = fold.ledger.server
            members = [client for client in range(CLIENTS) if not fold.ledger.clients[client].removed]
            mean = sum(fold.remembered(client, 0)[0][1][0] for client in members) / len(members)
            exact = 0.0 if len(members) == CLIENTS else 1e-9  # thirds are not
            if abs(mean - float(state.model.vector + state.u)) > exact * max(1.0, abs(mean)):
                self.violations.append(f"mean of y is {mean}, x + u is {float(state.model.vector + state.u)}")
