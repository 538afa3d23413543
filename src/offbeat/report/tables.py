"""Finished runs as rows of numbers to read: one line an algorithm, means over its seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from statistics import fmean
from typing import Any, NamedTuple

Result = Mapping[str, Any]
Getter = Callable[[Result], float | None]

_SHARES = ("accuracy", "personal", "personal_worst")  # written in per cent
NOTHING = "–"


class Cell(NamedTuple):
    """A number to read first, and below it (or in brackets) what it hides."""

    main: str
    detail: str = ""


def check(result: Result) -> None:
    """An error, of one kind or another, unless tables can be made of this result."""
    rows([result], [float(target) for target in result.get("time_to", ())])
    work_rows([result])
    task_rows([result] if "tasks" in result else [], "")
    overall(result)


def rows(results: Sequence[Result], targets: Sequence[float]) -> tuple[list[str], list[list[Cell]]]:
    """Head (with line breaks) and body: one line an algorithm, means over its seeds."""
    finished = [r for r in results if "error" not in r]
    metrics = list(dict.fromkeys(name for r in finished for name in r["metrics"]))
    targets = targets if "accuracy" in metrics else ()
    names = [name.replace("_", "\n") for name in metrics]
    head = ["algorithm", *names, *(f"time\nto {100 * target:g} %" for target in targets)]
    body = []
    for label in dict.fromkeys(r["algorithm"] for r in results):
        mine = [r for r in finished if r["algorithm"] == label]
        asked = sum(1 for r in results if r["algorithm"] == label)
        line = [Cell(label, "" if len(mine) == asked else f"{asked - len(mine)} of {asked} failed")]
        line += [_mean(mine, _getter("metrics", name), _share if name in _SHARES else number) for name in metrics]
        line += [_reached(mine, f"{target:g}") for target in targets]
        line += [Cell(_mean(mine, _getter(name), number).main) for name in ("updates", "versions")]
        body.append([*line, _staleness(mine)])
    return [*head, "updates", "server\nsteps", "staleness"], body


def work_rows(results: Sequence[Result]) -> tuple[list[str], list[list[Cell]]]:
    """How the clients worked: one line an algorithm, means over its seeds; without columns that nobody has."""
    head = [
        "algorithm",
        "clients\nat work",
        "unequal\nshares",
        "staleness\n90 %",
        "MB down",
        "MB up",
        "time\na step",
        "jobs lost",
    ]
    columns: list[tuple[Getter, Callable[[float], str]]] = [
        (_getter("measures", "concurrency", "mean"), _share),
        (_getter("measures", "participation", "distance"), number),
        (_getter("measures", "staleness", "p90"), number),
        (_getter("measures", "bytes", "down"), _megabytes),
        (_getter("measures", "bytes", "up"), _megabytes),
        (_getter("measures", "waiting"), number),
        (_getter("lost"), number),
    ]
    body = []
    for label in dict.fromkeys(r["algorithm"] for r in results):
        mine = [r for r in results if r["algorithm"] == label and "error" not in r]
        body.append([Cell(label), *(Cell(_mean(mine, get, write).main) for get, write in columns)])
    known = [at for at in range(len(head)) if any(line[at].main != NOTHING for line in body)]
    return [head[at] for at in known], [[line[at] for at in known] for line in body]


def inside(value: Any, *path: str) -> Any:
    """What these tables within tables hold there; None where there is nothing."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def finish(tasks: Iterable[Result]) -> float:
    """When the last of these tasks of a run reached its target; infinite if one did not, or if there are none."""
    return max((task["time"] if task["stopped"] == "target" else inf for task in tasks), default=inf)


def overall(result: Result) -> Mapping[str, float]:
    """A run's metrics; of several tasks their means."""
    if "tasks" not in result:
        found: Mapping[str, float] = result.get("metrics", {})
        return found
    each = [task["metrics"] for task in result["tasks"].values()]
    return {name: fmean(metrics[name] for metrics in each) for name in each[0] if all(name in m for m in each)}


def task_rows(results: Sequence[Result], baseline: str) -> tuple[list[str], list[list[Cell]]]:
    """Several tasks: when each was done, when all were, and how much time that saves against a baseline."""
    finished = [r for r in results if "error" not in r]
    names = list(dict.fromkeys(name for r in finished for name in r["tasks"]))
    whole = {label: _all_done([r for r in finished if r["algorithm"] == label]) for label in _labels(results)}
    body = []
    for label in _labels(results):
        mine = [r for r in finished if r["algorithm"] == label]
        line = [Cell(label), *(_task_cell(mine, name) for name in names)]
        done, reference = whole[label], whole.get(baseline)
        line.append(Cell("not all") if done is None else _mean(mine, _getter("time"), number))
        gain = "" if label == baseline or not reference or done is None else f"{100 * (1 - done / reference):+.1f} %"
        body.append([*line, Cell(gain)])
    return ["algorithm", *names, "all", f"gain over\n{baseline}"], body


def _labels(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(r["algorithm"] for r in results))


def _all_done(results: Sequence[Result]) -> float | None:
    """Mean time at which the last task was done; None where in some run one never was."""
    if not results or any(task["time"] is None for r in results for task in r["tasks"].values()):
        return None
    return float(sum(r["time"] for r in results) / len(results))


def _task_cell(results: Sequence[Result], name: str) -> Cell:
    tasks = [r["tasks"][name] for r in results if name in r["tasks"]]
    accuracy = _mean(tasks, _getter("metrics", "accuracy"), _share).main
    done = [t for t in tasks if t["time"] is not None]
    if not tasks:
        return Cell(NOTHING)
    if len(done) < len(tasks):
        return Cell(f"{len(done)} of {len(tasks)} done", accuracy)
    return Cell(_mean(done, _getter("time"), number).main, accuracy)


def note(results: Sequence[Result]) -> str:
    """What the numbers of the table are."""
    seeds = len({r["seed"] for r in results})
    return f"means over {seeds} seeds, with the lowest and the highest" if seeds > 1 else ""


def _getter(*path: str) -> Getter:
    def get(result: Result) -> float | None:
        value = inside(result, *path)
        return None if value is None else float(value)

    return get


def _mean(results: Sequence[Result], get: Getter, write: Callable[[float], str]) -> Cell:
    found = [value for r in results if (value := get(r)) is not None]
    return spread(found, write) if found else Cell(NOTHING)


def spread(found: Sequence[float], write: Callable[[float], str]) -> Cell:
    """The mean of these numbers, and the lowest and the highest where they differ."""
    low, high = (write(value).removesuffix(" %") for value in (min(found), max(found)))
    return Cell(write(sum(found) / len(found)), "" if low == high else f"{low}–{high}")


def _reached(results: Sequence[Result], target: str) -> Cell:
    """A time; a target that some seeds never reached says how many did. Nothing if nobody asked for it."""
    get = _getter("time_to", target)
    asked = [r for r in results if target in r.get("time_to", ())]
    found = [r for r in asked if get(r) is not None]
    if asked and not found:
        return Cell("never")
    cell = _mean(found, get, number)
    return cell if len(found) == len(asked) else Cell(cell.main, f"by {len(found)} of {len(asked)}")


def _staleness(results: Sequence[Result]) -> Cell:
    if not results:
        return Cell(NOTHING)
    most = max(r["staleness"]["max"] for r in results)
    return Cell("mean " + _mean(results, _getter("staleness", "mean"), number).main, f"max {number(most)}")


def _megabytes(value: float) -> str:
    return number(value / 1e6)


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def number(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"
