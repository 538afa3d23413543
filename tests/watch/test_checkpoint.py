"""Checkpoints: what comes back is what was saved, and a broken file costs no more than the time since the older one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from safetensors.torch import save_file
from worlds import same_world

from offbeat import AREA, SGD, Algorithm, FedAsync, FedAvg, FedBuff, Quadratic, Server
from offbeat.algorithms import AsFedAvg, FedAsyncMixing, Poisson
from offbeat.core.course import Until
from offbeat.core.errors import FolderError
from offbeat.simulate.loop import Simulation
from offbeat.simulate.run import prepare
from offbeat.simulate.world import World
from offbeat.timing import Exponential, OnOff, Times
from offbeat.watch.checkpoint import restore, save
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
