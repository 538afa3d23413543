"""Several processes on a GPU are told of the multi-process service unless it is running."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from offbeat.experiment import mps
from offbeat.experiment.sweep_workers import Orders, SweepWorker


def test_processes_that_take_turns_on_a_gpu_are_told_how_to_run_side_by_side(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert "4 processes share a GPU" in mps.advice("cuda", 4)
    assert "4 processes share 2 GPUs" in mps.advice("cuda:0", 4, 2)
    assert not any((mps.advice("cpu", 4), mps.advice("cuda", 1), mps.advice("cuda", 2, 2)))
    (tmp_path / "control").touch()
    assert mps.advice("cuda", 4) == ""


@pytest.mark.parametrize(
    ("device", "workers", "sweeps", "gpus", "part"),
    [
        ("cuda", 4, 4, 1, 0.85 / 16),
        ("cuda:0", 14, 1, 1, 0.85 / 14),
        ("cuda", 3, 1, 2, 0.85 / 2),
        ("cuda", 1, 1, 1, None),
        ("cpu", 8, 2, 1, None),
    ],
)
def test_processes_on_a_gpu_keep_to_their_part_of_its_memory(
    monkeypatch: pytest.MonkeyPatch, device: str, workers: int, sweeps: int, gpus: int, part: float | None
) -> None:
    found: list[float] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", found.append)
    orders = Orders("", device, False, workers, 99, gpus, sweeps=sweeps)
    SweepWorker(orders, 0, iter([]), lambda message: None, lambda: False)
    assert found == ([] if part is None else [part])
