"""How many threads PyTorch computes with, and how precisely, while a run goes on; as before afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from offbeat.core.problem import Problem
from offbeat.simulate.pool import cores


def use(problems: Sequence[Problem], threads: int | None = None, precision: str = "single", sharers: int = 1) -> None:
    """Give PyTorch so many threads; None: one for models that stack, whose operations are small, else all cores.

    precision: of matrix products on a GPU, "single" or "tf32".   sharers: processes that share the cores.
    """
    stacks = all(problem.stacks for problem in problems)
    torch.set_num_threads(threads or (1 if stacks else max(1, cores() // sharers)))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"


@contextmanager
def computing(problems: Sequence[Problem], threads: int | None = None, precision: str = "single") -> Iterator[None]:
    """Within, as `use` says; afterwards as before."""
    before = torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    use(problems, threads, precision)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        _, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
