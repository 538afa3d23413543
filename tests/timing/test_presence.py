"""Who is there when: present and flip tell one story, and its shares and lengths have closed forms."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from offbeat.timing import Diurnal, Intervals, OnOff

RECORDS = (((0.0, 3.0), (5.0, 10.0)), ((1.0, 2.0), (2.0, 4.0)), (), ((0.0, 10.0),), ((4.0, 10.0),), ((0.0, 1.5),))
MODELS = {
    "diurnal": Diurnal(24.0, on=0.3),
    "diurnal, mostly there": Diurnal(0.7, on=0.9),
    "diurnal, together": Diurnal(10.0, spread=0.0),
    "on and off": OnOff(on=3.0, off=5.0),
    "intervals": Intervals(RECORDS, period=10.0),
}
TIMES = st.floats(0, 1000)


@pytest.mark.parametrize("name", MODELS)
@given(client=st.integers(0, 7), now=TIMES, fraction=st.floats(0, 1, exclude_max=True))
@settings(max_examples=60, deadline=None)
def test_presence_changes_at_the_flip_and_not_before(name, client, now, fraction):
    presence = MODELS[name].bind(8, seed=3)
    flip = presence.flip(client, now)
    if flip is None:
        assert presence.present(client, now)
        return
    assert flip > now
    between = min(now + fraction * (flip - now), np.nextafter(flip, 0))
    assert presence.present(client, between) == presence.present(client, now)
    assert presence.present(client, flip) != presence.present(client, now)


@pytest.mark.parametrize("name", MODELS)
@given(client=st.integers(0, 7), times=st.lists(TIMES, min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_presence_does_not_depend_on_what_was_asked_before(name, client, times):
    asked = MODELS[name].bind(8, seed=3)
    for t in times:
        asked.present(client, t), asked.flip(7 - client, t)
    fresh = MODELS[name].bind(8, seed=3)
    assert asked.present(client, times[0]) == fresh.present(client, times[0])
    assert asked.flip(client, times[0]) == fresh.flip(client, times[0])


def edges(presence, client, count):
    times = [0.0]
    while len(times) <= count:
        times.append(presence.flip(client, times[-1]))
    return times


def test_a_day_has_one_stretch_of_the_given_length():
    presence = Diurnal(24.0, on=0.3).bind(5, seed=0)
    for client in range(5):
        times = edges(presence, client, 9)
        stays = [b - a for a, b in pairwise(times[1:]) if presence.present(client, a)]
        assert stays == pytest.approx([7.2] * len(stays))
        assert len(stays) == 4


def test_days_begin_evenly_over_the_spread():
    presence = Diurnal(1.0, on=0.5, spread=0.25).bind(2000, seed=0)
    begins = [next(t for t in edges(presence, c, 3)[1:] if presence.present(c, t)) % 1.0 for c in range(2000)]
    assert stats.kstest(begins, stats.uniform(0, 0.25).cdf).pvalue > 0.01


def test_who_is_on_the_whole_day_never_leaves():
    presence = Diurnal(24.0, on=1.0).bind(2, seed=0)
    assert (presence.present(1, 5.0), presence.flip(1, 5.0)) == (True, None)


def test_stays_and_absences_are_exponential_with_their_means():
    presence = OnOff(on=3.0, off=5.0).bind(1, seed=1)
    times = edges(presence, 0, 3001)[1:]
    lengths, there = np.diff(times), presence.present(0, times[0])
    assert stats.kstest(lengths[0 if there else 1 :: 2], stats.expon(scale=3).cdf).pvalue > 0.01
    assert stats.kstest(lengths[1 if there else 0 :: 2], stats.expon(scale=5).cdf).pvalue > 0.01


@pytest.mark.parametrize("now", [0.0, 2.0, 40.0])
def test_on_and_off_is_stationary_from_the_start(now):
    presence = OnOff(on=3.0, off=5.0).bind(3000, seed=2)
    there = sum(presence.present(client, now) for client in range(3000))
    assert stats.binomtest(there, 3000, 3 / 8).pvalue > 0.01


def test_recorded_stays_repeat_with_their_period_and_touching_ones_are_one():
    presence = Intervals(RECORDS, period=10.0).bind(6, seed=0)
    assert [presence.present(0, t) for t in (0, 2.9, 3, 5, 9.9, 10, 13, 15)] == [1, 1, 0, 1, 1, 1, 0, 1]
    assert edges(presence, 0, 4) == [0.0, 3.0, 5.0, 13.0, 15.0]
    assert edges(presence, 1, 4) == [0.0, 1.0, 4.0, 11.0, 14.0]
    assert [presence.flip(c, 0.0) for c in (2, 3)] == [None, None]
    assert edges(presence, 4, 3) == [0.0, 4.0, 10.0, 14.0]
    assert edges(presence, 5, 3) == [0.0, 1.5, 10.0, 11.5]


def test_more_clients_than_records_share_them():
    presence = Intervals(RECORDS, period=10.0).bind(50, seed=0)
    assert edges(presence, 6, 4) == edges(presence, 0, 4)
