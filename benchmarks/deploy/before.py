"""What `offbeat bench deploy` measures, of offbeat before there were accounts, signatures and seals.

    python benchmarks/deploy/before.py --clients 1,8,64,1000 --bytes 2600,4000000 > before.json
    offbeat bench deploy --markdown --before before.json

The commit is taken from this repository into a temporary folder, and runs with the packages that are installed now;
what is imported of offbeat here is where that commit has it. One
JSON object a line comes out: updates a second, and CPU milliseconds of an update of server, broker and clients, between
the beginning and the end of the run.
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
from pathlib import Path
from typing import Any

COMMIT = "1ed84d7"
PATIENCE = 60.0
CROWD = 64  # clients from which on several processes hold them


def cpu(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free() -> float:
    """Bytes of memory that are free."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return 1024.0 * int(lines["MemAvailable"].split()[0])


def measure(source: Path, clients: int, size: int, seconds: float) -> dict[str, Any] | None:
    """One number of clients and one size; None: they do not fit into memory."""
    at_once = min(clients, int(0.25 * free() / (8 * size)))
    if at_once < 1:
        return None
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, "--source", str(source), "--folder", folder, "--seconds", str(seconds)]
        words += ["--clients", str(clients), "--bytes", str(size), "--at-once", str(at_once), "--role"]
        environment = {**os.environ, "PYTHONPATH": str(source / "src")}
        done = subprocess.run([*words, "all"], stdout=subprocess.PIPE, env=environment, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# The roles, in processes that import the earlier offbeat


def play(args: argparse.Namespace) -> dict[str, Any]:
    """Start the broker and everybody, and put together what they say."""
    from offbeat.deploy import keys
    from offbeat.deploy.broker import Broker

    folder, count = Path(args.folder), int(args.clients)
    names = [f"c{number}" for number in range(count)]
    broker = Broker(folder / "broker", keys.init(folder / "fed", names, tls=False))  # type: ignore[arg-type]
    broker.start()
    assert broker.process is not None
    processes = min(os.cpu_count() or 1, 1 + count // CROWD)
    words = [sys.executable, *sys.argv[:-2]]
    everybody = list[subprocess.Popen[str]]()
    try:
        for role in ("server", *(f"clients {at} {processes}" for at in range(processes))):
            more = ["--url", broker.url, "--role", role]
            everybody.append(subprocess.Popen([*words, *more], stdout=subprocess.PIPE, text=True))
            before = cpu(broker.process.pid)
        said = [json.loads(each.communicate(timeout=args.seconds + 4 * PATIENCE)[0]) for each in everybody]
        spent = cpu(broker.process.pid) - before
    finally:
        for each in everybody:
            each.kill()
            each.wait()
        broker.stop()
    updates = max(1, said[0]["updates"])
    costs = {"server": said[0]["cpu"], "broker": spent, "clients": sum(each["cpu"] for each in said[1:])}
    per_update = {name: 1e3 * value / updates for name, value in costs.items()}
    return {"of": count, "bytes": int(args.bytes), "updates_per_s": updates / args.seconds, **per_update}


def parts(args: argparse.Namespace) -> tuple[Any, Any]:
    """The algorithm and a problem whose gradients cost nothing."""
    import torch

    from offbeat.algorithms import FedAsync
    from offbeat.core.server import Algorithm
    from offbeat.local import SGD

    class Nothing:
        clients, dim, name, stacks = int(args.clients), int(args.bytes) // 4, "nothing", False

        def initial(self) -> Any:
            return torch.ones(self.dim)

        def oracle(self, *_: Any) -> Any:
            return self

        def gradient(self, w: Any, *_: Any) -> Any:
            return w

        def measure(self, models: Any) -> list[dict[str, float]]:
            return [{"loss": 0.0} for _ in models]

    torch.set_num_threads(1)
    some = args.at_once if args.at_once < int(args.clients) else None
    return Algorithm(FedAsync(lr=0.1, concurrency=some), SGD(lr=0.1)), Nothing()


async def serve(args: argparse.Namespace) -> dict[str, float]:
    """The server; the clock starts with the run."""
    import pyarrow as pa

    from offbeat.core.course import Until
    from offbeat.deploy import keys
    from offbeat.deploy.admission import Limits
    from offbeat.deploy.link import Link
    from offbeat.deploy.plan import Plan
    from offbeat.deploy.server import RunServer

    (made, problem), folder = parts(args), Path(args.folder)
    pa.table({"": [0]})  # the first one imports pandas, which takes as long as a thousand updates
    names = [f"c{number}" for number in range(int(args.clients))]
    limits = Limits(patience=PATIENCE, lease=1e6)
    plan = Plan(
        "bench", names, made.server, made.locals(1), [problem.initial()], Until(time=args.seconds), limits=limits
    )
    link = Link(keys.read_creds(folder / "fed" / keys.SERVER), args.url)
    await link.connect(PATIENCE)
    server = RunServer(plan, link, folder / "run", {"run": "bench"})  # type: ignore[call-arg]
    task = asyncio.create_task(server.run())
    while not server.ledger.begun and not task.done():
        await asyncio.sleep(0.02)
    before = time.process_time()
    await task
    spent = time.process_time() - before
    await link.close()
    return {"updates": server.ledger.tally.updates, "cpu": spent}


async def take_part(args: argparse.Namespace, first: int, step: int) -> dict[str, float]:
    """Some of the clients; the clock starts with the first update."""
    from offbeat.deploy import keys
    from offbeat.deploy.client import Party, RunClient
    from offbeat.deploy.link import Link

    (made, problem), folder, crew, links = parts(args), Path(args.folder), list[Any](), list[Any]()
    for number in range(first, int(args.clients), step):
        link = Link(keys.read_creds(folder / "fed" / f"c{number}.creds"), args.url)
        await link.connect(PATIENCE)
        links.append(link)
        party = Party("bench", f"c{number}", number, [problem], made.locals(1), 0)
        crew.append(RunClient(party, link, folder / "state" / f"c{number}"))
    running = asyncio.gather(*(client.run() for client in crew))
    before = time.process_time()
    while not running.done() and not any(client.applied for client in crew):
        before = time.process_time()
        await asyncio.sleep(0.05)
    await running
    spent = time.process_time() - before
    for link in links:
        await link.close()
    return {"cpu": spent}


def act(args: argparse.Namespace) -> dict[str, Any]:
    """Play the role that the command line names."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if args.role == "all":
        return play(args)
    if args.role == "server":
        return dict(asyncio.run(serve(args)))
    _, first, step = args.role.split()
    return dict(asyncio.run(take_part(args, int(first), int(step))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="1,8,64,1000")
    parser.add_argument("--bytes", default="2600,4000000")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--commit", default=COMMIT)
    for name in ("--source", "--folder", "--url", "--role"):
        parser.add_argument(name, default="", help=argparse.SUPPRESS)
    parser.add_argument("--at-once", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role:
        print(json.dumps(act(args)), flush=True)
        return
    with tempfile.TemporaryDirectory() as place:
        source, root = Path(place), Path(__file__).parents[2]
        packed = subprocess.run(["git", "archive", args.commit, "src"], cwd=root, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "x", "-C", place], input=packed.stdout, check=True)
        from offbeat.bench.deploy import stretch  # the processes that are measured have another offbeat

        for size in map(int, args.bytes.split(",")):
            for clients in map(int, args.clients.split(",")):
                print(f"{clients:,} clients, {size:,} bytes", file=sys.stderr)
                found = measure(source, clients, size, args.seconds * stretch(clients, size))
                if found is not None:
                    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
