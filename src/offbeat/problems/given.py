"""From what a user gives, data and a model, to a data set and a module that fit each other."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from offbeat.core.errors import DataError
from offbeat.core.random import MODEL, key
from offbeat.data.adapters import dataset
from offbeat.data.base import Dataset
from offbeat.data.folder import NAMES
from offbeat.data.samples import Stored
from offbeat.models.build import build
from offbeat.models.linear import Softmax
from offbeat.problems.objective import IGNORED, Loss, Objective

_NUMBERS = ("mse", "mae", "huber", "bce")  # losses for which whole numbers are no classes


def given(
    data: Any,
    model: str | nn.Module | Callable[..., nn.Module],
    loss: Loss | None,
    weight: str | None,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    **columns: Any,
) -> tuple[Dataset, nn.Module]:
    """A data set and a module with its first parameters. columns: what else `offbeat.data.adapters.dataset` takes.

    A model that asks for the shape of its inputs is made after the data are known; any other one before, so that the
    names of what it takes can say which columns are its inputs.
    """
    if not isinstance(model, nn.Module) and not _asks(model):
        model = build(model, (), 1, key(seed, MODEL), **(options or {}))
    forward = _takes(model) if isinstance(model, nn.Module) else ()
    aside, free = [weight] if weight else [], False
    if loss is not None:
        objective = Objective.of(loss, ("x",), "x")
        aside += objective.extra
        free = loss == "next-token" or (objective.whole and loss != "model")
        if objective.whole and loss != "model":
            forward = ()  # the loss is given all columns
    found = dataset(data, forward=forward, aside=aside, free=free, whole=loss not in _NUMBERS, **columns)
    known = isinstance(data, Dataset) or (isinstance(data, str) and data in NAMES)
    if not known and columns.get("classes") is None:
        if found.classes and not isinstance(model, nn.Module):
            _from_0(found)
        if loss is None or loss == "cross-entropy":
            found = replace(found, notes=(*found.notes, *_doubts(found, model, loss)))
    if not isinstance(model, nn.Module):
        model = build(model, found.shape, found.outputs, key(seed, MODEL), **(options or {}))
    return found, model


def _from_0(data: Dataset) -> None:
    """The model gets an output for each class up to the largest: a scale from 1 to 5 or an age is no such class."""
    labels = np.concatenate([np.asarray(each.column(data.target)) for each in (data.train, data.test)])
    known = labels[labels != IGNORED]
    if labels.ndim == 1 and len(known) and (least := known.min()) > 0:
        raise DataError(
            f"the classes in {data.target!r} run from {least} to {known.max()}, and classes start at 0: subtract "
            f'{least}; for a quantity, use the loss "mse"; if these are classes and others are missing, pass '
            f"offbeat.data.dataset(…, classes={data.classes})"
        )


def _doubts(data: Dataset, model: Any, loss: Loss | None) -> Iterator[str]:
    """What the target may have been meant to be."""
    name, parts = data.target, (data.train, data.test)
    if data.train.shape(name) or name in data.train.words or name in data.inputs:
        return
    if data.classes and not isinstance(model, nn.Module):
        labels = torch.cat([part[name] for part in parts])
        without = int((torch.bincount(labels[labels >= 0], minlength=data.classes) == 0).sum())
        if 2 * without > data.classes:
            yield (
                f"{name!r} has {data.classes} classes, because its largest label is {data.classes - 1}, and {without} "
                "of them have no sample; is that label right?"
            )
    if not data.classes and loss is None and isinstance(data.train, Stored):
        values = torch.cat([part[name] for part in parts])
        uneven = values[values != values.round()]
        if len(uneven) * 20 > len(values) or len(torch.unique(values)) * 5 > len(values):
            return
        kind = str(values.dtype).removeprefix("torch.")
        if not len(uneven) and model in ("softmax", Softmax):
            raise DataError(
                f"{name!r} is {kind} with whole numbers only, and softmax is a model for classes: cast it to int64; "
                'for a quantity, use the loss "mse"'
            )
        binary = ' or, for labels of 0 and 1, "bce"' if bool(((values == 0) | (values == 1)).all()) else ""
        but = f" but some, such as {float(uneven[0]):g}," if len(uneven) else ""
        yield (
            f"{name!r} is {kind} and taken for a quantity, although all its values{but} are whole numbers; cast it to "
            f'int64 for classes, or set the loss: "mse"{binary}'
        )


def _asks(model: Any) -> bool:
    """Whether a factory asks for the shape of the inputs, or for the number of classes."""
    if isinstance(model, str) and ":" not in model:
        return True
    make = model if not isinstance(model, str) else _find(model)
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return True
    return any(p.kind is p.VAR_KEYWORD or name in ("shape", "classes") for name, p in parameters.items())


def _find(name: str) -> Any:
    from offbeat.core import names

    return names.find(nn.Module, name, "model")


def _takes(module: nn.Module) -> tuple[str, ...]:
    """The names of what a module's `forward` takes."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(p.name for p in inspect.signature(module.forward).parameters.values() if p.kind in kinds)
