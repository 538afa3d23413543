"""Splits by any column: names, numbers, quantiles, and those of other packages."""

from __future__ import annotations

import itertools
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import offbeat as ob
from offbeat.core.errors import DataError, SettingError
from offbeat.data import Classes, Dataset, Dirichlet, NearlyIID, Owners, dataset
from offbeat.data.sharding import shards

N = 400
SITE = np.array([f"site{at % 3}" for at in range(N)])
COLUMNS = {
    "x": np.random.default_rng(0).normal(size=(N, 2)),
    "price": np.random.default_rng(1).lognormal(size=N),
    "count": np.arange(N) % 80,
    "site": SITE,
    "several": np.zeros((N, 4)),
}


def made(target: str, **settings: Any) -> Dataset:
    return dataset(COLUMNS, target=target, inputs="x", test={**COLUMNS}, **settings)


def split(how: Any, data: Dataset, clients: int) -> list[np.ndarray]:
    return shards(how, data, clients, np.random.default_rng(0))


def test_real_numbers_are_split_by_their_quantiles() -> None:
    parts = split(Classes(1), made("price"), 10)
    spans = sorted((COLUMNS["price"][part].min(), COLUMNS["price"][part].max()) for part in parts)
    assert [len(part) for part in parts] == [40] * 10
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    two = split(Classes(1, bins=2), made("price"), 2)
    assert [len(part) for part in two] == [200, 200]


def test_whole_numbers_that_are_no_classes_are_split_by_their_quantiles_too() -> None:
    parts = split(Classes(1), made("count", whole=False), 10)
    assert all(np.ptp(COLUMNS["count"][part]) <= 8 for part in parts)
    assert len(np.unique(COLUMNS["count"][split(Classes(1), made("count"), 80)[0]])) == 1  # classes


@pytest.mark.parametrize("how", [Classes(1, by="site"), Dirichlet(0.01, by="site"), NearlyIID(by="site")])
def test_a_split_goes_by_the_column_that_it_names(how: Any) -> None:
    parts = split(how, made("price"), 3)
    counts = np.array([[np.count_nonzero(SITE[part] == f"site{k}") for k in range(3)] for part in parts])
    if isinstance(how, NearlyIID):
        assert (counts[:-1] == counts[0]).all()
    elif isinstance(how, Classes):
        assert (np.count_nonzero(counts, axis=1) == 1).all()
    else:
        assert (counts.max(axis=0) > 0.6 * counts.sum(axis=0)).all()
    same = split(how, made("site"), 3)  # the target itself, under its own name
    assert all(np.array_equal(a, b) for a, b in zip(parts, same, strict=True))


@pytest.mark.parametrize(
    ("column", "names"), [("site", ("site0", "site1", "site2")), ("count", tuple(map(str, range(80))))]
)
def test_owners_are_the_values_of_a_column(column: str, names: tuple[str, ...]) -> None:
    data = made("price")
    parts = split(Owners(column), data, len(names))
    assert [str(COLUMNS[column][part[0]]) for part in parts] == list(names)
    assert all(len(np.unique(COLUMNS[column][part])) == 1 for part in parts)
    problem = ob.Supervised.split(data, len(names), Owners(column), torch.nn.Linear(2, 1))
    assert problem.data.owners == names
    assert all(
        (COLUMNS[column][problem.test_shares[k]] == COLUMNS[column][part[0]]).all() for k, part in enumerate(parts)
    )


def test_there_are_as_many_clients_as_owners_unless_their_number_is_given() -> None:
    model = torch.nn.Linear(2, 1)
    assert ob.Supervised.split(made("price"), split=Owners("site"), model=model).clients == 3
    assert ob.Supervised.split(COLUMNS, client="site", target="price", inputs=["x"], model=model).clients == 3
    by_client = {name: (np.zeros((9, 2)), np.ones(9)) for name in "abcd"}
    assert ob.Supervised.split(by_client, model=model).clients == 4
    assert ob.Supervised.split("grunfeld", model="linear").clients == 11
    assert ob.Supervised.split("grunfeld", 3, model="linear").clients == 3  # the largest
    for settings in ({}, {"split": Dirichlet(0.3)}, {"split": Dirichlet(0.3), "client": "site"}):
        with pytest.raises(SettingError, match="clients missing; give their number, or the column"):
            ob.Supervised.split(made("price"), model=model, **settings)


def test_what_cannot_be_split_by_is_named() -> None:
    with pytest.raises(SettingError, match=r"'several' is \[4\] a sample, not a class to split by; name another"):
        split(Dirichlet(0.3), made("several"), 4)
    with pytest.raises(DataError, match="no column 'sites'; did you mean 'site'"):
        split(Dirichlet(0.3, by="sites"), made("price"), 4)
    with pytest.raises(DataError, match="no column 'speaker'"):
        split(Owners("speaker"), made("price"), 4)
    with pytest.raises(DataError, match=r"'several' is \[4\] a sample; owners are one name or number"):
        split(Owners("several"), made("price"), 4)
    with pytest.raises(SettingError, match="4 clients, but the data have only 3 owners"):
        split(Owners("site"), made("price"), 4)
    assert len(split(ob.data.IID(), made("several"), 4)) == 4


class Table:
    """What a partitioner uses of a HuggingFace data set."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns = columns

    from_dict = classmethod(lambda cls, columns: cls(columns))

    def select(self, which: list[int]) -> Table:
        return Table({name: [values[at] for at in which] for name, values in self.columns.items()})

    def __getitem__(self, name: str) -> list[Any]:
        return self.columns[name]


class NaturalIdPartitioner:
    """Like that of flwr-datasets."""

    dataset: Any = None

    def __init__(self, partition_by: str) -> None:
        self.by = partition_by

    @property
    def num_partitions(self) -> int:
        return len(set(self.dataset[self.by]))

    def load_partition(self, number: int) -> Table:
        name = sorted(set(self.dataset[self.by]))[number]
        return self.dataset.select([at for at, value in enumerate(self.dataset[self.by]) if value == name])


def test_partitioners_of_flwr_datasets_are_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("datasets")
    module.Dataset = Table  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    given = NaturalIdPartitioner("site")
    parts = split(given, made("price"), 3)
    assert [SITE[part[0]] for part in parts] == ["site0", "site1", "site2"]
    assert sorted(np.concatenate(parts).tolist()) == list(range(N))
    assert given.dataset is None  # the user's own is left as it was
    with pytest.raises(SettingError, match="4 clients, but the NaturalIdPartitioner has 3 partitions"):
        split(given, made("price"), 4)
    with pytest.raises(SettingError, match="the NaturalIdPartitioner fails: KeyError"):
        split(NaturalIdPartitioner("place"), made("price"), 3)
