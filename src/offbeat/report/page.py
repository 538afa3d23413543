"""The page: one HTML file with its numbers, style and script in it, which loads nothing from the network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, is_dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from offbeat import __version__
from offbeat.core.metric import Metric
from offbeat.report import comparison, toml
from offbeat.report.content import AXES, LINES, Content, of_task
from offbeat.report.read import ExperimentFolder
from offbeat.report.tables import (
    UNEQUAL_SHARES,
    TableCell,
    cell,
    ladder,
    megabytes,
    note,
    number,
    rows,
    task_rows,
    value_of,
    work_rows,
)
from offbeat.watch.folder import RunFolder

_SCRIPTS = ("numbers.js", "parts.js", "chart.js", "lanes.js", "timeline.js", "page.js")
COLOURS = 8  # as in the style sheet
NUMBERED = 8  # with more lines than that each has a number, on the page and in tables
_DIGITS = 7  # of every number on the page; metrics are single precision
_NAMED = 4  # algorithms in the title; with more, their number
_WARNINGS = 8  # lines about what is missing that are shown at once


def page(content: Content) -> str:
    """The report as HTML. Everything from the folders is escaped, and only the page's own script may run."""
    script = "\n".join(_file(name) for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(_file("report.html")).substitute(
        title=escape(title(content)),
        facts="".join(f"<span>{escape(fact)}</span>" for fact in _facts(content)),
        missing=_missing(content.warnings),
        sections="\n".join(_sections(content)),
        footer=f"Made by offbeat {__version__}. This file is self-contained: it opens offline and can be sent by mail.",
        style=_file("report.css"),
        script=script,
        digest=f"sha256-{digest}",
        data=_script_safe(json.dumps(plain(data(content)), separators=(",", ":"), allow_nan=False)),
    )


def data(content: Content) -> dict[str, Any]:
    """The data for the script; series are referred to by number."""
    drawn = list(enumerate(content.drawn))
    return {
        "series": [s.name for s in content.drawn],
        "clock": content.clock,
        "totals": [len(s.histories) for s in content.drawn],
        "tasks": content.tasks,
        "metrics": list(content.metrics),
        "shares": [name for name, metric in content.metrics.items() if metric.share],
        "own": content.own.name,
        "axes": [
            a for a in AXES if any(a in by for s in content.drawn for m in s.progress.values() for by in m.values())
        ],
        "progress": [
            {"series": at, "task": task, "metric": metric, "axis": axis, **asdict(band)}
            for at, s in drawn
            for task, metrics in s.progress.items()
            for metric, axes in metrics.items()
            for axis, band in axes.items()
        ],
        "lines": _lines(content),
        **{
            name: [{"series": at, **asdict(found)} for at, s in drawn if (found := getattr(s, name)) is not None]
            for name in ("staleness", "concurrency", "participation", "personal", "last")
        },
        "allocation": [
            {"series": at, "tasks": s.allocation, "ends": s.ends, "end": s.until} for at, s in drawn if s.allocation
        ],
        "timelines": [{**asdict(s.timeline), "note": s.timeline.note} for _, s in drawn if s.timeline is not None],
    }


def plain(value: Any) -> Any:
    """The value for JSON: seven significant digits, null for what is not finite."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, float):
        if not np.isfinite(value):
            return None
        short = float(f"{value:.{_DIGITS}g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return plain(asdict(value)) if is_dataclass(value) and not isinstance(value, type) else value


def _lines(content: Content) -> list[dict[str, Any]]:
    """The curves of single runs, unless there are too many."""
    if sum(len(s.histories) for s in content.drawn) > LINES:
        return []
    found = []
    for at, series in enumerate(content.drawn):
        for history in series.histories:
            for task in series.places:
                mine = of_task(task, history)
                values = {name: mine[name] for name in content.metrics if name in mine}
                found.append({"series": at, "task": task, **{axis: mine[axis] for axis in AXES}, "metrics": values})
    return found


# The parts of the page


def _sections(content: Content) -> Iterator[str]:
    drawn = content.drawn
    for at, found in enumerate(content.comparisons):
        yield _section(f"paper{at}", "Compared with the paper", comparison.lead(found), comparison.body(found))
    yield _section("results", "Results", note(content.results).capitalize(), _results(content))
    if content.metrics:
        yield _section(
            "progress",
            "Progress",
            "Lines are means over seeds, dotted where some seeds have already ended."
            if any(len(s.histories) > 1 for s in drawn)
            else "",
            _bar("progress")
            + '<div id="progress-plots"></div>'
            + _notes([*_sampled(content), *content.omitted])
            + _targets(content),
        )
    if any(s.timeline for s in drawn):
        yield _section(
            "timeline",
            "What the clients did",
            "One lane per client, the busiest at the top. Hover over a job for its details, drag to pan, and zoom with "
            "Ctrl and the mouse wheel; or use the arrow keys, plus and minus.",
            _bar("timeline") + '<div id="timeline-plot"></div><ul class="keys" id="timeline-keys"></ul>',
        )
    if any(s.staleness for s in drawn):
        yield _section(
            "staleness",
            "Staleness",
            "How many versions behind an update's model was when it arrived: median, middle 50 % and middle 80 % of "
            "the updates in each time window, over all seeds.",
            _bar("staleness") + '<div id="staleness-plots"></div>',
        )
    if work := _work(content):
        yield _section("work", "How the clients worked", "", work)
    if any(s.allocation for s in drawn):
        yield _section(
            "allocation",
            "Requests per task",
            "How the requests in flight were divided among the tasks in the first run of each algorithm. Dashed lines "
            "mark the end of a task.",
            '<div id="allocation-plots"></div><ul class="keys" id="allocation-keys"></ul>',
        )
    if any(s.last for s in drawn):
        yield _section(
            "personal",
            "Personalised models",
            f"{_title(content.judged)} of each client's personalised model on its own test data: at the end, from the "
            "worst client to the best, and over time (median, middle 50 % and middle 80 % of the clients).",
            '<div id="personal-last"></div><div id="personal-plots"></div>',
        )
    if texts := [(s.name, said) for s in drawn if (said := RunFolder(s.runs[0].path).generated)]:
        lead = "What the final language models make of the beginning of a test text, from ¦ on, each in its first run."
        parts = [f'<h3>{escape(n)}</h3><div class="code"><pre tabindex="0">{escape(t)}</pre></div>' for n, t in texts]
        yield _section("generated", "Generated text", lead, "".join(parts))
    yield from (_experiment(folder, at, len(content.folders) > 1) for at, folder in enumerate(content.folders))


def _sampled(content: Content) -> list[str]:
    """What the plotted loss was measured on, where that is not all training samples."""
    sizes = sorted({result.sample for result in content.results if result.sample is not None})
    if not sizes:
        return []
    some = " or ".join(f"{size:,}" for size in sizes)
    said = f"The plotted loss is measured on {some} training samples, the same ones every time."
    if all(result.sampled_to_end for result in content.results if result.sample is not None):
        return [f"{said} Metrics are measured on at most as many test samples."]
    return [f"{said} The loss in the table of results is that of the final model on all training samples."]


def _results(content: Content) -> str:
    """One row per algorithm; with several tasks, when each finished and its own metric then."""
    single = [r for r in content.results if not r.several]
    several = [r for r in content.results if r.several]
    parts = [_table(*rows(single), content)] if single else []
    if several:
        labels = [r.algorithm for r in several]
        parts.append(_table(*task_rows(several, "sync-st" if "sync-st" in labels else labels[-1]), content))
        parts.append(_notes(["The times at which tasks finished, and their own metrics then."]))
    return "".join(parts) or '<p class="empty">No run is finished yet.</p>'


def _targets(content: Content) -> str:
    """When values of each metric were reached, in the unit of the selected axis."""
    write: dict[str, Callable[[float], str]] = {"time": number, "updates": number, "bytes": megabytes}
    units = {"time": content.clock.capitalize(), "updates": "Updates", "bytes": "MB sent and received"}
    found = []
    for task, name in enumerate(content.tasks):
        able = [s for s in content.drawn if s.histories and task in s.places]
        histories = {s.name: [of_task(task, h) for h in s.histories] for s in able}
        everything = [h for each in histories.values() for h in each]
        for metric in content.measured.get(task, {}).values():
            steps = ladder(everything, metric, _asked(content, task, metric))
            title = f"Time to {escape(_words(metric))}{f', {escape(name)}' if len(content.tasks) > 1 else ''}"
            for axis in AXES if steps else ():
                body = [
                    [TableCell(s), *(cell(each, metric, t, axis, write[axis]) for t in steps)]
                    for s, each in histories.items()
                ]
                table = _table(["algorithm", *(value_of(metric, t) for t in steps)], body, content)
                lead = f'<p class="note">{units[axis]} until an evaluation first reached it.</p>'
                hide = "" if axis == "time" and metric.name == next(iter(content.metrics), "") else " hidden"
                which = f'data-metric="{escape(metric.name)}" data-axis="{axis}"{hide}'
                found.append(f'<div {which}><h3 class="over">{title}</h3>{lead}{table}</div>')
    return "".join(found)


def _work(content: Content) -> str:
    plots = []
    if any(s.concurrency for s in content.drawn):
        lead = "Share of clients that are downloading, computing or uploading."
        plots.append(f'<h3>Busy clients</h3><p class="note">{lead}</p><div id="concurrency-plot"></div>')
    if any(s.participation for s in content.drawn):
        lead = "Updates of each client, relative to the mean over all clients."
        plots.append(f'<h3>Participation</h3><p class="note">{lead}</p><div id="participation-plot"></div>')
    parts = [f'<div class="panels two">{"".join(f"<div>{plot}</div>" for plot in plots)}</div>'] if plots else []
    measured = any(result.measures for result in content.results)
    if measured or any(result.lost for result in content.results):
        parts.append(_table(*work_rows(content.results), content))
    if measured:
        parts.append(_notes([f"{UNEQUAL_SHARES.capitalize()}."]))
    elif content.results and not content.comparisons:
        parts.append(_notes(["Participation and concurrency are measured if a sweep keeps its events (--events)."]))
    return "".join(parts)


def _experiment(folder: ExperimentFolder, at: int, several: bool) -> str:
    parts = []
    if folder.experiment is not None:
        try:
            text, language = toml.dumps(folder.experiment), "TOML"
        except TypeError:  # an infinite number became null in the folder
            text, language = json.dumps(folder.experiment, indent=1), "JSON"
        button = f'<button type="button" class="tool" data-copy="file{at}">Copy as {language}</button>'
        parts.append(f'<div class="code"><pre id="file{at}" tabindex="0">{escape(text)}</pre>{button}</div>')
    if folder.resolved:
        lines = [each for value in folder.resolved.values() for each in (value if isinstance(value, list) else [value])]
        settings = "".join(f"<p>{escape(str(line))}</p>" for line in lines)
        summary = "<summary>All settings, with defaults</summary>"
        parts.append(f'<details>{summary}<div class="resolved">{settings}</div></details>')
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in folder.versions.items())
    parts.append(f'<dl class="pairs">{listed}</dl>')
    return _section(f"experiment{at}", f"Experiment{f' {folder.name}' if several else ''}", "", "".join(parts))


def title(content: Content) -> str:
    """What was run, in a few words: the reproduction, or which algorithms on which data."""
    if content.comparisons:
        return ", ".join(f"{found.name}, {found.scale}" for found in content.comparisons)
    labels = dict.fromkeys(run.result.algorithm if run.result else s.name for s in content.series for run in s.runs)
    data = list(dict.fromkeys(text for folder in content.folders for text in _data(folder.experiment or {})))
    who = _listed(list(labels)) if 0 < len(labels) <= _NAMED else _count(len(labels), "algorithm")
    return f"{who} on {_listed(data)}" if labels and data else ", ".join(folder.name for folder in content.folders)


def _data(experiment: dict[str, Any]) -> Iterator[str]:
    """The names of the data sets, or of the tasks."""
    problem, tasks = experiment.get("problem"), experiment.get("task")
    if isinstance(problem, dict) and problem.get("data"):
        data = problem["data"]
        file = Path(str(data.get("file", "a file"))).name if isinstance(data, dict) else str(data)
        yield "the clients' own data" if data == "own" else file
    elif isinstance(tasks, dict):
        yield from tasks
    elif isinstance(tasks, list):
        yield from (str(_inside(table, "name")) for table in tasks)


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _facts(content: Content) -> Iterator[str]:
    """What was run, in a few words."""
    runs = [run for s in content.series for run in s.runs]
    if not content.comparisons:
        yield ", ".join(folder.name for folder in content.folders)
    settings = any(run.result and run.result.settings for run in runs)
    yield _count(len(content.series), "setting" if settings else "algorithm")
    yield _count(len({run.seed for run in runs}), "seed")
    yield from dict.fromkeys(line for folder in content.folders for line in _trained(folder.experiment or {}))
    times = [run.time for run in runs if run.time is not None]
    if times:
        yield f"{max(times):g} seconds" if content.clock == "time in seconds" else f"{content.clock} {max(times):g}"
    updates = sum(run.result.updates for run in runs if run.result)
    if updates:
        yield f"{updates:,} updates"


def _trained(experiment: dict[str, Any]) -> Iterator[str]:
    """What was trained, in a few words."""
    problem, clients, tasks = experiment.get("problem"), experiment.get("clients"), experiment.get("task")
    if isinstance(problem, dict):
        yield ", ".join([*_data(experiment), f"{problem.get('clients', '?')} clients"])
    elif isinstance(clients, dict) and isinstance(tasks, list):
        yield f"{_count(len(tasks), 'task')}, {clients.get('count', '?')} clients"


def _missing(warnings: Sequence[str]) -> str:
    if not warnings:
        return ""
    first, rest = (
        "".join(f"<li>{escape(line)}</li>" for line in lines) for lines in (warnings[:_WARNINGS], warnings[_WARNINGS:])
    )
    more = (
        f"<details><summary>and {len(warnings) - _WARNINGS:,} more</summary><ul>{rest}</ul></details>" if rest else ""
    )
    head = "<h2>Incomplete</h2>"
    return f'<aside class="missing" aria-label="What is missing">{head}<ul>{first}</ul>{more}</aside>'


def _table(head: Sequence[str], body: Sequence[Sequence[TableCell]], content: Content) -> str:
    """A table of numbers whose rows carry the colours of the plots."""
    colours = {s.name: at for at, s in enumerate(content.drawn)}
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = "".join(_row(line, colours.get(line[0].main), len(content.drawn) > NUMBERED) for line in body)
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="Table of numbers"><table class="numbers">'
        f"<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _row(line: Sequence[TableCell], colour: int | None, numbered: bool) -> str:
    key = "" if colour is None else f'<span class="key" style="background:var(--c{colour % COLOURS})"></span>'
    if colour is not None and numbered:  # the number that its line has in the plots
        key = f'<span class="key number">{colour + 1}</span>'
    series = "" if colour is None else f' data-series="{colour}"'
    rest = "".join(f"<td>{escape(c.main)}{_detail(c)}</td>" for c in line[1:])
    name = f"{_together(line[0].main)}{_detail(line[0])}"
    return f'<tr{series}><th scope="row" data-name="{escape(line[0].main)}">{key}{name}</th>{rest}</tr>'


def _detail(cell: TableCell) -> str:
    return f"<small>{escape(cell.detail)}</small>" if cell.detail else ""


def _together(name: str) -> str:
    """The name as HTML, in which no line breaks inside `lr = 0.1`."""
    return re.sub(r"[^\s,]+ = [^\s,]+", r'<span class="whole">\g<0></span>', escape(name))


def _section(name: str, title: str, lead: str, body: str) -> str:
    text = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    head = f'<h2 id="{name}-title">{escape(title)}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-title">{head}{text}{body}</section>'


def _bar(name: str) -> str:
    return f'<div class="bar" id="{name}-bar"></div>'


def _notes(lines: Sequence[str]) -> str:
    return "".join(f'<p class="note">{escape(line)}</p>' for line in lines)


def _asked(content: Content, task: int, metric: Metric) -> list[float]:
    """The values of a metric that the experiments ask for: targets, and where runs and the task end."""
    found: list[Any] = []
    own = next(iter(content.measured[task])) == metric.name
    for folder in content.folders:
        experiment = folder.experiment or {}
        tables = experiment.get("task")
        targets = _inside(experiment, "evaluate", "targets")
        if own and isinstance(targets, list):
            found += targets
        elif end := _inside(experiment, "until", metric.name):
            found.append(end)
        elif own and not tables and metric.share and metric.higher:
            found.append(0.8)
        named = tables.items() if isinstance(tables, dict) else [(_inside(t, "name"), t) for t in tables or ()]
        found += [_inside(table, "target", metric.name) for name, table in named if name == content.tasks[task]]
    return sorted({float(target) for target in found if isinstance(target, int | float)})


def _words(metric: Metric) -> str:
    return metric.name.replace("_", " ")


def _title(metric: Metric) -> str:
    return _words(metric)[:1].upper() + _words(metric)[1:]


def _inside(value: Any, *path: str) -> Any:
    """The value at this path of nested tables; None if there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _count(amount: int, noun: str) -> str:
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def _script_safe(text: str) -> str:
    """JSON that cannot close the element that contains it."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _file(name: str) -> str:
    return files("offbeat.report").joinpath("page", name).read_text(encoding="utf-8")
