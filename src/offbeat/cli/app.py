"""The commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from offbeat.cli.bench import bench
from offbeat.cli.deploy import register as register_deploy
from offbeat.cli.outcome import conclude
from offbeat.cli.report import report as report_runs
from offbeat.cli.reproduce import reproduce, resume_reproduction
from offbeat.cli.sweep import resume_sweep, sweep
from offbeat.cli.theory import suggestions, theory
from offbeat.core.errors import DivergedError, OffbeatError, unknown
from offbeat.core.watcher import Watcher
from offbeat.experiment import trackers as boards
from offbeat.experiment.algorithms import ALGORITHMS, LOCALS
from offbeat.experiment.experiment import Experiment, Spec, read
from offbeat.experiment.folder import changes, create, open_experiment
from offbeat.experiment.problem import QUADRATIC
from offbeat.experiment.problem_parts import DATA, MODELS, SPLITS
from offbeat.experiment.timing import TIMINGS
from offbeat.simulate.loop import Simulation
from offbeat.simulate.world import World
from offbeat.watch.files import locked
from offbeat.watch.folder import RunFolder
from offbeat.watch.measures import measure
from offbeat.watch.progress import Display, display
from offbeat.watch.results import Result
from offbeat.watch.session import InterruptedRunError, Patience, drive, interruptible, summary

app = typer.Typer(
    help="Asynchronous federated learning, simulated in virtual time.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(theory, name="theory")
app.command("report")(report_runs)
app.command("sweep")(sweep)
app.command()(reproduce)
app.command()(bench)
register_deploy(app)

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY.PATH=VALUE", help="Override a setting, e.g. algorithm.area.local.sgd.lr=10. Repeatable."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")]


@app.command()
def run(
    file: Annotated[
        Path | None, typer.Argument(help="Experiment file in TOML; without one, the embedded demonstration.")
    ] = None,
    set_: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write, which must not hold a run yet; default runs/TIME.")
    ] = None,
    as_json: AsJson = False,
    with_theory: Annotated[
        bool, typer.Option("--theory", help="Also say what the papers' theorems would choose, on standard error.")
    ] = False,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write TensorBoard's files, into this folder.")
    ] = None,
    wandb: Annotated[
        str | None, typer.Option(metavar="PROJECT", help="Also send the runs to this project at Weights & Biases.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", help="Spread the clients' work over so many processes (or Ray's workers)."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="auto|ADDRESS", help="Spread it over a Ray cluster; auto: one found, else this machine."),
    ] = None,
) -> None:
    """Run an experiment: every algorithm in the file, under every seed.

    Ctrl-C saves the run at work; `offbeat resume DIR` goes on with it, to the same end bit for bit.
    """
    experiment = read(file, [*_spread(workers, ray), *(set_ or ()), *boards.settings(tensorboard, wandb)])
    experiment.check()
    if with_theory or experiment.top.theory:
        print("\n".join(suggestions(experiment)), file=sys.stderr)
    _run_all(experiment, create(out, experiment), as_json)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of an experiment that was stopped.")],
    as_json: AsJson = False,
) -> None:
    """Go on with an experiment that was stopped; finished runs are kept as they are."""
    if resume_reproduction(folder, as_json):
        return
    experiment = open_experiment(folder)
    for change in changes(folder):
        print(f"offbeat: {change}: the end may differ from that of an unbroken run", file=sys.stderr)
    if resume_sweep(folder, as_json):
        return
    _run_all(experiment, folder, as_json)


@app.command("list")
def list_(
    what: Annotated[
        str | None, typer.Argument(help="algorithms, locals, models, data, splits or timing; without it, all.")
    ] = None,
) -> None:
    """What an experiment file can name, with a line of explanation each."""
    shelves = {
        "algorithms": {name: entry.line for name, entry in ALGORITHMS.items()},
        "locals": {name: line for name, (_, line) in LOCALS.items()},
        "models": MODELS,
        "data": {**DATA, "quadratic": QUADRATIC},
        "splits": SPLITS,
        "timing": TIMINGS,
    }
    if what is not None and what not in shelves:
        raise unknown("list", what, shelves)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200  # a line each, for grep
    for shelf, lines in shelves.items() if what is None else [(what, shelves[what])]:
        grid = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column()
        for name, line in lines.items():
            grid.add_row(name, line)
        if what is None:
            console.print(f"\n{shelf}", style="bold")
        console.print(grid)


@app.command()
def data(
    get: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Download this set into the folder; checked against its publisher's files."),
    ] = None,
) -> None:
    """Where data sets are looked for, which are there, and how to get the others."""
    from offbeat.data import fetch, status
    from offbeat.data.folder import VARIABLE, root

    if get is not None:
        fetch(get, say=lambda line: print(line, file=sys.stderr))
    rows = status()
    grid = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("set", "state", "size", "where"):
        grid.add_column(name, justify="right" if name == "size" else "left", overflow="fold")
    for row in rows:
        grid.add_row(row.name, row.state, f"{row.size / 1e6:.1f} MB" if row.size else "", Path(row.where).name)
    console = Console(highlight=False, markup=False)
    console.print(f"Data sets are looked for in {root()}; {VARIABLE} names another folder.\n", soft_wrap=True)
    console.print(grid)
    for row in rows:
        if row.state != "present":
            console.print(f"\n{row.name} is {row.state}: {row.get}", soft_wrap=not console.is_terminal)


def _spread(workers: int | None, ray: str | None) -> list[str]:
    """The settings that --workers and --ray stand for."""
    settings = [] if ray is None else ["executor=ray", f"ray={json.dumps(ray)}"]
    if workers is not None:
        settings += [f"workers={workers}", *([] if ray is not None else ["executor=processes"])]
    return settings


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: errors made by offbeat are one line and exit code 1."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="offbeat", standalone_mode=True)
    except OffbeatError as error:
        print(f"offbeat: {error}", file=sys.stderr)
        sys.exit(130 if isinstance(error, InterruptedRunError) else 1)


def _run_all(experiment: Experiment, folder: Path, as_json: bool) -> None:
    results: list[Result] = []
    with (
        locked(folder),
        closing(experiment),
        display(Console(stderr=True), len(experiment.runs)) as shown,
        interruptible(shown.say) as patience,
    ):
        for spec in experiment.runs:
            done = RunFolder(folder / spec.folder).result()
            if done is not None:
                shown.end(f"{spec.name}: finished before")
            results.append(done or _run_one(experiment, spec, folder, shown, patience))
    conclude(experiment, folder, results, as_json)


def _run_one(experiment: Experiment, spec: Spec, folder: Path, shown: Display, patience: Patience) -> Result:
    shown.begin(spec.name)
    place = folder / spec.folder

    def make(watchers: list[Watcher], world: World | None) -> Simulation:
        opened.extend(experiment.top.boards.open(experiment, spec, folder, world.tally.updates if world else 0))
        return experiment.simulation(spec, [*watchers, *opened], world)

    try:
        with boards.closing() as opened:
            simulation, recorder, wall = drive(
                make, place, device=experiment.top.device, tick=shown.tick, patience=patience
            )
    except DivergedError as error:  # the other runs of the experiment still count
        shown.end(f"{spec.name}: diverged")
        result = Result(spec.label, spec.seed, error=str(error), folder=place)
        RunFolder(place).finish(result)  # it would diverge again: resuming keeps it as it is
        return result
    except InterruptedRunError as error:
        raise InterruptedRunError(f"{spec.name}: {error}; go on with `offbeat resume {folder}`") from None
    found = summary(simulation, recorder, wall, experiment.top.targets, algorithm=spec.label, seed=spec.seed)
    result = replace(found, measures=measure(place, simulation), folder=place)
    RunFolder(place).finish(result, simulation)
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in result.metrics.items())
    if result.several:
        done = sum(task.time is not None for task in result.tasks)
        metrics = f"{done} of {len(result.tasks)} tasks done by time {result.time:g}"
    shown.end(f"{spec.name}: {metrics} after {result.updates:,} updates in {wall:.1f} s, {_ways(result)}")
    return result


def _ways(result: Result) -> str:
    """How it was computed."""
    name, workers = result.executor, result.workers
    return f"{workers} {'process' if workers == 1 else name}" if name == "processes" else name
