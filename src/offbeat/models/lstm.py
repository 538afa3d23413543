"""The recurrent network for next-character prediction."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from offbeat.core.errors import SettingError


class LSTM(nn.Module):
    """Characters embedded in 8 dimensions, two LSTM layers of 256, and a linear layer on the last output.

    The sizes are LEAF's; FAST (Shakespeare) takes the model from there.
    """

    def __init__(
        self, shape: Sequence[int], classes: int, embedding: int = 8, hidden: int = 256, layers: int = 2
    ) -> None:
        super().__init__()
        if len(shape) != 1:
            raise SettingError(f"lstm takes windows of tokens [length], the data are {list(shape)}")
        if min(embedding, hidden, layers) < 1:
            raise SettingError(f"embedding = {embedding}, hidden = {hidden}, layers = {layers}: all positive")
        self.embedding = nn.Embedding(classes, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.linear = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs, _ = self.lstm(self.embedding(x))  # [batch, length, hidden]
        return self.linear(outputs[:, -1])  # type: ignore[no-any-return]
