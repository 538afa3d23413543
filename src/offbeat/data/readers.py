"""From a set's name to its tensors: scikit-learn's digits, IDX files (MNIST, Fashion-MNIST), CIFAR-10's batches."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from offbeat.core.errors import unknown
from offbeat.data import tables
from offbeat.data.base import Dataset
from offbeat.data.folder import BUNDLED, NAMES, damaged, find, root
from offbeat.data.plays import shakespeare

Bytes = npt.NDArray[np.uint8]

_LABELS = 10
_PIXELS = 3 * 32 * 32


def load(name: str, folder: Path | None = None) -> Dataset:
    """The set of this name, read once per process; who asks again gets the same tensors, so write to none.

    folder: where the sets lie; by default $OFFBEAT_DATA, else ~/.cache/offbeat.
    """
    if name not in NAMES:
        raise unknown("data set", name, NAMES)
    return _read(name, root(folder).resolve())


@lru_cache(maxsize=8)
def _read(name: str, folder: Path) -> Dataset:
    if name in BUNDLED:
        return _BUNDLED[name]()
    paths = find(name, folder)
    if name == "cifar10":
        return cifar10(paths)
    return shakespeare(paths) if name == "shakespeare" else images(name, paths)


def digits() -> Dataset:
    """1,797 digits of 8 × 8 pixels with values 0 to 16; every fifth of a class is for testing."""
    (table,) = tables.bundled("digits", (1_797, 65), delimiter=",")
    x = torch.from_numpy(table[:, :-1].astype(np.uint8)).reshape(-1, 1, 8, 8)
    y = torch.from_numpy(table[:, -1].astype(np.int64))
    test = torch.zeros(len(y), dtype=torch.bool)
    for label in range(10):
        test[torch.nonzero(y == label).flatten()[4::5]] = True
    return Dataset.pairs("digits", x[~test], y[~test], x[test], y[test], classes=10, scale=1 / 16)


_BUNDLED: Mapping[str, Callable[[], Dataset]] = {
    "digits": digits,
    "diabetes": tables.diabetes,
    "breast-cancer": tables.breast_cancer,
    "randhie": tables.randhie,
    "grunfeld": tables.grunfeld,
    "employment": tables.employment,
}


def idx(path: Path, dims: int, name: str = "mnist") -> Bytes:
    """The array in an IDX file of unsigned bytes with this many dimensions, gzipped if it ends in .gz."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, "a readable IDX file", str(error), name) from error
    magic, start = bytes((0, 0, 8, dims)), 4 + 4 * dims  # two zeros, type 8 = unsigned byte, dimensions
    if raw[:4] != magic or len(raw) < start:
        raise damaged(path, f"an IDX header starting {magic.hex()}", raw[:4].hex() or "nothing", name)
    shape = tuple(int(n) for n in np.frombuffer(raw, ">u4", dims, 4))
    if len(raw) - start != math.prod(shape):
        expected = f"{math.prod(shape)} bytes after the header, which announces {' × '.join(map(str, shape))}"
        raise damaged(path, expected, f"{len(raw) - start}", name)
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape).copy()  # a copy can be written, bytes cannot


def images(name: str, paths: Sequence[Path]) -> Dataset:
    """MNIST or a set in its format, from (train images, train labels, test images, test labels)."""
    train_x, train_y = _pair(name, *paths[:2])
    test_x, test_y = _pair(name, *paths[2:])
    return Dataset.pairs(name, train_x, train_y, test_x, test_y, classes=_LABELS, scale=1 / 255)


def _pair(name: str, pixels_path: Path, labels_path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    pixels, labels = idx(pixels_path, 3, name), idx(labels_path, 1, name)
    if len(pixels) != len(labels):
        raise damaged(labels_path, f"{len(pixels)} labels, one for each image", f"{len(labels)}", name)
    _check_labels(labels, labels_path, name)
    return torch.from_numpy(pixels).unsqueeze(1), torch.from_numpy(labels.astype(np.int64))


def cifar10(paths: Sequence[Path], records: int = 10_000) -> Dataset:
    """CIFAR-10 from its binary batches, the last of which is the test set; each holds this many records."""
    *train, test = paths
    train_x = torch.empty((len(train) * records, 3, 32, 32), dtype=torch.uint8)
    train_y = torch.empty(len(train) * records, dtype=torch.int64)
    for i, path in enumerate(train):
        rows = slice(i * records, (i + 1) * records)
        train_x[rows], train_y[rows] = _batch(path, records)
    test_x, test_y = _batch(test, records)
    return Dataset.pairs("cifar10", train_x, train_y, test_x.contiguous(), test_y, classes=_LABELS, scale=1 / 255)


def _batch(path: Path, records: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One batch: a record is a label and 3 × 32 × 32 pixels, plane by plane."""
    raw: Bytes = np.fromfile(path, np.uint8)
    if raw.size != records * (1 + _PIXELS):
        raise damaged(path, f"{records} records of {1 + _PIXELS} bytes", f"{raw.size} bytes", "cifar10")
    rows = raw.reshape(records, 1 + _PIXELS)
    _check_labels(rows[:, 0], path, "cifar10")
    pixels = torch.from_numpy(rows)[:, 1:].reshape(records, 3, 32, 32)
    return pixels, torch.from_numpy(rows[:, 0].astype(np.int64))


def _check_labels(labels: Bytes, path: Path, name: str) -> None:
    if labels.size and labels.max() >= _LABELS:
        raise damaged(path, f"labels 0 to {_LABELS - 1}", f"label {labels.max()}", name)
