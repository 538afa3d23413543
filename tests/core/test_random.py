"""Random numbers without state."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from scipy.stats import chisquare, kstest

from offbeat.core.random import DELAY, SAMPLE, Stream, below, bits, key, mix, signed, unit

keys = st.integers(0, 2**64 - 1)
small = st.integers(0, 2**20)


def drawn(k: int, count: int) -> list[int]:
    stream = Stream(k)
    return [stream.bits() for _ in range(count)]


@given(keys, st.integers(1, 20))
def test_the_stream_and_the_arrays_agree_bit_for_bit(k: int, count: int) -> None:
    expected = [signed(z) for z in drawn(k, count)]
    for make in (lambda x: np.array(x, dtype=np.int64), lambda x: torch.tensor(x, dtype=torch.int64)):
        assert bits(make([signed(k)]), make(list(range(count)))).tolist() == expected


@given(keys)
def test_uniform_numbers_agree_bit_for_bit(k: int) -> None:
    stream = Stream(k)
    array = unit(bits(torch.tensor([signed(k)]), torch.arange(8)))
    assert [stream.uniform() for _ in range(8)] == array.tolist()
    assert bool(((array > 0) & (array < 1)).all())


def test_splitmix64_is_splitmix64() -> None:
    """The reference implementation's first draws for the seed 1234567 (Vigna, splitmix64.c; also Rosetta Code)."""
    assert drawn(1234567, 5) == [
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821
    ]  # fmt: skip


@given(st.lists(st.tuples(small, st.integers(1, 10), small, small), min_size=2, max_size=50, unique=True))
def test_different_purposes_have_different_keys(parts: list[tuple[int, int, int, int]]) -> None:
    assert len({key(*p) for p in parts}) == len(parts)


def test_a_million_keys_are_distinct() -> None:
    found = {key(0, SAMPLE, client, job) for client in range(1000) for job in range(500)}
    found |= {key(0, DELAY, client, job) for client in range(1000) for job in range(500)}
    assert len(found) == 1_000_000


def test_a_key_depends_on_the_order_and_the_number_of_its_parts() -> None:
    assert len({key(0, 1), key(0, 1, 0), key(0, 1, 0, 0), key(0, 1, 0, 1), key(0, 1, 1, 0), key(1, 0, 0, 1)}) == 6


@given(st.sets(keys, min_size=2))
def test_the_mixer_is_injective(values: set[int]) -> None:
    assert len({mix(z) for z in values}) == len(values)


def test_uniform_numbers_are_uniform_within_a_key_and_across_keys() -> None:
    stream = Stream(key(3, DELAY))
    assert kstest([stream.uniform() for _ in range(20000)], "uniform").pvalue > 0.01
    assert kstest([Stream(key(3, DELAY, c)).uniform() for c in range(20000)], "uniform").pvalue > 0.01


@pytest.mark.parametrize("bound", [1, 2, 7, 1000])
def test_integers_are_uniform_below_their_bound(bound: int) -> None:
    stream = Stream(key(5, SAMPLE))
    single = [stream.below(bound) for _ in range(20000)]
    many = below(bits(torch.tensor([signed(key(5, SAMPLE))]), torch.arange(20000)), bound).tolist()
    for found in (single, many):
        assert 0 <= min(found) <= max(found) < bound
        assert bound == 1 or chisquare(np.bincount(found, minlength=bound)).pvalue > 0.01


def test_exponential_and_normal_numbers_have_their_distributions() -> None:
    stream = Stream(key(7, DELAY))
    assert kstest([stream.exponential(2.0) for _ in range(20000)], "expon", args=(0, 2.0)).pvalue > 0.001
    assert kstest([stream.normal(1.0, 3.0) for _ in range(20000)], "norm", args=(1.0, 3.0)).pvalue > 0.001


def test_draws_of_neighbouring_keys_are_not_correlated() -> None:
    rows = bits(torch.tensor([signed(key(0, SAMPLE, c)) for c in range(200)]).unsqueeze(1), torch.arange(1000))
    correlations = torch.corrcoef(unit(rows)) - torch.eye(200)
    assert float(correlations.abs().max()) < 6 / 1000**0.5  # 20,000 pairs, each normal with deviation 1/sqrt(1000)


@pytest.mark.parametrize("count", [0, 1, 5, 12, 13, 100, 200])
def test_a_few_of_many_are_drawn_as_by_a_shuffle(count: int) -> None:
    items = [7 * number for number in range(100)]
    assert Stream(5).sample(items, count) == Stream(5).sample(iter(items), count)
