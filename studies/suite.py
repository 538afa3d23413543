"""The pages of the suite's results in the documentation, from result files of single tasks.

    python -m studies.suite                                   # from docs/results/suite/TASK.json
    python -m studies.suite --add runs/mnist/result.json      # first take over a result, replacing that of its task

Writes docs/results/suite.md, all tasks together, and docs/results/suite/TASK.md. Nothing is run.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from offbeat.core.errors import SettingError
from offbeat.suite import definition, page, result
from offbeat.suite.result import SuiteResult
from offbeat.suite.tables import SuiteTable, tables

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


def text(table: SuiteTable) -> str:
    rows = [table.head, *table.body]
    lines = [f"| {' | '.join(row)} |".replace("\n", " ") for row in rows]
    return "\n".join([f"## {table.title}", "", lines[0], f"|---|{'---:|' * (len(table.head) - 1)}", *lines[1:], ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", type=Path, nargs="*", default=[])
    for path in parser.parse_args().add:
        (task,) = {cell.task for cell in result.read(path).cells.values()}
        shutil.copyfile(path, FOLDER / f"{task}.json")
    suite = definition.load("v1")
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
