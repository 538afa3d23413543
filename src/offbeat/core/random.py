"""Random numbers without state: every draw is a function of a key and a counter.

A key is made of (seed, stream, client, job, ...). What is drawn therefore depends on *what* it is for and never on
the order in which an executor asks, so one seed gives the same events and the same mini-batches on every executor,
device and number of workers. The generator is SplitMix64: draw number i of a key is `mix(key + (i + 1) · GOLDEN)`.
The same function is written twice, for Python integers and for whole arrays (numpy and torch alike); a test
checks that the two agree.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable
from statistics import NormalDist
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

# One name for each purpose; two purposes never share a key.
DELAY, SERVER, SAMPLE, NOISE, MODEL, SPLIT, CLIENT, PRESENCE, PROBLEM, AVAILABLE, PERSONAL, SHARE, TASK = range(1, 14)
ATTACK, PRIVACY = 14, 15

TURN = threading.RLock()  # who seeds the generators that all threads of a process share has this one

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_A, _B = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_NORMAL = NormalDist()

T = TypeVar("T")
Array = TypeVar("Array", npt.NDArray[np.int64], torch.Tensor)


def mix(z: int) -> int:
    """SplitMix64's finaliser: a bijection of 64-bit integers that looks random."""
    z = ((z ^ (z >> 30)) * _A) & _MASK
    z = ((z ^ (z >> 27)) * _B) & _MASK
    return z ^ (z >> 31)


def key(seed: int, stream: int, *parts: int) -> int:
    """The 64-bit key of (seed, stream, parts...).

    >>> key(0, DELAY, 3, 1) == key(0, DELAY, 3, 1), key(0, DELAY, 3, 1) == key(0, DELAY, 1, 3)
    (True, False)
    """
    k = mix((seed * _GOLDEN + stream) & _MASK)
    for part in parts:
        k = mix(k ^ ((part + 1) * _GOLDEN & _MASK))
    return k


def longer(key: int, part: int) -> int:
    """The key of a list with one more part.

    >>> longer(key(0, DELAY, 3), 1) == key(0, DELAY, 3, 1)
    True
    """
    z = key ^ ((part + 1) * _GOLDEN & _MASK)
    z = ((z ^ (z >> 30)) * _A) & _MASK
    z = ((z ^ (z >> 27)) * _B) & _MASK
    return z ^ (z >> 31)


def signed(z: int) -> int:
    """The same 64 bits as a signed integer, for int64 arrays."""
    return z - (1 << 64) if z >> 63 else z


def _wrap(z: int) -> int:
    return signed(z & _MASK)


_A64, _B64, _GOLDEN64 = _wrap(_A), _wrap(_B), _wrap(_GOLDEN)


def bits(keys: Array, counters: Array) -> Array:
    """Draw number `counters` of each key, as int64 holding 64 random bits (numpy or torch, broadcast together)."""
    return _mixed(keys + (counters + 1) * _GOLDEN64)


def draw(keys: Array, counter: int) -> Array:
    """The same for one counter, a Python integer that may be large."""
    return _mixed(keys + _wrap((counter + 1) * _GOLDEN))


def further(keys: Any, *parts: Any) -> npt.NDArray[np.int64]:
    """The keys of longer lists of parts, for whole columns at once, as signed integers.

    >>> [int(k) for k in further([key(0, SAMPLE, 3)], [7], [1])] == [signed(key(0, SAMPLE, 3, 7, 1))]
    True
    """
    k = np.array(keys, dtype=np.uint64).view(np.int64)
    for part in parts:
        k = _mixed(k ^ ((np.array(part, dtype=np.int64) + 1) * _GOLDEN64))
    return k


def _mixed(z: Array) -> Array:
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * _A64  # the mask turns the arithmetic shift into a logical one
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * _B64
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


def below(random_bits: Array, bound: Array | int) -> Array:
    """Integers in [0, bound) from 64 random bits each (the upper 32 are used; bound < 2^31)."""
    return (((random_bits >> 32) & 0xFFFFFFFF) * bound) >> 32


def unit(random_bits: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Numbers in (0, 1) from 64 random bits each."""
    return (((random_bits >> 12) & ((1 << 52) - 1)).to(torch.float64) + 0.5).mul_(2.0**-52).to(dtype)


def normal_numbers(key: int, count: int) -> torch.Tensor:
    """So many independent standard normal numbers of one key, in double precision, by Box and Muller."""
    half = -(-count // 2)
    drawn = unit(bits(torch.tensor(signed(key)), torch.arange(2 * half))).view(2, half)
    return box_muller(drawn[0], drawn[1])[:count]


def finer(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """Numbers in (0, 1] from 104 random bits each, for lengths of pairs of normal numbers.

    With 52 bits a length takes few values beyond seven standard deviations, and none beyond 8.6: one pair in 3e10 would
    be wider apart from the next possible one than the grid of what is released, and tell which sum it was added to.
    """
    return (unit(high) - 0.5 * 2.0**-52) + unit(low) * 2.0**-52


def system_bits(count: int) -> torch.Tensor:
    """So many whole numbers of 64 random bits each, from the operating system: nobody can draw them again."""
    return torch.frombuffer(bytearray(os.urandom(8 * count)), dtype=torch.int64)


def box_muller(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Twice as many standard normal numbers from two rows of numbers in (0, 1)."""
    length, angle = torch.sqrt(-2.0 * torch.log(first)), (2.0 * math.pi) * second
    return torch.cat([length * torch.cos(angle), length * torch.sin(angle)])


def uniform(key: int) -> float:
    """The first number in (0, 1) that `Stream(key)` gives.

    >>> uniform(7) == Stream(7).uniform()
    True
    """
    z = (key + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * _A) & _MASK
    z = ((z ^ (z >> 27)) * _B) & _MASK
    return (((z ^ (z >> 31)) >> 12) + 0.5) * 2.0**-52


class Stream:
    """The draws of one key, one after the other.

    >>> a, b = Stream(key(0, DELAY, 7)), Stream(key(0, DELAY, 7))
    >>> a.uniform() == b.uniform(), a.below(10) == b.below(10), a.uniform() != a.uniform()
    (True, True, True)
    """

    __slots__ = ("_state",)

    def __init__(self, key: int) -> None:
        self._state = key

    def bits(self) -> int:
        """64 random bits."""
        self._state = z = (self._state + _GOLDEN) & _MASK
        z = ((z ^ (z >> 30)) * _A) & _MASK
        z = ((z ^ (z >> 27)) * _B) & _MASK
        return z ^ (z >> 31)

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """A number in (low, high)."""
        self._state = z = (self._state + _GOLDEN) & _MASK
        z = ((z ^ (z >> 30)) * _A) & _MASK
        z = ((z ^ (z >> 27)) * _B) & _MASK
        return low + (high - low) * (((z ^ (z >> 31)) >> 12) + 0.5) * 2.0**-52

    def below(self, bound: int) -> int:
        """An integer in [0, bound)."""
        return (self.bits() * bound) >> 64

    def sample(self, items: Iterable[T], count: int) -> list[T]:
        """Up to so many different ones of these, in a random order: the first steps of a shuffle."""
        if isinstance(items, list) and 8 * count < len(items):
            return self._few(items, count)
        found = list(items)
        count = max(0, min(count, len(found)))
        for at in range(count):
            other = at + self.below(len(found) - at)
            found[at], found[other] = found[other], found[at]
        return found[:count]

    def _few(self, items: list[T], count: int) -> list[T]:
        """The same draws as those of `sample`, without a copy of a long list: only what the shuffle moves is noted."""
        moved, chosen = dict[int, T](), list[T]()
        for at in range(count):
            other = at + self.below(len(items) - at)
            chosen.append(moved.get(other, items[other]))
            moved[other] = moved.get(at, items[at])
        return chosen

    def exponential(self, mean: float = 1.0) -> float:
        """An exponential time with this mean."""
        return -mean * math.log(self.uniform())

    def normal(self, mean: float = 0.0, std: float = 1.0) -> float:
        """A normal number, by the inverse of its distribution function."""
        return mean + std * _NORMAL.inv_cdf(self.uniform())
