"""Who is better than whom beyond chance, seed by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from offbeat.experiment.intervals import SeedMean, difference, estimate

Scores = Mapping[str, Sequence[float | None]]  # of each method, seed by seed


@dataclass(frozen=True)
class SuitePlace:
    """A method among others: how many of them it beats, and is beaten by, beyond the 95 % interval of the difference.

    mean: of its own score; None where a seed has none.
    """

    label: str
    mean: SeedMean | None
    wins: int
    losses: int


def versus(ours: Sequence[float | None], theirs: Sequence[float | None], higher: bool) -> int:
    """1 if ours is better beyond the interval of the difference over the seeds, -1 if worse, else 0.

    A seed without a score counts as worse than any score: one side must have all for a verdict against such a seed.
    """
    if None in ours or None in theirs:
        return (None not in ours) - (None not in theirs)
    found = difference([v for v in ours if v is not None], [v for v in theirs if v is not None])
    return found.sign if higher else -found.sign


def standings(scores: Scores, higher: bool = True) -> list[SuitePlace]:
    """All methods of a cell from best to worst, by their means; those with a seed without a score last."""
    found = []
    for label, mine in scores.items():
        verdicts = [versus(mine, theirs, higher) for other, theirs in scores.items() if other != label]
        known = [value for value in mine if value is not None]
        mean = estimate(known) if known and len(known) == len(mine) else None
        found.append(SuitePlace(label, mean, verdicts.count(1), verdicts.count(-1)))
    sign = -1.0 if higher else 1.0
    return sorted(found, key=lambda each: (each.mean is None, sign * each.mean.mean if each.mean else 0.0))
