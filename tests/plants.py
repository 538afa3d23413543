"""Planted mistakes: each stands in the place of something that exists, and none is caught by a mistake of its own."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

OWN = ("TypeError", "AttributeError", "NameError")  # of a plant whose surroundings have changed


def armed(where: Any, name: str, what: Any) -> None:
    """Raises `AttributeError` unless there is something of this name, and `what` can be called as it is."""
    place = f"{where.__name__}.{name}"
    before = inspect.getattr_static(where, name, None)
    if not callable(before):
        raise AttributeError(f"{place} does not exist: a mistake planted there changes nothing")
    wanted = inspect.signature(before).parameters.values()
    by_name = {each.name: None for each in wanted if each.kind is each.KEYWORD_ONLY}
    by_place = [None for each in wanted if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    try:
        inspect.signature(what).bind(*by_place, **by_name)
    except TypeError as error:
        raise AttributeError(f"{place} is called in another way than the mistake planted there: {error}") from None


def overrides(plant: type, base: type) -> None:
    """Raises `AttributeError` unless every method of a planted class is one of the class that it stands for."""
    for each in plant.__mro__[: plant.__mro__.index(base)]:
        for name, what in vars(each).items():
            if inspect.isfunction(what):
                armed(base, name, what)


def caught(violations: Sequence[str]) -> bool:
    """Whether a planted mistake has shown."""
    own = [violation for violation in violations if any(error in violation for error in OWN)]
    assert not own, f"the plant does not fit what it is planted in: {own[0]}"
    return bool(violations)
