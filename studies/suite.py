"""The pages of the suite's results in the documentation, from result files of single tasks.

    python -m studies.suite                                   # from docs/results/suite/TASK.json
    python -m studies.suite --add runs/mnist/result.json      # first take over a result: its methods, cell by cell

Writes docs/results/suite.md, all tasks together, and docs/results/suite/TASK.md. Nothing is run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from offbeat.core.errors import SettingError
from offbeat.suite import definition, page, result
from offbeat.suite.definition import Suite
from offbeat.suite.result import SuiteResult
from offbeat.suite.tables import SuiteTable, tables
from offbeat.watch.files import write_json

FOLDER = Path(__file__).parent.parent / "docs" / "results" / "suite"
MARK = "<!-- the tables: python -m studies.suite -->\n"


def merged(results: Sequence[SuiteResult]) -> SuiteResult:
    """Results of different tasks as one; they must be of one suite and have the same methods of users."""
    first = results[0]
    for each in results[1:]:
        shared = set(first.digests) & set(each.digests)
        if (each.suite, each.scale, each.own) != (first.suite, first.scale, first.own) or any(
            each.digests[name] != first.digests[name] for name in shared
        ):
            raise SettingError(f"{each.command}: not of the same suite as {first.command}")
    return replace(
        first,
        digests={name: digest for each in results for name, digest in each.digests.items()},
        command="; ".join(each.command for each in results),
        wall_s=sum(each.wall_s for each in results),
        device=", ".join(dict.fromkeys(each.device for each in results)),
        cells={cell: scores for each in results for cell, scores in each.cells.items()},
    )


def added(old: SuiteResult, new: SuiteResult, suite: Suite) -> SuiteResult:
    """A task's result with the methods of another one, cell by cell; of a method that both have, the new scores."""
    if (old.suite, old.scale, old.own, old.digests) != (new.suite, new.scale, new.own, new.digests):
        raise SettingError(f"{new.command}: not of the same suite as {old.command}")
    cells = dict(old.cells)
    for name, cell in new.cells.items():
        both = {**(cells[name].methods if name in cells else {}), **cell.methods}
        labels = [*suite.labels(name), *old.own]
        cells[name] = replace(cell, methods={label: both[label] for label in labels if label in both})
    ordered = {name: cells[name] for name in suite.cells if name in cells}
    return replace(
        old,
        command="; ".join(dict.fromkeys([*old.command.split("; "), *new.command.split("; ")])),
        wall_s=old.wall_s + new.wall_s,
        device=_joined(old.device, new.device),
        versions={key: _joined(old.versions.get(key, text), text) for key, text in new.versions.items()},
        cells=ordered,
    )


def _joined(one: str, other: str) -> str:
    return ", ".join(dict.fromkeys([*one.split(", "), *other.split(", ")]))


def text(table: SuiteTable) -> str:
    rows = [table.head, *table.body]
    lines = [f"| {' | '.join(row)} |".replace("\n", " ") for row in rows]
    return "\n".join([f"## {table.title}", "", lines[0], f"|---|{'---:|' * (len(table.head) - 1)}", *lines[1:], ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", type=Path, nargs="*", default=[])
    given = parser.parse_args()
    suite = definition.load("v1")
    if suite.stand_ins:
        parser.error(
            f"the pages name the data sets of the results, which have to be here: {'; '.join(suite.stand_ins)}"
        )
    for path in given.add:
        new = result.read(path)
        (task,) = {cell.task for cell in new.cells.values()}
        place = FOLDER / f"{task}.json"
        write_json(place, result.to_json(added(result.read(place), new, suite) if place.exists() else new))
    names = [name for name in definition.task_names("v1") if (FOLDER / f"{name}.json").exists()]
    results = [result.read(FOLDER / f"{name}.json") for name in names]
    for name, each in zip(names, results, strict=True):
        found = page.markdown(each, suite).replace("# Suite v1, full", f"# Suite v1: {name}", 1)
        (FOLDER / f"{name}.md").write_text(found)
    whole = merged(results)
    path = FOLDER.with_suffix(".md")
    head = path.read_text().partition(MARK)[0]
    summary = [table for table in tables(whole, suite) if table.name not in whole.cells]
    path.write_text("\n".join([head + MARK, *map(text, summary)]))


if __name__ == "__main__":
    main()
