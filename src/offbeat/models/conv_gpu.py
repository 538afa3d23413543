"""Convolution, bias, 2 × 2 max-pooling and ReLU of many models at once, each with its own inputs: as GPU kernels.

torch.vmap makes grouped convolutions of it, which leave most of a GPU idle. Here every model's convolution is a matrix
product whose left factor, the patches of its images, is read where it lies, and of whose result only what pooling
lets through is written: the pooled values and, as one byte each, which of the four positions each of them comes from.

Channels are last. A window has four corners, and a program computes all of them, each as a product of its own: the
largest is taken number by number. Factors are float32 or, if the images are, bfloat16; sums are float32.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from offbeat.core.errors import SettingError
from offbeat.models.gpu import precision

NONE = tl.constexpr(4)  # in place of a corner: the window's maximum is not positive, ReLU lets nothing through


@triton.jit
def _offset(k, W: tl.constexpr, C: tl.constexpr, K: tl.constexpr):
    """Where number k of a K × K patch lies, counted from its first, in images of width W."""
    return (k // C // K * W + k // C % K) * C + k % C


@triton.jit
def _corner(window, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, K: tl.constexpr):
    """Where the patch of a window's first corner lies, in images of H × W."""
    high: tl.constexpr = (H - K + 1) // 2
    wide: tl.constexpr = (W - K + 1) // 2
    sample, y, z = window // (high * wide), window // wide % high, window % wide
    return ((sample * H + 2 * y) * W + 2 * z) * C


@triton.jit
def _convolve(
    x, w, bias, out, chosen,
    SIZE: tl.constexpr, B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
    N: tl.constexpr, TILE_M: tl.constexpr, TILE_K: tl.constexpr, TILE_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """x [n, B, H, W, C] by w [n, N, K·K·C], with the bias, pooled, to out [n, SIZE, N]; SIZE windows."""
    model = tl.program_id(1).to(tl.int64)
    window = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    column = tl.arange(0, TILE_N)
    x += model * (B * H * W * C)
    w += model * (K * K * C * N)
    at = x + _corner(window, H, W, C, K)[:, None]
    inside = (window < SIZE)[:, None]
    value = tl.zeros([TILE_M, TILE_N], tl.float32)
    right = tl.zeros([TILE_M, TILE_N], tl.float32)
    below = tl.zeros([TILE_M, TILE_N], tl.float32)
    last = tl.zeros([TILE_M, TILE_N], tl.float32)
    for begin in range(0, K * K * C, TILE_K):
        k = begin + tl.arange(0, TILE_K)
        valid = inside & (k < K * K * C)[None, :]
        patch = at + _offset(k, W, C, K)[None, :]
        b = tl.load(
            w + k[:, None] + column[None, :] * (K * K * C), (k < K * K * C)[:, None] & (column < N)[None, :], 0.0
        )
        value = tl.dot(tl.load(patch, valid, 0.0), b, value, input_precision=PRECISION)
        right = tl.dot(tl.load(patch + C, valid, 0.0), b, right, input_precision=PRECISION)
        below = tl.dot(tl.load(patch + W * C, valid, 0.0), b, below, input_precision=PRECISION)
        last = tl.dot(tl.load(patch + (W + 1) * C, valid, 0.0), b, last, input_precision=PRECISION)
    which = tl.where(right > value, 1, 0)
    value = tl.maximum(value, right)
    which = tl.where(below > value, 2, which)
    value = tl.maximum(value, below)
    which = tl.where(last > value, 3, which)
    value = tl.maximum(value, last) + tl.load(bias + model * N + column, column < N, 0.0)[None, :]
    place = model * (SIZE * N) + window[:, None] * N + column[None, :]
    valid = inside & (column < N)[None, :]
    tl.store(out + place, tl.maximum(value, 0.0), valid)
    tl.store(chosen + place, tl.where(value > 0.0, which, NONE).to(tl.uint8), valid)


@triton.jit
def _unpool(
    slope, chosen, out,
    B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, N: tl.constexpr, BORDER: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """slope [n, B, H // 2, W // 2, N] to where it comes from, [n, B, H, W + 2·BORDER, N]: all else is 0."""
    model = tl.program_id(1).to(tl.int64)
    WB: tl.constexpr = W + 2 * BORDER
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column, position = place % N, place // N
    sample, y, z = position // (H * WB), position // WB % H, position % WB - BORDER
    valid = (sample < B) & (z >= 0) & (y < H // 2 * 2) & (z < W // 2 * 2)
    there = model * (B * (H // 2) * (W // 2) * N) + ((sample * (H // 2) + y // 2) * (W // 2) + z // 2) * N + column
    passed = tl.load(chosen + there, valid, NONE).to(tl.int32) == y % 2 * 2 + z % 2
    tl.store(out + model * (B * H * WB * N) + place, tl.load(slope + there, valid & passed, 0.0), sample < B)


@triton.jit
def _to_weights(
    x, slope, out,
    PART: tl.constexpr, B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
    N: tl.constexpr, BORDER: tl.constexpr,
    TILE_M: tl.constexpr, TILE_K: tl.constexpr, TILE_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The slopes before pooling, [n, B, H − K + 1, W − K + 1 + 2·BORDER, N], to those by the weights, as sums over PART
    positions each, [n, parts, K·K·C, N]."""
    model = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    OH: tl.constexpr = H - K + 1
    OW: tl.constexpr = W - K + 1
    k = tl.program_id(0) * TILE_K + tl.arange(0, TILE_K)
    column = tl.arange(0, TILE_N)
    at = x + model * (B * H * W * C) + _offset(k, W, C, K)[:, None]
    slope += model * (B * OH * (OW + 2 * BORDER) * N) + BORDER * N
    end = min((part + 1) * PART, B * OH * OW)
    total = tl.zeros([TILE_K, TILE_N], tl.float32)
    for begin in range(0, min(PART, B * OH * OW), TILE_M):
        position = part * PART + begin + tl.arange(0, TILE_M)
        inside = position < end
        row, z = position // OW, position % OW
        base = ((row // OH * H + row % OH) * W + z) * C
        a = tl.load(at + base[None, :], inside[None, :] & (k < K * K * C)[:, None], 0.0)
        there = (row * (OW + 2 * BORDER) + z) * N
        b = tl.load(slope + there[:, None] + column[None, :], inside[:, None] & (column < N)[None, :], 0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    place = (model * tl.num_programs(2) + part) * (K * K * C * N) + k[:, None] * N + column[None, :]
    tl.store(out + place, total, (k < K * K * C)[:, None] & (column < N)[None, :])


@triton.jit
def _to_bias(
    slope, chosen, out,
    SIZE: tl.constexpr, PART: tl.constexpr, N: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr,
):  # fmt: skip
    """The slopes [n, SIZE, N] by the pooled values to those by the bias, [n, parts, N]."""
    model = tl.program_id(1).to(tl.int64)
    part = tl.program_id(0)
    column = tl.arange(0, TILE_N)
    total = tl.zeros([TILE_M, TILE_N], tl.float32)
    for begin in range(0, PART, TILE_M):
        window = part * PART + begin + tl.arange(0, TILE_M)
        place = model * (SIZE * N) + window[:, None] * N + column[None, :]
        valid = (window < min((part + 1) * PART, SIZE))[:, None] & (column < N)[None, :]
        passed = tl.load(chosen + place, valid, NONE) < NONE
        total += tl.load(slope + place, valid & passed, 0.0).to(tl.float32)
    tl.store(out + (model * tl.num_programs(0) + part) * N + column, tl.sum(total, 0), column < N)


@triton.jit
def _to_inputs(
    slope, w, out,
    B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
    TILE_M: tl.constexpr, TILE_K: tl.constexpr, TILE_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The slopes [n, B, H − K + 1, W + K − 1, N] before pooling, with a border at both sides, to those by the inputs,
    [n, B, H, W, C]; w [n, C, K, K, N] with each row of a patch reversed.

    A program has one row of the images of several samples: only patches that reach it are gone through.
    """
    model = tl.program_id(1).to(tl.int64)
    OH: tl.constexpr = H - K + 1
    WB: tl.constexpr = W + K - 1
    y = tl.program_id(2)
    position = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    sample, z = position // W, position % W
    column = tl.arange(0, TILE_N)
    slope += model * (B * OH * WB * N)
    w += model * (K * K * C * N)
    base = ((sample * OH + y) * WB + z) * N
    inside = (sample < B)[:, None]
    total = tl.zeros([TILE_M, TILE_N], tl.float32)
    first = max(y - OH + 1, 0) * (K * N)
    end = min(y + 1, K) * (K * N)
    for begin in range(first, end, TILE_K):
        k = begin + tl.arange(0, TILE_K)
        offset = (k // N % K - k // N // K * WB) * N + k % N
        a = tl.load(slope + base[:, None] + offset[None, :], inside & (k < end)[None, :], 0.0)
        there = (k < end)[:, None] & (column < C)[None, :]
        b = tl.load(w + k[:, None] + column[None, :] * (K * K * N), there, 0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    place = ((model * B + sample[:, None]) * H + y) * (W * C) + z[:, None] * C + column[None, :]
    tl.store(out + place, total, inside & (column < C)[None, :])


def conv_pool(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """x [n, b, h, w, c], weight [n, out, c, k, k] and bias [n, out] to what comes out, [n, b, h', w', out], and the
    corner of each number's origin in its window. x may have more channels than the weights: those count nothing."""
    n, b, h, w, c = x.shape
    _, out, _, k, _ = weight.shape
    most = _COUNTED // (h * (w + k) * max(c, out))  # what lies between the passes is no larger
    if b > most:
        raise SettingError(
            f"{b} samples of a client at once are too many for this network on a GPU; set batch = {most} or less"
        )
    pooled = x.new_empty(n, b, (h - k + 1) // 2, (w - k + 1) // 2, out)
    chosen = torch.empty_like(pooled, dtype=torch.uint8)
    rows = _as_factor(weight.permute(0, 1, 3, 4, 2), x, c)  # [n, out, k, k, c]
    size, tiles = pooled[0, ..., 0].numel(), _tiles("convolve", x, out)
    _convolve[(triton.cdiv(size, tiles["TILE_M"]), n)](
        x, rows, bias.contiguous(), pooled, chosen, size, b, h, w, c, k, out, **tiles
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
    _, out, channels, k, _ = weight.shape
    high, wide, border = h - k + 1, w - k + 1, k - 1 if by_input else 0
    spread = x.new_empty(n, b, high, wide + 2 * border, out)
    lines = triton.cdiv(spread[0].numel(), _LINE)
    _unpool[(lines, n)](slope, chosen, spread, b, high, wide, out, border, TILE=_LINE)
    tiles = _tiles("to weights", x, out)
    rows = triton.cdiv(k * k * c, tiles["TILE_K"])
    part = _part(b * high * wide, rows, tiles["TILE_M"])
    parts = triton.cdiv(b * high * wide, part)
    by_weight = torch.empty(n, parts, k, k, c, out, device=x.device)
    _to_weights[(rows, n, parts)](x, spread, by_weight, part, b, h, w, c, k, out, border, **tiles)
    by_bias = torch.empty(n, parts, out, device=x.device)
    size = slope[0, ..., 0].numel()
    _to_bias[(parts, n)](slope, chosen, by_bias, size, triton.cdiv(size, parts), out, 32, tiles["TILE_N"])
    slopes = (by_weight.sum(1) if parts > 1 else by_weight[:, 0])[..., :channels, :].permute(0, 4, 3, 1, 2)
    torch.addcmul(slopes, keep.view(n, 1, 1, 1, 1), weight, out=new[0])
    torch.addcmul(by_bias.sum(1), keep.view(n, 1), bias, out=new[1])
    if not by_input:
        return None
    back, turned = torch.empty_like(x), _as_factor(weight.permute(0, 2, 3, 4, 1).flip(3), x, out)  # [n, c, k, k, out]
    tiles = _tiles("to inputs", x, c)
    _to_inputs[(triton.cdiv(b * w, tiles["TILE_M"]), n, h)](spread, turned, back, b, h, w, c, k, out, **tiles)
    return back


_LINE = 1024
_COUNTED = (1 << 31) - 1  # numbers of one model: their places are 32-bit integers
_PROGRAMS = 16  # of a model: with few models, too, there is work for the whole GPU


def _as_factor(weight: Tensor, x: Tensor, wide: int) -> Tensor:
    """Weights as x's partner in a product, with zeros for the channels that only x has."""
    own = weight.shape[-1]
    make = torch.empty if own == wide else torch.zeros
    factor = make(*weight.shape[:-1], wide, dtype=x.dtype, device=x.device)
    factor[..., :own].copy_(weight)
    return factor


def _part(positions: int, rows: int, tile: int) -> int:
    """How many positions one program adds up, where so many programs share the rows.

    By the shapes alone: a model's bits do not depend on how many others there are.
    """
    parts = max(1, min(_PROGRAMS // rows, positions // 512))
    return -(-positions // (parts * tile)) * tile


def _tiles(kernel: str, x: Tensor, columns: int) -> dict[str, Any]:
    """Positions, depth and channels of one product of tiles."""
    half = x.dtype == torch.bfloat16
    rows, depth, warps, stages = TILES[kernel, half]
    return {
        "TILE_M": rows,
        "TILE_K": depth,
        "TILE_N": max(16, triton.next_power_of_2(columns)),
        "PRECISION": "ieee" if half else precision(),
        "num_warps": warps,
        "num_stages": stages,
    }


# by kernel, and whether factors have 16 bits: positions, depth, warps, stages. The quickest of a dozen on an H200 that
# need at most 99 KiB of shared memory, as most GPUs have, and whose registers hold three products of rounded factors.
TILES = {
    ("convolve", False): (64, 32, 8, 2),
    ("convolve", True): (64, 32, 4, 3),
    ("to weights", False): (32, 32, 4, 3),
    ("to weights", True): (64, 128, 4, 3),
    ("to inputs", False): (128, 32, 4, 3),
    ("to inputs", True): (128, 64, 8, 3),
}
