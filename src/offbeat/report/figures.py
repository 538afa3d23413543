"""The plots as figures for a paper: one column wide, in colours that are safe for colour-blind readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from offbeat.core.errors import FolderError, not_installed
from offbeat.report.bands import Band
from offbeat.report.content import AXES, Content, Series
from offbeat.report.looks import COLOURS, colour, look
from offbeat.report.timeline import TICKS, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("pdf", "png")
COLUMN = 3.4  # inches, the width of a column
_LETTERS = 66  # of a legend that fit into it
_STYLE: Any = {
    "font.size": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # fonts that publishers take
    "figure.constrained_layout.use": True,
}
_BYTES = "MB sent and received"


def draw(content: Content, folder: Path, form: str = "pdf") -> list[Path]:
    """Write every figure for which there is data; return their paths."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise not_installed("figures need matplotlib", "plots") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with mpl.rc_context(_STYLE):
            return [_save(figure, folder / f"{name}.{form}") for name, figure in _figures(content)]
    except OSError as error:
        raise FolderError(f"cannot write to {folder}: {error.strerror}; name another folder with --figures") from None


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=300, metadata={"CreationDate": None} if path.suffix == ".pdf" else None)
    return path


def _figures(content: Content) -> Iterator[tuple[str, Figure]]:
    drawn, clock = content.drawn, content.clock
    units = {"time": clock, "updates": "updates", "bytes": _BYTES}
    for task, name in enumerate(content.tasks):
        for metric, known in content.metrics.items():
            for axis in AXES:
                bands = [s.progress.get(task, {}).get(metric, {}).get(axis) for s in drawn]
                subject = f"{metric}-{_file(name)}" if len(content.tasks) > 1 else metric
                labels = units[axis], _words(metric)
                if any(bands):
                    yield f"{subject}-by-{axis}", _bands(drawn, bands, *labels, (False, known.share))
    if any(s.staleness for s in drawn):
        yield "staleness", _staleness([s for s in drawn if s.staleness], clock)
    relative, personal = "updates relative to the mean", f"{_words(content.judged.name)} of personalised models"
    for name, bands, x, y, percent in (  # in which shares are in per cent
        ("concurrency", [s.concurrency for s in drawn], clock, "busy clients", (False, True)),
        ("participation", [s.participation for s in drawn], "clients, busiest first", relative, (True, False)),
        ("personal", [s.last for s in drawn], "clients, worst first", personal, (True, content.own.share)),
    ):
        if any(bands):
            yield name, _bands(drawn, bands, x, y, percent)
    for series in drawn:
        if series.allocation:
            yield f"requests-{_file(series.name)}", _allocation(series, content.tasks, clock)
        if series.timeline is not None:
            yield f"timeline-{_file(series.name)}", _timeline(series.timeline, clock)


def _bands(drawn: Sequence[Series], bands: Sequence[Band | None], x: str, y: str, percent: tuple[bool, bool]) -> Figure:
    """One band a series.   percent: whether x and y are shares."""
    from matplotlib.ticker import PercentFormatter

    unit = 1e-6 if x == _BYTES else 1.0
    figure, ax = _new()
    for at, (series, band) in enumerate(zip(drawn, bands, strict=True)):
        if band is not None:
            ax.plot(band.x * unit, band.mean, label=series.name, **look(at))
            if len(drawn) <= len(COLOURS):  # more bands than that hide each other and the lines
                ax.fill_between(band.x * unit, band.low, band.high, color=colour(at), alpha=0.18, linewidth=0)
    ax.set(xlabel=x, ylabel=y)
    for axis, wanted in zip((ax.xaxis, ax.yaxis), percent, strict=True):
        if wanted:
            axis.set_major_formatter(PercentFormatter(1.0))
    _legend(figure, ax)
    return figure


def _staleness(drawn: Sequence[Series], clock: str) -> Figure:
    """Median, middle 50 % and middle 80 %, one row per series."""
    import matplotlib.pyplot as plt

    figure, rows = plt.subplots(
        len(drawn), 1, figsize=(COLUMN, 0.5 + 1.0 * len(drawn)), sharex=True, sharey=True, squeeze=False
    )
    plt.close(figure)
    for at, (series, ax) in enumerate(zip(drawn, rows[:, 0], strict=True)):
        fan = series.staleness
        if fan is not None:
            ax.fill_between(fan.x, fan.p10, fan.p90, color=colour(at), alpha=0.18, linewidth=0)
            ax.fill_between(fan.x, fan.p25, fan.p75, color=colour(at), alpha=0.28, linewidth=0)
            ax.plot(fan.x, fan.p50, color=colour(at))
        ax.set_title(series.name, fontsize=8, loc="left", color=colour(at))
    rows[0, 0].set_ylim(bottom=0)
    figure.supylabel("staleness", fontsize=8)
    rows[-1, 0].set_xlabel(clock)
    return figure


def _allocation(series: Series, tasks: Sequence[str], clock: str) -> Figure:
    figure, ax = _new()
    for at, name in enumerate(tasks):
        changes = series.allocation.get(name)
        if changes:
            times, requests = zip(*changes, (series.until, changes[-1][1]), strict=True)
            ax.step(times, requests, where="post", label=name, **look(at))
    ax.set(xlabel=clock, ylabel="requests")
    _legend(figure, ax)
    return figure


def _timeline(line: Timeline, clock: str) -> Figure:
    """Lanes of the start of the run: computing thick, transfers thin, queueing thinner, lost jobs pale."""
    lanes, stretch = len(line.clients), _stretch(line)
    figure, ax = _new(height=0.8 + 0.085 * lanes)
    lane, sent, turn, started, finished, end, lost = _marks(line)
    for start, stop, name, shade, height in (
        (sent, turn, "queue", "#e69f00", 0.2),
        (turn, started, "download", "#56b4e9", 0.35),
        (started, finished, "compute", "#0072b2", 0.8),
        (finished, end, "upload", "#009e73", 0.35),
    ):
        for pale in (False, True):
            shown = (start < stretch) & (stop > start) & (lost == pale)
            bars = {"left": start[shown], "height": height, "color": shade, "alpha": 0.4 if pale else 1.0}
            label = None if pale or not shown.any() else name
            ax.barh(lane[shown], (stop - start)[shown], **bars, label=label, edgecolor="white", linewidth=0.15)
    ax.set(xlim=(0, stretch), ylim=(lanes - 0.4, -0.6), xlabel=clock, ylabel="client")
    ax.set_yticks(range(lanes), line.names or [str(client) for client in line.clients], fontsize=5)
    ax.grid(visible=False)
    figure.legend(loc="outside upper center", ncols=4, handlelength=1.0)
    return figure


def _marks(line: Timeline) -> tuple[npt.NDArray[Any], ...]:
    """For every job: lane, time sent, turn, start, finish and end, and whether it was lost."""
    size = sum(line.counts)
    jobs = {name: np.broadcast_to(np.array(column), (size,)) for name, column in line.jobs.items()}
    lane = np.repeat(np.arange(len(line.clients)), line.counts)
    sent, started, finished, end = (
        np.cumsum([jobs[name] for name in ("sent", "wait", "work", "back")], axis=0) * line.span / TICKS
    )
    before = np.concatenate([[0.0], np.maximum.accumulate(finished + lane * 2 * line.span)[:-1]]) - lane * 2 * line.span
    return lane, sent, np.clip(before, sent, started), started, finished, end, jobs["fate"] == 1


def _stretch(line: Timeline) -> float:
    """A time span in which the busiest client does about 25 jobs."""
    return min(line.span, 25 * (line.until or line.span) / max(1, *line.counts))


def _new(height: float = 2.2) -> tuple[Figure, Axes]:
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(COLUMN, height))
    plt.close(figure)  # it is written, never shown
    return figure, ax


def _legend(figure: Figure, ax: Axes) -> None:
    """Below the plot, which keeps its height: the figure grows by what the legend takes."""
    labels = ax.get_legend_handles_labels()[1]
    if len(labels) < 2:
        return
    widest = max(map(len, labels))
    columns = max(1, min(len(labels), int(_LETTERS / (widest + 6))))
    rows = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + 0.15 * rows + 0.05)
    figure.legend(loc="outside lower center", ncols=columns, handlelength=2.6, columnspacing=1.0)


def _words(metric: str) -> str:
    return metric.replace("_", " ")


def _file(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_.+" else "-" for c in name)
