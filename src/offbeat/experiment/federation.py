"""Real runs: everything on one machine, or the server of clients at their sites."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

from offbeat.core.errors import FolderError, OffbeatError, SettingError, positive
from offbeat.deploy.broker import Broker
from offbeat.deploy.identity import SERVER, read_creds, read_roster
from offbeat.deploy.logs import Level, logged
from offbeat.experiment import folder as folders, serving
from offbeat.experiment.admin import URL, server_creds, stopped_broker
from offbeat.experiment.describe import ClientDataTable
from offbeat.experiment.experiment import Experiment, read
from offbeat.experiment.folder import json_text, open_run
from offbeat.experiment.overrides import Overrides, differing
from offbeat.experiment.partner import loader
from offbeat.experiment.real import DeployOptions, Limits, plan_of, saved_identity
from offbeat.experiment.results import Results
from offbeat.experiment.runs import sum_up
from offbeat.experiment.session import Session
from offbeat.simulate.threads import computing
from offbeat.watch.files import EXPERIMENT, locked
from offbeat.watch.folder import RunFolder

__all__ = ["DeployOptions", "Limits", "experiment_for", "replay", "serve", "up"]


def experiment_for(file: Path | str | None, overrides: Overrides = (), clients: int | None = None) -> Experiment:
    """The experiment in a file, with this many clients."""
    table = read(file, overrides)
    count = {} if clients is None else {"clients.count" if "task" in table else "problem.clients": clients}
    return Experiment.parse(table, count)


def up(
    experiment: Experiment,
    out: Path | str | None = None,
    options: DeployOptions | None = None,
    *,
    processes: int | None = None,
    metrics: int | None = None,
    sync: bool = True,
) -> Results:
    """Run an experiment for real on this machine: broker, server and client processes.

    out: a folder that holds this experiment continues it.   processes: of clients; None: one each, at most 8.
    metrics: port on which Prometheus is answered.   sync: every message is on disk before it counts.
    """
    positive(processes=processes)
    options = options or DeployOptions()
    with contextlib.closing(Session(experiment)) as session:
        roster = [f"c{number}" for number in range(experiment.tasks[0].problem.clients)]
        for spec in experiment.runs[: len(experiment.labels)]:
            plan_of(session, spec, "up", roster, options)  # mistakes are found before anything is written
        own = any(isinstance(task.problem, ClientDataTable) for task in experiment.tasks)
        if own and not options.data:
            raise SettingError('data = "own": name the function that gives a client its samples with --data')
        if options.data and not own:
            raise SettingError('--data: the experiment names its own data; write data = "own" in it')
        if own:
            loader(options.data)
        folder = _folder(out, experiment, "offbeat up FILE")
        served = locked(folder, f"{folder} is being served by another process")
        with served, computing((), experiment.threads or 1), _logged(options, "warning"):
            results = asyncio.run(serving.serve_all(session, folder, options, processes, metrics, sync))
    return sum_up(folder, experiment, results)


def serve(
    file: Path | str,
    keys: Path,
    *,
    url: str = URL,
    embedded: bool = False,
    algorithm: str | None = None,
    seed: int | None = None,
    wait: int | None = None,
    overrides: Overrides = (),
    out: Path | str | None = None,
    options: DeployOptions | None = None,
    metrics: int | None = None,
) -> Results:
    """Serve one run of an experiment to the clients on the roster beside these keys.

    embedded: run the broker, too.   algorithm, seed: which run, if the file asks for several.
    wait: begin when so many clients are there; None: all.
    """
    positive(wait=wait)
    creds, roster, options = server_creds(keys), read_roster(keys.parent), options or DeployOptions()
    experiment = experiment_for(file, overrides, len(roster.active))
    chosen = [s for s in experiment.runs if algorithm in (None, s.label) and seed in (None, s.seed)]
    if len(chosen) != 1:
        listed = ", ".join(s.name for s in experiment.runs)
        raise SettingError(f"the file asks for several runs ({listed}); choose one with --algorithm and --seed")
    identity = None if out is None else saved_identity(Path(out) / chosen[0].folder)
    if identity is None and not embedded and not options.new:
        with _logged(options, "info"):
            identity = asyncio.run(serving.active(creds, url, experiment, chosen[0]))
    names = roster.active if identity is None else identity.roster
    experiment = experiment_for(file, overrides, len(names))  # as many as it began with
    with contextlib.closing(Session(experiment)) as session:
        plan_of(session, chosen[0], "serve", names, options)
        folder = _folder(out, experiment, "offbeat serve FILE --keys KEYS")
        place = serving.Place(creds, roster, keys.parent, url, embedded)
        served = locked(folder, f"{folder} is being served by another process")
        with served, computing((), experiment.threads or 1), _logged(options, "info"):
            result = asyncio.run(serving.serve_one(session, chosen[0], folder, place, wait, options, metrics, identity))
    return sum_up(folder, experiment, [result])


def _logged(options: DeployOptions, level: Level) -> contextlib.AbstractContextManager[None]:
    return logged(None, options.level or level, options.style or "text")


def replay(run: Path, keys: Path | None = None, url: str = URL) -> tuple[int, str]:
    """Fold the log of a finished run again: (entries, fingerprint of the state), an error if the state is another.

    keys: the server's; None: a run of `up`. A broker on this machine that has ended is started again.
    """
    experiment, spec = open_run(run)
    done = RunFolder(run).result()
    if done is None or done.real is None:
        raise FolderError(f"{run} is not the folder of a finished real run")
    made = done.real
    place = run.parent / "keys" if keys is None else keys.parent
    if keys is None and not place.exists():
        raise SettingError(
            f"{run} was not made by `offbeat up`; name the server's keys and broker with --keys and --nats"
        )
    creds, identity = read_creds(keys or place / SERVER), saved_identity(run)
    if identity is None:
        raise FolderError(f"{run} has no run.json, which says who took part")
    options = DeployOptions(made.unit, False, Limits(**made.limits), made.dtype)
    with contextlib.closing(Session(experiment)) as session:
        plan = plan_of(session, spec, made.run, identity.roster, options, creds.federation)
    broker = Broker(run.parent / "broker", place) if keys is None else stopped_broker(keys, creds, url)
    found = asyncio.run(serving.replay(plan, made.position, creds, url, broker))
    if found != made.fingerprint:
        raise OffbeatError(f"{run}: the log gives another state ({found[:16]}, not {made.fingerprint[:16]})")
    return made.position, found


def _folder(out: Path | str | None, experiment: Experiment, command: str) -> Path:
    """The run folder; one that holds the same experiment continues it."""
    folder = None if out is None else Path(out)
    if folder is None or not (folder / EXPERIMENT).exists():
        return folders.create(folder, experiment, real=command)
    if keys := list(differing(folders.open_experiment(folder).table, json.loads(json_text(experiment.table)))):
        raise FolderError(
            f"{folder} holds another experiment, which differs in {', '.join(keys)}; to continue that one, leave its "
            "settings as they were; for this one, name another folder with --out"
        )
    return folder
