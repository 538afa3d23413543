"""What clients' evaluations on their own data come to, and what one client can claim.

A claim is a number of samples, their summed loss and, by metric, the sums that the metric is a function of. A client
counts as much as it has to count, but at most WEIGHT times as much as the median client: beyond, its sums are scaled
down. A mean loss beyond LOSS counts as nan. The run goes by the value of a metric without the client that helps it
most, so that none of them ends a run or a task alone; it has diverged if at least half of the members say so and none
has a finite loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isnan
from statistics import median_low
from typing import NamedTuple

import torch
from torch import Tensor

from offbeat.core.metric import LOSS as OF_LOSS, Metric
from offbeat.problems.metrics import Mean, Score

WEIGHT = 4
LOSS = 1e6
_ROUNDING = 1e-9

Sums = Mapping[str, Sequence[float]]  # by metric
Claim = tuple[int, float, Sums]  # (samples, summed loss: nan if it is not finite, sums)


class Verdict(NamedTuple):
    """metrics: over all clients.   sure: the same without the client that helps each most; None: the same."""

    metrics: dict[str, float]
    sure: dict[str, float] | None
    diverged: bool


class _MeanLoss(Mean):
    name = OF_LOSS.name

    def state(self, output: Tensor, target: Tensor) -> Tensor:
        raise NotImplementedError


def objection(score: Score, sums: Sequence[float]) -> str:
    """Why these cannot be a client's sums of a metric; "" if they can."""
    if score.size is not None and len(sums) != score.size:
        return f"{len(sums)} sums of {score.name}, not {score.size}"
    if not score.signed and any(each < 0 for each in sums):
        return f"a sum of {score.name} is negative"
    try:
        return out_of_range(score, score.value(torch.tensor(sums, dtype=torch.float64)))
    except Exception as error:  # a metric of the user's own
        return f"{len(sums)} sums are none of {score.name}: {error}"


def out_of_range(metric: Metric, value: float) -> str:
    """Why this cannot be a metric's value; "" if it can."""
    outside = metric.share and not isnan(value) and not -_ROUNDING <= value <= 1 + _ROUNDING
    return f"{metric.name} is a share, not {value:g}" if outside else ""


def weigh(claims: Mapping[int, Claim], members: int, scores: Sequence[Score]) -> Verdict | None:
    """What the clients that have answered say together; None if that is nothing.

    members: clients on the roster.   scores: the task's metrics.
    """
    counted = [claim for claim in claims.values() if claim[0]]
    if not counted:
        return None
    metrics, sure = dict[str, float](), dict[str, float]()
    for score in scores:
        said = [
            (torch.tensor(sums[score.name], dtype=torch.float64), n) for n, _, sums in counted if score.name in sums
        ]
        if (found := _together(score, said, members)) is not None:
            metrics[score.name], sure[score.name] = found
    losses = [(torch.tensor([loss, n], dtype=torch.float64), n) for n, loss, _ in counted if _usable(loss / n)]
    if (found := _together(_MeanLoss(), losses, members)) is not None:
        metrics["loss"], sure["loss"] = found
    return Verdict(metrics, sure, not losses and 2 * len(counted) >= members)


def _together(score: Score, said: Sequence[tuple[Tensor, int]], members: int) -> tuple[float, float] | None:
    """(value, value without the client that helps most) of these sums; None if they have none."""
    weighed = [(state, weight) for state, total in said if (weight := score.weight(state, total)) > 0]
    usual = Counter(len(state) for state, _ in weighed).most_common(1)
    weighed = [(state, weight) for state, weight in weighed if len(state) == usual[0][0]]
    if not weighed:
        return None
    most = WEIGHT * median_low([weight for _, weight in weighed])
    states = [state if weight <= most else state * (most / weight) for state, weight in weighed]
    whole = torch.stack(states).sum(0)
    value = score.value(whole)
    if isnan(value):
        return None
    if len(states) == 1:
        nothing = float(not score.higher) if score.share else score.worst
        return value, value if members == 1 else nothing
    others = [each for state in states if not isnan(each := score.value(whole - state))]
    return value, (min if score.higher else max)([value, *others])


def _usable(mean: float) -> bool:
    return not isnan(mean) and abs(mean) <= LOSS
