"""Who gets which run of a sweep, with workers that exist only here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offbeat.core.errors import FolderError
from offbeat.experiment.dispatch import dispatch
from offbeat.experiment.grid import Point
from offbeat.experiment.sweep_workers import STOP, Message, Orders
from offbeat.watch.files import pack_folder, place_of, unpack_folder
from offbeat.watch.results import Result


class Scripted:
    """Workers that ask, save, end a run or die, one word of their script at a time; those started later just work."""

    def __init__(self, *scripts: str, later: str = "next done " * 20) -> None:
        self.later = later.split()
        self.scripts = [script.split() for script in scripts]
        self.at: dict[int, Iterator[str]] = {}
        self.runs: dict[int, list[int]] = {}
        self.got: list[tuple[int, Any]] = []
        self.closed = False

    def start(self, orders: Orders, worker: int) -> None:
        self.at[worker] = iter(self.scripts[worker] if worker < len(self.scripts) else self.later)
        self.runs[worker] = []

    def receive(self, seconds: float) -> Iterator[tuple[int, Message]]:
        for worker in list(self.at):
            word = next(self.at[worker], "left")
            if word == "next":
                yield worker, ("next", None)
            elif word == "save":
                yield worker, ("files", (self.runs[worker][-1], {"checkpoint": b"%d" % worker}))
            elif word == "done" and self.runs[worker]:
                yield worker, ("done", Result("area", 0, number=self.runs[worker].pop()))
            elif word == "die":
                yield worker, ("died", "killed by SIGKILL")
            elif word == "left":
                yield worker, ("left", "")

    def send(self, worker: int, what: Any) -> None:
        self.got.append((worker, what))
        if what == STOP or not what:
            self.at[worker] = iter(["save"] * bool(self.runs[worker]))
        else:
            self.runs[worker] += [point.number for point, _ in what]

    def remove(self, worker: int) -> None:
        del self.at[worker]

    def close(self) -> None:
        self.closed = True


def done(pool: Scripted, folder: Path, runs: int, stop: Any = lambda: False) -> list[int | None]:
    points = [Point(number, "area", 0, {}, {}) for number in range(runs)]
    orders = Orders(str(folder), "cpu", False, len(pool.scripts), runs, apart=True)
    bundles = [[point] for point in points]
    return [value.number for kind, value in dispatch(pool, orders, bundles, stop) if kind == "done"]


def test_every_run_is_done_once_by_whoever_has_room(tmp_path: Path) -> None:
    pool = Scripted("next done next done", "next next done done next done")
    assert sorted(done(pool, tmp_path, 5)) == [0, 1, 2, 3, 4]
    assert pool.closed


def test_what_a_dead_worker_had_goes_on_from_its_last_save(tmp_path: Path) -> None:
    pool = Scripted("next save die", "next done next done next done")
    assert sorted(done(pool, tmp_path, 3)) == [0, 1, 2]
    again = [(worker, what[0][1]) for worker, what in pool.got if what and what != STOP and what[0][0].number == 0]
    assert again == [(0, {}), (again[1][0], {"checkpoint": b"0"})]


def test_all_workers_may_die_if_others_can_be_had(tmp_path: Path) -> None:
    assert sorted(done(Scripted("next die", "next next die"), tmp_path, 4)) == [0, 1, 2, 3]


def test_a_run_that_costs_three_workers_their_lives_ends_the_sweep(tmp_path: Path) -> None:
    pool = Scripted("next done next die", "next done", later="next die")
    with pytest.raises(FolderError, match=r"a worker process died \(killed by SIGKILL\); finished runs are kept"):
        done(pool, tmp_path, 4)


def test_workers_that_die_before_they_ask_end_the_sweep(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="died"):
        done(Scripted("die", "die", "die"), tmp_path, 2)


def test_when_it_is_stopped_runs_are_saved_and_not_handed_out_again(tmp_path: Path) -> None:
    pool = Scripted("next next next", "next next next")
    answers = iter([False, True])
    assert done(pool, tmp_path, 9, lambda: next(answers, True)) == []
    assert pack_folder(place_of(tmp_path, 0)) == {"checkpoint": b"0"}
    assert sum(what == STOP for _, what in pool.got) == 2


def test_a_folder_is_as_it_was_packed(tmp_path: Path) -> None:
    files = {"checkpoint": b"1", "events/part-00000.parquet": b"2"}
    unpack_folder(tmp_path / "a", {**files, "old/gone": b"3"})
    unpack_folder(tmp_path / "a", files)
    assert pack_folder(tmp_path / "a") == files
    assert not (tmp_path / "a" / "old").exists()
    unpack_folder(tmp_path / "a", {})
    assert not (tmp_path / "a").exists()
    with pytest.raises(FolderError, match="is no file of a run's folder"):
        unpack_folder(tmp_path / "a", {"../../escaped": b"4"})
