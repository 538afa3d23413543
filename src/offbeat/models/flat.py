"""A module seen as a function of one flat vector, the w ∈ R^d of the papers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatchcase
from functools import cached_property
from hashlib import sha256
from inspect import signature
from itertools import accumulate
from typing import Any, Literal, TypeAlias, TypedDict, cast, get_args

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy

from offbeat.core.errors import ModelError, SettingError
from offbeat.models.dropout import Keyed, drops
from offbeat.models.gpu import kernels

Statistics = Literal["average", "local", "frozen", "refuse"]
Patterns: TypeAlias = "str | Sequence[str] | None"
Precision = Literal["single", "tf32", "bf16"]


class ModelParts(TypedDict, total=False):
    """What of a module is trained, where, and how precisely: see `Flat`."""

    statistics: Statistics
    train: Patterns
    personal: Patterns
    precision: Precision


_HALVES = (torch.bfloat16, torch.float16)
_VARIANCE = "running_var"


class Flat:
    """The trained parameters of a module, one after the other, as one vector of float32 numbers.

    Parameters that two layers share count once. Frozen parameters and buffers are constants and not part of the
    vector; those of half precision stay so. The module itself is never changed, but is swapped parameters for the time
    of a call: two threads need one Flat each.

    The vector has two parts, of which only the first, of `dim` numbers, is the server's: `size` numbers altogether are
    what a client trains. Running statistics that training renews stand in it like parameters, at `running`; their place
    in a gradient is that of their new values (see `Oracle.statistics`).

    statistics: what becomes of running statistics: "average": they stand in the server's part, "local": in the
    client's, "frozen": they stay as they are and layers use them in training too, "refuse": no layer may have any.
    train: patterns of the names of the parameters to train, such as "head.*", among those that require gradients; None:
    all of them.   personal: patterns of those that are the client's own.   precision: "bf16": matrix products and
    convolutions of training are in bfloat16; the vector is not.

    >>> flat = Flat(nn.Linear(2, 1, bias=False))
    >>> flat.dim, flat(torch.tensor([1.0, 10.0]), torch.tensor([[3.0, 4.0]]))
    (2, tensor([[43.]]))
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        statistics: Statistics = "average",
        train: Patterns = None,
        personal: Patterns = None,
        precision: Precision = "single",
    ) -> None:
        for setting, value, allowed in (("statistics", statistics, Statistics), ("precision", precision, Precision)):
            if value not in get_args(allowed):
                raise SettingError(f"{setting} = {value!r}: must be one of {', '.join(get_args(allowed))}")
        self.autocast = precision == "bf16"
        _refuse(module)
        self.module, self.statistics = module, statistics
        trained = _trained(module, train)
        others = _one_name(module, personal, "personal")
        own = [] if personal is None else _matching(trained, personal, "personal", others)
        if len(own) == len(trained):
            raise SettingError(
                f"personal = {personal!r}: that is every trained parameter, so nothing would be learnt jointly"
            )
        running = _running(module)
        if running and statistics == "refuse":
            name, layer = next(iter(running.values()))[1:]
            raise ModelError(
                f"the layer {name or 'itself'!r} ({type(layer).__name__}) keeps running statistics; use GroupNorm or "
                'LayerNorm, or say what becomes of them: statistics = "average", "local" or "frozen"'
            )
        self._frozen_layers = {id(layer) for _, _, layer in running.values()} if statistics == "frozen" else set()
        moving = {} if statistics == "frozen" else {name: buffer for name, (buffer, _, _) in running.items()}
        shared = [name for name in trained if name not in own]
        order = [*shared, *moving, *own] if statistics == "average" else [*shared, *own, *moving]
        tensors = {**trained, **moving}
        self._names, self._moving = order, list(moving)
        self._shapes = [tensors[name].shape for name in order]
        self._sizes = [tensors[name].numel() for name in order]
        at = [sum(self._sizes[:i]) for i in range(len(order) + 1)]
        self.size = at[-1]
        self.dim = at[len(shared) + (len(moving) if statistics == "average" else 0)]
        first = order.index(self._moving[0]) if moving else 0
        self.running = slice(at[first], at[first + len(moving)]) if moving else None
        known = {id(tensor): name for name, tensor in tensors.items()}
        everything = {
            **dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers(remove_duplicate=False)),
        }
        # other names of a layer that stands in the module twice: torch would put back what it has put there itself
        places = [(id(module.get_submodule(n.rpartition(".")[0])), n.rpartition(".")[2]) for n in everything]
        self._again = {n for at, n in enumerate(everything) if places[at] in places[:at]}
        self._tied = {n: known[id(t)] for n, t in everything.items() if n not in tensors and id(t) in known}
        constants = {n: t.detach() for n, t in everything.items() if id(t) not in known}
        self._constants = {torch.device("cpu"): {n: _single(t) for n, t in constants.items()}}
        self._counters = [n for n, t in constants.items() if moving and n.endswith("num_batches_tracked")]
        half = any(t.dtype in _HALVES for n, t in constants.items())
        self._casts = {n: t.dtype for n, t in trained.items() if half and t.dtype in _HALVES}
        # modes as they are now: who changes them later changes nothing here
        self._modes = [(layer, layer.training and id(layer) not in self._frozen_layers) for layer in module.modules()]
        self._evaluated = [(layer, False) for layer in module.modules()]
        self.random = any(layer.training and drops(layer) for layer in module.modules())
        self._still = self._together = False
        self.attends = False  # whether it uses PyTorch's fused attention, as far as is known
        self.seen: set[str] | None = None  # if recorded: the constants that a call replaced
        # where a module keeps its parameters, if putting others there is all that it takes
        plain = all(type(layer).__setattr__ is nn.Module.__setattr__ for layer in module.modules())
        named = [*zip(self._names, range(len(self._names)), strict=True)]
        named += [(other, self._names.index(name)) for other, name in self._tied.items()]
        plain = plain and not self.constants and not moving
        self._places = [(_owner(module, name), at) for name, at in named] if plain else []

    @property
    def moded(self) -> bool:
        """Whether training differs from evaluation: it has layers that drop, or running statistics."""
        return self.random or self.running is not None or bool(self._frozen_layers)

    @cached_property
    def vmappable(self) -> bool:
        """Whether torch.vmap can run it over many vectors at once; recurrent kernels have no batching rule."""
        return not self._has(nn.RNNBase, nn.RNNCellBase)

    @property
    def own(self) -> bool:
        """Whether the module has a form of its own for many vectors at once: `stacked`, in place of torch.vmap.

        It is given no keys: not for a module that drops.
        """
        return not self.random and self._has_form("stacked")

    def adds(self, device: torch.device) -> bool:
        """Whether the module has gradients of its own for many vectors at once, `add_gradient`, and they run there.

        Of a module that drops, it takes the keys of the masks, `keys`.
        """
        return kernels(device) and self._has_form("add_gradient")

    def _has_form(self, name: str) -> bool:
        """Whether the module has this form and it can do what is asked for: `keys` for masks, `half` for bf16."""
        form = getattr(self.module, name, None)
        if form is None or not self._simple:
            return False
        takes = signature(form).parameters
        return (not self.random or "keys" in takes) and (not self.autocast or "half" in takes)

    @property
    def plain(self) -> bool:
        """Whether the vector is all that a call depends on, in the order of the module and in single precision."""
        return self._simple and not (self.random or self.autocast)

    @property
    def _simple(self) -> bool:
        """The same, but for precision and what masks are drawn from."""
        moving = self.running is not None or bool(self._frozen_layers)
        return not (self.constants or self._tied or moving) and self.dim == self.size

    @cached_property
    def convolutional(self) -> bool:
        """Whether it has convolutions, which vmap turns into grouped ones: slow on a CPU."""
        return self._has(_ConvNd)

    @property
    def constants(self) -> bool:
        """Whether it has frozen parameters or buffers, which are no part of the vector."""
        return bool(self._constants[torch.device("cpu")])

    @cached_property
    def frozen(self) -> str:
        """A digest of the frozen parameters: two models with the same one train over the same base; empty: none are."""
        parameters = dict(self.module.named_parameters(remove_duplicate=False))
        fixed = {n: t for n, t in self._constants[torch.device("cpu")].items() if n in parameters}
        found = sha256()
        for name, tensor in sorted(fixed.items()):
            found.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
            found.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        return found.hexdigest() if fixed else ""

    @property
    def averaged(self) -> tuple[int, int] | None:
        """From where to where statistics stand in the server's part."""
        if self.running is None or self.running.start >= self.dim:
            return None
        return self.running.start, self.running.stop

    @property
    def biases(self) -> tuple[tuple[int, int], ...]:
        """From where to where biases stand in the server's part, in order."""
        ends = list(accumulate(self._sizes))
        parts = zip(self._names, ends, self._sizes, strict=True)
        return tuple((end - size, end) for name, end, size in parts if "bias" in name and end <= self.dim)

    @property
    def blocks(self) -> tuple[int, ...]:
        """How many numbers each tensor in the server's part has, in their order."""
        ends = list(accumulate(self._sizes))
        return tuple(size for size, end in zip(self._sizes, ends, strict=True) if end <= self.dim)

    @property
    def modes(self) -> list[bool]:
        """Which of the module's layers, in the order of `modules()`, are in training mode when it is trained."""
        return [mode for _, mode in self._modes]

    def initial(self) -> torch.Tensor:
        """The module's own parameters and statistics as a new vector [dim]: the server's part."""
        return self._initial[: self.dim].clone()

    @property
    def _initial(self) -> torch.Tensor:
        tensors = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        return torch.cat([tensors[name].detach().reshape(-1).float().cpu() for name in self._names])

    @cached_property
    def first(self) -> torch.Tensor:
        """What every client has at first in its own part, [size − dim]."""
        return self._initial[self.dim :].clone()

    def whole(self, vectors: torch.Tensor) -> torch.Tensor:
        """Vectors [..., dim] with what every client has at first in its own part; [..., size] stay as they are."""
        if vectors.shape[-1] == self.size:
            return vectors
        first = self.first.to(vectors.device).expand(*vectors.shape[:-1], -1)
        return torch.cat([vectors, first], -1)

    def parameters(self, vectors: torch.Tensor) -> torch.Tensor:
        """Vectors [..., size] without the statistics."""
        if self.running is None:
            return vectors
        return torch.cat([vectors[..., : self.running.start], vectors[..., self.running.stop :]], -1)

    def views(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """A vector [size] cut into the parameters, by name; nothing is copied."""
        if vector.shape != (self.size,):
            raise ModelError(f"expected a vector of {self.size} parameters, not {list(vector.shape)}")
        pieces = torch.split(vector, self._sizes, -1)
        return {name: piece.view(shape) for name, piece, shape in zip(self._names, pieces, self._shapes, strict=True)}

    def state(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """A vector [dim] or [size] as what the module's `load_state_dict` takes, with everything that is not in it."""
        named = self.views(self.whole(vector))
        named |= {other: named[name] for other, name in self._tied.items()}
        return {name: named.get(name, tensor) for name, tensor in self.module.state_dict().items()}

    def __call__(self, vector: torch.Tensor, *inputs: torch.Tensor) -> Any:
        """The module's output for these parameters [size] and this batch of inputs."""
        return self.apply(vector, forward, *inputs)

    def apply(
        self,
        vector: torch.Tensor,
        function: Callable[..., Any],
        *arguments: torch.Tensor,
        key: torch.Tensor | None = None,
    ) -> Any:
        """What function(module, *arguments) gives with these parameters [size]; `key` is what dropout draws from."""
        return self.noted(vector, function, *arguments, key=key)[0]

    def overshot(self, vector: torch.Tensor) -> str:
        """The running variance that a server has moved below zero in this vector [size]; empty: none."""
        named = self.views(vector) if any(name.endswith(_VARIANCE) for name in self._moving) else {}
        found = (name for name in self._moving if name.endswith(_VARIANCE) and bool((named[name] < 0).any()))
        return next(found, "")

    def noted(
        self,
        vector: torch.Tensor,
        function: Callable[..., Any],
        *arguments: torch.Tensor,
        key: torch.Tensor | None = None,
    ) -> tuple[Any, torch.Tensor]:
        """(the same, the statistics after it, as they stand in the vector)."""
        with self._set(key, vector.device):
            found, named = self._within(self.views(vector), function, arguments, vector.device)
        if self.running is None:
            return found, vector[:0]
        return found, torch.cat([named[name].reshape(-1) for name in self._moving])

    def _within(
        self,
        named: dict[str, torch.Tensor],
        function: Callable[..., Any],
        arguments: Sequence[torch.Tensor],
        device: torch.device,
    ) -> tuple[Any, Mapping[str, torch.Tensor]]:
        for name in self._moving:  # the module writes there
            named[name] = as_statistic(name, named[name].detach()).clone()
        for name, dtype in self._casts.items():
            named[name] = named[name].to(dtype)
        named |= {other: named[name] for other, name in self._tied.items()}
        named |= self._constants_on(device)
        for name in self._counters:
            named[name] = named[name].clone()
        inner = {f"module.{name}": value for name, value in named.items() if name not in self._again}
        # sharing is resolved above, once; torch would search the module for it at every call
        found = functional_call(_Within(self.module, function), inner, tuple(arguments), tie_weights=False)
        if self.seen is not None:
            fixed = [n for n in self._constants_on(device) if n not in self._again]
            self.seen.update(n for n in fixed if inner[f"module.{n}"] is not named[n])
        return found, {name: inner[f"module.{name}"] for name in self._moving}

    @contextmanager
    def _training(self, key: torch.Tensor | None, device: torch.device) -> Iterator[None]:
        precise = torch.autocast(device.type, torch.bfloat16) if self.autocast else nullcontext()
        drawing = Keyed(key, written=self._together) if self.random or self._writes else nullcontext()
        with self._in_modes(self._modes), drawing, precise:
            yield
        self.attends = self.attends or (isinstance(drawing, Keyed) and drawing.attends)

    def _set(self, key: torch.Tensor | None, device: torch.device) -> Any:
        """The surroundings of a call: those of training, unless within `evaluating`."""
        plain = self._still or not (self.moded or self.autocast or self._writes)
        return nullcontext() if plain else self._training(key, device)

    @property
    def _writes(self) -> bool:
        """Whether attention has to be written out."""
        return self.attends and self._together

    @contextmanager
    def together(self) -> Iterator[None]:
        """Within, calls are those of many clients at once, by torch.vmap."""
        before, self._together = self._together, True
        try:
            yield
        finally:
            self._together = before

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Within, calls are those of evaluation: nothing is dropped, statistics are used and not renewed."""
        if self._still:
            yield
            return
        quick = torch.backends.mha.get_fastpath_enabled()
        self._still = True
        torch.backends.mha.set_fastpath_enabled(False)  # it has no rule for torch.vmap, and other roundings
        try:
            with self._in_modes(self._evaluated), Keyed(None) if self.random else nullcontext():
                yield
        finally:
            self._still = False
            torch.backends.mha.set_fastpath_enabled(quick)

    @contextmanager
    def _in_modes(self, modes: Sequence[tuple[nn.Module, bool]]) -> Iterator[None]:
        changed = [(layer, layer.training) for layer, mode in modes if layer.training is not mode]
        for layer, before in changed:
            layer.training = not before
        try:
            yield
        finally:
            for layer, before in changed:
                layer.training = before

    def stacked(self, vectors: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The outputs of the module's own stacked form for n vectors [n, d] and a batch of inputs for each [n, ...]."""
        half = {"half": True} if self.autocast else {}
        outputs: torch.Tensor = cast("Any", self.module).stacked(self.named(vectors), x, **half)
        return outputs

    def named(self, vectors: torch.Tensor) -> dict[str, torch.Tensor]:
        """n vectors [n, d] cut into the parameters [n, ...], by name; nothing is copied."""
        pieces = zip(self._names, torch.split(vectors, self._sizes, 1), self._shapes, strict=True)
        return {name: piece.view(-1, *shape) for name, piece, shape in pieces}

    def pieces(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """A vector [size] cut into the parameters for `alone`, each a tensor of its own to differentiate by."""
        found = [piece.detach() for piece in self.views(vector).values()]
        if vector.device.type == "cpu":  # convolutions and pooling are quicker there with the channels last
            found = [p.to(memory_format=torch.channels_last) if p.dim() == 4 else p for p in found]
        return found

    def leaves(self, pieces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Those of the pieces that are parameters, ready to be differentiated by."""
        named = zip(self._names, pieces, strict=True)
        return [piece.requires_grad_() for name, piece in named if name not in self._moving]

    def alone(
        self,
        pieces: list[torch.Tensor],
        function: Callable[..., Any],
        *arguments: torch.Tensor,
        key: torch.Tensor | None = None,
        then: Callable[[Any], Any] | None = None,
    ) -> Any:
        """The same for one client's pieces, those of statistics being renewed; not for torch.vmap.

        then: what becomes of the output while the pieces are in their places, such as a backward pass, in which a model
        may compute something again (torch.utils.checkpoint).
        """
        device = pieces[0].device
        if self.convolutional and device.type == "cpu":
            arguments = tuple(a.to(memory_format=torch.channels_last) if a.dim() == 4 else a for a in arguments)

        def call(module: nn.Module, *given: torch.Tensor) -> Any:
            with self._set(key, device):
                found = function(module, *given)
            return found if then is None else then(found)

        return self._alone(pieces, call, arguments, device)

    def _alone(
        self,
        pieces: list[torch.Tensor],
        function: Callable[..., Any],
        arguments: Sequence[torch.Tensor],
        device: torch.device,
    ) -> Any:
        if not self._places:
            found, named = self._within(dict(zip(self._names, pieces, strict=True)), function, arguments, device)
            for name, value in named.items():
                pieces[self._names.index(name)] = value
            return found
        own = [place[key] for (place, key), _ in self._places]
        try:
            for (place, key), at in self._places:
                place[key] = pieces[at]
            return function(self.module, *arguments)
        finally:
            for ((place, key), _), parameter in zip(self._places, own, strict=True):
                place[key] = parameter

    def gathered(self, slopes: Sequence[torch.Tensor], pieces: Sequence[torch.Tensor]) -> torch.Tensor:
        """Gradients by the leaves as a vector [size]; statistics stand in it with their values in the pieces."""
        if self.running is None:
            return torch.cat([slope.reshape(-1) for slope in slopes])
        by_leaf = iter(slopes)
        named = zip(self._names, pieces, strict=True)
        return torch.cat([(p if name in self._moving else next(by_leaf)).reshape(-1) for name, p in named])

    def fixed(self, device: torch.device) -> dict[str, torch.Tensor]:
        """The buffers that are constants, by name."""
        buffers = dict(self.module.named_buffers(remove_duplicate=False))
        return {n: t for n, t in self._constants_on(device).items() if n in buffers and n not in self._counters}

    def _constants_on(self, device: torch.device) -> dict[str, torch.Tensor]:
        if device not in self._constants:
            cpu = self._constants[torch.device("cpu")]
            self._constants[device] = {name: tensor.to(device) for name, tensor in cpu.items()}
        return self._constants[device]

    def _has(self, *kinds: type[nn.Module]) -> bool:
        return any(isinstance(layer, kinds) for layer in self.module.modules())


class _Within(nn.Module):
    """A function of a module as a module itself, so that torch can put other parameters into it for a call."""

    def __init__(self, module: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self, *arguments: torch.Tensor) -> Any:
        return self.function(self.module, *arguments)


def as_statistic(name: str, value: torch.Tensor) -> torch.Tensor:
    """What a module gets of this name: a variance is at least zero, although a server may have stepped too far."""
    return value.clamp_min(0.0) if name.endswith(_VARIANCE) else value


def forward(module: nn.Module, *inputs: torch.Tensor) -> Any:
    """A module's output, as a function of the module."""
    return module(*inputs)


def _owner(module: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """The table in which a parameter stands, and its key there."""
    path, _, key = name.rpartition(".")
    return cast("dict[str, Any]", module.get_submodule(path)._parameters), key


def _single(tensor: torch.Tensor) -> torch.Tensor:
    """The same constant, in single precision like the vector if it is more precise; half precision stays."""
    found = tensor.detach().cpu()
    return found.float() if found.dtype == torch.float64 else found


def _trained(module: nn.Module, patterns: Patterns) -> dict[str, nn.Parameter]:
    """The parameters to train, by name."""
    found = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not found:
        raise ModelError(f"{type(module).__name__} has no parameter to train (none has requires_grad)")
    if patterns is None:
        return found
    return {name: found[name] for name in _matching(found, patterns, "train", _one_name(module, patterns, "train"))}


def _one_name(module: nn.Module, patterns: Patterns, setting: str) -> list[str]:
    """The other names of shared parameters. Raise if patterns match one of them, and not what it goes by."""
    if patterns is None:
        return []
    each = [patterns] if isinstance(patterns, str) else patterns
    names = {id(p): name for name, p in module.named_parameters()}
    others = [(name, p) for name, p in module.named_parameters(remove_duplicate=False) if name != names[id(p)]]
    for other, p in others:
        hits = [any(fnmatchcase(name, pattern) for pattern in each) for name in (other, names[id(p)])]
        if p.requires_grad and hits[0] and not hits[1]:
            raise SettingError(
                f"{setting} = {patterns!r}: {other} is {names[id(p)]} by another name, which no pattern matches; name "
                "both, or neither"
            )
    return [name for name, _ in others]


def _matching(names: Mapping[str, Any], patterns: Patterns, setting: str, others: Sequence[str] = ()) -> list[str]:
    """Those of these names that match one of the patterns, each of which matches one of them, or another name."""
    each = [patterns] if isinstance(patterns, str) else list(patterns or ())
    for pattern in each:
        if not any(fnmatchcase(name, pattern) for name in (*names, *others)):
            known = ", ".join([*names][:8]) + (", …" if len(names) > 8 else "")
            raise SettingError(f"{setting} = {pattern!r}: no trained parameter has such a name; there are {known}")
    if not each:
        raise SettingError(f"{setting} = []: name at least one parameter, or leave it out")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in each)]


def _running(module: nn.Module) -> dict[str, tuple[torch.Tensor, str, nn.Module]]:
    """The buffers that training renews, by name, each with its layer: those of layers that are in training mode."""
    found: dict[str, tuple[torch.Tensor, str, nn.Module]] = {}
    for name, layer in module.named_modules():
        own: Sequence[str] = ()
        if isinstance(layer, _NormBase):
            own = ("running_mean", "running_var") if layer.running_mean is not None else ()
        elif isinstance(getattr(layer, "statistics", None), tuple | list):
            own = cast("Any", layer).statistics
        for key in own if layer.training else ():
            buffer = layer._buffers.get(key)
            if buffer is None or not buffer.is_floating_point():
                raise ModelError(
                    f"the layer {name or 'itself'!r} ({type(layer).__name__}) lists {key!r} among its statistics; list "
                    "buffers of real numbers"
                )
            found[f"{name}.{key}" if name else key] = (buffer, name, layer)
    return found


_RANDOM = "draws from torch's global random state, so no run could be repeated; set {}"

# (layers, whether this one cannot be used in training, why and what to do)
_REFUSED: tuple[tuple[type[nn.Module] | tuple[type[nn.Module], ...], Callable[..., bool], str], ...] = (
    (
        _NormBase,
        lambda layer: layer.training and layer.running_mean is not None and layer.momentum is None,
        "averages its statistics over all batches (momentum=None), which depends on their number; set momentum=0.1",
    ),
    (
        nn.RNNBase,
        lambda layer: layer.training and layer.dropout > 0,
        "drops inside of its kernel, " + _RANDOM.format("dropout=0 and put nn.Dropout between layers"),
    ),
    (
        nn.RReLU,
        lambda layer: layer.training and layer.lower < layer.upper,
        _RANDOM.format("lower=upper or use LeakyReLU"),
    ),
    (
        (nn.Embedding, nn.EmbeddingBag),
        lambda layer: layer.max_norm is not None or layer.sparse,
        "rewrites its weights in place (max_norm) or has sparse gradients; use neither",
    ),
)


def _refuse(module: nn.Module) -> None:
    """Raise for a layer that makes the module something else than a function of its parameters."""
    for name, layer in module.named_modules():
        if isinstance(layer, torch.jit.ScriptModule):
            raise ModelError(
                f"the layer {name or 'itself'!r} is TorchScript, which reads its own parameters; give the "
                "module that it was made from"
            )
    for kind, tensors in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
        for name, tensor in tensors:
            if is_lazy(tensor):
                raise ModelError(f"the {kind} {name!r} is lazy and has no shape yet; run the module once first")
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and not parameter.is_floating_point():
            raise ModelError(f"the parameter {name!r} is {parameter.dtype}; only real numbers can be trained")
    _apart(module)
    for name, layer in module.named_modules():
        for kinds, bad, reason in _REFUSED:
            if isinstance(layer, kinds) and bad(layer):
                raise ModelError(f"the layer {name or 'itself'!r} ({type(layer).__name__}) {reason}")


def _apart(module: nn.Module) -> None:
    """Raise if two parameters share memory, one of which is trained: torch's optimisers would move both at once."""
    end, last, trained = (0, 0), "", False
    for start, stop, name, trains in sorted(_extents(module)):
        if start < end and (trains or trained):
            raise ModelError(
                f"the parameters {last!r} and {name!r} share memory, but are two parameters; tie them by giving both "
                "layers one nn.Parameter, as in head.weight = embedding.weight"
            )
        if stop > end:
            end, last, trained = stop, name, trains


def _extents(module: nn.Module) -> Iterator[tuple[tuple[int, int], tuple[int, int], str, bool]]:
    """(where it begins in memory, and where it ends, name, whether it is trained) of each parameter."""
    for name, p in module.named_parameters():
        if p.numel() and p.device.type != "meta":
            last = sum((size - 1) * stride for size, stride in zip(p.shape, p.stride(), strict=True))
            at = hash(p.device)
            yield (at, p.data_ptr()), (at, p.data_ptr() + (last + 1) * p.element_size()), name, p.requires_grad
