"""Every kind of loss gives the same value and gradient by every way of computing it, and that of plain autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from objectives import CASES, KEYS, LABELS, SHARDS, Case, X, net
from torch import Tensor, nn

from offbeat.local import SGD
from offbeat.problems.supervised import Supervised
from offbeat.simulate.choose import _faster as settle_on


def plain(p: Supervised, w: Tensor, which: Tensor, client: int) -> Tensor:
    """The client's function on these samples, by nothing but the model and the loss."""
    batch = p.data.train.take(which)
    found = p.flat.apply(w, p.objective.values, *(batch[name] for name in p.objective.columns))
    if isinstance(found, tuple):
        value = found[0].sum() / found[1].sum()
    else:
        value = found.mean()
    return (value + 0.5 * p.l2 * (w * w).sum()) * float(p.shards.shares[client])


def models(p: Supervised) -> Tensor:
    return p.initial() + 0.3 * torch.randn(4, p.dim, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("weighted", [False, True], ids=["alike", "weighted"])
@pytest.mark.parametrize("name", CASES)
def test_all_ways_of_computing_agree_with_autograd(name: str, weighted: bool) -> None:
    p = CASES[name].problem(l2=0.2, weighted=weighted)
    assert p.objective.form == CASES[name].form
    w = models(p)
    for batch in (5, None):
        together = p.oracle([0, 1, 2, 3], KEYS, 2, batch, False)
        stacked, full = together.gradient(w, 1), together.full(w)
        values, curved = together.loss(w, 1), together.hvp(w, w.flip(1), 1)
        for client in range(4):
            alone = p.oracle([client], [KEYS[client]], 2, batch, False)
            mine = torch.from_numpy(SHARDS[client])
            drawn = mine if batch is None else together.draws.indices(1, 0)[client]  # type: ignore[union-attr]
            at = w[client].clone().requires_grad_()
            value = plain(p, at, drawn, client)
            (expected,) = torch.autograd.grad(value, at, create_graph=True)
            (product,) = torch.autograd.grad(expected @ w[client].flip(0), at, allow_unused=True)
            (whole,) = torch.autograd.grad(plain(p, at, mine, client), at)
            close = {"rtol": 1e-4, "atol": 1e-5}
            torch.testing.assert_close(stacked[client], expected.detach(), **close)
            torch.testing.assert_close(alone.gradient(w[[client]], 1)[0], expected.detach(), **close)
            torch.testing.assert_close(full[client], whole, **close)
            torch.testing.assert_close(alone.full(w[[client]])[0], whole, **close)
            torch.testing.assert_close(values[client], value.detach(), **close)
            torch.testing.assert_close(curved[client], product, **close)


@pytest.mark.parametrize("weighted", [False, True], ids=["alike", "weighted"])
@pytest.mark.parametrize("name", CASES)
def test_the_global_objective_is_the_mean_of_the_clients(name: str, weighted: bool) -> None:
    p = CASES[name].problem(l2=0.2, weighted=weighted)
    w = models(p)
    sizes = np.array([len(shard) for shard in SHARDS])
    shares = sizes / sizes.sum() if weighted else np.full(4, 0.25)
    for at, measured in zip(w, p.measure(w), strict=True):
        parts = [plain(p, at, torch.from_numpy(shard), c) / float(p.shards.shares[c]) for c, shard in enumerate(SHARDS)]
        expected = sum(float(share * part) for share, part in zip(shares, parts, strict=True))
        assert measured["loss"] == pytest.approx(expected, rel=1e-5)


class Undecided(nn.Module):
    """Looks at its numbers, which torch.vmap does not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net(3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x)
        return found if float(found.detach().sum()) > 0 else found * 2


def test_what_cannot_be_stacked_is_computed_one_by_one_and_says_why() -> None:
    p = Case({"x": X, "y": LABELS}, Undecided, "cross-entropy", "each").problem()
    assert "vmap" in p.unstackable
    assert not p.stacks
    w = models(p)
    together = p.oracle([0, 1, 2, 3], KEYS, 2, 5, False)
    for client in range(4):
        alone = p.oracle([client], [KEYS[client]], 2, 5, False)
        torch.testing.assert_close(together.gradient(w, 1)[client], alone.gradient(w[[client]], 1)[0])
        torch.testing.assert_close(together.hvp(w, w, 1)[client], alone.hvp(w[[client]], w[[client]], 1)[0])
    assert settle_on([p], [SGD(lr=0.1)]) == (False, f"made cannot be stacked: {p.unstackable}")
