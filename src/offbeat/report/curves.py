"""A metric's progress in several runs as one plot: matplotlib's axes, or a small image for a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from offbeat.core.errors import SettingError, not_installed, unknown
from offbeat.core.metric import Metric
from offbeat.report.bands import Band, Floats, band, clean
from offbeat.report.looks import COLOURS, LOOKS, colour, dash, look
from offbeat.watch.results import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AGAINST = {"time": "time", "updates": "updates", "versions": "version"}  # a plot's axis -> the field of a measurement
_WIDTH, _HEIGHT = 420, 170  # of the small image's plot, in pixels
_LEFT, _BELOW, _ROW, _LETTER = 52, 34, 15, 6.2
_STROKE = 1.6


@dataclass(frozen=True)
class Curves:
    """One band per label: the mean of its runs, and their lowest and highest value.   x, y: titles."""

    bands: dict[str, Band]
    metric: Metric
    x: str

    @property
    def y(self) -> str:
        return self.metric.name.replace("_", " ")


def curves(results: Sequence[Result], metric: str | None = None, against: str = "time") -> Curves:
    """The curves of a metric, by default the main one: one per algorithm, setting and task, over its seeds."""
    if against not in AGAINST:
        raise unknown("axis", against, AGAINST)
    names = {name for result in results for m in result.history for name in m.metrics}
    if not names:
        raise SettingError("nothing to plot: no run has an evaluation")
    wanted = results[0].own.name if metric is None else metric
    if wanted not in names:
        raise unknown("metric", wanted, names)
    grouped: dict[str, list[tuple[Floats, Floats]]] = {}
    for result in results:
        for task, each in enumerate(result.tasks):
            points = [m for m in result.history if m.task == task and wanted in m.metrics]
            x = np.array([getattr(m, AGAINST[against]) for m in points], float)
            y = np.array([m.metrics[wanted] for m in points], float)
            parts = [result.algorithm, *(f"{path.split('.')[-1]} = {value}" for path, value in result.settings.items())]
            label = ", ".join([*parts, each.name] if result.several else parts)
            grouped.setdefault(label, []).append(clean(x, y))
    bands = {label: found for label, each in grouped.items() if (found := band(each)) is not None}
    if not bands:
        raise SettingError(f"nothing to plot: {wanted} was never a finite number")
    known = {m.name: m for result in results for task in result.tasks for m in task.measured}
    real = {result.real is not None for result in results}
    clock = "time in seconds" if real == {True} else "time" if True in real else "virtual time"
    title = clock if against == "time" else against
    return Curves(bands, known.get(wanted, Metric(wanted)), title)


def plot(found: Curves, ax: Axes | None = None, name: str = "") -> Axes:
    """Draw them with matplotlib, by default in a figure of their own.   name: of lines whose label is there already."""
    try:
        import matplotlib.pyplot as plt
        from matplotlib.ticker import PercentFormatter
    except ImportError:
        raise not_installed("a plot needs matplotlib", "plots") from None
    if len(found.bands) > LOOKS:
        remedy = "plot a part of the results, such as results[:24], or write a report"
        raise SettingError(f"{len(found.bands)} lines are more than the {LOOKS} that can be distinguished; {remedy}")
    if ax is None:
        ax = plt.subplots(layout="constrained")[1]
    many = len(found.bands) > len(COLOURS)
    taken = [line.get_label() for line in ax.lines]
    for at, (label, each) in enumerate(found.bands.items(), len(taken)):
        label = f"{label}, {name}" if name and label in taken else label
        ax.plot(each.x, each.mean, label=label, **look(at))
        if not many:  # more bands than that hide each other and the lines
            ax.fill_between(each.x, each.low, each.high, color=colour(at), alpha=0.18, linewidth=0)
    ax.set(xlabel=found.x, ylabel=found.y)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(color="#dddddd", linewidth=0.5)
    if found.metric.share:
        ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    outside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if many else {}
    ax.legend(frameon=False, handlelength=2.6, **outside)
    return ax


def image(found: Curves) -> str:
    """The means as a small SVG, without any other package; empty if there are more lines than can be told apart."""
    if len(found.bands) > LOOKS:
        return ""
    x_ticks = _ticks(np.concatenate([each.x for each in found.bands.values()]))
    y_ticks = _ticks(np.concatenate([each.mean for each in found.bands.values()]))

    def place(x: Any, y: Any) -> tuple[Any, Any]:
        right = (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0]) * _WIDTH
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]) * _HEIGHT
        return _LEFT + right, 10 + _HEIGHT - up

    parts = [f'<text x="{_LEFT + _WIDTH / 2}" y="{10 + _HEIGHT + _BELOW - 4}" text-anchor="middle">{found.x}</text>']
    parts.append(
        f'<text transform="translate(11 {10 + _HEIGHT / 2}) rotate(-90)" text-anchor="middle">{escape(found.y)}</text>'
    )
    for tick in y_ticks:
        _, y = place(x_ticks[0], tick)
        parts.append(f'<path d="M{_LEFT} {y:.1f}h{_WIDTH}" stroke="currentColor" opacity="0.18"/>')
        parts.append(
            f'<text x="{_LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{_number(tick, found.metric.share)}</text>'
        )
    for tick in x_ticks:
        x, _ = place(tick, y_ticks[0])
        parts.append(f'<text x="{x:.1f}" y="{10 + _HEIGHT + 14}" text-anchor="middle">{_number(tick)}</text>')
    for at, (label, each) in enumerate(found.bands.items()):
        dashes = " ".join(f"{length * _STROKE:g}" for length in dash(at))
        stroke = f'fill="none" stroke="{colour(at)}" stroke-width="{_STROKE}" stroke-dasharray="{dashes or "none"}"'
        line = "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(*place(each.x, each.mean), strict=True))
        row, key = 16 + _ROW * at, _LEFT + _WIDTH + 14
        parts.append(f'<path d="M{line}" {stroke}/><path d="M{key} {row}h26" {stroke}/>')
        parts.append(f'<text x="{key + 32}" y="{row + 4}">{escape(label)}</text>')
    width = _LEFT + _WIDTH + 60 + _LETTER * max(map(len, found.bands))
    height = max(10 + _HEIGHT + _BELOW, 22 + _ROW * len(found.bands))
    said = f"{found.y} against {found.x}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" role="img"'
    head += f' aria-label="{escape(said)}" font-family="sans-serif" font-size="11" fill="currentColor">'
    return f"{head}{''.join(parts)}</svg>"


def _ticks(values: Floats) -> Floats:
    """Three to seven round numbers that enclose the values."""
    low, high = float(values.min()), float(values.max())
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-300):
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    unit = 10.0 ** np.floor(np.log10(high - low))
    step = next(s for s in (0.2 * unit, 0.5 * unit, unit, 2 * unit, 5 * unit) if (high - low) / s <= 5)
    ticks: Floats = np.arange(np.floor(low / step), np.ceil(high / step) + 1) * step
    return ticks


def _number(value: float, share: bool = False) -> str:
    return f"{100 * value:.4g} %" if share else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
