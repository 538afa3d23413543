"""The tables that need no download: what is in them, and what a damaged file says."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from offbeat.core.errors import DataError
from offbeat.data import load
from offbeat.data.base import Dataset
from offbeat.data.facts import FACTS
from offbeat.data.folder import BUNDLED, NAMES, Bundled
from offbeat.data.samples import Stored
from offbeat.data.tables import COLUMNS, EMBEDDED, bundled, every_fifth, read

TABLES = [name for name in BUNDLED if name != "digits"]


def stored(data: Dataset) -> tuple[Stored, Stored]:
    assert isinstance(data.train, Stored)
    assert isinstance(data.test, Stored)
    return data.train, data.test


def test_something_is_known_of_every_set_in_the_same_order() -> None:
    assert tuple(FACTS) == NAMES


@pytest.mark.parametrize("name", list(BUNDLED))
def test_a_set_has_what_is_said_of_it(name: str) -> None:
    data, facts = load(name), FACTS[name]
    assert len(data.train) + len(data.test) == facts.samples
    assert (0 if data.owner is None else len(data.owner.unique())) == facts.owners
    assert facts.task == (f"{data.classes} classes" if data.classes else facts.task)
    assert data.name == name


@pytest.mark.parametrize("name", TABLES)
def test_inputs_are_about_standard_and_targets_are_typed_by_the_task(name: str) -> None:
    data = load(name)
    for part in stored(data):
        assert part["x"].dtype == torch.float32
        assert part["y"].dtype == (torch.float32 if data.classes is None else torch.int64)
        assert part.not_finite("x") is None
        assert part.not_finite("y") is None
    x = torch.cat([part["x"] for part in stored(data)])
    rough = 0.4 if name == "employment" else 0.05  # months of a crisis and quiet ones
    assert (x.mean(0).abs() < 0.1).all()
    assert ((x.std(0) - 1).abs() < rough).all()


@pytest.mark.parametrize("name", [name for name in TABLES if FACTS[name].owners])
def test_a_fifth_of_every_owner_is_for_testing(name: str) -> None:
    data = load(name)
    assert data.owner is not None
    assert data.test_owner is not None
    train, test = np.bincount(data.owner), np.bincount(data.test_owner)
    assert len(train) == len(test) == len(set(data.owners)) == FACTS[name].owners
    rough = 0.2 if name == "randhie" else 0.05  # there it is a fifth of the people, who have 1 to 5 years
    assert (np.abs(test / (train + test) - 0.2) < rough).all()
    assert abs(test.sum() / (train.sum() + test.sum()) - 0.2) < 0.02


def test_every_fifth_counts_within_its_group() -> None:
    group = np.array([0, 1] * 5 + [1] * 5)
    assert np.flatnonzero(every_fifth(group)).tolist() == [8, 9, 14]


def test_a_person_of_randhie_is_trained_or_tested_on_in_all_years() -> None:
    table = read("randhie", 20_186)
    names = COLUMNS["randhie"]
    varies = [names.index(name) for name in ("test", "visit", "family", "age", "child")]
    constant, age, test = np.delete(table, varies, axis=1), table[:, names.index("age")], table[:, names.index("test")]
    next_year = (constant[1:] == constant[:-1]).all(1) & (age[1:] == age[:-1] + 1)
    assert next_year.sum() > 0.6 * len(table)
    assert (test[1:] == test[:-1])[next_year].mean() > 0.998  # a few are sisters or brothers a year apart


def test_a_forecast_is_of_the_month_after_the_twelve_and_after_all_that_was_trained_on() -> None:
    data = load("employment")
    train, test = stored(data)
    assert data.owner is not None
    assert data.test_owner is not None
    x, y = (torch.cat([train[name][data.owner == 3], test[name][data.test_owner == 3]]) for name in ("x", "y"))
    assert torch.equal(x[1:, -1], y[:-1])
    goods = read("employment", 120)[:, COLUMNS["employment"].index("nondurable_goods")]
    assert float(y[-1]) == pytest.approx(200 * np.log(goods[-1] / goods[-2]), rel=1e-5)


def test_known_values_are_where_they_belong() -> None:
    """General Motors in 1935 invested 317.6 at a value of 3,078.5 with a capital of 2.8."""
    train, _ = stored(load("grunfeld"))
    assert load("grunfeld").owners[0] == "General Motors"
    assert (load("diabetes").owners[1], load("randhie").owners[0]) == ("30 to 35", "site 1 plan 1")
    assert train["x"][0].tolist() == pytest.approx([(np.log(3078.5) - 6.1) / 1.4, (np.log(2.8) - 4.8) / 1.5], rel=1e-6)
    assert float(train["y"][0]) == pytest.approx((np.log(317.6) - 3.9) / 1.5, rel=1e-6)


TWO = b"firm,year,invest,value,capital\n0,1935,3,4,5\n0,1936,3,4,9.5\n"


def zipped(text: bytes) -> bytes:
    """Without the time, which would be part of a test's name."""
    return gzip.compress(text, mtime=0)


def damage(folder: Path, text: bytes) -> str:
    (folder / "grunfeld.csv.gz").write_bytes(text)
    with pytest.raises(DataError) as error:
        read("grunfeld", 2, folder)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TWO, "expected a gzipped table, found Not a gzipped file"),
        (zipped(TWO)[:-9], "expected a gzipped table, found Compressed file ended before"),
        (
            zipped(TWO.replace(b"value", b"price")),
            "expected the columns firm, year, invest, value, capital, found",
        ),
        (zipped(b""), "expected the columns firm, year, invest, value, capital, found nothing"),
        (zipped(TWO + b"0,1937,3,4,5\n"), "expected 2 rows, found 3"),
        (zipped(TWO.replace(b"9.5", b"x")), "expected 5 numbers in every row, found"),
        (zipped(TWO.replace(b"9.5", b"9,5")), "expected 5 numbers in every row, found"),
    ],
)
def test_a_damaged_table_is_named(tmp_path: Path, text: bytes, says: str) -> None:
    said = damage(tmp_path, text)
    assert f"{tmp_path / 'grunfeld.csv.gz'}: {says}" in said
    assert said.endswith("delete the file, then install offbeat again, which brings it")
    assert "\n" not in said


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=re.escape(f"grunfeld: {tmp_path}") + ".* does not exist; install offbeat again"
    ):
        read("grunfeld", 1, tmp_path)


@pytest.mark.parametrize("name", [name for name, bundled in BUNDLED.items() if bundled.package == "offbeat"])
def test_every_embedded_table_has_its_source_and_licence_beside_it(name: str) -> None:
    text = (EMBEDDED / "README.md").read_text(encoding="utf-8")
    section = text.split(f"\n## {name}.csv.gz\n")[1].split("\n## ")[0]
    assert "- **Source**: " in section
    assert "- **Licence**: public domain" in section
    assert sum(path.stat().st_size for path in EMBEDDED.iterdir()) < 150_000


def test_scikit_learns_files_are_read_as_it_reads_them() -> None:
    from sklearn import datasets

    for name, known, shapes, how in (
        ("digits", datasets.load_digits(), ((1797, 65),), {"delimiter": ","}),
        ("diabetes", datasets.load_diabetes(scaled=False), ((442, 10), (442, 1)), {}),
        ("breast-cancer", datasets.load_breast_cancer(), ((569, 31),), {"delimiter": ",", "header": 1}),
    ):
        table = np.concatenate(bundled(name, *shapes, **how), axis=1)
        assert np.array_equal(table, np.column_stack([known.data, known.target]))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "pair is not installed; install mylab again"),
        ("1 2\n3 x\n", r"expected a table of 2 × 2 numbers, found .*'x'"),
        ("1 2\n", "expected a table of 2 × 2 numbers, found 1 × 2; delete the file, then install mylab again"),
    ],
)
def test_a_damaged_file_of_another_package_is_named(
    text: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mylab").mkdir()
    (tmp_path / "mylab" / "__init__.py").touch()
    if text is not None:
        (tmp_path / "mylab" / "pair.csv").write_text(text, encoding="utf-8")
    monkeypatch.setattr("offbeat.data.tables.BUNDLED", {"pair": Bundled("mylab", "mylab", ("pair.csv",))})
    monkeypatch.setattr("offbeat.data.folder.BUNDLED", {"pair": Bundled("mylab", "mylab", ("pair.csv",))})
    with pytest.raises(DataError, match=says):
        bundled("pair", (2, 2))
