"""Running to the end while recording, saving checkpoints and handling Ctrl-C."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from offbeat.core.errors import DivergedError, InterruptedRunError
from offbeat.core.watcher import Watcher
from offbeat.privacy.dp_sgd import local_ledger
from offbeat.simulate.loop import Simulation
from offbeat.simulate.run import Evaluate
from offbeat.simulate.world import World
from offbeat.watch import checkpoint
from offbeat.watch.history import History
from offbeat.watch.record import Recorder
from offbeat.watch.results import MeanMax, Result, TaskResult, time_to
from offbeat.watch.watched import WatchedRun, final_metrics, final_outputs, sample, sampled_to_end

_LOOK = 64  # events between two looks at the wall clock


class Patience:
    """Remembers that the user has asked to stop."""

    asked = False


@contextmanager
def interruptible(say: Callable[[str], None] = lambda line: None) -> Iterator[Patience]:
    """Inside, the first Ctrl-C (or SIGTERM) asks to stop between two events; the second stops at once.

    say: called with a line for the user.
    """
    patience = Patience()
    if threading.current_thread() is not threading.main_thread():
        yield patience
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if patience.asked:
            raise KeyboardInterrupt
        patience.asked = True
        say("stopping and saving; a second Ctrl-C stops at once, without saving")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield patience
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def drive(
    make: Callable[[list[Watcher], World | None], Simulation],
    folder: Path,
    *,
    device: str = "cpu",
    save_every: float = 30.0,
    tick: Callable[[Simulation, Recorder], None] | None = None,
    patience: Patience | None = None,
) -> tuple[Simulation, Recorder, float]:
    """Run to the end in this folder, from its newest checkpoint if it has one.

    make: builds the simulation from watchers and a saved world.   save_every: seconds between checkpoints.
    tick: called regularly, for a progress display.   Returns the simulation, its recorder and the seconds it took.
    """
    saved = checkpoint.restore(World, folder, device)
    world, extra = saved if saved else (None, None)
    recorder = Recorder(folder, extra["record"] if extra else None)
    simulation = make([recorder], world)
    recorder.metrics = simulation.metrics
    worked = float(extra["worked"]) if extra else 0.0
    began = looked = time.perf_counter()
    due = False

    def save() -> None:
        recorder.flush()
        spent = worked + time.perf_counter() - began
        checkpoint.save(folder, simulation.world, {"record": recorder.state, "worked": spent})

    try:
        for count, _ in enumerate(simulation.steps()):
            whole = not simulation.computing.owed  # else saving would compute what the run computes later
            if whole and patience is not None and patience.asked:
                save()
                raise InterruptedRunError(f"stopped at time {simulation.world.now:g} and saved")
            if whole and due:
                save()
                looked, due = time.perf_counter(), False
            if count % _LOOK == 0:
                due = time.perf_counter() - looked > save_every
                if tick is not None:
                    tick(simulation, recorder)
    except DivergedError:
        simulation.flush()  # so that the record shows how it came to that
        raise
    finally:
        recorder.flush()
    return simulation, recorder, worked + time.perf_counter() - began


def summary(
    simulation: WatchedRun,
    recorder: Recorder | History,
    wall: float | None,
    evaluate: Evaluate | None,
    *,
    algorithm: str,
    seed: int,
) -> Result:
    """A finished run in numbers.   wall: its seconds; None where runs share them.   evaluate: with its targets."""
    world = simulation.world
    tally, measurements = world.tally, recorder.measurements
    several = len(simulation.problems) > 1
    said = dict(simulation.server.report(world.server))
    parts = zip(simulation.locals, simulation.problems, strict=True)
    own = [local_ledger(local, problem, tally.spent.get(task, {})) for task, (local, problem) in enumerate(parts)]
    if any(own):
        said["local_privacy"] = own
    goals = () if several or evaluate is None else evaluate.goals(simulation.metrics[0][0], simulation.until)
    return Result(
        algorithm,
        seed,
        time=world.now,
        updates=tally.updates,
        versions=sum(model.version for model in simulation.server.models(world.server)),
        metrics=final_metrics(simulation, measurements, 0) if not several else {},
        sample=sample(simulation),
        sampled_to_end=sampled_to_end(simulation),
        measured=() if several else tuple(simulation.metrics[0]),
        targets={f"{goal.value:g}": time_to(measurements, goal.metric, goal.value) for goal in goals},
        staleness=MeanMax(tally.staleness_sum / tally.updates if tally.updates else 0.0, tally.staleness_max),
        notes={name: MeanMax(total / tally.updates, most) for name, (total, most) in tally.notes.items()},
        lost=tally.lost,
        cancelled=tally.cancelled or None,
        cut=tally.cut or None,
        computed=tally.computed,
        stopped=world.stopped,
        executor=simulation.executor.name,
        executor_reason="; ".join([simulation.executor.reason or "asked for", *_compiled(simulation)]),
        workers=getattr(simulation.executor, "workers", 1),
        wall_s=wall,
        updates_per_s=None if wall is None else tally.updates / wall if wall > 0 else 0.0,
        tasks=tuple(_task(simulation, recorder, m, said) for m in range(len(simulation.problems))) if several else (),
        server=said or None,
        outputs=final_outputs(simulation) or None,
    )


def _compiled(simulation: WatchedRun) -> list[str]:
    """Why local steps are compiled or not, where that was weighed; what was compiled, and how long that took."""
    said = [getattr(problem, "compiled", "") for problem in simulation.problems]
    return [each for each in (getattr(simulation, "compiling", ""), *said) if each]


def _task(simulation: WatchedRun, recorder: Recorder | History, task: int, said: Mapping[str, Any]) -> TaskResult:
    """One of several tasks: when it ended and why; its last metrics; what it was given."""
    world = simulation.world
    updates, stale = world.tally.tasks.get(task, (0, 0))
    return TaskResult(
        simulation.problems[task].name,
        time=world.ends.get(task),
        stopped=world.finished.get(task, world.stopped),
        versions=simulation.server.models(world.server)[task].version,
        updates=updates,
        staleness=stale / updates if updates else 0.0,
        metrics=final_metrics(simulation, recorder.measurements, task),
        allocation=said["tasks"][task] if "tasks" in said else None,
        measured=tuple(simulation.metrics[task]),
    )
