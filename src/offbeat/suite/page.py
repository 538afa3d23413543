"""The result of a suite as Markdown and as a page."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from pathlib import Path

from offbeat import __version__
from offbeat.suite.definition import Suite, task_names
from offbeat.suite.result import SuiteResult
from offbeat.suite.tables import SuiteTable, tables
from offbeat.watch.files import write_text

_READING = (
    "Numbers are means over the seeds ± half of the 95 % Student-t interval.",
    "One method beats another if the 95 % interval of their difference, seed by seed, excludes zero; otherwise they "
    "are level. Of comparisons between equal methods, one in twenty looks decided. A method that reached the target on "
    "all seeds beats one that did not.",
    "`3 (+5 −1)` is third place by the area under the curve: better than five others, worse than one; of several "
    "clocks, the mean place and the sums. `4 of 5 seeds`: only so many seeds have this score. `(edge)`: tuning chose "
    "the smallest or largest step size.",
    "A run whose metric is lower at the end than before training has diverged and has no scores.",
    "The area under the curve is the task's metric, averaged over the run. The step size of every method was tuned for "
    "the time to the target, with the same budget, on other seeds. Centralised training is a yardstick: it takes part "
    "in the comparisons, but not in the first table.",
)

_STYLE = """
tr.own th, tr.own td { background: var(--faint); }
.numbers thead th { max-width: 8.5rem; }
.numbers th:first-child { position: sticky; left: 0; background: var(--paper); overflow-wrap: normal; }
.numbers td { font-size: .875rem; }
header, main, footer { max-width: 80rem; }
.numbers tr.own th:first-child { background: var(--faint); }
.reading { max-width: 46rem; color: var(--soft); padding-left: 1.1rem; }
header p, dd { overflow-wrap: anywhere; }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; padding: 0; list-style: none; font-size: .9375rem; }
"""


def facts(result: SuiteResult, suite: Suite | None = None) -> list[str]:
    """What was run, in a few lines. suite: to say which of its methods are missing."""
    seeds = {len(method.seeds) for cell in result.cells.values() for method in cell.methods.values()}
    lines = [
        f"Suite {result.suite}, {result.scale}: {len(result.compared)} cells, {len(result.methods)} methods, "
        f"{max(seeds, default=0)} seeds, {result.wall_s:.0f} s on {result.device}.",
        f"`{result.command}`",
    ]
    if missing := [name for name in task_names(result.suite) if name not in {c.task for c in result.cells.values()}]:
        lines.append(f"Tasks of the suite that were not run: {', '.join(missing)}.")
    for cell in result.compared if suite else ():
        if suite and cell in suite.cells:
            absent = suite.lacking(cell, result.cells[cell].methods)
            lines += [f"{cell} was not finished: it lacks {', '.join(absent)}."] if absent else []
    lines += [f"{line[0].upper()}{line[1:]}." for line in result.stand_ins]
    lines += [f"{label} is from {each[0]}, SHA-256 {each[1] or 'not known'}." for label, each in result.own.items()]
    return lines


def markdown(result: SuiteResult, suite: Suite | None = None) -> str:
    """The result as Markdown."""
    lines = [f"# {_title(result)}", "", *(f"{line}\n" for line in facts(result, suite))]
    lines += [*(f"- {line}" for line in _READING), ""]
    for table in tables(result, suite):
        lines += [f"## {table.title}", "", f"| {' | '.join(table.head)} |", f"|---|{'---:|' * (len(table.head) - 1)}"]
        lines += [f"| {' | '.join(row)} |".replace("\n", " ") for row in table.body] + [""]
    return "\n".join(lines)


def write(folder: Path, result: SuiteResult, suite: Suite | None = None) -> None:
    """`result.md` and `result.html` in this folder."""
    write_text(folder / "result.md", markdown(result, suite))
    write_text(folder / "result.html", page(result, suite))


def _title(result: SuiteResult) -> str:
    return f"Suite {result.suite}, {result.scale}"


def page(result: SuiteResult, suite: Suite | None = None) -> str:
    """The result as one HTML file without scripts, which loads nothing."""
    style = files("offbeat.report").joinpath("page", "report.css").read_text(encoding="utf-8")
    found, title = list(tables(result, suite)), escape(_title(result))
    links = "".join(f'<li><a href="#table-{at}">{escape(each.name)}</a></li>' for at, each in enumerate(found))
    first = "".join(f"<p>{_inline(line)}</p>" for line in facts(result, suite))
    reading = "".join(f"<li>{_inline(line)}</li>" for line in _READING)
    winners, *sections = (_section(at, each, result) for at, each in enumerate(found))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{title} · offbeat</title><style>{style}{_STYLE}</style></head>"
        f'<body><header><p class="eyebrow">offbeat suite</p><h1>{title}</h1>{first}</header><main>'
        f'<nav aria-label="Tables"><ul>{links}</ul></nav>{winners}<ul class="reading">{reading}</ul>'
        f"{''.join(sections)}{_origin(result)}"
        f"</main><footer><p>Made by offbeat {__version__}. Check it with "
        "<code>offbeat suite verify result.json</code>.</p></footer></body></html>\n"
    )


def _section(at: int, table: SuiteTable, result: SuiteResult) -> str:
    heads = "".join(f'<th scope="col">{_broken(name)}</th>' for name in table.head)
    rows = "".join(
        f'<tr{" class=own" if row[0] in result.own else ""}><th scope="row">{_broken(row[0])}</th>'
        f"{''.join(f'<td>{_two_lines(text)}</td>' for text in row[1:])}</tr>"
        for row in table.body
    )
    return (
        f'<section id="table-{at}"><h2>{escape(table.title)}</h2><div class="wide" tabindex="0" role="region" '
        f'aria-label="{escape(table.title)}"><table class="numbers"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></section>"
    )


def _origin(result: SuiteResult) -> str:
    pairs = {**result.versions, **{f"SHA-256 of {name}": digest for name, digest in result.digests.items()}}
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs.items())
    return f'<section><h2>Versions and digests</h2><dl class="pairs">{listed}</dl></section>'


def _inline(text: str) -> str:
    """Escaped, with `code` as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts))


def _broken(text: str) -> str:
    """Escaped; a cell's name may break after its task."""
    return escape(text).replace("/", "/<wbr>")


def _two_lines(text: str) -> str:
    first, _, second = escape(text).partition("\n")
    return f"{first}<small>{second}</small>" if second else first
