"""What calls of a captured function are cut into; capturing itself needs a GPU (tests/cuda)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from offbeat.problems.replay import Replay


class Plain(Replay):
    """Four rows fit, and nothing is worth a graph."""

    def _fit(self, arguments: Sequence[torch.Tensor]) -> int:
        return 4

    def _launch_bound(self, inputs: list[torch.Tensor]) -> bool:
        return False


def test_a_batch_that_does_not_fit_is_cut_into_equal_parts() -> None:
    sizes: list[int] = []

    def double(rows: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        sizes.append(len(rows))
        return rows * column

    rows, column = torch.rand(9, 3), torch.rand(9, 1)
    assert torch.equal(Plain(double)._call([rows, column]), rows * column)
    assert sizes == [3, 3, 3]
