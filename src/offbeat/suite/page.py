"""The result of a suite as Markdown and as a page: who wins where, and every score of every method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from offbeat import __version__
from offbeat.experiment.intervals import difference, estimate
from offbeat.experiment.ranking import shown
from offbeat.suite.compare import standings, versus
from offbeat.suite.definition import BASELINE, Suite
from offbeat.suite.result import MethodScores, SuiteResult
from offbeat.suite.scores import HIGHER, SCORES
from offbeat.watch.files import write_text

Table = tuple[str, list[str], list[list[str]]]  # title, head, body

_DIGITS = {"time": 2, "area": 3, "final": 3, "worst": 3, "bytes": 2, "client_seconds": 0}
_SCALE = {"bytes": 1e-6}
_RANKED = "area"  # always known, and it says more than one point of a curve


def column(method: MethodScores, score: str) -> list[float | None]:
    """A score, seed by seed."""
    return [getattr(each, score) for each in method.seeds]


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
    return estimate(known).text(_DIGITS[score], _SCALE.get(score, 1.0))


def _less(ours: Sequence[float | None], theirs: Sequence[float | None]) -> str:
    if None in ours or None in theirs or not theirs:
        return ""
    return difference([v or 0.0 for v in ours], [v or 0.0 for v in theirs]).text(3, sign="+")


def overview(result: SuiteResult) -> tuple[list[str], list[list[str]]]:
    """For each method, by cell: its place by the area, and how many others it beats and is beaten by."""
    cells = result.compared
    places: dict[str, dict[str, str]] = {label: {} for label in result.methods}
    totals = {label: [0, 0] for label in result.methods}
    for cell in cells:
        methods = result.with_references(cell)
        found = standings({label: column(each, _RANKED) for label, each in methods.items()})
        for place, standing in enumerate(found, 1):
            places[standing.label][cell] = f"{place} (+{standing.wins} −{standing.losses})"
            totals[standing.label][0] += standing.wins
            totals[standing.label][1] += standing.losses
    order = sorted(result.methods, key=lambda label: totals[label][1] - totals[label][0])
    head = ["method", "wins", "losses", *cells]
    return head, [
        [label, str(totals[label][0]), str(totals[label][1]), *(places[label].get(cell, "") for cell in cells)]
        for label in order
    ]


def where(result: SuiteResult, label: str) -> list[str]:
    """Where a method wins, one line for each cell and score in which it beats or is beaten."""
    lines = []
    for cell in result.compared:
        methods = result.with_references(cell)
        if label not in methods:
            continue
        for score in ("time", "area", "worst"):
            verdicts = {
                other: versus(column(methods[label], score), column(each, score), score in HIGHER)
                for other, each in methods.items()
                if other != label
            }
            better = [other for other, verdict in verdicts.items() if verdict > 0]
            worse = [other for other, verdict in verdicts.items() if verdict < 0]
            even = len(verdicts) - len(better) - len(worse)
            lines.append(
                f"{cell}, {SCORES[score]}: better than {_some(better)}; worse than {_some(worse)}; "
                f"no difference beyond chance to {even}"
            )
    return lines


def _some(labels: Sequence[str]) -> str:
    return ", ".join(labels) if labels else "none"


_READING = (
    "Means over seeds ± half of the 95 % interval by Student's t. Methods are ordered by the area under the curve, the "
    "mean of the task's metric over the run. In the overview, `3 (+5 −1)` is third place, better than five others and "
    "worse than one beyond the interval of the difference seed by seed; of comparisons between equal methods, one in "
    "twenty looks decided. A method that reached the target on all seeds counts as faster than one that did not. A "
    "score that some seeds do not have is given as their number. The step size of every method was tuned with the same "
    "budget on other seeds, for the time to the target; (edge): the best was the smallest or the largest tried."
)


def tables(result: SuiteResult, suite: Suite | None = None) -> Iterator[Table]:
    """The overview, and a table for each cell."""
    yield "Overview", *overview(result)
    for cell in result.compared:
        found = result.cells[cell]
        titles = f"{found.task}, {found.clock}"
        if suite is not None and found.task in suite.tasks and found.clock in suite.clocks:
            titles = f"{suite.tasks[found.task].title}. {suite.clocks[found.clock].title}"
        yield titles, *cell_table(result, cell)


def facts(result: SuiteResult) -> list[str]:
    """What was run, in a few lines."""
    seeds = {len(method.seeds) for cell in result.cells.values() for method in cell.methods.values()}
    lines = [
        f"Suite {result.suite}, {result.scale}: {len(result.compared)} cells, {len(result.methods)} methods, "
        f"{max(seeds, default=0)} seeds, {result.wall_s:.0f} s on {result.device}.",
        f"`{result.command}`",
    ]
    lines += [f"Not the real thing: {line}." for line in result.stand_ins]
    lines += [f"{label} is from {each[0]}, SHA-256 {each[1] or 'not known'}." for label, each in result.own.items()]
    return lines


def markdown(result: SuiteResult, suite: Suite | None = None) -> str:
    """The result as Markdown."""
    lines = [f"# Suite {result.suite}, {result.scale}", "", *(f"{line}\n" for line in facts(result)), _READING, ""]
    for label in result.own:
        lines += [f"## Where {label} wins", "", *(f"- {line}" for line in where(result, label)), ""]
    for title, head, body in tables(result, suite):
        lines += [f"## {title}", "", f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
        lines += [f"| {' | '.join(row)} |" for row in body] + [""]
    return "\n".join(lines)


def write(folder: Path, result: SuiteResult, suite: Suite | None = None) -> None:
    """`result.md` and `result.html` in this folder."""
    write_text(folder / "result.md", markdown(result, suite))
    write_text(folder / "result.html", page(result, suite))


def page(result: SuiteResult, suite: Suite | None = None) -> str:
    """The result as one HTML file without scripts, which loads nothing."""
    style = files("offbeat.report").joinpath("page", "report.css").read_text(encoding="utf-8")
    parts = [f'<p class="lead">{escape(_READING.replace("`", ""))}</p>']
    for label in result.own:
        items = "".join(f"<li>{escape(line)}</li>" for line in where(result, label))
        parts.append(f"<section><h2>Where {escape(label)} wins</h2><ul>{items}</ul></section>")
    for title, head, body in tables(result, suite):
        heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
        rows = "".join(
            f'<tr{" class=own" if row[0] in result.own else ""}><th scope="row">{escape(row[0])}</th>'
            f"{''.join(f'<td>{escape(text)}</td>' for text in row[1:])}</tr>"
            for row in body
        )
        parts.append(
            f'<section><h2>{escape(title)}</h2><div class="wide" tabindex="0" role="region" '
            f'aria-label="{escape(title)}"><table class="numbers"><thead><tr>{heads}</tr></thead>'
            f"<tbody>{rows}</tbody></table></div></section>"
        )
    pairs = {**result.versions, **{f"SHA-256 of {name}": digest for name, digest in result.digests.items()}}
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs.items())
    parts.append(f'<section><h2>Versions and digests</h2><dl class="pairs">{listed}</dl></section>')
    first = "".join(f"<p>{escape(line.replace('`', ''))}</p>" for line in facts(result))
    title = f"Suite {result.suite}, {result.scale}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)} · offbeat</title><style>{style}\n"
        "tr.own th, tr.own td { background: var(--faint); }</style></head>"
        f'<body><header><p class="eyebrow">offbeat suite</p><h1>{escape(title)}</h1>{first}</header>'
        f"<main>{''.join(parts)}</main><footer><p>Made by offbeat {__version__}. Check it with "
        "<code>offbeat suite verify result.json</code>.</p></footer></body></html>\n"
    )
