"""The recurrent network for next-character prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.core.errors import SettingError, at_least
from offbeat.models.gpu import kernels


class LSTM(nn.Module):
    """Embedded characters, LSTM layers, and a linear layer on the last output.

    The default sizes are LEAF's; FedAST (Shakespeare) takes the model from there.

    embedding: dimensions of a character's embedding.
    hidden: width of an LSTM layer.
    layers: number of LSTM layers.
    """

    def __init__(
        self, shape: Sequence[int], classes: int, embedding: int = 8, hidden: int = 256, layers: int = 2
    ) -> None:
        super().__init__()
        if len(shape) != 1:
            raise SettingError(f"lstm takes windows of tokens [length], the data are {list(shape)}")
        at_least(1, embedding=embedding, hidden=hidden, layers=layers)
        self.embedding = nn.Embedding(classes, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.linear = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embedding(x))  # [batch, length, hidden]
        return self.linear(outputs[:, -1])  # type: ignore[no-any-return]

    def stacked(self, parameters: Mapping[str, Tensor], x: Tensor, half: bool = False) -> Tensor:
        """`forward` of n models at once: parameters [n, ...] by name, x [n, batch, length].

        half: factors of products, and what is stored between the passes, are bfloat16, where kernels run; sums and
        gradients are float32. Elsewhere everything is.
        """
        p, (n, batch, length) = parameters, x.shape
        if half and _halves(self.lstm.hidden_size, batch, x.device):
            return self._half(p, x)
        tokens = torch.arange(self.embedding.num_embeddings, device=x.device)
        chosen = (x.mT.reshape(n, -1, 1) == tokens).float()  # a product's gradient needs no scattered sums
        h = chosen @ p["embedding.weight"]  # [n, length · batch, embedding]
        for layer in range(self.lstm.num_layers):
            bias = p[f"lstm.bias_ih_l{layer}"] + p[f"lstm.bias_hh_l{layer}"]
            gates = torch.baddbmm(bias[:, None], h, p[f"lstm.weight_ih_l{layer}"].mT).view(n, length, batch, -1)
            h = _Recurrence.apply(gates, p[f"lstm.weight_hh_l{layer}"]).flatten(1, 2)  # type: ignore[no-untyped-call]
        return torch.baddbmm(p["linear.bias"][:, None], h[:, -batch:], p["linear.weight"].mT)

    def _half(self, p: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """The same by `_HalfRecurrence`: a token gives the first layer's gates one of few rows, so that these are looked
        up, and the last layer's outputs but the last serve that layer only."""
        tokens = x.mT.to(torch.int32).contiguous()  # [n, length, batch]
        for layer in range(self.lstm.num_layers):
            bias = p[f"lstm.bias_ih_l{layer}"] + p[f"lstm.bias_hh_l{layer}"]
            weights, recurrent = p[f"lstm.weight_ih_l{layer}"], p[f"lstm.weight_hh_l{layer}"]
            last = layer == self.lstm.num_layers - 1
            if layer == 0:
                rows = torch.baddbmm(bias[:, None], p["embedding.weight"], weights.mT)  # [n, tokens, 4h]
                h = _HalfRecurrence.apply(rows, recurrent, None, tokens, last)  # type: ignore[no-untyped-call]
            else:
                gates = _HalfProduct.apply(h.flatten(1, 2), weights).unflatten(1, tokens.shape[1:])  # type: ignore[no-untyped-call]
                h = _HalfRecurrence.apply(gates, recurrent, bias, None, last)  # type: ignore[no-untyped-call]
        return torch.baddbmm(p["linear.bias"][:, None], h, p["linear.weight"].mT)


class _Recurrence(torch.autograd.Function):
    """One LSTM layer of n models: (what its inputs give to the gates [n, length, batch, 4h], weights [n, 4h, h]) to
    its outputs [n, length, batch, h].

    Whatever does not depend on the step before is done for all steps at once, also backward: the weights'
    gradient is one product at the end. On a GPU with Triton a step is one kernel.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weights: Tensor) -> Tensor:
        outputs, cells, active = _passes(gates.device)[0](gates, weights)
        ctx.save_for_backward(outputs, cells, active, weights)
        return outputs

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor]:
        outputs, cells, active, weights = ctx.saved_tensors
        by_gates = _passes(cells.device)[1](slopes[0], weights, cells, active)
        return by_gates, by_gates[:, 1:].flatten(1, 2).mT @ outputs[:, :-1].flatten(1, 2)


class _HalfRecurrence(torch.autograd.Function):
    """One LSTM layer of n models on a GPU: gates [n, length, batch, 4h] without their bias [n, 4h], or rows
    [n, vocabulary, 4h] that tokens [n, length, batch] choose, to its outputs [n, length, batch, h], bfloat16; with
    last, to the last of them [n, batch, h], float32."""

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, weights: Tensor, bias: Tensor | None, tokens: Tensor | None, last: bool
    ) -> Tensor:
        from offbeat.models import lstm_gpu

        length, batch = (gates if tokens is None else tokens).shape[1:3]
        rounded = weights.bfloat16().contiguous()
        outputs, cells, active = lstm_gpu.half_forward(gates.bfloat16(), rounded, bias, tokens, length, batch)
        ctx.vocabulary = gates.shape[1]
        ctx.save_for_backward(outputs, cells, active, rounded, tokens)
        return outputs[:, -1].float() if last else outputs

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        from offbeat.models import lstm_gpu

        outputs, cells, active, rounded, tokens = ctx.saved_tensors
        by_gates = lstm_gpu.half_backward(slopes[0], rounded, cells, active)
        by_weights = _product(by_gates[:, 1:].flatten(1, 2).mT, outputs[:, :-1].flatten(1, 2))
        if tokens is None:
            return by_gates, by_weights, by_gates.sum((1, 2), dtype=torch.float32), None, None
        numbers = torch.arange(-(-ctx.vocabulary // 8) * 8, device=tokens.device, dtype=torch.int32)  # for cuBLAS
        chosen = (tokens.flatten(1).unsqueeze(2) == numbers).bfloat16()
        by_rows = _product(chosen.mT, by_gates.flatten(1, 2))[:, : ctx.vocabulary]
        return by_rows, by_weights, None, None, None


class _HalfProduct(torch.autograd.Function):
    """h [n, m, k], bfloat16, by weights [n, l, k], float32, to [n, m, l], bfloat16; each with its own slope's type."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weights: Tensor) -> Tensor:
        rounded = weights.bfloat16().contiguous()
        ctx.save_for_backward(h, rounded)
        return h @ rounded.mT

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor]:
        h, rounded = ctx.saved_tensors
        return slopes[0] @ rounded, _product(slopes[0].mT, h)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """A product of bfloat16 factors in float32."""
    return torch.bmm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()


def _halves(h: int, batch: int, device: torch.device) -> bool:
    """Whether there are kernels in half precision for a layer."""
    if not kernels(device):
        return False
    from offbeat.models import lstm_gpu  # imports Triton

    return lstm_gpu.halves(h, batch, device)


def _passes(device: torch.device) -> tuple[Callable[..., tuple[Tensor, Tensor, Tensor]], Callable[..., Tensor]]:
    """The forward and the backward pass through all steps."""
    if not kernels(device):
        return _forward, _backward
    from offbeat.models import lstm_gpu  # imports Triton

    return lstm_gpu.forward, lstm_gpu.backward


def _forward(gates: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(outputs, cells, activations of the gates) of all steps."""
    *rest, batch, width = gates.shape
    h = width // 4
    outputs, cells = gates.new_empty(*rest, batch, h), gates.new_empty(*rest, batch, h)
    active = torch.empty_like(gates)
    for t in range(gates.shape[1]):
        now = gates[:, t] if t == 0 else torch.baddbmm(gates[:, t], outputs[:, t - 1], weights.mT)
        i, f, g, o = torch.split(active[:, t], h, -1)
        torch.sigmoid(now, out=active[:, t])
        torch.tanh(now[..., 2 * h : 3 * h], out=g)
        torch.mul(i, g, out=cells[:, t])
        if t:
            cells[:, t].addcmul_(f, cells[:, t - 1])
        torch.mul(o, cells[:, t].tanh(), out=outputs[:, t])
    return outputs, cells, active


def _backward(slope: Tensor, weights: Tensor, cells: Tensor, active: Tensor) -> Tensor:
    """The slope by the gates from that by the outputs."""
    i, f, g, o = active.chunk(4, -1)
    tanh, before = cells.tanh(), torch.cat([torch.zeros_like(cells[:, :1]), cells[:, :-1]], 1)
    through = o * (1 - tanh * tanh)  # how a cell moves its output
    by_cell = torch.stack([g * i * (1 - i), before * f * (1 - f), i * (1 - g * g)], -2)  # how gates move a cell
    by_output = tanh * o * (1 - o)
    by_gates = torch.empty_like(active)
    d_output, d_cell = slope[:, -1], torch.zeros_like(cells[:, 0])
    for t in reversed(range(cells.shape[1])):
        d_cell = torch.addcmul(d_cell, d_output, through[:, t])
        parts = by_gates[:, t].unflatten(-1, (4, -1))  # type: ignore[no-untyped-call]
        torch.mul(d_cell.unsqueeze(-2), by_cell[:, t], out=parts[..., :3, :])
        torch.mul(d_output, by_output[:, t], out=parts[..., 3, :])
        if t:
            d_cell = d_cell * f[:, t]
            d_output = torch.baddbmm(slope[:, t - 1], by_gates[:, t], weights)
    return by_gates
