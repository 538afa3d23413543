"""What is wrong with a problem, found on two samples before the first job, and said in one line."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from offbeat.core.errors import DataError, ModelError, OffbeatError, SettingError, one_line
from offbeat.data.lazy import Read
from offbeat.data.samples import Samples, Stored, missing
from offbeat.models.conv import CHANNELS_LAST
from offbeat.models.dropout import PROBE, Keyed
from offbeat.problems import causal, objective as losses, pure
from offbeat.problems.metrics import ECE, F1, Accuracy, Hamming, OverThresholds, TopK, Whole, classes
from offbeat.problems.objective import Form

if TYPE_CHECKING:
    from offbeat.problems.supervised import Supervised

_CLASSES = (losses.cross_entropy, losses.next_token)
_TRIED = 10_000_000  # numbers among which the largest is looked for
_OF_CLASSES = (Accuracy, TopK, Hamming, F1, ECE, OverThresholds)
_NUMBERS = (losses.mse, losses.mae, losses.huber, losses.bce)


def check(problem: Supervised) -> Form:
    """The form of a problem's objective, after everything has been tried that could be wrong with it."""
    data, objective = problem.data, problem.objective
    for samples, said in ((data.train, "training"), (data.test, "test")):
        samples.has(*objective.columns)
        if not len(samples):
            raise DataError(f"the {said} set is empty; give it at least one sample")
        _finite(samples, objective.columns, said)
    _alike(data.train, data.test, objective.columns)
    _shards(problem)
    if objective.weight is not None and _range(problem, objective.weight)[0] < 0:
        raise DataError(
            f"{objective.weight!r}: weights run from {_range(problem, objective.weight)[0]:g} on; 0 is least"
        )
    batch = problem.samples(torch.tensor([0, min(1, len(data.train) - 1)], device=problem.device))
    flat = problem.flat
    pieces = flat.pieces(flat.whole(problem.initial()))
    leaves = flat.leaves(pieces)
    probe = PROBE.to(problem.device)

    def call(function: Any, *parts: Tensor) -> Any:
        return flat.alone(list(pieces), function, *parts, key=probe)

    _dropping(problem, call, batch)
    if not objective.whole:
        output = _output(problem, call, batch)
        _target(problem, output, batch)
        _extremes(problem, call)
        causal.check(problem, call, batch)
    found = _loss(problem, call, batch)
    if objective.function not in losses.LOSSES.values():
        _labels(problem, call)
    _backward(problem, found, leaves)
    pure.check(problem, call, batch, leaves)
    if flat.random:
        _repeatable(problem, call, batch, leaves)
    if not flat.moded:
        return _form(problem, call, found, batch)
    with torch.no_grad(), flat.evaluating():
        return _form(problem, call, call(objective.values, *batch), batch)


def _dropping(problem: Supervised, call: Any, batch: Sequence[Tensor]) -> None:
    """Note whether the model, or the loss, drops anything, and refuse buffers that it changes unsaid."""
    flat, function = problem.flat, problem.objective.values
    before = {name: tensor.clone() for name, tensor in flat.fixed(problem.device).items()}
    replaced = flat.seen = set()
    with contextlib.suppress(Exception), Keyed(PROBE.to(problem.device)) as mode:  # what is wrong is said later
        call(function, *batch)
    flat.seen = None
    flat.random, flat.attends = flat.random or mode.calls > 0, flat.attends or mode.attends
    for name, tensor in flat.fixed(problem.device).items():
        if name in replaced or not torch.equal(tensor, before[name]):
            raise ModelError(
                f"the model changes its buffer {name!r} in training; list it in its layer's attribute `statistics`, or "
                "leave it as it is"
            )


_ROUNDED = 1e-3  # of a gradient: a GPU adds in another order each time, another mask changes far more


def _repeatable(problem: Supervised, call: Any, batch: Sequence[Tensor], leaves: Sequence[Tensor]) -> None:
    """Refuse a model that drops again in its backward pass, where no key reaches it."""
    mean, found = problem.objective.mean, []
    for seed in (1, 2):  # what does not come from the key depends on torch's random state
        with torch.random.fork_rng([problem.device] if problem.device.type == "cuda" else []):
            torch.default_generator.manual_seed(seed)
            if problem.device.type == "cuda":
                torch.cuda.manual_seed(seed)
            found.append(torch.autograd.grad(call(mean, *batch), leaves, allow_unused=True))
    pairs = [(a, b) for a, b in zip(*found, strict=True) if a is not None and b is not None]
    if any((a - b).norm() > _ROUNDED * a.norm() for a, b in pairs):
        raise ModelError(
            "the model's gradients differ for the same masks; does it recompute activations (torch.utils.checkpoint)? "
            "That does not go with dropout: turn one of them off"
        )


@torch.no_grad()
def check_scores(problem: Supervised) -> None:
    """Try the metrics on two samples."""
    if not problem.scores:
        return
    batch = problem.samples(torch.tensor([0, len(problem.data.train) - 1], device=problem.device))
    flat = problem.flat
    with flat.evaluating():
        output = flat.alone(flat.pieces(flat.whole(problem.initial())), problem.objective.output, *batch)
    target = batch[problem.objective.target] if problem.objective.target >= 0 else None
    for score in problem.scores:
        try:
            if score.of_loss:
                continue
            if target is None or not isinstance(output, Tensor):
                raise SettingError(f"it compares a tensor with a target, got a {type(output).__name__}")
            if isinstance(score, _OF_CLASSES) and not classes(output, target):
                _binary(problem)
            _ = score.of(output, target) if isinstance(score, Whole) else score.state(output, target)
        except Exception as error:
            said = str(error) if isinstance(error, OffbeatError) else one_line(error)
            shapes = f"outputs {_shape(output)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
            compared = "" if target is None else f" and {problem.data.target} {_kind(target)} {_shape(target)}"
            raise SettingError(f"the metric {score.name} fails on {shapes}{compared}: {said}") from error


def _binary(problem: Supervised) -> None:
    """Refuse a metric of classes or of labels of 0 and 1 for quantities, whose numbers it would round to labels."""
    if problem.objective.function is losses.bce:
        return
    name = problem.data.target
    values = torch.cat([part.flatten() for part in _known(problem, name)])
    wrong = values[(values != 0) & (values.abs() != 1) & (values != losses.IGNORED)]  # −1 and 1 are taken for 0 and 1
    if len(wrong):
        uneven = wrong[wrong != wrong.round()] if wrong.is_floating_point() else wrong
        value = float((uneven if len(uneven) else wrong)[0])
        raise SettingError(
            f"it is for classes, or labels of 0 and 1, and {name!r} has the value {value:g}; for quantities use rmse, "
            'mae or r2; for classes, whole numbers and the loss "cross-entropy"'
        )


def _finite(samples: Samples, columns: Sequence[str], said: str) -> None:
    if not isinstance(samples, Stored):
        return
    for name in columns:
        if (found := samples.not_finite(name)) is not None:
            raise missing(name, f"{said} sample {found[0]}", found[1])


def _alike(train: Samples, test: Samples, columns: Sequence[str]) -> None:
    """Test samples look like training samples, but for the length of lists that were padded."""
    for name in columns:
        here, there = train.shape(name), test.shape(name)
        padded = isinstance(train, Stored) and name in {*train.masks, *train.masks.values(), "labels"}
        if here != there and not (padded and here[1:] == there[1:]):
            raise DataError(
                f"{name!r} is {list(here)} a training sample and {list(there)} a test sample; give one shape"
            )
        if train.real(name) != test.real(name):
            kinds = ["real" if samples.real(name) else "whole" for samples in (train, test)]
            raise DataError(f"{name!r} has {kinds[0]} numbers to train on and {kinds[1]} ones to test on; cast one")


def _shards(problem: Supervised) -> None:
    order, count = problem.shards.order, len(problem.data.train)
    if order.min() < 0 or order.max() >= count:
        wrong = int(order.min() if order.min() < 0 else order.max())
        raise DataError(f"a client has training sample {wrong}; expected numbers from 0 to {count - 1}")


def _extremes(problem: Supervised, call: Any) -> None:
    """Try the largest and the smallest of inputs that are whole numbers, such as tokens, which a model may not know."""
    objective, train = problem.objective, problem.data.train
    for name in objective.columns[: objective.inputs]:
        if not isinstance(train, Stored) or train.real(name) or train[name].dtype == torch.bool:
            continue
        every = 1 + train[name].numel() // _TRIED
        try:
            call(objective.output, *problem.samples(_ends(problem, name, every)))
        except Exception as error:
            run = f"run from {int(train[name][::every].min())} to {int(train[name][::every].max())}"
            raise ModelError(f"the model fails on {name!r}, whose numbers {run}: {one_line(error)}") from error


def _ends(problem: Supervised, name: str, every: int = 1) -> Tensor:
    """The training samples with the largest and the smallest number in a column."""
    values = problem.data.train[name][::every]
    values = values.reshape(len(values), -1)
    ends = [every * int(values.amax(1).argmax()), every * int(values.amin(1).argmin())]
    return torch.tensor(ends, device=problem.device)


def _remedy(problem: Supervised, error: Exception, batch: Sequence[Tensor]) -> str:
    """What to do about a model that fails on its inputs, where that is plain."""
    said, given = str(error), batch[: problem.objective.inputs]
    if isinstance(error, TypeError) and "argument" in said:
        return "; its inputs are the columns that it is to get: name them, inputs=…"
    if "dtype" in said and (instead := _for_windows(problem, batch)):
        return instead
    if "dtype" in said and any(not part.is_floating_point() for part in given):
        return "; cast whole numbers to float"
    if "no padding token" in said:
        return "; give its configuration one, as in settings = { pad_token_id = 0 } or in its folder's config.json"
    if "scalar types: Long" in said:
        return "; cast the column to int64"
    if isinstance(error, IndexError) and "out of range" in said and (tokens := [p for p in given if p.dim() == 2]):
        most, places = int(tokens[0].max()), tokens[0].shape[1]
        return f"; has it an embedding for tokens up to {most} and more, and for {places} positions?"
    if any(part.dim() == 4 and part.shape[-1] in (1, 3, 4) and part.shape[1] > 4 for part in given):
        return CHANNELS_LAST
    return ""


def _output(problem: Supervised, call: Any, batch: Sequence[Tensor]) -> Tensor:
    objective = problem.objective
    given = _described(objective.columns[: objective.inputs], batch)
    try:
        output, again = (call(objective.output, *batch) for _ in range(2))
    except Exception as error:
        raise ModelError(f"the model fails on {given}: {one_line(error)}{_remedy(problem, error, batch)}") from error
    if not isinstance(output, Tensor):
        own = ', or "model" if the output has its loss' if hasattr(output, "loss") else ""
        raise ModelError(
            f"the model returns a {type(output).__name__}, not a tensor; write a loss as loss(model, batch){own}"
        )
    if output.dim() == 0 or len(output) != 2:
        raise ModelError(f"the model returns {_shape(output)} for two samples, {given}; samples come first")
    if not torch.equal(output, again) and bool(torch.isfinite(output).all()):
        raise ModelError("the model returns other outputs for the same inputs; draw no random numbers in it")
    return output


def _for_windows(problem: Supervised, batch: Sequence[Tensor]) -> str:
    """Which model fits windows of tokens, where the data are these."""
    x, y = batch[0], batch[problem.objective.target]
    if not causal.windows(x, y) or not (torch.equal(x[:, 1:], y[:, :-1]) or torch.equal(x, y)):
        return ""
    return '; windows of tokens need a model with scores of the next token at every place, such as "gpt"'


def _target(problem: Supervised, output: Tensor, batch: Sequence[Tensor]) -> None:
    """What the losses that we know expect of the target."""
    target = batch[problem.objective.target]
    function, name = problem.objective.function, problem.data.target
    a_sample = f"{name!r} is {_kind(target)} {list(target.shape[1:])} a sample"
    if function in _CLASSES:
        if output.dim() == 2 and (instead := _for_windows(problem, batch)):
            raise DataError(f"{a_sample}, and the model returns {_shape(output)}{instead}")
        if target.is_floating_point() and target.dim() == output.dim() and target.shape == output.shape:
            raise DataError(f'{a_sample}; classes are numbers: use .argmax(1), or the loss "bce" for several labels')
        if target.is_floating_point():
            raise DataError(f'{a_sample}; classes are whole numbers: cast it, or use the loss "mse"')
        if target.dim() == output.dim() and target.shape == output.shape and function is losses.cross_entropy:
            raise DataError(f'{a_sample}; classes are numbers: use .argmax(1), or the loss "bce" for several labels')
        places = output.shape[:-1] == target.shape or output.shape[:1] + output.shape[2:] == target.shape
        if output.dim() == target.dim() and target.shape[1:] == (1,):
            raise DataError(f"{a_sample}; a class is one number: use .squeeze(1)")
        if output.dim() < 2 or not places:
            raise DataError(f"{a_sample}, and the model returns {_shape(output)}: no score for each class")
        last = function is losses.next_token or output.shape[:-1] == target.shape
        _classes(problem, output.shape[-1] if last else output.shape[1])
        total = output.detach().sum(-1)
        if output.dim() == 2 and bool((output >= 0).all()) and torch.allclose(total, torch.ones_like(total), atol=1e-5):
            raise ModelError("the model's outputs are probabilities; cross-entropy takes scores: leave its softmax out")
    elif function in _NUMBERS:
        fits = output.shape == target.shape or (output.dim() == target.dim() + 1 and output.shape[-1] == 1)
        if not fits or (output.dim() == target.dim() + 1 and output.shape[:-1] != target.shape):
            raise DataError(
                f"{a_sample}, and the model returns {list(output.shape[1:])} a sample{_fit(output, target)}"
            )
        if _padded(problem, name):
            raise DataError(
                f"{name!r} holds lists that were padded, and {problem.objective.name} would count the padding: write a "
                f"loss(output, target, mask)"
            )
        if function is losses.bce:
            labels = torch.cat([part.flatten() for part in _known(problem, name)])
            wrong = labels[((labels < 0) | (labels > 1)) & (labels != losses.IGNORED)]
            if len(wrong):
                raise DataError(
                    f"{name!r} has the label {float(wrong[0]):g}; labels of bce are in [0, 1], or -100 where unknown"
                )


def _fit(output: Tensor, target: Tensor) -> str:
    """What to do about outputs that do not fit numbers."""
    if not target.is_floating_point():
        return '; for classes use the loss "cross-entropy"'
    if target.dim() == 1 and output.dim() == 2:
        return "; give the model one output, or cast classes to whole numbers"
    return ""


def _padded(problem: Supervised, name: str) -> bool:
    return any(isinstance(part, Stored) and name in part.masks for part in (problem.data.train, problem.data.test))


def _classes(problem: Supervised, outputs: int) -> None:
    name = problem.data.target
    least, most = _range(problem, name)
    if least == -100:  # labels that do not count
        least = 0
    if least >= 0 and most < outputs:
        return
    has = "1 output" if outputs == 1 else f"{outputs} outputs"
    run = f"the classes in {name!r} run from {least:g} to {most:g}, and the model has {has}"
    if least > 0 and most == outputs:
        raise DataError(f"{run}: subtract 1")
    if outputs == 1:
        binary = 'for labels of 0 and 1, use the loss "bce"; ' if (least, most) == (0, 1) else ""
        raise DataError(f'{run}: {binary}if {name!r} is a quantity, use the loss "mse"')
    raise DataError(f"{run}: classes start at 0" if least < 0 else f"{run}: it needs {int(most) + 1}")


def _range(problem: Supervised, name: str) -> tuple[float, float]:
    found = _known(problem, name)
    return min(float(part.min()) for part in found), max(float(part.max()) for part in found)


def _known(problem: Supervised, name: str) -> list[Tensor]:
    """A column of the training and the test samples, where it can be told without reading samples one by one."""
    both = (problem.data.train, problem.data.test)
    known = [s for s in both if isinstance(s, Stored) or (isinstance(s, Read) and name in s.known)]
    return [samples[name] for samples in known] or [torch.zeros(1)]


def _loss(problem: Supervised, call: Any, batch: Sequence[Tensor]) -> Any:
    objective = problem.objective
    said = f"the loss {objective.name} fails on {_described(objective.columns, batch)}"
    try:
        found = call(objective.values, *batch)
    except OffbeatError:
        raise
    except Exception as error:
        raise SettingError(f"{said}: {one_line(error)}") from error
    parts = found if isinstance(found, tuple) else (found,)
    if not all(isinstance(part, Tensor) for part in parts) or len(parts) > 2:
        raise SettingError(f"the loss {objective.name} returns a {type(found).__name__}, not a tensor, or two of them")
    for part in parts:
        if part.dim() > 1 or (part.dim() == 1 and len(part) != 2):
            raise SettingError(
                f"the loss {objective.name} returns {_shape(part)} for two samples; return one for each, [2], or a mean"
            )
    if len(parts) == 2 and any(part.dim() == 0 for part in parts):
        raise SettingError(f"the loss {objective.name} returns sums and counts; each has one value a sample, [2]")
    if not all(bool(torch.isfinite(part).all()) for part in parts):
        raise SettingError(f"the loss {objective.name} is not finite at the start: are the inputs scaled?")
    return found


def _labels(problem: Supervised, call: Any) -> None:
    """Try a loss of the user's own on the largest and the smallest label, for which a model may have no output."""
    name, train = problem.data.target, problem.data.train
    known = isinstance(train, Stored) or (isinstance(train, Read) and name in train.known)
    if name not in problem.objective.columns or name in problem.data.inputs or not known or train.real(name):
        return
    try:
        call(problem.objective.values, *problem.samples(_ends(problem, name)))
    except Exception as error:
        least, most = _range(problem, name)
        run = f"the loss {problem.objective.name} fails on {name!r}, whose labels run from {least:g} to {most:g}"
        from_1 = "; if they are classes, subtract 1: they start at 0" if least == 1 else ""
        raise SettingError(f"{run}: {one_line(error)}{from_1}") from error


def _backward(problem: Supervised, found: Any, pieces: Sequence[Tensor]) -> None:
    value = (found[0] if isinstance(found, tuple) else found).sum()
    name = problem.objective.name
    if not value.requires_grad:
        raise SettingError(f"the loss {name} does not depend on the parameters: is something detached, or in numpy?")
    own = {n: p for n, p in problem.flat.module.named_parameters() if p.requires_grad}
    try:
        slopes = torch.autograd.grad(value, [*pieces, *own.values()], allow_unused=True, retain_graph=True)
    except RuntimeError as error:
        raise SettingError(f"the loss {name} cannot be differentiated: {one_line(error)}") from error
    past = (n for n, slope in zip(own, slopes[len(pieces) :], strict=True) if slope is not None)
    if (first := next(past, None)) is not None:
        raise ModelError(
            f"the model reads its parameter {first!r} past its layers, from a list or a closure, where it would never "
            "change; read it as an attribute of its layer, or keep it in an nn.ParameterList"
        )


def _form(problem: Supervised, call: Any, found: Any, batch: Sequence[Tensor]) -> Form:
    objective = problem.objective
    if isinstance(found, tuple):
        return "counted"
    if found.dim():
        return "each"
    if objective.weight is not None:
        raise SettingError(
            f"the loss {objective.name} is a mean, in which samples cannot weigh: give one value a sample"
        )
    apart = [call(objective.values, *(part[i : i + 1] for part in batch)) for i in range(2)]
    if any(part.dim() for part in apart):
        return "coupled"
    mean, total = (apart[0] + apart[1]) / 2, apart[0] + apart[1]
    if torch.allclose(found, mean, rtol=1e-4, atol=1e-6):
        return "mean" if problem.flat.vmappable else "coupled"
    if torch.allclose(found, total, rtol=1e-4, atol=1e-6):
        raise SettingError(f"the loss {objective.name} is a sum, which grows with the batch: take the mean")
    return "coupled"


def _described(names: Sequence[str], batch: Sequence[Tensor]) -> str:
    return ", ".join(f"{name} {_kind(part)} {_shape(part)}" for name, part in zip(names, batch, strict=False))


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))
