"""A reproduction on the page: our numbers, the paper's numbers, and which of its claims held."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log
from pathlib import Path
from typing import Any

from offbeat.core.errors import FolderError
from offbeat.report.run import DAMAGE, short
from offbeat.watch.files import OUTCOME
from offbeat.watch.typed_json import read_as

NOT_RUN, NOT_CHECKED = "not run", "not checked"  # a cell's note, a claim's state
_FAR = 4.0  # times the paper's number: where the scale of the marks ends


@dataclass(frozen=True)
class Compared:
    """A cell as in the file.   ratio: our number over the paper's.   why: the likely reason if they differ."""

    cell: str
    shows: str
    shown: str
    printed: str
    note: str
    ratio: float | None
    differs: bool
    why: str


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim as in the file.   means: its state if the means were exact; empty in files of before there was one."""

    claim: str
    state: str
    means: str = ""


Lines = dict[str, dict[str, Compared]]  # by line and quantity


@dataclass(frozen=True)
class PaperComparison:
    """The outcome of a reproduction, as in its file.   seeds: by experiment."""

    name: str
    scale: str
    title: str
    paper: str
    where: str
    scope: str
    notes: Sequence[str]
    seeds: Mapping[str, Any]
    cells: Sequence[Compared]
    claims: Sequence[ClaimVerdict]
    stopped: str = ""


def comparison(path: Path, warnings: list[str]) -> PaperComparison | None:
    """The outcome in this folder, if there is one; a damaged file is reported and skipped."""
    try:
        found: PaperComparison = read_as(PaperComparison, json.loads((path / OUTCOME).read_text(encoding="utf-8")), "")
    except FileNotFoundError:
        return None
    except (RecursionError, FolderError, *DAMAGE) as error:
        warnings.append(f"{OUTCOME} is damaged and left out ({short(error)})")
        return None
    return found


# As HTML


def lead(found: PaperComparison) -> str:
    """A sentence of introduction."""
    text = f"{found.title[:1].upper()}{found.title[1:]} ({found.paper}, {found.where})."
    states = [judged.state for judged in found.claims if judged.state != NOT_CHECKED]
    return text + (f" {states.count('held')} of {len(states)} claims held." if states else "")


def body(found: PaperComparison) -> str:
    """Claims, then a table for each experiment, then the likely reasons for what differs."""
    parts = [_note(f"Stopped, {found.stopped}.")] if found.stopped else []
    if found.scope:
        parts.append(_note(f"{found.scale.capitalize()}: {found.scope}."))
    claims = [each for each in found.claims if each.state != NOT_CHECKED]
    if claims:
        lines = (_claim(each) for each in claims)
        parts.append(f'<ul class="claims">{"".join(lines)}</ul>')
    cells = [cell for cell in found.cells if cell.note != NOT_RUN]
    whys = list(dict.fromkeys(cell.why for cell in cells if cell.why and cell.differs))
    tables = "".join(_tables(_groups(cells, found.seeds), whys))
    if tables:
        parts.append(f'<div class="panels comparisons">{tables}</div>')
    if any(cell.ratio is not None for cell in cells):
        parts.append(_note("The marks show our number relative to the paper's, on a scale from 1/4 to 4."))
    if whys:
        reasons = "".join(f"<li>{escape(why)}</li>" for why in whys)
        parts.append(f'<h3>Likely reasons</h3><ol class="whys">{reasons}</ol>')
    if len(cells) < len(found.cells) or len(claims) < len(found.claims):
        shown = f"{len(cells)} of {len(found.cells)} cells and {len(claims)} of {len(found.claims)} claims"
        parts.append(_note(f"{shown} are shown; the others were not run."))
    parts += [_note(line) for line in found.notes if line]
    return "".join(parts)


def _claim(each: ClaimVerdict) -> str:
    state = escape(each.state)
    means = f" (means: {escape(each.means)})" if each.means not in ("", each.state) else ""
    return f'<li data-state="{state}"><b>{state}</b> {escape(each.claim)}{means}</li>'


def _tables(groups: Sequence[tuple[str, Lines]], whys: Sequence[str]) -> Iterator[str]:
    """One table per experiment: the paper's rows down, quantities across."""
    for title, lines in groups:
        across = list(dict.fromkeys(shows for line in lines.values() for shows in line))
        marked = {shows for line in lines.values() for shows, cell in line.items() if cell.ratio is not None}
        heads = "".join(f'<th scope="col">{escape(shows)}</th>' for shows in across)
        rows = "".join(
            f'<tr><th scope="row">{escape(name)}</th>'
            f"{''.join(_cell(line.get(shows), whys, shows in marked) for shows in across)}</tr>"
            for name, line in lines.items()
        )
        head = f"<h3>{escape(title)}</h3>" if title else ""
        whole = ' class="whole"' if len(across) > 1 else ""
        yield (
            f'<div{whole}>{head}<div class="wide" tabindex="0" role="region" aria-label="Our numbers and the paper\'s">'
            '<table class="numbers"><thead><tr><th scope="col"><span class="unseen">line</span></th>'
            f"{heads}</tr></thead><tbody>{rows}</tbody></table></div></div>"
        )


def _groups(cells: Sequence[Compared], experiments: Collection[str]) -> list[tuple[str, Lines]]:
    """(title, cells by row and quantity) of each table; rows without a common quantity get separate tables."""
    groups: list[tuple[str, Lines]] = []
    for cell in cells:
        line, colon, _ = cell.cell.rpartition(":")
        title, slash, rest = line.partition("/")
        shows = cell.shows
        if not colon:  # worked out from several cells
            title, rest, shows = "", cell.cell, ""
        elif not slash or title not in experiments:
            title, rest = "", line
        same = [lines for name, lines in groups if name == title]
        fitting = (lines for lines in same if rest in lines or any(shows in line for line in lines.values()))
        lines = next(fitting, None)
        if lines is None:
            groups.append((title, lines := {}))
        lines.setdefault(rest, {})[shows] = cell
    return groups


def _cell(cell: Compared | None, whys: Sequence[str], marked: bool) -> str:
    if cell is None:
        return "<td></td>"
    why = f"<sup>{whys.index(cell.why) + 1}</sup>" if cell.why and cell.differs else ""
    paper = f"<small>paper {escape(cell.printed)}</small>" if cell.printed not in ("", "-") else ""
    names = ["off"] * cell.differs + ["marked"] * marked
    kind = f' class="{" ".join(names)}"' if names else ""
    return f"<td{kind}>{escape(cell.shown)}{why}{_mark(cell.ratio) if marked else ''}{paper}</td>"


def _mark(ratio: float | None) -> str:
    """Our number as a mark on a scale centred on the paper's."""
    if ratio is None or ratio <= 0:
        return '<svg class="mark" width="40" height="14" aria-hidden="true"></svg>'
    at = 20 + 16 * max(-1.0, min(1.0, log(ratio) / log(_FAR)))
    scale = '<path d="M4 7H36" stroke="var(--away)"/><path d="M20 3V11" stroke="var(--soft)"/>'
    return (
        f'<svg class="mark" width="40" height="14" role="img" aria-label="{ratio:.2g} times the paper\'s">{scale}'
        f'<circle cx="{at:.1f}" cy="7" r="3.5" fill="currentColor"/></svg>'
    )


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'
