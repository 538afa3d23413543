"""From a set's name to its tensors."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from offbeat.core.errors import unknown
from offbeat.data.base import Dataset
from offbeat.data.digits import digits
from offbeat.data.folder import NAMES, find, root
from offbeat.data.plays import shakespeare
from offbeat.data.readers import cifar10, images


def load(name: str, folder: Path | None = None) -> Dataset:
    """The set of this name, read once per process; who asks again gets the same tensors, so write to none.

    folder: where the sets lie; by default $OFFBEAT_DATA, else ~/.cache/offbeat.
    """
    if name not in NAMES:
        raise unknown("data set", name, NAMES)
    return _read(name, root(folder).resolve())


@lru_cache(maxsize=8)
def _read(name: str, folder: Path) -> Dataset:
    if name == "digits":
        return digits()
    paths = find(name, folder)
    if name == "cifar10":
        return cifar10(paths)
    return shakespeare(paths) if name == "shakespeare" else images(name, paths)
