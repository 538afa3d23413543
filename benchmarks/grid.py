"""The grid of experiments/area-grid.toml, timed: also for a machine without pyarrow or MNIST.

PYTHONPATH=src python3 -m benchmarks.grid --device cuda --workers 8
PYTHONPATH=src python3 -m benchmarks.grid --device cuda --workers 8 --record      # with its record and its report
PYTHONPATH=src python3 -m benchmarks.grid --device cuda --workers 8 --apart       # every run planned by itself
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
from collections.abc import Sequence
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
    parser.add_argument("--record", action="store_true", help="all that `offbeat sweep` does; needs pyarrow and rich")
    parser.add_argument("--apart", action="store_true", help="no runs are done abreast")
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

    if given.apart:
        sweep.ABREAST = 1
    table, options = _table(given), sweep.Options(workers=given.workers)
    if given.record:
        results = sweep.sweep(table, folder, options, progress=False)
        written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        _say(given, results.runs, time.perf_counter() - began, f"; {written / 1e6:.1f} MB written")
        return
    _, messages = sweep._workers(folder, given.device, options, Grid(table).points)
    python = cProfile.Profile()
    if given.profile:
        python.enable()
    done, first = [], dict[int, float]()  # when each worker was first heard of
    for kind, value in messages(lambda: False):
        if kind == "done":
            done.append((time.perf_counter() - began, value))
        elif kind == "share":
            first.setdefault(value[0], time.perf_counter() - began)
    python.disable()
    starts, ends = sorted(first.values()), [when for when, _ in done]
    times = f"; at work from {starts[0]:.1f} to {starts[-1]:.1f} s on, " if starts else "; "
    times += ", ".join(f"{share:.0%} done at {ends[int(share * (len(ends) - 1))]:.1f} s" for share in (0.1, 0.5, 0.9))
    _say(given, [result for _, result in done], time.perf_counter() - began, times)
    if given.profile:
        pstats.Stats(python).sort_stats("tottime").print_stats(30)


def _say(given: argparse.Namespace, done: Sequence[Any], wall: float, more: str) -> None:
    updates = sum(result.updates for result in done)
    lengths = sum(length for result in done for length in result.vectors.values())
    print(
        f"{len(done)} runs, {updates:,} updates, {given.workers} workers on {given.device}: {wall:.1f} s, "
        f"{os.times().children_user + os.times().children_system:.0f} s of workers' CPU; "
        f"models' lengths {lengths:.6g}{more}",
        flush=True,
    )


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
