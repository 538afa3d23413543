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

    def stacked(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """`forward` of n models at once: parameters [n, ...] by name, x [n, batch, length]."""
        p, (n, batch, length) = parameters, x.shape
        tokens = torch.arange(self.embedding.num_embeddings, device=x.device)
        chosen = (x.mT.reshape(n, -1, 1) == tokens).float()  # a product's gradient needs no scattered sums
        h = chosen @ p["embedding.weight"]  # [n, length · batch, embedding]
        for layer in range(self.lstm.num_layers):
            bias = p[f"lstm.bias_ih_l{layer}"] + p[f"lstm.bias_hh_l{layer}"]
            gates = torch.baddbmm(bias[:, None], h, p[f"lstm.weight_ih_l{layer}"].mT).view(n, length, batch, -1)
            h = _Recurrence.apply(gates, p[f"lstm.weight_hh_l{layer}"]).flatten(1, 2)  # type: ignore[no-untyped-call]
        return torch.baddbmm(p["linear.bias"][:, None], h[:, -batch:], p["linear.weight"].mT)


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
