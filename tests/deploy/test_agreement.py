"""Real processes reach what the simulation predicts with their own traced times, for algorithms of every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import offbeat, started

SEEDS = 5

HEAD = """
until = { time = 12.0 }
evaluate = { every = 1.0 }
"""

ONE = (
    HEAD
    + """
[problem]
data = "digits"
clients = 8
split = { dirichlet = 0.5 }
l2 = 1e-3

[timing]
exponential = { rate = { normal = [5, 3], min = 0.5 } }

[[algorithm]]
name = "area"
every = 4
local = { sgd = { lr = 2.0, steps = 2, batch = 32 } }

[[algorithm]]
name = "fedbuff"
size = 4
local = { sgd = { lr = 0.5, steps = 2, batch = 32 } }

[[algorithm]]
name = "fedasync"
lr = 0.3
local = { sgd = { lr = 0.5, steps = 2, batch = 32 } }

[[algorithm]]
name = "defedavg-niid"
sampled = 4
local = { sgd = { lr = 0.5, steps = 2, batch = 32 } }

[[algorithm]]
name = "favano"
sampled = 4
period = 0.5
local = { sgd = { lr = 0.3, steps = 4, batch = 32 } }

[[algorithm]]
name = "persafl-me"
lr = 0.3
local = { moreau = { lr = 0.03, steps = 2, batch = 32, penalty = 15.0 } }
"""
)

TWO = (
    HEAD
    + """
[clients]
count = 8

[[task]]
name = "first"
data = "digits"
split = { dirichlet = 0.5 }

[[task]]
name = "second"
data = "digits"
model = { name = "mlp", hidden = [32] }
split = "iid"

[timing]
exponential = { rate = { normal = [5, 3], min = 0.5 } }

[[algorithm]]
name = "fedast"
requests = 12
ratio = 4.0
lr = 1.0
local = { sgd = { lr = 0.5, steps = 2, batch = 32 } }
"""
)


def really(folder: Path, text: str) -> list[dict[str, Any]]:
    file = folder / "real.toml"
    file.write_text(text)
    process = started("up", file, "--processes", "2", "--pace", "1", "--out", folder / "real", "--json")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    runs: list[dict[str, Any]] = json.loads(out)["runs"]
    return runs


def predicted(folder: Path, text: str, label: str) -> list[dict[str, Any]]:
    """The same algorithm simulated with the times that its real run was measured to take, under several seeds."""
    trace = folder / f"{label}.csv"
    assert offbeat("trace", folder / "real" / f"{label}-0", "--out", trace).code == 0
    line = next(line for line in text.splitlines() if line.startswith("exponential"))
    file = folder / f"{label}.toml"
    file.write_text(text.replace(line, f'trace = {{ file = "{trace}" }}'))
    only = offbeat("run", file, "--set", f"trials={SEEDS}", "--out", folder / f"virtual-{label}", "--json")
    assert only.code == 0, only.err
    return [run for run in only.runs if run["algorithm"] == label]


def accuracies(run: dict[str, Any]) -> dict[str, float]:
    if "tasks" in run:
        return {name: task["metrics"]["accuracy"] for name, task in run["tasks"].items()}
    return {"": run["metrics"]["accuracy"]}


@pytest.mark.slow
@pytest.mark.parametrize("text", [ONE, TWO], ids=["one task", "two tasks"])
def test_real_runs_reach_what_is_predicted(tmp_path: Path, text: str) -> None:
    wrong = []
    for run in really(tmp_path, text):
        simulated = predicted(tmp_path, text, run["algorithm"])
        for name, real in accuracies(run).items():
            spread = sorted(accuracies(other)[name] for other in simulated)
            updates = sorted(other["updates"] for other in simulated)
            line = f"{run['algorithm']} {name}: real {real:.3f} ({run['updates']}), simulated {spread} ({updates})"
            print(line)
            if not spread[0] - 0.01 <= real <= spread[-1] + 0.01:
                wrong.append(line)
    assert wrong == []
