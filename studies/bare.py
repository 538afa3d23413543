"""Import this first, and offbeat can be imported on a machine that has PyTorch and numpy only.

Packages that write folders, tables and the screen, or pack for worker processes, get stand-ins if they are missing.
Whatever such a package is asked for is a class that can be named, called and derived from, and does nothing: a study
that imports this must not need what these packages write.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PACKAGES = ("pyarrow", "safetensors", "rich", "cloudpickle")


class _Anything(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class Absent(Exception, metaclass=_Anything):  # noqa: N818  # an exception, because some of them are caught
    """Whatever a missing package would have."""


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module of the packages that are missing."""

    def __init__(self, missing: Sequence[str]) -> None:
        self.missing = missing

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        known = name.partition(".")[0] in self.missing
        return ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """It has nothing."""


def _found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


MISSING = [name for name in PACKAGES if not _found(name)]
if MISSING:
    sys.meta_path.insert(0, StandIns(MISSING))
