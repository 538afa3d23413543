"""The examples of docs/problems.md end near what plain PyTorch reaches on the pooled data."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from studies import pooled
from studies.pooled import CASES, PAGE


@pytest.fixture
def saved() -> Iterator[Path]:
    known = set(sys.modules)
    with pooled.page_folder() as folder:
        yield folder
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(folder)):
            del sys.modules[name]


def near(metric: str, federated: float, alone: float) -> bool:
    """Within 5 points, or 10 % of a perplexity."""
    return federated < 1.1 * alone if metric == "perplexity" else federated > alone - 0.05


def row(name: str) -> list[float]:
    """The numbers of the page's table: FedBuff and AREA simulated, for real, and plain PyTorch."""
    line = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{name}`"))
    return [float(cell) for cell in line.strip("| ").split(" | ")[2:]]


@pytest.mark.parametrize("name", CASES)
def test_the_table_of_the_page_says_so(name: str) -> None:
    *federated, alone = row(name)
    assert len(federated) == 4
    assert all(near(CASES[name].metric, value, alone) for value in federated)


@pytest.mark.parametrize("name", ["patients", "clinics"])
def test_plain_pytorch_reaches_what_the_page_says(name: str, saved: Path) -> None:
    assert pooled.pooled(name) == pytest.approx(row(name)[-1], abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_both_algorithms_reach_it(name: str, saved: Path) -> None:
    alone = pooled.pooled(name)
    assert alone == pytest.approx(row(name)[-1], rel=0.05)
    found = pooled.simulated(name, trials=1)
    assert list(found) == ["fedbuff", "area"]
    assert all(near(CASES[name].metric, value, alone) for value in found.values()), found
