"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY.PATH=VALUE",
        help="Override a setting, e.g. algorithm.area.local.sgd.lr=10. Repeatable. Default: as in the file.",
    ),
]
Over = Annotated[
    list[str] | None,
    typer.Option(
        "--over",
        metavar="KEY.PATH=VALUES",
        help="Also try these values of a key: algorithm.*.local.sgd.lr=[1,10]; for tune also a range, "
        "={low=0.01,high=10.0}. Repeatable. Default: as in the file.",
    ),
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Number of processes. Default: one per core, at most 8 per GPU.")
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="HOST:PORT",
        help="Spread the runs over this Ray cluster; auto: detect it. Default: this machine.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print a single JSON object on standard output.")]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder to write; must not contain a run. Default: runs/TIME.")
]


def overrides(set_: list[str] | None, **options: Any) -> list[tuple[str, Any]]:
    """Settings from options that were given, and then from `--set`; `trackers__wandb` is trackers.wandb."""
    from offbeat.experiment.overrides import parse

    given = [(name.replace("__", "."), value) for name, value in options.items() if value is not None]
    return [*given, *map(parse, set_ or ())]


def axes(over: list[str] | None) -> list[tuple[str, Any]]:
    """(key, its values) of each `--over`."""
    from offbeat.experiment.overrides import parse

    return [parse(each, "--over", "problem.clients=[32,64]") for each in over or ()]
