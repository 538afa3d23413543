"""A function of stacked rows, compiled once for a few sizes; batches are cut and padded to these.

The function is traced with real tensors (make_fx), so whatever Python does in a model is done once; what it reads
besides its arguments, such as data and frozen parameters, becomes arguments. The trace is compiled by torch.compile,
whose results are cached on disk, and on a GPU captured as a CUDA graph. Which sizes a batch is cut into depends on its
rows alone, so a run that is resumed computes the same bits.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from offbeat.core.errors import DataError, one_line
from offbeat.core.vectors import even
from offbeat.data.folder import root
from offbeat.models.dropout import unfolded
from offbeat.problems.replay import Replay, capture, fit, pad

log = logging.getLogger("offbeat.problems")

SIZES = (8, 16, 24, 32)
_CALL = 8  # rows that would take as long as a call by itself does: on an H200, 4 for W6, 19 for W7, 43 for W7 in bf16
CACHE = "TORCHINDUCTOR_CACHE_DIR"
_SHARE = 1 / 4  # of a GPU's memory for one call
_CACHED = 0.3  # of the seconds that compiling took at first: what it takes with its results in the cache
_CALLS = 10  # that follow each other in one graph, at most


def cut(rows: int, sizes: Sequence[int] = SIZES) -> list[int]:
    """The sizes that so many rows are computed in: few padded rows and few calls, each of which takes as long as some.

    >>> [cut(n) for n in (3, 16, 20, 30, 40, 70)]
    [[8], [16], [24], [32], [32, 8], [32, 32, 8]]
    """
    largest = sizes[-1]
    if rows > largest:
        return [largest, *cut(rows - largest, sizes)]
    above = [next(size for size in sizes if size >= rows)]
    below = max((size for size in sizes if size < rows), default=None)
    if below is None:
        return above
    two = [below, *cut(rows - below, sizes)]
    return min(above, two, key=lambda plan: sum(plan) + _CALL * len(plan))


def known_seconds(fingerprint: str) -> float | None:
    """How long it will take to compile what was compiled before, from the cache; None: nobody has compiled it here."""
    with suppress(OSError, ValueError):
        return float(_note(fingerprint).read_text("utf-8")) * _CACHED
    return None


def remember(fingerprint: str, seconds: float) -> None:
    """Note what compiling took, the longest time of all: later ones find it in the cache."""
    with suppress(OSError):
        if seconds > (known_seconds(fingerprint) or 0.0) / _CACHED:
            _note(fingerprint).write_text(f"{seconds:.1f}", "utf-8")


def _note(fingerprint: str) -> Path:
    return Path(os.environ.get(CACHE) or root() / "compiled") / f"seconds-{fingerprint}"


class Compiled:
    """Calls `function` on tensors of n rows each; its result has n rows, and no row depends on another.

    backend: of torch.compile.   fingerprint: under which its time is noted.   seconds: what it took to compile each
    size.   reason: why it is not compiled.
    """

    def __init__(self, function: Callable[..., Tensor], backend: str = "inductor", fingerprint: str = "") -> None:
        self.function, self.backend, self.fingerprint = function, backend, fingerprint
        self.seconds: dict[int, float] = {}
        self.reason = ""
        self._clear()

    def _clear(self) -> None:
        self.steps: dict[Any, Callable[..., Tensor]] = {}  # compiled, by size and kind
        self.made: dict[Any, Callable[..., Tensor]] = {}  # … and captured, by the number of calls, too
        self.sizes: dict[Any, tuple[int, ...]] = {}
        self.plain: Callable[..., Tensor] | None = None
        self.pool: Any = None

    def __getstate__(self) -> dict[str, Any]:  # what is compiled stays in its process
        given = {"function": self.function, "backend": self.backend, "fingerprint": self.fingerprint}
        return {**given, "seconds": {}, "reason": ""}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._clear()

    def __call__(self, *arguments: Tensor) -> Tensor:
        return self._computed(arguments, 0)

    def repeated(self, rows: Tensor, fixed: Tensor, *moving: Tensor) -> Tensor:
        """What calls come to of which each takes the result of the one before: function(rows, fixed, *moving).

        moving: what every call has another of, [n, calls, …]. On a GPU, several calls are one graph.
        """
        calls = moving[0].shape[1]
        some = even(calls, _CALLS)
        for at in range(0, calls, some):
            part = [each[:, at : at + some] for each in moving]
            rows = self._computed((rows, fixed, *part), part[0].shape[1])
        return rows

    def _computed(self, arguments: Sequence[Tensor], calls: int) -> Tensor:
        """One call, or with `calls` so many that follow each other, cut into known sizes."""
        if self.reason:
            return self._uncompiled(arguments, calls)
        one = _first(arguments) if calls else arguments
        kind = tuple((a.shape[1:], a.dtype) for a in one)
        if kind not in self.sizes:
            self.sizes[kind] = self._fitting(one)
        found, at = [], 0
        for size in cut(len(arguments[0]), self.sizes[kind]):
            some = [a[at : at + size] for a in arguments]
            if (size, kind, calls) not in self.made:
                try:
                    self.made[size, kind, calls] = self._make([pad(a, size) for a in some], (size, kind), calls)
                except Exception as error:  # whatever a model, torch or a C++ compiler objects to
                    self.reason = one_line(error)
                    log.warning("not compiled: %s", self.reason)
                    return self._uncompiled(arguments, calls)
            found.append(self.made[size, kind, calls](*some))
            at += size
        return found[0] if len(found) == 1 else torch.cat(found)

    def _uncompiled(self, arguments: Sequence[Tensor], calls: int) -> Tensor:
        if self.plain is None:
            self.plain = Replay(self.function) if arguments[0].is_cuda else self.function
        return _repeat(self.plain, calls, *arguments) if calls else self.plain(*arguments)

    def _fitting(self, arguments: Sequence[Tensor]) -> tuple[int, ...]:
        """The sizes whose rows fit into a GPU's memory."""
        if not arguments[0].is_cuda:
            return SIZES
        most = fit(self.function, arguments, _SHARE)
        return tuple(size for size in SIZES if size <= most) or (most,)

    def _make(self, wide: list[Tensor], which: tuple[int, Any], calls: int) -> Callable[..., Tensor]:
        if which not in self.steps:
            self.steps[which] = self._compile(_first(wide) if calls else wide, which[0])
        step = self.steps[which]
        run = partial(_repeat, step, calls) if calls else step
        return self._captured(run, wide) if wide[0].is_cuda else _padding(run, which[0])

    def _compile(self, wide: Sequence[Tensor], size: int) -> Callable[..., Tensor]:
        began = time.perf_counter()
        _cache_on_disk()
        wide = [a.contiguous() for a in wide]
        with unfolded():
            traced = make_fx(self.function)(*wide)
        constants = _lift(traced, wide)
        compiled: Any = torch.compile(traced, dynamic=False, fullgraph=True, backend=self.backend)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")  # precision is the experiment's to set
            compiled(*wide, *constants)
        self.seconds[size] = self.seconds.get(size, 0.0) + time.perf_counter() - began
        log.info("compiled for %d clients in %.1f s", size, time.perf_counter() - began)
        if self.fingerprint:
            remember(self.fingerprint, sum(self.seconds.values()))

        def run(*arguments: Tensor) -> Tensor:
            with torch.no_grad():
                found: Tensor = compiled(*(a.contiguous() for a in arguments), *constants)
            return found

        return run

    def _captured(self, run: Callable[..., Tensor], wide: list[Tensor]) -> Callable[..., Tensor]:
        with torch.cuda.device(wide[0].device):
            found = capture(run, wide, self.pool)
        if found is None:
            return _padding(run, len(wide[0]))
        graph, inputs, output = found
        self.pool = graph.pool()

        def replay(*arguments: Tensor) -> Tensor:
            rows = len(arguments[0])
            for place, argument in zip(inputs, arguments, strict=True):
                place[:rows].copy_(argument)
            graph.replay()
            return output[:rows].clone()  # the next replay writes there again

        return replay


def _first(arguments: Sequence[Tensor]) -> list[Tensor]:
    """The arguments of the first of several calls."""
    rows, fixed, *moving = arguments
    return [rows, fixed, *(each[:, 0] for each in moving)]


def _repeat(function: Callable[..., Tensor], calls: int, rows: Tensor, fixed: Tensor, *moving: Tensor) -> Tensor:
    """So many calls, each of which takes the result of the one before."""
    turned = [each.transpose(0, 1).contiguous() for each in moving]
    for call in range(calls):
        rows = function(rows, fixed, *(each[call] for each in turned))
    return rows


def _padding(run: Callable[..., Tensor], size: int) -> Callable[..., Tensor]:
    return lambda *arguments: run(*(pad(a, size) for a in arguments))[: len(arguments[0])]


def _lift(traced: GraphModule, given: Sequence[Tensor]) -> list[Tensor]:
    """Make arguments of the tensors that a trace holds, and give them: what is compiled then depends on no values."""
    graph, found, places = traced.graph, list[Tensor](), dict[str, Any]()
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        name = str(node.target)
        if name not in places:
            with graph.inserting_after(last):
                last = places[name] = graph.placeholder(f"constant{len(found)}")
            places[name].meta = dict(node.meta)
            found.append(getattr(traced, name).detach())
        node.replace_all_uses_with(places[name])
        graph.erase_node(node)
    traced.recompile()
    return found


def _cache_on_disk() -> None:
    """Keep what is compiled among offbeat's files, unless the user has said where, or it cannot be written there."""
    if CACHE in os.environ:
        return
    place = root() / "compiled"
    try:
        place.mkdir(parents=True, exist_ok=True)
    except (OSError, DataError):
        return
    if os.access(place, os.W_OK):
        os.environ[CACHE] = str(place)
