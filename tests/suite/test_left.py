"""What is missing of the suite, run in memory, and put with what was there."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offbeat.suite import definition, result as results
from offbeat.suite.run import SuiteRequest, create, work as work_in_folders
from studies import suite as study, suite_left

ROOT = Path(__file__).parent.parent.parent
GIVEN = Namespace(device="cpu", processes=1, sharers=1, limit=1e9, quick=True, only=["tabular/equal"])
BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Blocked())
import studies.figures, studies.suite_left
"""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> SuiteRequest:
    """A small cell with few methods and its reference."""
    load = definition.load

    def small(*given: Any) -> definition.Suite:
        suite = load(*given)
        methods = {label: m for label, m in suite.methods.items() if m.reference or label in ("fedavg", "fedbuff")}
        tasks = {name: replace(task, time=1.0, steps=task.steps[:3]) for name, task in suite.tasks.items()}
        return replace(suite, methods=methods, tasks=tasks)

    monkeypatch.setattr(definition, "load", small)
    return SuiteRequest("v1", "quick", only=("tabular/equal",))


def rows_of(path: Path) -> list[tuple[Any, ...]]:
    """(cell, method, settings, scores) of every run of a result file."""
    cells = results.read(path).cells.items()
    return [
        (cell, label, method.settings, method.edge, vars(seed))
        for cell, each in cells
        for label, method in each.methods.items()
        for seed in method.seeds
    ]


def test_the_scores_are_those_of_the_command_and_nothing_is_done_twice(asked: SuiteRequest, tmp_path: Path) -> None:
    folder = tmp_path / "left"
    folder.mkdir()
    units = suite_left.left(asked.suite(), (), 2)
    assert [(unit.slug, *unit.labels) for unit in units] == [
        ("tabular-centralised-0", "centralised"),
        ("tabular-equal-0", "m-sync", "fedavg"),
        ("tabular-equal-1", "fedbuff"),
    ]
    late = list(suite_left.work(folder, units, asked, Namespace(**{**vars(GIVEN), "limit": -1.0})))
    assert late == [f"{unit.slug}: no time" for unit in units]
    list(suite_left.work(folder, units, asked, GIVEN))
    lines = {path.name: path.read_text() for path in folder.glob("*.jsonl")}
    (folder / "tabular-equal-0.json").unlink()
    again = list(suite_left.work(folder, units, asked, GIVEN))
    assert again[0] == "tabular-centralised-0: done before"
    assert {path.name: path.read_text().strip("\n") for path in folder.glob("*.jsonl")} == {
        name: text.strip("\n") for name, text in lines.items()
    }
    found = [row for unit in units for row in rows_of(folder / f"{unit.slug}.json")]
    other = create(asked, tmp_path / "suite")
    results.collect(other, work_in_folders(other, 1))
    expected = rows_of(other / "result.json")
    assert [row[:-1] for row in found] == [row[:-1] for row in expected]
    for mine, theirs in zip(found, expected, strict=True):  # which runs share a batch moves the last digits
        assert mine[-1] == pytest.approx(theirs[-1], rel=1e-6)


def test_a_result_takes_in_the_methods_that_it_lacks() -> None:
    old = results.read(suite_left.RECORDED / "cifar10.json")
    suite = definition.load("v1", "full")
    cell = old.cells["cifar10/phones"]
    fewer = {label: each for label, each in cell.methods.items() if label not in ("area", "mine")}
    only = {label: each for label, each in cell.methods.items() if label in ("area", "mine", "fedavg")}
    first = replace(old, cells={**old.cells, "cifar10/phones": replace(cell, methods=fewer)})
    second = replace(old, cells={"cifar10/phones": replace(cell, methods=only)}, device="cpu")
    found = study.added(first, second, suite)
    assert found.cells == old.cells
    assert list(found.cells["cifar10/phones"].methods) == list(cell.methods)
    assert (found.device, found.command, found.versions) == ("cuda, cpu", old.command, old.versions)


def test_studies_for_a_rented_machine_need_torch_and_numpy_only() -> None:
    missing = ("pyarrow", "scipy", "nats", "typer", "rich", "sklearn", "safetensors", "cloudpickle", "matplotlib")
    subprocess.run([sys.executable, "-c", BLOCKED.format(missing=missing)], check=True, cwd=ROOT)
