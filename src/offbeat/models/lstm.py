"""The recurrent network for next-character prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.core.errors import SettingError


class LSTM(nn.Module):
    """Characters embedded in 8 dimensions, two LSTM layers of 256, and a linear layer on the last output.

    The sizes are LEAF's; FAST (Shakespeare) takes the model from there.
    """

    def __init__(
        self, shape: Sequence[int], classes: int, embedding: int = 8, hidden: int = 256, layers: int = 2
    ) -> None:
        super().__init__()
        if len(shape) != 1:
            raise SettingError(f"lstm takes windows of tokens [length], the data are {list(shape)}")
        if min(embedding, hidden, layers) < 1:
            raise SettingError(f"embedding = {embedding}, hidden = {hidden}, layers = {layers}: all positive")
        self.embedding = nn.Embedding(classes, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.linear = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embedding(x))  # [batch, length, hidden]
        return self.linear(outputs[:, -1])  # type: ignore[no-any-return]

    def stacked(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """`forward` of n models at once: parameters [n, ...] by name, x [n, batch, length]."""
        p, tokens = parameters, torch.arange(self.embedding.num_embeddings, device=x.device)
        chosen = (x.permute(2, 0, 1).unsqueeze(-1) == tokens).float()  # a product's gradient needs no scattered sums
        h = chosen @ p["embedding.weight"]  # [length, n, batch, embedding]
        for layer in range(self.lstm.num_layers):
            bias = p[f"lstm.bias_ih_l{layer}"] + p[f"lstm.bias_hh_l{layer}"]
            gates = h @ p[f"lstm.weight_ih_l{layer}"].mT + bias[:, None]
            h = _Recurrence.apply(gates, p[f"lstm.weight_hh_l{layer}"].mT)  # type: ignore[no-untyped-call]
        return torch.baddbmm(p["linear.bias"][:, None], h[-1], p["linear.weight"].mT)


class _Recurrence(torch.autograd.Function):
    """One LSTM layer of n models: (what its inputs give to the gates [length, n, batch, 4h], weights [n, h, 4h]) to
    its outputs [length, n, batch, h].

    Whatever does not depend on the step before is done for all steps at once, also on the way back: a step is five
    small operations there, and the weights' gradient is one product at the end.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weights: Tensor) -> Tensor:
        length, *rest, width = gates.shape
        h = width // 4
        outputs, cells = gates.new_empty(length, *rest, h), gates.new_empty(length, *rest, h)
        activations = torch.empty_like(gates)
        for t in range(length):
            now, a = gates[t] if t == 0 else torch.baddbmm(gates[t], outputs[t - 1], weights), activations[t]
            torch.sigmoid(now, out=a)
            torch.tanh(now[..., 2 * h : 3 * h], out=a[..., 2 * h : 3 * h])
            i, f, g, o = torch.split(a, h, -1)
            torch.mul(i, g, out=cells[t])
            if t:
                cells[t].addcmul_(f, cells[t - 1])
            torch.mul(o, cells[t].tanh(), out=outputs[t])
        ctx.save_for_backward(outputs, cells, activations, weights)
        return outputs

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor]:
        outputs, cells, activations, weights = ctx.saved_tensors
        (d_outputs,) = slopes
        length, h = len(outputs), outputs.shape[-1]
        i, f, g, o = torch.split(activations, h, -1)
        tanh = cells.tanh()
        before = torch.cat([torch.zeros_like(cells[:1]), cells[:-1]])
        through = o * (1 - tanh * tanh)  # how a cell moves its output
        by_cell = torch.stack([g * i * (1 - i), before * f * (1 - f), i * (1 - g * g)], -2)  # how gates move a cell
        by_output = tanh * o * (1 - o)
        d_gates = torch.empty_like(activations)
        d_output, d_cell = d_outputs[-1], torch.zeros_like(cells[0])
        for t in reversed(range(length)):
            d_cell = torch.addcmul(d_cell, d_output, through[t])
            parts = d_gates[t].view(*d_cell.shape[:-1], 4, h)
            torch.mul(d_cell.unsqueeze(-2), by_cell[t], out=parts[..., :3, :])
            torch.mul(d_output, by_output[t], out=parts[..., 3, :])
            if t:
                d_cell = d_cell * f[t]
                d_output = torch.baddbmm(d_outputs[t - 1], d_gates[t], weights.mT)
        earlier = outputs[:-1].transpose(0, 1).flatten(1, 2)  # [n, (length − 1) · batch, h]
        return d_gates, earlier.mT @ d_gates[1:].transpose(0, 1).flatten(1, 2)
