"""A module seen as a function of one flat vector, the w ∈ R^d of the papers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, cast

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from offbeat.core.errors import ModelError
from offbeat.models.gpu import kernels


class Flat:
    """The trained parameters of a module, one after the other, as one vector of d float32 numbers.

    Parameters that two layers share count once. Frozen parameters and buffers are constants and not part of the
    vector. The module itself is never changed, but is swapped parameters for the time of a call: two threads
    need one Flat each.

    >>> flat = Flat(nn.Linear(2, 1, bias=False))
    >>> flat.dim, flat(torch.tensor([1.0, 10.0]), torch.tensor([[3.0, 4.0]]))
    (2, tensor([[43.]]))
    """

    def __init__(self, module: nn.Module) -> None:
        _refuse(module)
        self.module = module
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not trained:
            raise ModelError(f"{type(module).__name__} has no parameter to train (none has requires_grad)")
        self._names = list(trained)
        self._shapes = [p.shape for p in trained.values()]
        self._sizes = [p.numel() for p in trained.values()]
        self.dim = sum(self._sizes)
        first = {id(p): name for name, p in trained.items()}
        everything = dict(module.named_parameters(remove_duplicate=False))
        self._tied = {n: first[id(p)] for n, p in everything.items() if n not in trained and id(p) in first}
        frozen = {n: p.detach() for n, p in everything.items() if id(p) not in first}
        buffers = dict(module.named_buffers(remove_duplicate=False))
        self._constants = {torch.device("cpu"): {n: _single(t) for n, t in {**frozen, **buffers}.items()}}
        # where a module keeps its parameters, if putting others there is all that it takes
        plain = all(type(layer).__setattr__ is nn.Module.__setattr__ for layer in module.modules())
        named = [*zip(self._names, range(len(self._names)), strict=True)]
        named += [(other, self._names.index(name)) for other, name in self._tied.items()]
        self._places = [(_owner(module, name), at) for name, at in named] if plain and not self.constants else []

    @cached_property
    def vmappable(self) -> bool:
        """Whether torch.vmap can run it over many vectors at once; recurrent kernels have no batching rule."""
        return not self._has(nn.RNNBase, nn.RNNCellBase)

    @cached_property
    def own(self) -> bool:
        """Whether the module has a form of its own for many vectors at once: `stacked`, in place of torch.vmap."""
        return hasattr(self.module, "stacked") and not self.constants and not self._tied

    def adds(self, device: torch.device) -> bool:
        """Whether the module has gradients of its own for many vectors at once, `add_gradient`, and they run there."""
        return hasattr(self.module, "add_gradient") and kernels(device) and not self.constants and not self._tied

    @cached_property
    def convolutional(self) -> bool:
        """Whether it has convolutions, which vmap turns into grouped ones: slow on a CPU."""
        return self._has(_ConvNd)

    @property
    def constants(self) -> bool:
        """Whether it has frozen parameters or buffers, which are no part of the vector."""
        return bool(self._constants[torch.device("cpu")])

    def initial(self) -> torch.Tensor:
        """The module's own parameters as a new vector [d]."""
        parameters = dict(self.module.named_parameters())
        return torch.cat([parameters[name].detach().reshape(-1).float() for name in self._names])

    def views(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """A vector [d] cut into the parameters, by name; nothing is copied."""
        if vector.shape != (self.dim,):
            raise ModelError(f"expected a vector of {self.dim} parameters, not {list(vector.shape)}")
        pieces = torch.split(vector, self._sizes, -1)
        return {name: piece.view(shape) for name, piece, shape in zip(self._names, pieces, self._shapes, strict=True)}

    def __call__(self, vector: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The module's output for these parameters [d] and this batch of inputs."""
        named = self.views(vector)
        for other, name in self._tied.items():
            named[other] = named[name]
        named.update(self._constants_on(vector.device))
        # sharing is resolved above, once; torch would search the module for it at every call
        output: torch.Tensor = functional_call(self.module, named, (x,), tie_weights=False)
        return output

    def stacked(self, vectors: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The outputs of the module's own stacked form for n vectors [n, d] and a batch of inputs for each [n, ...]."""
        outputs: torch.Tensor = cast("Any", self.module).stacked(self.named(vectors), x)
        return outputs

    def named(self, vectors: torch.Tensor) -> dict[str, torch.Tensor]:
        """n vectors [n, d] cut into the parameters [n, ...], by name; nothing is copied."""
        pieces = zip(self._names, torch.split(vectors, self._sizes, 1), self._shapes, strict=True)
        return {name: piece.view(-1, *shape) for name, piece, shape in pieces}

    def pieces(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """A vector [d] cut into the parameters for `alone`, each a tensor of its own to differentiate by."""
        found = [piece.detach() for piece in self.views(vector).values()]
        if vector.device.type == "cpu":  # convolutions and pooling are quicker there with the channels last
            found = [p.to(memory_format=torch.channels_last) if p.dim() == 4 else p for p in found]
        return found

    def alone(self, pieces: Sequence[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        """The module's output for one client's parameters, cut into pieces; not for torch.vmap."""
        if x.dim() == 4 and x.device.type == "cpu" and self.convolutional:
            x = x.to(memory_format=torch.channels_last)
        output: torch.Tensor
        if not self._places:
            named = dict(zip(self._names, pieces, strict=True))
            named |= {other: named[name] for other, name in self._tied.items()}
            named |= self._constants_on(x.device)
            output = functional_call(self.module, named, (x,), tie_weights=False)
            return output
        own = [place[key] for (place, key), _ in self._places]
        try:
            for (place, key), at in self._places:
                place[key] = pieces[at]
            output = self.module(x)
        finally:
            for ((place, key), _), parameter in zip(self._places, own, strict=True):
                place[key] = parameter
        return output

    def _constants_on(self, device: torch.device) -> dict[str, torch.Tensor]:
        if device not in self._constants:
            cpu = self._constants[torch.device("cpu")]
            self._constants[device] = {name: tensor.to(device) for name, tensor in cpu.items()}
        return self._constants[device]

    def _has(self, *kinds: type[nn.Module]) -> bool:
        return any(isinstance(layer, kinds) for layer in self.module.modules())


def _owner(module: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """The table in which a parameter stands, and its key there."""
    path, _, key = name.rpartition(".")
    return cast("dict[str, Any]", module.get_submodule(path)._parameters), key


def _single(tensor: torch.Tensor) -> torch.Tensor:
    """The same constant, in single precision like the vector if it is a real number."""
    return tensor.detach().float().cpu() if tensor.is_floating_point() else tensor.detach().cpu()


_RANDOM = "draws from torch's global random state, so no run could be repeated; set {}"

# (layers, whether this one cannot be used, why and what to do)
_REFUSED: tuple[tuple[type[nn.Module] | tuple[type[nn.Module], ...], Callable[..., bool], str], ...] = (
    (
        _NormBase,
        lambda layer: layer.running_mean is not None,
        "keeps running statistics, which are not parameters and cannot be aggregated; use GroupNorm or LayerNorm, "
        "or track_running_stats=False",
    ),
    (_DropoutNd, lambda layer: layer.p > 0, _RANDOM.format("p=0")),
    ((nn.RNNBase, nn.MultiheadAttention), lambda layer: layer.dropout > 0, _RANDOM.format("dropout=0")),
    (nn.RReLU, lambda layer: layer.lower < layer.upper, _RANDOM.format("lower=upper or use LeakyReLU")),
    (
        (nn.Embedding, nn.EmbeddingBag),
        lambda layer: layer.max_norm is not None or layer.sparse,
        "rewrites its weights in place (max_norm) or has sparse gradients; use neither",
    ),
)


def _refuse(module: nn.Module) -> None:
    """Raise for a layer that makes the module something else than a function of its parameters."""
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise ModelError(f"the parameter {name!r} is lazy and has no shape yet; run the module once first")
        if not parameter.is_floating_point():
            raise ModelError(f"the parameter {name!r} is {parameter.dtype}; only real numbers can be trained")
    for name, layer in module.named_modules():
        for kinds, bad, reason in _REFUSED:
            if isinstance(layer, kinds) and bad(layer):
                raise ModelError(f"the layer {name or 'itself'!r} ({type(layer).__name__}) {reason}")
