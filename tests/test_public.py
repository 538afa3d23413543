"""The public surface: these names, and none by accident."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import offbeat

NAMES = [
    *("AREA", "FedAsync", "FedAvg", "FedBuff", "Loop", "SGD"),
    *("Algorithm", "Server", "Local", "Model", "State", "View", "Work", "Commands"),
    *("Alarm", "Cancel", "Recall", "Send", "Stop", "Job", "Update"),
    *("Problem", "Quadratic", "Supervised", "Goal", "Metric"),
    *("OffbeatError", "Personal", "Run", "Until", "run"),
    *("Experiment", "Evaluate", "Result", "Results", "load", "resume"),
    *("Vector", "Watcher", "Wrapper", "lengths"),
    *("algorithms", "data", "local", "models", "report", "theory", "timing"),
]

MODULES = sorted(m.name for m in pkgutil.walk_packages(offbeat.__path__, "offbeat."))


def test_the_public_names_are_these() -> None:
    assert sorted(offbeat.__all__) == sorted(NAMES)
    assert offbeat.__all__ == sorted(offbeat.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name))


@pytest.mark.parametrize("name", [*NAMES, "open"])
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(offbeat, name) is not None
    assert name in dir(offbeat)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'offbeat' has no attribute 'Fedavg'"):
        offbeat.Fedavg  # noqa: B018


@pytest.mark.parametrize("package", ["algorithms", "data", "models", "timing"])
def test_what_the_packages_export_is_there(package: str) -> None:
    module = importlib.import_module(f"offbeat.{package}")
    assert module.__all__
    assert all(hasattr(module, name) for name in module.__all__)


def test_importing_it_does_not_import_torch() -> None:
    code = "import offbeat, sys; print([m for m in ('torch', 'numpy', 'pyarrow', 'rich') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "[]\n"


def test_the_version_is_that_of_the_distribution() -> None:
    from importlib.metadata import version

    assert offbeat.__version__ == version("offbeat")


def test_an_error_names_extras_that_exist() -> None:
    root = Path(__file__).parent.parent
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    sources = "".join(path.read_text() for path in (root / "src").rglob("*.py"))
    named = re.findall(r'not_installed\(.*?, "(\w+)"', sources)
    assert {"deploy", "frames", "llm", "plots", "ray", "tune"} <= set(named) <= set(extras)


def undocumented(module: ModuleType) -> list[str]:
    """Public classes and functions of a module that have no docstring of their own."""
    found = [n for n, o in vars(module).items() if not n.startswith("_") and _own(o, module) and not o.__doc__]
    return [f"{module.__name__}.{name}" for name in found]


def _own(value: object, module: ModuleType) -> bool:
    return (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == module.__name__


def test_every_public_class_and_function_has_a_docstring() -> None:
    kernels = (
        [] if find_spec("triton") else ["offbeat.models.conv_gpu", "offbeat.models.full_gpu", "offbeat.models.lstm_gpu"]
    )  # need it
    modules = [importlib.import_module(name) for name in MODULES if name not in kernels]
    assert len(modules) > 50
    assert [name for module in modules for name in undocumented(module)] == []
    assert [m.__name__ for m in modules if not m.__doc__ and not hasattr(m, "__path__")] == []
