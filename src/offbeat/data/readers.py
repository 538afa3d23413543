"""Readers of the publishers' formats for images: IDX (MNIST, Fashion-MNIST) and CIFAR-10's binary batches."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from offbeat.core.errors import DataError
from offbeat.data.base import Dataset
from offbeat.data.folder import remedy

Bytes = npt.NDArray[np.uint8]

_LABELS = 10
_PIXELS = 3 * 32 * 32


def damaged(path: Path, expected: str, found: str, name: str) -> DataError:
    """The error for a file that is not what it claims to be."""
    return DataError(f"{path}: expected {expected}, found {found}; delete the file, then {remedy(name)}")


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
    return Dataset(name, train_x, train_y, test_x, test_y, classes=_LABELS, scale=1 / 255)


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
    return Dataset("cifar10", train_x, train_y, test_x.contiguous(), test_y, classes=_LABELS, scale=1 / 255)


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
