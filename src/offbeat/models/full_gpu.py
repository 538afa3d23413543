"""Full layers of many models at once, each with its own inputs: as GPU kernels.

With mini-batches of a few samples a full layer is a matter of reading its weights. Here they are read once on the way
there, once on the way back, and once more when the next weights are written: no copy of a model is made in between.
Weights are float32; they are rounded to the type of the inputs, float32 or bfloat16. Sums are float32.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from offbeat.models.gpu import precision


@triton.jit
def _times(
    a, w, bias, kept, out, row,
    B: tl.constexpr, J: tl.constexpr, K: tl.constexpr, BY_J: tl.constexpr, BY_K: tl.constexpr,
    THERE: tl.constexpr, RELU: tl.constexpr,
    TILE_B: tl.constexpr, TILE_J: tl.constexpr, TILE_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out [n, B, J] is a [n, B, K] by the weights, of which (j, k) lies j · BY_J + k · BY_K after a model's first.

    Models lie `row` apart. There, the bias is added and ReLU may follow; back, only what `kept` lets through is kept.
    """
    model = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0) * TILE_J + tl.arange(0, TILE_J)
    line = tl.program_id(2) * TILE_B + tl.arange(0, TILE_B)
    a += model * (B * K)
    w += model * row
    total = tl.zeros([TILE_J, TILE_B], tl.float32)
    for begin in range(0, K, TILE_K):
        k = begin + tl.arange(0, TILE_K)
        left = tl.load(w + j[:, None] * BY_J + k[None, :] * BY_K, (j < J)[:, None] & (k < K)[None, :], 0.0)
        right = tl.load(a + line[None, :] * K + k[:, None], (line < B)[None, :] & (k < K)[:, None], 0.0)
        total = tl.dot(left.to(right.dtype), right, total, input_precision=PRECISION)
    place = model * (B * J) + line[None, :] * J + j[:, None]
    valid = (line < B)[None, :] & (j < J)[:, None]
    if THERE:
        total += tl.load(bias + model * row + j, j < J, 0.0)[:, None]
        if RELU:
            total = tl.maximum(total, 0.0)
    else:
        total = tl.where(tl.load(kept + place, valid, 0.0) > 0.0, total, 0.0)
    tl.store(out + place, total, valid)


@triton.jit
def _step(
    slope, x, w, bias, keep, to_w, to_bias, row, to_row,
    B: tl.constexpr, J: tl.constexpr, K: tl.constexpr,
    TILE_B: tl.constexpr, TILE_J: tl.constexpr, TILE_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """keep · w + slopeᵀ x and keep · bias + Σ slope, to where they go; slope [n, B, J], x [n, B, K], w [n, J, K].

    row, to_row: how far apart models lie, and where they go.
    """
    model = tl.program_id(2).to(tl.int64)
    j = tl.program_id(0) * TILE_J + tl.arange(0, TILE_J)
    k = tl.program_id(1) * TILE_K + tl.arange(0, TILE_K)
    slope += model * (B * J)
    x += model * (B * K)
    share = tl.load(keep + model)
    place = j[:, None] * K + k[None, :]
    valid = (j < J)[:, None] & (k < K)[None, :]
    total = share * tl.load(w + model * row + place, valid, 0.0)
    sums = share * tl.load(bias + model * row + j, j < J, 0.0)
    for begin in range(0, B, TILE_B):
        line = begin + tl.arange(0, TILE_B)
        left = tl.load(slope + line[None, :] * J + j[:, None], (line < B)[None, :] & (j < J)[:, None], 0.0)
        right = tl.load(x + line[:, None] * K + k[None, :], (line < B)[:, None] & (k < K)[None, :], 0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
        sums += tl.sum(left.to(tl.float32), 1)
    tl.store(to_w + model * to_row + place, total, valid)
    if tl.program_id(1) == 0:
        tl.store(to_bias + model * to_row + j, sums, j < J)


def full(x: Tensor, weight: Tensor, bias: Tensor, relu: bool, exact: bool = False) -> Tensor:
    """x [n, b, k], weight [n, j, k] and bias [n, j] of models that lie equally far apart, to [n, b, j].

    exact: what comes out is float32.
    """
    (n, b, k), j = x.shape, weight.shape[1]
    out = torch.empty(n, b, j, dtype=torch.float32 if exact else x.dtype, device=x.device)
    tiles = _tiles(x, j, k)
    _times[_grid(j, tiles["TILE_J"], n, b, tiles["TILE_B"])](
        x, weight, bias, x, out, weight.stride(0), b, j, k, k, 1, True, relu, **tiles
    )
    return out


def full_slope(slope: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    """The way back through `full` and the ReLU that x has come from: from the slope [n, b, j] to that by x."""
    (n, b, k), j = x.shape, weight.shape[1]
    out = torch.empty_like(x)
    tiles = _tiles(x, k, j)
    _times[_grid(k, tiles["TILE_J"], n, b, tiles["TILE_B"])](
        slope, weight, weight, x, out, weight.stride(0), b, k, j, 1, k, False, False, **tiles
    )
    return out


def full_step(slope: Tensor, x: Tensor, old: tuple[Tensor, Tensor], keep: Tensor, new: tuple[Tensor, Tensor]) -> None:
    """keep · (weight, bias) + the slopes by them, into the new ones; keep [n]."""
    (n, b, k), j = x.shape, slope.shape[2]
    tiles = _tiles(x, j, k)
    grid = (triton.cdiv(j, tiles["TILE_J"]), triton.cdiv(k, tiles["TILE_K"]), n)
    _step[grid](slope, x, *old, keep, *new, old[0].stride(0), new[0].stride(0), b, j, k, **tiles)


def _grid(columns: int, tile: int, models: int, batch: int, lines: int) -> tuple[int, int, int]:
    return triton.cdiv(columns, tile), models, triton.cdiv(batch, lines)


def _tiles(x: Tensor, j: int, k: int) -> dict[str, Any]:
    """The quickest of nine on an H200."""
    half = x.dtype == torch.bfloat16
    sizes = {"TILE_B": x.shape[1], "TILE_J": j, "TILE_K": k}
    tiles = {name: min(TILES[name], max(16, triton.next_power_of_2(size))) for name, size in sizes.items()}
    return {**tiles, "PRECISION": "ieee" if half else precision(), "num_warps": 4, "num_stages": 3}


TILES = {"TILE_B": 64, "TILE_J": 32, "TILE_K": 128}  # at most
