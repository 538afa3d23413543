"""The grid of experiments/area-grid.toml, timed and without its record: also for a machine without pyarrow or MNIST.

PYTHONPATH=src python3 -m benchmarks.grid --device cuda --workers 8
PYTHONPATH=src python3 -m benchmarks.grid --device cuda --workers 1 --trials 1 --time 3 --profile

Without MNIST it takes made images of the same size, with which a run has the same events.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib.util
import os
import pstats
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

_STUB = """
class _Any:
    def __getattr__(self, name): return _Any()
    def __call__(self, *_, **__): return _Any()
    def __or__(self, other): return self
    __ror__ = __or__
def __getattr__(name): return _Any()
"""
FILE = Path(__file__).parent.parent / "experiments" / "area-grid.toml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--time", type=float, default=15.0)
    parser.add_argument("--profile", action="store_true", help="of Python, with one worker")
    given = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        _import_anyway(Path(place))
        run(given, Path(place) / "runs", began)


def run(given: argparse.Namespace, folder: Path, began: float) -> None:
    """Do all runs, and say how long it took and what came out."""
    from offbeat.experiment import sweep
    from offbeat.experiment.grid import Grid

    table = _table(given)
    grid, options = Grid(table), sweep.Options(workers=given.workers)
    _, messages = sweep._workers(folder, given.device, options, grid.points)
    python = cProfile.Profile()
    if given.profile:
        python.enable()
    done = [value for kind, value in messages(lambda: False) if kind == "done"]
    python.disable()
    wall, updates = time.perf_counter() - began, sum(result.updates for result in done)
    lengths = sum(length for result in done for length in result.vectors.values())
    print(
        f"{len(done)} runs, {updates:,} updates, {given.workers} workers on {given.device}: {wall:.1f} s, "
        f"{os.times().children_user + os.times().children_system:.0f} s of workers' CPU; models' lengths {lengths:.6g}"
    )
    if given.profile:
        pstats.Stats(python).sort_stats("tottime").print_stats(30)


def _table(given: argparse.Namespace) -> dict[str, Any]:
    table = tomllib.loads(FILE.read_text("utf-8"))
    from offbeat.core.errors import DataError
    from offbeat.data import load

    try:
        load("mnist")
    except DataError:
        table["problem"]["data"] = {"offbeat.bench.material:synthetic": {"name": "mnist"}}
    return {**table, "device": given.device, "trials": given.trials, "until": {"time": given.time}}


def _import_anyway(place: Path) -> None:
    """Let the package be imported, here and in workers, where pyarrow is not installed: nothing is written."""
    if importlib.util.find_spec("pyarrow") is None:
        (place / "pyarrow").mkdir()
        for name in ("__init__", "parquet", "dataset"):
            (place / "pyarrow" / f"{name}.py").write_text(_STUB, "utf-8")
        sys.path.append(str(place))
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)


if __name__ == "__main__":
    main()
