"""What a GPU offers: room, and Triton for the networks' own kernels, which PyTorch for GPUs brings along."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch


@cache
def kernels(device: torch.device) -> bool:
    """Whether they run there: on a GPU with the tensor cores of 2020 or later."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def share(device: str, processes: int) -> None:
    """Limit this process to its part of a GPU's memory, next to others like it; each has a CUDA context besides."""
    if processes > 1 and device.startswith("cuda"):
        torch.cuda.set_per_process_memory_fraction(0.85 / processes)


@cache
def multiprocessors(device: torch.device) -> tuple[int, int]:
    """(how many there are, the bytes of shared memory that a program may take on one); without a GPU, an H200's."""
    if device.type != "cuda":
        return 132, 227 << 10
    import triton

    number = torch.cuda.current_device() if device.index is None else device.index
    found = triton.runtime.driver.active.utils.get_device_properties(number)
    return found["multiprocessor_count"], found["max_shared_mem"]


def undivided(device: torch.device) -> bool:
    """Whether this process may take all of a GPU's memory: others are probably not at work there."""
    number = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.get_per_process_memory_fraction(number) == 1.0


def room(device: str = "cuda") -> float:
    """Bytes of a GPU's memory that this process may take: all, unless `share` or a caller has set a limit."""
    named = torch.device(device).index
    number = torch.cuda.current_device() if named is None else named
    return torch.cuda.mem_get_info(number)[1] * torch.cuda.get_per_process_memory_fraction(number)


def precision() -> str:
    """Of the kernels' products. Three of rounded factors are as good as one in single precision, and quicker."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"
