"""`offbeat sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.options import AsJson, Out, Over, Ray, Set, Workers, axes, overrides


def sweep(
    file: Annotated[
        Path, typer.Argument(help="Experiment file in TOML, with a [sweep] table of keys and lists of values.")
    ],
    set_: Set = None,
    over: Over = None,
    out: Out = None,
    workers: Workers = None,
    ray: Ray = None,
    events: Annotated[bool, typer.Option("--events", help="Also keep the event log of every run.")] = False,
    best: Annotated[
        str | None,
        typer.Option(
            help="Rank by a metric (accuracy, loss), by the time to a value of the task's main metric (time:0.8) or of "
            "another one (time:rmse:0.5), or by finish, the time when the last of several tasks reached its target. "
            "Default: finish with several tasks, else the task's main metric."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a grid as one program: every algorithm, seed and combination of the values in [sweep].

    Jobs of all active runs are computed in batches, in several processes. Ctrl-C saves the active runs;
    `offbeat resume DIR` continues them.
    """
    from offbeat.cli import show
    from offbeat.experiment import sweep as library
    from offbeat.experiment.experiment import read

    table = read(file, [*overrides(set_), *((f"sweep.{axis}", values) for axis, values in axes(over))])
    options = library.Options(events, best, workers, ray)
    show.results(library.sweep(table, out, options), as_json)
