"""Real runs: everything on one machine, or a server and clients at their sites."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offbeat.core import names
from offbeat.core.errors import FolderError, OffbeatError, SettingError, positive
from offbeat.deploy import keys as identities
from offbeat.deploy.broker import Broker
from offbeat.experiment import folder as folders, joining, serving
from offbeat.experiment.experiment import Experiment, read
from offbeat.experiment.export import run_of
from offbeat.experiment.overrides import Overrides
from offbeat.experiment.real import DeployOptions, Limits, Partner, plan_of, state_folder
from offbeat.experiment.results import Results
from offbeat.experiment.runs import sum_up
from offbeat.experiment.session import Session
from offbeat.simulate.threads import computing
from offbeat.watch.files import EXPERIMENT, locked
from offbeat.watch.folder import RunFolder

__all__ = ["DeployOptions", "Limits", "experiment_for", "join", "replay", "retire", "serve", "status", "up"]

URL = "tls://127.0.0.1:4222"


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
        folder = _folder(out, experiment)
        served = locked(folder, f"{folder} is being served by another process")
        with served, computing((), experiment.threads or 1):
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
    creds, roster = identities.read_creds(keys), identities.read_roster(keys.parent)
    if creds.client:
        raise SettingError(f"{keys} are the keys of the client {creds.client}; the server's are in server.creds")
    experiment, options = experiment_for(file, overrides, len(roster.clients)), options or DeployOptions()
    chosen = [s for s in experiment.runs if algorithm in (None, s.label) and seed in (None, s.seed)]
    if len(chosen) != 1:
        listed = ", ".join(s.name for s in experiment.runs)
        raise SettingError(f"the file asks for several runs ({listed}); choose one with --algorithm and --seed")
    with contextlib.closing(Session(experiment)) as session:
        plan_of(session, chosen[0], "serve", list(roster.clients), options)
        folder = _folder(out, experiment)
        place = serving.Place(creds, roster, keys.parent, url, embedded)
        served = locked(folder, f"{folder} is being served by another process")
        with served, computing((), experiment.threads or 1):
            result = asyncio.run(serving.serve_one(session, chosen[0], folder, place, wait, options, metrics))
    return sum_up(folder, experiment, [result])


def join(
    keys: Sequence[Path],
    *,
    url: str = URL,
    data: str = "",
    holdout: float = 0.2,
    models: Sequence[str] = (),
    device: str = "",
    state: Path | None = None,
    once: bool = False,
    until_closed: bool = False,
) -> None:
    """Take part in the runs of a federation with these identities, until there is nothing more to do.

    data: `package.module:function` that gives this client's own samples.   holdout: share kept for evaluation.
    models: names outside offbeat that the server may ask for; nothing else is imported at its word.
    state: folder for the clients' state, which must be kept.   once: leave when a run is over.
    """
    creds = [identities.read_creds(path) for path in keys]
    if not all(each.client for each in creds):
        raise SettingError("these are the server's keys; a client has its own file")
    names.search(os.getcwd())  # a site's own loader lies where it is started
    partner = Partner(data, models, device, holdout)
    with computing((), 1):
        error = asyncio.run(joining.take_part(creds, url, partner, state or state_folder(), once, until_closed))
    if error:
        raise OffbeatError(error)


def status(keys: Path, url: str = URL) -> dict[str, Any]:
    """How the run of a federation stands, asked of its server."""
    return asyncio.run(serving.ask(identities.read_creds(keys), url))


def retire(client: str, keys: Path, url: str = URL) -> None:
    """Take a client out of the run for good; what it has contributed stays."""
    creds, roster = identities.read_creds(keys), identities.read_roster(keys.parent)
    if client not in roster.clients:
        raise SettingError(f"{client} is not on the roster")
    asyncio.run(serving.append(creds, url, "retired", {"client": list(roster.clients).index(client)}))


def replay(run: Path, keys: Path | None = None, url: str = URL) -> tuple[int, str]:
    """Fold the log of a finished run again: (entries, fingerprint of the state), an error if the state is another.

    keys: the server's; None: a run of `up`, whose broker is started again.
    """
    experiment, spec = run_of(run)
    done = RunFolder(run).result()
    if done is None or done.real is None:
        raise FolderError(f"{run} is not the folder of a finished real run")
    made = done.real
    place = run.parent / "keys" if keys is None else keys.parent
    roster, creds = identities.read_roster(place), identities.read_creds(keys or place / identities.SERVER)
    options = DeployOptions(made.unit, False, Limits(**made.limits), made.dtype)
    with contextlib.closing(Session(experiment)) as session:
        plan = plan_of(session, spec, made.run, list(roster.clients), options)
    broker = Broker(run.parent / "broker", roster) if keys is None else None
    found = asyncio.run(serving.replay(plan, made.position, creds, url, broker))
    if found != made.fingerprint:
        raise OffbeatError(f"{run}: the log gives another state ({found[:16]}, not {made.fingerprint[:16]})")
    return made.position, found


def _folder(out: Path | str | None, experiment: Experiment) -> Path:
    """The run folder; one that holds the same experiment continues it."""
    folder = None if out is None else Path(out)
    if folder is None or not (folder / EXPERIMENT).exists():
        return folders.create(folder, experiment)
    if folders.open_experiment(folder).table != experiment.table:
        raise FolderError(f"{folder} holds another experiment; name another folder")
    return folder
