"""Networks as users write them, without a form of their own for many clients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from offbeat.models.gpt import GPT


def cnn(shape: Sequence[int], classes: int) -> nn.Module:
    """Three convolutions with group normalisation; 57,290 parameters for CIFAR-10."""
    return nn.Sequential(
        *(nn.Conv2d(shape[0], 32, 3, padding=1), nn.GroupNorm(8, 32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes)),
    )


class Layer(nn.Module):
    """A layer of a transformer with PyTorch's own attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, h: Tensor) -> Tensor:
        b, t, width = h.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(self.first(h)).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(mixed.transpose(1, 2).reshape(b, t, width))
        found: Tensor = h + self.mlp(self.second(h))
        return found


class Transformer(nn.Module):
    """A decoder of two layers of width 128."""

    def __init__(self, shape: Sequence[int], classes: int, layers: int = 2, width: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(classes, width), nn.Embedding(shape[0], width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        scores: Tensor = self.head(self.norm(self.layers(self.tokens(x) + self.places(places))))
        return scores


def large(shape: Sequence[int]) -> nn.Module:
    """GPT-2's shape with 20,000 tokens: 100 million parameters."""
    return GPT(shape, 20_000, layers=12, heads=12, width=768)
