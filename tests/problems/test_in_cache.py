"""Softmax regression on a CPU: the gradient worked out client by client in numpy is what differentiating gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from offbeat.core.random import key, signed
from offbeat.data.base import Dataset
from offbeat.models.linear import Softmax
from offbeat.problems.rows import Rows
from offbeat.problems.supervised import Supervised

SHARDS = [np.arange(0, 17), np.arange(17, 19), np.array([5, 40, 3]), np.array([21])]
KEYS = [signed(key(0, 3, c)) for c in range(4)]


def data(kind: str) -> Dataset:
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(5, (50,), generator=g)
    if kind == "bytes":  # 0 … 255, as images are stored
        x, scale = torch.randint(256, (50, 1, 3, 4), generator=g, dtype=torch.uint8), 1.0 / 255.0
    else:
        x, scale = torch.randn(50, 1, 3, 4, generator=g), 1.0
    return Dataset.pairs(kind, x, labels, x, labels, classes=5, scale=scale)


def problem(kind: str, bias: bool, **settings: Any) -> Supervised:
    return Supervised(data(kind), Softmax((1, 3, 4), 5, bias=bias), SHARDS, **settings)


def differentiated(p: Supervised, w: torch.Tensor, client: int, which: np.ndarray) -> torch.Tensor:
    """∇ share · (mean cross-entropy + l2/2·|w|²), by autograd."""
    at = w.clone().requires_grad_()
    x = p.train["x"][which].float() * p.scale
    weight, bias = at[:60].view(5, 12), at[60:]
    logits = x.flatten(1) @ weight.T + (bias if len(bias) else 0.0)
    value = cross_entropy(logits, p.train["y"][which]) + 0.5 * p.l2 * (at * at).sum()
    (g,) = torch.autograd.grad(value * p.shards.shares[client], at)
    return g


@pytest.mark.parametrize("kind", ["bytes", "numbers"])
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True], ids=["alike", "weighted"])
@pytest.mark.parametrize("batch", [None, 6], ids=["all data", "mini-batch"])
def test_it_is_the_gradient(kind: str, bias: bool, l2: float, weighted: bool, batch: int | None) -> None:
    p = problem(kind, bias, l2=l2, weighted=weighted)
    w = torch.randn(4, p.dim, generator=torch.Generator().manual_seed(1))
    asked = p.oracle([0, 1, 2, 3], KEYS, 3, batch, False)
    assert asked._in_cache
    drawn = None if batch is None else asked.draws.indices(2, 1).numpy()  # type: ignore[union-attr]
    for client in range(4):
        mine = SHARDS[client] if drawn is None else drawn[client]
        found = asked.gradient(w, 2, sample=1)[client]
        torch.testing.assert_close(found, differentiated(p, w[client], client, mine), rtol=1e-4, atol=1e-6)
        found = asked.full(w)[client]
        torch.testing.assert_close(found, differentiated(p, w[client], client, SHARDS[client]), rtol=1e-4, atol=1e-6)


def test_the_way_of_a_gpu_gives_the_same() -> None:
    p = problem("bytes", True, l2=0.1, weighted=True)
    w = torch.randn(4, p.dim, generator=torch.Generator().manual_seed(2))
    for batch in (None, 6):
        asked = p.oracle([0, 1, 2, 3], KEYS, 3, batch, False)
        torch.testing.assert_close(
            asked.gradient(w, 1), asked._slope(w, asked._gather(1, 0), batch is None), rtol=1e-4, atol=1e-6
        )


def test_large_logits_do_not_overflow() -> None:
    p = problem("bytes", False)
    w = 1e4 * torch.randn(4, p.dim, generator=torch.Generator().manual_seed(3))
    found = p.oracle([0, 1, 2, 3], KEYS, 1, None, False).gradient(w, 0)
    assert torch.isfinite(found).all()
    for client in range(4):
        torch.testing.assert_close(found[client], differentiated(p, w[client], client, SHARDS[client]))


def test_what_it_is_given_and_what_it_gave_before_stay_as_they_are() -> None:
    p = problem("bytes", True, l2=0.1, weighted=True)
    w = torch.randn(4, p.dim, generator=torch.Generator().manual_seed(4))
    before, asked = w.clone(), p.oracle([0, 1, 2, 3], KEYS, 3, 6, False)
    first = asked.gradient(w, 0)
    kept = first.clone()
    asked.gradient(w, 1)
    asked.full(w)
    assert torch.equal(w, before)
    assert torch.equal(first, kept)
    assert torch.equal(asked.gradient(w, 0), kept)


def test_rows_that_are_part_of_something_larger_are_read_as_they_are() -> None:
    p = problem("numbers", False)
    large = torch.randn(p.dim, 8, generator=torch.Generator().manual_seed(5))
    w = large.T[::2]  # neither contiguous nor alone
    asked = p.oracle([0, 1, 2, 3], KEYS, 1, 6, False)
    assert torch.equal(asked.gradient(w, 0), asked.gradient(w.contiguous(), 0))


def test_models_that_are_not_in_closed_form_go_another_way() -> None:
    mlp = Supervised(data("numbers"), torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5)), SHARDS)
    assert not Rows(mlp, [0], KEYS[:1], 1, 6, False)._in_cache
