"""A report as text, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from offbeat.bench.session import BenchRow, Report, Standing
from offbeat.problems.scoring import NAMED

HEAD = ("", "updates/s", "CPU-ms", "peak MB", "check", "offbeat's speed is")


def lines(row: BenchRow) -> list[tuple[str, ...]]:
    """One row of cells for each contender, in the order of HEAD."""
    return [
        (
            score.contender,
            figure(score.updates_per_s),
            figure(score.cpu_ms),
            f"{score.memory:,.0f}" + (f" + {score.gpu_memory:,.0f} GPU" if score.gpu_memory else ""),
            _check(row, score),
            _ratio(row, score),
        )
        for score in row.scores
    ]


def figure(value: float) -> str:
    """A number to three digits, without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def about(row: BenchRow) -> str:
    """One line about a workload and how it was run."""
    data = ", ".join(dict.fromkeys(row.data))
    return f"{row.workload}: {row.title}; {data}; {row.turns} turns of {row.updates:,} updates"


def setting(report: Report) -> str:
    """One line about the machine and the versions."""
    m = report.machine
    device = f"{m['gpu']}, " if m["gpu"] else ""
    versions = ", ".join(f"{name} {m[name]}" for name in ("python", "torch", "numpy", "offbeat"))
    return f"{device}{m['processor']}, {m['cores']} cores, load {m['load']:.1f} at the start; {versions}; {m['date']}"


def text(report: Report) -> str:
    """Tables for a terminal."""
    parts = [setting(report)]
    for row in report.rows:
        parts += ["", about(row), *_aligned([HEAD, *lines(row)])]
        if row.disagreement:
            parts.append(f"  these figures mean nothing: {row.disagreement}")
    return "\n".join(parts)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Padded columns; the first and the last are aligned left, the numbers between them right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(_cell(r, at, width) for at, width in enumerate(widths)).rstrip() for r in rows]


def _cell(row: Sequence[str], at: int, width: int) -> str:
    return row[at].ljust(width) if at in (0, len(row) - 1) else row[at].rjust(width)


def _check(row: BenchRow, score: Standing) -> str:
    value = score.metrics[row.metric]
    percent = row.metric in NAMED and NAMED[row.metric]().share
    return f"{100 * value:.1f} %" if percent else f"{row.metric} {value:.3g}"


def _ratio(row: BenchRow, score: Standing) -> str:
    if score.ratio is None:
        return "" if row.rate is None else _aimed("", score.updates_per_s, row.rate)
    r = score.ratio
    said = f"{r.median:.2f} ({r.low:.2f}–{r.high:.2f})"
    said = f"× {said}" if score.against is None else f"{said} times {score.against}"
    return said if score.aim is None else _aimed(said, r.median, score.aim)


def _aimed(said: str, value: float, aim: float) -> str:
    met = "met" if value >= aim else "missed"
    return f"{said}{', ' if said else ''}aim {figure(aim)} {met}"
