"""Asynchronous federated learning: one definition of an algorithm, run in virtual time.

The names below are the public surface, together with what `offbeat.algorithms`, `offbeat.data`, `offbeat.models` and
`offbeat.timing` export. They are imported when first used, so that `import offbeat` costs nothing.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

# Threads of PyTorch that wait should sleep: by default they spin, and on a machine that others use too that made small
# models 20 times slower. It has an effect if PyTorch has not been imported yet; an explicit setting is left alone.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from offbeat.algorithms import AREA, FedAsync, FedAvg, FedBuff
    from offbeat.core.errors import OffbeatError
    from offbeat.core.events import Alarm, Job, Recall, Send, Stop, Update
    from offbeat.core.local import Local, Work
    from offbeat.core.problem import Problem
    from offbeat.core.server import Algorithm, Commands, Model, Server, View
    from offbeat.core.state import State
    from offbeat.experiment.run import Run, run
    from offbeat.local.sgd import SGD
    from offbeat.problems.quadratic import Quadratic
    from offbeat.problems.supervised import Supervised
    from offbeat.simulate.loop import Until
    from offbeat.simulate.personal import Personal

__version__ = "0.1.0"

_HOMES = {
    "offbeat.algorithms": ("AREA", "FedAsync", "FedAvg", "FedBuff"),
    "offbeat.core.errors": ("OffbeatError",),
    "offbeat.core.events": ("Alarm", "Job", "Recall", "Send", "Stop", "Update"),
    "offbeat.core.local": ("Local", "Work"),
    "offbeat.core.problem": ("Problem",),
    "offbeat.core.server": ("Algorithm", "Commands", "Model", "Server", "View"),
    "offbeat.core.state": ("State",),
    "offbeat.experiment.run": ("Run", "run"),
    "offbeat.local.sgd": ("SGD",),
    "offbeat.problems.quadratic": ("Quadratic",),
    "offbeat.problems.supervised": ("Supervised",),
    "offbeat.simulate.loop": ("Until",),
    "offbeat.simulate.personal": ("Personal",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AREA",
    "SGD",
    "Alarm",
    "Algorithm",
    "Commands",
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
    "Run",
    "Send",
    "Server",
    "State",
    "Stop",
    "Supervised",
    "Until",
    "Update",
    "View",
    "Work",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'offbeat' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value
