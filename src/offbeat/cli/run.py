"""`offbeat run` and `offbeat resume`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import offbeat as ob
from offbeat.cli import reproduce, show
from offbeat.cli.options import AsJson, Out, Set, overrides


def run(
    file: Annotated[
        Path | None, typer.Argument(help="Experiment file in TOML; without one, the embedded demonstration.")
    ] = None,
    set_: Set = None,
    out: Out = None,
    as_json: AsJson = False,
    theory: Annotated[
        bool, typer.Option("--theory", help="Also print what the papers' theorems would choose, on standard error.")
    ] = False,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write TensorBoard's files, into this folder.")
    ] = None,
    wandb: Annotated[
        str | None, typer.Option(metavar="PROJECT", help="Also send the runs to this project at Weights & Biases.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", help="Spread the clients' jobs over so many processes (or Ray's workers)."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="auto|ADDRESS", help="Spread them over a Ray cluster; auto: one found, else this machine."
        ),
    ] = None,
) -> None:
    """Run an experiment: every algorithm in the file, under every seed.

    Ctrl-C saves the run; `offbeat resume DIR` continues it and ends bit for bit as an unbroken run would.
    """
    spread = None if workers is None and ray is None else "processes" if ray is None else "ray"
    given = overrides(
        set_,
        workers=workers,
        ray=ray,
        executor=spread,
        trackers__tensorboard=None if tensorboard is None else str(tensorboard),
        trackers__wandb=wandb,
    )
    experiment = ob.load(file, given)
    if theory or experiment.theory:
        print("\n".join(experiment.advice()), file=sys.stderr)
    show.results(experiment.run(out), as_json)


def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of an experiment that was stopped.")],
    as_json: AsJson = False,
) -> None:
    """Continue an experiment, sweep or reproduction that was stopped; finished runs are kept as they are."""
    if not reproduce.resume(folder, as_json):
        show.results(ob.resume(folder), as_json)
