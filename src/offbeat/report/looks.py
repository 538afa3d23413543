"""What lines look like outside the page: colours that are safe for colour-blind readers, and dashes."""

from __future__ import annotations

from typing import Any

# Okabe and Ito's, a grey and a purple
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#8c4b9e")
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.5), (7, 1.5, 1.5, 1.5))  # in widths of the line
LOOKS = len(COLOURS) * len(DASHES)


def colour(at: int) -> str:
    """Of line number `at`."""
    return COLOURS[at % len(COLOURS)]


def dash(at: int) -> tuple[float, ...]:
    """Of line number `at`, in widths of the line; empty: it is solid."""
    return DASHES[at // len(COLOURS) % len(DASHES)]


def look(at: int) -> dict[str, Any]:
    """Of line number `at`, as matplotlib calls it."""
    return {"color": colour(at), "linestyle": (0, dash(at)) if dash(at) else "-"}
