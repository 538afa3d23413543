"""What `offbeat doctor` tries of an experiment: its model and data load, and a local step is made."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from offbeat.core import names
from offbeat.core.errors import OffbeatError
from offbeat.core.events import Job
from offbeat.deploy.client_data import ClientProblem
from offbeat.deploy.doctor import Finding
from offbeat.deploy.train import Training
from offbeat.experiment.describe import ClientDataTable
from offbeat.experiment.experiment import Experiment, Spec, read
from offbeat.experiment.overrides import Overrides
from offbeat.experiment.partner import Partner, samples
from offbeat.experiment.real import DeployOptions, charter_of, plan_of
from offbeat.experiment.session import Session
from offbeat.simulate.threads import computing


def training(
    file: Path | None, overrides: Overrides, client: str, data: str, holdout: float, device: str
) -> Iterator[Finding]:
    """What is to be trained loads, and a job of one local step is done. file: the experiment; None: only its data."""
    if file is None:
        yield _attempt("data", lambda: _loaded(data, client))
        return
    try:
        experiment = Experiment.parse(read(file, overrides))
    except OffbeatError as error:
        yield Finding("experiment", "problem", str(error), "correct it")
        return
    partner = partial(Partner, data, list(names.all_imported(experiment.table)), device, holdout)
    with computing((), 1):
        yield from _training(experiment, client, partner, bool(data))


def _loaded(data: str, client: str) -> str:
    given = samples(data, client)
    return f"{data} gives a {type(given).__name__}; name the experiment to have its shape checked"


def _training(experiment: Experiment, client: str, partner: Callable[[], Partner], brings: bool) -> Iterator[Finding]:
    """What is to be trained loads, and a job of one local step is done for each algorithm."""
    clients = experiment.tasks[0].problem.clients
    roster = [client or "c0", *(f"c{number}" for number in range(1, clients))]
    with contextlib.closing(Session(experiment)) as session:
        for spec in experiment.runs[: len(experiment.labels)]:
            yield _attempt(spec.label, partial(_plan, session, spec, roster))
            if brings or not any(isinstance(task.problem, ClientDataTable) for task in experiment.tasks):
                yield _attempt(spec.label, partial(_step, session, spec, roster, partner))
            elif client:
                yield Finding("data", "problem", "the clients of this experiment bring their data", "give --data")


def _plan(session: Session, spec: Spec, roster: Sequence[str]) -> str:
    plan = plan_of(session, spec, "doctor", roster, DeployOptions())
    sizes = [f"{plan.initial[task].numel():,}" for task in range(len(plan.locals))]
    largest = max(plan.update_bytes(task) for task in range(len(plan.locals)))
    size = f"{largest / 1e6:,.1f} MB" if largest >= 1e5 else f"{largest / 1e3:,.1f} KB"
    return f"a model of {' and '.join(sizes)} parameters, updates of up to {size}"


def _step(session: Session, spec: Spec, roster: Sequence[str], partner: Callable[[], Partner]) -> str:
    """One local step of each task, as the client does it."""
    experiment = session.experiment
    plan = plan_of(session, spec, "doctor", roster, DeployOptions())
    party = partner().party(charter_of(experiment, spec, plan, DeployOptions(), False), roster[0])
    began = time.monotonic()
    said = []
    for task, (problem, local) in enumerate(zip(party.problems, party.locals, strict=True)):
        first = problem.initial().cpu()
        job = Job(0, 0, task, 0, 1, local.lr, 0)
        sent = {name: first if name == "model" else torch.zeros_like(first) for name in plan.server.sends}
        training = Training(problem, local, job, sent, local.remember(first), spec.seed)
        training.step()
        training.result()
        if isinstance(problem, ClientProblem):
            said.append(f"{len(problem.inner.train):,} samples to train on, {problem.held:,} held out, ")
    return f"{''.join(said)}one local step in {1e3 * (time.monotonic() - began):,.1f} ms"


def _attempt(what: str, action: Callable[[], str]) -> Finding:
    try:
        return Finding(what, "ok", action())
    except OffbeatError as error:
        return Finding(what, "problem", str(error), "correct the experiment or the options")
    except Exception as error:  # of the user's own model or data
        return Finding(what, "problem", f"{type(error).__name__}: {error}", "correct the model or the data")
