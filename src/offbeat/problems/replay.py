"""A function of stacked rows on a GPU, captured once for each size and replayed.

A step of a small network is dozens of kernels that each take less time than their launch. Captured as a CUDA graph
they are launched at once. Rows are padded to a few sizes, so that few graphs serve all batches. Calls that are long
enough to hide their launches are left as they are.

A size is captured when it comes again, because a capture costs some ten calls. Whether it is padded is decided when it
first comes: so the first call has the bits of those that are replayed, and a run that is resumed has those of one that
was not.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from offbeat.core.vectors import even
from offbeat.models.gpu import room

_SHARE = 1 / 16  # of the GPU's memory for one call: other processes and the rows themselves need room, too
_OUTLAST = 1.5  # times its launch: a call that takes longer gains nothing as a graph, and would be copied in and out


def padded(rows: int) -> int:
    """The next size of 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, …: at most a third is padding,
    from 64 on a fifth.

    >>> [padded(n) for n in (1, 3, 5, 14, 17, 100, 150)]
    [1, 3, 6, 16, 24, 112, 160]
    """
    power = 1 << (rows - 1).bit_length()
    if power > 64:
        step = power // 8
        return -(-rows // step) * step
    return power * 3 // 4 if rows <= power * 3 // 4 and power >= 4 else power


class Replay:
    """Calls `function` on tensors of n rows each; its result has n rows, and no row depends on another."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function
        self.most: dict[Any, int] = {}  # rows that fit
        self.pool: Any = None  # graphs are never replayed at once, so they work in the same memory
        self.hasty: dict[Any, bool] = {}  # whether a size is padded, and captured when it comes again
        self.captured: dict[Any, tuple[torch.cuda.CUDAGraph, list[Tensor], Tensor] | None] = {}

    def __call__(self, *arguments: Tensor) -> Tensor:
        with torch.cuda.device(arguments[0].device):  # graphs, streams and kernels go to the current one
            return self._call(arguments)

    def _call(self, arguments: Sequence[Tensor]) -> Tensor:
        rows = len(arguments[0])
        kind = tuple((a.shape[1:], a.dtype) for a in arguments)
        most = self.most.get(kind) or self.most.setdefault(kind, self._fit(arguments))
        if rows > most:
            parts = zip(*(torch.split(a, even(rows, most)) for a in arguments), strict=True)
            return torch.cat([self._call(some) for some in parts])
        size = padded(rows)
        key = (size, kind)
        known = key in self.hasty
        if not known:
            self.hasty[key] = self._launch_bound([pad(a, size) for a in arguments])
        if not self.hasty[key]:
            return self.function(*arguments)
        if known and key not in self.captured:
            self.captured[key] = capture(self.function, [pad(a, size) for a in arguments], self.pool)
            self.pool = self.pool if self.captured[key] is None else self.captured[key][0].pool()  # type: ignore[index]
        found = self.captured.get(key)
        if found is None:  # padded all the same: other shapes would round differently
            return self.function(*(pad(a, size) for a in arguments))[:rows]
        graph, inputs, output = found
        for place, argument in zip(inputs, arguments, strict=True):
            place[:rows].copy_(argument)
        graph.replay()
        return output[:rows].clone()  # the next replay writes there again

    def _fit(self, arguments: Sequence[Tensor]) -> int:
        return fit(self.function, arguments)

    def _launch_bound(self, inputs: list[Tensor]) -> bool:
        """Whether the GPU is done with a call before the next could be launched: then it waits for launches."""
        self.function(*inputs)  # once before, so that libraries have set themselves up
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        began = time.perf_counter()
        begin.record()
        self.function(*inputs)
        end.record()
        launched = 1e3 * (time.perf_counter() - began)
        torch.cuda.synchronize()
        return bool(begin.elapsed_time(end) < _OUTLAST * launched)


def fit(function: Callable[..., Any], arguments: Sequence[Tensor], share: float = _SHARE, tried: int = 2) -> int:
    """A size of which as many rows fit into a share of the GPU's memory, by what a few of them take."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    function(*(pad(a[:tried], tried) for a in arguments))
    taken = max(1, torch.cuda.max_memory_allocated() - before) / tried
    rows = max(1, int(share * room() / taken))
    return next(size for size in range(rows, 0, -1) if padded(size) == size)


def capture(
    function: Callable[..., Tensor], inputs: list[Tensor], pool: Any
) -> tuple[torch.cuda.CUDAGraph, list[Tensor], Tensor] | None:
    """The function as a graph; None for one that cannot be captured, because it asks the GPU for numbers."""
    inputs = [a.clone() for a in inputs]
    try:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            function(*inputs)  # once outside, so that libraries have set themselves up
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with _no_collection(), torch.cuda.graph(graph, pool=pool):
            output = function(*inputs)
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph, inputs, output


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Within, no garbage is collected: the graph of an earlier run that goes during a capture would break that one."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def pad(rows: Tensor, size: int) -> Tensor:
    """The same rows, and the last one again up to this size."""
    if len(rows) == size:
        return rows
    return torch.cat([rows, rows[-1:].expand(size - len(rows), *rows.shape[1:])])
