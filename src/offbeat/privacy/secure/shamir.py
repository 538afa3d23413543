"""Shamir's secret sharing: any t of n shares give a secret of 32 bytes, and fewer say nothing about it.

A secret is the value at 0 of a polynomial of degree t − 1 over the integers modulo a prime; the share of number x, from
1 on, is its value at x. The caller draws the other coefficients uniformly below the prime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

PRIME = 2**256 + 297  # the smallest prime above every secret of 32 bytes
SECRET, SHARE = 32, 33  # bytes


def split(secret: bytes, coefficients: Sequence[int], shares: int, prime: int = PRIME) -> list[int]:
    """Shares 1 to `shares` of a secret; as many of them as there are coefficients, and one more, give it."""
    polynomial = [*reversed(coefficients), int.from_bytes(secret, "big")]
    found = []
    for x in range(1, shares + 1):
        value = 0
        for coefficient in polynomial:  # Horner's rule, from the highest power down
            value = (value * x + coefficient) % prime
        found.append(value)
    return found


def combine(shares: Mapping[int, int], prime: int = PRIME) -> int:
    """The value at 0 of the polynomial through these shares, by number; it is the secret if they are enough."""
    weights = _weights(tuple(shares), prime)
    return sum(weight * value for weight, value in zip(weights, shares.values(), strict=True)) % prime


@lru_cache(maxsize=8)  # the secrets of a cohort are all put together from the same members' shares
def _weights(numbers: tuple[int, ...], prime: int) -> list[int]:
    """Lagrange's weights at 0."""
    found = []
    for x in numbers:
        above, below = 1, 1
        for other in numbers:
            if other != x:
                above, below = above * other % prime, below * (other - x) % prime
        found.append(above * pow(below, -1, prime) % prime)
    return found
