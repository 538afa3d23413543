"""From a model's name to a module with its first parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from offbeat.core import names
from offbeat.core.errors import DataError, ModelError, SettingError, failure, unknown
from offbeat.models.conv import CNN, CifarCNN, LeNet5
from offbeat.models.gpt import GPT
from offbeat.models.huggingface import HuggingFace
from offbeat.models.linear import MLP, Linear, Softmax
from offbeat.models.lstm import LSTM
from offbeat.models.resnet import BatchNormResNet18, ResNet18

NAMES: Mapping[str, Callable[..., nn.Module]] = {
    "softmax": Softmax,
    "linear": Linear,
    "mlp": MLP,
    "lenet5": LeNet5,
    "cnn": CNN,
    "cifar-cnn": CifarCNN,
    "lstm": LSTM,
    "gpt": GPT,
    "huggingface": HuggingFace,
    "resnet18-gn": ResNet18,
    "resnet18": BatchNormResNet18,
}


names.register(nn.Module, NAMES, "offbeat.models")


def build(
    model: str | Callable[..., nn.Module], shape: Sequence[int], classes: int, seed: int, **options: Any
) -> nn.Module:
    """The model for inputs of this shape; equal seeds give equal parameters.

    model: one of NAMES, "package.module:factory", or anything callable that returns a module; a factory is given
    `shape` and `classes` if it has arguments of these names. torch's own random state is left as it was.
    """
    if classes < 1:
        raise SettingError(f"classes = {classes}: a model needs at least one output")
    make = names.find(nn.Module, model, "model") if isinstance(model, str) else model
    name = model if isinstance(model, str) else getattr(model, "__name__", repr(model))
    if not callable(make):
        raise SettingError(f"model: {name} is a {type(make).__name__}, not callable")
    accepted = _parameters(make)
    arguments = {"shape": tuple(shape), "classes": classes}
    if all(p.kind is not p.VAR_KEYWORD for p in accepted.values()):
        arguments = {k: v for k, v in arguments.items() if k in accepted}
        for key in options:
            if key not in accepted or key in arguments:
                raise unknown(f"option of the model {name}:", key, accepted.keys() - {"shape", "classes"})
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed % 2**64)  # torch.manual_seed would reseed the GPUs too
        try:
            module = make(**{**options, **arguments})
        except (DataError, ModelError):
            raise
        except Exception as error:
            given = ", ".join(f"{k} = {v!r}" for k, v in options.items())
            plain = isinstance(error, SettingError) or make in NAMES.values()
            why = " ".join(str(error).split()) if plain else failure(error)
            raise SettingError(f"model {name!r}{f' with {given}' if given else ''} cannot be made: {why}") from error
    if not isinstance(module, nn.Module):
        raise SettingError(f"{name} gave a {type(module).__name__}, not a torch.nn.Module")
    return module


def required(make: Callable[..., nn.Module], name: str) -> bool:
    """Whether a factory has an argument of this name without a default."""
    found = _parameters(make).get(name)
    return found is not None and found.default is found.empty


def _parameters(make: Callable[..., nn.Module]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):  # some callables written in C have none
        return MappingProxyType({})
