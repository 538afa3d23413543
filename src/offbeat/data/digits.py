"""The handwritten digits that come with scikit-learn: real, small, and there without a network."""

from __future__ import annotations

import numpy as np
import torch

from offbeat.data.base import Dataset


def digits() -> Dataset:
    """1,797 digits of 8 × 8 pixels with values 0 to 16; every fifth of a class is for testing."""
    from sklearn.datasets import load_digits  # slow to import, and only needed here

    pixels, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(pixels.astype(np.uint8)).reshape(-1, 1, 8, 8)
    y = torch.from_numpy(labels.astype(np.int64))
    test = torch.zeros(len(y), dtype=torch.bool)
    for label in range(10):
        test[torch.nonzero(y == label).flatten()[4::5]] = True
    return Dataset("digits", x[~test], y[~test], x[test], y[test], classes=10, scale=1 / 16)
