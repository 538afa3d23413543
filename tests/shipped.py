"""What ships, in a world that breaks: two `RunServer`s, four `Participant`s with their `RunClient`s, and what is below
them down to the connection, over a stub broker in virtual time, all from one seed.

The broker loses, doubles and delays messages, breaks connections, is restarted, drops records of the log and its end,
and shows old assignments and boards. Servers and clients are killed before and after whatever they send or write;
the leading server is paused; clocks of machines are wrong. Clients' disks are lost, restored and cloned, they leave,
come back, are enrolled and removed, send rubbish and hang. Large updates and models travel in pieces, and in every
third schedule the log is trimmed. After `Shipped.faults` seconds the faults stop, and everything has to come right.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import random
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from faults import ALGORITHMS, freeze, same
from plants import armed, overrides
from stub_broker import Broker, Fate, Stored, StubClient
from virtual import Halt, KilledError, Pool, Process, VirtualLoop, current, simulated
from witness import SAMPLES, Fold, Witness, content, score
from worlds import Line

from offbeat.core.until import Until
from offbeat.core.vectors import Payload, Vector
from offbeat.deploy import (
    client as client_module,
    connection,
    doctor,
    identity,
    journal,
    keys,
    questions,
    server as server_module,
    wire,
)
from offbeat.deploy.admission import Limits
from offbeat.deploy.board import Board, write_board
from offbeat.deploy.client import Party
from offbeat.deploy.client_core import ClientCore
from offbeat.deploy.client_state import read_client_state
from offbeat.deploy.disk import Disk, newest, slots
from offbeat.deploy.effects import Effect, Train
from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.envelope import Ours
from offbeat.deploy.gate import Gate, Parts
from offbeat.deploy.journal import BrokenLogError, Chain, LogAudit, Record, Scribe, Tail, body_of
from offbeat.deploy.link import Link
from offbeat.deploy.mending import NAME
from offbeat.deploy.plan import Plan
from offbeat.deploy.reducer import Reducer
from offbeat.deploy.roll import members_of
from offbeat.deploy.server import RunServer
from offbeat.deploy.server_core import ServerCore
from offbeat.deploy.train import Training
from offbeat.deploy.wire import LogEntry
from offbeat.experiment.joining import Participant
from offbeat.simulate.personal import Personal
from offbeat.watch import checkpoint

CLIENTS = 4
LAST = 130.0  # when everything has to be over
RECOVERY = 20.0
DRIFT = 1e-3  # seconds by which the log's time may be off
URL = "nats://broker:4222"


@cache
def federation(changes: str = "") -> Path:
    """Keys for everybody, the same every time. changes: "+" for a client that is added, a digit for one removed."""
    folder = Path(tempfile.mkdtemp(prefix="offbeat-faults-")) / "fed"
    atexit.register(shutil.rmtree, folder.parent, ignore_errors=True)
    known = random.Random(f"keys {changes}")
    with connection_keys(known), mock.patch.object(keys.secrets, "token_bytes", known.randbytes):
        if not changes:
            keys.init(folder, [f"c{i}" for i in range(CLIENTS)], tls=False)
            return folder
        shutil.copytree(federation(changes[:-1]), folder)
        if changes[-1] == "+":
            keys.add(folder, [f"c{CLIENTS}"])
        else:
            keys.remove(folder, [f"c{changes[-1]}"])
    return folder


def connection_keys(known: random.Random) -> Any:
    """NKeys that follow from the seed, too."""
    kind = keys.jwt.Ed25519PrivateKey
    return mock.patch.object(kind, "generate", side_effect=lambda: kind.from_private_bytes(known.randbytes(32)))


@dataclass
class Mistake:
    """Something wrong to run a schedule with. patches: (object, name, what stands there instead)."""

    patches: Sequence[tuple[Any, str, Any]] = ()
    reducer: type[Reducer] = Reducer
    server: type[ServerCore] = ServerCore
    core: type[ClientCore] = ClientCore

    def __post_init__(self) -> None:
        for patch in self.patches:
            armed(*patch)
        for plant, base in ((self.reducer, Reducer), (self.server, ServerCore), (self.core, ClientCore)):
            overrides(plant, base)


@dataclass
class Node:
    """A client's machine: the folder on its disk, and the process on it."""

    name: str
    index: int
    folder: Path
    process: Process | None = None
    core: ClientCore | None = None
    leaving: asyncio.Event | None = None
    ended: str | None = None  # how its process ended by itself
    clone: bool = False

    @property
    def seen(self) -> bool:
        """Whether it has ever read a board, by what its disk holds: one that has not takes an old one, too."""
        return self.state() is not None or any(self.folder.rglob("board.serial"))

    def state(self) -> Any:
        """What its disk holds."""
        found = newest(slots(self.folder / "fed" / self.name, "run"))[1]
        return None if found is None else read_client_state(found)


@dataclass
class Host:
    """A server's machine."""

    name: str
    folder: Path
    process: Process | None = None
    server: RunServer | None = None
    skew: float = 0.0
    ended: bool = False


@dataclass
class Outcome:
    """What a schedule did, and what was wrong with it."""

    violations: list[str]
    fired: Counter[str]
    updates: int
    entries: int


class Unkind(Fate):
    """What becomes of messages, as a schedule wants it."""

    def __init__(self, world: Shipped) -> None:
        self.world = world

    def delays(self, what: str, client: StubClient) -> list[float]:
        world, random = self.world, self.world.random
        near = random.uniform(0.001, 0.02)
        if what.startswith("answer to"):
            what = "answer"
        if world.chance(f"lost {what}", 0.01):
            return []
        if world.chance(f"late {what}", 0.01):
            return [random.uniform(0.3, 8.0)]
        if world.chance(f"doubled {what}", 0.01):
            return [near, near + random.uniform(0.0, 3.0)]
        return [near]

    def around(self, what: str) -> None:
        process = current()
        who = "server" if process.name.startswith("server") else "client"
        if process.name != "admin" and self.world.chance(f"{who} killed {what}", 0.001):
            process.kill()
            raise KilledError

    def answer(self, client: StubClient, found: Stored | None, history: list[Stored]) -> Stored | None:
        world = self.world
        if found is None or not client.account:
            return found
        node = world.node_of(client)
        kind = found.subject.split(".")[0]
        if kind == "board" and node is not None and not node.seen:
            return found
        if history and world.chance(f"old {kind}", 0.15 if kind == "board" else 0.05):
            return world.random.choice(history)
        return found

    def forgotten(self) -> float:
        return self.world.random.uniform(0.0, 1.0)


class Shipped:
    """One schedule. faults: seconds until they stop.   end: of the run."""

    faults, end = 25.0, 60.0

    def __init__(self, seed: int, algorithm: str = "area", mistake: Mistake | None = None, rate: float = 1.0) -> None:
        self.seed, self.kind, self.mistake, self.rate = seed, algorithm, mistake or Mistake(), rate
        made = ALGORITHMS[algorithm]()
        tasks = 2 if made.server.several else 1
        self.pieces = algorithm in ("fedbuff", "area")
        dim = 300 if self.pieces else 1
        self.problems = [Line([1.0, 2.0, 3.0, 4.0, 5.0], float(task), dim=dim) for task in range(tasks)]
        self.asks, self.trim = seed % 2 == 1, seed % 3 == 0
        self.plan = Plan(
            "run",
            [f"c{i}" for i in range(CLIENTS)],
            made.server,
            made.locals(tasks),
            [problem.initial() for problem in self.problems],
            Until(time=self.end),
            seed=seed,
            limits=Limits(lease=8.0, patience=6.0),
            personal=Personal() if seed % 4 >= 2 else None,
        )
        self.firsts = [local.remember(x) for local, x in zip(self.plan.locals, self.plan.initial, strict=True)]
        self.fired: Counter[str] = Counter()
        self.witness = Witness(self.plan, self.firsts, late=45.0)
        self.violations = self.witness.wrong
        self.retired = self.witness.gone
        self.fed, self.changes = federation(), ""
        self.roster = identity.read_roster(federation())
        self.server_creds = identity.read_creds(federation() / identity.SERVER)
        self.clones: list[Node] = []
        self.made: dict[bytes, float] = {}  # digest of a record -> when a server made it
        self.broken: list[tuple[str, str]] = []  # servers that gave up because a record was missing

    # Running

    def run(self) -> Outcome:
        root = Path(tempfile.mkdtemp(prefix="offbeat-schedule-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        try:
            with simulated(f"{self.seed} {self.kind}") as (loop, self.random), self._patched():
                return self._run(loop, root)
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def _run(self, loop: VirtualLoop, root: Path) -> Outcome:
        self.loop, self.root = loop, root
        size = 4096 + 1400 if self.pieces else 1 << 20
        self.broker = Broker(loop, self.server_creds.account, Unkind(self), size)
        self.hosts = [Host(f"server{i}", root / f"server{i}") for i in range(2)]
        self.nodes = [Node(f"c{i}", i, root / f"c{i}") for i in range(CLIENTS)]
        past = write_board(self.server_creds, Board(1, {"past": self.charter("past")}))
        self.broker.history["board"].append(Stored(0, "board", past, 0.0))
        try:
            loop.run_until_complete(self._main())
        except RuntimeError as error:
            self.violations.append(f"busy without end at {loop.now:.2f}: {error}")
        self.judge()
        fold_entries = len(self.broker.streams["LOG-run"].archive) if "LOG-run" in self.broker.streams else 0
        for process in self.processes:
            process.kill()
        return Outcome(self.violations, self.fired, self.updates, fold_entries)

    async def _main(self) -> None:
        loop = self.loop
        loop.call_later(0.0, self.boot_server, self.hosts[0])
        loop.call_later(1.5, self.boot_server, self.hosts[1])
        for node in self.nodes:
            loop.call_later(self.random.uniform(0.5, 2.0), self.boot_client, node)
        if self.rate:
            for kind, times in self.planned().items():
                for _ in range(times):
                    loop.call_later(self.random.uniform(4.0, self.faults), kind)
        while loop.now < LAST and not self.rests():
            await asyncio.sleep(0.5)

    def planned(self) -> Mapping[Callable[[], None], int]:
        """How often each fault is planned in one schedule."""
        return {
            self.restart_broker: 1,
            self.cut: 3,
            self.kill_server: 2,
            self.pause_server: 2,
            self.cut_leader: 1,
            self.hold_leader: 1,
            self.skew: 2,
            self.hole: 1,
            self.kill_client: 2,
            self.lose_disk: 2,
            self.clone: 1,
            self.restore: 1,
            self.leave: 1,
            self.enrol: 1,
            self.remove: 1,
            self.rubbish: 1,
        }

    def rests(self) -> bool:
        """Everybody has gone home."""
        there = [node for node in self.nodes if node.index not in self.retired]
        return all(host.ended for host in self.hosts) and all(node.ended is not None for node in there)

    @property
    def calm(self) -> bool:
        return self.loop.now >= self.faults

    def chance(self, what: str, probability: float) -> bool:
        """Whether this fault happens now."""
        if self.calm or self.random.random() >= probability * self.rate:
            return False
        self.fired[what] += 1
        return True

    # What stands for disks, processors and the network

    @contextlib.contextmanager
    def _patched(self) -> Iterator[None]:
        world = self
        self.processes: list[Process] = []

        class WatchedCore(self.mistake.core):  # type: ignore[misc, name-defined]
            """Lets the witness see what a client hears."""

            def __init__(self, run: str, client: str, *given: Any, **options: Any) -> None:
                super().__init__(run, client, *given, **options)
                self.index = int(client[1:])
                node = world.node_at(current())
                if node is not None:
                    node.core = self

        def watched(name: str) -> Any:
            def call(core: Any, *given: Any) -> list[Effect]:
                if name == "recovered":
                    world.witness.copied(core.index, core, given[0])
                before = core.state
                found = getattr(world.mistake.core, name)(core, *given)
                world.witness.watch(core.index, core, before)
                pending = core.state is not None and core.state.pending is not None
                ahead = [each for each in found if isinstance(each, Train) and pending and not each.job.hold]
                world.fired["job ahead"] += len(ahead)
                return found  # type: ignore[no-any-return]

            return call

        for name in ("hear", "mirrored", "recovered", "fetched", "done", "failed", "judged", "tick"):
            setattr(WatchedCore, name, watched(name))

        class WatchedTraining(Training):
            """Lets the witness see what a client computes."""

            def __init__(
                self, problem: Any, local: Any, job: Any, payload: Payload, memory: Payload, *others: Any
            ) -> None:
                super().__init__(problem, local, job, payload, memory, *others)
                self.given = payload, memory
                world.witness.train(job, payload)

            def result(self) -> tuple[Payload, Payload]:
                if world.chance("failed job", 0.02):
                    raise RuntimeError("no power")
                upload, memory = super().result()
                world.witness.result(self.job, self.steps, *self.given, upload, memory)
                if world.chance("not finite", 0.02):
                    upload = {name: vector * float("nan") for name, vector in upload.items()}
                return upload, memory

        class WatchedDisk(Disk):
            def __init__(self, *given: Any) -> None:
                super().__init__(*given)
                current().closing.append(self.close)

            def save(self, data: bytes) -> None:
                world.write("client", "state", lambda: super(WatchedDisk, self).save(data))

            def close(self) -> None:
                if self.files:
                    super().close()

        class WatchedTail(Tail):
            def send(self, seq: int, raw: bytes) -> None:
                world.made[sha256(raw).digest()] = world.loop.now
                super().send(seq, raw)

            def _write(self, content: bytes) -> None:
                world.write("server", "tail", lambda: super(WatchedTail, self)._write(content))

        save = checkpoint.Checkpoints.write

        def saved(this: Any, snapshot: Any) -> Any:
            return world.write("server", "checkpoint", lambda: save(this, snapshot))

        pool = type("Paced", (Pool,), {"lasting": staticmethod(self.lasting)})
        clock = journal.LogClock.__init__
        patches = [
            (connection, "_Client", lambda _: StubClient(world.broker)),
            (client_module, "ClientCore", WatchedCore),
            (client_module, "Training", WatchedTraining),
            (client_module, "Disk", WatchedDisk),
            (client_module, "ThreadPoolExecutor", pool),
            (client_module, "threading", SimpleNamespace(Event=Halt, Lock=threading.Lock)),
            (client_module, "QUICK", -1.0),
            (doctor, "trouble", lambda *_: None),
            (server_module, "Tail", WatchedTail),
            (server_module, "ServerCore", partial(self.mistake.server, inline=100, reducer=self.mistake.reducer)),
            (checkpoint.Checkpoints, "write", saved),
            (clock, "__defaults__", (journal.time.time, journal.time.monotonic)),
            *self.mistake.patches,
        ]
        logging.disable(logging.CRITICAL)
        with contextlib.ExitStack() as stack:
            stack.callback(logging.disable, logging.NOTSET)
            for where, name, what in patches:
                stack.enter_context(mock.patch.object(where, name, what))
            yield

    def write(self, who: str, what: str, action: Callable[[], Any]) -> Any:
        """Something is written to a disk, unless the process dies before or after that."""
        process = current()
        process.check()
        for when in ("before", "after"):
            found = action() if when == "after" else None
            if self.chance(f"{who} killed {when} {what}", 0.002):
                process.kill()
                raise KilledError
        return found

    def lasting(self) -> float:
        """How long the next job takes."""
        if self.chance("slow job", 0.02):
            return self.random.uniform(9.0, 30.0)
        if self.chance("hung job", 0.01):
            return 1e6
        return self.random.uniform(0.2, 2.0)

    # Processes

    def process(self, name: str, skew: float = 0.0) -> Process:
        made = Process(name, skew)
        self.processes.append(made)
        return made

    def boot_server(self, host: Host) -> None:
        if host.ended or (host.process is not None and not host.process.dead):
            return
        host.process = self.process(host.name, host.skew)
        self.loop.spawn(host.process, self._serve(host))
        self.revive(host.process, partial(self.boot_server, host))

    async def _serve(self, host: Host) -> None:
        link = Link(self.server_creds, URL)
        await link.connect()
        host.server = RunServer(
            self.plan,
            link,
            host.folder,
            self.charter("run"),
            self.roster,
            measure=None if self.asks else self.measure,
            every=5.0,
            wait=CLIENTS,
            save_every=4.0,
            models=4000,
            trim=self.trim,
        )
        try:
            await host.server.run()
        except BrokenLogError as error:
            self.broken.append((host.name, str(error)))
            assert host.process is not None
            host.process.kill()  # an administrator does what it says and starts it again
            if "Copy the run folder" in str(error):
                self.copy_folder(host)
        except Exception as error:
            self.violations.append(f"{host.name} at {self.loop.now:.2f}: {type(error).__name__}: {error}")
        await link.close()
        host.ended = True

    def copy_folder(self, host: Host) -> None:
        """What `rsync -a --delete --exclude server.id --exclude 'log.tail*'` does."""
        self.fired["folder copied"] += 1
        for path in host.folder.iterdir():
            if path.name != NAME and not path.name.startswith("log.tail"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        other = next(each for each in self.hosts if each is not host)
        leave = shutil.ignore_patterns(NAME, "log.tail*")
        shutil.copytree(other.folder, host.folder, ignore=leave, dirs_exist_ok=True)

    def charter(self, run: str) -> dict[str, Any]:
        return {"run": run, "beat": 1.0}

    def measure(self, task: int, vector: Vector) -> dict[str, float]:
        right, loss = score(float(vector[0]))
        return {"accuracy": right / SAMPLES, "loss": loss / SAMPLES}

    def boot_client(self, node: Node) -> None:
        if node.clone or node.ended is not None or (node.process is not None and not node.process.dead):
            return
        node.process, node.core = self.process(node.name), None
        self.loop.spawn(node.process, self._join(node))
        self.revive(node.process, partial(self.boot_client, node))

    async def _join(self, node: Node) -> None:
        node.leaving = asyncio.Event()
        partner = SimpleNamespace(objection=lambda *_: "", party=self.party)
        path = self.fed / f"{node.name}.creds"
        participant = Participant(path, URL, partner, node.folder, True, False, node.leaving)  # type: ignore[arg-type]
        error = await participant.take_part()
        if node.leaving.is_set() and not error:  # it has left, and comes back
            assert node.process is not None
            node.process.kill()
            return
        if error and not node.clone and node.index not in self.retired:
            self.violations.append(f"{node.name} stopped at {self.loop.now:.2f}: {error}")
        node.ended = error

    def party(self, charter: Mapping[str, Any], client: str) -> Party:
        index = int(client[1:])
        run = str(charter["run"])
        if run != "run":
            self.violations.append(f"{client} takes part in {run}, which is over")
        return Party(run, client, index, self.problems, self.plan.locals, self.plan.seed, self.witness.evaluate)  # type: ignore[arg-type]

    def revive(self, process: Process, boot: Callable[[], None]) -> None:
        """Whenever this process is dead, it is started again before long."""

        def look() -> None:
            if process.dead:
                self.loop.call_later(self.random.uniform(0.1, 6.0), boot)
            elif self.loop.now < LAST:
                self.loop.call_later(0.2, look)

        look()

    def node_at(self, process: Process) -> Node | None:
        return next((node for node in [*self.nodes, *self.clones] if node.process is process), None)

    def node_of(self, client: StubClient) -> Node | None:
        return self.node_at(client.process)

    # Faults that are planned

    def leader(self) -> Host | None:
        there = [host for host in self.hosts if host.process is not None and not host.process.dead]
        return next((host for host in there if host.server is not None and host.server.leading), None)

    def restart_broker(self) -> None:
        self.fired["broker restarted"] += 1
        self.broker.restart(self.random.uniform(0.2, 4.0))

    def cut(self) -> None:
        there = [*self.broker.clients]
        if there:
            self.fired["connection cut"] += 1
            self.random.choice(there).cut(self.random.uniform(0.1, 6.0))

    def cut_leader(self) -> None:
        """The server that leads is cut off for longer than the other waits, and says the rest when it is back."""
        leader = self.leader()
        for client in [*self.broker.clients]:
            if leader is not None and client.process is leader.process:
                self.fired["leader cut off"] += 1
                client.cut(self.random.uniform(5.0, 9.0))

    def hold_leader(self) -> None:
        """What the leader sends is held up until the other server leads, and comes then, without the first record."""
        leader, stream, until = self.leader(), self.broker.streams.get("LOG-run"), min(self.loop.now + 9.0, self.faults)
        mine = [client for client in self.broker.clients if leader is not None and client.process is leader.process]
        if not mine or stream is None or not stream.kept:
            return

        def term() -> str:
            return stream.kept[max(stream.kept)].subject if stream.kept else ""

        def look(client: StubClient, before: str) -> None:
            if term() != before or self.loop.now >= until:
                client.let_go("log")
            else:
                self.loop.call_later(0.002, look, client, before)

        self.fired["leader held up"] += 1
        for client in mine:
            client.hold()
            look(client, term())

    def kill_server(self) -> None:
        host = self.leader() or self.hosts[0]
        if host.process is not None and not host.ended:
            self.fired["leader killed"] += 1
            host.process.kill()

    def pause_server(self) -> None:
        host = self.leader()
        if host is not None and host.process is not None:
            self.fired["leader paused"] += 1
            process = host.process
            process.paused = True
            self.loop.call_later(self.random.uniform(2.0, 9.0), self.loop.resume, process)

    def skew(self) -> None:
        self.fired["clock set"] += 1
        host, by = self.random.choice(self.hosts), self.random.choice([-3600.0, -5.0, 5.0])
        host.skew += by
        if host.process is not None:
            host.process.skew += by

    def hole(self) -> None:
        """The broker loses one of the last records of the log, of which a server may not even have heard."""
        stream = self.broker.streams.get("LOG-run")
        if stream is not None and len(stream.kept) > 3:
            lost = self.random.choice(sorted(stream.kept)[-3:])
            if self.unknowable(lost):
                return
            self.fired["record lost"] += 1
            stream.remove(lost, self.loop.now)

    def unknowable(self, seq: int) -> bool:
        """Whether this record begins a term and no server has heard of it: nobody can tell then whether it or another
        one of the leader before was lost, so that the run has to stop (docs/deploy.md, limits)."""
        stream = self.broker.streams["LOG-run"]
        begins = seq - 1 in stream.kept and stream.kept[seq].subject != stream.kept[seq - 1].subject
        servers = [host.server for host in self.hosts if host.server is not None]
        return begins and not any(seq in server.tail.known() for server in servers)

    def lose_end(self) -> None:
        """The broker comes back without the last records that it had acknowledged."""
        stream = self.broker.streams.get("LOG-run")
        if stream is not None and len(stream.kept) > 5:
            self.fired["end of the log lost"] += 1
            for _ in range(self.random.randint(1, 3)):
                stream.remove(stream.last, self.loop.now)
                stream.last -= 1
            self.broker.restart(self.random.uniform(0.2, 2.0))

    def kill_client(self) -> None:
        node = self.random.choice(self.nodes)
        if node.process is not None and node.ended is None:
            self.fired["client killed"] += 1
            node.process.kill()

    def lose_disk(self) -> None:
        node = self.random.choice(self.nodes)
        if node.process is None or node.ended is not None:
            return
        self.fired["disk lost"] += 1
        self.forget(node)
        node.process.kill()
        shutil.rmtree(node.folder, ignore_errors=True)

    def forget(self, node: Node) -> None:
        state = node.state()
        if state is not None:
            self.witness.lost.add(state.nonce)

    def clone(self) -> None:
        """A machine is replaced by a copy without its disk, and runs on."""
        node = self.random.choice(self.nodes)
        state = node.core.state if node.core else None
        if node.process is None or node.process.dead or state is None or not state.accepted or node.ended is not None:
            return
        self.fired["cloned"] += 1
        self.forget(node)
        node.clone = True
        self.clones.append(node)
        for client in [*self.broker.clients]:
            if client.process is node.process:
                client.cut(self.random.uniform(0.1, 6.0))
        fresh = self.nodes[node.index] = Node(node.name, node.index, self.root / f"c{node.index}-{len(self.clones)}")
        self.loop.call_later(self.random.uniform(0.1, 3.0), self.boot_client, fresh)

    def restore(self) -> None:
        """A backup of a disk is put back later."""
        node = self.random.choice(self.nodes)
        copy = self.root / f"backup-{node.name}"
        if node.state() is None or copy.exists():
            return
        shutil.copytree(node.folder, copy)

        def put_back() -> None:
            if node is not self.nodes[node.index] or node.ended is not None or node.process is None:
                return
            now, then = node.state(), read_client_state(newest(slots(copy / "fed" / node.name, "run"))[1] or b"")
            if now is None or now.nonce != then.nonce:
                return  # from before a disk was lost: its client would be right to stop
            self.fired["disk restored"] += 1
            self.forget(node)
            node.process.kill()
            shutil.rmtree(node.folder)
            shutil.copytree(copy, node.folder)

        self.loop.call_later(self.random.uniform(0.3, 6.0), put_back)

    def leave(self) -> None:
        node = self.random.choice(self.nodes)
        if node.leaving is not None and node.process is not None and not node.process.dead and node.ended is None:
            self.fired["left"] += 1
            node.leaving.set()

    def begun(self) -> bool:
        leader = self.leader()
        return leader is not None and leader.server is not None and leader.server.ledger.begun

    def enrol(self) -> None:
        """The coordinator adds a client while the run goes on."""
        if self.begun() and self.broker.clients and len(self.nodes) == CLIENTS and self.random.random() < 0.5:
            self.fired["enrolled"] += 1
            self.push("+")
            fresh = Node(f"c{CLIENTS}", CLIENTS, self.root / f"c{CLIENTS}")
            self.nodes.append(fresh)
            self.loop.call_later(self.random.uniform(0.0, 3.0), self.boot_client, fresh)

    def remove(self) -> None:
        """The coordinator removes a client, whom the broker lets in no more."""
        if self.begun() and self.broker.clients and self.random.random() < 0.3:
            self.fired["removed"] += 1
            client = self.random.randrange(CLIENTS)
            self.retired.add(client)
            self.push(str(client))
            account = self.roster.client(f"c{client}").account
            self.broker.barred.add(account)
            for each in [*self.broker.clients]:
                if each.account == account:
                    each.cut(0.5)

    def push(self, change: str) -> None:
        """The coordinator's roster reaches the broker."""
        self.changes += change
        self.fed = federation(self.changes)
        roster = identity.read_roster(self.fed).to_json()
        self.broker.publish(next(iter(self.broker.clients)), "roster", roster, None, None)

    def rubbish(self) -> None:
        """A client's key signs and sends things that make no sense."""
        self.fired["rubbish"] += 1
        self.loop.spawn(self.process("admin"), self._rubbish(self.random.choice(self.plan.roster)))

    async def _rubbish(self, client: str) -> None:
        link = Link(identity.read_creds(federation() / f"{client}.creds"), URL)
        await link.connect()
        channel = questions.channel_of(link.creds, "run")
        messages = [
            b"",
            bytes(self.random.randbytes(300)),
            channel.seal("entry", b"nothing"),
            channel.seal("entry", wire.say(wire.Hello("another", client, 1, "x"))),
            channel.seal("entry", wire.say(wire.Hello("run", "c0" if client != "c0" else "c1", 99, "x"))),
            channel.seal("entry", wire.say(wire.Trained("run", client, 77, 5, 3, 1), {"delta": torch.ones(3)})),
            b"P" + channel.seal("parts", b'{"numbers":[1,2],"size":20,"digest":"' + b"0" * 64 + b'"}'),
        ]
        for message in messages:
            with contextlib.suppress(Exception):
                await link.store("up.run", message)
        await link.close()

    # What must hold

    def judge(self) -> None:
        self.updates = 0
        for who, error in self.broker.complaints:
            if not isinstance(error, (*connection.FAILURES, RefusedError)):
                self.violations.append(f"{who}: a handler has failed: {type(error).__name__}: {error}")
        for task in [task for process in self.processes for task in process.tasks if task.done()]:
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, KilledError):
                self.violations.append(f"ended with {type(error).__name__}: {error}")
        self.violations += [f"in the background: {type(error).__name__}: {error}" for error in self.loop.failed]
        if "LOG-run" not in self.broker.streams:
            self.violations.append("there is no log")
            return
        log, times = self.read_log()
        self.judge_inbox(times)
        down = [(0.0, 0.0)]
        fold = self.witness.judge(log, times, self.faults + RECOVERY, down, self.mistake.reducer)
        self.updates = fold.ledger.tally.updates
        self.judge_servers(fold)
        self.judge_clients(fold)

    def read_log(self) -> tuple[list[LogEntry], list[float]]:
        """The log as it was ever stored, its chain checked; and when each record was stored."""
        creds = self.server_creds
        scribe = Scribe(creds.federation, "run", Ours(creds.sign, creds.seal))
        chain, found, times, made = Chain(), list[LogEntry](), list[float](), list[float]()
        audit, archive = LogAudit(scribe, chain), self.broker.streams["LOG-run"].archive
        bodies = [*self.broker.streams["BODY-run"].archive.values()]
        records = list[Record]()
        for seq, stored in sorted(archive.items()):
            try:
                record = audit._next(stored.data)
                body = None
                if record.body is not None:
                    mine = [f"{body_of('run', record.term, record.body.number)}.{n}" for n in range(record.body.pieces)]
                    pieces = {each.subject: each for each in reversed(bodies) if each.subject in mine}
                    if any(name not in pieces or pieces[name].at > stored.at for name in mine):
                        self.violations.append(f"record {seq} was stored before what it names")
                    body = b"".join(pieces[name].data for name in mine if name in pieces)
                found.append(scribe.entry(record, body))
                times.append(stored.at)
                records.append(record)
                made.append(self.made[sha256(stored.data).digest()])
            except RefusedError as error:
                self.violations.append(f"record {seq} of the log: {error}")
                break
        self.judge_time(records, made)
        return found, times

    def judge_time(self, records: Sequence[Record], made: Sequence[float]) -> None:
        """The log's time passes with the world's while a server leads, and is never ahead of it. made: when each was,
        which may be long before the broker took it."""
        for (before, then), (after, now) in pairwise(zip(records, made, strict=True)):
            drift = (after.stamp - before.stamp) - (now - then)
            if drift > DRIFT or (drift < -DRIFT and before.term == after.term):
                self.violations.append(f"the log's time is off by {drift:.1f} s at record {after.seq}")

    def judge_inbox(self, times: Sequence[float]) -> None:
        """What was acknowledged in the inbox is in the log by then, or was refused with reason."""
        creds = self.server_creds
        scribe = Scribe(creds.federation, "run", Ours(creds.sign, creds.seal))
        gate = Gate(scribe, members_of(self.roster), self.plan.limits.size)
        known: dict[str, float] = {}  # digest of an envelope -> when it was in the log
        for stored in self.broker.streams["LOG-run"].archive.values():
            with contextlib.suppress(RefusedError):
                record = scribe.read(stored.data)
                digest = record.body.digest if record.body else sha256(record.content).hexdigest()
                known[digest] = min(stored.at, known.get(digest, stored.at))
        for when, stored in self.broker.acknowledged:
            try:
                sender = gate.sender(stored.subject)
                opened = gate.open(sender, stored.data)
            except RefusedError:
                continue
            if int(sender.name[1:]) in self.retired:
                continue  # it was refused for that
            if isinstance(opened, Parts):
                continue  # its pieces may have been gone
            if known.get(sha256(stored.data).hexdigest(), 1e9) > when:
                self.violations.append("a message was acknowledged before it was in the log")

    def judge_servers(self, fold: Fold) -> None:
        # A log that was trimmed while a server was down stops it; with the leader's folder it goes on.
        lost = [each for each in self.broken if not self.trim or "(--trim)" not in each[1]]
        self.violations += [f"{name}: {error}" for name, error in lost]
        if fold.ledger.stopped != "time":
            self.violations.append(f"the run is not over: {fold.ledger.stopped!r}")
        for host in self.hosts:
            if not host.ended or host.server is None:
                self.violations.append(f"{host.name} has not come to its end")
            elif host.server.ledger.position == fold.ledger.position:
                if not same(freeze(host.server.ledger), freeze(fold.ledger)):
                    self.violations.append(f"{host.name} has another state than the log gives")
            elif host.server.chain.leader == host.server.name and not host.server.ledger.stopped:
                self.violations.append(
                    f"{host.name} led and ends at {host.server.ledger.position} of {fold.ledger.position}"
                )
        for task, model in enumerate(self.plan.server.models(fold.ledger.server)):
            if model.version not in [each.version for each in fold.measurements if each.task == task]:
                self.violations.append(f"the last model of task {task} was not evaluated")

    def judge_clients(self, fold: Fold) -> None:
        last = {row.client: row.number for row in fold.rows if row.event == "Arrived"}
        for node in self.nodes:
            if node.index in self.retired or node.index >= len(fold.ledger.clients):
                continue
            state = node.core.state if node.core else None
            if node.ended is None or state is None:
                self.violations.append(f"{node.name} has not come to rest: {node.ended}")
            if last.get(node.index, -1) <= fold.calm_events:
                self.violations.append(f"{node.name} did nothing after the faults had stopped")
            for task, memory in state.memory.items() if state else ():
                if content(memory) != fold.remembered(node.index, task):
                    self.violations.append(f"{node.name} does not remember what the log says")
        if self.kind == "area":
            self.judge_mean(fold)

    def judge_mean(self, fold: Fold) -> None:
        """AREA: mean(y_i) = x + u over the members that count: those of the beginning, and others that have sent."""
        members = [client for client, record in enumerate(fold.ledger.clients) if not record.removed]
        counted = [client for client in members if client < CLIENTS or (client, 0) in fold.memory]
        mean = sum(fold.remembered(client, 0)[0][1][0] for client in counted) / len(counted)
        there = float((fold.ledger.server.model.vector + fold.ledger.server.u)[0])
        exact = 0.0 if len(counted) == len(fold.ledger.clients) == CLIENTS else 1e-9  # thirds and fifths are not
        if abs(mean - there) > exact * max(1.0, abs(mean)):
            self.violations.append(f"mean of y is {mean}, x + u is {there}")
