"""Modules that are not what they seem: they train alike alone and stacked, or are refused by name."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from offbeat.core.errors import ModelError
from offbeat.models.modules import module_with
from offbeat.problems.supervised import Supervised

X = torch.randint(0, 12, (60, 6), generator=torch.Generator().manual_seed(1))
DATA = {"x": X, "y": X.sum(1) % 3}


class Base(nn.Module):
    """Tokens to scores, with something in the middle."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.inner, self.out = nn.Embedding(12, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.kept: Any = None
        self.calls = 0

    def middle(self, h: Tensor, x: Tensor) -> Tensor:
        return self.inner(h)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.middle(self.words(x), x).mean(1))


class NothingToSee(Base):
    """Some samples may look at nothing."""

    def middle(self, h: Tensor, x: Tensor) -> Tensor:
        q = self.inner(h).unsqueeze(1)
        mask = ((x % 2 == 0) & (x[:, :1] % 3 != 0))[:, None, None, :].expand(-1, 1, 6, 6)
        return functional.scaled_dot_product_attention(q, q, q, attn_mask=mask).squeeze(1)


class Recomputed(Base):
    def middle(self, h: Tensor, x: Tensor) -> Tensor:
        return checkpoint(lambda h: torch.tanh(self.inner(h)), h, use_reentrant=False)


class RecomputedWithBuffer(Recomputed):
    """The same, called in torch's way of putting other parameters into a module."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("share", torch.tensor(0.5))

    def middle(self, h: Tensor, x: Tensor) -> Tensor:
        return super().middle(h, x) * self.share


class Keeps(Base):
    """A loss looks there later."""

    def middle(self, h: Tensor, x: Tensor) -> Tensor:
        self.kept = self.inner(h)
        return self.kept


@pytest.mark.parametrize("kind", [NothingToSee, Recomputed, RecomputedWithBuffer, Keeps])
def test_gradients_are_torch_s_own_alone_and_stacked(kind: type[Base]) -> None:
    p = Supervised.split(DATA, 4, model=kind())
    w = p.initial() + 0.3 * torch.randn(3, p.dim, generator=torch.Generator().manual_seed(0))
    oracle = p.oracle(range(3), range(3), 1, 4, False)
    rows, indices = oracle.gradient(w, 0), oracle.draws.indices(0, 0)
    for i in range(3):
        alone = p.oracle([i], [i], 1, 4, False).gradient(w[i : i + 1], 0)[0]
        module = module_with(p.flat, w[i])
        functional.cross_entropy(module(p.train["x"][indices[i]]), p.train["y"][indices[i]]).backward()
        named = dict(module.named_parameters())
        wanted = torch.cat([named[name].grad.flatten() for name in p.flat.views(w[i])])
        assert (alone - wanted).norm() < 1e-5 * wanted.norm()
        assert (rows[i] - wanted).norm() < 1e-5 * wanted.norm()


class Draws(Base):
    """Too rarely to show in a few calls."""

    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.draw = draw

    def middle(self, h: Tensor, x: Tensor) -> Tensor:
        return h if self.draw() < 1e-6 else self.inner(h)


class Backwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return slope + 0.1 * torch.randn_like(slope)


class DrawsBackwards(Base):
    def middle(self, h: Tensor, x: Tensor) -> Tensor:
        return Backwards.apply(h)


class Counts(Base):
    def middle(self, h: Tensor, x: Tensor) -> Tensor:
        self.calls += 1
        return h * (1.0 if self.calls < 1000 else 0.1)


class Remembers(Base):
    def middle(self, h: Tensor, x: Tensor) -> Tensor:
        before, self.kept = self.kept, h.detach()
        return h if before is None or before.shape != h.shape else h + before


class ListsWeights(Base):
    def __init__(self) -> None:
        super().__init__()
        self.mine = [self.inner.weight]

    def middle(self, h: Tensor, x: Tensor) -> Tensor:
        return self.inner(h) + h @ self.mine[0]


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (lambda: Draws(lambda: float(torch.rand(()))), "draws from the global random state of torch, so no run could"),
        (lambda: Draws(random.random), "draws from the global random state of Python"),
        (lambda: Draws(np.random.random), "draws from the global random state of numpy"),
        (DrawsBackwards, "draws from the global random state of torch"),
        (Counts, "changes its number 'calls' at every call"),
        (Remembers, "another one after a call with others"),
        (ListsWeights, "reads its parameter 'inner.weight' past its layers"),
        (lambda: torch.jit.script(nn.Linear(6, 3)), "'itself' is TorchScript"),
    ],
)
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_what_would_silently_be_something_else_is_refused(made: Any, line: str) -> None:
    data = DATA if "TorchScript" not in line else {"x": X.float(), "y": DATA["y"]}
    with pytest.raises(ModelError, match=line):
        Supervised.split(data, 4, model=made())


class DropsWithProbability0(Base):
    """As layers of transformers do."""

    def middle(self, h: Tensor, x: Tensor) -> Tensor:
        return h if self.training and torch.rand([]) < 0.0 else self.inner(h)


def test_a_draw_that_changes_nothing_is_none() -> None:
    p = Supervised.split(DATA, 4, model=DropsWithProbability0())
    assert "random operation" in p.unstackable
