"""`offbeat tune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli.options import AsJson, Over, Ray, Set, Workers, axes, overrides

if TYPE_CHECKING:
    from offbeat.experiment.tuning import Tuned


def tune(
    file: Annotated[
        Path,
        typer.Argument(help="Experiment file in TOML; its [tune] table says what to try. Default: every step size."),
    ],
    budget: Annotated[
        int, typer.Option(min=1, metavar="N", help="Settings to try of each algorithm; fewer if its lists end sooner.")
    ] = 9,
    best: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="CRITERION",
            help="What is best: the time to a value (time:accuracy=0.8), or a metric at the end. "
            "Default: the task's main metric.",
        ),
    ] = None,
    set_: Set = None,
    over: Over = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds to try settings on, apart from those of the file.")] = 2,
    rungs: Annotated[
        int | None,
        typer.Option(min=1, help="Rungs of successive halving; 1 runs every setting to the end. Default: up to 3."),
    ] = None,
    sampler: Annotated[
        str, typer.Option(help="Which settings to try: latin (an even spread), or Optuna's tpe, qmc or random.")
    ] = "latin",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to write; must not contain a run. Default: runs/tuning-TIME."),
    ] = None,
    workers: Workers = None,
    ray: Ray = None,
    as_json: AsJson = False,
) -> None:
    """Tune each algorithm of a file with the same budget, then evaluate the best settings on other seeds.

    Settings are tried by successive halving: short runs of all, longer ones of the best third. Ctrl-C saves the
    active runs; `offbeat resume DIR` continues them.
    """
    from offbeat.experiment import tuning
    from offbeat.experiment.experiment import read

    table = read(file, overrides(set_))
    table["tune"] = {**table.get("tune", {}), **dict(axes(over))}
    options = tuning.TuneOptions(budget, best, rungs, seeds, None, sampler, workers, ray=ray)  # type: ignore[arg-type]
    show(tuning.tune(table, out, options, progress=not as_json), as_json)


def resume(folder: Path, as_json: bool) -> bool:
    """Continue the tuning in this folder; False if it holds none."""
    from offbeat.experiment import tuning

    if not tuning.is_tuning(folder):
        return False
    show(tuning.resume(folder, progress=not as_json), as_json)
    return True


def show(found: Tuned, as_json: bool) -> None:
    """The best settings, and what came of them on the seeds that judge."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from offbeat.experiment.folder import json_text
    from offbeat.experiment.ranking import shown

    if as_json:
        print(json_text(found.to_json()))
        return
    several = any(seeds > 1 for _, _, seeds in found.judged().values())
    caption = "means of the evaluation seeds ± 95 %" if several else "of one evaluation seed"
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption=caption)
    for name in ("algorithm", "best settings", "tried", found.by, "seeds"):
        table.add_column(name, justify="left" if name in ("algorithm", "best settings") else "right", overflow="fold")
    tried = {label: len({repr(t.settings) for t in found.trials if t.algorithm == label}) for label in found.best}
    for label, (judged, reached, seeds) in found.judged().items():
        edge = " (at the edge)" if found.edges.get(label) else ""
        number = "–" if judged is None else judged.text(3)
        table.add_row(label, shown(found.best[label]) + edge, str(tried[label]), number, f"{reached} of {seeds}")
    console = Console(highlight=False)
    console.width = max(console.width, 80 if console.is_terminal else 120)
    console.print(table)
    if len(set(tried.values())) > 1:
        counts = ", ".join(f"{label} {count}" for label, count in tried.items())
        print(f"settings tried: {counts}; some lists or ranges hold fewer than the budget")
    if found.edges:
        print("at the edge: the best value is the least or the largest that was tried; widen the range")
    print(f"tuned experiment: {found.folder / 'best.toml'}")
    print(f"tuning folder: {found.folder}")
