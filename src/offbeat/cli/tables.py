"""Finished runs as a table: for the terminal and for the run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

Result = Mapping[str, Any]
Getter = Callable[[Result], float | None]

_COUNTS = ("updates", "server steps", "staleness mean", "max")  # shown without their range


def rows(results: Sequence[Result], targets: Sequence[float]) -> tuple[list[str], list[list[str]]]:
    """Head and body: one line an algorithm; means over its seeds, metrics and times with their range."""
    finished = [r for r in results if "error" not in r]
    names = _metrics(finished)
    columns: list[tuple[str, Getter]] = [
        *((name, _getter("metrics", name)) for name in names),
        *((f"time to {target:.0%}", _getter("time_to", f"{target:g}")) for target in targets if "accuracy" in names),
        ("updates", _getter("updates")),
        ("server steps", _getter("versions")),
        ("staleness mean", _getter("staleness", "mean")),
        ("max", _getter("staleness", "max")),
    ]
    head = ["algorithm", "seeds", *(name for name, _ in columns)]
    body = []
    for label in dict.fromkeys(r["algorithm"] for r in results):
        mine = [r for r in finished if r["algorithm"] == label]
        failed = sum(1 for r in results if r["algorithm"] == label) - len(mine)
        seeds = f"{len(mine)}" + (f" ({failed} failed)" if failed else "")
        body.append([label, seeds, *(_spread(name, [get(r) for r in mine]) for name, get in columns)])
    return head, body


def table(results: Sequence[Result], targets: Sequence[float]) -> Table:
    """For the terminal."""
    head, body = rows(results, targets)
    ranges = any("–" in cell for line in body for cell in line[2:])
    shown = Table(box=SIMPLE_HEAD, caption="mean (lowest–highest) over the seeds" if ranges else None)
    for at, name in enumerate(head):
        shown.add_column(name, justify="left" if at == 0 else "right")
    for line in body:
        shown.add_row(*line)
    return shown


def markdown(results: Sequence[Result], targets: Sequence[float]) -> str:
    """For a text file."""
    head, body = rows(results, targets)
    lines = [head, ["---", *("---:" for _ in head[1:])], *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _metrics(results: Sequence[Result]) -> list[str]:
    names = dict.fromkeys(name for r in results for name in r["metrics"])
    return list(names)


def _getter(*path: str) -> Getter:
    def get(result: Result) -> float | None:
        value: Any = result
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return None if value is None else float(value)

    return get


def _spread(name: str, values: Sequence[float | None]) -> str:
    """Mean and range; a target that some seeds never reached says how many did."""
    found = [float(v) for v in values if v is not None]
    if not found:
        return "never" if name.startswith("time to") and values else "–"
    mean, low, high = sum(found) / len(found), min(found), max(found)
    share = name == "accuracy"
    text = _number(mean, share)
    if high > low and name not in _COUNTS:
        text += f" ({_number(low, share)}–{_number(high, share)})"
    if share:
        text += " %"
    return text if len(found) == len(values) else f"{text}, {len(found)} of {len(values)} seeds"


def _number(value: float, share: bool) -> str:
    if share:
        return f"{100 * value:.1f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
