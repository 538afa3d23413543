"""Driving a run: checkpoints now and then, stops when asked, numbers at the end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import events
from worlds import same_world

from offbeat import AREA, SGD, Algorithm, Quadratic, Until
from offbeat.core.errors import DivergedError, FolderError
from offbeat.core.watcher import Measurement, Watcher
from offbeat.simulate.loop import Simulation
from offbeat.simulate.run import Evaluate, prepare
from offbeat.simulate.world import World
from offbeat.timing import Exponential, Times
from offbeat.watch.files import CHECKPOINT, OLDER_CHECKPOINT
from offbeat.watch.session import InterruptedRunError, Patience, drive, interruptible, summary


def make(watchers: list[Watcher], world: World | None, lr: float = 0.1) -> Simulation:
    algorithm = Algorithm(AREA(size=2), SGD(lr=lr))
    return prepare(
        Quadratic(4, noise=0.3),
        algorithm,
        Times(Exponential(1.0)),
        Until(updates=500),
        evaluate=5.0,
        watchers=watchers,
        world=world,
    )


def stopping(patience: Patience, at: int) -> Callable[..., None]:
    """A tick that asks to stop after so many updates."""

    def tick(simulation: Simulation, recorder: Any) -> None:
        patience.asked = simulation.world.tally.updates >= at

    return tick


def stopped(folder: Path, at: int) -> None:
    patience = Patience()
    with pytest.raises(InterruptedRunError, match=r"stopped at time .* and saved"):
        drive(make, folder, tick=stopping(patience, at), patience=patience)


def test_stopped_again_and_again_it_ends_as_if_it_never_was(tmp_path: Path) -> None:
    whole, record, _ = drive(make, tmp_path / "whole")
    for at in (100, 200, 300, 400):
        stopped(tmp_path / "broken", at)
    ended, again, _ = drive(make, tmp_path / "broken")
    assert same_world(whole.world, ended.world)
    assert record.measurements == again.measurements
    assert repr(events(tmp_path / "whole")) == repr(events(tmp_path / "broken"))


def test_a_checkpoint_is_written_every_so_many_seconds(tmp_path: Path) -> None:
    drive(make, tmp_path / "often", save_every=0.0)
    drive(make, tmp_path / "seldom")
    assert {path.name for path in (tmp_path / "often").glob("checkpoint*")} == {CHECKPOINT, OLDER_CHECKPOINT}
    assert not list((tmp_path / "seldom").glob("checkpoint*"))


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.99])
def test_a_damaged_newest_checkpoint_costs_only_time(tmp_path: Path, keep: float) -> None:
    whole, _, _ = drive(make, tmp_path / "whole")
    stopped(tmp_path / "broken", 100)
    stopped(tmp_path / "broken", 300)
    newest = tmp_path / "broken" / CHECKPOINT
    newest.write_bytes(newest.read_bytes()[: int(keep * newest.stat().st_size)])
    ended, _, _ = drive(make, tmp_path / "broken")
    assert same_world(whole.world, ended.world)
    assert repr(events(tmp_path / "whole")) == repr(events(tmp_path / "broken"))


def test_with_every_checkpoint_damaged_it_says_so(tmp_path: Path) -> None:
    stopped(tmp_path, 100)
    (tmp_path / CHECKPOINT).write_bytes(b"")
    with pytest.raises(FolderError, match=r"no checkpoint in .* can be read"):
        drive(make, tmp_path)


def test_the_seconds_of_work_add_up_over_interruptions(tmp_path: Path) -> None:
    stopped(tmp_path, 400)
    simulation, recorder, wall = drive(make, tmp_path)
    alone = summary(simulation, recorder, wall, None, algorithm="fedbuff", seed=0)
    assert alone.updates == 500
    assert alone.updates_per_s == pytest.approx(500 / wall)


def test_the_record_of_a_run_that_explodes_is_kept(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match="lr = 1000"):
        drive(lambda watchers, world: make(watchers, world, lr=1000.0), tmp_path)
    assert len(events(tmp_path)) > 10
    assert (tmp_path / "metrics.parquet").exists()


def test_a_summary_counts_and_finds_the_first_time_of_a_target(tmp_path: Path) -> None:
    simulation, recorder, _ = drive(make, tmp_path)
    recorder.measurements.clear()
    for time, loss in ((1.0, 0.5), (2.0, 0.15), (3.0, 0.3), (4.0, 0.05)):  # the quadratic's own metric: less is better
        recorder.measured(Measurement(0, time, 0, 0, {"loss": loss}))
    found = summary(simulation, recorder, 2.0, Evaluate(targets=(0.5, 0.2, 0.01)), algorithm="fedbuff", seed=0)
    assert found.targets == {"0.5": 1.0, "0.2": 2.0, "0.01": None}
    assert [metric.name for metric in found.measured] == ["loss", "gap", "distance"]
    assert (found.updates, found.versions, found.updates_per_s) == (500, 250, 250.0)
    assert found.metrics == {"loss": 0.05}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_stops(number: signal.Signals) -> None:
    said: list[str] = []
    before = signal.getsignal(number)
    with interruptible(said.append) as patience:
        assert not patience.asked
        os.kill(os.getpid(), number)
        assert patience.asked
        assert said == ["stopping and saving; a second Ctrl-C stops at once, without saving"]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_away_from_the_main_thread_signals_are_left_alone() -> None:
    asked: list[bool] = []

    def work() -> None:
        with interruptible() as patience:
            asked.append(patience.asked)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert asked == [False]
