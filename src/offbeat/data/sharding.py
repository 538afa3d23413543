"""The clients' training samples of a data set, by any split: which column it goes by, and what its classes are."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import numpy as np

from offbeat.core.errors import DataError, SettingError
from offbeat.data.base import Dataset
from offbeat.data.lazy import words
from offbeat.data.splits import IID, Indices, Labels, Owners, Rng, Split, joined


def shards(split: Split | None, data: Dataset, clients: int | None, rng: Rng) -> list[Indices]:
    """The training samples of each client.

    split: also a partitioner of flwr-datasets; None: natural owners if they have names, else equal parts.
    clients: how many; None: as many as there are natural owners, or partitions.
    """
    split = split or (Owners() if data.owners else IID())
    if hasattr(split, "load_partition"):
        return _partitioned(split, data, clients)
    column = getattr(split, "column", None)
    if isinstance(split, Owners) and column is not None:
        data = data.owned(column)
    owner = None if data.owner is None else data.owner.numpy()
    if clients is None:
        if owner is None or not isinstance(split, Owners):
            raise SettingError("clients missing; give their number, or the column that names them, client")
        clients = len(np.unique(owner[owner >= 0]))
    if isinstance(split, Owners) and data.notes and 0 < len(data.owners) < clients:
        few = f"{clients} clients, but the data have only {len(data.owners)} owners"
        raise SettingError(f"{few}; use as many or fewer, or leave it out; {'; '.join(data.notes)}")
    return split(_labels(split, data), clients, rng, owner)


def owner_column(client: str | None, split: Split | None) -> str | None:
    """The column that says whose a sample is, named by itself or by the split."""
    return client or (split.column if isinstance(split, Owners) else None)


def _labels(split: Split, data: Dataset) -> Labels:
    """What a split goes by."""
    if isinstance(split, IID | Owners):
        return np.zeros(len(data.train))  # it does not: nothing is read
    name = getattr(split, "by", None) or data.target
    data.train.has(name)
    if not hasattr(split, "by"):  # the user's own
        return data.train.column(name)
    if shape := data.train.shape(name):
        raise SettingError(
            f"{name!r} is {list(shape)} a sample, not a class to split by; name another column, by=…, or use iid"
        )
    values = data.train.column(name)
    numbers = name == data.target and data.classes is None and name not in data.train.words
    bins: int = getattr(split, "bins", 10)
    if data.train.real(name) or (numbers and len(np.unique(values)) > bins):
        return _quantiles(values, bins, name)
    return values


def _quantiles(values: Labels, bins: int, name: str) -> Labels:
    if not np.isfinite(values).all():
        place = int(np.flatnonzero(~np.isfinite(values))[0])
        raise DataError(f"{name!r}: training sample {place} is not finite; fill it in or leave it out")
    return np.searchsorted(np.quantile(values, np.arange(1, bins) / bins), values, side="right")


def _partitioned(given: Any, data: Dataset, clients: int | None) -> list[Indices]:
    """The split of a partitioner of flwr-datasets, which gets a table with the numbers of the samples."""
    train, partitioner = data.train, copy.deepcopy(given)
    kind = type(given).__name__
    single = [name for name in train.names if not train.shape(name)]
    table = {n: words(train, n) if n in train.words else train.column(n).tolist() for n in single}
    try:
        datasets = importlib.import_module("datasets")
        partitioner.dataset = datasets.Dataset.from_dict({**table, "offbeat_sample": list(range(len(train)))})
        count = int(partitioner.num_partitions)
        if clients not in (None, count):
            raise SettingError(f"{clients} clients, but the {kind} has {count} partitions; use as many")
        parts = [partitioner.load_partition(client)["offbeat_sample"] for client in range(count)]
    except SettingError:
        raise
    except Exception as error:
        said = str(error).strip().splitlines() or [""]
        raise SettingError(f"the {kind} fails: {type(error).__name__}: {said[0]}") from error
    return joined([[np.asarray(list(part), np.int64)] for part in parts], "use fewer clients")
