"""Finished runs as table rows: one per algorithm, with means over its seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isnan
from typing import NamedTuple

import numpy as np

from offbeat.core.metric import LOSS, Metric
from offbeat.report.run import Columns
from offbeat.watch.measures import Measures
from offbeat.watch.results import Result, TaskResult, first_reached

Getter = Callable[[Result], float | None]

NOTHING = "–"
_LADDER = (*(tenths / 10 for tenths in range(1, 10)), 0.95, 0.99)  # shares that get a column besides the targets
_DECADES = tuple(m * 10.0**k for k in range(-9, 10) for m in (1, 2, 5))  # and other numbers
_RUNGS = 6  # of them, the highest
UNEQUAL_SHARES = "unequal shares: 0 = all clients contribute equally, 1 = only one does"


class TableCell(NamedTuple):
    """A number, and below it (or in brackets) the detail behind it."""

    main: str
    detail: str = ""


def metrics_of(results: Sequence[Result]) -> dict[str, Metric]:
    """What is known of the metrics of these runs, the main one first."""
    found = {m.name: m for r in results for task in r.tasks for m in task.measured}
    return found | {name: Metric(name) for r in results for name in r.metrics if name not in found}


def rows(results: Sequence[Result]) -> tuple[list[str], list[list[TableCell]]]:
    """The head (with line breaks) and the body: one row per algorithm, with means over its seeds."""
    finished = [r for r in results if r.error is None]
    metrics = {name: m for name, m in metrics_of(finished).items() if any(name in r.metrics for r in finished)}
    own = next(iter(metrics.values()), LOSS)
    targets = list(dict.fromkeys(target for r in finished for target in r.targets))
    names = [name.replace("_", "\n") for name in metrics]
    head = ["algorithm", *names, *(f"time\nto {value_of(own, float(target))}" for target in targets)]
    body = []
    for label in _labels(results):
        mine = [r for r in finished if r.algorithm == label]
        asked = sum(1 for r in results if r.algorithm == label)
        line = [TableCell(label, "" if len(mine) == asked else f"{asked - len(mine)} of {asked} failed")]
        line += [_mean((r.metrics.get(name) for r in mine), writer(metric)) for name, metric in metrics.items()]
        line += [_reached(mine, target) for target in targets]
        line.append(TableCell(_mean((r.updates for r in mine), number).main))
        line.append(TableCell(_mean((r.versions for r in mine), number).main))
        body.append([*line, _staleness(mine)])
    return [*head, "updates", "server\nsteps", "staleness"], body


def work_rows(results: Sequence[Result]) -> tuple[list[str], list[list[TableCell]]]:
    """How the clients worked: one row per algorithm, with means over its seeds; empty columns are left out."""
    columns: list[tuple[str, Getter, Callable[[float], str]]] = [
        ("clients\nbusy", _measured(lambda m: m.concurrency.mean), _share),
        ("unequal\nshares", _measured(lambda m: m.participation.distance), number),
        ("staleness\n90 %", _measured(lambda m: m.staleness.p90), number),
        ("MB down", _measured(lambda m: m.bytes.down), megabytes),
        ("MB up", _measured(lambda m: m.bytes.up), megabytes),
        ("time\nper step", _measured(lambda m: m.waiting), number),
        ("jobs lost", lambda r: r.lost, number),
    ]
    if any(result.cancelled for result in results):
        columns.append(("jobs\ncancelled", lambda r: r.cancelled or 0, number))
    if any(result.cut for result in results):
        columns.append(("updates\ncut", lambda r: r.cut or 0, number))
    head = ["algorithm", *(name for name, _, _ in columns)]
    body = []
    for label in _labels(results):
        mine = [r for r in results if r.algorithm == label and r.error is None]
        body.append([TableCell(label), *(TableCell(_mean(map(get, mine), write).main) for _, get, write in columns)])
    known = [at for at in range(len(head)) if any(line[at].main != NOTHING for line in body)]
    return [head[at] for at in known], [[line[at] for at in known] for line in body]


def task_rows(results: Sequence[Result], baseline: str) -> tuple[list[str], list[list[TableCell]]]:
    """Several tasks: when each finished, when all had finished, and the time saved over a baseline."""
    finished = [r for r in results if r.error is None]
    names = list(dict.fromkeys(task.name for r in finished for task in r.tasks))
    whole = {label: _all_done([r for r in finished if r.algorithm == label]) for label in _labels(results)}
    body = []
    for label in _labels(results):
        mine = [r for r in finished if r.algorithm == label]
        line = [TableCell(label), *(_task_cell([t for r in mine for t in r.tasks if t.name == name]) for name in names)]
        done, reference = whole[label], whole.get(baseline)
        line.append(TableCell("not all") if done is None else _mean((r.time for r in mine), number))
        gain = "" if label == baseline or not reference or done is None else f"{100 * (1 - done / reference):+.1f} %"
        body.append([*line, TableCell(gain)])
    return ["algorithm", *names, "all", f"gain over\n{baseline}"], body


def _labels(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(r.algorithm for r in results))


def _all_done(results: Sequence[Result]) -> float | None:
    """The mean time at which the last task finished; None if a task of some run never did."""
    times = [r.time for r in results if r.time is not None and all(task.time is not None for task in r.tasks)]
    return sum(times) / len(times) if times and len(times) == len(results) else None


def _task_cell(tasks: Sequence[TaskResult]) -> TableCell:
    if not tasks:
        return TableCell(NOTHING)
    own = next((task.measured[0] for task in tasks if task.measured), LOSS)
    then = _mean((task.metrics.get(own.name) for task in tasks), writer(own)).main
    done = [task.time for task in tasks if task.time is not None]
    if len(done) < len(tasks):
        return TableCell(f"{len(done)} of {len(tasks)} done", then)
    return TableCell(_mean(done, number).main, then)


def note(results: Sequence[Result]) -> str:
    """A caption for the numbers of the table."""
    seeds = len({r.seed for r in results})
    return f"means over {seeds} seeds, with the lowest and highest value" if seeds > 1 else ""


def _measured(get: Callable[[Measures], float | None]) -> Getter:
    return lambda result: None if result.measures is None else get(result.measures)


def _mean(values: Iterable[float | None], write: Callable[[float], str]) -> TableCell:
    found = [value for value in values if value is not None and not isnan(value)]
    return spread(found, write) if found else TableCell(NOTHING)


def spread(found: Sequence[float], write: Callable[[float], str]) -> TableCell:
    """The mean of these numbers, with the lowest and highest if they differ."""
    low, high = (write(value).removesuffix(" %") for value in (min(found), max(found)))
    return TableCell(write(sum(found) / len(found)), "" if low == high else f"{low}–{high}")


def _reached(results: Sequence[Result], target: str) -> TableCell:
    """The mean time to a target, and how many seeds reached it if not all did; empty if it was not asked for."""
    asked = [r.targets[target] for r in results if target in r.targets]
    found = [time for time in asked if time is not None]
    if asked and not found:
        return TableCell("never")
    cell = _mean(found, number)
    return cell if len(found) == len(asked) else TableCell(cell.main, f"by {len(found)} of {len(asked)}")


def first(history: Columns, metric: Metric, target: float, axis: str) -> float | None:
    """Where on the axis an evaluation first reached this value of a metric; None: never."""
    at = first_reached(history[metric.name], metric, target)
    value = np.nan if at is None else float(history[axis][at])
    return value if np.isfinite(value) else None


def ladder(histories: Sequence[Columns], metric: Metric, asked: Sequence[float]) -> list[float]:
    """Values of a metric worth a column, the best last: the targets, and those that some run reached but not all
    started with."""
    judged = _judged(histories, metric)
    if not judged:
        return []
    sign = 1.0 if metric.higher else -1.0
    curves = [sign * h[metric.name].astype(np.float64) for h in judged]
    first = min((float(curve[0]) for curve in curves if np.isfinite(curve[0])), default=np.inf)
    best = max((float(curve[np.isfinite(curve)].max(initial=-np.inf)) for curve in curves), default=-np.inf)
    choice = _LADDER if metric.share or (metric.higher and best <= 1) else _DECADES
    steps = sorted(step for step in (sign * value for value in choice) if first < step <= best)
    return [sign * step for step in sorted({*steps[-_RUNGS:], *(sign * value for value in asked)})]


def cell(
    histories: Sequence[Columns], metric: Metric, target: float, axis: str, write: Callable[[float], str]
) -> TableCell:
    """Mean and range over seeds, and how many seeds reached the target if not all did."""
    judged = _judged(histories, metric)
    found = [value for h in judged if (value := first(h, metric, target, axis)) is not None]
    if not judged or not any(np.isfinite(h[axis]).any() for h in judged):
        return TableCell(NOTHING)
    if not found:
        return TableCell("never")
    shown = spread(found, write)
    return shown if len(found) == len(judged) else TableCell(shown.main, f"by {len(found)} of {len(judged)}")


def _judged(histories: Sequence[Columns], metric: Metric) -> list[Columns]:
    return [h for h in histories if metric.name in h and len(h[metric.name])]


def _staleness(results: Sequence[Result]) -> TableCell:
    if not results:
        return TableCell(NOTHING)
    most = max(r.staleness.max for r in results)
    return TableCell("mean " + _mean((r.staleness.mean for r in results), number).main, f"max {number(most)}")


def megabytes(value: float) -> str:
    """From bytes."""
    return number(value / 1e6)


def writer(metric: Metric) -> Callable[[float], str]:
    """How a value of a metric is written: a share in per cent."""
    return _share if metric.share else number


def value_of(metric: Metric, value: float) -> str:
    """A value that was asked for, with all of its digits."""
    return f"{100 * value:g} %" if metric.share else f"{value:g}"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def number(value: float) -> str:
    """Three significant digits, or all digits before the decimal point."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def markdown(head: Sequence[str], body: Sequence[Sequence[TableCell]], caption: str = "") -> str:
    """A table for a text file."""
    cells = [[cell.main + (f" ({cell.detail})" if cell.detail else "") for cell in line] for line in body]
    lines = [[name.replace("\n", " ") for name in head], ["---", *("---:" for _ in head[1:])], *cells]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
    return text + (f"\n{caption.capitalize()}.\n" if caption else "")
