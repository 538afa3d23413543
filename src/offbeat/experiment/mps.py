"""NVIDIA's multi-process service: processes that share a GPU run side by side with it, and take turns without it."""

from __future__ import annotations

import os
from pathlib import Path


def running() -> bool:
    """Whether the service's control pipe is where a CUDA program would look for it."""
    return (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control").exists()


def advice(device: str, processes: int, gpus: int = 1) -> str:
    """A line for those who have several processes on a GPU without the service; else empty."""
    if not device.startswith("cuda") or processes <= gpus or running():
        return ""
    return (
        f"{processes} processes share {'a GPU' if gpus == 1 else f'{gpus} GPUs'} and take turns on it; "
        "start NVIDIA's multi-process service first to run them side by side: nvidia-cuda-mps-control -d"
    )
