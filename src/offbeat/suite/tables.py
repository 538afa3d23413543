"""The tables of a result: who wins where, and every score of every method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from offbeat.experiment.intervals import difference, estimate
from offbeat.experiment.ranking import shown
from offbeat.suite.compare import standings, versus
from offbeat.suite.definition import BASELINE, CENTRALISED, Suite
from offbeat.suite.result import MethodScores, SuiteResult
from offbeat.suite.scores import HIGHER, SCORES

_DIGITS = {"time": 2, "area": 3, "final": 3, "worst": 3, "bytes": 2, "client_seconds": 0}
_SCALE = {"bytes": 1e-6}
_RANKED = "area"  # always known, and it says more than one point of a curve
_WON = ("area", "time", "worst")


class SuiteTable(NamedTuple):
    """name: a short title.   body: rows of text, of one or two lines."""

    name: str
    title: str
    head: list[str]
    body: list[list[str]]


def column(method: MethodScores, score: str) -> list[float | None]:
    """A score, seed by seed."""
    return [getattr(each, score) for each in method.seeds]


def tables(result: SuiteResult, suite: Suite | None = None) -> Iterator[SuiteTable]:
    """Who wins where, the user's methods, all places, and a table for each cell."""
    yield SuiteTable("Who wins where", "Who wins where", *winners(result))
    for label in result.own:
        yield SuiteTable(f"Where {label} wins", f"Where {label} wins, and where it loses", *verdicts(result, label))
    yield SuiteTable("Places", "Places by the area under the curve", *overview(result))
    for cell in result.compared:
        found = result.cells[cell]
        title = f"{found.task}, {found.clock}"
        if suite is not None and found.task in suite.tasks and found.clock in suite.clocks:
            title = f"{suite.tasks[found.task].title}. {suite.clocks[found.clock].title}"
        yield SuiteTable(cell, title, *cell_table(result, cell))


def cell_table(result: SuiteResult, cell: str) -> tuple[list[str], list[list[str]]]:
    """One row per method, from best to worst by the area under the curve."""
    methods = result.with_references(cell)
    base = column(methods[BASELINE], _RANKED) if BASELINE in methods else []
    head = ["method", "area under the curve", f"less that of {BASELINE}", *_heads(result, cell), "step"]
    body = []
    for standing in standings({label: column(each, _RANKED) for label, each in methods.items()}):
        label, method = standing.label, methods[standing.label]
        line = [label, _cell(method, _RANKED), _less(column(method, _RANKED), base) if label != BASELINE else ""]
        line += [_cell(method, score) for score in SCORES if score != _RANKED]
        steps = shown(method.settings).removeprefix("lr = ")
        body.append([*line, f"{steps}{' (edge)' if method.edge else ''}"])
    return head, body


def _heads(result: SuiteResult, cell: str) -> list[str]:
    found = result.cells[cell]
    names = {
        "time": f"time to {found.metric.replace('_', ' ')} {found.target:g}",
        "final": f"{found.metric} at the end",
    }
    return [names.get(score, title) for score, title in SCORES.items() if score != _RANKED]


def _cell(method: MethodScores, score: str) -> str:
    values = column(method, score)
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    if len(known) < len(values):
        return f"{len(known)} of {len(values)} seeds"
    found, scale = estimate(known), _SCALE.get(score, 1.0)
    return found.text(_DIGITS[score] + (2 if score == "bytes" and scale * found.mean < 1.0 else 0), scale)


def _less(ours: Sequence[float | None], theirs: Sequence[float | None]) -> str:
    if None in ours or None in theirs or not theirs:
        return ""
    return difference([v or 0.0 for v in ours], [v or 0.0 for v in theirs]).text(3, sign="+")


def winners(result: SuiteResult) -> tuple[list[str], list[list[str]]]:
    """For each cell and score: the best of the federated methods, and how many others are level with it."""
    body = []
    for cell in result.compared:
        methods = {label: each for label, each in result.cells[cell].methods.items() if label != CENTRALISED}
        body.append([cell, *(_winner(methods, score) for score in _WON)])
    return ["cell", *(SCORES[score] for score in _WON)], body


def _winner(methods: Mapping[str, MethodScores], score: str) -> str:
    found = standings({label: column(each, score) for label, each in methods.items()}, score in HIGHER)
    if not found or found[0].mean is None:
        return "none on all seeds"
    best = found[0].label
    level = len(found) - 1 - found[0].wins - found[0].losses
    return f"{best}\n{_cell(methods[best], score)}" + (f", {level} level" if level else "")


def overview(result: SuiteResult) -> tuple[list[str], list[list[str]]]:
    """For each method its places by the area, and how many others it beats and is beaten by.

    By cell or, of several tasks, by task: the mean place over its cells.
    """
    tasks = list(dict.fromkeys(result.cells[cell].task for cell in result.compared))
    groups = {cell: result.cells[cell].task if len(tasks) > 1 else cell for cell in result.compared}
    found: dict[str, dict[str, list[tuple[int, int, int]]]] = {label: {} for label in result.methods}
    for cell, group in groups.items():
        methods = result.with_references(cell)
        ordered = standings({label: column(each, _RANKED) for label, each in methods.items()})
        for place, each in enumerate(ordered, 1):
            found[each.label].setdefault(group, []).append((place, each.wins, each.losses))
    totals = {label: _total([one for several in mine.values() for one in several]) for label, mine in found.items()}
    order = sorted(result.methods, key=lambda label: totals[label][2] - totals[label][1])
    names = list(dict.fromkeys(groups.values()))
    return ["method", "wins", "losses", *names], [
        [label, str(totals[label][1]), str(totals[label][2]), *(_place(found[label].get(name)) for name in names)]
        for label in order
    ]


def _total(several: Sequence[tuple[int, int, int]]) -> tuple[float, int, int]:
    """(mean place, wins, losses)."""
    places, wins, losses = zip(*several, strict=True)
    return fmean(places), sum(wins), sum(losses)


def _place(several: Sequence[tuple[int, int, int]] | None) -> str:
    if several is None:
        return ""
    place, wins, losses = _total(several)
    return f"{place:.3g} (+{wins} −{losses})"


def verdicts(result: SuiteResult, label: str) -> tuple[list[str], list[list[str]]]:
    """For each cell and score: how many methods this one beats, and is beaten by."""
    body = []
    for cell in result.compared:
        if label in (methods := result.with_references(cell)):
            counts = [_split(methods, label, score) for score in _WON]
            body.append([cell, *(f"+{len(better)} −{len(worse)}" for better, worse, _ in counts)])
    return ["cell", *(SCORES[score] for score in _WON)], body


def where(result: SuiteResult, label: str) -> list[str]:
    """Where a method wins, one line for each cell and score, with the names of the others."""
    lines = []
    for cell in result.compared:
        methods = result.with_references(cell)
        for score in _WON if label in methods else ():
            better, worse, even = _split(methods, label, score)
            lines.append(
                f"{cell}, {SCORES[score]}: better than {_some(better)}; worse than {_some(worse)}; "
                f"no difference beyond chance to {even}"
            )
    return lines


def _split(methods: Mapping[str, MethodScores], label: str, score: str) -> tuple[list[str], list[str], int]:
    """Those that a method beats, those that beat it, and the number of the others."""
    found = {
        other: versus(column(methods[label], score), column(each, score), score in HIGHER)
        for other, each in methods.items()
        if other != label
    }
    better = [other for other, verdict in found.items() if verdict > 0]
    worse = [other for other, verdict in found.items() if verdict < 0]
    return better, worse, len(found) - len(better) - len(worse)


def _some(labels: Sequence[str]) -> str:
    return ", ".join(labels) if labels else "none"
