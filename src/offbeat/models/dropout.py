"""Dropout whose masks are functions of a key, and not of torch's global random state.

Within `Keyed(key)`, every call of dropout that a model makes, by a module or a function, in attention too, draws its
mask from the key, the number of the call in the forward pass and the number of the element. The same key gives the same
masks alone and under torch.vmap, on every device and in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from offbeat.core.random import bits, draw, signed

_ALPHA = -1.7580993408473766  # where SELU ends on the left


_UNFOLDED: list[bool] = []


@contextmanager
def unfolded() -> Iterator[None]:
    """Within, masks are drawn in a form that can be traced and compiled; they are the same."""
    _UNFOLDED.append(True)
    try:
        yield
    finally:
        _UNFOLDED.pop()


def drops(layer: nn.Module) -> bool:
    """Whether this layer drops something in training."""
    if isinstance(layer, _DropoutNd):
        return layer.p > 0
    return isinstance(layer, nn.MultiheadAttention) and layer.dropout > 0


class Keyed(TorchFunctionMode):
    """Within, dropout draws from a key, an int64 tensor []; without one, nothing is dropped. A new one for every call.

    written: attention is written out also where nothing is dropped: fused, it has no rule for many clients' gradients.
    calls: how often something was dropped.   attends: whether there was such attention.
    """

    def __init__(self, key: Tensor | None, written: bool = False) -> None:
        super().__init__()
        self.key, self.written, self.calls, self.attends = key, written, 0, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _OWN:
            return _OWN[func](self, *args, **(kwargs or {}))
        if func in _OPEN:  # a mode is off inside of it, and there is dropout in these functions
            with self:
                return _OPEN[func](*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def kept(self, x: Tensor, p: float) -> Tensor | None:
        """1 where an element is kept and 0 where it is dropped, in the shape of x; None: all are."""
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        if self.key is None or p == 0.0:
            return None
        self.calls += 1
        return _kept(self.key, self.calls, x, p)

    def dropped(self, x: Tensor, p: float) -> Tensor:
        kept = self.kept(x, p)
        if kept is None:
            return x
        return x * (kept / (1.0 - p)) if p < 1.0 else x * 0.0


def dropped(x: Tensor, keys: Tensor, call: int, p: float) -> Tensor:
    """n models' x [n, ...] as each of them has it within `Keyed` after this call of dropout; keys [n]."""
    kept = _kept(keys.view(-1, *[1] * (x.dim() - 1)), call, x[0], p).float()  # 1 / (1 - p) has more than 16 bits
    return (x * (kept / (1.0 - p))).to(x.dtype)


def _kept(key: Tensor, call: int, x: Tensor, p: float) -> Tensor:
    """1 where an element of x is kept; key: one, or those of many such x, with as many dimensions more."""
    counters = torch.arange(x.numel(), device=x.device).view(x.shape)
    if _UNFOLDED:  # inductor would fold counters and factors into an index, which does not wrap around
        counters = counters ^ (key & 0)
    return (((bits(draw(key, call), counters) >> 32) & 0xFFFFFFFF) >= round(p * 2**32)).to(x.dtype)


def _dropout(mode: Keyed, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    found = mode.dropped(input, p) if training else input
    return input.copy_(found) if inplace and found is not input else found


def _dropout_(mode: Keyed, input: Tensor, p: float, train: bool) -> Tensor:
    return _dropout(mode, input, p, train, inplace=True)


def _channels(x: Tensor, places: int | None) -> Tensor:
    """One element for each channel: all dimensions but the first two are 1; a single sample comes without the first."""
    first = 1 if places is not None and x.dim() == places + 1 else 2
    return x.new_ones(*x.shape[:first], *([1] * (x.dim() - first)))


def _feature(places: int | None) -> Callable[..., Tensor]:
    def dropout(mode: Keyed, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        found = input * mode.dropped(_channels(input, places), p) if training and mode.key is not None else input
        return input.copy_(found) if inplace and found is not input else found

    return dropout


def _alpha(whole: bool) -> Callable[..., Tensor]:
    """Dropout for SELU: dropped elements take SELU's lowest value, and mean and variance stay."""

    def dropout(mode: Keyed, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
        kept = mode.kept(_channels(input, None) if whole else input, p) if training else None
        if kept is None:
            return input
        if p == 1.0:
            return input * 0.0
        scale = ((1.0 - p) * (1.0 + p * _ALPHA**2)) ** -0.5
        found = scale * (input * kept + _ALPHA * (1.0 - kept) - _ALPHA * p)
        return input.copy_(found) if inplace else found

    return dropout


def _attention(
    mode: Keyed,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Scaled dot-product attention, written out where its weights are dropped."""
    mode.attends = True
    if not mode.written and (mode.key is None or dropout_p == 0.0):
        attend: Any = F.scaled_dot_product_attention
        found: Tensor = attend(
            query, key, value, attn_mask, 0.0, is_causal, scale=scale, **({"enable_gqa": True} if enable_gqa else {})
        )
        return found
    if enable_gqa:
        key, value = (part.repeat_interleave(query.shape[-3] // part.shape[-3], -3) for part in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(ahead, -torch.inf)
    if attn_mask is None:
        return mode.dropped(torch.softmax(scores, -1), dropout_p) @ value
    bias = attn_mask.dtype != torch.bool
    scores = scores + attn_mask if bias else scores.masked_fill(~attn_mask, -torch.inf)
    nothing = (scores == -torch.inf).all(-1, keepdim=True)  # who may look at nothing sees zeros, as in torch's own
    weights = torch.softmax(scores.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0)
    return mode.dropped(weights, dropout_p) @ value


_OWN: dict[Any, Callable[..., Any]] = {
    F.dropout: _dropout,
    torch.dropout: _dropout,
    torch.dropout_: _dropout_,
    F.dropout1d: _feature(1),
    F.dropout2d: _feature(None),
    F.dropout3d: _feature(3),
    torch.feature_dropout: _feature(None),
    F.alpha_dropout: _alpha(whole=False),
    torch.alpha_dropout: _alpha(whole=False),
    F.feature_alpha_dropout: _alpha(whole=True),
    torch.feature_alpha_dropout: _alpha(whole=True),
    F.scaled_dot_product_attention: _attention,
}


def _never(*_: Any) -> bool:
    return False


def _open(function: Any) -> Any:
    """The same function for use within a mode: torch's own asks for modes first and would be called again."""
    unasked = dict.fromkeys(("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"), _never)
    copied = FunctionType(function.__code__, {**vars(F), **unasked}, function.__name__, function.__defaults__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


_OPEN = {F.multi_head_attention_forward: _open(F.multi_head_attention_forward)}

PROBE = torch.tensor(signed(0x9E3779B97F4A7C15))  # a key for trying a model before the first job
