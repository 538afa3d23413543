"""Data sets that are missing, truncated or corrupt, as the command line shows them."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from command import DIGITS, offbeat, run, sets

from offbeat.data.facts import FACTS
from offbeat.data.folder import BUNDLED

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tiny MNIST of 60 pictures, which OFFBEAT_DATA names."""
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path / "data"))
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in NAMES:
        shape, top = ((60, 28, 28), 256) if "images" in name else ((60,), 10)
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx(rng.integers(0, top, shape, np.uint8))))
    return folder


def outcome_of(mnist: Path) -> tuple[int, str]:
    steps = ("algorithm.area.local.sgd.lr=0.01", "algorithm.fedbuff.local.sgd.lr=0.01")  # the pictures are noise
    code, _, err = run(mnist.parent.parent, DIGITS, *sets("problem.data=mnist", "problem.split=iid", *steps))
    assert err.count("\n") == (1 if code else 2), err
    return code, err


def test_a_set_that_is_there_runs(mnist: Path) -> None:
    assert outcome_of(mnist)[0] == 0


@pytest.mark.parametrize(("name", "clients"), [(n, f.owners or 10) for n, f in FACTS.items() if n in BUNDLED])
def test_a_set_that_needs_no_download_runs_from_a_file_on_its_natural_clients(
    name: str, clients: int, tmp_path: Path
) -> None:
    split = "owners" if FACTS[name].owners else "iid"
    own = "auroc" if "classes" in FACTS[name].task else "r2"
    settings = (
        f"problem.data={name}",
        f"problem.metrics=['{own}']",
        f"problem.clients={clients}",
        f"problem.split={split}",
        "problem.model=linear",
    )
    steps = ("algorithm.area.local.sgd.lr=0.01", "algorithm.fedbuff.local.sgd.lr=0.01")
    outcome = run(tmp_path, DIGITS, *sets(*settings, *steps))
    assert outcome[0] == 0, outcome[2]
    assert own in outcome[1]


def test_a_missing_set_says_where_it_was_looked_for_and_how_to_get_it(mnist: Path) -> None:
    (mnist / f"{NAMES[1]}.gz").unlink()
    code, err = outcome_of(mnist)
    assert code == 1
    for part in (str(mnist.parent), f"mnist/{NAMES[1]}.gz", "`offbeat data --get mnist`", "OFFBEAT_DATA"):
        assert part in err


@pytest.mark.parametrize("cut", [0, 10, -8])
def test_a_truncated_archive_is_named(mnist: Path, cut: int) -> None:
    path = mnist / f"{NAMES[0]}.gz"
    path.write_bytes(path.read_bytes()[:cut])
    code, err = outcome_of(mnist)
    assert code == 1
    assert str(path) in err
    assert "delete the file" in err


def test_a_truncated_or_corrupt_idx_file_is_named(mnist: Path) -> None:
    path = mnist / f"{NAMES[0]}.gz"
    whole = gzip.decompress(path.read_bytes())
    for damaged, says in (
        (whole[:-1], "expected 47040 bytes after the header, which announces 60 × 28 × 28, found 47039"),
        (b"\x00\x00\x09" + whole[3:], "expected an IDX header starting 00000803, found 00000903"),
    ):
        path.write_bytes(gzip.compress(damaged))
        code, err = outcome_of(mnist)
        assert code == 1
        assert says in err


def test_a_label_that_cannot_be_is_named(mnist: Path) -> None:
    (mnist / f"{NAMES[1]}.gz").write_bytes(gzip.compress(idx(np.full(60, 200, np.uint8))))
    code, err = outcome_of(mnist)
    assert code == 1
    assert "expected labels 0 to 9, found label 200" in err


def test_data_shows_what_is_where_and_how_to_get_the_rest(mnist: Path) -> None:
    code, out, err = offbeat("data")
    assert (code, err) == (0, "")
    assert f"looked for in {mnist.parent}; OFFBEAT_DATA names another folder" in out
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}
    assert lines["digits"][-3:] == ["present", "58", "kB"]
    assert lines["randhie"] == ["2", "classes", "20,186", "70", "public", "domain", "present", "0.1", "MB"]
    assert [lines["mnist"][at] for at in (-3, -1)] == ["present", "kB"]
    assert f"cifar10 is missing in {mnist.parent / 'cifar-10-batches-bin'}: run `offbeat data --get cifar10`" in out
    assert f"shakespeare is missing in {mnist.parent / 'shakespeare'}: put the plays there by hand" in out


def test_data_tells_incomplete_from_missing(mnist: Path) -> None:
    (mnist / f"{NAMES[3]}.gz").unlink()
    assert f"mnist is incomplete in {mnist}: run `offbeat data --get mnist`" in offbeat("data").out


def test_data_refuses_to_get_what_nobody_publishes() -> None:
    for name, says in (("mnits", "did you mean 'mnist'?"), ("shakespeare", "no publisher to download from")):
        code, out, err = offbeat("data", "--get", name)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert says in err
