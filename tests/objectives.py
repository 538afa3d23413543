"""A problem of each kind of loss, for tests that compare ways of computing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from offbeat.core.random import key, signed
from offbeat.data.base import Dataset
from offbeat.data.samples import Stored
from offbeat.problems.supervised import Supervised

SHARDS = [np.arange(0, 7), np.arange(7, 19), np.array([20, 5, 21]), np.array([22])]
KEYS = [signed(key(0, 3, c)) for c in range(4)]
N, WIDTH, PLACES, TOKENS = 24, 5, 6, 7
G = torch.Generator().manual_seed(0)
X = torch.randn(N, WIDTH, generator=G)


def net(outputs: int) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, outputs))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.left, self.right = nn.Linear(WIDTH, 1), nn.Linear(3, 1)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.tanh(self.left(left)) * self.right(right)


class NumberAndKind(nn.Module):
    """A second input that is a whole number a sample, as labels are."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.number, self.kind = nn.Linear(WIDTH, 3), nn.Embedding(3, 3)

    def forward(self, number: Tensor, kind: Tensor) -> Tensor:
        return torch.tanh(self.number(number)) * self.kind(kind)


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words, self.head = nn.Embedding(TOKENS, 4), nn.Linear(4, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.cumsum(self.words(tokens), 1))


class OwnLoss(nn.Module):
    """Like HuggingFace's models: the output has its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net(3)

    def forward(self, x: Tensor, labels: Tensor) -> Any:
        logits = self.net(x)
        return SimpleNamespace(loss=functional.cross_entropy(logits, labels), logits=logits)


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.down, self.up = nn.Linear(WIDTH, 2), nn.Linear(2, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))


def masked(output: Tensor, target: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return ((output - target).square() * mask).sum(1), mask.sum(1).float()


def by_parts(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    code = model.down(batch["x"])  # type: ignore[operator]
    return (model.up(code) - batch["x"]).square().mean(1) + 0.1 * code.abs().sum(1)  # type: ignore[operator]


def contrast(output: Tensor, target: Tensor) -> Tensor:
    """Samples of a batch depend on each other."""
    return (output - output.mean(0)).square().mean() + (output.squeeze(-1) - target).abs().mean()


def focal(output: Tensor, target: Tensor) -> Tensor:
    log = torch.log_softmax(output, 1).gather(1, target.unsqueeze(1)).squeeze(1)
    return -((1 - log.exp()) ** 2) * log


LABELS = torch.randint(3, (N,), generator=G)
REAL = torch.randn(N, generator=G)
SEVERAL = (torch.rand(N, 4, generator=G) > 0.5).float()
SOME = torch.where(torch.arange(N * 4).view(N, 4) % 3 == 0, -100.0, SEVERAL)
TEXT = torch.randint(TOKENS, (N, PLACES), generator=G)
HOLES = torch.where(torch.rand(N, PLACES, generator=G) > 0.3, TEXT, -100)
HOLES[:, 0] = TEXT[:, 0]
MASK = torch.rand(N, WIDTH, generator=G) > 0.4
MASK[:, 0] = True


@dataclass
class Case:
    columns: Mapping[str, Tensor]
    model: Callable[[], nn.Module]
    loss: Any
    form: str
    inputs: tuple[str, ...] = ("x",)
    target: str = "y"
    weight: str | None = None
    metrics: tuple[str, ...] = ()

    def problem(self, **settings: Any) -> Supervised:
        data = Dataset("made", Stored(self.columns), Stored(self.columns), None, inputs=self.inputs, target=self.target)
        return Supervised(
            data, self.model(), SHARDS, loss=self.loss, weight=self.weight, metrics=self.metrics, **settings
        )


CASES = {
    "cross-entropy": Case({"x": X, "y": LABELS}, lambda: net(3), "cross-entropy", "each"),
    "int32 labels": Case({"x": X, "y": LABELS.int()}, lambda: net(3), "cross-entropy", "each"),
    "focal": Case({"x": X, "y": LABELS}, lambda: net(3), focal, "each"),
    "mse": Case({"x": X, "y": REAL}, lambda: net(1), "mse", "each"),
    "mae": Case({"x": X, "y": REAL}, lambda: net(1), "mae", "each"),
    "huber": Case({"x": X, "y": REAL.double()}, lambda: net(1), "huber", "each"),
    "mse of several": Case({"x": X, "y": SEVERAL}, lambda: net(4), "mse", "each"),
    "multi-label": Case({"x": X, "y": SEVERAL}, lambda: net(4), "bce", "each"),
    "multi-label, some unknown": Case({"x": X, "y": SOME}, lambda: net(4), "bce", "each"),
    "binary, bool": Case({"x": X, "y": SEVERAL[:, 0] > 0.5}, lambda: net(1), "bce", "each"),
    "two inputs": Case({"left": X, "right": X[:, :3], "y": REAL}, TwoInputs, "mse", "each", inputs=("left", "right")),
    "classes of two inputs": Case(
        {"number": X, "kind": LABELS.flip(0), "y": LABELS},
        NumberAndKind,
        "cross-entropy",
        "each",
        inputs=("number", "kind"),
    ),
    "token by token": Case({"x": TEXT, "y": HOLES}, Language, "cross-entropy", "counted"),
    "next token": Case({"x": TEXT}, Language, "next-token", "counted", target="x"),
    "mask": Case({"x": X, "y": X.flip(1), "mask": MASK}, Autoencoder, masked, "counted"),
    "weights": Case({"x": X, "y": REAL, "w": REAL.abs()}, lambda: net(1), "mse", "counted", weight="w"),
    "a module's mean": Case({"x": X, "y": LABELS}, lambda: net(3), nn.CrossEntropyLoss(), "mean"),
    "a function's mean": Case({"x": X, "y": SEVERAL}, lambda: net(4), functional.mse_loss, "mean"),
    "the model's own": Case({"x": X, "labels": LABELS}, OwnLoss, "model", "mean", target="labels"),
    "by parts": Case({"x": X, "y": REAL}, Autoencoder, by_parts, "each"),
    "coupled": Case({"x": X, "y": REAL}, lambda: net(1), contrast, "coupled"),
}
