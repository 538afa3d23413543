"""Numbers on the pages of results are those of the records beside them."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from studies import rejudge

RESULTS = Path(__file__).parents[2] / "docs/results"
PLACES = [("fashion-iid", "IID", 3, 0.9), ("cifar10-iid", "IID", 6, 0.7)]  # record, table, column B, target
AREA = range(3, 11)  # its tables
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


def area(table: int) -> Any:
    return json.loads((RESULTS / f"area/table{table}.json").read_text())


@pytest.mark.parametrize("table", AREA)
def test_areas_records_and_pages_are_judged_as_they_say(table: int, tmp_path: Path) -> None:
    for end in ("json", "md"):
        shutil.copy(RESULTS / f"area/table{table}.{end}", tmp_path)
    rejudge.rejudge(tmp_path / f"table{table}.json")
    for end in ("json", "md"):
        name = f"table{table}.{end}"
        assert (tmp_path / name).read_text() == (RESULTS / "area" / name).read_text()


@pytest.mark.parametrize("table", AREA)
def test_areas_pages_have_the_numbers_of_their_records(table: int) -> None:
    page = (RESULTS / f"area/table{table}.md").read_text()
    rows = {row[0]: row for line in page.splitlines() if len(row := line.strip("| ").split(" | ")) >= 3}
    for each in area(table)["cells"]:
        ours = each["ours"]
        wanted = [ours["beyond"] if ours["beyond"] is not None else ours["mean"], ours["min"], ours["max"]]
        found = [float(number) for number in re.findall(r"\d[\d.e+]*", rows[each["cell"]][1])]
        assert found == pytest.approx([number for number in wanted if number is not None], abs=0.00501)
        assert (ours["beyond"] is None) == (">" not in rows[each["cell"]][1])


@pytest.mark.parametrize("table", AREA)
def test_the_overview_counts_areas_cells_and_claims(table: int) -> None:
    data = area(table)
    inside = Counter(each["outside"] for each in data["cells"] if each["outside"] is not None)
    states, means = (Counter(each[key] for each in data["claims"]) for key in ("state", "means"))
    counted = f"{states['held']} / {states['not held']} / {states['undecided']}"
    (row,) = re.findall(rf"^\| table {table}:.*$", (RESULTS / "README.md").read_text(), re.MULTILINE)
    assert f"| {inside[False]} of {inside.total()} | {counted} ({means['held']} of {means.total()}) |" in row
    (row,) = re.findall(rf"^\| \[{table}\].*$", (RESULTS / "area.md").read_text(), re.MULTILINE)
    told = [states["held"], states["not held"], states["undecided"], f"{means['held']} of {means.total()}"]
    assert row.endswith(f"| {inside[False]} of {inside.total()} | {' | '.join(map(str, told))} |")


def test_a_record_takes_the_spread_of_a_time_from_another_run_of_its_seeds(tmp_path: Path) -> None:
    for end in ("json", "md"):
        shutil.copy(RESULTS / f"area/table7.{end}", tmp_path)
    record, data = tmp_path / "table7.json", area(7)
    for each in data["cells"]:
        each["ours"].pop("spread", None)
    record.write_text(json.dumps(data))  # as it was first recorded
    before = {each.claim.text: each.state for each in rejudge.rejudge(record)}
    for each in data["cells"]:
        width = 0.005 if each["cell"].startswith(("fedbuff/10", "area/1000")) else None
        spread = None if width is None else [each["ours"]["mean"] - width, each["ours"]["mean"] + width]
        each["ours"]["spread"] = spread if each["cell"].endswith(":rho") else None
    other = tmp_path / "outcome.json"
    other.write_text(json.dumps({**data, "command": "another"}))
    assert rejudge.add_spreads(record, tmp_path) == []
    judged = {each.claim.text: each.state for each in rejudge.rejudge(record)}
    found = json.loads(record.read_text())
    assert found["spreads"]["command"] == "another"
    claim = "FedBuff with α = 10 reaches 80 % before AREA with α = 1000"  # 0.03 and 0.05, 0.03 and 0.06
    assert (before[claim], judged[claim]) == ("undecided", "held")
    other.write_text(json.dumps({**data, "seeds": {"main": [0]}}))
    with pytest.raises(SystemExit, match="needs the same as its own"):
        rejudge.add_spreads(record, tmp_path)
