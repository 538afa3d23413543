"""A reproduction on the page: our numbers, the paper's numbers, and which of its claims held."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log
from pathlib import Path
from typing import Any

from offbeat.report.run import DAMAGE, short
from offbeat.watch.files import OUTCOME

NOT_RUN, NOT_CHECKED = "not run", "not checked"  # a cell's note, a claim's state
_FAR = 4.0  # times the paper's number: where the scale of the marks ends


@dataclass(frozen=True)
class Compared:
    """A cell as read from the file.   ratio: our number over the paper's.   why: the likely reason if they differ."""

    name: str
    shows: str
    ours: str
    paper: str
    ratio: float | None
    differs: bool
    why: str


Lines = dict[str, dict[str, Compared]]  # by line and quantity


@dataclass(frozen=True)
class PaperComparison:
    """The outcome of a reproduction.   cells: those that were run.   claims: (text, state).   left: what was not."""

    name: str
    scale: str
    title: str
    source: str
    scope: str
    notes: Sequence[str]
    experiments: Sequence[str]
    cells: Sequence[Compared]
    claims: Sequence[tuple[str, str]]
    left: str
    stopped: str


def comparison(path: Path, warnings: list[str]) -> PaperComparison | None:
    """The outcome in this folder, if there is one; a damaged file is reported and skipped."""
    try:
        return _comparison(json.loads((path / OUTCOME).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (RecursionError, *DAMAGE) as error:
        warnings.append(f"{OUTCOME} is damaged and left out ({short(error)})")
        return None


def _comparison(found: Mapping[str, Any]) -> PaperComparison:
    cells = [_compared(cell) for cell in found["cells"] if cell["note"] != NOT_RUN]
    claims = [(str(c["claim"]), str(c["state"])) for c in found["claims"] if c["state"] != NOT_CHECKED]
    left = ""
    if len(cells) < len(found["cells"]) or len(claims) < len(found["claims"]):
        left = f"{len(cells)} of {len(found['cells'])} cells and {len(claims)} of {len(found['claims'])} claims"
        left = f"{left} are shown; the others were not run."
    return PaperComparison(
        name=str(found["name"]),
        scale=str(found["scale"]),
        title=str(found["title"]),
        source=f"{found['paper']}, {found['where']}",
        scope=str(found["scope"]),
        notes=[str(note) for note in found["notes"]],
        experiments=[str(name) for name in found["seeds"]],
        cells=cells,
        claims=claims,
        left=left,
        stopped=str(found.get("stopped", "")),
    )


def _compared(cell: Mapping[str, Any]) -> Compared:
    ratio, differs = cell["ratio"], bool(cell["differs"])
    return Compared(
        name=str(cell["cell"]),
        shows=str(cell["shows"]),
        ours=str(cell["shown"]),
        paper=str(cell["printed"]),
        ratio=None if ratio is None else float(ratio),
        differs=differs,
        why=str(cell["why"]) if differs else "",
    )


# As HTML


def lead(found: PaperComparison) -> str:
    """A sentence of introduction."""
    text = f"{found.title[:1].upper()}{found.title[1:]} ({found.source})."
    held = sum(state == "held" for _, state in found.claims)
    return text + (f" {held} of {len(found.claims)} claims held." if found.claims else "")


def body(found: PaperComparison) -> str:
    """Claims, then a table for each experiment, then the likely reasons for what differs."""
    parts = [_note(f"Stopped, {found.stopped}.")] if found.stopped else []
    if found.scope:
        parts.append(_note(f"{found.scale.capitalize()}: {found.scope}."))
    if found.claims:
        lines = (f'<li data-state="{escape(s)}"><b>{escape(s)}</b> {escape(text)}</li>' for text, s in found.claims)
        parts.append(f'<ul class="claims">{"".join(lines)}</ul>')
    whys = list(dict.fromkeys(cell.why for cell in found.cells if cell.why))
    tables = "".join(_tables(found, whys))
    if tables:
        parts.append(f'<div class="panels comparisons">{tables}</div>')
    if any(cell.ratio is not None for cell in found.cells):
        parts.append(_note("The marks show our number relative to the paper's, on a scale from 1/4 to 4."))
    if whys:
        reasons = "".join(f"<li>{escape(why)}</li>" for why in whys)
        parts.append(f'<h3>Likely reasons</h3><ol class="whys">{reasons}</ol>')
    parts += [_note(line) for line in (found.left, *found.notes) if line]
    return "".join(parts)


def _tables(found: PaperComparison, whys: Sequence[str]) -> Iterator[str]:
    """One table per experiment: the paper's rows down, quantities across."""
    for title, lines in _groups(found):
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


def _groups(found: PaperComparison) -> list[tuple[str, Lines]]:
    """(title, cells by row and quantity) of each table; rows without a common quantity get separate tables."""
    groups: list[tuple[str, Lines]] = []
    for cell in found.cells:
        line, colon, _ = cell.name.rpartition(":")
        title, slash, rest = line.partition("/")
        shows = cell.shows
        if not colon:  # worked out from several cells
            title, rest, shows = "", cell.name, ""
        elif not slash or title not in found.experiments:
            title, rest = "", line
        fitting = (lines for name, lines in groups if name == title and _fits(lines, rest, shows))
        lines = next(fitting, None)
        if lines is None:
            groups.append((title, lines := {}))
        lines.setdefault(rest, {})[shows] = cell
    return groups


def _fits(lines: Lines, line: str, shows: str) -> bool:
    return line in lines or any(shows in each for each in lines.values())


def _cell(cell: Compared | None, whys: Sequence[str], marked: bool) -> str:
    if cell is None:
        return "<td></td>"
    why = f"<sup>{whys.index(cell.why) + 1}</sup>" if cell.why else ""
    paper = f"<small>paper {escape(cell.paper)}</small>" if cell.paper not in ("", "-") else ""
    names = ["off"] * cell.differs + ["marked"] * marked
    kind = f' class="{" ".join(names)}"' if names else ""
    return f"<td{kind}>{escape(cell.ours)}{why}{_mark(cell.ratio) if marked else ''}{paper}</td>"


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
