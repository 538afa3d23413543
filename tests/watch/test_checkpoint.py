"""Checkpoints: what comes back is what was saved, and a broken file costs no more than the time since the older one."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from safetensors.torch import save_file
from worlds import same_world

from offbeat import AREA, SGD, Algorithm, FedAsync, FedAvg, FedBuff, Quadratic, Server
from offbeat.algorithms import AsFedAvg, FedAsyncMixing, Poisson
from offbeat.core.errors import FolderError
from offbeat.core.state import State
from offbeat.core.until import Until
from offbeat.simulate.loop import Simulation
from offbeat.simulate.run import prepare
from offbeat.simulate.world import World
from offbeat.timing import Exponential, OnOff, Times
from offbeat.watch.checkpoint import MOST, Checkpoints, restore, save
from offbeat.watch.files import CHECKPOINT, OLDER_CHECKPOINT

SERVERS = [
    AREA(size=4),
    AREA(size=Poisson(2.0), concurrency=4),
    FedBuff(size=3),
    FedAsync(),
    FedAsyncMixing(mixing=0.2),
    AsFedAvg(size=4),
    FedAvg(sampled=3),
]


def simulation(server: Server[Any], executor: str = "batched", world: World | None = None) -> Simulation:
    timing = Times(Exponential(2.0), presence=OnOff(on=5.0, off=1.0), dropout=0.1)
    algorithm = Algorithm(server, SGD(lr=0.05, steps=2))
    return prepare(
        Quadratic(8, noise=0.5),
        algorithm,
        timing,
        Until(updates=120),
        evaluate=1.0,
        executor=executor,
        world=world,
    )


def after(steps: int, server: Server[Any] = SERVERS[0], executor: str = "batched") -> World:
    """The world after so many events."""
    made = simulation(server, executor)
    course = made.steps()
    for _ in range(steps):
        next(course)
    return made.world


@pytest.mark.parametrize("executor", ["serial", "batched"])
@pytest.mark.parametrize("server", SERVERS, ids=lambda s: type(s).__name__)
def test_a_world_comes_back_as_it_was_and_goes_on_to_the_same_end(
    server: Server[Any], executor: str, tmp_path: Path
) -> None:
    world = after(70, server, executor)
    save(tmp_path, world, {"note": [1, "two"]})
    found = restore(World, tmp_path)
    assert found is not None
    assert found[1] == {"note": [1, "two"]}
    assert same_world(found[0], world)
    ends = [simulation(server, executor, w).run() for w in (found[0], world)]
    assert same_world(*ends)


def test_a_vector_that_several_places_share_is_stored_once_and_shared_again(tmp_path: Path) -> None:
    world = after(1)  # everybody was sent the same model
    save(tmp_path, world)
    found = restore(World, tmp_path)
    assert found is not None
    payloads = [f.payload["model"] for f in found[0].flights.values() if f.payload]
    assert len(payloads) == len(found[0].present.items)
    assert len({id(vector) for vector in payloads}) == 1
    assert payloads[0] is found[0].server.model.vector


def test_views_of_one_storage_are_saved_too(tmp_path: Path) -> None:
    world, matrix = after(1), torch.arange(6.0).view(2, 3)
    vectors = {"row": matrix[1], "whole": matrix, "same": matrix.view(2, 3), "column": matrix[:, 0]}
    world.memories = {(0, 0): (0, vectors)}
    save(tmp_path, world)
    found = restore(World, tmp_path)
    assert found is not None
    back = found[0].memories[0, 0][1]
    assert all(torch.equal(back[name], vector) for name, vector in vectors.items())


def test_a_folder_without_checkpoint_has_none(tmp_path: Path) -> None:
    assert restore(World, tmp_path) is None


def test_an_interrupted_write_leaves_the_last_one_in_use(tmp_path: Path) -> None:
    save(tmp_path, after(10), 1)
    (tmp_path / f"{CHECKPOINT}.part").write_bytes(b"\x00\x01")
    assert _extra(tmp_path) == 1


def test_between_the_two_renamings_the_older_one_is_used(tmp_path: Path) -> None:
    save(tmp_path, after(10), 1)
    (tmp_path / CHECKPOINT).rename(tmp_path / OLDER_CHECKPOINT)
    assert _extra(tmp_path) == 1
    save(tmp_path, after(20), 2)
    assert _extra(tmp_path) == 2


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.999])
def test_a_truncated_newest_one_leaves_the_older_one_in_use(tmp_path: Path, share: float) -> None:
    two(tmp_path)
    whole = (tmp_path / CHECKPOINT).read_bytes()
    (tmp_path / CHECKPOINT).write_bytes(whole[: int(share * len(whole))])
    assert _extra(tmp_path) == "older"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A folder with two checkpoints, and the bytes of the newest."""
    folder = tmp_path_factory.mktemp("pair")
    two(folder)
    return folder, (folder / CHECKPOINT).read_bytes()


@settings(max_examples=150)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_never_taken_for_the_truth(pair: tuple[Path, bytes], place: float, bit: int) -> None:
    folder, whole = pair
    damaged = bytearray(whole)
    damaged[int(place * len(whole))] ^= 1 << bit
    (folder / CHECKPOINT).write_bytes(damaged)
    found = restore(World, folder)
    assert found is not None
    if found[1] == "newest":  # a space of the header that means nothing
        assert same_world(found[0], after(20))
    else:
        assert found[1] == "older"


def test_with_both_broken_the_error_names_them_and_says_what_to_do(tmp_path: Path) -> None:
    two(tmp_path)
    for name in (CHECKPOINT, OLDER_CHECKPOINT):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-1])
    with pytest.raises(FolderError) as error:
        restore(World, tmp_path)
    for part in (str(tmp_path), CHECKPOINT, OLDER_CHECKPOINT, "delete"):
        assert part in str(error.value)


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(2)}, tmp_path / CHECKPOINT)
    with pytest.raises(FolderError, match="is not a checkpoint of this version"):
        restore(World, tmp_path)


def two(folder: Path) -> None:
    save(folder, after(10), "older")
    save(folder, after(20), "newest")


def _extra(folder: Path) -> Any:
    found = restore(World, folder)
    assert found is not None
    return found[1]


# A state that is saved again and again


@dataclass
class Book(State):
    """Some tensors and a number that tells which version of the state it is."""

    version: int
    pages: dict[int, torch.Tensor]

    @classmethod
    def of(cls, pages: int, size: int = 1000) -> Book:
        return cls(0, {number: torch.full((size,), float(number)) for number in range(pages)})

    def turn(self, *numbers: int) -> None:
        """Other pages of this number."""
        self.version += 1
        for number in numbers:
            self.pages[number] = self.pages[number] + 1.0


def read(folder: Path) -> Book:
    found = restore(Book, folder)
    assert found is not None
    assert found[1] == {"version": found[0].version}
    return found[0]


def save_as(checkpoints: Checkpoints, book: Book) -> int:
    return checkpoints.save(book, {"version": book.version})


def same_book(a: Book, b: Book) -> bool:
    equal = a.pages.keys() == b.pages.keys() and all(torch.equal(a.pages[n], b.pages[n]) for n in a.pages)
    return a.version == b.version and equal


def copied(book: Book) -> Book:
    return Book(book.version, dict(book.pages))


def test_only_new_tensors_are_written_and_all_come_back(tmp_path: Path) -> None:
    book, checkpoints = Book.of(50), Checkpoints(tmp_path)
    assert [save_as(checkpoints, book) for _ in range(3)] == [200_000, 200_000, 0]  # twice: the two share nothing
    written = 0
    for number in range(60):
        book.turn(number % 7, (number * 13) % 50)
        written += save_as(checkpoints, book)
        assert same_book(read(tmp_path), book)
    assert written < 60 * 200_000 / 5
    files = list(tmp_path.glob("checkpoint-*"))
    assert len(files) <= 2 * (MOST + 1)
    assert sum(path.stat().st_size for path in files) < 4 * 200_000 + 100_000


@given(turns=st.lists(st.lists(st.integers(0, 29), max_size=8), max_size=40))
def test_whatever_changes_the_last_two_come_back_and_share_no_file(turns: list[list[int]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder, book = Path(place), Book.of(30, 4)
        checkpoints, before = Checkpoints(folder), book
        for numbers in turns:
            before = copied(book)
            book.turn(*numbers)
            save_as(checkpoints, book)
            assert same_book(read(folder), book)
        if len(turns) > 1:
            newest, older = checkpoints.needed[CHECKPOINT], checkpoints.needed[OLDER_CHECKPOINT]
            assert not newest & older
            assert {path.name for path in folder.glob("checkpoint-*")} == newest | older
            (folder / CHECKPOINT).unlink()
            assert same_book(read(folder), before)


@pytest.mark.parametrize("damage", ["flip", "cut", "delete"])
def test_any_damaged_file_costs_at_most_the_newest_checkpoint(tmp_path: Path, damage: str) -> None:
    (tmp_path / "good").mkdir()
    book, checkpoints = Book.of(20), Checkpoints(tmp_path / "good")
    books = []
    for number in range(9):
        book.turn(number)
        save_as(checkpoints, book)
        books = [*books[-1:], copied(book)]
    for path in sorted((tmp_path / "good").iterdir()):
        folder = tmp_path / f"broken {path.name}"
        shutil.copytree(tmp_path / "good", folder)
        data = bytearray(path.read_bytes())
        if damage == "flip":
            data[len(data) // 2] ^= 4
        (folder / path.name).write_bytes(data[: len(data) // 2] if damage == "cut" else data)
        if damage == "delete":
            (folder / path.name).unlink()
        assert any(same_book(read(folder), known) for known in books)
        again = Checkpoints(folder)
        book.turn()
        save_as(again, book)
        assert same_book(read(folder), book)


class CutError(BaseException):
    """The process is gone."""


def test_killed_between_any_two_writes_it_goes_on_from_one_of_the_last_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [1 << 30]

    def cut(action: Callable[..., Any], half: bool) -> Callable[..., Any]:
        def cutting(first: Any, *rest: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                if half and left[0] == -1 and Path(f"/proc/self/fd/{first}").resolve().is_file():
                    path = Path(f"/proc/self/fd/{first}").resolve()
                    os.truncate(path, path.stat().st_size // 2)  # what was not forced to disk
                raise CutError
            return action(first, *rest, **options)

        return cutting

    monkeypatch.setattr(os, "fsync", cut(os.fsync, half=True))
    monkeypatch.setattr(Path, "replace", cut(Path.replace, half=False))
    monkeypatch.setattr(Path, "unlink", cut(Path.unlink, half=False))
    cuts = 0
    for at in range(100):
        folder = tmp_path / str(at)
        folder.mkdir()
        book, checkpoints = Book.of(6, 4), Checkpoints(folder)
        for number in range(5):
            book.turn(number)
            save_as(checkpoints, book)
        before = copied(book)
        book.turn(0, 1, 2, 3)
        left[0] = at
        try:
            save_as(checkpoints, book)
        except CutError:
            cuts += 1
        left[0] = 1 << 30
        found = read(folder)
        assert same_book(found, before) or same_book(found, book)
        again = Checkpoints(folder)
        for number in range(3):
            found.turn(number)
            save_as(again, found)
        assert same_book(read(folder), found)
        assert len(list(folder.glob("checkpoint-*"))) <= 6
    assert cuts >= 8


def test_killed_for_real_it_goes_on(tmp_path: Path) -> None:
    text = (
        f"from {__name__} import *\n"
        "checkpoints, book = Checkpoints(Path(sys.argv[1])), Book.of(40)\n"
        "while True: book.turn(*range(book.version % 11, 40, 7)); save_as(checkpoints, book); print('.', flush=True)\n"
    )
    draw = random.Random(3)
    for _ in range(3):
        command = [sys.executable, "-c", text, str(tmp_path)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
            assert process.stdout is not None
            for _ in range(3):
                process.stdout.readline()
            time.sleep(draw.uniform(0.0, 0.1))
            process.kill()
        book = read(tmp_path)
        turned = Book.of(40)
        while turned.version < book.version:
            turned.turn(*range(turned.version % 11, 40, 7))
        assert same_book(book, turned)
        for path in tmp_path.iterdir():
            path.unlink()


def test_a_snapshot_is_written_as_it_was_while_the_state_goes_on(tmp_path: Path) -> None:
    book, checkpoints = Book.of(5), Checkpoints(tmp_path)
    snapshot, before = checkpoints.snapshot(book, {"version": book.version}), copied(book)
    book.turn(1, 2)
    assert checkpoints.write(snapshot) == 20_000
    assert same_book(read(tmp_path), before)


def test_a_tensor_written_to_meanwhile_is_noticed_and_copied_from_then_on(tmp_path: Path) -> None:
    book, checkpoints = Book.of(5), Checkpoints(tmp_path)
    save_as(checkpoints, book)
    snapshot = checkpoints.snapshot(book, {"version": 0})
    book.pages[3].add_(7.0)
    assert checkpoints.write(snapshot) is None
    assert read(tmp_path).pages[3][0] == 3.0
    snapshot = checkpoints.snapshot(book, {"version": 0})
    book.pages[3].add_(1.0)
    assert checkpoints.write(snapshot) == 20_000
    assert read(tmp_path).pages[3][0] == 10.0
    assert save_as(checkpoints, book) == 4000
    assert read(tmp_path).pages[3][0] == 11.0


def test_a_disk_that_is_full_leaves_the_last_one_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book, checkpoints = Book.of(5), Checkpoints(tmp_path)
    save_as(checkpoints, book)
    save_as(checkpoints, book)
    before, files = copied(book), set(tmp_path.iterdir())
    book.turn(1)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            save_as(checkpoints, book)
    assert same_book(read(tmp_path), before)
    assert set(tmp_path.iterdir()) == files
    save_as(checkpoints, book)
    assert same_book(read(tmp_path), book)
