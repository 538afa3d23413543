"""Where data sets lie on disk, what their files are called, and what to say when they are not there.

The folder is the one named by the caller, else the environment variable OFFBEAT_DATA, else ~/.cache/offbeat.
Each set has its own folder in it, laid out as its publisher ships it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from offbeat.core.errors import DataError, unknown

VARIABLE = "OFFBEAT_DATA"


@dataclass(frozen=True)
class Source:
    """One set's folder, its files with their SHA-256 sums, and where its publisher keeps them.

    url: what a file's name (or the archive's) is appended to; empty: nothing to download from.
    archive: the publisher's archive that holds the files; empty: they are published one by one.
    """

    folder: str
    files: Mapping[str, str] = field(default_factory=dict)
    url: str = ""
    archive: str = ""


@dataclass(frozen=True)
class Bundled:
    """A set that comes in the wheel of a package that is installed: the package's name, its module, and the files."""

    package: str
    module: str
    files: tuple[str, ...]

    def paths(self) -> list[Path]:
        """Where the files are; the module is found without being imported."""
        found = find_spec(self.module)
        return [Path(found.origin).parent / file for file in self.files] if found and found.origin else []


BUNDLED: Mapping[str, Bundled] = {
    "digits": Bundled("scikit-learn", "sklearn", ("datasets/data/digits.csv.gz",)),
    "diabetes": Bundled(
        "scikit-learn", "sklearn", ("datasets/data/diabetes_data_raw.csv.gz", "datasets/data/diabetes_target.csv.gz")
    ),
    "breast-cancer": Bundled("scikit-learn", "sklearn", ("datasets/data/breast_cancer.csv",)),
    "randhie": Bundled("offbeat", "offbeat", ("data/embedded/randhie.csv.gz",)),
    "grunfeld": Bundled("offbeat", "offbeat", ("data/embedded/grunfeld.csv.gz",)),
    "employment": Bundled("offbeat", "offbeat", ("data/embedded/employment.csv.gz",)),
}

SOURCES: Mapping[str, Source] = {
    "mnist": Source(
        "mnist",
        {
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ),
    "fashion-mnist": Source(
        "fashion-mnist",
        {
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    "cifar10": Source(
        "cifar-10-batches-bin",
        {
            "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        },
        "https://www.cs.toronto.edu/~kriz/",
        "cifar-10-binary.tar.gz",
    ),
    "shakespeare": Source("shakespeare"),
}

NAMES = (*BUNDLED, *SOURCES)


def root(folder: Path | None = None) -> Path:
    """The folder that holds the sets' folders."""
    return Path(folder or os.environ.get(VARIABLE) or Path.home() / ".cache" / "offbeat").expanduser()


def source(name: str) -> Source:
    """The source of a set that is read from the data folder; one that comes in a wheel is none."""
    if name not in SOURCES:
        raise unknown("data set", name, NAMES)
    return SOURCES[name]


def find(name: str, folder: Path | None = None) -> list[Path]:
    """The paths of a set's files, in the order of its source, or a DataError that lists what is missing.

    An IDX file may lie there unpacked, without its .gz. The plays are every .txt file of their folder.
    """
    found, missing = _look(name, folder)
    if missing:
        raise DataError(
            f"{name} is not complete in {root(folder)}: looked for {', '.join(missing)}; {remedy(name)}, "
            f"or set {VARIABLE} to the folder that has it"
        )
    return found


def _look(name: str, folder: Path | None) -> tuple[list[Path], list[str]]:
    """What is there of a set, and what is not (relative to the root)."""
    kept = source(name)
    place = root(folder) / kept.folder
    if not kept.files:
        texts = sorted(place.glob("*.txt"))
        return texts, [] if texts else [f"{kept.folder}/*.txt"]
    found, missing = [], []
    for file in kept.files:
        path = next((p for p in (place / file, place / file.removesuffix(".gz")) if p.is_file()), None)
        if path is None:
            missing.append(f"{kept.folder}/{file}")
        else:
            found.append(path)
    return found, missing


def remedy(name: str) -> str:
    """How to get a set, as a clause of a sentence."""
    if name in BUNDLED:
        return f"install {BUNDLED[name].package} again, which brings it"
    kept = source(name)
    if kept.url:
        return f"run `offbeat data --get {name}` or put the publisher's files there by hand"
    return (
        f"put the plays there by hand as {kept.folder}/TITLE.txt, one file each: after the cast a line "
        "SCENE<TAB>where, then speeches that start with NAME<TAB> and go on in lines that start with <TAB>"
    )


def damaged(path: Path, expected: str, found: str, name: str) -> DataError:
    """The error for a file that is not what it claims to be."""
    return DataError(f"{path}: expected {expected}, found {found}; delete the file, then {remedy(name)}")


class DatasetStatus(NamedTuple):
    """One line of `offbeat data`."""

    name: str
    where: str
    state: str  # present, missing or incomplete
    size: int  # bytes on disk
    get: str


def status(folder: Path | None = None) -> list[DatasetStatus]:
    """Every known set: where it is looked for, whether its files are there, and how to get it.

    Files are not opened: `fetch` and `load` are what notice a damaged one.
    """
    rows = []
    for name, bundled in BUNDLED.items():
        sizes = [path.stat().st_size for path in bundled.paths() if path.is_file()]
        state = "present" if len(sizes) == len(bundled.files) else "incomplete" if sizes else "missing"
        rows.append(DatasetStatus(name, bundled.package, state, sum(sizes), remedy(name)))
    for name, kept in SOURCES.items():
        found, missing = _look(name, folder)
        state = "present" if not missing else "incomplete" if found else "missing"
        size = sum(path.stat().st_size for path in found)
        rows.append(DatasetStatus(name, str(root(folder) / kept.folder), state, size, remedy(name)))
    return rows
