"""A model card: what a trained model is, what it was trained on and how, and what it achieved, in Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from offbeat.core.metric import LOSS
from offbeat.core.problem import Problem
from offbeat.experiment import folder as folders
from offbeat.experiment.experiment import Experiment, Spec
from offbeat.problems.supervised import Supervised
from offbeat.watch.folder import RunFolder
from offbeat.watch.results import Result

_PERSONAL = "personal"


def card(run: Path, experiment: Experiment, spec: Spec, number: int, problem: Problem, file: Path, to: str) -> str:
    """The card of one task's model of a run, finished or not; file: where the model is."""
    task, result = experiment.tasks[number], RunFolder(run).result()
    algorithm = experiment.algorithms[spec.label]
    local = algorithm.locals(len(experiment.tasks))[number]
    lines = [
        f"# {problem.name}, trained with {spec.label}",
        "",
        *_table("", _model(problem, file, to)),
        *_table("Data", {**_data(problem), "clients": f"{problem.clients:,}", "as set": f"`{task!r}`"}),
        *_table("Training", {"server": f"`{algorithm.server!r}`", "local trainer": f"`{local!r}`", "seed": spec.seed}),
        *_table("Clock", _clock(experiment, result)),
        *_table("Results", _results(result, number)),
        *_note(result, number),
        *_table("Versions", folders.made_with(run.parent)),
        "## Experiment",
        "",
        "```json",
        json.dumps(experiment.table, indent=1, ensure_ascii=False),
        "```",
        "",
    ]
    return "\n".join(lines)


def _table(title: str, rows: Mapping[str, Any]) -> Iterator[str]:
    yield from [f"## {title}", ""] if title else []
    yield from ("| | |", "|---|---|")
    yield from (f"| {name} | {str(value).replace('|', chr(92) + '|')} |" for name, value in rows.items())
    yield ""


def _model(problem: Problem, file: Path, to: str) -> dict[str, Any]:
    flat = getattr(problem, "flat", None)
    rows = {"file": f"`{file.name}`, {_FORMATS[to]}", "trained": f"{problem.dim:,} numbers"}
    if flat is None:
        return rows
    everything = sum(p.numel() for p in flat.module.parameters())
    kind = type(flat.module)
    rows |= {"parameters": f"{everything:,}"}
    if flat.running is not None:
        rows |= {"running statistics": flat.statistics}
    if flat.dim < flat.size:
        own = f"{flat.size - flat.dim:,} numbers, which are here as every client had them at first"
        rows |= {
            "clients' own": own if to != "safetensors" else f"{flat.size - flat.dim:,} numbers, which are not here"
        }
    return {"model": f"`{kind.__module__}.{kind.__qualname__}`", **rows}


_FORMATS = {
    "safetensors": "trained parameters by name",
    "state-dict": "everything that `load_state_dict` takes; read it with `safetensors.torch.load_file`",
    "hf": "a folder for `from_pretrained`",
}


def _data(problem: Problem) -> dict[str, Any]:
    if not isinstance(problem, Supervised):
        return {"data": problem.name}
    data = problem.data
    return {
        "data": data.name,
        "samples": f"{len(data.train):,} to train on, {len(data.test):,} to test on",
        "loss": problem.objective.name + (f", l2 = {problem.l2:g}" if problem.l2 else ""),
    }


def _clock(experiment: Experiment, result: Result | None) -> dict[str, Any]:
    rows: dict[str, Any] = {"until": f"`{experiment.until!r}`"}
    if result is None:
        return {"timing": f"`{experiment.timing!r}`", **rows, "ended": "not yet: the run is not finished"}
    if result.real is not None:
        rows |= {"real run": f"`{result.real.run}`, a unit of time is {result.real.unit:g} s"}
    else:
        rows |= {"simulated": f"virtual time, `{experiment.timing!r}`"}
    return {**rows, "ended": f"at time {result.time:g}, {result.stopped}" if result.time is not None else result.error}


def _results(result: Result | None, number: int) -> dict[str, Any]:
    if result is None:
        return {"metrics": "the run is not finished"}
    task = result.tasks[number]
    own = {metric.name: metric for metric in (*task.measured, LOSS)}
    better = {
        name: f" ({'higher' if own[name].higher else 'lower'} is better)" if name in own else ""
        for name in task.metrics
    }
    return {
        **{name: f"{value:.6g}{better[name]}" for name, value in task.metrics.items()},
        "updates": f"{task.updates:,}",
        "server steps": f"{task.versions:,}",
        "mean staleness": f"{task.staleness:.3g}",
    }


def _note(result: Result | None, number: int) -> Iterator[str]:
    if result is not None and _PERSONAL in result.tasks[number].metrics:
        yield "`personal` and `personal_worst` are of the clients' own models, made from this one on their own data."
        yield ""
