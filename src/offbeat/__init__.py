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
    from offbeat import (
        algorithms as algorithms,
        data as data,
        local as local,
        models as models,
        report as report,
        theory as theory,
        timing as timing,
    )
    from offbeat.algorithms import AREA as AREA, FedAsync as FedAsync, FedAvg as FedAvg, FedBuff as FedBuff
    from offbeat.core.algorithm import Algorithm as Algorithm
    from offbeat.core.errors import OffbeatError as OffbeatError
    from offbeat.core.events import (
        Alarm as Alarm,
        Cancel as Cancel,
        Job as Job,
        Recall as Recall,
        Send as Send,
        Stop as Stop,
        Update as Update,
    )
    from offbeat.core.local import Local as Local, Work as Work, Wrapper as Wrapper
    from offbeat.core.metric import Goal as Goal, Metric as Metric
    from offbeat.core.problem import Problem as Problem
    from offbeat.core.server import Commands as Commands, Model as Model, Server as Server, View as View
    from offbeat.core.state import State as State
    from offbeat.core.until import Until as Until
    from offbeat.core.vectors import Vector as Vector, lengths as lengths
    from offbeat.core.watcher import Watcher as Watcher
    from offbeat.experiment.experiment import Experiment as Experiment, load as load
    from offbeat.experiment.results import Results as Results
    from offbeat.experiment.run import Run as Run, run as run
    from offbeat.experiment.runs import open as open, resume as resume
    from offbeat.local.loop import Loop as Loop
    from offbeat.local.sgd import SGD as SGD
    from offbeat.problems.quadratic import Quadratic as Quadratic
    from offbeat.problems.supervised import Supervised as Supervised
    from offbeat.simulate.personal import Personal as Personal
    from offbeat.simulate.run import Evaluate as Evaluate
    from offbeat.watch.results import Result as Result

__version__ = "0.1.0"

_HOMES = {
    "offbeat.algorithms": ("AREA", "FedAsync", "FedAvg", "FedBuff"),
    "offbeat.core.errors": ("OffbeatError",),
    "offbeat.core.events": ("Alarm", "Cancel", "Job", "Recall", "Send", "Stop", "Update"),
    "offbeat.core.local": ("Local", "Work", "Wrapper"),
    "offbeat.core.metric": ("Goal", "Metric"),
    "offbeat.core.problem": ("Problem",),
    "offbeat.core.algorithm": ("Algorithm",),
    "offbeat.core.server": ("Commands", "Model", "Server", "View"),
    "offbeat.core.state": ("State",),
    "offbeat.core.vectors": ("Vector", "lengths"),
    "offbeat.experiment.experiment": ("Experiment", "load"),
    "offbeat.experiment.results": ("Results",),
    "offbeat.experiment.run": ("Run", "run"),
    "offbeat.experiment.runs": ("open", "resume"),
    "offbeat.local.loop": ("Loop",),
    "offbeat.local.sgd": ("SGD",),
    "offbeat.problems.quadratic": ("Quadratic",),
    "offbeat.problems.supervised": ("Supervised",),
    "offbeat.core.watcher": ("Watcher",),
    "offbeat.core.until": ("Until",),
    "offbeat.simulate.personal": ("Personal",),
    "offbeat.simulate.run": ("Evaluate",),
    "offbeat.watch.results": ("Result",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = ("algorithms", "data", "local", "models", "report", "theory", "timing")

# `open` is not among them: it would hide Python's own
__all__ = sorted({*_HOME, *_MODULES} - {"open"}, key=lambda name: (not name.isupper(), name[0].islower(), name))


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"offbeat.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'offbeat' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOME, "__version__", "__doc__"})
