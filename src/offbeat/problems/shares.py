"""What each client counts, and which test samples are its own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from offbeat.core.errors import SettingError
from offbeat.core.random import SHARE, key
from offbeat.data.base import Dataset

Weighted: TypeAlias = bool | Literal["relative"]


def weights(sizes: npt.NDArray[np.int64], weighted: Weighted) -> npt.NDArray[np.float64]:
    """What client i's function is multiplied with: 1; weighted: its share s_i/S of the samples (AREA eq. 4); relative:
    n·s_i/S, its samples over those of a mean client, so that step sizes do not depend on the number of clients."""
    if weighted not in (False, True, "relative"):
        raise SettingError(f"weighted = {weighted!r}: must be False, True or 'relative'")
    if not weighted:
        return np.ones(len(sizes))
    return np.asarray(sizes / sizes.sum() * (len(sizes) if weighted == "relative" else 1))


def test_shares(data: Dataset, shards: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Its owner's if every client is one natural owner; else a part of each class as large as its part of the training
    samples of that class, or of all test samples where there are no classes. A client too small for any gets one
    sample, of the commonest of its classes that are tested at all."""
    a_class = data.classes is not None and not data.train.shape(data.target)
    return _owned(data, shards) or (_by_class(data, shards) if a_class else _by_size(data, shards))


def owners(data: Dataset, shards: Sequence[np.ndarray]) -> list[int]:
    """The natural owner of each client; nothing where a client is not one owner."""
    if data.owner is None:
        return []
    owner = data.owner.numpy()
    found = [np.unique(owner[shard]) for shard in shards]
    return [] if any(len(each) > 1 for each in found) else [int(each[0]) for each in found]


def _owned(data: Dataset, shards: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The test samples of each client's owner."""
    if data.test_owner is None:
        return []
    tested = data.test_owner.numpy()
    order = np.argsort(tested, kind="stable")
    edges = [np.searchsorted(tested, [each, each + 1], sorter=order) for each in owners(data, shards)]
    return [order[first:last] for first, last in edges]


def _by_size(data: Dataset, shards: Sequence[np.ndarray]) -> list[np.ndarray]:
    tested = np.random.default_rng(key(0, SHARE)).permutation(_tested(data))
    ends = np.cumsum([len(shard) for shard in shards])
    cuts = np.rint(np.concatenate([[0], ends]) / ends[-1] * len(tested)).astype(np.int64)
    pieces = [tested[first:last] for first, last in itertools.pairwise(cuts)]
    return [piece if len(piece) else tested[:1] for piece in pieces]


def _by_class(data: Dataset, shards: Sequence[np.ndarray]) -> list[np.ndarray]:
    train, test, classes = data.train.column(data.target), data.test.column(data.target), data.outputs
    counts = np.stack([np.bincount(train[s], minlength=classes) for s in shards])  # [n, classes]
    rng = np.random.default_rng(key(0, SHARE))
    tested = _tested(data)
    members = [rng.permutation(tested[test[tested] == c]) for c in range(classes)]
    parts: list[list[np.ndarray]] = [[] for _ in shards]
    for c, samples in enumerate(members):
        total = counts[:, c].sum()
        cuts = np.rint(np.cumsum(counts[:, c]) / max(total, 1) * len(samples)).astype(np.int64)
        for client, piece in enumerate(np.split(samples, cuts[:-1])):
            if total:
                parts[client].append(piece)
    shares = [np.concatenate(p) for p in parts]
    commonest = (counts * [len(m) > 0 for m in members]).argmax(axis=1)
    return [share if len(share) else members[c][:1] for share, c in zip(shares, commonest, strict=True)]


def _tested(data: Dataset) -> np.ndarray:
    """The positions that are test samples."""
    return np.arange(len(data.test)) if data.test_owner is None else np.flatnonzero(data.test_owner.numpy() >= 0)
