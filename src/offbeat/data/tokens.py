"""Tokenisers: between text and the numbers that a language model sees."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from offbeat.core.errors import DataError, SettingError, not_installed, unknown

Way = Literal["characters", "byte-pair"]
_VOCABULARY = 512


class Tokeniser(Protocol):
    """Between text and tokens, which are numbers from 0 to size − 1."""

    @property
    def size(self) -> int:
        """How many tokens there are."""

    @property
    def lengths(self) -> Tensor:
        """How many characters each token adds to a text, [size]."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of these tokens."""


class Characters:
    """Every character that occurs is a token, in the order of Unicode.

    >>> letters = Characters("abba cab")
    >>> letters.size, letters.encode("cab"), letters.decode([3, 1, 2])
    (4, [3, 1, 2], 'cab')
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self.vocabulary = "".join(sorted({letter for text in texts for letter in text}))
        self._numbers = {letter: number for number, letter in enumerate(self.vocabulary)}

    @property
    def size(self) -> int:
        return len(self.vocabulary)

    @property
    def lengths(self) -> Tensor:
        return torch.ones(self.size, dtype=torch.float64)

    def encode(self, text: str) -> list[int]:
        try:
            return [self._numbers[letter] for letter in text]
        except KeyError as error:
            raise DataError(f"the character {error} does not occur in the training text") from None

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self.vocabulary[token] for token in tokens)


class BytePairs:
    """Pieces of text that are often seen, learnt by merging frequent pairs, from single bytes on.

    size: how many; the 256 bytes are among them.
    """

    def __init__(self, texts: Sequence[str], size: int) -> None:
        if size < 257:
            raise SettingError(f"vocabulary = {size}: byte-pair has the 256 bytes and more, so at least 257")
        found = _package()
        self.model: Any = found.Tokenizer(found.models.BPE())
        self.model.pre_tokenizer = found.pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.model.decoder = found.decoders.ByteLevel()
        alphabet = found.pre_tokenizers.ByteLevel.alphabet()
        trainer = found.trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
        self.model.train_from_iterator(texts, trainer)

    @property
    def size(self) -> int:
        return int(self.model.get_vocab_size())

    @cached_property
    def lengths(self) -> Tensor:
        """A token stands for bytes; those that continue a character add none."""
        letters = _byte_letters()
        pieces = [self.model.id_to_token(token) for token in range(self.size)]
        starts = [sum((letters[letter] & 0xC0) != 0x80 for letter in piece) for piece in pieces]
        return torch.tensor(starts, dtype=torch.float64)

    def encode(self, text: str) -> list[int]:
        return list(self.model.encode(text).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.model.decode(list(tokens)))


def tokeniser(way: Way, texts: Sequence[str], vocabulary: int | None) -> Tokeniser:
    """The tokeniser of this name, made for these texts. vocabulary: tokens of byte-pair, at most; None: 512."""
    if way not in get_args(Way):
        raise unknown("tokens:", way, get_args(Way))
    if way == "byte-pair":
        return BytePairs(texts, _VOCABULARY if vocabulary is None else vocabulary)
    if vocabulary is not None:
        raise SettingError(f'vocabulary = {vocabulary}: characters are as many as occur; set tokens = "byte-pair", too')
    return Characters(texts)


def _package() -> Any:
    try:
        return importlib.import_module("tokenizers")
    except ImportError:
        raise not_installed('tokens = "byte-pair" needs tokenizers', "llm", '; or use "characters"') from None


def _byte_letters() -> dict[str, int]:
    """The printable character that stands for each byte in a byte-level vocabulary, as GPT-2 has it."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(b): b for b in plain} | {chr(256 + at): byte for at, byte in enumerate(others)}
