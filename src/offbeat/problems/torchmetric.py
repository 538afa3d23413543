"""Metrics of torchmetrics whose states are sums."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from offbeat.core.errors import SettingError
from offbeat.problems.metrics import Score, by_class, classes, fitting

_KINDS = ("Binary", "Multiclass", "Multilabel")


class TorchMetric(Score):
    """A metric of torchmetrics.

    metric: one whose states are tensors that add up; binned where it would keep all outputs, `thresholds=200`.
    higher: whether more is better, if it does not say so itself.
    Those for classification are given probabilities: of scores they would guess, batch by batch, whether they are any.
    """

    def __init__(self, metric: Any, name: str = "", higher: bool | None = None) -> None:
        kind = type(metric).__name__
        called = name or _short(kind)
        better = metric.higher_is_better if higher is None else higher
        self._check(metric, called)
        if better is None:
            raise SettingError(
                f"metrics: {kind} does not say which direction is better; use TorchMetric({kind}(…), higher=…)"
            )
        bounds = getattr(metric, "plot_lower_bound", None), getattr(metric, "plot_upper_bound", None)
        shapes = {key: default.shape for key, default in metric._defaults.items()}
        self._is(
            metric=metric,
            name=called,
            higher=bool(better),
            share=bounds == (0.0, 1.0),
            size=sum(shape.numel() for shape in shapes.values()),
            shapes=shapes,
            by_probability=".classification" in type(metric).__module__,
            kind=next((each for each in _KINDS if kind.startswith(each)), ""),
        )

    metric: Any
    shapes: dict[str, torch.Size]
    by_probability: bool
    kind: str

    @staticmethod
    def _check(metric: Any, called: str) -> None:
        for key, default in metric._defaults.items():
            reduction = getattr(metric._reductions[key], "__name__", metric._reductions[key])
            if not isinstance(default, Tensor):
                raise SettingError(
                    f"metrics: the state {key!r} of {called} is a list of all outputs, not a sum; give thresholds=200, "
                    f"or use one of offbeat's own"
                )
            if reduction != "dim_zero_sum":
                raise SettingError(
                    f"metrics: the state {key!r} of {called} is not a sum ({reduction}); use one of offbeat's own"
                )

    def state(self, output: Tensor, target: Tensor) -> Tensor:
        self.metric.to(output.device).reset()
        self.metric.update(*self._given(output, target))
        return torch.cat([getattr(self.metric, key).detach().double().reshape(-1) for key in self.shapes])

    def value(self, state: Tensor) -> float:
        at = 0
        self.metric.reset()
        for key, shape in self.shapes.items():
            part = state[at : at + shape.numel()].reshape(shape)
            setattr(self.metric, key, part.to(self.metric._defaults[key].dtype))
            at += shape.numel()
        self.metric._update_count = 1
        found = torch.as_tensor(self.metric.compute())
        if found.numel() != 1:
            raise SettingError(
                f"metrics: {self.name} returns {list(found.shape)} numbers, expected one; choose an average"
            )
        return float(found)

    def _given(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        if not self.by_probability:
            if classes(output, target):  # such as perplexity, [b, places, tokens]
                return output, target
            guess, right = fitting(output, target)
            return (guess.squeeze(1), right.squeeze(1)) if guess.shape[1] == 1 else (guess, right)
        if classes(output, target):
            scores, labels = by_class(output, target)
            share = scores.softmax(dim=1)
            return (share[:, 1] if self.kind == "Binary" else share), labels
        scores, labels = fitting(output, target)
        share = scores.sigmoid().float()
        flat = share.shape[1] == 1 or self.kind == "Binary"
        return (share.reshape(-1), labels.long().reshape(-1)) if flat else (share, labels.long())


def _short(kind: str) -> str:
    for front in _KINDS:
        kind = kind.removeprefix(front)
    return kind.lower()
