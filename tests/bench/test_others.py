"""The project beside this one that runs other simulators: what can be checked without installing them."""

from __future__ import annotations

import ast
import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import compare
from benchmarks.compare import SIMULATORS
from offbeat.bench import material
from offbeat.bench.material import synthetic
from offbeat.bench.worker import Turn
from offbeat.bench.workloads import WORKLOADS

HERE = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("name", SIMULATORS)
def test_every_simulator_has_its_adapter_its_requirements_and_its_line(name: str) -> None:
    ast.parse((HERE / "adapters" / f"with_{name}.py").read_text())
    required = (HERE / "requirements" / f"{name}.txt").read_text()
    assert required.startswith("torch==")
    assert f"`{SIMULATORS[name].package}`" in (HERE / "README.md").read_text()


@pytest.mark.parametrize("name", ["W1", "W3"])
def test_an_adapter_finds_the_work_and_the_model_as_they_are_here(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(material, "dataset", lambda task: synthetic(task.data, train=300, test=50))
    made = material.prepare(replace(WORKLOADS[name], clients=7))
    compare.export(made, 40, tmp_path)
    threads = torch.get_num_threads()
    common = runpy.run_path(str(HERE / "adapters" / "common.py"))
    torch.set_num_threads(threads)
    work = common["load"](tmp_path)
    assert (work.clients, work.updates, [len(s) for s in work.shards]) == (7, 40, [len(s) for s in made.shards[0]])
    theirs, ours = common["module"](work), made.modules[0]
    np.testing.assert_array_equal(common["vector"](theirs), made.problems[0].initial().numpy())
    inputs, labels = work.draw(3, np.random.default_rng(0))
    torch.testing.assert_close(theirs(inputs), ours(inputs))
    assert labels.shape == (work.batch,)


def line(**changes: Any) -> Any:
    turns = [Turn(1000, 4.0, 2.0, 300.0, 0.0, {"accuracy": 0.9})] * 2
    ours = [Turn(1000, 1.0, 0.5, 200.0, 0.0, {"accuracy": 0.9})] * 2
    return compare.Line(
        **{"simulator": SIMULATORS["pfl"], "version": "1", "turns": turns, "ours": ours, "accuracy": 0.88, **changes}
    )


def test_the_table_pairs_turns_and_keeps_those_that_failed() -> None:
    failed = line(simulator=SIMULATORS["fluke"], turns=[], ours=[], reason="said no")
    rows = compare.table("W1", [line(), failed], 2).splitlines()[2:]
    assert rows[2:] == [
        "| offbeat | FedBuff in virtual time | 1,000 | 0.5 | 200 | 90.0 % | |",
        "| pfl 1 | synchronous: FedAvg, rounds of 10 | 250 | 2 | 300 | 88.0 % | × 4.0 (4.0–4.0) |",
        "| fluke-fl 1 | said no | | | | | |",
    ]
    assert len({row.count("|") for row in rows}) == 1


def test_the_settings_that_adapters_read_are_all_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(material, "dataset", lambda task: synthetic(task.data, train=300, test=50))
    compare.export(material.prepare(replace(WORKLOADS["W2"], clients=7)), 40, tmp_path)
    written = set(json.loads((tmp_path / "work.json").read_text()))
    assert written == {"clients", "model", "steps", "batch", "lr", "size", "updates"}
