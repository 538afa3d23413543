"""Whether a model that is to predict the token that follows sees that token already, tried on two samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from offbeat.core.errors import DataError, ModelError
from offbeat.problems import objective as losses

if TYPE_CHECKING:
    from offbeat.problems.supervised import Supervised

_SEEN = 1e-4  # of the largest score: a larger change is no rounding


def check(problem: Supervised, call: Callable[..., Any], batch: Sequence[Tensor]) -> None:
    """Raise if the target is shifted twice, or if scores depend on later tokens."""
    objective = problem.objective
    x, y = batch[0], batch[objective.target]
    if objective.inputs != 1 or not windows(x, y):
        return
    following = _same(y[:, :-1], x[:, 1:])
    if objective.function is losses.next_token and following and not _same(y, x):
        raise DataError(
            f"{problem.data.target!r} is already the token that follows in {problem.data.inputs[0]!r}, and the loss "
            'next-token looks one further; use the loss "cross-entropy"'
        )
    if objective.function is losses.next_token or (objective.function is losses.cross_entropy and following):
        _foreseen(problem, call, batch)


def windows(x: Tensor, y: Tensor) -> bool:
    """Whether these can be windows of tokens and a target at every place."""
    return not x.is_floating_point() and x.dim() == 2 and x.shape == y.shape and x.shape[1] > 1


def _same(target: Tensor, tokens: Tensor) -> bool:
    """Whether the labels that count are these tokens."""
    count = target != losses.IGNORED
    return bool(count.any()) and torch.equal(target[count], tokens[count])


@torch.no_grad()
def _foreseen(problem: Supervised, call: Callable[..., Any], batch: Sequence[Tensor]) -> None:
    """Raise if another last token changes the scores before it."""
    x, least, most = batch[0], batch[0].min(), batch[0].max()
    if least == most:
        return
    other = x.clone()
    other[:, -1] = torch.where(x[:, -1] == least, most, least)
    with problem.flat.evaluating():
        before, after = (call(problem.objective.output, tokens, *batch[1:]) for tokens in (x, other))
    if before.shape[:2] != x.shape:
        return
    change = (before - after)[:, :-1].abs().max()
    if change > _SEEN * before.abs().max():
        raise ModelError(
            "the model sees the tokens that it is to predict: its scores at a place depend on later ones; mask its "
            "attention, such as with is_causal = True (of HuggingFace's encoders, settings = { is_decoder = true })"
        )
