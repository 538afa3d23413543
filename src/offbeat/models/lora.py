"""Low-rank adapters over a frozen module: W x becomes W x + s·B A x, and only the small matrices A and B are trained.

The frozen base is one set of constants, however many clients are stacked; what travels and is aggregated are the
adapters. The mean of products is not the product of means: clients with (A_i, B_i) trained a change B_i A_i, and a
server that averages A and B separately applies mean(B_i)·mean(A_i). With `fixed`, all clients share one random A, and
the two agree (FFA-LoRA).
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import sqrt
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from offbeat.core.errors import Checked, Count, ModelError, Positive, SettingError
from offbeat.core.random import signed

_TRANSPOSED = "Conv1D"  # a linear layer of transformers whose weights stand the other way round


@dataclass(frozen=True)
class LoRA(Checked):
    """Low-rank adapters on some linear layers; everything else is frozen.

    rank: of the change of each layer's weights, r.
    alpha: changes are multiplied by alpha/rank; default: rank.
    targets: names of the layers that get adapters, such as "blocks.*.attend.ask"; default: all linear layers.
    also: names of the base's parameters that are trained in full, such as "head.*".
    fixed: A stays as it is drawn, the same for all clients, and only B is trained (FFA-LoRA): averages are then exact.
    dora: the length of each output's weights is trained apart from their direction (DoRA).
    dropout: probability, on what adapters see.
    base: precision of what is frozen: "bf16" takes half the memory; adapters are always in single precision.
    """

    rank: Count
    alpha: Positive | None = None
    targets: str | tuple[str, ...] = "*"
    also: str | tuple[str, ...] = ()
    fixed: bool = False
    dora: bool = False
    dropout: float = 0.0
    base: Literal["single", "bf16"] = "single"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.dropout < 1.0:
            raise SettingError(f"dropout = {self.dropout}: must be at least 0 and less than 1")

    @property
    def scale(self) -> float:
        """What a change is multiplied by, s."""
        return (self.rank if self.alpha is None else self.alpha) / self.rank


class Adapted(nn.Module):
    """A frozen linear layer and its adapter: a [rank, inputs], b [outputs, rank], and the outputs' lengths for DoRA."""

    def __init__(self, base: nn.Module, lora: LoRA, drawn: torch.Generator) -> None:
        super().__init__()
        inputs, outputs = _sizes(base)
        bound = 1 / sqrt(inputs)
        self.base, self.scale = base, lora.scale
        self.a = nn.Parameter(torch.empty(lora.rank, inputs).uniform_(-bound, bound, generator=drawn))
        self.b = nn.Parameter(torch.zeros(outputs, lora.rank))
        self.a.requires_grad_(not lora.fixed)
        self.drop = nn.Dropout(lora.dropout)
        self.lengths = nn.Parameter(self.matrix.float().norm(dim=1)) if lora.dora else None
        # nn.TransformerEncoderLayer's fast path reads the weights of its layers itself, unless one of them has a hook
        self.register_forward_pre_hook(_nothing)

    @property
    def weight(self) -> Tensor:
        """The base's, for modules that ask for its kind."""
        found: Tensor = self.base.weight  # type: ignore[assignment]
        return found

    @property
    def bias(self) -> Tensor | None:
        """The base's."""
        found: Tensor | None = self.base.bias  # type: ignore[assignment]
        return found

    @property
    def matrix(self) -> Tensor:
        """The base's weights as [outputs, inputs]."""
        return self.weight.detach().T if self._transposed else self.weight.detach()

    @property
    def _transposed(self) -> bool:
        return type(self.base).__name__ == _TRANSPOSED

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a.to(x.dtype), self.b.to(x.dtype)
        found: Tensor = self.base(x)
        change = self.scale * functional.linear(functional.linear(self.drop(x), a), b)
        if self.lengths is None:
            return found + change
        plain = found if self.bias is None else found - self.bias
        ratio = (self.lengths / self._norms().detach()).to(x.dtype)  # DoRA, §4.3: no gradient through the norm
        scaled = ratio * (plain + change)
        return scaled if self.bias is None else scaled + self.bias

    def _norms(self) -> Tensor:
        """Lengths of the rows of W + s·B A, without a matrix of the size of W for each client."""
        w = self.matrix.float()
        cross = (self.b * (w @ self.a.T)).sum(1)
        squares = (self.b @ (self.a @ self.a.T) * self.b).sum(1)
        return ((w * w).sum(1) + 2 * self.scale * cross + self.scale**2 * squares).clamp_min(0.0).sqrt()

    @torch.no_grad()
    def merged(self) -> nn.Module:
        """The base, its weights changed by what the adapter adds to them; it has to be in single precision."""
        matrix = self.matrix + self.scale * self.b @ self.a
        if self.lengths is not None:
            matrix = (self.lengths / self._norms())[:, None] * matrix
        self.weight.copy_(matrix.T if self._transposed else matrix)
        return self.base


def _nothing(*_: object) -> None:
    """A hook that does nothing."""


def adapted(module: nn.Module, lora: LoRA | None, seed: int) -> nn.Module:
    """A copy of a module with adapters, which are drawn from the seed; the module itself where there are to be none."""
    if lora is None:
        return module
    if not isinstance(lora, LoRA):
        raise SettingError(f"lora = {lora!r}: expected LoRA(rank=…) from offbeat.models.lora")
    module = copy.deepcopy(module)
    names = dict(module.named_parameters(remove_duplicate=False))  # of a shared one, all
    trained = {id(p) for name, p in names.items() if any(fnmatchcase(name, each) for each in _listed(lora.also))}
    for pattern in _listed(lora.also):
        if not any(fnmatchcase(name, pattern) for name in names):
            raise SettingError(f"lora.also = {pattern!r}: no parameter has such a name; there are {_some([*names])}")
    for parameter in module.parameters():
        parameter.requires_grad_(id(parameter) in trained)
    if lora.base == "bf16":
        module.to(torch.bfloat16)
    drawn = torch.Generator().manual_seed(signed(seed % 2**64))
    for name, layer in [*_targets(module, lora)]:
        parent, _, key = name.rpartition(".")
        setattr(module.get_submodule(parent), key, Adapted(layer, lora, drawn))
    return module


def merged(module: nn.Module) -> nn.Module:
    """A module whose adapters are in their layers' weights, in single precision; its names are those without adapters.

    Changes the module. Raises where a layer shares its weights with another, which has no adapter.
    """
    layers = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, Adapted)]
    if not layers:
        return module
    module.float()
    shared = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
    for name, layer in layers:
        if shared[id(layer.weight)] > 1:
            raise ModelError(
                f"the adapter of {name} cannot become part of its weights: other layers have the same weights; choose "
                'lora.targets without it, or export "state-dict"'
            )
        parent, _, key = name.rpartition(".")
        setattr(module.get_submodule(parent), key, layer.merged())
    return module


def _targets(module: nn.Module, lora: LoRA) -> Iterator[tuple[str, nn.Module]]:
    """The layers that get adapters, by name."""
    layers = {name: layer for name, layer in module.named_modules() if name and _sizes(layer) != (0, 0)}
    if not layers:
        raise ModelError(f"{type(module).__name__} has no linear layer for adapters")
    for pattern in _listed(lora.targets):
        if not any(fnmatchcase(name, pattern) for name in layers):
            raise SettingError(
                f"lora.targets = {pattern!r}: no linear layer has such a name; there are {_some([*layers])}"
            )
    for name, layer in layers.items():
        if not any(fnmatchcase(name, pattern) for pattern in _listed(lora.targets)):
            continue
        if isinstance(module.get_submodule(name.rpartition(".")[0]), nn.MultiheadAttention):
            raise SettingError(
                f"lora.targets: {name} is in nn.MultiheadAttention, which reads its weights itself, so that adapters "
                "would do nothing; name other layers"
            )
        yield name, layer


def _sizes(layer: nn.Module) -> tuple[int, int]:
    """(inputs, outputs) of a linear layer; (0, 0) for any other."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    weight = getattr(layer, "weight", None)
    if type(layer).__name__ == _TRANSPOSED and isinstance(weight, Tensor) and weight.dim() == 2:
        return weight.shape[0], weight.shape[1]
    return 0, 0


def _listed(patterns: str | tuple[str, ...]) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else patterns


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
