"""Several processes on a GPU are told of the multi-process service unless it is running."""

from __future__ import annotations

from pathlib import Path

import pytest

from offbeat.experiment import mps


def test_processes_that_take_turns_on_a_gpu_are_told_how_to_run_side_by_side(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert "4 processes share a GPU" in mps.advice("cuda", 4)
    assert "4 processes share 2 GPUs" in mps.advice("cuda:0", 4, 2)
    assert not any((mps.advice("cpu", 4), mps.advice("cuda", 1), mps.advice("cuda", 2, 2)))
    (tmp_path / "control").touch()
    assert mps.advice("cuda", 4) == ""
