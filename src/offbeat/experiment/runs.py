"""Running an experiment into a folder, continuing one that was stopped, and reading one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

from rich.console import Console

from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import DivergedError, FolderError, InterruptedRunError
from offbeat.core.watcher import Watcher
from offbeat.experiment import folder as folders
from offbeat.experiment.experiment import Experiment, Spec
from offbeat.experiment.results import Results
from offbeat.experiment.session import Session
from offbeat.experiment.spending import of_results, told
from offbeat.report import tables
from offbeat.simulate.loop import Simulation
from offbeat.simulate.personal import judged, measured_metrics
from offbeat.simulate.run import Evaluate
from offbeat.simulate.world import World
from offbeat.timing.base import Timing
from offbeat.watch.files import SUMMARY, locked, room, write_json
from offbeat.watch.folder import RunFolder
from offbeat.watch.measures import measure
from offbeat.watch.progress import Display, display
from offbeat.watch.record import Recorder
from offbeat.watch.results import Result
from offbeat.watch.session import Patience, drive, interruptible, summary

if TYPE_CHECKING:
    from offbeat.experiment.run import Trained


def run(experiment: Experiment, out: Path | str | None = None, *, progress: bool = True) -> Results:
    """Run every algorithm under every seed into a new folder.

    Ctrl-C saves the run at work; `resume` continues it.   progress: show how far it is, on standard error.
    """
    with closing(Session(experiment)) as session:
        session.check()  # a mistake is found before anything is written
        folder = folders.create(out, experiment)
        return _run(session, folder, progress)


def resume(
    folder: Path | str,
    problem: Trained | None = None,
    algorithm: Algorithm | None = None,
    timing: Timing | None = None,
    *,
    progress: bool = True,
) -> Results:
    """Continue an experiment or a sweep that was stopped; finished runs are kept as they are.

    problem, algorithm, timing: for a run that `offbeat.run(…, out=…)` began, the same objects again.
    """
    from offbeat.experiment import sweep
    from offbeat.experiment.run import open_by_hand, resume_by_hand

    place = Path(folder)
    by_hand = folders.open_by_hand(place)
    experiment = folders.open_experiment(place) if by_hand is None else None
    if experiment is not None and (command := folders.open_real(place)) and len(open(place)) < len(experiment.runs):
        raise FolderError(f"{place} holds a real run; repeat its command, `{command} --out {place}`, to continue it")
    for change in folders.changes(place):
        print(f"offbeat: {change}: the end may differ from that of an unbroken run", file=sys.stderr)
    if experiment is None:
        assert by_hand is not None
        found = open_by_hand(place, by_hand)
        missing = len(found) < len(by_hand["seeds"])
        return resume_by_hand(place, by_hand, problem, algorithm, timing) if missing else found
    if (options := folders.open_sweep(place)) is not None:
        return sweep.resume(place, experiment, options, progress=progress)
    with closing(Session(experiment)) as session:
        return _run(session, place, progress)


def open(folder: Path | str) -> Results:
    """What the runs of a folder found so far; nothing is run or written."""
    from offbeat.experiment import sweep
    from offbeat.experiment.run import open_by_hand

    if not isinstance(folder, Path | str):
        raise FolderError("open takes one folder; to compare several, open each of them and plot into the same ax")
    place = Path(folder)
    if (by_hand := folders.open_by_hand(place)) is not None:
        return open_by_hand(place, by_hand)
    experiment = folders.open_experiment(place)
    if folders.open_sweep(place) is not None:
        return sweep.read(place, experiment)
    found = [RunFolder(place / spec.folder).result() for spec in experiment.runs]
    return _results([result for result in found if result is not None], place, experiment)


def _run(session: Session, folder: Path, progress: bool) -> Results:
    experiment, results = session.experiment, list[Result]()
    with (
        locked(folder),
        display(Console(stderr=True, quiet=not progress), len(experiment.runs)) as shown,
        interruptible(shown.say) as patience,
    ):
        for spec in experiment.runs:
            done = RunFolder(folder / spec.folder).result()
            if done is not None:
                shown.end(f"{spec.name}: finished before")
            results.append(done or _run_one(session, spec, folder, shown, patience))
    return sum_up(folder, experiment, results)


def sum_up(folder: Path, experiment: Experiment, results: Sequence[Result]) -> Results:
    """Write the summary, the report and its page of finished runs."""
    found = _results(results, folder, experiment)
    write_json(folder / SUMMARY, found.summary)
    if len(experiment.tasks) > 1:
        text = tables.markdown(*tables.task_rows(found, found.baseline))
    else:
        text = tables.markdown(*tables.rows(found), tables.note(found))
    errors = [f"{result.name}: {result.error}" for result in results if result.error is not None]
    parts = [text, tables.markdown(*tables.work_rows(found)), *_generated(results)]
    if spent := of_results(results):
        parts += ["", "## Privacy", "", "```", *told(spent), "```"]
    folders.write_report(folder, experiment, "\n".join(parts), errors)
    folders.draw_report(folder)
    return found


def _generated(results: Sequence[Result]) -> Iterator[str]:
    """What the language models of each algorithm's first run wrote, for the report."""
    first = {result.algorithm: result for result in reversed(results) if result.folder is not None}
    texts = {label: RunFolder(result.folder).generated for label, result in first.items() if result.folder}
    if any(texts.values()):
        yield "## Generated text\n\nThe final models continue a test text from ¦ on.\n"
    for label in dict.fromkeys(result.algorithm for result in results):
        if said := texts.get(label, ""):
            yield f"{label}:\n\n{indent(said, '    ', lambda line: True)}\n"


def _results(results: Sequence[Result], folder: Path, experiment: Experiment) -> Results:
    goals = {task.name: task.target for task in experiment.tasks if task.target}
    return Results(results, folder, goals)


def _run_one(session: Session, spec: Spec, folder: Path, display: Display, patience: Patience) -> Result:
    display.begin(spec.name)
    experiment, place = session.experiment, folder / spec.folder

    def make(watchers: Sequence[Watcher], world: World | None) -> Simulation:
        updates = world.tally.updates if world else 0
        settings = {**experiment.table, "label": spec.label, "seed": spec.seed}
        names = [task.name for task in experiment.tasks]
        problems = session.problems(spec)
        personal = judged(experiment.evaluate.personal, problems)
        metrics = [measured_metrics(p, personal) for p in problems]
        trackers = experiment.trackers.open(spec.name, place, settings, names, updates, metrics)
        for tracker in trackers:
            opened.callback(tracker.close)
        return session.simulation(spec, [*watchers, *trackers], world)

    try:
        with session.computing(spec), ExitStack() as opened:
            options = {"device": experiment.device, "tick": display.tick, "patience": patience}
            told = display.measure
            _, _, result = record(make, place, spec.label, spec.seed, experiment.evaluate, told=told, **options)
    except DivergedError as error:  # the other runs of the experiment still count
        display.end(f"{spec.name}: diverged")
        result = Result(spec.label, spec.seed, error=str(error), folder=place)
        RunFolder(place).finish(result)  # it would diverge again: resuming keeps it as it is
        return result
    except InterruptedRunError as error:
        raise InterruptedRunError(f"{spec.name}: {error}; continue with `offbeat resume {folder}`") from None
    spent = f"{result.updates:,} updates in {result.wall_s:.1f} s"
    crowd = f"{result.workers} {'process' if result.workers == 1 else 'processes'}"
    how = crowd if result.executor == "processes" else result.executor
    display.end(f"{spec.name}: {_ended(result)} after {spent}, {how}{result.remark}")
    return result


def record(
    make: Callable[[Sequence[Watcher], World | None], Simulation],
    folder: Path,
    algorithm: str,
    seed: int,
    evaluate: Evaluate | None,
    told: Callable[[Simulation], None] | None = None,
    **options: Any,
) -> tuple[Simulation, Recorder, Result]:
    """Run to the end in a run's own folder, from its checkpoint if it has one, and keep what it found; see `drive`.

    told: called before the final model is measured, which may take long.
    """
    with room(folder.parent):
        simulation, recorder, wall = drive(make, folder, **options)
    if told is not None:
        told(simulation)
    found = summary(simulation, recorder, wall, evaluate, algorithm=algorithm, seed=seed)
    with room(folder.parent):
        result = replace(found, measures=measure(folder, simulation), folder=folder)
        RunFolder(folder).finish(result, simulation)
    return simulation, recorder, result


def _ended(result: Result) -> str:
    if result.several:
        done = sum(task.time is not None for task in result.tasks)
        return f"{done} of {len(result.tasks)} tasks done by time {result.time:g}"
    return ", ".join(f"{name} {value:.4g}" for name, value in result.metrics.items())
