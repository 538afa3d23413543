"""Compression of what clients send: top-k, random-k, the sign, QSGD's levels, and rounding as in QuAFL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from offbeat.core.compressor import Code, Compressor
from offbeat.core.errors import Count, SettingError, Share
from offbeat.core.vectors import Vector, lengths

Uniform = Callable[[], Vector]
WIDEST = 16  # bits of a number


# A few numbers of many


@dataclass(frozen=True)
class Sparse(Compressor):
    """Some numbers as they are, and 0 for the others.

    share: part of the numbers that is sent, k/d; at least one.
    """

    share: Share

    def kept(self, dim: int) -> int:
        """k."""
        return max(1, round(self.share * dim))

    def importance(self, x: Vector, uniform: Uniform) -> Vector:
        """By which the numbers are chosen, [n, d]."""
        raise NotImplementedError

    def factor(self, dim: int) -> float:
        """What is sent of a number that was chosen."""
        return 1.0

    def code(self, x: Vector, uniform: Uniform) -> Code:
        chosen = largest(self.importance(x, uniform), self.kept(x.shape[1]))
        factor = self.factor(x.shape[1])
        return Code(chosen, x if factor == 1.0 else factor * x)

    def value(self, code: Code) -> Vector:
        return torch.where(code.which, code.numbers, torch.zeros_like(code.numbers))

    def size(self, dim: int, width: int = 4) -> int:
        return self.kept(dim) * width + self._places(dim)

    def _places(self, dim: int) -> int:
        """Bytes that tell which numbers: a bit for every number or 4 bytes for every one sent, or nothing for all."""
        kept = self.kept(dim)
        return 0 if kept == dim else min(-(-dim // 8), 4 * kept)

    def pack(self, code: Code) -> Vector:
        rows, dim = code.which.shape
        kept, places = self.kept(dim), self._places(dim)
        numbers = code.numbers[code.which].view(rows, kept).cpu()
        parts = [numbers.view(torch.uint8)]
        if places == 4 * kept:
            at = code.which.nonzero()[:, 1].view(rows, kept).to(torch.int32)
            parts.insert(0, at.cpu().view(torch.uint8))
        elif places:
            parts.insert(0, to_bits(code.which, 1))
        return torch.cat(parts, 1)

    def unpack(self, packed: Vector, like: Vector) -> Code:
        rows, dim = like.shape
        kept, places = self.kept(dim), self._places(dim)
        head, tail = packed[:, :places], packed[:, places:]
        which = torch.ones(rows, dim, dtype=torch.bool)
        if places == 4 * kept:
            at = _apart(head).view(torch.int32).long()
            if bool((at < 0).any()) or bool((at >= dim).any()) or bool((at.diff(dim=1) <= 0).any()):
                raise ValueError("indices that are out of range or not in order")
            which = torch.zeros(rows, dim, dtype=torch.bool).scatter_(1, at, True)
        elif places:
            which = from_bits(head, dim, 1).bool()
            if bool((which.sum(1) != kept).any()):
                raise ValueError(f"not {kept} places")
        numbers = torch.zeros(rows, dim, dtype=like.dtype)
        numbers[which] = _apart(tail).view(like.dtype).flatten()
        return Code(which, numbers)


@dataclass(frozen=True)
class LargestK(Sparse):
    """The numbers with the largest absolute values; of equal ones, the first."""

    def importance(self, x: Vector, uniform: Uniform) -> Vector:
        return x.abs()


@dataclass(frozen=True)
class RandomK(Sparse):
    """Numbers chosen at random, times d/k so that they are right on average; with feedback as they are."""

    def importance(self, x: Vector, uniform: Uniform) -> Vector:
        return uniform()

    def factor(self, dim: int) -> float:
        return 1.0 if self.feedback else dim / self.kept(dim)


def largest(rows: Vector, count: int) -> Vector:
    """Where the so many largest numbers of each row are; of equal ones, the first, however many rows there are.

    >>> largest(torch.tensor([[1.0, 3.0, 1.0]]), 2)
    tensor([[ True,  True, False]])
    """
    if count == rows.shape[1]:
        return torch.ones_like(rows, dtype=torch.bool)
    least = torch.topk(rows, count, dim=-1).values[:, -1:]
    above, level = rows > least, rows == least
    return above | (level & (level.cumsum(-1) <= count - above.sum(-1, keepdim=True)))


# All numbers, in few bits each


@dataclass(frozen=True)
class Levels(Compressor):
    """One of a few levels for every number, and a scale for each row."""

    @property
    def count(self) -> int:
        """How many levels there are."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        """Bits of a level."""
        return max(1, (self.count - 1).bit_length())

    def code(self, x: Vector, uniform: Uniform) -> Code:
        found = self.rounded(x, uniform)
        if self.feedback:
            value = self.value(found)
            length = (value * value).sum(-1, keepdim=True)
            along = (value * x).sum(-1, keepdim=True) / torch.clamp(length, min=torch.finfo(x.dtype).tiny)
            found = Code(found.which, found.numbers * along)
        return found

    def rounded(self, x: Vector, uniform: Uniform) -> Code:
        """Levels from 0 on, and scales [n, 1]."""
        raise NotImplementedError

    def size(self, dim: int, width: int = 4) -> int:
        return -(-dim * self.width // 8) + width

    def pack(self, code: Code) -> Vector:
        return torch.cat([code.numbers.cpu().contiguous().view(torch.uint8), to_bits(code.which, self.width)], 1)

    def unpack(self, packed: Vector, like: Vector) -> Code:
        width = like.element_size()
        numbers = _apart(packed[:, :width]).view(like.dtype)
        which = from_bits(packed[:, width:], like.shape[1], self.width)
        if bool((which >= self.count).any()):
            raise ValueError(f"a level beyond {self.count - 1}")
        return Code(which.to(like.dtype), numbers)


@dataclass(frozen=True)
class Signs(Levels):
    """The signs, times the mean of the absolute values; 0 counts as positive."""

    @property
    def count(self) -> int:
        return 2

    def rounded(self, x: Vector, uniform: Uniform) -> Code:
        return Code((x >= 0).to(x.dtype), x.abs().mean(dim=-1, keepdim=True))

    def value(self, code: Code) -> Vector:
        return code.numbers * (2.0 * code.which - 1.0)


@dataclass(frozen=True)
class QSGD(Levels):
    """Every number rounded at random to a multiple of length/levels of its row, on average to itself.

    levels: levels from 0 to the row's Euclidean length, s.

    Differs from the paper: a level takes the same number of bits everywhere instead of Elias's code, and the whole
    vector is one bucket.
    """

    levels: Count = 7

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width > WIDEST:
            raise SettingError(f"levels = {self.levels}: must be at most {2 ** (WIDEST - 1) - 1}")

    @property
    def count(self) -> int:
        return 2 * self.levels + 1

    def rounded(self, x: Vector, uniform: Uniform) -> Code:
        length = lengths(x)
        scaled = x.abs() / torch.clamp(length, min=torch.finfo(x.dtype).tiny) * self.levels
        level = torch.clamp(torch.floor(scaled + uniform()), max=self.levels)
        return Code(self.levels + x.sign() * level, length)

    def value(self, code: Code) -> Vector:
        return (code.numbers / self.levels) * (code.which - self.levels)


@dataclass(frozen=True)
class Quantise(Levels):
    """Every number rounded at random to one of 2^bits levels between ± the largest, on average to itself.

    bits: bits per number.
    """

    bits: Count = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits > WIDEST:
            raise SettingError(f"bits = {self.bits}: must be at most {WIDEST}")

    @property
    def count(self) -> int:
        return 1 << self.bits

    def rounded(self, x: Vector, uniform: Uniform) -> Code:
        return nearest_levels(x, uniform(), self.bits)

    def value(self, code: Code) -> Vector:
        return code.which * _spacing(code.numbers, self.bits) - code.numbers


def nearest_levels(away: Vector, uniform: Vector, bits: int) -> Code:
    """Each number as one of 2^bits levels that span the row's largest, and that span."""
    span = away.abs().amax(dim=-1, keepdim=True)
    level = torch.floor((away + span) / _spacing(span, bits) + uniform)
    return Code(torch.clamp(level, max=2**bits - 1), span)


def _spacing(span: Vector, bits: int) -> Vector:
    return torch.clamp(2.0 * span / (2**bits - 1), min=torch.finfo(span.dtype).tiny)


def quantise(x: Vector, reference: Vector, uniform: Vector, bits: int) -> Vector:
    """x rounded at random, and on average to itself, to one of 2^bits levels around a reference that both sides know.

    Rows [n, d]; the levels span the row's largest distance from the reference, so the error shrinks with it.
    """
    level, span = nearest_levels(x - reference, uniform, bits)
    return reference + level * _spacing(span, bits) - span


# Bits


def to_bits(which: Vector, width: int) -> Vector:
    """Whole numbers [n, d] as bytes [n, …], so many bits each, the lowest first.

    >>> to_bits(torch.tensor([[1, 2, 3]]), 2).tolist()
    [[57]]
    """
    numbers = which.cpu().numpy().astype(np.uint16)
    bits = ((numbers[..., None] >> np.arange(width, dtype=np.uint16)) & 1).astype(np.uint8)
    return torch.from_numpy(np.packbits(bits.reshape(len(numbers), -1), axis=1, bitorder="little"))


def from_bits(packed: Vector, dim: int, width: int) -> Vector:
    """The whole numbers [n, dim] again."""
    flat = np.unpackbits(packed.numpy(), axis=1, count=dim * width, bitorder="little")
    bits = flat.reshape(len(packed), dim, width).astype(np.int64)
    return torch.from_numpy((bits << np.arange(width)).sum(axis=2))


def _apart(packed: Vector) -> Vector:
    """A copy that begins where numbers may."""
    return packed.clone(memory_format=torch.contiguous_format)
