"""Numbers on the pages of results are those of the records beside them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "docs/results"
PLACES = [("fashion-iid", "IID", 3, 0.9), ("cifar10-iid", "IID", 6, 0.7)]  # record, table, column B, target
METHODS = {"FedAvg": "fedavg", "DeFedAvg-IID": "defedavg", "AsySG": "asysg"}


def cells(table: str, column: int) -> dict[str, str]:
    """Each line's cell in this column of a table of DeFedAvg's page."""
    page = (RESULTS / "defedavg.md").read_text()
    found, method = {}, ""
    for line in page[page.index(f"| {table} | n |") :].split("\n\n")[0].splitlines()[2:]:
        row = [cell.strip() for cell in line.strip("|").split("|")]
        method = row[0] or method
        if method in METHODS:
            found[f"{METHODS[method]}-{row[1]}"] = row[column + 1]
    return found


@pytest.mark.parametrize(("record", "table", "column", "target"), PLACES)
def test_times_of_defedavgs_page_are_the_first_evaluations_that_show_the_target(
    record: str, table: str, column: int, target: float
) -> None:
    page = cells(table, column)
    runs = json.loads((RESULTS / f"defedavg/{record}.json").read_text())["runs"]
    for run in (run for run in runs if run["inputs"] == "standard" and run["algorithm"] in page):
        first = next((time for time, accuracy in run["curve"] if accuracy >= target), None)
        printed = re.match(r"\d+", page[run["algorithm"]])
        assert (printed and float(printed[0])) == first, run["algorithm"]
