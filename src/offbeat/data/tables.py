"""Small tables that need no download: scikit-learn's, and those in the folder `embedded`, whose README says where they
are from.

Inputs are (value − centre) / spread with the constants written here, so that no client has to know the others' values;
so are targets that are numbers. Owners are numbered from 0. Which samples are for testing never changes.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from offbeat.core.errors import DataError
from offbeat.data.base import Dataset
from offbeat.data.folder import BUNDLED, damaged, remedy
from offbeat.data.samples import Stored

Numbers = npt.NDArray[np.float64]

EMBEDDED = Path(__file__).parent / "embedded"
MONTHS = 12  # before the one that is forecast

# of the embedded tables
COLUMNS = {
    "randhie": (
        "site", "plan", "test", "visit", "coinsurance", "deductible", "incentive", "limit", "limitation", "diseases",
        "good", "fair", "poor", "income", "family", "education", "age", "female", "child",
    ),
    "grunfeld": ("firm", "year", "invest", "value", "capital"),
    "employment": (
        "month", "mining_and_logging", "construction", "durable_goods", "nondurable_goods", "wholesale_trade",
        "retail_trade", "transportation_and_warehousing", "utilities", "information", "financial_activities",
        "professional_and_business_services", "education_and_health_services", "leisure_and_hospitality",
        "other_services", "government",
    ),
}  # fmt: skip

FIRMS = (
    "General Motors", "US Steel", "General Electric", "Chrysler", "Atlantic Refining", "IBM", "Union Oil",
    "Westinghouse", "Goodyear", "Diamond Match", "American Steel",
)  # fmt: skip

# age, sex, body mass index, blood pressure, six blood measurements
_DIABETES = (
    (48.5, 1.5, 26.4, 94.6, 189.0, 115.0, 49.8, 4.07, 4.64, 91.3),
    (13.1, 0.5, 4.4, 13.8, 34.6, 30.4, 12.9, 1.29, 0.52, 11.5),
)
_AGES = (30, 36, 41, 47, 50, 53, 57, 60, 65)  # at which the next group begins: about a tenth each
# mean, standard error and worst of radius, texture, perimeter, area, smoothness, compactness, concavity, concave
# points, symmetry and fractal dimension
_BREAST_CANCER = (
    (
        14.1, 19.3, 92.0, 655.0, 0.0964, 0.104, 0.0888, 0.0489, 0.181, 0.0628,
        0.405, 1.22, 2.87, 40.3, 0.00704, 0.0255, 0.0319, 0.0118, 0.0205, 0.00379,
        16.3, 25.7, 107.0, 881.0, 0.132, 0.254, 0.272, 0.115, 0.29, 0.0839,
    ),
    (
        3.52, 4.3, 24.3, 352.0, 0.0141, 0.0528, 0.0796, 0.0388, 0.0274, 0.00705,
        0.277, 0.551, 2.02, 45.5, 0.003, 0.0179, 0.0302, 0.00616, 0.00826, 0.00264,
        4.83, 6.14, 33.6, 569.0, 0.0228, 0.157, 0.208, 0.0657, 0.0618, 0.018,
    ),
)  # fmt: skip
# in the order of the file's columns
_RANDHIE = (
    (1.77, 0.26, 4.71, 4.03, 0.12, 11.2, 0.36, 0.08, 0.01, 8.71, 1.25, 12.0, 25.7, 0.52, 0.4),
    (1.98, 0.44, 2.7, 3.47, 0.32, 6.74, 0.48, 0.27, 0.12, 1.23, 0.54, 2.81, 16.8, 0.5, 0.49),
)
_GRUNFELD = ((6.1, 4.8), (1.4, 1.5))  # of the logarithms of value and capital


def diabetes() -> Dataset:
    """Progression of diabetes (Efron et al., 2004) from 10 features; an owner is an age group.

    The target is (progression − 152) / 77. Every fifth patient of a group is for testing.
    """
    features, target = bundled("diabetes", (442, 10), (442, 1))
    progression = target[:, 0]
    owner = np.searchsorted(_AGES, features[:, 0], side="right")
    names = [f"under {_AGES[0]}", *(f"{age} to {end - 1}" for age, end in pairwise(_AGES)), f"{_AGES[-1]} and over"]
    y = ((progression - 152.0) / 77.0).astype(np.float32)
    return _made("diabetes", _scaled(features, _DIABETES), y, every_fifth(owner), owner, names)


def breast_cancer() -> Dataset:
    """Whether a tumour is malignant (0) or benign (1) from 30 features; every fifth of a class is for testing."""
    (table,) = bundled("breast-cancer", (569, 31), delimiter=",", header=1)
    y = table[:, -1].astype(np.int64)
    return _made("breast-cancer", _scaled(table[:, :-1], _BREAST_CANCER), y, every_fifth(y), classes=2)


def randhie() -> Dataset:
    """Whether a person saw a doctor in a year (1) or not (0), in the RAND Health Insurance Experiment.

    An owner is a site with an insurance plan. Every fifth person of an owner is for testing, with all of their years.
    """
    site, plan, test, visit, *features = read("randhie", 20_186).T
    pairs, owner = np.unique(np.stack([site, plan], axis=1).astype(int), axis=0, return_inverse=True)
    names = [f"site {one} plan {other}" for one, other in pairs]
    x = _scaled(np.stack(features, axis=1), _RANDHIE)
    return _made("randhie", x, visit.astype(np.int64), test == 1, owner.reshape(-1), names, classes=2)


def grunfeld() -> Dataset:
    """A firm's investment in a year from its value and its capital (Grunfeld, 1950), all as logarithms.

    The target is (ln investment − 3.9) / 1.5. An owner is a firm, every fifth of whose years is for testing.
    """
    firm, _, invest, *features = read("grunfeld", 220).T
    x, y = _scaled(np.log(np.stack(features, axis=1)), _GRUNFELD), ((np.log(invest) - 3.9) / 1.5).astype(np.float32)
    return _made("grunfeld", x, y, every_fifth(firm), firm, FIRMS)


def employment() -> Dataset:
    """The change of a month's employment from the changes of the 12 months before, US sectors from 2006 to 2015.

    A change is 200 times the difference of logarithms, so that it is half per cents. An owner is a sector, the last
    fifth of whose months is for testing: a forecast never knows what came after it.
    """
    table = read("employment", 120)
    changes = (200 * np.diff(np.log(table[:, 1:]), axis=0)).astype(np.float32)  # [months, sectors]
    windows = np.lib.stride_tricks.sliding_window_view(changes, MONTHS + 1, axis=0).swapaxes(0, 1)
    sectors, count = windows.shape[:2]  # [sectors, count, MONTHS + 1]
    owner, at = np.divmod(np.arange(sectors * count), count)
    rows = windows.reshape(sectors * count, MONTHS + 1)
    return _made("employment", rows[:, :-1], rows[:, -1], at >= count - count // 5, owner, COLUMNS["employment"][1:])


def bundled(name: str, *shapes: tuple[int, int], delimiter: str | None = None, header: int = 0) -> list[Numbers]:
    """The numbers in the files that another package brings, or a DataError that says what is wrong with them.

    The package is not imported: scikit-learn takes as long as torch, and every process of a run would wait for it.
    """
    paths = BUNDLED[name].paths()
    if not paths or not all(path.is_file() for path in paths):
        raise DataError(f"{name} is not installed; {remedy(name)}")
    tables = []
    for path, shape in zip(paths, shapes, strict=True):
        try:
            table = np.loadtxt(path, delimiter=delimiter, skiprows=header, ndmin=2)
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise damaged(path, f"a table of {shape[0]:,} × {shape[1]} numbers", str(error), name) from error
        if table.shape != shape:
            found = " × ".join(map(str, table.shape))
            raise damaged(path, f"a table of {shape[0]:,} × {shape[1]} numbers", found, name)
        tables.append(table)
    return tables


def read(name: str, rows: int, folder: Path = EMBEDDED) -> Numbers:
    """The numbers in an embedded table, [rows, columns], or a DataError that says what is wrong with the file."""
    path, columns = folder / f"{name}.csv.gz", COLUMNS[name]
    if not path.is_file():
        raise DataError(f"{name}: {path} does not exist; {remedy(name)}")
    try:
        header, *lines = gzip.decompress(path.read_bytes()).decode().splitlines() or [""]
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise damaged(path, "a gzipped table", str(error), name) from error
    if tuple(header.split(",")) != columns:
        raise damaged(path, f"the columns {', '.join(columns)}", header or "nothing", name)
    if len(lines) != rows:
        raise damaged(path, f"{rows:,} rows", f"{len(lines):,}", name)
    try:
        return np.loadtxt(lines, delimiter=",", ndmin=2)
    except ValueError as error:
        raise damaged(path, f"{len(columns)} numbers in every row", str(error), name) from error


def every_fifth(group: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where every fifth of a group is, in the order given."""
    found = np.zeros(len(group), bool)
    for each in np.unique(group):
        found[np.flatnonzero(group == each)[4::5]] = True
    return found


def _scaled(values: Numbers, constants: tuple[Sequence[float], Sequence[float]]) -> npt.NDArray[np.float32]:
    centre, spread = constants
    scaled: npt.NDArray[np.float32] = ((values - np.array(centre)) / np.array(spread)).astype(np.float32)
    return scaled


def _made(
    name: str,
    x: npt.NDArray[np.float32],
    y: npt.NDArray[Any],
    test: npt.NDArray[np.bool_],
    owner: npt.NDArray[Any] | None = None,
    names: Sequence[str] = (),
    classes: int | None = None,
) -> Dataset:
    parts = [Stored({"x": torch.from_numpy(x[which]), "y": torch.from_numpy(y[which])}) for which in (~test, test)]
    owners = (None, None) if owner is None else [torch.from_numpy(owner[w].astype(np.int64)) for w in (~test, test)]
    return Dataset(name, parts[0], parts[1], classes, owners[0], owners[1], owners=tuple(names))
