"""Gradients that are known in closed form are the gradients."""

import pytest
import torch
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from offbeat.models import Flat, build
from offbeat.models.linear import ClosedForm


@pytest.mark.parametrize("bias", [False, True])
def test_the_softmax_gradient_is_what_differentiation_gives(bias: bool) -> None:
    module = build("softmax", (1, 4, 4), 10, 0, bias=bias)
    assert isinstance(module, ClosedForm)
    flat, g = Flat(module), torch.Generator().manual_seed(0)
    w = torch.randn(3, flat.dim, generator=g)
    x = torch.rand(3, 5, 1, 4, 4, generator=g)
    y = torch.randint(10, (3, 5), generator=g)
    weights = torch.rand(3, 5, generator=g)

    def loss(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return (cross_entropy(flat(w, x), y, reduction="none") * weights).sum()

    assert torch.allclose(module.gradient(w, x, y, weights), vmap(grad(loss))(w, x, y, weights), atol=1e-5)
