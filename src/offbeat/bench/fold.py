"""What one entry of the log costs the server, by number of clients: no network, no clients that compute.

    python -m offbeat.bench.fold --clients 100,1000,10000
    python -m offbeat.bench.fold --clients 10000 --algorithm fedbuff --dim 650 --restart 1000

All clients greet, the run begins, and then one client after another, drawn at random among those with work, reports.
After each entry the server is asked what is due and how long to wait, as a real one does. Times per entry are CPU time.
`--restart` saves checkpoints with so many updates in between, reads the last one back, folds as many entries that the
log has beyond it, and boots. One JSON object a line comes out.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from offbeat.algorithms import AREA, Favano, FedAsync, FedAvg, FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.server import Server
from offbeat.core.until import Until
from offbeat.deploy import wire
from offbeat.deploy.admission import Limits
from offbeat.deploy.ledger import Ledger
from offbeat.deploy.plan import Plan
from offbeat.deploy.server_core import Post, Put, ServerCore
from offbeat.deploy.wire import LogEntry
from offbeat.local import SGD
from offbeat.watch.checkpoint import Checkpoints, restore

RUN = "bench"


def algorithm(name: str, clients: int) -> Algorithm:
    """The algorithm of this name; with "-half", half of the clients work at a time, drawn among the idle."""
    half = clients // 2 if name.endswith("-half") else None
    servers: dict[str, Server[Any]] = {
        "fedasync": FedAsync(lr=0.1, concurrency=half),
        "fedbuff": FedBuff(size=10, concurrency=half),
        "area": AREA(size=4, concurrency=half),
        "favano": Favano(sampled=10),
        "fedavg": FedAvg(sampled=10),
    }
    return Algorithm(servers[name.removesuffix("-half")], SGD(lr=0.1))


class FoldedRun:
    """A server and its log; the clients are what their last assignments say."""

    def __init__(self, name: str, clients: int, dim: int, seed: int = 0) -> None:
        made = algorithm(name, clients)
        names = [f"c{number}" for number in range(clients)]
        self.plan = Plan(
            RUN, names, made.server, made.locals(1), [torch.zeros(dim)], Until(time=1e9), limits=Limits(lease=1e6)
        )
        self.core = ServerCore(self.plan, wait=clients + 1)
        self.update = torch.zeros(dim)
        self.random = random.Random(seed)
        self.log: list[LogEntry] = []
        self.posted = self.position = 0
        self.clock = 0.0
        self.ready: list[int] = []  # clients with plain work
        self.at: dict[int, int] = {}
        self.obey(self.core.boot(0.0))
        for name in names:
            self.say(name, wire.Hello(RUN, name, 1, f"life-{name}"))
        self.say("", wire.Begun(RUN))

    def say(self, sender: str, header: Any, parts: Any = None) -> None:
        self.put(sender, wire.say(header, parts))

    def put(self, sender: str, data: bytes) -> float:
        """Fold an entry; gives the seconds of CPU time that it took."""
        self.clock += 0.001
        self.position += 1
        entry = LogEntry(self.position, self.clock, sender, data)
        self.log.append(entry)
        began = time.thread_time()
        effects = self.core.fold(entry, self.clock)
        effects += self.core.due(self.clock)
        self.core.wait_for(self.clock, 0.05)
        took = time.thread_time() - began
        self.obey(effects)
        return took

    def obey(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, Post):
                self.posted += len(effect.data)
                self.turn(effect.client)
            elif isinstance(effect, Put):
                self.posted += len(effect.data)

    def turn(self, client: int) -> None:
        """Note whether this client has something to report."""
        record = self.core.ledger.clients[client]
        able = bool(record.queue) or bool(record.recalls)
        if able and client not in self.at:
            self.at[client] = len(self.ready)
            self.ready.append(client)
        elif not able and client in self.at:
            at, last = self.at.pop(client), self.ready.pop()
            if last != client:
                self.ready[at], self.at[last] = last, at

    def report(self) -> float:
        """One client reports; seconds of the server."""
        if not self.ready:
            number, (when, _) = next(iter(self.core.ledger.alarms.items()))
            self.clock = max(self.clock, when)
            return self.put("", wire.say(wire.Rung(RUN, number)))
        client = self.ready[self.random.randrange(len(self.ready))]
        name, record = self.plan.roster[client], self.core.ledger.clients[client]
        number = record.queue[0] if record.queue else record.held[next(iter(record.recalls))][-1]
        job = self.core.ledger.flights[number].job
        parts = {part: torch.zeros(1) if size == 1 else self.update for part, size in self.plan.expected(0).items()}
        trained = wire.Trained(RUN, name, record.epoch, record.seq + 1, job.id, job.steps)
        return self.put(name, wire.say(trained, parts))


def measure(name: str, clients: int, dim: int, entries: int, between: int) -> dict[str, Any]:
    """What so many entries cost a server with so many clients; with `between`, also saving it and coming back."""
    began = time.perf_counter()
    run = FoldedRun(name, clients, dim)
    joined = time.perf_counter() - began
    for _ in range(min(entries, 200)):
        run.report()
    took = sorted(run.report() for _ in range(entries))
    found = {
        "algorithm": name,
        "clients": clients,
        "dim": dim,
        "entries": entries,
        "us_per_entry": round(1e6 * sum(took) / len(took), 1),
        "us_median": round(1e6 * took[len(took) // 2], 1),
        "us_p99": round(1e6 * took[int(0.99 * len(took))], 1),
        "updates": run.core.ledger.tally.updates,
        "refused": run.core.ledger.tally.refused,
        "joined_s": round(joined, 2),
    }
    if between:
        found |= again(run, between)
    return found | {"memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)}


def again(run: FoldedRun, between: int) -> dict[str, Any]:
    """Save again and again with updates in between, lose the process with as many beyond, and come back."""
    with tempfile.TemporaryDirectory() as place:
        folder, saves = Path(place), list[tuple[float, float, float]]()
        checkpoints = Checkpoints(folder)
        for _ in range(5):
            began = time.thread_time()
            snapshot = checkpoints.snapshot(run.core.ledger, {})
            noted, clock = time.thread_time(), time.perf_counter()
            written = checkpoints.write(snapshot) or 0
            saves.append((noted - began, time.perf_counter() - clock, written / 1e6))
            position = run.position
            for _ in range(between):
                run.report()
        size = sum(path.stat().st_size for path in folder.iterdir())
        began = time.perf_counter()
        found = restore(Ledger, folder)
        assert found is not None
        core = ServerCore(run.plan, found[0], wait=0)
        read = time.perf_counter() - began
        for entry in run.log[position:]:
            core.replay(entry, run.clock)
        effects = core.boot(run.clock)
        back = time.perf_counter() - began
    posts = [effect for effect in effects if isinstance(effect, Post)]
    pause, write, megabytes = saves[-1]
    return {
        "pause_cpu_s": round(pause, 3),
        "write_s": round(write, 3),
        "written_mb": round(megabytes, 1),
        "first_mb": round(saves[0][2], 1),
        "disk_mb": round(size / 1e6, 1),
        "read_s": round(read, 3),
        "restart_s": round(back, 3),
        "boot_posts": len(posts),
        "boot_mb": round(sum(len(effect.data) for effect in posts) / 1e6, 2),
    }


def main() -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="100,1000,10000")
    parser.add_argument(
        "--algorithm", default="fedasync", help="fedasync, fedbuff, area (each with -half), favano, fedavg"
    )
    parser.add_argument("--dim", type=int, default=650)
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--restart", type=int, default=0, metavar="ENTRIES", help="also save and restart")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for clients in map(int, args.clients.split(",")):
        print(json.dumps(measure(args.algorithm, clients, args.dim, args.entries, args.restart)), flush=True)


if __name__ == "__main__":
    main()
