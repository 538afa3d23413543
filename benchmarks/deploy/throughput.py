"""Updates a second and seconds an update of a real server, beside the broker alone.

    python benchmarks/deploy/throughput.py latency --bytes 31000 --clients 8
    python benchmarks/deploy/throughput.py latency --bytes 4000000 --clients 8
    python benchmarks/deploy/throughput.py crowd --clients 1000 --rate 0.1

`latency` lets clients that compute nothing ask for work as fast as they can: first from an echo on the bare broker (an
update of that size up, a model of that size down, both kept on disk), then from offbeat's server. `crowd` connects many
clients, each of which takes 1/rate seconds for a job on average. One JSON object a line comes out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from offbeat.algorithms import AREA, FedAsync
from offbeat.core.course import Until
from offbeat.core.server import Algorithm
from offbeat.deploy import keys
from offbeat.deploy.admission import Limits
from offbeat.deploy.broker import Broker
from offbeat.deploy.client import Party, RunClient
from offbeat.deploy.link import Link
from offbeat.deploy.plan import Plan
from offbeat.deploy.server import RunServer
from offbeat.local import SGD
from offbeat.timing import Exponential, Times

torch.set_num_threads(1)


@dataclass(frozen=True)
class Nothing:
    """A problem whose gradients cost nothing."""

    clients: int
    dim: int
    name: str = "nothing"
    stacks: bool = False

    def initial(self) -> torch.Tensor:
        return torch.zeros(self.dim)

    def oracle(self, clients: Any, keys: Any, steps: int, batch: int | None, shuffle: bool) -> Any:
        return self

    def gradient(self, w: torch.Tensor, step: int, sample: int = 0) -> torch.Tensor:
        return w

    def measure(self, models: torch.Tensor) -> list[Mapping[str, float]]:
        return [{"loss": 0.0} for _ in models]


def algorithm(name: str) -> Algorithm:
    return Algorithm(AREA(size=4) if name == "area" else FedAsync(lr=0.1), SGD(lr=0.1))


def quantiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {f"p{q}": round(1e3 * ordered[min(len(ordered) - 1, int(q / 100 * len(ordered)))], 3) for q in (50, 90, 99)}


# The broker alone


async def echo(url: str, folder: Path, size: int) -> None:
    """Answers every update with a model."""
    link = Link(keys.read_creds(folder / keys.SERVER), url)
    await link.connect(20)
    await link.make_streams("bench", 1 << 30)
    model = os.urandom(size)
    from offbeat.deploy.link import LogReader

    inbox: asyncio.Queue[Any] = asyncio.Queue()
    reader = LogReader(link, "bench", inbox.put_nowait)
    await reader.start(0)
    await link.store("charter", b"{}")
    while True:
        entry = await inbox.get()
        await link.say(f"bench.assignment.{entry.sender}", model)


async def pinging(url: str, folder: Path, name: str, size: int, seconds: float) -> list[float]:
    link = Link(keys.read_creds(folder / f"{name}.creds"), url)
    await link.connect(20)
    heard: asyncio.Queue[float] = asyncio.Queue()

    async def hear(_: str, data: bytes) -> None:
        heard.put_nowait(time.perf_counter())

    await link.listen(f"bench.assignment.{name}", hear)
    update, found, until = os.urandom(size), list[float](), time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        await tell(link, name, update)
        found.append(await asyncio.wait_for(heard.get(), 30) - began)
    await link.close()
    return found


async def tell(link: Link, name: str, data: bytes) -> None:
    await link.say(f"bench.up.{name}", data)


# Clients, in processes of their own


async def crew(args: argparse.Namespace) -> None:
    folder, names = Path(args.folder), args.names.split(",")
    if args.echo:
        found = await asyncio.gather(*(pinging(args.url, folder, n, args.bytes, args.seconds) for n in names))
        print(json.dumps([value for times in found for value in times]))
        return
    problem = Nothing(args.clients, args.bytes // 4)
    local = algorithm(args.algorithm).locals(1)
    clock = Times(Exponential(args.rate)).bind(args.clients, 0) if args.rate else None
    clients, links = [], []
    for name in names:
        link = Link(keys.read_creds(folder / f"{name}.creds"), args.url)
        await link.connect(60)
        number = int(name[1:])
        party = Party("bench", name, number, [problem], local, 0, clock=clock)
        clients.append(RunClient(party, link, Path(args.state) / name, beat=args.beat))
        links.append(link)
    await asyncio.gather(*(client.run() for client in clients))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"applied": sum(client.applied for client in clients), "cpu": usage.ru_utime + usage.ru_stime}))


def spawn(args: argparse.Namespace, url: str, folder: Path, names: Sequence[str], echoing: bool) -> Any:
    words = [
        sys.executable,
        os.environ.get("PROF", __file__),
        "crew",
        "--url",
        url,
        "--folder",
        str(folder),
        "--names",
        ",".join(names),
    ]
    words += ["--state", str(folder / "state"), "--bytes", str(args.bytes), "--clients", str(args.clients)]
    words += ["--seconds", str(args.seconds), "--rate", str(args.rate), "--algorithm", args.algorithm]
    words += ["--beat", str(args.beat)]
    return subprocess.Popen([*words, *(["--echo"] if echoing else [])], stdout=subprocess.PIPE, text=True)


# Measuring


def setting(args: argparse.Namespace, folder: Path) -> tuple[list[str], Broker]:
    names = [f"c{number}" for number in range(args.clients)]
    roster = keys.init(folder / "fed", names, tls=args.tls)
    broker = Broker(folder / "broker", roster, folder / "fed" if args.tls else None, sync=not args.no_sync)
    broker.start()
    return names, broker


def measure_echo(args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=args.disk) as place:
        folder = Path(place)
        names, broker = setting(args, folder)
        server = subprocess.Popen(
            [
                sys.executable,
                __file__,
                "echo",
                "--url",
                broker.url,
                "--folder",
                str(folder / "fed"),
                "--bytes",
                str(args.bytes),
            ]
        )
        time.sleep(6)
        try:
            process = spawn(args, broker.url, folder / "fed", names, True)
            times = json.loads(process.communicate(timeout=args.seconds + 120)[0])
        finally:
            server.kill()
            broker.stop()
    return {"what": "broker alone", "bytes": args.bytes, "clients": args.clients,
            "updates_per_s": round(len(times) / args.seconds, 1), "ms": quantiles(times)}  # fmt: skip


def measure_server(args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=args.disk) as place:
        folder = Path(place)
        names, broker = setting(args, folder)
        try:
            return asyncio.run(serving(args, folder, names, broker))
        finally:
            broker.stop()


class Arrivals:
    """A watcher that notes how long each job was on its way, and how many came."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def event(self, row: Any) -> None:
        if row.event == "Arrived":
            self.times.append(row.time - row.sent)

    def measured(self, measurement: Any) -> None:
        pass


async def serving(args: argparse.Namespace, folder: Path, names: Sequence[str], broker: Broker) -> dict[str, Any]:
    made, problem = algorithm(args.algorithm), Nothing(args.clients, args.bytes // 4)
    plan = Plan("bench", list(names), made.server, made.locals(1), [problem.initial()], Until(time=args.seconds),
                limits=Limits(patience=60.0))  # fmt: skip
    link = Link(keys.read_creds(folder / "fed" / keys.SERVER), broker.url)
    await link.connect(20)
    server = RunServer(plan, link, folder / "run", {"run": "bench"}, save_every=10.0)
    arrivals = Arrivals()
    server.core.reducer.listeners = [arrivals]
    shares = [list(names[at :: args.processes]) for at in range(args.processes)]
    crews = [spawn(args, broker.url, folder / "fed", share, False) for share in shares]
    while not server.ledger.begun:
        if not hasattr(server, "task"):
            server.task = asyncio.create_task(server.run())  # type: ignore[attr-defined]
        await asyncio.sleep(0.1)
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    await server.task  # type: ignore[attr-defined]
    after, wall = resource.getrusage(resource.RUSAGE_SELF), min(time.perf_counter() - began, args.seconds)
    done = [json.loads(await asyncio.to_thread(lambda c=c: c.communicate(timeout=120)[0])) for c in crews]
    await link.close()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    updates = server.ledger.tally.updates
    trip = {} if args.rate else {"ms": quantiles(arrivals.times)}
    return {"what": f"offbeat, {args.algorithm}", "bytes": args.bytes, "clients": args.clients,
            "updates": updates, "updates_per_s": round(updates / wall, 1), **trip,
            "server_cpu_ms_per_update": round(1e3 * cpu / max(updates, 1), 3),
            "server_cpu_share": round(cpu / wall, 3),
            "server_memory_mb": round(after.ru_maxrss / 1024),
            "client_cpu_ms_per_update": round(1e3 * sum(d["cpu"] for d in done) / max(updates, 1), 2),
            "refused": server.ledger.tally.refused, "lost": server.ledger.tally.lost}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["latency", "crowd", "crew", "echo"])
    parser.add_argument("--bytes", type=int, default=31_000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rate", type=float, default=0.0, help="jobs a second and client; 0: as fast as they can")
    parser.add_argument("--algorithm", default="fedasync")
    parser.add_argument("--beat", type=float, default=2.0)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--no-sync", action="store_true")
    parser.add_argument("--disk", default=None)
    for name in ("--url", "--folder", "--names", "--state"):
        parser.add_argument(name, default="")
    parser.add_argument("--echo", action="store_true")
    args = parser.parse_args()
    if args.command == "crew":
        asyncio.run(crew(args))
    elif args.command == "echo":
        asyncio.run(echo(args.url, Path(args.folder), args.bytes))
    elif args.command == "latency":
        print(json.dumps(measure_echo(args)), flush=True)
        print(json.dumps(measure_server(args)), flush=True)
    else:
        print(json.dumps(measure_server(args)), flush=True)


if __name__ == "__main__":
    main()
