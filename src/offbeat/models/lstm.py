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
        """The same by `_HalfLayer`: the first looks up what a token gives to the gates, the last needs its last output
        only."""
        tokens = x.mT.to(torch.int32).contiguous()  # [n, length, batch]
        h: Any = None
        for layer in range(self.lstm.num_layers):
            bias = p[f"lstm.bias_ih_l{layer}"] + p[f"lstm.bias_hh_l{layer}"]
            weights, recurrent = p[f"lstm.weight_ih_l{layer}"], p[f"lstm.weight_hh_l{layer}"]
            if layer == 0:
                weights = torch.baddbmm(bias[:, None], p["embedding.weight"], weights.mT).mT  # [n, 4h, vocabulary]
            last = layer == self.lstm.num_layers - 1
            h = _HalfLayer.apply(tokens, h, weights, bias, recurrent, last)  # type: ignore[no-untyped-call]
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


class _HalfLayer(torch.autograd.Function):
    """One LSTM layer of n models on a GPU, in half precision, to its outputs [n, length, batch, h], or with `last` to
    the last of them in single precision.

    Its inputs are outputs h of another one, with weights [n, 4h, h] and a bias [n, 4h], or, without h, tokens
    [n, length, batch], with what each of them gives to the gates as weights [n, 4h, vocabulary], the bias included.
    """

    @staticmethod
    def forward(
        ctx: Any, tokens: Tensor, h: Tensor | None, weights: Tensor, bias: Tensor, recurrent: Tensor, last: bool
    ) -> Tensor:
        from offbeat.models import lstm_gpu

        _, length, batch = tokens.shape
        within = lstm_gpu.fitted(recurrent.bfloat16())
        rounded = weights.bfloat16()
        rows = lstm_gpu.fitted(rounded)
        if h is None:
            outputs, cells, active = lstm_gpu.half_forward(rows.mT, within, None, tokens, length, batch)
        else:
            gates = (h.flatten(1, 2) @ rows.mT).view(len(h), length, batch, -1)
            fitted = lstm_gpu.fitted(bias).contiguous()
            outputs, cells, active = lstm_gpu.half_forward(gates, within, fitted, None, length, batch)
        ctx.save_for_backward(tokens, h, rounded, within, outputs, cells, active)
        return outputs[:, -1].float() if last else outputs

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        from offbeat.models import lstm_gpu

        tokens, h, rounded, within, outputs, cells, active = ctx.saved_tensors
        by_gates = lstm_gpu.half_backward(slopes[0], within, cells, active)
        by_recurrent = _product(by_gates[:, 1:].flatten(1, 2).mT, outputs[:, :-1].flatten(1, 2))
        flat = by_gates.flatten(1, 2)
        if h is not None:
            by_h, by_bias = (flat @ rounded).view_as(h), flat.sum(1, dtype=torch.float32)
            return None, by_h, _product(flat.mT, h.flatten(1, 2)), by_bias, by_recurrent, None
        vocabulary = rounded.shape[2]
        numbers = torch.arange(-(-vocabulary // 8) * 8, device=tokens.device)  # as matrix products like it
        chosen = (tokens.flatten(1).unsqueeze(2) == numbers).bfloat16()
        return None, None, _product(flat.mT, chosen)[..., :vocabulary], None, by_recurrent, None


_WIDE = hasattr(torch.ops.aten.bmm, "dtype")  # from PyTorch 2.8 on; Triton's cooperative launches come with it


def _product(a: Tensor, b: Tensor) -> Tensor:
    """A product of bfloat16 factors in float32."""
    return torch.bmm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()


def _halves(h: int, batch: int, device: torch.device) -> bool:
    """Whether there are kernels in half precision for a layer, and PyTorch has `_product`."""
    if not (_WIDE and kernels(device)):
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
