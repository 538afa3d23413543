"""Mini-batches: draw c of a client is a function of its key and c, however many are drawn at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import offbeat.problems.shards as module
from offbeat.core.random import Stream, key, signed
from offbeat.problems.replay import padded
from offbeat.problems.shards import Draws, Shards

SIZES = [5, 1, 12]
ORDER = np.random.default_rng(0).permutation(100)[: sum(SIZES)].astype(np.int64)
SHARDS = Shards(ORDER, np.array(SIZES), np.ones(3), torch.device("cpu"))
KEYS = [key(0, 3, c) for c in range(3)]


def draws(clients: list[int], batch: int, steps: int = 10, shuffle: bool = False) -> Draws:
    return Draws(SHARDS, clients, [signed(KEYS[c]) for c in clients], steps, batch, shuffle)


def defined(client: int, batch: int, step: int, sample: int) -> list[int]:
    """One draw after the other: place ⌊(upper half of the bits) · size / 2³²⌋ of the client's samples."""
    found = []
    for c in range(step * batch, (step + 1) * batch):
        stream = Stream((KEYS[client] + (c + (sample << 40)) * 0x9E3779B97F4A7C15) % 2**64)
        found.append(int(SHARDS[client][(stream.bits() >> 32) * SIZES[client] >> 32]))
    return found


@pytest.mark.parametrize("sample", [0, 1, 5])
@pytest.mark.parametrize("step", [0, 3, 9])
def test_they_are_what_their_definition_says(step: int, sample: int) -> None:
    found = draws([2, 0, 1], 4).indices(step, sample)
    assert found.tolist() == [defined(client, 4, step, sample) for client in (2, 0, 1)]


@pytest.mark.parametrize("shuffle", [False, True])
def test_how_many_are_drawn_at_once_does_not_matter(shuffle: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = draws([0, 1, 2], 4, 10, shuffle)
    together = [ahead.indices(step, 0).tolist() for step in range(10)]
    assert len(ahead.drawn) == 1  # in one go
    monkeypatch.setattr(module, "_AHEAD", 1)
    single = draws([0, 1, 2], 4, 10, shuffle)
    assert [single.indices(step, 0).tolist() for step in range(10)] == together


def test_shuffled_epochs_hold_every_sample_once() -> None:
    asked = draws([2], 3, 8, shuffle=True)
    drawn = [n for step in range(8) for n in asked.indices(step, 0)[0].tolist()]
    assert sorted(drawn[:12]) == sorted(drawn[12:]) == sorted(SHARDS[2])
    assert drawn[:12] != drawn[12:]


def test_several_parts_together_have_each_client_s_samples() -> None:
    other = Shards(np.arange(7), np.array([3, 4]), np.array([0.5, 0.25]), torch.device("cpu"))
    joint = Shards.union([SHARDS, other, SHARDS])
    for client, part, own in ((0, SHARDS, 0), (2, SHARDS, 2), (3, other, 0), (4, other, 1), (7, SHARDS, 2)):
        assert joint[client].tolist() == part[own].tolist()
        assert joint.shares[client] == part.shares[own]


def test_padded_sizes_are_few_and_waste_at_most_a_third() -> None:
    sizes = [padded(n) for n in range(1, 2000)]
    assert all(size >= n for n, size in enumerate(sizes, 1))
    assert all(3 * (size - n) <= size for n, size in enumerate(sizes, 1))
    assert sorted(set(sizes))[:9] == [1, 2, 3, 4, 6, 8, 12, 16, 24]
    assert len(set(sizes)) == 32
    assert [padded(size) for size in sizes] == sizes
