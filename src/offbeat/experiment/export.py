"""What a run leaves behind, in formats that others read: parameters, and a trace of what its jobs took."""

from __future__ import annotations

import contextlib
from pathlib import Path

from safetensors.torch import load_file, save_file

from offbeat.core.errors import FolderError
from offbeat.core.vectors import Vector
from offbeat.deploy.ledger import Ledger
from offbeat.deploy.trace import write_trace
from offbeat.experiment import folder as folders
from offbeat.experiment.experiment import Experiment, Spec
from offbeat.experiment.session import Session
from offbeat.simulate.world import World
from offbeat.watch import checkpoint
from offbeat.watch.files import MODEL
from offbeat.watch.folder import RunFolder


def export(run: Path, file: Path) -> dict[str, Vector]:
    """Write a run's model, finished or not, as named parameters that `load_state_dict` takes; gives them, too."""
    experiment, spec = run_of(run)
    problems = Session(experiment).problems(spec)
    tensors: dict[str, Vector] = {}
    for problem, vector in zip(problems, _models(run, experiment, spec), strict=True):
        flat = getattr(problem, "flat", None)
        views = flat.views(vector) if flat is not None else {"vector": vector}
        prefix = f"{problem.name}." if len(problems) > 1 else ""
        tensors |= {f"{prefix}{name}": view.contiguous().clone() for name, view in views.items()}
    save_file(tensors, file)
    return tensors


def _models(run: Path, experiment: Experiment, spec: Spec) -> list[Vector]:
    if (run / MODEL).exists():
        return list(load_file(run / MODEL).values())
    server = experiment.algorithms[spec.label].server
    for kind in (Ledger, World):
        with contextlib.suppress(FolderError):
            if found := checkpoint.restore(kind, run):
                return [model.vector for model in server.models(found[0].server)]
    raise FolderError(f"{run} has neither a model nor a checkpoint")


def trace(run: Path, out: Path) -> int:
    """Write a real run's measured times as a trace that `[timing] trace` replays; gives the number of rows."""
    done = RunFolder(run).result()
    return write_trace(run, out, done.real.unit if done and done.real else 1.0)


def run_of(run: Path) -> tuple[Experiment, Spec]:
    """The experiment and the run of a run's own folder."""
    experiment = folders.open_experiment(run.parent)
    spec = next((s for s in experiment.runs if s.folder == run.name), None)
    if spec is None:
        raise FolderError(f"{run} is not a run of the experiment in {run.parent}")
    return experiment, spec
