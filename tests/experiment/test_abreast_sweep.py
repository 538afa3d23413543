"""Runs of a sweep that differ in their step size alone, done as one: on a GPU, and here with lazy rows on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from simulate.test_owed import LazyArenas

from offbeat.core.errors import OffbeatError
from offbeat.experiment import sweep_workers
from offbeat.experiment.grid import Grid, Point, bundles
from offbeat.experiment.sweep_workers import Orders, alone
from offbeat.simulate.abreast import Abreast
from offbeat.simulate.arena import LazyArena
from offbeat.watch.results import Result

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # one of the step sizes diverges

TABLE: dict[str, Any] = {
    "until": {"time": 4.0},
    "evaluate": {"every": 1.0},
    "problem": {"data": "digits", "model": "softmax", "clients": 12, "split": {"dirichlet": 0.5}},
    "timing": {"exponential": {"rate": 5.0}},
    "algorithm": {
        "area": {"size": 4, "local": {"sgd": {"lr": 1.0, "batch": 8}}},
        "fedbuff": {"size": 4, "local": {"sgd": {"lr": 1.0, "batch": 8}}},
    },
    "sweep": {"algorithm.*.local.sgd.lr": [0.01, 0.1, 1e38], "timing.exponential.rate": [5.0, 8.0]},
}


@pytest.fixture(autouse=True)
def lazy_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_workers, "Arenas", LazyArenas)
    monkeypatch.setattr(sweep_workers, "_CACHE", 1e12)


def done(folder: Path, parts: list[list[Point]], rounds: int = 1 << 60, events: bool = False) -> dict[int, Any]:
    """What came of each run, by number; stopped after so many rounds."""
    orders = Orders(str(folder), "cpu", events, 1, len(parts))
    count = iter(range(rounds))
    found = [value for kind, value in alone(orders, parts, lambda: next(count, None) is None) if kind == "done"]
    return {result.number: _shown(result) for result in found}


def _shown(result: Result) -> Any:
    """Everything bit for bit, but for losses, whose last digits depend on how many models are evaluated together."""
    curve = [(m.time, m.updates, m.version, m.metrics["accuracy"], f"{m.metrics['loss']:.4g}") for m in result.curve]
    return repr((curve, result.vectors, result.updates, result.error, result.time, result.settings))


def test_bundles_differ_in_the_step_size_alone_and_each_has_all_of_them() -> None:
    found = [[point.number for point in bundle] for bundle in bundles(Grid(TABLE).points, 8)]
    assert found == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]


def test_a_sweep_abreast_ends_like_one_run_by_run(tmp_path: Path) -> None:
    points = Grid(TABLE).points
    one = done(tmp_path / "one", bundles(points, 8))
    assert one == done(tmp_path / "other", [[point] for point in points])
    assert len(one) == 12


def test_a_sweep_that_is_stopped_goes_on_run_by_run_and_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points, saved, save = Grid(TABLE).points, list[int](), Abreast.saved
    monkeypatch.setattr(Abreast, "saved", lambda run, number: saved.append(number) or save(run, number))  # type: ignore[func-returns-value]
    whole = done(tmp_path / "whole", bundles(points, 8))
    some = done(tmp_path / "stopped", bundles(points, 8), rounds=4)
    assert set(saved) == {point.number for point in points if point.number not in some}
    rest = done(tmp_path / "stopped", bundles([p for p in points if p.number not in some], 8))
    assert {**some, **rest} == whole


@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize("events", [False, True])
def test_a_sweep_that_runs_out_of_memory_goes_on_with_fewer_runs_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, size: int, events: bool
) -> None:
    points = Grid({**TABLE, "until": {"time": 2.0}}).points
    whole = done(tmp_path / "whole", bundles(points, size), events=events)
    grow, largest = LazyArena._grow, list[int]()

    def limited(arena: LazyArena) -> None:
        if len(arena.matrix) * arena.matrix.shape[1] > 100_000:  # two or three of the twelve runs
            largest.append(len(arena.matrix))
            raise torch.OutOfMemoryError("CUDA out of memory.")
        grow(arena)

    monkeypatch.setattr(LazyArena, "_grow", limited)
    assert done(tmp_path / "little", bundles(points, size), events=events) == whole
    assert len(largest) >= len(caplog.messages) >= 2
    assert caplog.messages[0] == "no GPU memory for 12 runs at once; fewer are"
    logs = [path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("part-*.parquet")]
    assert len(logs) == (12 if events else 0)
    assert all((tmp_path / "whole" / log).read_bytes() == (tmp_path / "little" / log).read_bytes() for log in logs)


def test_a_run_that_is_too_large_by_itself_ends_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(arena: LazyArena) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(LazyArena, "_grow", full)
    with pytest.raises((OffbeatError, torch.OutOfMemoryError), match="out of memory"):
        done(tmp_path, bundles(Grid(TABLE).points, 8))


def test_every_run_has_its_event_log(tmp_path: Path) -> None:
    points = Grid({**TABLE, "until": {"time": 1.0}}).points
    for name, parts in (("one", bundles(points, 8)), ("other", [[point] for point in points])):
        done(tmp_path / name, parts, events=True)
    logs = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("part-*.parquet")]
    assert len(logs) == 12
    assert all((tmp_path / "one" / log).read_bytes() == (tmp_path / "other" / log).read_bytes() for log in logs)
