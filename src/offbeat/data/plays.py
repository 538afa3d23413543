"""Shakespeare's plays as next-character prediction: who speaks is who owns the text (FedAST, C.4, after LEAF).

A play's file is its title, the cast, a line `SCENE<TAB>where`, then the acts. A speech starts with `NAME<TAB>`
and goes on in lines that start with a tab. Text in [brackets] is a stage direction and nobody's; a line
with `|` belongs to several speakers and is left out; a line without a tab (ACT I) ends the speech. A file
without `SCENE<TAB>` is a poem and has no roles. As in LEAF, white space is collapsed to single blanks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from offbeat.core.errors import DataError
from offbeat.data.base import Dataset
from offbeat.data.folder import remedy

WINDOW = 80
VOCABULARY = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"  # LEAF's 80

_CODES = np.full(256, VOCABULARY.index(" "), np.uint8)  # whatever is not in the vocabulary reads as a blank
_CODES[[ord(c) for c in VOCABULARY]] = range(len(VOCABULARY))


def shakespeare(paths: Sequence[Path]) -> Dataset:
    """Every (play, name) is an owner; the first 80 % of its text is for training, the rest for testing.

    A test window may begin in the last 80 characters of the training text, but what it predicts never lies
    there. Roles too short for one training window and one test window are left out.
    """
    texts = [text for path in paths for text in roles(path).values()]
    train, test = [], []
    for text in texts:
        cut = len(text) * 4 // 5
        if cut > WINDOW:
            train.append(encode(text[:cut]))
            test.append(encode(text[cut - WINDOW :]))
    if not train:
        folder = paths[0].parent if paths else "the data folder"
        raise DataError(f"no role with enough text in {folder} ({len(paths)} files); {remedy('shakespeare')}")
    train_x, train_y, owner = _windows(train)
    test_x, test_y, test_owner = _windows(test)
    classes = len(VOCABULARY)
    return Dataset.pairs("shakespeare", train_x, train_y, test_x, test_y, classes, None, owner, test_owner)


def encode(text: str) -> npt.NDArray[np.uint8]:
    """Characters as their places in the vocabulary."""
    return _CODES[np.frombuffer(text.encode("latin-1", "replace"), np.uint8)]


def roles(path: Path) -> dict[str, str]:
    """What each role of one play says, in the order of their first speeches."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError as error:
        raise DataError(f"{path}: {error}; {remedy('shakespeare')}") from error
    said: dict[str, list[str]] = {}
    for name, words in _speeches(lines):
        said.setdefault(name, []).extend(words)
    return {name: " ".join(words) for name, words in said.items()}


def _speeches(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """(name, words) of every spoken line."""
    title = lines[0] if lines else ""  # repeated before every act
    start = next((i for i, line in enumerate(lines) if line.startswith("SCENE\t")), len(lines))
    speaker, aside = "", False
    for line in lines[start:]:
        head, tab, text = line.partition("\t")
        if not line.strip():
            aside = False  # some directions are never closed
        elif not tab or head.startswith("SCENE"):
            speaker = ""
        elif "|" not in line and line != title:
            speaker = head.strip(" :") or speaker
            spoken, aside = _spoken(text, aside and not head)
            if speaker and spoken:
                yield speaker, spoken.split()


def _spoken(text: str, aside: bool) -> tuple[str, bool]:
    """The text outside [brackets], and whether a bracket is still open at its end."""
    if aside:
        _, closed, text = text.partition("]")
        if not closed:
            return "", True
    text = re.sub(r"\[[^\]]*\]", " ", text)
    before, opened, _ = text.partition("[")
    return before, bool(opened)


def _windows(texts: list[npt.NDArray[np.uint8]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Every window of 80 characters of all texts as one view, the character after it, and whose text it is.

    A window that crosses from one text to the next is nobody's (−1).
    """
    flat = torch.from_numpy(np.concatenate(texts))
    who = torch.from_numpy(np.repeat(np.arange(len(texts)), [len(text) for text in texts]))
    owner = torch.where(who[:-WINDOW] == who[WINDOW:], who[WINDOW:], -1)
    return flat.unfold(0, WINDOW, 1)[:-1], flat[WINDOW:].long(), owner
