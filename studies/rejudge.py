"""Judge the claims of recorded reproductions anew: `python -m studies.rejudge docs/results/area/table*.json`.

A record has the mean, the lowest and the highest number of every cell, which is all that an interval needs, and the
interval of a time on a mean curve. The first records lack the latter, and claims about such times stay open;
`python -m studies.rejudge docs/results/area/table5.json --spreads runs/t5` takes it from another run of the same seeds.
The JSON and the page beside it are written.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from math import inf, isfinite
from pathlib import Path
from typing import Any

from offbeat.papers import load
from offbeat.papers.cells import Cell
from offbeat.papers.claims import Interval
from offbeat.papers.entry import PaperEntry
from offbeat.papers.outcome import ComparedCell, JudgedClaim, explain
from offbeat.watch.files import OUTCOME


def cell(entry: PaperEntry, name: str, record: dict[str, Any]) -> Cell:
    """A cell from its record."""
    ours, quantity = record["ours"], entry.quantity.get(name.rpartition(":")[2])
    mean, beyond = ours["mean"], ours["beyond"]
    if beyond is not None:
        mean = inf
    exact = (mean, mean) if quantity is not None and quantity.of == "largest" and mean is not None else None
    spread = tuple(ours["spread"]) if ours.get("spread") is not None else exact
    return Cell(mean, ours["min"], ours["max"], ours["seeds"], beyond, record["note"], spread)


def add_spreads(path: Path, run: Path) -> list[str]:
    """Give the times on mean curves of a record the intervals that they have in a run of the same seeds.

    Tells which times differ there: events are the same everywhere, but where a large step size amplifies rounding
    errors, models differ between machines.
    """
    data, other = json.loads(path.read_text()), json.loads((run / OUTCOME).read_text())
    if (data["name"], data["seeds"]) != (other["name"], other["seeds"]):
        raise SystemExit(f"{run} has {other['name']} with seeds {other['seeds']}; {path} needs the same as its own")
    entry, there, differing = load(data["name"]), {each["cell"]: each["ours"] for each in other["cells"]}, []
    for each in data["cells"]:
        name, ours = each["cell"], each["ours"]
        timed = entry.quantity[name.rpartition(":")[2]].of == "time to"
        if not timed or ours["mean"] is None or there[name]["spread"] is None:
            continue
        ours["spread"] = there[name]["spread"]
        if abs(ours["mean"] - there[name]["mean"]) > 1e-9:
            differing.append(f"{name}: {ours['mean']:g}, there {there[name]['mean']:g}")
    data["spreads"] = {"command": other["command"], "versions": other["versions"], "differing": differing}
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    return differing


def _plain(compared: Sequence[tuple[Interval, Interval]]) -> list[list[list[float | None]]]:
    """JSON has no infinity: None."""
    return [[[end if isfinite(end) else None for end in side] for side in pair] for pair in compared]


def rejudge(path: Path) -> list[JudgedClaim]:
    """The claims of one record, which is changed."""
    data = json.loads(path.read_text())
    entry = load(data["name"])
    cells = {each["cell"]: cell(entry, each["cell"], each) for each in data["cells"]}
    judged = [JudgedClaim.of(claim, cells) for claim in entry.claim]
    data["claims"] = [
        {"claim": j.claim.text, "state": j.state, "means": j.means, "compared": _plain(j.compared)} for j in judged
    ]
    page = path.with_suffix(".md")
    text = page.read_text()
    for each, (name, printed) in zip(data["cells"], entry.printed, strict=True):
        before, why = each["why"], explain(entry, name, cells[name], printed) if each["why"] else ""
        each["why"] = why
        said = f": {why}" if why and ComparedCell(name, "", cells[name], printed, why).differs else ""
        if before:  # in the row of this cell
            text = re.sub(rf"(?m)^(\| {re.escape(name)} \| .*): {re.escape(before)}", rf"\g<1>{said}", text)
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    for j in judged:
        text = re.sub(rf"(?m)^- [a-z :,]*: {re.escape(j.claim.text)}$", f"- {j.said}: {j.claim.text}", text)
    page.write_text(text)
    return judged


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", nargs="+", type=Path)
    parser.add_argument("--spreads", type=Path, help="folder of a run of the same seeds, for one record")
    given = parser.parse_args()
    if given.spreads is not None and len(given.records) > 1:
        parser.error("--spreads is for one record")
    for record in given.records:
        for each in add_spreads(record, given.spreads) if given.spreads is not None else ():
            print(f"{record.stem:10} another time: {each}")
        for judged in rejudge(record):
            print(f"{record.stem:10} {judged.said:28} {judged.claim.text}")
