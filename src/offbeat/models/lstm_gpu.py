"""An LSTM layer of many models at once as GPU kernels: one per time step forward, one backward.

A step is a matrix product for every model and a dozen small operations. Here a block of hidden units gets its four
gates from the product and goes through the rest of the step where it is.

Everything is [n, time, batch, …]: what all steps have in common is one product before or after.

In half precision (`half_forward`, `half_backward`) a launch makes many steps. The programs of a model share its hidden
units, keep their weights in shared memory and their cells in registers, and wait for each other after every step.
Launches are cooperative: either all programs run at once, or CUDA refuses, so that none waits for one that never runs.
That is known of one process only; in one that has a share of the GPU, next to others, every step is a launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from offbeat.models.gpu import multiprocessors, precision, undivided


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


# In half precision: factors, gates, activations, outputs, cells and slopes by gates are bfloat16 in memory; sums are
# float32, and so is the cell that goes from step to step.


class Division(NamedTuple):
    """How a layer's steps are divided among programs in half precision; `benchmarks/lstm_tuning.py` compares some.

    units: hidden units of a program, a power of 2 from 16.   warps: of a program.
    each: programs that run at once on a multiprocessor.
    """

    units: int
    warps: int
    each: int = 1


# the first division whose programs for all models run at once is used, or the last, some models after the others
FORWARD: tuple[Division, ...] = (Division(16, 4), Division(32, 4, 2))
BACKWARD: tuple[Division, ...] = (Division(16, 4), Division(64, 8))
PARTIAL = torch.bfloat16  # the parts of the slope by an output, one from each of a model's programs, in memory
TOGETHER = True  # False: a launch for every step, as where a model's programs do not fit on the GPU at once
COOPERATIVE = True  # CUDA makes sure that all programs run at once


@triton.jit
def _quick_tanh(x, QUICK: tl.constexpr):
    """By one instruction, whose error is below that of bfloat16."""
    if QUICK:
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    return _tanh(x)


@triton.jit
def _quick_sigmoid(x, QUICK: tl.constexpr):
    return 0.5 + 0.5 * _quick_tanh(0.5 * x, QUICK)


@triton.jit
def _arrive(arrived, WAIT: tl.constexpr):
    """Say that this program has written everything that others wait for."""
    if WAIT:
        tl.debug_barrier()  # all its threads have
        tl.atomic_add(arrived, 1, sem="release", scope="gpu")


@triton.jit
def _await(arrived, number, WAIT: tl.constexpr):
    """Wait until so many have arrived; what they have written can be read afterwards."""
    if WAIT:
        while tl.atomic_add(arrived, 0, sem="acquire", scope="gpu") < number:
            pass


@triton.jit
def _apart(x, TILE_B: tl.constexpr, TILE_H: tl.constexpr):
    """The four gates [TILE_B, TILE_H] of numbers [TILE_B, 4 · TILE_H] in the order of `fitted`."""
    x = tl.permute(tl.reshape(x, [TILE_B, TILE_H // 4, 2, 4, 2]), (0, 1, 3, 2, 4))
    even, odd = tl.split(tl.reshape(x, [TILE_B, TILE_H, 2, 2]))
    i, g = tl.split(even)
    f, o = tl.split(odd)
    return i, f, g, o


@triton.jit
def _given(
    gates, tokens, model, t, line, row, vocabulary,
    T: tl.constexpr, B: tl.constexpr, H: tl.constexpr, LOOKUP: tl.constexpr, valid,
):  # fmt: skip
    """What inputs give to the gates at step t."""
    if LOOKUP:
        token = tl.load(tokens + (model * T + t) * B + line, (line < B) & valid, 0)
        at = (model * vocabulary + token) * (4 * H)
    else:
        at = ((model * T + t) * B + line) * (4 * H)
    return tl.load(gates + at[:, None] + row[None, :], (line < B)[:, None] & (row < 4 * H)[None, :] & valid, 0.0)


@triton.jit(do_not_specialize=["begin", "arrived"])
def _half_forward(
    gates, tokens, bias, w, outputs, cells, active, carried, arrived, begin, vocabulary,
    STEPS: tl.constexpr, T: tl.constexpr, B: tl.constexpr, H: tl.constexpr, LOOKUP: tl.constexpr,
    TILE_B: tl.constexpr, TILE_H: tl.constexpr, TILE_K: tl.constexpr, WAIT: tl.constexpr, QUICK: tl.constexpr,
):  # fmt: skip
    """STEPS steps from begin on: w [n, 4H, H], and gates [n, T, B, 4H] to which a bias [n, 4H] is added, or, with
    LOOKUP, what each token gives to them [n, vocabulary, 4H] and tokens [n, T, B], to outputs and cells [n, T, B, H]
    and activations [n, T, B, 4H]. The weights, the bias and what is given are in the order of `fitted`.

    carried [n, B, H] are the cells before and after; arrived [n, batches]: programs that have done a step, 0 at first.
    """
    model = tl.program_id(1).to(tl.int64)
    unit = tl.program_id(0) * TILE_H + tl.arange(0, TILE_H)
    row = tl.program_id(0) * (4 * TILE_H) + tl.arange(0, 4 * TILE_H)
    line = tl.program_id(2) * TILE_B + tl.arange(0, TILE_B)
    k = tl.arange(0, TILE_K)
    inside = (line < B)[:, None] & (unit < H)[None, :]
    arrived += model * tl.num_programs(2) + tl.program_id(2)
    carried += model * (B * H) + line[:, None] * H + unit[None, :]
    valid = (k < H)[:, None] & (row < 4 * H)[None, :]
    weights = tl.load(w + model * (4 * H * H) + row[None, :] * H + k[:, None], valid, 0.0)
    cell = tl.load(carried, inside & (begin > 0), 0.0)
    if not LOOKUP:
        added = tl.load(bias + model * (4 * H) + row, row < 4 * H, 0.0)
    given = _given(gates, tokens, model, begin, line, row, vocabulary, T, B, H, LOOKUP, True)
    for step in tl.range(0, STEPS, num_stages=1):  # what others write must not be read a step ahead
        t = begin + step
        at = (model * T + t) * (B * H)
        total = given.to(tl.float32)
        if not LOOKUP:
            total += added[None, :]
        _await(arrived, step * tl.num_programs(0), WAIT)
        earlier = outputs + at - B * H + line[:, None] * H + k[None, :]
        a = tl.load(earlier, (line < B)[:, None] & (k < H)[None, :] & (t > 0), 0.0)
        given = _given(gates, tokens, model, t + 1, line, row, vocabulary, T, B, H, LOOKUP, step + 1 < STEPS)
        i, f, g, o = _apart(tl.dot(a, weights, total), TILE_B, TILE_H)
        i, f, o = _quick_sigmoid(i, QUICK), _quick_sigmoid(f, QUICK), _quick_sigmoid(o, QUICK)
        g = _quick_tanh(g, QUICK)
        cell = f * cell + i * g
        place = at + line[:, None] * H + unit[None, :]
        tl.store(outputs + place, (o * _quick_tanh(cell, QUICK)).to(tl.bfloat16), inside)
        _arrive(arrived, WAIT)
        tl.store(cells + place, cell.to(tl.bfloat16), inside)
        to = active + 4 * at + line[:, None] * (4 * H) + unit[None, :]
        tl.store(to, i.to(tl.bfloat16), inside)
        tl.store(to + H, f.to(tl.bfloat16), inside)
        tl.store(to + 2 * H, g.to(tl.bfloat16), inside)
        tl.store(to + 3 * H, o.to(tl.bfloat16), inside)
    tl.store(carried, cell, inside)


@triton.jit(do_not_specialize=["begin", "arrived"])
def _half_backward(
    slope, w, cells, active, by_gates, partial, carried, arrived, begin,
    STEPS: tl.constexpr, T: tl.constexpr, B: tl.constexpr, H: tl.constexpr, LAST: tl.constexpr, PROGRAMS: tl.constexpr,
    TILE_B: tl.constexpr, TILE_H: tl.constexpr, TILE_K: tl.constexpr, WAIT: tl.constexpr, QUICK: tl.constexpr,
):  # fmt: skip
    """STEPS steps from begin on, counted from the last: the slope by outputs [n, T, B, H] or, with LAST, by the last
    of them [n, B, H] to that by gates [n, T, B, 4H]; w [n, 4H, H] in the order of `fitted`.

    A program's gates move all outputs of the step before, so that each writes its part of that slope for the others:
    partial [n, 2, PROGRAMS, B, H], in turns, because the others may still read those of the step after.
    carried [n, B, H]: the slope by the cells.
    """
    model = tl.program_id(1).to(tl.int64)
    unit = tl.program_id(0) * TILE_H + tl.arange(0, TILE_H)
    row = tl.program_id(0) * (4 * TILE_H) + tl.arange(0, 4 * TILE_H)
    line = tl.program_id(2) * TILE_B + tl.arange(0, TILE_B)
    k = tl.arange(0, TILE_K)
    inside = (line < B)[:, None] & (unit < H)[None, :]
    across = (line < B)[:, None] & (k < H)[None, :]
    arrived += model * tl.num_programs(2) + tl.program_id(2)
    mine = line[:, None] * H + unit[None, :]
    wide = line[:, None] * (4 * H) + unit[None, :]
    carried += model * (B * H) + mine
    partial += model * (2 * PROGRAMS * B * H)
    place = row // 16 * 16 + row % 4 // 2 * 8 + row // 4 % 4 * 2 + row % 2  # in the order of `fitted`
    from_w = w + model * (4 * H * H) + place[:, None] * H + k[None, :]
    weights = tl.load(from_w, (row < 4 * H)[:, None] & (k < H)[None, :], 0.0)
    through = tl.load(carried, inside & (begin > 0), 0.0)
    first = (model * T + T - 1 - begin) * (B * H)
    four = active + 4 * first + wide
    next_i = tl.load(four, inside, 0.0)
    next_f = tl.load(four + H, inside, 0.0)
    next_g = tl.load(four + 2 * H, inside, 0.0)
    next_o = tl.load(four + 3 * H, inside, 0.0)
    cell = tl.load(cells + first + mine, inside, 0.0)
    earlier = tl.load(cells + first - B * H + mine, inside & (begin < T - 1), 0.0)
    if LAST:
        direct = tl.load(slope + model * (B * H) + mine, inside & (begin == 0), 0.0)
    else:
        direct = tl.load(slope + first + mine, inside, 0.0)
    for step in tl.range(0, STEPS, num_stages=1):  # what others write must not be read a step ahead
        back = begin + step
        at = (model * T + T - 1 - back) * (B * H)
        i, f = next_i.to(tl.float32), next_f.to(tl.float32)
        g, o = next_g.to(tl.float32), next_o.to(tl.float32)
        out, tanh, before = direct.to(tl.float32), _quick_tanh(cell.to(tl.float32), QUICK), earlier.to(tl.float32)
        _await(arrived, step * PROGRAMS, WAIT)
        parts = partial + (back + 1) % 2 * (PROGRAMS * B * H) + mine
        for program in tl.static_range(PROGRAMS):
            out += tl.load(parts + program * (B * H), inside & (back > 0), 0.0).to(tl.float32)
        more = step + 1 < STEPS  # the next step's, early
        four = active + 4 * (at - B * H) + wide
        next_i = tl.load(four, inside & more, 0.0)
        next_f = tl.load(four + H, inside & more, 0.0)
        next_g = tl.load(four + 2 * H, inside & more, 0.0)
        next_o = tl.load(four + 3 * H, inside & more, 0.0)
        cell = earlier
        earlier = tl.load(cells + at - 2 * B * H + mine, inside & more & (back < T - 2), 0.0)
        if LAST:
            direct = tl.zeros_like(direct)
        else:
            direct = tl.load(slope + at - B * H + mine, inside & more, 0.0)
        through += out * o * (1 - tanh * tanh)
        d_i = (through * g * i * (1 - i)).to(tl.bfloat16)
        d_f = (through * before * f * (1 - f)).to(tl.bfloat16)
        d_g = (through * i * (1 - g * g)).to(tl.bfloat16)
        d_o = (out * tanh * o * (1 - o)).to(tl.bfloat16)
        through *= f
        slopes = tl.reshape(tl.join(tl.join(d_i, d_g), tl.join(d_f, d_o)), [TILE_B, 4 * TILE_H])  # unit by unit
        part = tl.dot(slopes, weights, tl.zeros([TILE_B, TILE_K], tl.float32))
        to = partial + (back % 2 * PROGRAMS + tl.program_id(0)) * (B * H) + line[:, None] * H + k[None, :]
        tl.store(to, part.to(partial.dtype.element_ty), across)
        _arrive(arrived, WAIT)
        four = by_gates + 4 * at + wide
        tl.store(four, d_i, inside)
        tl.store(four + H, d_f, inside)
        tl.store(four + 2 * H, d_g, inside)
        tl.store(four + 3 * H, d_o, inside)
    tl.store(carried, through, inside)


def fitted(rows: Tensor) -> Tensor:
    """Rows [n, 4h, ...], gate by gate, in the order of the kernels: of 16 rows, four units of i and f in turns, and
    then of g and o. A product leaves to a thread columns 2c, 2c + 1, 2c + 8, …: all four gates of a unit."""
    parts: Tensor = rows.unflatten(1, (2, 2, -1, 4))  # [n, i and f or g and o, which of them, h / 4, 4, ...]
    return parts.movedim(3, 1).movedim(4, 3).flatten(1, 4)


def half_forward(
    gates: Tensor, weights: Tensor, bias: Tensor | None, tokens: Tensor | None, length: int, batch: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(outputs, cells, activations of the gates) of all steps, bfloat16 like gates and weights [n, 4h, h].

    gates: [n, length, batch, 4h], to which the bias [n, 4h] is added; or, with tokens [n, length, batch], what each of
    them gives to the gates: [n, vocabulary, 4h]. These, the bias and the weights are `fitted`.
    """
    n, _, h = weights.shape
    gates, weights = gates.contiguous(), weights.contiguous()
    outputs, cells = gates.new_empty(n, length, batch, h), gates.new_empty(n, length, batch, h)
    active = gates.new_empty(n, length, batch, 4 * h)
    carried = gates.new_empty(n, batch, h, dtype=torch.float32)
    course = _course(FORWARD, n, length, batch, h, gates.device)
    arrived = torch.zeros(n, course.batches, dtype=torch.int32, device=gates.device)
    everything = gates, tokens, bias, weights, outputs, cells, active, carried
    for models, begin in course.launches():
        some = [None if t is None else t[models] for t in everything]
        sizes = gates.shape[1], course.steps, length, batch, h
        _half_forward[course.grid(models)](*some, arrived[models], begin, *sizes, tokens is not None, **course.options)
    return outputs, cells, active


def half_backward(slope: Tensor, weights: Tensor, cells: Tensor, active: Tensor) -> Tensor:
    """The slope by the gates, bfloat16, from that by all outputs [n, length, batch, h] or by the last [n, batch, h];
    the weights are `fitted`."""
    n, length, batch, h = cells.shape
    slope, by_gates = slope.contiguous(), torch.empty_like(active)
    course = _course(BACKWARD, n, length, batch, h, cells.device)
    arrived = torch.zeros(n, course.batches, dtype=torch.int32, device=cells.device)
    carried = cells.new_empty(n, batch, h, dtype=torch.float32)
    partial = cells.new_empty(n, 2, course.programs, batch, h, dtype=PARTIAL)
    for models, begin in course.launches():
        some = [t[models] for t in (slope, weights, cells, active, by_gates, partial, carried, arrived)]
        _half_backward[course.grid(models)](
            *some, begin, course.steps, length, batch, h, slope.dim() == 3, course.programs, **course.options
        )
    return by_gates


class _Course(NamedTuple):
    """Which launches make the steps of a layer: `most` models at a time, and all steps at once or one."""

    programs: int  # of a model and a part of its batch, which wait for each other
    batches: int
    models: int
    most: int
    length: int
    steps: int
    options: dict[str, Any]

    def grid(self, models: slice) -> tuple[int, int, int]:
        return self.programs, models.stop - models.start, self.batches

    def launches(self) -> Iterator[tuple[slice, int]]:
        """(models, first step)."""
        size = triton.cdiv(self.models, triton.cdiv(self.models, self.most))
        for begin in range(0, self.length, self.steps):
            for first in range(0, self.models, size):
                yield slice(first, min(first + size, self.models)), begin


def _course(plans: tuple[Division, ...], n: int, length: int, batch: int, h: int, device: torch.device) -> _Course:
    lines, width = _lines(batch), max(16, triton.next_power_of_2(h))
    batches, (count, shared) = triton.cdiv(batch, lines), multiprocessors(device)
    fitting = [p for p in plans if _shared(p.units, width, lines) * p.each <= shared] or [min(plans)]
    rooms = [count * p.each // (triton.cdiv(h, p.units) * batches) for p in fitting]  # for so many models
    at = next((at for at, room in enumerate(rooms) if room >= n), len(rooms) - 1)
    plan = fitting[at]
    together = TOGETHER and device.type == "cuda" and rooms[at] > 0 and undivided(device)
    options = {
        "TILE_B": lines, "TILE_H": plan.units, "TILE_K": width, "WAIT": together, "QUICK": device.type == "cuda",
        "num_warps": plan.warps, "num_stages": 1, "launch_cooperative_grid": together and COOPERATIVE,
    }  # fmt: skip
    programs, most = triton.cdiv(h, plan.units), rooms[at] if together else n
    return _Course(programs, batches, n, most, length, length if together else 1, options)


def _shared(units: int, width: int, lines: int) -> int:
    """Bytes of shared memory that a program takes at most: its weights, and outputs or slopes of its lines."""
    return 8 * units * width + 2 * lines * width + 8192


def halves(h: int, batch: int, device: torch.device) -> bool:
    """Whether these kernels serve a layer: written for Hopper's products, and a program's weights have to fit in."""
    if h % 4 or (device.type == "cuda" and torch.cuda.get_device_capability(device)[0] != 9):
        return False
    width = max(16, triton.next_power_of_2(h))
    return _shared(min(FORWARD).units, width, _lines(batch)) <= multiprocessors(device)[1]
