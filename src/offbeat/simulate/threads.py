"""How many threads PyTorch computes with, and how precisely, while a run goes on; as before afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from offbeat.core.problem import Problem
from offbeat.simulate.pool import cores

_LARGE = 250_000  # parameters from which on an operation is worth several threads


def use(problems: Sequence[Problem], threads: int | None = None, precision: str = "single", sharers: int = 1) -> None:
    """Give PyTorch so many threads; None: all cores for large models that do not stack, else one: the operations are
    small, and threads that wait for each other made small networks ten times slower on a busy machine.

    precision: of matrix products on a GPU, "single" or "tf32".   sharers: processes that share the cores.
    """
    large = any(not problem.stacks and problem.dim >= _LARGE for problem in problems)
    torch.set_num_threads(threads or (max(1, cores() // sharers) if large else 1))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"


@contextmanager
def computing(problems: Sequence[Problem], threads: int | None = None, precision: str = "single") -> Iterator[None]:
    """Within, as `use` says and without NumPy's warnings: a run that diverges says so itself. Afterwards as before."""
    before = torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    use(problems, threads, precision)
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            yield
    finally:
        torch.set_num_threads(before[0])
        _, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
