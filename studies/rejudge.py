"""Judge the claims of recorded reproductions anew: `python -m studies.rejudge docs/results/area/table*.json`.

A record has the mean, the lowest and the highest number of every cell, which is all that an interval needs. Times on a
mean curve were recorded without a spread; claims about them stay open. The JSON and the page beside it are written.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from math import inf, isfinite
from pathlib import Path
from typing import Any

from offbeat.papers import load
from offbeat.papers.cells import Cell
from offbeat.papers.claims import Interval
from offbeat.papers.entry import PaperEntry
from offbeat.papers.outcome import ComparedCell, JudgedClaim, explain


def cell(entry: PaperEntry, name: str, record: dict[str, Any]) -> Cell:
    """A cell from its record."""
    ours, quantity = record["ours"], entry.quantity.get(name.rpartition(":")[2])
    mean, beyond = ours["mean"], ours["beyond"]
    if beyond is not None:
        mean = inf
    exact = (mean, mean) if quantity is not None and quantity.of == "largest" and mean is not None else None
    return Cell(mean, ours["min"], ours["max"], ours["seeds"], beyond, record["note"], exact)


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
    for name in sys.argv[1:]:
        for each in rejudge(Path(name)):
            print(f"{Path(name).stem:10} {each.said:28} {each.claim.text}")
