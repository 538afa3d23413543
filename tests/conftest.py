"""Settings for all tests."""

import gc
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator

# Models here are tiny: threads would only wait for each other, all the more when several workers run tests. numpy's
# and scipy's library reads this once, when it is imported.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import forking
import pytest
import torch
from hypothesis import settings

from offbeat.core import names

# The same examples every time, and no time limit on a machine that others use too.
settings.register_profile("offbeat", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("offbeat")

# A process of offbeat costs a fork instead of importing PyTorch again.
subprocess.Popen = forking.Forked  # type: ignore[misc]

torch.set_num_threads(1)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Report a failure without collecting garbage: CPython 3.11 can fail while it reads source, and end all tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """What a failed test has left open, such as sockets, is cleared away silently: it must not fail the next test."""
    failed = item.session.testsfailed
    try:
        return (yield)
    finally:
        if item.session.testsfailed > failed:
            sys.last_value = sys.last_traceback = None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                gc.collect()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole pages come first: last, they would all be one process's, and nothing would be left for the others."""
    items.sort(key=lambda item: "commands_of_a_page" not in item.name)


IMPORTED: set[str] = set()  # modules that were there before the first test


def pytest_collection_finish() -> None:
    """Leave what is imported and collected out of garbage collections, which would go through all of it each time."""
    gc.collect()
    gc.freeze()
    IMPORTED.update(sys.modules)


@pytest.fixture(autouse=True)
def _own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A test imports modules from its own folders, not from those of the tests before."""
    paths, searched = list(sys.path), names.searched()
    yield
    sys.path[:] = paths
    names.search(*searched)
    place = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - IMPORTED:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(place):
            del sys.modules[name]
