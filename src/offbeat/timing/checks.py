"""The checks that the descriptions share: a wrong number is an error that names it and says what would do."""

from __future__ import annotations

import math
from typing import Any

from offbeat.core.errors import SettingError


def number(name: str, value: Any) -> float:
    """The value, if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SettingError(f"{name} = {value!r}: expected a finite number")
    return float(value)


def positive(name: str, value: Any) -> float:
    """The value, if it is a number above zero."""
    if number(name, value) <= 0:
        raise SettingError(f"{name} = {value!r}: must be above 0")
    return float(value)


def at_least_zero(name: str, value: Any) -> float:
    """The value, if it is a number of at least zero."""
    if number(name, value) < 0:
        raise SettingError(f"{name} = {value!r}: must not be negative")
    return float(value)


def share(name: str, value: Any) -> float:
    """The value, if it is in (0, 1]."""
    if not 0 < number(name, value) <= 1:
        raise SettingError(f"{name} = {value!r}: a share lies above 0 and at most at 1")
    return float(value)


def pair(name: str, value: Any) -> tuple[float, float]:
    """The two numbers low ≤ high of a range that starts above zero."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise SettingError(f"{name} = {value!r}: expected two numbers, the lowest and the highest")
    low, high = positive(f"{name}[0]", value[0]), positive(f"{name}[1]", value[1])
    if low > high:
        raise SettingError(f"{name} = {value!r}: the first number must not exceed the second")
    return low, high


def one_each(name: str, values: tuple[float, ...], clients: int) -> list[float]:
    """The values, if there is exactly one for each client."""
    if len(values) != clients:
        raise SettingError(f"{name} lists {len(values)} values for {clients} clients; give one for each client")
    return list(values)
