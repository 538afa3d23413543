"""`offbeat suite`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli.options import AsJson, Ray
from offbeat.core.errors import SettingError

if TYPE_CHECKING:
    from offbeat.suite.definition import Suite


def suite(
    version: Annotated[
        str, typer.Argument(metavar="v1|verify", help="Version of the suite, or `verify` to check a result.")
    ] = "v1",
    result: Annotated[
        Path | None, typer.Argument(help="With verify: a result.json, or its folder. Default: none.")
    ] = None,
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="mine.py:Mine", help="Also run this class, derived from offbeat.Server. Repeatable. Default: none."
        ),
    ] = None,
    with_: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="KEY=VALUE", help="A setting of the class. Repeatable. Default: its own."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A small version: 2 to 10 minutes on two cores. Default: the full suite, hours."),
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK|CLOCK|TASK/CLOCK", help="Only this task, clock or cell. Repeatable. Default: all."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Cells at once, each in a process. Default: one per core, on a GPU one.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that share the runs of a cell. Default: 1, with --ray as many as fit."),
    ] = None,
    ray: Ray = None,
    seeds: Annotated[int, typer.Option(min=1, help="With verify: evaluation seeds to repeat.")] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write. Default: runs/suite-VERSION-SCALE-TIME.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the benchmark suite: frozen tasks and clocks, your method and the others, all tuned alike.

    Ctrl-C saves the active runs; `offbeat resume DIR` continues them. `offbeat suite verify RESULT` repeats evaluation
    seeds of a result file and compares.
    """
    from offbeat.experiment.overrides import parse
    from offbeat.suite import run as library

    if version == "verify":
        _verify(result, tuple(algorithm or ()), tuple(only or ()), seeds, device)
        return
    if with_ and len(algorithm or ()) != 1:
        raise SettingError("--with sets up one class: name it with one --algorithm")
    settings = (dict(map(parse, with_ or ())),) * len(algorithm or ())
    request = library.SuiteRequest(
        version, "quick" if quick else "full", tuple(algorithm or ()), settings, tuple(only or ()), device
    )
    folder = library.create(request, out, ray)
    _announce(request.suite(), not quick)
    _work(folder, jobs, as_json, workers, ray)


def resume(folder: Path, as_json: bool) -> bool:
    """Continue the suite in this folder; False if it holds none."""
    from offbeat.suite.run import is_suite

    if not is_suite(folder):
        return False
    _work(folder, None, as_json)
    return True


def _announce(suite: Suite, full: bool) -> None:
    """What will be run, before it begins."""
    what = f"{len(suite.cells)} cells ({', '.join(suite.tasks)}), {len(suite.methods)} methods, {suite.runs:,} runs"
    long = "this takes hours, and networks for images and text need a GPU; --quick takes 2 to 10 minutes on two cores"
    print(f"{suite.scale} suite {suite.version}: {what}{f'; {long}' if full else ''}", file=sys.stderr)


def _work(folder: Path, jobs: int | None, as_json: bool, workers: int | None = None, ray: str | None = None) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from offbeat.experiment.folder import json_text
    from offbeat.suite import page, result, run, tables

    suite = run.work(folder, jobs, lambda line: print(line, file=sys.stderr), workers, ray)
    found = result.collect(folder, suite)
    page.write(folder, found, suite)
    if as_json:
        print(json_text(result.to_json(found)))
        return
    head, body = tables.overview(found)
    console = Console(highlight=False)
    console.width = max(console.width, 80 if console.is_terminal else 400)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for at, name in enumerate(head):
        table.add_column(name.replace("/", "/\n"), justify="left" if at == 0 else "right")
    for row in body:
        table.add_row(*row)
    console.print(table)
    for label in found.own:
        for line in tables.where(found, label):
            print(line)
    print(f"result and page: {folder}/result.{{json,html}}")


def _verify(path: Path | None, own: tuple[str, ...], only: tuple[str, ...], seeds: int, device: str) -> None:
    from offbeat.suite import result
    from offbeat.suite.verify import verify

    if path is None:
        raise SettingError("name the result to verify: offbeat suite verify result.json")
    found = verify(result.read(path), own, only, seeds, device)
    for line in [*found.notes, *found.wrong]:
        print(f"offbeat: {line}", file=sys.stderr)
    if found.wrong:
        raise SettingError(f"{_count(len(found.wrong), 'difference')} in {_count(found.runs, 'run')}")
    print(f"verified: {_count(found.runs - found.near, 'run')} came out as stated")
    if found.near:
        differ = "differs" if found.near == 1 else "differ"
        print(f"{_count(found.near, 'run')} {differ} by more than rounding, but no more than another seed could")
    if found.unchecked:
        were = "was" if len(found.unchecked) == 1 else "were"
        print(f"{', '.join(found.unchecked)} {were} not checked: pass --algorithm FILE:CLASS")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
