"""What is minimised: the loss of a model on a batch, computed in one place for every executor, device and client.

A loss is one of `LOSSES`; or `loss(output, target)`, whose further parameters are columns by name, such as `mask`; or
`loss(model, batch)`, told by the name of its first parameter. It gives one value a sample [b]; (sums [b], counts [b])
where samples count unlike, such as texts by their tokens; or a mean [].
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional

from offbeat.core.errors import SettingError, unknown

Values: TypeAlias = "Tensor | tuple[Tensor, Tensor]"
Loss: TypeAlias = "str | Callable[..., Values]"
Form = Literal["each", "counted", "mean", "coupled"]

IGNORED = -100  # a label that does not count, as in torch and HuggingFace's models


def _fitting(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers to compare: an output of one number a sample fits a target without that dimension, and a whole number is
    a number, too."""
    if output.dim() == target.dim() + 1 and output.shape[-1] == 1:
        output = output.squeeze(-1)
    return output, target.to(output.dtype)


def _each(values: Tensor) -> Tensor:
    """The mean over everything but the samples."""
    return values if values.dim() == 1 else values.flatten(1).mean(1)


def cross_entropy(output: Tensor, target: Tensor) -> Values:
    """Of classes: one a sample, or one for each place of a sample, where −100 does not count."""
    if target.dim() == 1:
        return functional.cross_entropy(output, target, reduction="none")
    if output.shape[:-1] == target.shape:  # a class for each place, the scores last
        output = output.movedim(-1, 1)
    values = functional.cross_entropy(output, target, reduction="none", ignore_index=IGNORED)
    return values.flatten(1).sum(1), (target != IGNORED).flatten(1).sum(1).to(values.dtype)


def next_token(output: Tensor, target: Tensor) -> Values:
    """Cross-entropy of the scores at each place with the token that comes next; −100 does not count.

    Scores are [b, places, tokens].
    """
    return cross_entropy(output[:, :-1], target[:, 1:])


def mse(output: Tensor, target: Tensor) -> Tensor:
    """Squared error."""
    output, target = _fitting(output, target)
    return _each((output - target).square())


def mae(output: Tensor, target: Tensor) -> Tensor:
    """Absolute error."""
    output, target = _fitting(output, target)
    return _each((output - target).abs())


def huber(output: Tensor, target: Tensor) -> Tensor:
    """Squared error up to 1, absolute error beyond."""
    return _each(functional.huber_loss(*_fitting(output, target), reduction="none"))


def bce(output: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy of scores with one or several labels in [0, 1], of a sample the mean over those that are
    known: −100 does not count."""
    output, target = _fitting(output, target)
    known = target != IGNORED
    values = functional.binary_cross_entropy_with_logits(output, target * known, reduction="none") * known
    if values.dim() == 1:
        return values
    return values.flatten(1).sum(1) / known.flatten(1).sum(1).clamp(min=1)


def model_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """The loss that the model computes itself: it gets all columns as keywords, and its output has `.loss`, a mean."""
    found: Tensor = model(**batch).loss
    return found


LOSSES: Mapping[str, Callable[..., Values]] = {
    "cross-entropy": cross_entropy,
    "mse": mse,
    "mae": mae,
    "huber": huber,
    "bce": bce,
    "next-token": next_token,
    "model": model_loss,
}


@dataclass(frozen=True)
class Objective:
    """A loss bound to the columns that it is computed from.

    columns: all that a batch has, in this order: inputs, target (which may be one of them), then what else the loss
    asks for, and the weights of the samples.   inputs: how many.   target: which of the columns.
    form: what the loss gives; "coupled" is a mean whose samples depend on each other.   whole: it is
    loss(model, batch).
    """

    name: str
    function: Callable[..., Values]
    columns: tuple[str, ...]
    inputs: int
    target: int
    extra: tuple[str, ...] = ()
    weight: str | None = None
    whole: bool = False
    form: Form = "each"

    @classmethod
    def of(cls, loss: Loss, inputs: Sequence[str], target: str | None, weight: str | None = None) -> Objective:
        """The objective of a name or a function, for these columns."""
        if isinstance(loss, str) and loss not in LOSSES:
            raise unknown("loss", loss, [*LOSSES, "package.module:function"])
        function = LOSSES[loss] if isinstance(loss, str) else loss
        name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
        taken = _parameters(function, name)
        whole = taken[:1] == ("model",)
        extra = () if whole else taken[2:]
        if not whole and target is None:
            raise SettingError(f"loss: {name} compares outputs with a target, and there is none; name its column")
        columns = dict.fromkeys([*inputs, *([target] if target else []), *extra, *([weight] if weight else [])])
        form: Form = "mean" if loss == "model" else "counted" if weight else "each"
        at = [*columns].index(target) if target else -1
        return cls(name, function, tuple(columns), len(inputs), at, extra, weight, whole, form)

    def formed(self, form: Form) -> Objective:
        """The same for a loss that turned out to give this."""
        return replace(self, form=form)

    def output(self, model: nn.Module, *parts: Tensor) -> Any:
        """What the model makes of its inputs: one is an argument, several are keywords."""
        if self.function is model_loss:
            found = model(**dict(zip(self.columns, parts, strict=True)))
            return getattr(found, "logits", found)
        if self.inputs == 1:
            return _single(model(parts[0]))
        return _single(model(**dict(zip(self.columns[: self.inputs], parts, strict=False))))

    def values(self, model: nn.Module, *parts: Tensor) -> Values:
        """The loss of a model on a batch, in the objective's form."""
        if self.whole:
            return self._weighed(self.function(model, dict(zip(self.columns, parts, strict=True))), parts)
        return self.compare(self.output(model, *parts), *parts)

    def compare(self, output: Any, *parts: Tensor) -> Values:
        """The same, of the model's output."""
        named = {name: parts[self.columns.index(name)] for name in self.extra}
        return self._weighed(self.function(output, parts[self.target], **named), parts)

    def mean(self, model: nn.Module, *parts: Tensor) -> Tensor:
        """The loss of a batch whose samples weigh the same."""
        if self.function is cross_entropy and self.form == "each" and parts[self.target].dim() == 1:  # in one operation
            return functional.cross_entropy(self.output(model, *parts), parts[self.target])
        found = self.values(model, *parts)
        if isinstance(found, tuple):
            return found[0].sum() / found[1].sum()
        return found.mean() if found.dim() else found

    def apart(self, model: nn.Module, *parts: Tensor) -> Values:
        """The same with one value a sample, also of a loss that gives a mean."""
        if self.form != "mean":
            return self.values(model, *parts)

        def one(*sample: Tensor) -> Tensor:
            value = self.values(model, *(part.unsqueeze(0) for part in sample))
            assert isinstance(value, Tensor)
            return value

        found: Tensor = vmap(one)(*parts)
        return found

    def _weighed(self, found: Values, parts: Sequence[Tensor]) -> Values:
        if self.weight is None or (isinstance(found, Tensor) and not found.dim()):
            return found
        weights = parts[self.columns.index(self.weight)]
        if isinstance(found, tuple):
            return found[0] * weights, found[1] * weights
        return found * weights, weights


def _single(output: Any) -> Any:
    """A model's output, of HuggingFace's models their scores; in single precision, also of a frozen model in half."""
    if not isinstance(output, Tensor):
        output = getattr(output, "logits", output)
    return output.float() if isinstance(output, Tensor) and output.dtype == torch.bfloat16 else output


def total(found: Values, weights: Tensor) -> Tensor:
    """The loss of a batch whose samples weigh so much (0: padding), 1 altogether; a mean is what it is."""
    if isinstance(found, tuple):
        sums, counts = found
        return (sums * weights).sum(-1) / (counts * weights).sum(-1).clamp_min(torch.finfo(counts.dtype).tiny)
    return (found * weights).sum(-1) if found.dim() else found


def _parameters(function: Callable[..., Any], name: str) -> tuple[str, ...]:
    """The names of the positional parameters that have no default."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some callables written in C have none
        return ("output", "target")
    if isinstance(function, nn.Module):
        found = inspect.signature(function.forward).parameters.values()
    needed = [p.name for p in found if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(needed) < 2:
        raise SettingError(f"loss: {name} takes {needed}; it is called with (output, target) or (model, batch)")
    return tuple(needed)
