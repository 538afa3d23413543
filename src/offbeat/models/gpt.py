"""A small GPT: attention is written out, in operations that torch.vmap can stack over many clients."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional

from offbeat.core.errors import fraction


class GPT(nn.Module):
    """Scores of the next token at every place, from the tokens up to there: whole numbers [b, t] to [b, t, tokens].

    layers: blocks of attention and a network of two layers.
    heads: of attention.
    width: numbers for each place; a multiple of heads.
    context: places that it can see; by default as many as a window of the data has.
    dropout: probability, on embeddings, on attention and behind both parts of a block.
    tied: the scores use the embeddings of the tokens as weights.
    """

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        layers: int = 2,
        heads: int = 4,
        width: int = 64,
        context: int | None = None,
        dropout: float = 0.0,
        tied: bool = True,
    ) -> None:
        super().__init__()
        fraction(dropout=dropout)
        if len(shape) != 1:
            raise ValueError(f"its inputs are windows of tokens [places], not {list(shape)}")
        if layers < 1 or heads < 1 or width < 1 or width % heads:
            raise ValueError("it needs a layer, and a width that is a multiple of the heads")
        self.context = shape[0] if context is None else context
        if self.context < shape[0]:
            raise ValueError(f"windows have {shape[0]} tokens, more than its context")
        self.tokens, self.places = nn.Embedding(classes, width), nn.Embedding(self.context, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([Block(width, heads, dropout) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes, bias=False)
        if tied:
            self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():  # as in GPT-2
            if parameter.dim() == 2:
                last = name.endswith(("attend.out.weight", "second.weight"))
                nn.init.normal_(parameter, std=0.02 / (sqrt(2 * layers) if last else 1.0))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > self.context:
            raise ValueError(f"{x.shape[1]} tokens are more than the context of {self.context}")
        h = self.drop(self.tokens(x) + self.places.weight[: x.shape[1]])
        for block in self.blocks:
            h = block(h)
        scores: Tensor = self.head(self.norm(h))
        return scores


class Block(nn.Module):
    """Attention, then a network for each place; both are added to what goes in."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.before, self.attend = nn.LayerNorm(width), Attention(width, heads, dropout)
        self.between, self.drop = nn.LayerNorm(width), nn.Dropout(dropout)
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.drop(self.attend(self.before(h)))
        inner = functional.gelu(self.first(self.between(h)), approximate="tanh")
        found: Tensor = h + self.drop(self.second(inner))
        return found


class Attention(nn.Module):
    """Every place looks at itself and those before it. Fused attention has no batching rule for its gradient."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.ask, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, h: Tensor) -> Tensor:
        b, t, width = h.shape
        parts = self.ask(h).view(b, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)  # each [b, heads, t, width / heads]
        scores = query @ key.transpose(-2, -1) * (width // self.heads) ** -0.5
        ahead = torch.ones(t, t, dtype=torch.bool, device=h.device).triu(1)
        weights = self.drop(torch.softmax(scores.masked_fill(ahead, -torch.inf), -1))
        mixed: Tensor = self.out((weights @ value).transpose(1, 2).reshape(b, t, width))
        return mixed
