"""An LSTM layer of many models at once as GPU kernels: one per time step forward, one backward.

A step is a matrix product for every model and a dozen small operations. Here a block of hidden units gets its four
gates from the product and goes through the rest of the step where it is.

Everything is [n, time, batch, …]: what all steps have in common is one product before or after.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from offbeat.models.gpu import precision


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _forward(
    gates, w, outputs, cells, active, t,
    T: tl.constexpr, B: tl.constexpr, H: tl.constexpr,
    TILE_B: tl.constexpr, TILE_H: tl.constexpr, TILE_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Step t: gates [n, T, B, 4H] and w [n, 4H, H] to outputs and cells [n, T, B, H] and activations [n, T, B, 4H]."""
    model = tl.program_id(1).to(tl.int64)
    unit = tl.program_id(0) * TILE_H + tl.arange(0, TILE_H)
    line = tl.program_id(2) * TILE_B + tl.arange(0, TILE_B)
    inside = (line < B)[:, None] & (unit < H)[None, :]
    at = (model * T + t) * B * H  # of this step in outputs and cells
    four = 4 * at + line[:, None] * (4 * H) + unit[None, :]
    i = tl.load(gates + four, inside, 0.0)
    f = tl.load(gates + four + H, inside, 0.0)
    g = tl.load(gates + four + 2 * H, inside, 0.0)
    o = tl.load(gates + four + 3 * H, inside, 0.0)
    place = at + line[:, None] * H + unit[None, :]
    cell = tl.zeros([TILE_B, TILE_H], tl.float32)
    if t > 0:
        w += model * (4 * H * H)
        for begin in range(0, H, TILE_K):
            k = begin + tl.arange(0, TILE_K)
            earlier = outputs + at - B * H + line[:, None] * H + k[None, :]
            a = tl.load(earlier, (line < B)[:, None] & (k < H)[None, :], 0.0)
            b = w + unit[None, :] * H + k[:, None]
            valid = (k < H)[:, None] & (unit < H)[None, :]
            i = tl.dot(a, tl.load(b, valid, 0.0), i, input_precision=PRECISION)
            f = tl.dot(a, tl.load(b + H * H, valid, 0.0), f, input_precision=PRECISION)
            g = tl.dot(a, tl.load(b + 2 * H * H, valid, 0.0), g, input_precision=PRECISION)
            o = tl.dot(a, tl.load(b + 3 * H * H, valid, 0.0), o, input_precision=PRECISION)
        cell = tl.load(cells + place - B * H, inside, 0.0)
    i, f, g, o = tl.sigmoid(i), tl.sigmoid(f), _tanh(g), tl.sigmoid(o)
    cell = f * cell + i * g
    tl.store(cells + place, cell, inside)
    tl.store(outputs + place, o * _tanh(cell), inside)
    tl.store(active + four, i, inside)
    tl.store(active + four + H, f, inside)
    tl.store(active + four + 2 * H, g, inside)
    tl.store(active + four + 3 * H, o, inside)


@triton.jit
def _backward(
    slope, w, cells, active, by_cell, by_gates, t,
    T: tl.constexpr, B: tl.constexpr, H: tl.constexpr,
    TILE_B: tl.constexpr, TILE_H: tl.constexpr, TILE_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Step t: the slope by outputs [n, T, B, H] to that by gates [n, T, B, 4H]; w [n, H, 4H].

    by_cell [n, B, H] is the slope by the cells of step t that later steps give, and then by those of step t − 1.
    """
    model = tl.program_id(1).to(tl.int64)
    unit = tl.program_id(0) * TILE_H + tl.arange(0, TILE_H)
    line = tl.program_id(2) * TILE_B + tl.arange(0, TILE_B)
    inside = (line < B)[:, None] & (unit < H)[None, :]
    at = (model * T + t) * B * H
    place = at + line[:, None] * H + unit[None, :]
    four = 4 * at + line[:, None] * (4 * H) + unit[None, :]
    out = tl.load(slope + place, inside, 0.0)
    kept = by_cell + model * (B * H) + line[:, None] * H + unit[None, :]
    through = tl.zeros([TILE_B, TILE_H], tl.float32)
    if t < T - 1:
        w += model * (4 * H * H)
        for begin in range(0, 4 * H, TILE_K):
            k = begin + tl.arange(0, TILE_K)
            later = by_gates + 4 * (at + B * H) + line[:, None] * (4 * H) + k[None, :]
            a = tl.load(later, (line < B)[:, None] & (k < 4 * H)[None, :], 0.0)
            b = tl.load(w + unit[None, :] * (4 * H) + k[:, None], (k < 4 * H)[:, None] & (unit < H)[None, :], 0.0)
            out = tl.dot(a, b, out, input_precision=PRECISION)
        through = tl.load(kept, inside, 0.0)
    earlier = tl.zeros([TILE_B, TILE_H], tl.float32)
    if t > 0:
        earlier = tl.load(cells + place - B * H, inside, 0.0)
    i = tl.load(active + four, inside, 0.0)
    f = tl.load(active + four + H, inside, 0.0)
    g = tl.load(active + four + 2 * H, inside, 0.0)
    o = tl.load(active + four + 3 * H, inside, 0.0)
    tanh = _tanh(tl.load(cells + place, inside, 0.0))
    through += out * o * (1 - tanh * tanh)
    tl.store(kept, through * f, inside)
    tl.store(by_gates + four, through * g * i * (1 - i), inside)
    tl.store(by_gates + four + H, through * earlier * f * (1 - f), inside)
    tl.store(by_gates + four + 2 * H, through * i * (1 - g * g), inside)
    tl.store(by_gates + four + 3 * H, out * tanh * o * (1 - o), inside)


def forward(gates: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(outputs, cells, activations of the gates) of all steps; weights [n, 4h, h]."""
    n, length, batch, width = gates.shape
    gates, weights, h = gates.contiguous(), weights.contiguous(), width // 4
    outputs, cells = gates.new_empty(n, length, batch, h), gates.new_empty(n, length, batch, h)
    active = torch.empty_like(gates)
    grid, tiles = _grid(h, n, batch), _tiles(batch)
    for t in range(length):
        _forward[grid](gates, weights, outputs, cells, active, t, length, batch, h, **tiles)
    return outputs, cells, active


def backward(slope: Tensor, weights: Tensor, cells: Tensor, active: Tensor) -> Tensor:
    """The slope by the gates from that by the outputs."""
    n, length, batch, h = slope.shape
    slope, weights = slope.contiguous(), weights.mT.contiguous()  # [n, h, 4h]
    by_gates, by_cell = torch.empty_like(active), slope.new_empty(n, batch, h)
    grid, tiles = _grid(h, n, batch), _tiles(batch)
    for t in reversed(range(length)):
        _backward[grid](slope, weights, cells, active, by_cell, by_gates, t, length, batch, h, **tiles)
    return by_gates


_UNITS = 32  # a block of hidden units


def _grid(h: int, models: int, batch: int) -> tuple[int, int, int]:
    return triton.cdiv(h, _UNITS), models, triton.cdiv(batch, _lines(batch))


def _lines(batch: int) -> int:
    return min(64, max(16, 1 << (batch - 1).bit_length()))


def _tiles(batch: int) -> dict[str, Any]:
    return {"TILE_B": _lines(batch), "TILE_H": _UNITS, "TILE_K": 32, "PRECISION": precision(), "num_warps": 4}
