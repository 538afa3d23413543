"""Asynchronous federated learning: pick or write an algorithm, simulate it in virtual time, then run it for real.

    import offbeat as ob

    experiment = ob.load("experiment.toml", {"until.time": 2.0})
    results = experiment.run("runs/mine")

The names below, and what `offbeat.algorithms`, `offbeat.data`, `offbeat.local`, `offbeat.models` and `offbeat.timing`
export, are the public interface. They are imported when first used, so that `import offbeat` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offbeat import algorithms, data, local, models, report, theory, timing
    from offbeat.algorithms import AREA, FedAsync, FedAvg, FedBuff
    from offbeat.core.course import Until
    from offbeat.core.errors import OffbeatError
    from offbeat.core.events import Alarm, Job, Recall, Send, Stop, Update
    from offbeat.core.local import Local, Work, Wrapper
    from offbeat.core.problem import Problem
    from offbeat.core.server import Algorithm, Commands, Model, Server, View
    from offbeat.core.state import State
    from offbeat.core.vectors import Vector, lengths
    from offbeat.core.watcher import Watcher
    from offbeat.experiment.experiment import Experiment, load
    from offbeat.experiment.results import Results
    from offbeat.experiment.run import Run, run
    from offbeat.experiment.runs import open as open, resume
    from offbeat.local.sgd import SGD
    from offbeat.problems.quadratic import Quadratic
    from offbeat.problems.supervised import Supervised
    from offbeat.simulate.personal import Personal
    from offbeat.simulate.run import Evaluate
    from offbeat.watch.results import Result

__version__ = "0.1.0"

_HOMES = {
    "offbeat.algorithms": ("AREA", "FedAsync", "FedAvg", "FedBuff"),
    "offbeat.core.errors": ("OffbeatError",),
    "offbeat.core.events": ("Alarm", "Job", "Recall", "Send", "Stop", "Update"),
    "offbeat.core.local": ("Local", "Work", "Wrapper"),
    "offbeat.core.problem": ("Problem",),
    "offbeat.core.server": ("Algorithm", "Commands", "Model", "Server", "View"),
    "offbeat.core.state": ("State",),
    "offbeat.core.vectors": ("Vector", "lengths"),
    "offbeat.experiment.experiment": ("Experiment", "load"),
    "offbeat.experiment.results": ("Results",),
    "offbeat.experiment.run": ("Run", "run"),
    "offbeat.experiment.runs": ("open", "resume"),
    "offbeat.local.sgd": ("SGD",),
    "offbeat.problems.quadratic": ("Quadratic",),
    "offbeat.problems.supervised": ("Supervised",),
    "offbeat.core.watcher": ("Watcher",),
    "offbeat.core.course": ("Until",),
    "offbeat.simulate.personal": ("Personal",),
    "offbeat.simulate.run": ("Evaluate",),
    "offbeat.watch.results": ("Result",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = ("algorithms", "data", "local", "models", "report", "theory", "timing")

__all__ = [
    "AREA",
    "SGD",
    "Alarm",
    "Algorithm",
    "Commands",
    "Evaluate",
    "Experiment",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "Job",
    "Local",
    "Model",
    "OffbeatError",
    "Personal",
    "Problem",
    "Quadratic",
    "Recall",
    "Result",
    "Results",
    "Run",
    "Send",
    "Server",
    "State",
    "Stop",
    "Supervised",
    "Until",
    "Update",
    "Vector",
    "View",
    "Watcher",
    "Work",
    "Wrapper",
    "algorithms",
    "data",
    "lengths",
    "load",
    "local",
    "models",
    "report",
    "resume",
    "run",
    "theory",
    "timing",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"offbeat.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'offbeat' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOME, "__version__", "__doc__"})  # `open` is not in __all__: it would hide Python's own
