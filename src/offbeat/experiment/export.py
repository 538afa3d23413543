"""What a run leaves behind, in formats that others read: its model with a card, and a trace of what its jobs took."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import load_file, save_file

from offbeat.core.errors import FolderError, SettingError
from offbeat.core.problem import Problem
from offbeat.core.vectors import Vector
from offbeat.experiment.card import card
from offbeat.experiment.experiment import Experiment, Spec
from offbeat.experiment.folder import open_run
from offbeat.experiment.session import Session
from offbeat.models.lora import merged
from offbeat.models.modules import trained
from offbeat.simulate.world import World
from offbeat.watch import checkpoint
from offbeat.watch.files import MODEL, write_text
from offbeat.watch.folder import RunFolder

Format = Literal["safetensors", "state-dict", "hf", "onnx"]
_README = "README.md"


def export(run: Path, file: Path, to: Format = "safetensors") -> dict[str, Vector]:
    """Write a run's model, finished or not, and a card that says how it was made; gives the tensors, too.

    to: "safetensors": the trained parameters by name; those of several tasks in one file, their names before.
        "state-dict": all that `load_state_dict` takes, frozen parameters and buffers included, likewise as safetensors,
        since loading a pickle runs code; of several tasks, a file each. "hf": a folder for
        `from_pretrained`, of models that have `save_pretrained`; adapters become part of their layers' weights.
    """
    if to not in get_args(Format):
        raise SettingError(f"--to {to}: must be one of {', '.join(get_args(Format))}")
    if to == "onnx":
        raise SettingError(
            "--to onnx: PyTorch needs the packages onnx and onnxscript for it; install them, and call "
            "torch.onnx.export(result.module(), example_inputs, file)"
        )
    experiment, spec = open_run(run)
    made = Session(experiment).problems(spec)
    pairs = list(zip(made, _models(run, experiment, spec), strict=True))
    places = [_place(file, problem, len(made)) for problem in made]
    tensors: dict[str, Vector] = {}
    for (problem, vector), place in zip(pairs, places, strict=True):
        prefix = f"{problem.name}." if len(made) > 1 else ""
        found = _tensors(problem, vector) if to == "safetensors" else _written(problem, vector, place, to)
        tensors |= {f"{prefix}{name}": value for name, value in found.items()}
    if to == "safetensors":
        save_file(tensors, file)
    for number, place in enumerate(places):
        text = card(run, experiment, spec, number, made[number], file if to == "safetensors" else place, to)
        write_text(place / _README if to == "hf" else place.with_suffix(".md"), text)
    return tensors


def _place(file: Path, problem: Problem, tasks: int) -> Path:
    """Where one task's model goes: of several, each has its name in it."""
    return file if tasks == 1 else file.with_name(f"{file.stem}.{problem.name}{file.suffix}")


def _tensors(problem: Problem, vector: Vector) -> dict[str, Vector]:
    """What the server has trained, by name; what has no module is one vector."""
    flat = getattr(problem, "flat", None)
    if flat is None:
        return {"vector": vector}
    found, left = dict[str, Vector](), flat.dim
    for name, view in flat.views(flat.whole(vector)).items():
        if left > 0:  # what comes after that are clients' own parts
            found[name], left = view.contiguous().clone(), left - view.numel()
    return found


def _written(problem: Problem, vector: Vector, place: Path, to: Format) -> dict[str, Vector]:
    """A module's whole state, written."""
    module = trained(problem, vector)
    if to == "hf":
        module = merged(module)
    state = {name: value.detach().contiguous().clone() for name, value in module.state_dict().items() if _is(value)}
    if to == "state-dict":
        save_file(state, place)
        return state
    save: Any = getattr(module, "save_pretrained", None)
    if not callable(save):
        raise SettingError(f'--to hf: {type(module).__name__} has no save_pretrained; use "state-dict"')
    save(place)
    return state


def _is(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _models(run: Path, experiment: Experiment, spec: Spec) -> list[Vector]:
    if (run / MODEL).exists():
        return list(load_file(run / MODEL).values())
    server = experiment.algorithms[spec.label].server
    for kind in _states():
        with contextlib.suppress(FolderError):
            if found := checkpoint.restore(kind, run):
                return [model.vector for model in server.models(found[0].server)]
    raise FolderError(f"{run} has neither a model nor a checkpoint")


def _states() -> Iterator[type[Any]]:
    """What a checkpoint may be of; only that of a real run needs the packages of the extra deploy."""
    yield World
    from offbeat.deploy.ledger import Ledger

    yield Ledger


def trace(run: Path, out: Path) -> int:
    """Write a real run's measured times as a trace that `[timing] trace` replays; gives the number of rows."""
    from offbeat.deploy.trace import write_trace

    done = RunFolder(run).result()
    return write_trace(run, out, done.real.unit if done and done.real else 1.0)
