"""Convolution, bias, 2 × 2 max-pooling and ReLU of many models at once, each with its own inputs: as GPU kernels.

torch.vmap makes grouped convolutions of it, which leave most of a GPU idle. Here every model's convolution is a matrix
product whose left factor, the patches of its images, is read where it lies, and of whose result only what pooling
lets through is written: the pooled values and, as one byte each, which of the four positions each of them comes from.

Channels are last. With pooling, positions are numbered window by window: the four of a window follow each other.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from offbeat.models.gpu import precision

NONE = tl.constexpr(4)  # in place of a position: the window's maximum is not positive, ReLU lets nothing through


@triton.jit
def _place(position, H: tl.constexpr, W: tl.constexpr, POOL: tl.constexpr):
    """(sample, y, z) of a position in images of H × W; with pooling, what is left of an odd side is in no window."""
    if POOL:
        window, corner = position // 4, position % 4
        sample, y, z = window // ((H // 2) * (W // 2)), window // (W // 2) % (H // 2), window % (W // 2)
        return sample, 2 * y + corner // 2, 2 * z + corner % 2
    return position // (H * W), position // W % H, position % W


@triton.jit
def _offset(k, W: tl.constexpr, C: tl.constexpr, K: tl.constexpr, BACK: tl.constexpr):
    """Where number k of a K × K patch lies, counted from its first, in images of width W; or its point reflected."""
    y, z = k // C // K, k // C % K
    if BACK:
        y, z = K - 1 - y, K - 1 - z
    return (y * W + z) * C + k % C


@triton.jit
def _convolve(
    x, w, bias, out, chosen,
    B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
    POOL: tl.constexpr, TILE_M: tl.constexpr, TILE_K: tl.constexpr, TILE_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """x [n, B, H, W, C] by w [n, N, K·K·C] to out [n, B, H − K + 1, W − K + 1, N]: there, pooled, with `chosen`; back,
    with the weights the other way round."""
    model = tl.program_id(1).to(tl.int64)
    OH: tl.constexpr = H - K + 1
    OW: tl.constexpr = W - K + 1
    SIZE: tl.constexpr = B * (OH // 2) * (OW // 2) * 4 if POOL else B * OH * OW
    position = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    sample, y, z = _place(position, OH, OW, POOL)
    base = ((sample * H + y) * W + z) * C
    inside = position < SIZE
    column = tl.arange(0, TILE_N)
    x += model * (B * H * W * C)
    w += model * (K * K * C * N)
    total = tl.zeros([TILE_M, TILE_N], tl.float32)
    for begin in range(0, K * K * C, TILE_K):
        k = begin + tl.arange(0, TILE_K)
        offset = _offset(k, W, C, K, not POOL)
        a = tl.load(x + base[:, None] + offset[None, :], inside[:, None] & (k < K * K * C)[None, :], 0.0)
        there = (k < K * K * C)[:, None] & (column < N)[None, :]
        b = tl.load(w + k[:, None] + column[None, :] * (K * K * C), there, 0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    if POOL:
        total += tl.load(bias + model * N + column, column < N, 0.0)[None, :]
        value, which = tl.max(tl.reshape(total, [TILE_M // 4, 4, TILE_N]), 1, return_indices=True)
        window = tl.program_id(0) * (TILE_M // 4) + tl.arange(0, TILE_M // 4)
        place = model * (SIZE // 4 * N) + window[:, None] * N + column[None, :]
        valid = (window < SIZE // 4)[:, None] & (column < N)[None, :]
        tl.store(out + place, tl.maximum(value, 0.0), valid)
        tl.store(chosen + place, tl.where(value > 0.0, which, NONE).to(tl.uint8), valid)
    else:
        place = model * (SIZE * N) + position[:, None] * N + column[None, :]
        tl.store(out + place, total, inside[:, None] & (column < N)[None, :])


@triton.jit
def _unpool(
    slope, chosen, out,
    B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, N: tl.constexpr, BORDER: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """slope [n, B, H // 2, W // 2, N] to where it comes from, [n, B, H + 2·BORDER, W + 2·BORDER, N]: all else is 0."""
    model = tl.program_id(1).to(tl.int64)
    HB: tl.constexpr = H + 2 * BORDER
    WB: tl.constexpr = W + 2 * BORDER
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column, position = place % N, place // N
    sample, y, z = position // (HB * WB), position // WB % HB - BORDER, position % WB - BORDER
    valid = (sample < B) & (y >= 0) & (z >= 0) & (y < H // 2 * 2) & (z < W // 2 * 2)
    there = model * (B * (H // 2) * (W // 2) * N) + ((sample * (H // 2) + y // 2) * (W // 2) + z // 2) * N + column
    passed = tl.load(chosen + there, valid, NONE).to(tl.int32) == y % 2 * 2 + z % 2
    tl.store(out + model * (B * HB * WB * N) + place, tl.load(slope + there, valid & passed, 0.0), sample < B)


@triton.jit
def _to_weights(
    x, slope, out,
    B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
    BORDER: tl.constexpr, TILE_M: tl.constexpr, TILE_K: tl.constexpr, TILE_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The slope [n, B, H − K + 1 + 2·BORDER, W − K + 1 + 2·BORDER, N] by the weights, [n, K·K·C, N]."""
    model = tl.program_id(1).to(tl.int64)
    OH: tl.constexpr = H - K + 1
    OW: tl.constexpr = W - K + 1
    k = tl.program_id(0) * TILE_K + tl.arange(0, TILE_K)
    offset = _offset(k, W, C, K, False)
    column = tl.arange(0, TILE_N)
    x += model * (B * H * W * C)
    slope += model * (B * (OH + 2 * BORDER) * (OW + 2 * BORDER) * N)
    total = tl.zeros([TILE_K, TILE_N], tl.float32)
    for begin in range(0, B * OH * OW, TILE_M):
        position = begin + tl.arange(0, TILE_M)
        sample, y, z = _place(position, OH, OW, False)
        inside = position < B * OH * OW
        base = ((sample * H + y) * W + z) * C
        a = tl.load(x + base[None, :] + offset[:, None], inside[None, :] & (k < K * K * C)[:, None], 0.0)
        there = ((sample * (OH + 2 * BORDER) + y + BORDER) * (OW + 2 * BORDER) + z + BORDER) * N
        b = tl.load(slope + there[:, None] + column[None, :], inside[:, None] & (column < N)[None, :], 0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    place = model * (K * K * C * N) + k[:, None] * N + column[None, :]
    tl.store(out + place, total, (k < K * K * C)[:, None] & (column < N)[None, :])


def conv_pool(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """x [n, b, h, w, c], weight [n, out, c, k, k] and bias [n, out] to what comes out, [n, b, h', w', out], and the
    position of each number's origin in its window."""
    n, b, h, w, c = x.shape
    _, out, _, k, _ = weight.shape
    pooled = x.new_empty(n, b, (h - k + 1) // 2, (w - k + 1) // 2, out)
    chosen = torch.empty_like(pooled, dtype=torch.uint8)
    rows = weight.permute(0, 1, 3, 4, 2).contiguous()  # [n, out, k, k, c]
    tiles = _tiles(256, 32, out, 8) if 1 < c < _WIDE else _tiles(128, 32, out, 4)
    _convolve[_grid(4 * pooled[0, ..., 0].numel(), tiles["TILE_M"], n)](
        x, rows, bias.contiguous(), pooled, chosen, b, h, w, c, k, out, True, **tiles
    )
    return pooled, chosen


def conv_pool_step(
    x: Tensor, chosen: Tensor, slope: Tensor, old: tuple[Tensor, Tensor], keep: Tensor, new: tuple[Tensor, Tensor],
    by_input: bool,
) -> Tensor | None:  # fmt: skip
    """The way back, from the slope by what came out: keep · (weight, bias) + the slopes by them go into the new ones;
    gives the slope by x, if it is wanted.   keep: [n]."""
    n, b, h, w, c = x.shape
    weight, bias = old
    _, out, _, k, _ = weight.shape
    border = k - 1 if by_input else 0
    high, wide = h - k + 1, w - k + 1
    spread = x.new_empty(n, b, high + 2 * border, wide + 2 * border, out)
    _unpool[_grid(spread[0].numel(), _LINE, n)](slope, chosen, spread, b, high, wide, out, border, TILE=_LINE)
    by_weight = x.new_empty(n, k, k, c, out)
    tiles = _tiles(64, 64 if c >= _WIDE else 32, out, 4 if k * k * c <= 32 else 2)
    _to_weights[_grid(k * k * c, tiles["TILE_K"], n)](x, spread, by_weight, b, h, w, c, k, out, border, **tiles)
    by_bias = torch.where(chosen < NONE.value, slope, 0.0).sum((1, 2, 3))
    torch.addcmul(by_weight.permute(0, 4, 3, 1, 2), keep.view(n, 1, 1, 1, 1), weight, out=new[0])
    torch.addcmul(by_bias, keep.view(n, 1), bias, out=new[1])
    if not by_input:
        return None
    back = torch.empty_like(x)
    turned = weight.permute(0, 2, 3, 4, 1).contiguous()  # [n, c, k, k, out]
    sizes = b, high + 2 * border, wide + 2 * border, out, k, c, False
    tiles = _tiles(256, 32, c, 4)
    _convolve[_grid(b * h * w, tiles["TILE_M"], n)](spread, turned, spread, back, chosen, *sizes, **tiles)
    return back


_WIDE = 16  # channels that lie together and are read as a whole
_LINE = 1024


def _grid(size: int, tile: int, models: int) -> tuple[int, int]:
    return triton.cdiv(size, tile), models


def _tiles(rows: int, depth: int, columns: int, warps: int) -> dict[str, Any]:
    """Positions, depth and channels of one product of tiles: for each kernel the quickest of a dozen on an H200."""
    wide = max(16, triton.next_power_of_2(columns))
    return {
        "TILE_M": rows,
        "TILE_K": depth,
        "TILE_N": wide,
        "PRECISION": precision(),
        "num_warps": warps,
        "num_stages": 3,
    }
