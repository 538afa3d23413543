"""`offbeat new` and `offbeat check`."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from offbeat.cli.options import AsJson, Set, overrides

Kind = Literal["classification", "regression", "multi-label", "language-model", "sites", "algorithm"]


def new(
    folder: Annotated[Path, typer.Argument(help="Folder to create.")],
    kind: Annotated[Kind, typer.Option(help="Kind of task.")] = "classification",
) -> None:
    """Create a project that runs as it is: experiment file, data loader, model and README."""
    from offbeat.experiment import project

    for path in project.create(folder, kind):
        print(path)
    print(f"next: cd {shlex.quote(str(folder))} && offbeat run experiment.toml")


def check(
    file: Annotated[
        Path | None, typer.Argument(help="Experiment file in TOML. Default: the embedded demonstration.")
    ] = None,
    set_: Set = None,
    seconds: Annotated[float, typer.Option(help="Seconds to try each algorithm.")] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Try an experiment briefly: what would run, how long it takes, how much memory, and what looks wrong.

    Nothing is written. Exits with 1 if a step size diverges or there is another problem.
    """
    began = time.perf_counter() - time.process_time()  # of the process
    from offbeat.cli import show
    from offbeat.experiment.experiment import load
    from offbeat.experiment.rehearsal import rehearse

    experiment = load(file, overrides(set_))
    found = rehearse(experiment, seconds, time.perf_counter() - began)
    show.rehearsal(found, as_json)
    if found.wrong:
        raise typer.Exit(1)
