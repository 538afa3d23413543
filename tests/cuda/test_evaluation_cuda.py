"""Problems that are looked at closely before their first job, on a GPU: texts, whose tokens are counted, and dropout.

Also a script (`PYTHONPATH=src python tests/cuda/test_evaluation_cuda.py`), for machines without pytest.
"""

from __future__ import annotations

import torch
from torch import nn

from offbeat.data.base import Dataset
from offbeat.data.texts import windows
from offbeat.problems.supervised import Supervised

try:
    import pytest

    pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
except ImportError:  # run as a script
    pass

TEXTS = {str(i): f"{word} and {word}, said {i}; " * 60 for i, word in enumerate(("ham", "spam", "eggs", "toast"))}
SMALL = {"layers": 2, "heads": 2, "width": 16}


def texts(device: str) -> Supervised:
    return Supervised.split(windows(TEXTS, window=12), 4, model="gpt", options=SMALL, device=device)


def images(device: str, side: int = 32) -> Supervised:
    """A convolutional network with dropout, large enough for kernels that add in another order each time."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.rand(64, 3, side, side, generator=g), torch.arange(64) % 10
    module = nn.Sequential(
        nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.5), nn.Linear(64 * ((side - 4) // 2 - 4) ** 2 // 4, 10),
    )  # fmt: skip
    return Supervised.split(Dataset.pairs("noise", x, y, x, y, classes=10), 4, model=module, device=device)


def test_texts_are_evaluated_as_on_a_cpu() -> None:
    here, there = texts("cpu"), texts("cuda")
    w = here.initial().unsqueeze(0)
    (expected,), (found,) = here.measure(w), there.measure(w.cuda())
    for name, value in expected.items():
        assert abs(found[name] - value) <= 1e-4 * max(abs(value), 1e-6), name


def test_a_network_with_dropout_is_accepted() -> None:
    assert images("cuda").flat.random


if __name__ == "__main__":
    test_texts_are_evaluated_as_on_a_cpu()
    test_a_network_with_dropout_is_accepted()
    print("as on a CPU")
