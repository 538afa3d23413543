"""Metrics of a model's outputs: sums over samples, so that the parts of several batches or clients add up.

Outputs are a model's scores, as a loss takes them. They are compared with

    a class a sample, or one for each place of a sample (−100 does not count): scores [b, classes], [b, …, classes] or
        [b, classes, …], of which the largest counts and whose softmax is a probability;
    one or several labels of 0 or 1 (−100 does not count): a score for each, which counts as 1 from 0 on and whose
        sigmoid is a probability;
    numbers: one output for each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import exp, log, nan, sqrt
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from offbeat.core.errors import SettingError, at_least
from offbeat.core.metric import Metric
from offbeat.data.tokens import Tokeniser

IGNORED = -100  # a class that does not count, as in torch and HuggingFace's models
BINS = 200  # of probabilities, in curves over all thresholds


class Score(Metric, ABC):
    """A metric that is a function of sums over samples.

    A class says as its attributes what it is called, whether more is better and whether it is a share:

    >>> class Within(Score):
    ...     name, higher, share, size = "within", True, True, 2
    ...     def state(self, output, target):
    ...         near = (output - target).abs() < 1
    ...         return torch.stack([near.sum(), torch.tensor(near.numel())]).double()
    ...     def value(self, state):
    ...         return float(state[0] / state[1])
    >>> Within().value(Within().state(torch.tensor([1.0, 5.0]), torch.tensor([1.5, 3.0])))
    0.5

    size: how many sums; None: it depends on the number of outputs.   signed: sums may be negative.
    of_loss: its state is (the summed loss, what it is divided by) of the samples, whatever the loss is.
    whole: it needs the outputs of all samples at once; see `Whole`.
    """

    size: int | None = None
    signed: ClassVar[bool] = True
    of_loss: ClassVar[bool] = False
    whole: ClassVar[bool] = False

    def __init__(self) -> None:
        """Without arguments: the attributes are those of the class."""

    @abstractmethod
    def state(self, output: Tensor, target: Tensor) -> Tensor:
        """The sums over these samples, [size] in double precision."""

    @abstractmethod
    def value(self, state: Tensor) -> float:
        """The metric of samples with these sums; nan without samples."""

    def weight(self, state: Tensor, samples: int) -> float:
        """How much these sums of so many samples count beside others'."""
        return float(samples)

    def _is(self, **attributes: Any) -> None:
        """Attributes of an instance, which is frozen."""
        for name, value in attributes.items():
            object.__setattr__(self, name, value)


class Mean(Score):
    """A mean over samples, or over the numbers and places that they have."""

    size, signed = 2, False

    def weight(self, state: Tensor, samples: int) -> float:
        return float(state[1])

    def value(self, state: Tensor) -> float:
        total, count = state.tolist()
        return float(total / count) if count else nan


# What outputs are compared with


def classes(output: Tensor, target: Tensor) -> bool:
    """Whether the target is a class out of several, rather than labels of 0 or 1."""
    return output.dim() == target.dim() + 1 and not (output.shape[-1] == 1 and output.shape[:-1] == target.shape)


def by_class(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """(scores [n, classes], classes [n]) of what counts."""
    if output.shape[:-1] != target.shape:
        output = output.movedim(1, -1)
    scores, labels = output.reshape(-1, output.shape[-1]), target.reshape(-1).long()
    if target.dim() == 1:
        return scores, labels
    counts = labels != IGNORED
    return scores[counts], labels[counts]


def fitting(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """(outputs, targets) [n, numbers of a sample] in double precision, of equal shapes."""
    if output.dim() == target.dim() + 1:
        output = output.squeeze(-1)
    if output.numel() != target.numel():
        raise SettingError("it takes one output for each number of the target")
    shape = (len(target), target[:1].numel() if len(target) else 1)
    return output.reshape(shape).double(), target.reshape(shape).double()


def binary(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(scores, whether a label is 1, whether it is known) [n, labels]."""
    scores, labels = fitting(output, target)
    return scores, labels > 0.5, labels != IGNORED


def probabilities(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(probabilities, whether it is so, whether that is known) [n, labels]; of two classes that of the second, of more
    one for each."""
    if not classes(output, target):
        scores, labels, known = binary(output, target)
        return scores.sigmoid(), labels, known
    scores, labels = by_class(output, target)
    share = scores.double().softmax(dim=1)
    if share.shape[1] == 2:
        share, right = share[:, 1:], labels.unsqueeze(1) == 1
    else:
        right = functional.one_hot(labels, share.shape[1]).bool()
    return share, right, torch.ones_like(right)


def _sums(*parts: Tensor | float) -> Tensor:
    device = next(part.device for part in parts if isinstance(part, Tensor))
    each = [part if isinstance(part, Tensor) else torch.full((), float(part), device=device) for part in parts]
    return torch.stack([part.double() for part in each])


def _spoiled(output: Tensor) -> Tensor:
    """0, or nan where an output is not finite: counting would hide it."""
    return (output.double() * 0.0).sum()


# Classes and labels


class Accuracy(Mean):
    """Share of samples whose class has the largest score; of labels, the share that is right."""

    name, higher, share = "accuracy", True, True

    def state(self, output: Tensor, target: Tensor) -> Tensor:
        if classes(output, target):
            scores, labels = by_class(output, target)
            return _sums((scores.argmax(dim=1) == labels).sum(), labels.numel())
        scores, labels, known = binary(output, target)
        return _sums((((scores >= 0) == labels) & known).sum(), known.sum())


class TopK(Mean):
    """Share of samples whose class is among the five with the largest scores."""

    name, higher, share = "top5", True, True

    def __init__(self, k: int = 5) -> None:
        at_least(1, k=k)
        self._is(name=f"top{k}", k=k)

    k: int

    def state(self, output: Tensor, target: Tensor) -> Tensor:
        scores, labels = by_class(output, target)
        best = scores.topk(min(self.k, scores.shape[1]), dim=1).indices
        return _sums((best == labels.unsqueeze(1)).any(dim=1).sum(), labels.numel())


class Hamming(Mean):
    """Share of labels that are wrong."""

    name, share = "hamming", True

    def state(self, output: Tensor, target: Tensor) -> Tensor:
        right, count = Accuracy().state(output, target)
        return torch.stack([count - right, count])


class F1(Score):
    """F1, the mean over all classes that occur, or over several labels; for one label, the F1 of being 1."""

    name, higher, share, signed = "f1", True, True, False

    def weight(self, state: Tensor, samples: int) -> float:
        return float(state[2::3].sum()) or float(samples)

    def state(self, output: Tensor, target: Tensor) -> Tensor:
        """Three sums for each class: right, predicted, true."""
        if classes(output, target):
            scores, labels = by_class(output, target)
            count, guess = scores.shape[1], scores.argmax(dim=1)
            sums = [torch.bincount(each, minlength=count) for each in (labels[guess == labels], guess, labels)]
            return torch.stack(sums, dim=1).double().reshape(-1)
        scores, right, known = binary(output, target)
        guess = (scores >= 0) & known
        return torch.stack([(guess & right).sum(0), guess.sum(0), right.sum(0)], dim=1).double().reshape(-1)

    def value(self, state: Tensor) -> float:
        return self._mean(state.reshape(-1, 3))

    def _mean(self, sums: Tensor) -> float:
        occurs = sums[:, 1] + sums[:, 2] > 0
        both = sums[occurs]
        return float((2 * both[:, 0] / (both[:, 1] + both[:, 2])).mean()) if len(both) else nan


class Dice(F1):
    """Overlap of masks, 2·|A ∩ B| / (|A| + |B|) over all samples: the mean over classes but the first, the background;
    of labels, over each."""

    name = "dice"

    def state(self, output: Tensor, target: Tensor) -> Tensor:
        if not classes(output, target):  # one mask, whatever its shape
            scores, right, known = binary(output, target)
            guess = (scores >= 0) & known
            return _sums((guess & right).sum(), guess.sum(), right.sum())
        return super().state(output, target)[3:]


class ECE(Score):
    """Expected calibration error: how far confidence is from accuracy, over 15 bins of confidence."""

    name, share, size, signed = "ece", True, 45, False

    def weight(self, state: Tensor, samples: int) -> float:
        return float(state[:15].sum())

    def state(self, output: Tensor, target: Tensor) -> Tensor:
        """Of each bin: samples, their confidence, how many are right."""
        share, labels, known = probabilities(output, target)
        if share.shape[1] == 1 or not classes(output, target):
            share, labels = share[known].unsqueeze(1), labels[known].unsqueeze(1)
            share, labels = torch.cat([1 - share, share], dim=1), torch.cat([~labels, labels], dim=1)
        confidence, guess = share.max(dim=1)
        right = labels.gather(1, guess.unsqueeze(1)).squeeze(1).double()
        at = (confidence * 15).ceil().long().sub(1).clamp(0, 14)
        sums = [torch.bincount(at, weights, minlength=15) for weights in (torch.ones_like(right), confidence, right)]
        return torch.cat(sums).double() + _spoiled(output)

    def value(self, state: Tensor) -> float:
        count, confidence, right = state.reshape(3, 15)
        return float((right - confidence).abs().sum() / count.sum()) if count.sum() != 0 else nan


def _edges() -> Tensor:
    """Thresholds of probabilities: closer where a model that has learnt nothing has all of them, around a half, and
    where a confident one has, towards 0 and 1."""
    reach = torch.linspace(-1, 1, BINS - 1, dtype=torch.float64) * 6
    return (0.1 * reach.sinh()).sigmoid()


class OverThresholds(Score):
    """Of a curve over all thresholds of the probability, from counts in 200 bins; the mean over the labels, or over the
    classes against the rest, that occur and do not always."""

    higher, share, signed = True, True, False

    def weight(self, state: Tensor, samples: int) -> float:
        return float(state[: 2 * BINS].sum())

    def state(self, output: Tensor, target: Tensor) -> Tensor:
        """For each label, the samples in each bin: those that are not so, then those that are."""
        share, labels, known = probabilities(output, target)
        at = torch.bucketize(share.contiguous(), _edges().to(share.device), right=True).clamp(max=BINS - 1)
        places = at + BINS * labels + 2 * BINS * torch.arange(share.shape[1], device=share.device)
        counts = torch.bincount(places[known], minlength=2 * BINS * share.shape[1])
        return counts.double() + _spoiled(output)

    def value(self, state: Tensor) -> float:
        labels = state.reshape(-1, 2, BINS).flip(2).unbind()
        found = [self._one(*label) for label in labels if bool((label.sum(1) > 0).all())]
        return sum(found) / len(found) if found else nan

    def _one(self, negative: Tensor, positive: Tensor) -> float:
        """Of one label, with the counts from the highest bin to the lowest."""
        raise NotImplementedError


class AUROC(OverThresholds):
    """Area under the ROC curve: how often a sample that is so gets a higher score than one that is not."""

    name = "auroc"

    def _one(self, negative: Tensor, positive: Tensor) -> float:
        above = positive.cumsum(0) - positive / 2  # those in the same bin count half
        return float((above * negative).sum() / (positive.sum() * negative.sum()))


class AUPRC(OverThresholds):
    """Area under the curve of precision over recall, as a sum over thresholds (average precision)."""

    name = "auprc"

    def _one(self, negative: Tensor, positive: Tensor) -> float:
        found = positive.cumsum(0)
        precision = found / (found + negative.cumsum(0)).clamp(min=1)
        return float((precision * positive).sum() / positive.sum())


# Numbers


class MSE(Mean):
    """Mean squared error."""

    name = "mse"

    def state(self, output: Tensor, target: Tensor) -> Tensor:
        guess, right = fitting(output, target)
        return _sums((guess - right).square().sum(), right.numel())


class RMSE(MSE):
    """Root of the mean squared error."""

    name = "rmse"

    def value(self, state: Tensor) -> float:
        return sqrt(found) if (found := super().value(state)) >= 0 else nan


class MAE(Mean):
    """Mean absolute error."""

    name = "mae"

    def state(self, output: Tensor, target: Tensor) -> Tensor:
        guess, right = fitting(output, target)
        return _sums((guess - right).abs().sum(), right.numel())


class R2(Score):
    """Coefficient of determination: 1 − squared error / variance, the mean over the numbers of a sample."""

    name, higher = "r2", True

    def weight(self, state: Tensor, samples: int) -> float:
        return float(state[0])

    def state(self, output: Tensor, target: Tensor) -> Tensor:
        """For each number of a sample: how many, their sum, sum of squares, and the sum of squared errors."""
        guess, right = fitting(output, target)
        count = torch.full_like(right[0], len(right)) if len(right) else right.sum(0)
        sums = [count, right.sum(0), right.square().sum(0), (guess - right).square().sum(0)]
        return torch.stack(sums, dim=1).reshape(-1)

    def value(self, state: Tensor) -> float:
        count, total, squares, error = state.reshape(-1, 4).unbind(1)
        around = squares - total.square() / count
        return float((1 - error / around).mean()) if bool((count > 1).all()) else nan


class Perplexity(Mean):
    """exp of the mean cross-entropy of a token."""

    name = "perplexity"
    of_loss = True

    def state(self, output: Tensor, target: Tensor) -> Tensor:
        scores, labels = by_class(output, target)
        return _sums(functional.cross_entropy(scores.double(), labels, reduction="sum"), labels.numel())

    def value(self, state: Tensor) -> float:
        mean = super().value(state)
        return exp(mean) if mean < 700 else nan if mean != mean else float("inf")


class BitsPerCharacter(Mean):
    """Cross-entropy of the tokens in bits, divided by the characters that they stand for."""

    name = "bits_per_character"

    def __init__(self, tokens: Tokeniser | None = None) -> None:
        self._is(lengths=None if tokens is None else tokens.lengths)

    lengths: Tensor | None

    def state(self, output: Tensor, target: Tensor) -> Tensor:
        scores, labels = by_class(output, target)
        if self.lengths is None:
            raise SettingError("it counts the characters of tokens, which only the data texts, plays and topics tell")
        bits = functional.cross_entropy(scores.double(), labels, reduction="sum") / log(2)
        return torch.stack([bits, self.lengths.to(labels.device)[labels].sum()])


# Those of others


class Whole(Score):
    """A function of the outputs and targets of all samples, f(outputs, targets); not where only clients have data.

    `of` is its value; there are no sums.
    """

    whole = True

    def __init__(
        self, function: Callable[..., Any], name: str = "", higher: bool | None = None, share: bool | None = None
    ) -> None:
        """higher, share: what it is, unless the function has attributes that say so."""
        called = name or getattr(function, "__name__", type(function).__name__)
        better = getattr(function, "higher", None) if higher is None else higher
        if better is None:
            raise SettingError(
                f"metrics: {called} does not say which direction is better; write {called}.higher = True, or False"
            )
        part = getattr(function, "share", False) if share is None else share
        self._is(function=function, name=called, higher=bool(better), share=bool(part))

    function: Callable[..., Any]

    def of(self, output: Tensor, target: Tensor) -> float:
        """The metric of all samples."""
        return float(self.function(output, target))

    def state(self, output: Tensor, target: Tensor) -> Tensor:
        raise SettingError(
            f"metrics: {self.name} needs the outputs of all samples, which clients do not show; use sums: derive from "
            f"offbeat.problems.metrics.Score"
        )

    def value(self, state: Tensor) -> float:
        raise SettingError(f"metrics: {self.name} is no function of sums")


class NextToken(Score):
    """A metric of each place's scores and the token that comes next."""

    def __init__(self, inner: Score) -> None:
        self._is(
            inner=inner, name=inner.name, higher=inner.higher, share=inner.share, size=inner.size, signed=inner.signed
        )

    inner: Score

    def weight(self, state: Tensor, samples: int) -> float:
        return self.inner.weight(state, samples)

    def state(self, output: Tensor, target: Tensor) -> Tensor:
        return self.inner.state(output[:, :-1], target[:, 1:])

    def value(self, state: Tensor) -> float:
        return self.inner.value(state)
