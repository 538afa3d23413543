"""Our numbers compared with the paper's, and which claims held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import inf, isfinite
from typing import Any

from offbeat.papers.cells import UNDER_WAY, Cell, compute
from offbeat.papers.claims import Interval, MissingCellError, judge, judge_means, term
from offbeat.papers.entry import Claim, PaperEntry, Printed, Reason
from offbeat.watch.results import Result

_SAID = ("name", "scale", "title", "paper", "where", "says", "comparable")
_NEAR = 0.9  # of the paper's number: nearer than that wants no reason


@dataclass(frozen=True)
class ComparedCell:
    """One cell.   why: the most likely reason for a difference, if one is known."""

    name: str
    shows: str
    ours: Cell
    paper: Printed
    why: str = ""
    comparable: bool = True

    @property
    def outside(self) -> bool | None:
        """Whether our mean is outside the paper's range; None if there are not both."""
        low, high = self.paper.low, self.paper.high
        if not self.comparable or self.ours.mean is None or low is None or high is None:
            return None
        return not low <= round(self.ours.mean, 2) <= high

    @property
    def one_sided(self) -> bool:
        """Whether only one of the two reaches the target."""
        return self._both and (self.ours.beyond is None) != (self.paper.beyond is None)

    @property
    def ratio(self) -> float | None:
        """Our number over the paper's, if they can be compared."""
        ours, theirs = self.ours, self.paper
        if not self._both or ours.beyond is not None or theirs.beyond is not None:
            return None
        assert ours.mean is not None
        return ours.mean / theirs.mean if theirs.mean and isfinite(ours.mean) else None

    @property
    def differs(self) -> bool:
        """Whether an explanation is due: outside the paper's range or, if it prints none, not near its number."""
        if self.outside is not None:
            return self.outside
        return self.one_sided or (self.ratio is not None and not _NEAR < self.ratio < 1 / _NEAR)

    @property
    def _both(self) -> bool:
        known = self.ours.mean is not None and self.paper.mean is not None
        return known and self.comparable and self.ours.note != UNDER_WAY


@dataclass(frozen=True)
class JudgedClaim:
    """One claim. means: its state if the means of these seeds were exact.   compared: the intervals on both sides."""

    claim: Claim
    state: str
    means: str
    compared: Sequence[tuple[Interval, Interval]]

    @property
    def said(self) -> str:
        """The state, and for one that is open what the means show."""
        return self.state if self.means == self.state else f"{self.state}, means: {self.means}"

    @classmethod
    def of(cls, claim: Claim, cells: Mapping[str, Cell]) -> JudgedClaim:
        """A claim about these cells."""
        state, compared = judge(claim, cells)
        return cls(claim, state, judge_means(claim, cells), compared)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a reproduction."""

    entry: PaperEntry
    cells: Sequence[ComparedCell]
    claims: Sequence[JudgedClaim]

    @property
    def data(self) -> dict[str, Any]:
        """As JSON."""
        return {
            **{name: getattr(self.entry, name) for name in _SAID},
            "scope": scope(self.entry),
            "notes": list(self.entry.notes),
            "cells": [_cell_data(cell) for cell in self.cells],
            "claims": [
                {
                    "claim": j.claim.text,
                    "state": j.state,
                    "means": j.means,
                    "compared": [[list(a), list(b)] for a, b in j.compared],
                }
                for j in self.claims
            ],
        }

    @property
    def markdown(self) -> str:
        """As Markdown."""
        entry = self.entry
        lines = [f"# {entry.name}: {entry.title}", "", f"{entry.paper}, {entry.where}; scale: {entry.scale}."]
        lines += ["", f"Quick: {scope(entry)}."] if scope(entry) else []
        lines += ["", *(f"- {note}" for note in entry.notes), ""] if entry.notes else [""]
        lines += ["| cell | ours | paper | |", "|---|---:|---:|---|"]
        lines += [f"| {c.name} | {shown(c.ours)} | {c.paper.text} | {remark(c)} |" for c in self.cells]
        if self.claims:
            lines += ["", "| claim | |", "|---|---|"]
            lines += [f"| {j.claim.text} | **{j.said}** |" for j in self.claims]
        return "\n".join(lines) + "\n"


def conclude(entry: PaperEntry, runs: Mapping[str, Sequence[Result]], whole: bool = True) -> Outcome:
    """Compare with the paper. whole: the whole grid was run; otherwise quantities of kind `largest` are left open."""
    cells = compute(entry, runs)
    if not whole:
        largest = {name for name, quantity in entry.quantity.items() if quantity.of == "largest"}
        cells = {n: Cell(None, note="grid not run") if n.rpartition(":")[2] in largest else c for n, c in cells.items()}
    cells = _with_derived(entry, cells)
    compared = [_compared(entry, name, cells[name], printed) for name, printed in entry.printed]
    return Outcome(entry, compared, [JudgedClaim.of(claim, cells) for claim in entry.claim])


def rehearse(entry: PaperEntry) -> None:
    """Judge made-up numbers, to find mistakes in claims before hours are spent on real runs."""
    cells = _with_derived(entry, dict.fromkeys(compute(entry, {}), Cell(1.0)))
    for claim in entry.claim:
        judge(claim, cells)


def scope(entry: PaperEntry) -> str:
    """What a reader of the quick version should know; empty for the full one."""
    return entry.says and entry.says + (
        "" if entry.comparable else "; the paper's numbers are of its own, larger problem"
    )


def shown(cell: Cell) -> str:
    """A cell in the style of the papers."""
    if cell.mean is None:
        return cell.note or "–"
    if cell.beyond == inf:
        return cell.note
    if cell.beyond is not None:
        return f"> {_digits(cell.beyond)}" + (f" ({cell.note})" if cell.note else "")
    text = _digits(cell.mean)
    if cell.low is not None and cell.high is not None and cell.seeds > 1:
        text += f" ({_digits(cell.low)} - {_digits(cell.high)})"
    return text + (f", {cell.note}" if cell.note else "")


def remark(cell: ComparedCell) -> str:
    """A remark on the difference."""
    why = f": {cell.why}" if cell.why and cell.differs else ""
    if cell.outside is not None:
        return f"outside the paper's range{why}" if cell.outside else ""
    if cell.one_sided:
        return f"only one of the two reaches it{why}"
    return "" if cell.ratio is None else f"× {cell.ratio:.2g}{why}"


def _digits(value: float) -> str:
    """With as many decimals as in the papers."""
    if abs(value) >= 1000:
        return f"{value:.0f}" if abs(value) < 1e6 else f"{value:.4g}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3f}"


def _compared(entry: PaperEntry, name: str, ours: Cell, paper: Printed) -> ComparedCell:
    quantity = entry.quantity.get(name.rpartition(":")[2])
    shows = (quantity.shows or name.rpartition(":")[2]) if quantity else name
    why = explain(entry, name, ours, paper) if entry.comparable else ""
    return ComparedCell(name, shows, ours, paper, why, entry.comparable)


def explain(entry: PaperEntry, name: str, ours: Cell, paper: Printed) -> str:
    """The likely reason if our number and the paper's differ; empty if none is known."""
    return next((reason.text for reason in entry.reason if _fits(reason, name, ours, paper)), "")


def _fits(reason: Reason, name: str, ours: Cell, paper: Printed) -> bool:
    """Whether a reason is about this cell, and about a difference in this direction."""
    if not fnmatchcase(name, reason.cells):
        return False
    if reason.ours is None:
        return True
    known = ours.mean is not None and paper.mean is not None
    return known and (ours.mean < paper.mean) == (reason.ours == "smaller")  # type: ignore[operator]


def _with_derived(entry: PaperEntry, cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """Cells plus derived ones, which may use earlier derived ones."""
    cells = dict(cells)
    for derived in entry.derived:
        try:
            low, high = (derived.scale * bound for bound in term(derived.term, cells))
            first, last = (derived.scale * bound for bound in term(derived.term, cells, lambda cell: cell.interval))
        except MissingCellError as error:
            cells[derived.name] = Cell(None, note=f"without {error}")
            continue
        known = Cell(high, seeds=1, beyond=None if low == high else low, spread=(first, last))
        cells[derived.name] = known if low == high or isfinite(low) else Cell(None, note="not reached")
    return cells


def _cell_data(cell: ComparedCell) -> dict[str, Any]:
    ours, theirs = cell.ours, cell.paper
    numbers = {"mean": ours.mean, "min": ours.low, "max": ours.high, "seeds": ours.seeds, "beyond": ours.beyond}
    return {
        "cell": cell.name,
        "ours": {**numbers, "spread": None if ours.spread is None else list(ours.spread)},
        "paper": {"mean": theirs.mean, "min": theirs.low, "max": theirs.high, "beyond": theirs.beyond},
        "shows": cell.shows,
        "shown": shown(ours),
        "printed": theirs.text,
        "note": ours.note,
        "ratio": cell.ratio,
        "outside": cell.outside,
        "differs": cell.differs,
        "why": cell.why,
    }
