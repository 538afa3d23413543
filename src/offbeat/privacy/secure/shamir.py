"""Shamir's secret sharing: any t of n shares give a secret of 32 bytes, and fewer say nothing about it.

A secret is the value at 0 of a polynomial of degree t − 1 over the integers modulo a prime; the share of number x, from
1 on, is its value at x. The caller draws the other coefficients uniformly below the prime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest

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


def corrected(shares: Mapping[int, int], enough: int, prime: int = PRIME) -> tuple[int, list[int]] | None:
    """(the secret, the numbers of the right shares) if up to half of the shares beyond `enough` are wrong.

    If more are, None or something else.

    Gao's decoder of Reed-Solomon codes: of the polynomial through all shares and the one that is 0 at all of them,
    Euclid's algorithm gives the one whose zeros are the wrong shares. It takes as many steps as there are pairs of
    shares, whichever are wrong.
    """
    through, zero = _through(shares, prime)
    before, now = [zero, list[int]()], [through, [1]]  # (remainder, its factor of `through`)
    while 2 * (len(now[0]) - 1) >= len(shares) + enough:
        quotient, rest = _divided(before[0], now[0], prime)
        before, now = now, [rest, _minus_product(before[1], quotient, now[1], prime)]
    found, rest = _divided(now[0], now[1], prime)
    if rest or len(found) > enough:
        return None
    return (found[0] if found else 0), [x for x, y in shares.items() if _at(found, x, prime) == y]


def _through(points: Mapping[int, int], prime: int) -> tuple[list[int], list[int]]:
    """Coefficients, the lowest first, of the polynomials through these points and through 0 at all of them (Newton)."""
    found, zero = list[int](), [1]
    for x, y in points.items():
        factor = (y - _at(found, x, prime)) * pow(_at(zero, x, prime), -1, prime) % prime
        found = [(a + factor * b) % prime for a, b in zip_longest(found, zero, fillvalue=0)]
        zero = [(a - x * b) % prime for a, b in zip([0, *zero], [*zero, 0], strict=True)]
    return _trimmed(found), zero


def _at(polynomial: Sequence[int], x: int, prime: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % prime
    return value


def _divided(one: Sequence[int], other: Sequence[int], prime: int) -> tuple[list[int], list[int]]:
    """(quotient, remainder)"""
    rest, quotient = [*one], [0] * max(0, len(one) - len(other) + 1)
    inverse = pow(other[-1], -1, prime)
    for at in reversed(range(len(quotient))):
        factor = quotient[at] = rest[at + len(other) - 1] * inverse % prime
        for place, coefficient in enumerate(other, at):
            rest[place] = (rest[place] - factor * coefficient) % prime
    return quotient, _trimmed(rest)


def _minus_product(start: Sequence[int], one: Sequence[int], other: Sequence[int], prime: int) -> list[int]:
    """start − one · other"""
    found = [*start, *[0] * max(0, len(one) + len(other) - 1 - len(start))]
    for at, a in enumerate(one):
        for place, b in enumerate(other, at):
            found[place] -= a * b
    return _trimmed([value % prime for value in found])


def _trimmed(polynomial: list[int]) -> list[int]:
    while polynomial and not polynomial[-1]:
        polynomial.pop()
    return polynomial


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
