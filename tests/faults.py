"""A world that breaks: the real server and client classes over a stub clock, network and disks, all from one seed.

The broker keeps what it has stored (the log, assignments, models, sealed copies), as a broker that syncs does.
Everything else fails: messages are lost, doubled and delayed past each other; the server and the clients crash before
and after each thing that they write or send; disks are lost, also twice in a row, or restored from an old backup, while
the old process perhaps lives on; clients are cut off; the log's clock jumps; clients send rubbish. At `CALM` the faults
stop, and everything has to come right.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from worlds import Line

from offbeat.algorithms import AREA, DeFedAvg, Favano, FedAST, FedBuff
from offbeat.core.course import Until
from offbeat.core.events import Job
from offbeat.core.local import Carry, Local, Work
from offbeat.core.random import below, bits
from offbeat.core.server import Algorithm
from offbeat.core.state import Tensors, dump, load
from offbeat.core.vectors import Payload
from offbeat.core.watcher import EventRow, Measurement
from offbeat.deploy import effects as client_side, server_core as server_side, wire
from offbeat.deploy.admission import APPLIED, Limits
from offbeat.deploy.client_core import ClientCore
from offbeat.deploy.client_state import read_client_state
from offbeat.deploy.effects import Done
from offbeat.deploy.plan import Plan
from offbeat.deploy.reducer import LogEntry, Reducer
from offbeat.deploy.server_core import ServerCore
from offbeat.deploy.train import Training

CLIENTS = 4  # a power of two: every number below is exact in double precision
CALM, END = 60.0, 130.0  # when the faults stop, when the run is ended
PROBLEM = Line([1.0, 2.0, 3.0, 4.0])


@dataclass(frozen=True)
class Jump(Local):
    """Steps to whole numbers that depend on the model and on the job's own draws: no rounding anywhere."""

    def step(self, carry: Carry, work: Work) -> Carry:
        keys = torch.from_numpy(np.asarray(work.keys, dtype=np.int64)).view(-1, 1)
        z = below(bits(keys, torch.tensor([[work.step]])), 17) - 8
        return {"w": torch.floor(carry["w"]) + z.double()}


ALGORITHMS: dict[str, Callable[[], Algorithm]] = {
    "area": lambda: Algorithm(AREA(size=3), Jump(lr=1.0, steps=3)),
    "fedbuff": lambda: Algorithm(FedBuff(size=2, concurrency=3), Jump(lr=1.0, steps=2)),
    "defedavg": lambda: Algorithm(DeFedAvg(sampled=3), Jump(lr=1.0, steps=3)),
    "favano": lambda: Algorithm(Favano(sampled=2, period=3.0), Jump(lr=1.0, steps=4)),
    "fedast": lambda: Algorithm(FedAST(requests=6, size=2, aggregate=AREA(size=2)), Jump(lr=1.0, steps=2)),
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
    core: type[ClientCore] = ClientCore
    thaw: Callable[[Any], Any] = lambda ledger: ledger  # what recovery makes of a checkpoint
    eager: bool = False  # the server takes a message and answers before it is stored


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
    error: str | None = None
    training: tuple[Training, float, float] | None = None  # (job, start, end)


class Rows:
    """Watches a fold."""

    def __init__(self) -> None:
        self.rows: list[EventRow] = []

    def event(self, row: EventRow) -> None:
        self.rows.append(row)

    def measured(self, measurement: Measurement) -> None:
        pass


@dataclass
class Outcome:
    """What a schedule did, and what was wrong with it."""

    violations: list[str] = field(default_factory=list)
    fired: Counter[str] = field(default_factory=Counter)
    updates: int = 0
    entries: int = 0


class Broken:
    """One schedule."""

    def __init__(self, seed: int, algorithm: str = "area", bugs: Bugs | None = None, rate: float = 1.0) -> None:
        self.random, self.bugs, self.rate = random.Random(f"{seed} {algorithm}"), bugs or Bugs(), rate
        self.kind = algorithm
        made = ALGORITHMS[algorithm]()
        tasks = 2 if algorithm == "fedast" else 1
        self.plan = Plan(
            "run",
            [f"c{i}" for i in range(CLIENTS)],
            made.server,
            made.locals(tasks),
            [PROBLEM.initial() + task for task in range(tasks)],
            Until(time=1e9),
            seed=seed,
            limits=Limits(lease=8.0, patience=6.0),
        )
        self.firsts = [local.remember(x) for local, x in zip(self.plan.locals, self.plan.initial, strict=True)]
        self.now, self.counter, self.heap = 0.0, itertools.count(), list[Any]()
        self.fired: Counter[str] = Counter()
        self.log: list[LogEntry] = []
        self.assignments: dict[int, bytes] = {}
        self.models: dict[str, bytes] = {}
        self.mirrors: dict[tuple[str, str], bytes] = {}
        self.skew = 0.0  # of the log's clock
        self.core: ServerCore | None = None
        self.server_life = 0
        self.checkpoints: list[Saved] = []
        self.nodes = [Node(name, i) for i, name in enumerate(self.plan.roster)]
        self.zombies: list[Node] = []
        self.acknowledged: set[tuple[int, str, int]] = set()  # (client, nonce, seq) that a client saw applied
        self.lost_lives: set[str] = set()  # nonces whose disks were lost
        self.trained: Counter[tuple[int, int]] = Counter()
        self.violations: list[str] = []

    # Running

    def run(self) -> Outcome:
        self.later(0.0, self.boot_server)
        for node in self.nodes:
            self.later(self.random.uniform(0, 1), lambda node=node: self.boot_client(node))
        for kind in (
            self.clock_jump,
            self.partition,
            self.break_client,
            self.break_disk,
            self.break_disk,
            self.restore,
            self.restore,
        ):
            self.later(self.random.uniform(2, CALM), kind)
        self.later(END, lambda: self.store("", wire.pack("halted", {"run": "run", "reason": "end"})))
        while self.heap and self.now < END + 60:
            self.now, _, action = heapq.heappop(self.heap)
            action()
        self.judge()
        return Outcome(self.violations, self.fired, self.core.ledger.tally.updates if self.core else 0, len(self.log))

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
        entry = LogEntry(len(self.log) + 1, self.now + self.skew, sender, data)
        if self.bugs.eager and self.core is not None and sender:
            life = self.server_life
            self.serve(lambda server_core: server_core.fold(entry, self.now))
            if self.core is not None and self.chance("crash between answering and storing", 0.01):
                self.core = None
                self.later(self.random.uniform(0.1, 8.0), self.boot_server)
            if self.core is None or self.server_life != life:
                return  # it answered, and was gone before the entry was stored
            self.log.append(entry)
            return
        self.log.append(entry)
        self.later(0.001, self.read_log)

    # The server

    def boot_server(self) -> None:
        ledger = self.bugs.thaw(thaw(self.checkpoints[-1])) if self.checkpoints else None
        self.core = ServerCore(
            self.plan,
            ledger,
            wait=CLIENTS,
            inline=100 if self.kind == "fedbuff" else 1 << 17,
            reducer=self.bugs.reducer,
        )
        self.server_life += 1
        for entry in self.log[self.core.ledger.position :]:
            self.core.replay(entry, self.now)
        self.serve(lambda server_core: server_core.boot(self.now))
        self.later(0.2, lambda life=self.server_life: self.tick_server(life))

    def serve(self, step: Callable[[ServerCore], list[server_side.Effect]]) -> None:
        """Let the server do something, and carry out what it wants, unless it crashes on the way."""
        if self.core is None:
            return
        server_core = self.core
        try:
            for effect in step(server_core):
                self.perhaps_crash("server", "before", type(effect).__name__, 0.004)
                self.obey_server(effect)
                self.perhaps_crash("server", "after", type(effect).__name__, 0.004)
        except CrashError:
            self.core = None
            self.later(self.random.uniform(0.1, 8.0), self.boot_server)

    def obey_server(self, effect: server_side.Effect) -> None:
        if isinstance(effect, server_side.Put):
            self.models[effect.digest] = effect.data
        elif isinstance(effect, server_side.Append):
            self.carry("append", lambda: self.store("", effect.data))
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
            self.core = None
            self.later(self.random.uniform(0.1, 8.0), self.boot_server)

    def tick_server(self, life: int) -> None:
        if self.core is None or life != self.server_life:
            return
        self.read_log()
        self.serve(lambda server_core: server_core.due(self.now))
        self.later(0.2, lambda: self.tick_server(life))

    def perhaps_crash(self, who: str, when: str, what: str, probability: float) -> None:
        if self.chance(f"{who} crash {when} {what}", probability):
            raise CrashError

    # The clients

    def boot_client(self, node: Node) -> None:
        if node.error is not None:
            return
        node.life += 1
        names = (f"{node.name}-{node.life}-{self.random.random()}-{i}" for i in itertools.count())
        node.core = self.bugs.core("run", node.name, self.firsts, lambda: next(names), retry=0.7, beat=1.0)
        node.training = None
        self.act(node, lambda client_core: client_core.start(node.disk, self.now))
        self.look(node)
        self.later(0.3, lambda life=node.life: self.tick_client(node, life))

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
            self.watch(node, before)
            for effect in effects:
                if node.life != life or node.core is None:
                    return
                self.perhaps_crash("client", "before", type(effect).__name__, 0.002)
                self.obey_client(node, effect)
                self.perhaps_crash("client", "after", type(effect).__name__, 0.002)
        except CrashError:
            self.kill(node)

    def watch(self, node: Node, before: Any) -> None:
        """Note what this client has come to know as applied."""
        client_core = node.core
        if client_core is None or client_core.assignment is None or before is None or before.pending is None:
            return
        pending, assignment = before.pending, client_core.assignment
        resolved = client_core.state is not before and (
            client_core.state is None or client_core.state.pending is not pending
        )
        if resolved and assignment.last == (pending.epoch, pending.seq) and assignment.verdict == APPLIED:
            self.acknowledged.add((node.index, assignment.nonce, pending.seq))

    def kill(self, node: Node) -> None:
        node.core, node.training = None, None
        node.life += 1
        if not node.zombie:
            life = node.life
            self.later(self.random.uniform(0.1, 10.0), lambda: self.boot_client(node) if node.life == life else None)

    def obey_client(self, node: Node, effect: client_side.Effect) -> None:
        name = node.name
        match effect:
            case client_side.Save(data):
                node.disk = data
            case client_side.Mirror(nonce, data):
                self.carry("mirror", lambda: self.mirror(node, nonce, data), node)
            case client_side.Recover(nonce):
                self.carry("recover", lambda: self.recover(node, nonce), node)
            case client_side.Tell(data):
                self.carry("tell", lambda: self.store(name, data), node)
            case client_side.Sign(data):
                self.carry("sign", lambda: self.serve(lambda server_core: server_core.beat(name, data, self.now)), node)
            case client_side.Fetch(digest):
                found = self.models.get(digest)
                self.carry("fetch", lambda: self.act(node, lambda m: m.fetched(digest, found, self.now)), node)
            case client_side.Train(job, payload, memory):
                self.train(node, job, payload, memory)
            case client_side.Interrupt(keep):
                self.interrupt(node, keep)
            case client_side.Exit(error):
                if error and not node.zombie:
                    self.violations.append(f"{name} stopped at {self.now:.2f}: {error}")
                node.error = error

    def mirror(self, node: Node, nonce: str, data: bytes) -> None:
        stored, offered = self.mirrors.get((node.name, nonce)), read_client_state(data)
        if stored is not None:  # the broker compares and sets: what was overtaken does not overwrite
            newest = read_client_state(stored)
            if (newest.seq, newest.settled) > (offered.seq, offered.settled):
                self.fired["mirror overtaken"] += 1
                return
        self.mirrors[node.name, nonce] = data
        client_core = node.core
        if client_core is not None and client_core.mirror_of == data:
            confirmed = client_core.mirror_of
            self.carry("mirrored", lambda: self.act(node, lambda m: m.mirrored(confirmed, self.now)), node)

    def recover(self, node: Node, nonce: str) -> None:
        found = self.mirrors.get((node.name, nonce))
        client_core = node.core
        if found is not None and client_core is not None and client_core.assignment is not None:
            pending = read_client_state(found).pending  # its verdict is heard on the copy's behalf
            assignment = client_core.assignment
            if (
                pending is not None
                and assignment.last == (pending.epoch, pending.seq)
                and assignment.verdict == APPLIED
            ):
                self.acknowledged.add((node.index, assignment.nonce, pending.seq))
        self.act(node, lambda m: m.recovered(found, self.now))

    def train(self, node: Node, job: Job, payload: Payload, memory: Payload) -> None:
        self.trained[job.client, job.number] += 1
        training = Training(PROBLEM, self.plan.locals[job.task], job, payload, memory, self.plan.seed)
        length = self.random.uniform(0.2, 2.0) * (job.steps > 0)
        if self.chance("slow job", 0.02):
            length = self.random.uniform(9.0, 15.0)  # beyond its lease
        node.training = (training, self.now, self.now + length)
        self.later(length, lambda: self.finish(node, training))

    def interrupt(self, node: Node, keep: bool) -> None:
        if node.training is None:
            return
        training, start, end = node.training
        if not keep:
            node.training = None
            return
        share = (self.now - start) / max(end - start, 1e-9)
        for _ in range(int(share * training.job.steps)):
            training.step()
        node.training = None
        self.later(0.0, lambda: self.report(node, training))

    def finish(self, node: Node, training: Training) -> None:
        if node.training is None or node.training[0] is not training:
            return
        node.training = None
        if self.chance("client crash in a job", 0.01):
            self.kill(node)
            return
        while training.step():
            pass
        self.report(node, training)

    def report(self, node: Node, training: Training) -> None:
        job = training.job
        if self.chance("failed job", 0.02):
            self.act(node, lambda m: m.failed(job, "no power", self.now))
            return
        upload, memory = training.result()
        if self.chance("rubbish", 0.02):
            upload = {name: vector * float("nan") for name, vector in upload.items()}
        self.act(node, lambda m: m.done(Done(job, upload, memory, training.steps), self.now))

    # Faults that are planned

    def clock_jump(self) -> None:
        jump = self.random.choice([-3600.0, -5.0, 5.0, 3600.0])
        self.fired["clock backwards" if jump < 0 else "clock forwards"] += 1
        self.skew += jump

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
        if state is None or not state.accepted or self.random.random() > 0.6:
            return node
        self.fired["zombie"] += 1
        node.zombie, node.cut_until = True, self.now + self.random.uniform(0, 20)
        self.zombies.append(node)
        self.nodes[node.index] = Node(node.name, node.index, node.disk, life=1000 * len(self.zombies))
        return self.nodes[node.index]

    def lose_disk(self, node: Node) -> None:
        if node.disk is not None:
            self.lost_lives.add(read_client_state(node.disk).nonce)
        node.disk = None
        self.kill(node)

    def restore(self) -> None:
        """An administrator puts back yesterday's disk."""
        index = self.random.randrange(CLIENTS)
        old = self.nodes[index].disk

        def put_back() -> None:
            node = self.nodes[index]
            if any(zombie.index == index and zombie.core is not None for zombie in self.zombies):
                return  # two processes under one name: one of them would be right to stop
            if old is None or node.disk is None or read_client_state(old).nonce != read_client_state(node.disk).nonce:
                return  # from before a disk was lost: its client would be right to stop, too
            self.fired["disk restored"] += 1
            self.lost_lives.add(read_client_state(node.disk).nonce)
            node.disk = old
            self.kill(node)

        self.later(self.random.uniform(1.0, 10.0), put_back)

    # What must hold

    def judge(self) -> None:
        if self.core is None:
            self.violations.append("the server is not there at the end")
            return
        rows = Rows()
        fresh = self.bugs.reducer(self.plan, None, [rows])
        applied: Counter[tuple[int, str, int]] = Counter()
        for entry in self.log:
            if fresh.fold(entry) == APPLIED and entry.sender:
                header = wire.unpack(entry.data).header
                client = fresh.index[entry.sender]
                applied[client, fresh.ledger.clients[client].nonce, header["seq"]] += 1
        if not same(freeze(fresh.ledger), freeze(self.core.ledger)):
            self.violations.append("the log folded again gives another state")
        self.judge_counts(applied, rows.rows)
        self.judge_progress(rows.rows)
        if self.kind == "area":
            self.judge_invariant()

    def judge_counts(self, applied: Counter[tuple[int, str, int]], rows: list[EventRow]) -> None:
        if any(count > 1 for count in applied.values()):
            self.violations.append("a message was applied twice")
        arrived = Counter(row.job for row in rows if row.event == "Arrived")
        if any(count > 1 for count in arrived.values()):
            self.violations.append("a job arrived twice")
        ended = Counter(row.job for row in rows if row.event in ("Arrived", "Lost"))
        if any(count > 1 for count in ended.values()):
            self.violations.append("a job ended twice")
        for extra in self.acknowledged - set(applied):
            self.violations.append(f"{extra} was acknowledged and not applied")
        for client, nonce, seq in set(applied) - self.acknowledged:
            if nonce not in self.lost_lives:
                self.violations.append(f"{(client, nonce, seq)} was applied and not acknowledged")
        versions = [row.version for row in rows if row.task == 0]
        if versions != sorted(versions):
            self.violations.append("versions went back")
        numbers = [record.number for record in self.core.ledger.clients] if self.core else []
        for (client, number), _ in self.trained.items():
            if number >= numbers[client]:
                self.violations.append(f"client {client} trained job {number}, which the server does not know")

    def judge_progress(self, rows: list[EventRow]) -> None:
        ledger = self.core.ledger if self.core else None
        assert ledger is not None
        if ledger.stopped != "end":
            self.violations.append(f"the run is not over: {ledger.stopped!r}")
        last = {row.client: row.number for row in rows if row.event == "Arrived"}
        halfway = self.calm_event(rows)
        for node in self.nodes:
            state = node.core.state if node.core else None
            if node.error is None or state is None or state.pending is not None:
                self.violations.append(f"{node.name} has not come to rest: {node.error}")
            if last.get(node.index, -1) < halfway:
                self.violations.append(f"{node.name} did nothing after the faults had stopped")

    def calm_event(self, rows: list[EventRow]) -> int:
        """The number of the first event after the faults have stopped, and some time to recover."""
        fresh = self.bugs.reducer(self.plan)
        for entry in self.log:
            if entry.stamp - self.skew > CALM + 20:  # no clock jumps by then
                return fresh.ledger.events
            fresh.fold(entry)
        return len(rows)

    def judge_invariant(self) -> None:
        """AREA: mean(y_i) = x + u, exactly."""
        assert self.core is not None
        state, clients = self.core.ledger.server, self.core.ledger.clients
        total = torch.zeros(1, dtype=torch.float64)
        for node, record in zip(self.nodes, clients, strict=True):
            if record.epoch == 0:
                total += self.firsts[0]["y"]
                continue
            kept = node.core.state if node.core else None
            if kept is None:
                return  # said already
            total += kept.memory[0]["y"]
        if not torch.equal(total / CLIENTS, state.model.vector + state.u):
            self.violations.append(
                f"mean of y is {float(total) / CLIENTS}, x + u is {float(state.model.vector + state.u)}"
            )
