"""Between a flat vector and a module that can be trained or given away: parameters put into a copy, and taken out."""

from __future__ import annotations

import copy

import torch
from torch import nn

from offbeat.core.errors import ModelError
from offbeat.core.vectors import Vector
from offbeat.models.flat import Flat, as_statistic


def module_with(flat: Flat, vector: Vector, device: torch.device | str = "cpu") -> nn.Module:
    """A copy of the module with a vector [dim] or [size], everything else as it is."""
    passing = [v for layer in flat.module.modules() for v in vars(layer).values() if isinstance(v, torch.Tensor)]
    try:  # what a call has left behind belongs to a graph, and is not copied with it
        memo = {id(tensor): tensor.detach().clone() for tensor in passing if not tensor.is_leaf}
        module = copy.deepcopy(flat.module, memo)
    except Exception as error:
        raise ModelError(f"{type(flat.module).__name__} cannot be copied: {type(error).__name__}: {error}") from error
    tensors = _tensors(module)
    with torch.no_grad():
        for name, value in flat.views(flat.whole(vector.detach())).items():
            tensors[name].copy_(as_statistic(name, value))
    return module.to(device)


def to_train(flat: Flat, vector: Vector, device: torch.device | str = "cpu") -> nn.Module:
    """The same to be trained further: its layers in their modes, and only what is in the vector requires gradients."""
    module = module_with(flat, vector, device)
    for layer, mode in zip(module.modules(), flat.modes, strict=True):
        layer.training = mode
    trained = flat.views(flat.whole(vector))
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in trained)
    return module


def vector_of(flat: Flat, module: nn.Module, like: Vector) -> Vector:
    """The parameters of a trained copy as a vector [d], wherever and however precise they are.

    Raises for a module with other parameters, and for one whose frozen parameters or constant buffers were changed:
    that would be lost.
    """
    tensors, wanted = _tensors(module), flat.views(like)
    here, before = dict(module.named_parameters()), dict(flat.module.named_parameters())
    for name, value in wanted.items():
        if name not in tensors:
            raise ModelError(f"the model lacks its parameter {name!r}; keep its layers and their names")
        if tensors[name].shape != value.shape:
            raise ModelError(f"the parameter {name!r} is {list(tensors[name].shape)} and was {list(value.shape)}")
    for name, parameter in here.items():
        if name not in before:
            raise ModelError(f"the model has a new parameter {name!r}; make all of them when the model is made")
        if name not in wanted and not _same(parameter, before[name]):
            raise ModelError(f"the parameter {name!r} is not trained here, but was changed; leave it as it is")
    buffers = dict(module.named_buffers())
    for name, buffer in flat.module.named_buffers():
        if name in wanted or name not in buffers or name.endswith("num_batches_tracked"):
            continue
        if not _same(buffers[name], buffer):
            raise ModelError(
                f"the buffer {name!r} is constant here, but was changed, perhaps after model.train(): leave its layer "
                'in the mode that it came in, or use statistics = "average" or "local"'
            )
    parts = [tensors[name].detach().to(like.device, like.dtype).reshape(-1) for name in wanted]
    return torch.cat(parts)


def trained(problem: object, vector: Vector) -> nn.Module:
    """The module of a problem with a trained model [dim], or a client's own [size], in evaluation mode, on the CPU."""
    flat = getattr(problem, "flat", None)
    if not isinstance(flat, Flat):
        raise ModelError(f"{getattr(problem, 'name', 'the problem')} has no module, only a vector: see `model`")
    if vector.shape not in ((flat.dim,), (flat.size,)):
        raise ModelError(f"the model has {len(vector):,} parameters, and that of this problem {flat.dim:,}")
    return module_with(flat, vector.cpu()).eval()


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_buffers()), **dict(module.named_parameters())}


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    there = other.detach().to(one.device)
    return one.shape == there.shape and torch.equal(one.detach(), there.to(one.dtype))
