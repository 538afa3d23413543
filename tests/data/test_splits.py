"""Splits over clients: what holds for all of them, and what each promises."""

import time

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from offbeat.core.errors import SettingError
from offbeat.data.splits import IID, Classes, Dirichlet, NearlyIID, Owners

MNIST = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 6000))  # as many labels as MNIST has


def rng(seed=0):
    return np.random.default_rng(seed)


def counts(part, labels, classes=10):
    return np.bincount(labels[part], minlength=classes)


cases = st.tuples(st.lists(st.integers(0, 4), min_size=1, max_size=120), st.integers(1, 12), st.integers(0, 2**32))
partitions = st.sampled_from([IID(), NearlyIID(), Dirichlet(0.1), Dirichlet(5.0), Dirichlet(0.01, min_size=2)])


@given(cases, partitions)
@settings(max_examples=150, deadline=None)
def test_a_partition_gives_every_sample_to_one_client_or_says_why_not(case, split):
    labels, clients, seed = np.array(case[0]), case[1], case[2]
    least = getattr(split, "min_size", 1)
    alike = isinstance(split, NearlyIID) and clients > 1
    if len(labels) < clients * least or (alike and np.bincount(labels).max() < clients):
        with pytest.raises(SettingError, match=r"samples|left without data"):
            split(labels, clients, rng(seed))
        return
    parts = split(labels, clients, rng(seed))
    assert len(parts) == clients
    assert min(map(len, parts)) >= least
    assert all(part.dtype == np.int64 for part in parts)
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))


@given(cases, st.integers(1, 5))
@settings(max_examples=100, deadline=None)
def test_classes_per_client_are_kept_and_no_sample_is_given_twice(case, per_client):
    labels, clients, seed = np.array(case[0]), case[1], case[2]
    try:
        parts = Classes(per_client)(labels, clients, rng(seed))
    except SettingError:
        return
    given_out = np.concatenate(parts)
    assert len(set(given_out)) == len(given_out)
    assert all(1 <= len(np.unique(labels[part])) <= per_client for part in parts)


@given(cases, st.integers(1, 30))
@settings(max_examples=50, deadline=None)
def test_equal_sized_clients_have_exactly_the_size_asked_for(case, size):
    labels, clients, seed = np.array(case[0]), case[1], case[2]
    parts = Dirichlet(0.3, per_client=size)(labels, clients, rng(seed))
    assert [len(part) for part in parts] == [size] * clients
    assert all(((part >= 0) & (part < len(labels))).all() for part in parts)


@given(st.lists(st.integers(-1, 5), min_size=1, max_size=80), st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_owners_keep_their_own_samples_and_the_largest_are_taken(owner, clients):
    owner = np.array(owner)
    sizes = np.bincount(owner[owner >= 0], minlength=1)
    if np.count_nonzero(sizes) < clients:
        with pytest.raises(SettingError):
            Owners()(owner, clients, rng(), owner)
        return
    parts = Owners()(owner, clients, rng(), owner)
    assert all(len(np.unique(owner[part])) == 1 and owner[part[0]] >= 0 for part in parts)
    assert sorted(map(len, parts)) == sorted(sizes)[-clients:]


@pytest.mark.parametrize(
    "split",
    [
        IID(),
        NearlyIID(),
        Dirichlet(0.5),
        Dirichlet(0.5, 40),
        Classes(2),
        Classes(2, even=False),
        Classes(2, equal=False),
        Owners(),
    ],
)
def test_positions_that_are_nobodys_are_given_to_nobody(split):
    owner = np.resize(np.array([-1, 0, 1, -1, 2]), 500)
    parts = split(MNIST[:500], 3, rng(), owner)
    assert (owner[np.concatenate(parts)] >= 0).all()


@pytest.mark.parametrize("split", [IID(), NearlyIID(), Dirichlet(0.1), Dirichlet(0.1, 300), Classes(5)])
def test_equal_seeds_give_equal_splits_and_a_thousand_clients_take_no_time(split):
    start = time.process_time()  # others may have the processor meanwhile
    first, second = (split(MNIST, 1000, rng(3)) for _ in range(2))
    assert time.process_time() - start < 1.0
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, split(MNIST, 1000, rng(4)), strict=True))


def test_dirichlet_shares_of_a_class_have_the_distributions_mean_and_variance():
    """One share of Dirichlet(a, ..., a) over n clients is Beta(a, (n - 1)a)."""
    a, n = 0.5, 8
    shares = [counts(p, MNIST)[0] / 6000 for s in range(100) for p in Dirichlet(a)(MNIST, n, rng(s))[:1]]
    assert stats.kstest(shares, stats.beta(a, (n - 1) * a).cdf).pvalue > 0.01


def test_small_alpha_makes_unlike_clients_and_large_alpha_like_ones():
    def largest_share(alpha):
        parts = Dirichlet(alpha)(MNIST, 20, rng())
        return np.mean([counts(p, MNIST).max() / len(p) for p in parts])

    assert largest_share(0.05) > 0.5
    assert largest_share(1000.0) < 0.12


def test_equal_sized_clients_mix_the_classes_by_a_dirichlet_draw():
    """A class's share at a client is Beta(a, 9a) up to the rounding of 300 samples."""
    parts = Dirichlet(1.0, per_client=300)(MNIST, 400, rng())
    shares = [counts(p, MNIST)[4] / 300 for p in parts]
    assert np.mean(shares) == pytest.approx(0.1, abs=0.015)
    assert np.var(shares) == pytest.approx(stats.beta(1, 9).var() + 0.09 / 300, rel=0.3)


def test_the_train_set_is_repeated_when_clients_need_more_than_it_has():
    parts = Dirichlet(100.0, per_client=300)(MNIST[:3000], 100, rng())
    uses = np.bincount(np.concatenate(parts), minlength=3000)
    assert uses.sum() == 30_000
    assert uses.min() >= 8  # ten on average: classes are gone through in turn
    assert all(len(np.unique(p)) == 300 for p in parts)


def test_classes_are_dealt_evenly_and_cut_into_equal_parts():
    parts = Classes(2)(MNIST, 100, rng())
    assert all(sorted(counts(p, MNIST))[-3:] == [0, 300, 300] for p in parts)  # 20 clients hold each class
    pairs = {tuple(np.flatnonzero(counts(p, MNIST))) for p in parts}
    assert len(pairs) > 20


def test_clients_may_draw_their_classes_each_for_itself():
    parts = Classes(2, even=False)(MNIST, 100, rng())
    held = np.array([counts(p, MNIST) > 0 for p in parts])
    assert (held.sum(1) == 2).all()
    holders = held.sum(0)
    assert holders.sum() == 200
    assert 10 < holders.min() < 18 < 22 < holders.max() < 30  # 20 on average, with a standard deviation of 4
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(MNIST)))


def test_classes_may_be_cut_at_random_places():
    """Each of k parts is then as large as the smallest of k − 1 uniform numbers."""
    parts = Classes(2, equal=False)(MNIST, 100, rng())
    sizes = np.array([counts(p, MNIST) for p in parts])
    assert ((sizes > 0).sum(1) == 2).all()  # one sample at least
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(MNIST)))
    shares = sizes[sizes > 0] / 6000
    assert len(shares) == 200
    assert stats.kstest(shares, lambda s: 1 - (1 - s) ** 19).pvalue > 1e-3
    assert stats.kstest(np.full(200, 1 / 20), lambda s: 1 - (1 - s) ** 19).pvalue < 1e-9  # what equal parts would give


def test_nearly_iid_clients_are_alike_but_for_the_last():
    """AREA, E.1: "the first 127 clients receive identical label proportions, the final client [...] the remaining"."""
    labels = np.repeat(np.arange(10), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
    parts = NearlyIID()(labels, 128, rng())
    assert all(np.array_equal(counts(p, labels), counts(parts[0], labels)) for p in parts[:127])
    assert counts(parts[0], labels)[0] == 5923 // 128
    assert counts(parts[127], labels)[0] == 5923 - 127 * (5923 // 128)


def test_clients_topped_up_take_from_the_largest():
    parts = Dirichlet(0.01, min_size=10)(MNIST[:2000], 150, rng())
    assert min(map(len, parts)) == 10
    assert sum(map(len, parts)) == 2000


@pytest.mark.parametrize("split", [IID(), NearlyIID(), Dirichlet(0.1), Dirichlet(0.1, 3), Classes(1), Owners()])
@pytest.mark.parametrize("clients", [0, -2])
def test_no_clients_are_refused(split, clients):
    with pytest.raises(SettingError, match=f"{clients} clients: a split needs at least one"):
        split(MNIST[:20], clients, rng(), np.arange(20))


@pytest.mark.parametrize("split", [IID(), NearlyIID(), Dirichlet(0.1), Classes(1), Owners()])
def test_more_clients_than_samples_are_refused(split):
    with pytest.raises(SettingError, match="21 clients, but only 20 samples"):
        split(MNIST[:20], 21, rng(), np.arange(20))


def test_an_empty_set_is_refused():
    with pytest.raises(SettingError, match="cannot split an empty data set"):
        Dirichlet(0.1, per_client=3)(np.array([], np.int64), 2, rng())


def test_a_client_left_without_data_is_named():
    with pytest.raises(SettingError, match=r"client 0 of 3 is left without data; .*use fewer"):
        NearlyIID()(np.arange(5), 3, rng())
    with pytest.raises(SettingError, match=r"client \d of 4 is left without data; .*use fewer clients"):
        Classes(1)(np.array([0, 1, 1, 1, 1]), 4, rng())


def test_impossible_numbers_are_named():
    with pytest.raises(SettingError, match="per_client = 11: the data have only 10 classes"):
        Classes(11)(MNIST, 4, rng())
    with pytest.raises(SettingError, match="only 3 owners"):
        Owners()(np.zeros(9), 4, rng(), np.repeat(np.arange(3), 3))
    with pytest.raises(SettingError, match="natural owners"):
        Owners()(np.zeros(9), 4, rng())
    with pytest.raises(SettingError, match="min_size = 6"):
        Dirichlet(0.1, min_size=6)(np.zeros(9, int), 2, rng())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Dirichlet(0.0),
        lambda: Dirichlet(float("nan")),
        lambda: Dirichlet(float("inf")),
        lambda: Dirichlet(1.0, per_client=0),
        lambda: Dirichlet(1.0, min_size=0),
        lambda: Classes(0),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(make):
    with pytest.raises(SettingError):
        make()
