"""`offbeat run` and `offbeat resume`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli import reproduce, suite, tune
from offbeat.cli.options import AsJson, Out, Set, overrides


def run(
    file: Annotated[
        Path | None, typer.Argument(help="Experiment file in TOML. Default: the embedded demonstration.")
    ] = None,
    set_: Set = None,
    out: Out = None,
    as_json: AsJson = False,
    theory: Annotated[
        bool, typer.Option("--theory", help="Also print what the papers' theorems would choose, on standard error.")
    ] = False,
    tensorboard: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write TensorBoard event files to this folder. Default: off."),
    ] = None,
    wandb: Annotated[
        str | None,
        typer.Option(metavar="PROJECT", help="Also log the runs to this Weights & Biases project. Default: off."),
    ] = None,
    mlflow: Annotated[
        str | None,
        typer.Option(metavar="EXPERIMENT", help="Also log the runs to this MLflow experiment. Default: off."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Distribute clients' jobs over this many processes or Ray workers. Default: one process."
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="auto|ADDRESS",
            help="Distribute them over Ray; auto: a detected cluster, else this machine. Default: off.",
        ),
    ] = None,
) -> None:
    """Run an experiment: every algorithm in the file, with every seed.

    Ctrl-C saves the run. `offbeat resume DIR` continues it and ends bit for bit like an uninterrupted run.
    """
    from offbeat.cli import show
    from offbeat.experiment.experiment import load

    spread = None if workers is None and ray is None else "processes" if ray is None else "ray"
    given = overrides(
        set_,
        workers=workers,
        ray=ray,
        executor=spread,
        trackers__tensorboard=None if tensorboard is None else str(tensorboard),
        trackers__wandb=wandb,
        trackers__mlflow=mlflow,
    )
    experiment = load(file, given)
    if theory or experiment.theory:
        print("\n".join(experiment.advice()), file=sys.stderr)
    show.results(experiment.run(out), as_json)


def resume(
    folder: Annotated[Path, typer.Argument(help="Folder of an experiment that was stopped.")], as_json: AsJson = False
) -> None:
    """Continue an experiment, sweep, tuning, suite or reproduction that was stopped. Finished runs are kept."""
    from offbeat.cli import show
    from offbeat.experiment import runs

    if not any(command.resume(folder, as_json) for command in (reproduce, tune, suite)):
        show.results(runs.resume(folder), as_json)
