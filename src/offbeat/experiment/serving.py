"""Serving real runs: the broker, the client processes of `offbeat up`, one run after the other."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nats.errors import NoRespondersError, TimeoutError as NatsTimeoutError
from rich.console import Console

from offbeat.core.errors import DivergedError, InterruptedRunError, OffbeatError
from offbeat.core.names import all_imported
from offbeat.deploy import keys, wire
from offbeat.deploy.broker import Broker, die_with_parent
from offbeat.deploy.client import read_charter
from offbeat.deploy.link import Link, as_json
from offbeat.deploy.metrics import exposed
from offbeat.deploy.plan import Plan
from offbeat.deploy.server import RunServer, fingerprint, refold
from offbeat.experiment.experiment import Spec
from offbeat.experiment.real import DeployedRun, DeployOptions, charter_of, measure_of, plan_of, problems_of, run_name
from offbeat.experiment.session import Session
from offbeat.watch.files import SERVER_LOG
from offbeat.watch.folder import RunFolder
from offbeat.watch.measures import measure
from offbeat.watch.progress import Display, display
from offbeat.watch.results import Deployment, Result
from offbeat.watch.session import summary


@contextlib.asynccontextmanager
async def connected(
    creds: keys.Creds, url: str, broker: Broker | None = None, patience: float = 5.0
) -> AsyncIterator[Link]:
    """Within, a link to a federation. broker: one to run meanwhile, whose address is taken."""
    if broker is not None:
        broker.start()
    link = Link(creds, url if broker is None else broker.url)
    try:
        await link.connect(patience)
        yield link
    finally:
        await link.close()
        if broker is not None:
            broker.stop()


async def serve_all(
    session: Session, folder: Path, options: DeployOptions, processes: int | None, metrics: int | None, sync: bool
) -> list[Result]:
    """Everything on this machine: broker, clients, and every run of the experiment one after the other."""
    experiment = session.experiment
    count = experiment.tasks[0].problem.clients
    names = [f"c{number:0{len(str(count - 1))}d}" for number in range(count)]
    place = folder / "keys"
    roster = keys.read_roster(place) if (place / keys.ROSTER).exists() else keys.init(place, names, "up", tls=False)
    broker = Broker(folder / "broker", roster, sync=sync)
    results: list[Result] = []
    async with connected(keys.read_creds(place / keys.SERVER), "", broker, 20) as link:
        clients = ClientProcesses(folder, broker.url, names, processes or min(count, 8), experiment.table)
        try:
            with display(Console(stderr=True), len(experiment.runs)) as shown:
                for spec in experiment.runs:
                    done = RunFolder(folder / spec.folder).result()
                    if done is not None:
                        shown.end(f"{spec.name}: finished before")
                    else:
                        last = spec is experiment.runs[-1]
                        done = await _serve_one(
                            session, spec, folder, link, names, options, shown, metrics, last=last, clients=clients
                        )
                    results.append(done)
            await link.store("charter", as_json({"closed": True}))
            await clients.finish()
        finally:
            clients.stop()
    return results


class ClientProcesses:
    """The client processes of `offbeat up`; one that dies is started again.

    table: of the experiment; what it names outside offbeat is the same user's, so the clients may import it.
    """

    def __init__(self, folder: Path, url: str, names: Sequence[str], processes: int, table: Mapping[str, Any]) -> None:
        self.folder, self.url = folder, url
        self.allowed = [word for name in all_imported(table) for word in ("--model", name)]
        self.shares = [list(names[at::processes]) for at in range(min(processes, len(names)))]
        self.deaths = 0
        (folder / "clients").mkdir(exist_ok=True)
        self.processes = [self._start(share) for share in self.shares]

    def _start(self, share: Sequence[str]) -> subprocess.Popen[bytes]:
        words = [word for name in share for word in ("--keys", str(self.folder / "keys" / f"{name}.creds"))]
        command = [sys.executable, "-m", "offbeat", "join", *words, *self.allowed]
        command += ["--nats", self.url, "--state", str(self.folder / "clients"), "--until-closed"]
        with (self.folder / "clients" / f"{share[0]}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def look(self) -> None:
        """Start again what has died."""
        for at, process in enumerate(self.processes):
            if process.poll() is not None:
                self.deaths += 1
                if self.deaths > 3 * len(self.shares) + 100:
                    raise OffbeatError(f"the clients keep dying; see {self.folder / 'clients' / '*.log'}")
                if process.returncode > 0:
                    log = self.folder / "clients" / f"{self.shares[at][0]}.log"
                    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                    raise OffbeatError(f"a client ended with {process.returncode}: {lines[-1] if lines else log}")
                self.processes[at] = self._start(self.shares[at])

    async def finish(self, patience: float = 10.0) -> None:
        """Wait until they have gone by themselves."""
        until = time.monotonic() + patience
        while any(p.poll() is None for p in self.processes) and time.monotonic() < until:
            await asyncio.sleep(0.05)

    def stop(self) -> None:
        """Make them go."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def _serve_one(
    session: Session,
    spec: Spec,
    folder: Path,
    link: Link,
    roster: Sequence[str],
    options: DeployOptions,
    shown: Display,
    metrics: int | None,
    wait: int | None = None,
    last: bool = False,
    clients: ClientProcesses | None = None,
) -> Result:
    """Serve one run to its end."""
    experiment, problems = session.experiment, problems_of(session, spec)
    place = folder / spec.folder
    place.mkdir(parents=True, exist_ok=True)
    name = run_name(spec, place)
    plan = plan_of(session, spec, name, roster, options)
    shown.begin(spec.name)

    def tick(server: RunServer) -> None:
        if clients is not None:
            clients.look()
        shown.tick(watched, server.recorder)
        if (line := shown.progress.line) and "there" not in line:
            shown.progress.line = f"{line}\n{_around(server)}"

    with _journal(place / SERVER_LOG):
        server = RunServer(
            plan,
            link,
            place,
            charter_of(experiment, spec, plan, options, last),
            measure=measure_of(problems),
            every=experiment.evaluate.every,
            wait=wait,
            tick=tick,
            trim=options.trim,
            replicas=options.replicas,
            models=max(1 << 30, 32 * max(x.numel() * x.element_size() for x in plan.initial)),
        )
        watched = DeployedRun(server, problems)
        try:
            await _serving(server, metrics)
        except DivergedError as error:  # the other runs of the experiment still count
            shown.end(f"{spec.name}: diverged")
            result = Result(spec.label, spec.seed, error=str(error), folder=place)
            RunFolder(place).finish(result)
            return result
    if server.asked:
        raise InterruptedRunError(f"{spec.name}: stopped at time {server.ledger.now:g} and saved")
    tally = server.ledger.tally
    targets = experiment.targets
    result = replace(
        summary(watched, server.recorder, server.wall, targets, algorithm=spec.label, seed=spec.seed),
        measures=measure(place, watched) if tally.updates else None,
        refused=dict(tally.refused),
        real=Deployment(
            run=name,
            unit=options.unit,
            position=server.ledger.position,
            repeated=tally.repeated,
            fingerprint=fingerprint(server.ledger),
            limits=vars(options.limits),
            dtype=options.dtype,
        ),
        folder=place,
    )
    RunFolder(place).finish(result, watched)
    said = ", ".join(f"{metric} {value:.4g}" for metric, value in result.metrics.items())
    shown.end(f"{spec.name}: {said or server.ledger.stopped} after {result.updates:,} updates in {server.wall:.1f} s")
    return result


def _around(server: RunServer) -> str:
    """Who is there and how the log goes, in one line."""
    ledger = server.ledger
    there = sum(record.present for record in ledger.clients)
    refused = sum(ledger.tally.refused.values())
    parts = [f"{there} of {len(ledger.clients)} clients there", f"{ledger.tally.lost} jobs lost", f"{refused} refused"]
    return " · ".join([*parts, f"log {ledger.position:,}, {1e3 * server.lag:.0f} ms behind"])


async def _serving(server: RunServer, metrics: int | None) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.leave)
    try:
        with exposed(server, metrics):
            await server.run()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _journal(path: Path) -> Iterator[None]:
    """Within, the server's structured log goes to this file, a JSON object a line."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("offbeat.deploy")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


@dataclass(frozen=True)
class Place:
    """Who serves, and where: the server's keys, the roster, the folder they are in, the broker."""

    creds: keys.Creds
    roster: keys.Roster
    folder: Path
    url: str
    embedded: bool

    def broker(self) -> Broker:
        """The broker of `--embedded`; beyond this machine it is reached if the address is not that of this one."""
        host, _, port = self.url.split("//")[-1].rpartition(":")
        everywhere = "127.0.0.1" if host in ("127.0.0.1", "localhost") else "0.0.0.0"
        tls = self.folder if self.creds.ca else None
        return Broker(self.folder / "broker", self.roster, tls=tls, host=everywhere, port=int(port))


async def serve_one(
    session: Session,
    spec: Spec,
    folder: Path,
    place: Place,
    wait: int | None,
    options: DeployOptions,
    metrics: int | None,
) -> Result:
    """Serve one run of an experiment."""
    broker = place.broker() if place.embedded else None
    async with connected(place.creds, place.url, broker, 30) as link:
        with display(Console(stderr=True), 1) as shown:
            names = list(place.roster.clients)
            return await _serve_one(session, spec, folder, link, names, options, shown, metrics, wait)


async def ask(creds: keys.Creds, url: str) -> dict[str, Any]:
    """How the run that is being served stands."""
    async with connected(creds, url) as link:
        try:
            answer = await link.client.request(f"{link.root}.ask", b"", timeout=5)
        except (NoRespondersError, NatsTimeoutError):
            raise OffbeatError("nobody serves this federation now") from None
    found: dict[str, Any] = json.loads(answer.data)
    return found


async def append(creds: keys.Creds, url: str, kind: str, header: dict[str, Any]) -> None:
    """Add an entry to the log of the run that is being served, as the server."""
    async with connected(creds, url) as link:
        charter = await read_charter(link)
        if charter is None or "run" not in charter:
            raise OffbeatError("this federation has no run")
        run = str(charter["run"])
        await link.store(f"{run}.log", wire.pack(kind, {"run": run, **header}))


async def replay(plan: Plan, end: int, creds: keys.Creds, url: str, broker: Broker | None) -> str:
    """Fold a run's log again up to this position; gives the fingerprint of the state there."""
    async with connected(creds, url, broker, 10) as link:
        return fingerprint(await refold(link, plan, end))
