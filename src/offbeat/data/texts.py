"""Texts as windows of tokens, each with the tokens that follow: what a language model is trained on.

Every text has an owner. The first four fifths of its tokens are for training, the rest for testing. A window of T
tokens x has the same places one further as its target y; windows never leave their text. What is left at the end of a
text and is shorter than a window is not used, nor are texts without one window of each kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from offbeat.core import names
from offbeat.core.errors import DataError, SettingError, at_least
from offbeat.data.base import Dataset
from offbeat.data.folder import find, root
from offbeat.data.plays import roles
from offbeat.data.samples import Stored
from offbeat.data.tokens import Way, tokeniser

_TRAIN = (4, 5)  # the share of a text to train on
_NAMED = 6  # texts that are left out and named


def windows(
    texts: Mapping[str, str],
    window: int = 64,
    stride: int | None = None,
    tokens: Way = "characters",
    vocabulary: int | None = None,
    name: str = "text",
) -> Dataset:
    """A data set of texts by owner.

    window: tokens that a model sees at once.   stride: tokens from one training window to the next; None: as many as a
    window has.   tokens: "characters", or "byte-pair" with at most `vocabulary` tokens, by default 512, learnt from
    the training texts.
    """
    if not isinstance(texts, Mapping):
        raise SettingError(f"texts: expected a mapping of them by owner, such as {{'anna': '…'}}, got a {_type(texts)}")
    at_least(2, window=window)
    at_least(1, stride=window if stride is None else stride)
    known = tokeniser(
        tokens, [_split(text)[0] if tokens == "byte-pair" else text for text in texts.values()], vocabulary
    )
    train: list[Tensor] = []
    test: list[Tensor] = []
    owners: list[str] = []
    for owner, text in texts.items():
        coded = [torch.tensor(known.encode(part), dtype=_kind(known.size)) for part in _split(text)]
        if min(len(part) for part in coded) > window:
            owners.append(owner)
            train.append(coded[0].unfold(0, window + 1, stride or window))
            test.append(coded[1].unfold(0, window + 1, window))
    if not owners:
        longest = max((len(text) for text in texts.values()), default=0)
        raise DataError(
            f"{name}: no text is long enough for a window of {window} tokens to train on and one to test on; the "
            f"longest of {len(texts)} has {longest:,} characters: use a smaller window"
        )
    return Dataset(
        name,
        _pairs(train),
        _pairs(test),
        classes=known.size,
        owner=_owner(train),
        test_owner=_owner(test),
        owners=tuple(owners),
        tokens=known,
    )


def texts(
    folder: str, window: int = 64, stride: int | None = None, tokens: Way = "characters", vocabulary: int | None = None
) -> Dataset:
    """A folder of .txt files, each of them a client's text, as windows of tokens."""
    if not isinstance(folder, str | Path):
        raise SettingError(f"folder: expected the path of one, got a {_type(folder)}; for texts in memory use windows")
    return _texts(str(folder), window, stride, tokens, vocabulary)


@lru_cache(maxsize=4)
def _texts(folder: str, window: int, stride: int | None, tokens: Way, vocabulary: int | None) -> Dataset:
    place = names.placed(folder)
    files = sorted(place.glob("*.txt")) if place.is_dir() else []
    if not files:
        raise DataError(f"{place}: expected a folder with .txt files, one for each client")
    found = {file.stem: _read(file) for file in files}
    data = windows(found, window, stride, tokens, vocabulary, place.name)
    short = [name for name in found if name not in data.owners]
    if not short:
        return data
    some = ", ".join(short[:_NAMED]) + (", …" if len(short) > _NAMED else "")
    note = f"left out, too short for a window of {window} tokens to train on and one to test on: {some}"
    return replace(data, notes=(note,))


@lru_cache(maxsize=4)
def plays(
    by: Literal["role", "play"] = "role",
    window: int = 64,
    stride: int | None = None,
    tokens: Way = "characters",
    vocabulary: int | None = None,
) -> Dataset:
    """Shakespeare's plays as windows of tokens; every role is a client, or every play."""
    found: dict[str, str] = {}
    for path in find("shakespeare", root()):
        said = roles(path)
        if by == "play":
            found |= {path.stem: "\n".join(said.values())} if said else {}
        else:
            found |= {f"{path.stem}/{role}": text for role, text in said.items()}
    return windows(found, window, stride, tokens, vocabulary, "plays")


@lru_cache(maxsize=4)
def topics(
    window: int = 64, stride: int | None = None, tokens: Way = "characters", vocabulary: int | None = None
) -> Dataset:
    """Python's language reference, which comes with Python, as windows of tokens; every topic is a client."""
    from pydoc_data.topics import topics as found

    return windows(dict(sorted(found.items())), window, stride, tokens, vocabulary, "topics")


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as error:
        wrong = f"{error.reason} at byte {error.start:,}"
        raise DataError(f"{file}: expected UTF-8, found {wrong}; save it as UTF-8") from None
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from error


def _type(value: object) -> str:
    return type(value).__name__


def _split(text: str) -> tuple[str, str]:
    cut = len(text) * _TRAIN[0] // _TRAIN[1]
    return text[:cut], text[cut:]


def _kind(size: int) -> torch.dtype:
    """The smallest whole numbers that hold so many tokens."""
    return torch.uint8 if size <= 256 else torch.int16 if size <= 1 << 15 else torch.int32


def _pairs(parts: list[Tensor]) -> Stored:
    both = torch.cat(parts)  # [windows, window + 1]
    return Stored({"x": both[:, :-1], "y": both[:, 1:]})


def _owner(parts: list[Tensor]) -> Tensor:
    return torch.from_numpy(np.repeat(np.arange(len(parts)), [len(part) for part in parts]))
