"""Serving real runs: the broker, the client processes of `offbeat up`, one run after the other."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from offbeat.core.errors import DivergedError, InterruptedRunError, OffbeatError, SettingError
from offbeat.core.names import all_imported
from offbeat.core.watcher import ARRIVED, EventRow, Measurement
from offbeat.deploy import identity, keys
from offbeat.deploy.board import Board, change_board, read_board
from offbeat.deploy.broker import Broker, die_with_parent
from offbeat.deploy.connection import FAILURES, addresses
from offbeat.deploy.doctor import disk
from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.link import Link
from offbeat.deploy.logs import logged, note, plain
from offbeat.deploy.metrics import exposed
from offbeat.deploy.plan import Plan
from offbeat.deploy.refold import fingerprint, refold
from offbeat.deploy.server import RunServer
from offbeat.experiment.admin import connected
from offbeat.experiment.experiment import Experiment, Spec
from offbeat.experiment.real import (
    DeployedRun,
    DeployOptions,
    RunIdentity,
    charter_of,
    measure_of,
    new_identity,
    plan_of,
    problems_of,
    same_run,
    save_identity,
    saved_identity,
)
from offbeat.experiment.session import Session
from offbeat.watch.files import OWNER, REAL_RUN, SERVER_LOG, room
from offbeat.watch.folder import RunFolder
from offbeat.watch.measures import measure
from offbeat.watch.progress import Display, display
from offbeat.watch.results import Deployment, Result
from offbeat.watch.session import summary


async def serve_all(
    session: Session, folder: Path, options: DeployOptions, processes: int | None, metrics: int | None, sync: bool
) -> list[Result]:
    """Everything on this machine: broker, clients, and every run of the experiment one after the other."""
    experiment = session.experiment
    count = experiment.tasks[0].problem.clients
    names = [f"c{number:0{len(str(count - 1))}d}" for number in range(count)]
    place = folder / "keys"
    if not (place / identity.ROSTER).exists():
        keys.init(place, names, "up", tls=False)
    secure = experiment.secure if experiment.secure is not None and experiment.secure.mode == "helper" else None
    if secure is not None and identity.read_roster(place).helper is None:
        keys.add_helper(place)
    roster, broker = identity.read_roster(place), Broker(folder / "broker", place, sync=sync)
    results: list[Result] = []
    async with connected(identity.read_creds(place / identity.SERVER), "", broker, 20) as link:
        many = processes or min(count, 8)
        cohort = None if secure is None else secure.cohort
        clients = ClientProcesses(folder, broker.url, names, many, experiment.table, options.data, cohort)
        watch = asyncio.create_task(look_after(broker))
        try:
            with display(Console(stderr=True), len(experiment.runs)) as shown:
                for spec in experiment.runs:
                    done = RunFolder(folder / spec.folder).result()
                    if done is not None:
                        shown.end(f"{spec.name}: finished before")
                    else:
                        last = spec is experiment.runs[-1]
                        done = await _serve_one(
                            session, spec, folder, link, roster, options, shown, metrics, last=last, clients=clients
                        )
                    results.append(done)
            await change_board(link, lambda board: replace(board, closed=True))
            await clients.finish()
        finally:
            watch.cancel()
            clients.stop()
    return results


class ClientProcesses:
    """The client processes of `offbeat up`; one that dies is started again.

    table: of the experiment; what it names outside offbeat is the same user's, so the clients may import it.
    data: the loader of their samples, if they bring them.   cohort: with a helper, too, which opens no smaller sums.
    """

    def __init__(
        self,
        folder: Path,
        url: str,
        names: Sequence[str],
        processes: int,
        table: Mapping[str, Any],
        data: str = "",
        cohort: int | None = None,
    ) -> None:
        self.folder, self.url = folder, url
        self.options = [word for name in all_imported(table) for word in ("--allow", name)]
        self.options += ["--data", data] if data else []
        self.shares = [list(names[at::processes]) for at in range(min(processes, len(names)))]
        self.shares += [] if cohort is None else [[identity.HELPER]]
        self.cohort = cohort
        self.deaths = 0
        (folder / "clients").mkdir(exist_ok=True)
        self.processes = [self._start(share) for share in self.shares]

    def _start(self, share: Sequence[str]) -> subprocess.Popen[bytes]:
        words = [word for name in share for word in ("--keys", str(self.folder / "keys" / f"{name}.creds"))]
        command = [sys.executable, "-m", "offbeat", "join", *words, *self.options]
        if share == [identity.HELPER]:
            command = [sys.executable, "-m", "offbeat", "helper", *words, "--cohort", str(self.cohort)]
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
                    raise OffbeatError(f"the client processes keep ending; see {self.folder / 'clients' / '*.log'}")
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


class Failures:
    """Notices when no client can do its jobs, and why; a run would go on like this for ever."""

    def __init__(self, clients: int) -> None:
        self.clients, self.applied = clients, 0
        self.reasons: list[tuple[int, str]] = []

    def event(self, row: EventRow) -> None:
        if row.event == ARRIVED:
            self.applied += 1
        elif not self.applied and row.reason.startswith("failed: "):
            self.reasons.append((row.client, row.reason.removeprefix("failed: ")))

    def measured(self, measurement: Measurement) -> None:
        pass

    def look(self, logs: Path | None) -> None:
        """Raise an error if every client has failed, or as many jobs as three each would be.

        logs: of clients on this machine; None: they are elsewhere, and may be put right there, so this is only said.
        """
        failed = len(self.reasons)
        everybody = len({client for client, _ in self.reasons}) == self.clients and failed >= 3
        if self.applied or not (everybody or failed >= 3 * self.clients):
            return
        text = f"all {failed} jobs so far have failed; the last one: {plain(self.reasons[-1][1])}"
        if logs is not None:
            raise OffbeatError(f"{text}; see {logs}/*.log")
        self.reasons.clear()
        note(text, "error")


async def _serve_one(
    session: Session,
    spec: Spec,
    folder: Path,
    link: Link,
    roster: identity.Roster,
    options: DeployOptions,
    shown: Display,
    metrics: int | None,
    wait: int | None = None,
    last: bool = False,
    clients: ClientProcesses | None = None,
    identity: RunIdentity | None = None,
    alone: bool = False,
) -> Result:
    """Serve one run to its end. identity: which one, if it is there already.   alone: unless another one begins it."""
    experiment, problems = session.experiment, problems_of(session, spec)
    place = folder / spec.folder
    place.mkdir(parents=True, exist_ok=True, mode=OWNER)
    identity = saved_identity(place) or (save_identity(place, identity) if identity else None)
    begins, identity = identity is None, identity or new_identity(spec, place, roster.active)
    name = identity.run
    plan = plan_of(session, spec, name, identity.roster, options, link.creds.federation)
    if plan.helped and roster.helper is None:
        raise SettingError(
            "the experiment has a [secure] table, and the roster no helper; make its keys with `offbeat keys helper`, "
            "give them to a second party, and let that run `offbeat helper`; or let the clients mask for each other, "
            'with mode = "cohort"'
        )
    charter = charter_of(experiment, spec, plan, options, last)
    if begins and alone:
        await claim(link, experiment, spec, place, charter)
    shown.begin(spec.name)

    def tick(server: RunServer) -> None:
        if clients is not None:
            clients.look()
        failures.look(place.parent / "clients" if clients else None)
        shown.tick(watched, server.recorder)
        if (line := shown.progress.line) and "there" not in line:
            shown.progress.line = f"{line}\n{_around(server)}"

    log = logged(place / SERVER_LOG, options.level or "info", options.style or "json")
    with room(place, "start this again"), log:
        server = RunServer(
            plan,
            link,
            place,
            charter,
            roster,
            measure=measure_of(problems),
            every=experiment.evaluate.every,
            wait=wait,
            tick=tick,
            trim=options.trim,
            replicas=options.replicas,
            models=max(1 << 30, 32 * max(x.numel() * x.element_size() for x in plan.initial)),
        )
        watched, failures = DeployedRun(server, problems), Failures(len(plan.roster))
        reducer = server.core.reducer
        reducer.watch([*reducer.watchers, failures])
        try:
            await _serving(server, metrics)
        except DivergedError as error:  # the other runs of the experiment still count
            shown.end(f"{spec.name}: diverged")
            result = Result(spec.label, spec.seed, error=str(error), folder=place)
            RunFolder(place).finish(result)
            return result
    if server.asked:
        again = f"continue by repeating the command with --out {folder}"
        raise InterruptedRunError(f"{spec.name}: stopped at time {server.ledger.now:g} and saved; {again}")
    tally = server.ledger.tally
    result = replace(
        summary(watched, server.recorder, server.wall, experiment.evaluate, algorithm=spec.label, seed=spec.seed),
        measures=measure(place, watched) if tally.updates else None,
        refused=server.refused,
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
    spent = f"{result.updates:,} updates in {server.wall:.1f} s"
    shown.end(f"{spec.name}: {said or server.ledger.stopped} after {spent}{result.remark}")
    return result


def _around(server: RunServer) -> str:
    """Who is there and how the log goes, in one line."""
    ledger = server.ledger
    there = sum(record.present for record in ledger.clients)
    refused = sum(server.refused.values())
    parts = [f"{there} of {len(ledger.clients)} clients there", f"{ledger.tally.lost} jobs lost", f"{refused} refused"]
    return " · ".join([*parts, f"log {ledger.position:,}, {1e3 * server.lag:.0f} ms behind"])


async def _serving(server: RunServer, metrics: int | None) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.leave)
    with exposed(server, metrics) as health:
        beside = [asyncio.create_task(health.beat()), asyncio.create_task(_watch(server.folder))]
        try:
            await server.run()
        finally:
            for task in beside:
                task.cancel()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


async def _watch(folder: Path) -> None:
    """Say loudly that the disk is nearly full; the connection says itself that it is lost."""
    while True:
        found = disk(folder)
        if found.level != "ok":
            note(found.line, "error" if found.level == "problem" else "warning")
        await asyncio.sleep(10)


async def look_after(broker: Broker) -> None:
    """Say loudly that the broker of this process has ended or that its disk is nearly full, and start it again."""
    watch = asyncio.create_task(_watch(broker.folder))
    try:
        while True:
            await asyncio.sleep(1.0)
            if broker.process is not None and (code := broker.process.poll()) is not None:
                note(f"the broker has ended with {code}; it is started again", "error")
                try:
                    await asyncio.to_thread(broker.start)
                except OffbeatError as error:
                    note(f"{error}. Trying again", "error")
                    await asyncio.sleep(10.0)
    finally:
        watch.cancel()


@dataclass(frozen=True)
class Place:
    """Who serves, and where: the server's keys, the roster, the folder they are in, the broker."""

    creds: identity.Creds
    roster: identity.Roster
    folder: Path
    url: str
    embedded: bool

    def broker(self) -> Broker:
        """The broker of `--embedded`; beyond this machine it is reached if the address is not that of this one."""
        address, *others = addresses(self.creds, self.url)
        if others:
            raise SettingError(f"--nats {self.url!r}: --embedded runs one broker; name one address")
        parts = urlsplit(address)
        everywhere = "127.0.0.1" if parts.hostname in ("127.0.0.1", "localhost") else "0.0.0.0"
        return Broker(self.folder / "broker", self.folder, host=everywhere, port=parts.port or 0)


async def serve_one(
    session: Session,
    spec: Spec,
    folder: Path,
    place: Place,
    wait: int | None,
    options: DeployOptions,
    metrics: int | None,
    identity: RunIdentity | None,
) -> Result:
    """Serve one run of an experiment. identity: which one, if it is there already."""
    broker = place.broker() if place.embedded else None
    watch = asyncio.create_task(look_after(broker)) if broker else None
    try:
        async with connected(place.creds, place.url, broker, 30) as link:
            with display(Console(stderr=True), 1) as shown:
                return await _serve_one(
                    session,
                    spec,
                    folder,
                    link,
                    place.roster,
                    options,
                    shown,
                    metrics,
                    wait,
                    identity=identity,
                    alone=not place.embedded and not options.new,
                )
    finally:
        if watch is not None:
            watch.cancel()


async def claim(link: Link, experiment: Experiment, spec: Spec, place: Path, charter: Mapping[str, Any]) -> None:
    """Put a run that begins on the board; an error if another server has begun the same one a moment ago."""
    run = str(charter["run"])

    def with_run(board: Board) -> Board:
        return board.with_run(run, charter) if same_run(board.runs.values(), experiment, spec) is None else board

    await link.insist(link.make_board)
    board = await link.insist(lambda: change_board(link, with_run))
    found = same_run(board.runs.values(), experiment, spec)
    if found is not None and found.run != run:
        (place / REAL_RUN).unlink()
        raise OffbeatError(f"another server has begun {found.run} a moment ago; start this one again, and it stands by")


async def active(creds: identity.Creds, url: str, experiment: Experiment, spec: Spec) -> RunIdentity | None:
    """The same run of the same experiment, if it is on the federation's board."""
    async with connected(creds, url, patience=30) as link:
        with contextlib.suppress(*FAILURES, RefusedError):
            if (board := await read_board(link)) is not None:
                return same_run(board.runs.values(), experiment, spec)
    return None


async def replay(plan: Plan, end: int, creds: identity.Creds, url: str, broker: Broker | None) -> str:
    """Fold a run's log again up to this position; gives the fingerprint of the state there."""
    async with connected(creds, url, broker, 10) as link:
        return fingerprint(await refold(link, plan, end))
