"""The models of the papers, bound and drawn: each against its closed form."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from offbeat.core.errors import SettingError
from offbeat.core.events import Job
from offbeat.core.random import AVAILABLE, CLIENT, DELAY, Stream, key
from offbeat.timing import (
    Bandwidth,
    Constant,
    Delays,
    Diurnal,
    Exponential,
    Factors,
    Flops,
    Links,
    LogNormal,
    Normal,
    Pareto,
    RecordedTimes,
    ShiftedExponential,
    SpeedClasses,
    Spread,
    Times,
    Uniform,
    laws,
)

SPEEDS = SpeedClasses({"slow": (0.25, 1.3), "normal": (0.5, 1.0), "fast": (0.25, 0.7)})


def job(client=0, number=0, steps=10, task=0):
    return Job(id=0, client=client, task=task, version=0, steps=steps, lr=0.1, number=number)


def sample(clock, client=0, steps=10, count=3000, down=0, up=0):
    return [clock.durations(job(client, k, steps), down, up) for k in range(count)]


MODELS = {
    "exponential": Times(Exponential(10.0)),
    "exponential, normal rates": Times(Exponential(Normal(10, 5, 0.5))),
    "exponential, slow": Times(Exponential(10.0), speeds=Spread(1, 5)),
    "shifted exponential": Times(ShiftedExponential(0.148), speeds=SPEEDS),
    "uniform, job": Times(Uniform(1.0, 3.0)),
    "uniform, step": Times(Uniform(0.0, 3.0, per="step"), speeds=SPEEDS),
    "log-normal, median": Times(LogNormal(0.5, median=2.0), speeds=Spread(1, 5)),
    "log-normal, mean": Times(LogNormal(0.5, mean=2.0, per="step")),
    "pareto, job": Times(Pareto(1.0, 4.0)),
    "pareto, step": Times(Pareto(1.0, 4.0, per="step"), speeds=SPEEDS),
}


@pytest.mark.parametrize("name", MODELS)
def test_compute_times_follow_the_closed_form_of_their_client(name):
    clock = MODELS[name].bind(8, seed=5)
    times = [d.compute for d in sample(clock, client=3)]
    cdf = np.vectorize(lambda t: clock.compute.cdf(t, 3, 10))
    assert stats.kstest(times, cdf).pvalue > 0.01
    assert abs(np.mean(times) - clock.compute.mean(3, 10)) < 4 * np.std(times) / math.sqrt(len(times))


def test_a_log_normal_keeps_the_mean_or_the_median_that_was_asked_for():
    assert Times(LogNormal(0.8, mean=2.0)).bind(1, 0).compute.mean(0) == pytest.approx(2.0)
    assert Times(LogNormal(0.8, median=2.0)).bind(1, 0).compute.cdf(2.0, 0) == pytest.approx(0.5)


def test_an_exponential_time_is_that_of_the_whole_job_whatever_its_steps():
    clock = Times(Exponential(10.0)).bind(2, seed=0)
    assert clock.durations(job(steps=1), 0, 0) == clock.durations(job(steps=99), 10, 10)
    assert clock.compute.mean(1, 99) == pytest.approx(0.1)


def test_rates_are_what_the_clients_were_bound_with():
    clock = Times(Exponential(Normal(10, 5, 0.5))).bind(4000, seed=1)
    rates = np.array(clock.rates)
    law = laws.normal(10, 5, 0.5)
    assert rates.min() == 0.5
    assert abs(rates.mean() - law.mean) < 4 * rates.std() / math.sqrt(4000)
    assert stats.kstest(rates[rates > 0.5], stats.truncnorm(-1.9, np.inf, 10, 5).cdf).pvalue > 0.01
    assert clock.compute.mean(7) == pytest.approx(1 / rates[7])


def test_rates_may_be_listed_and_are_stretched_by_the_speeds():
    assert Times(Exponential((1.0, 2.0))).bind(2, 0).rates == [1.0, 2.0]
    assert Times(Exponential((1.0, 2.0)), speeds=Factors((1.0, 4.0))).bind(2, 0).rates == [1.0, 0.5]


@pytest.mark.parametrize("times", [Times(Constant(1.0)), Times(Exponential(1.0), network=Bandwidth(1, 1))])
def test_only_whole_exponential_jobs_have_rates(times):
    with pytest.raises(SettingError, match="use `exponential`"):
        _ = times.bind(2, 0).rates


def test_fast_c6_one_draw_for_a_job_times_its_steps():
    # "Then, we multiply this random number by the number of local steps"
    clock = Times(ShiftedExponential(0.148)).bind(1, seed=0)
    one, ten = (clock.durations(job(steps=s), 0, 0).compute for s in (1, 10))
    assert ten == pytest.approx(10 * one)
    assert clock.compute.mean(0, 1) == pytest.approx(3 * 0.148)
    assert clock.compute.cdf(0.148, 0) == 0.0


def test_fast_c6_speed_classes_have_exact_shares_and_scale_the_times():
    clock = Times(ShiftedExponential(1.0), speeds=SPEEDS).bind(1000, seed=2)
    factors = [clock.compute.mean(c) / 3 for c in range(1000)]
    assert [sum(math.isclose(f, x) for f in factors) for x in (1.3, 1.0, 0.7)] == [250, 500, 250]
    assert SPEEDS.factors(1000, 2) != SPEEDS.factors(1000, 3)


def test_sizes_by_task_name_follow_the_order_of_the_tasks():
    times = Times(ShiftedExponential({"mnist": 0.148, "fashion": 0.240}))
    clock = times.bind(2, 0, tasks=("fashion", "mnist"))
    assert clock.compute.mean(0, 1, task=0) == pytest.approx(0.72)
    ratio = clock.durations(job(task=0), 0, 0).compute / clock.durations(job(task=1), 0, 0).compute
    assert ratio == pytest.approx(0.240 / 0.148)


def test_a_task_without_a_size_names_the_nearest():
    with pytest.raises(SettingError, match=r"unknown task in per_step: 'mnits'; did you mean 'mnist'\?"):
        Times(ShiftedExponential({"mnist": 1.0})).bind(1, 0, tasks=("mnits",))


def test_constant_times_are_for_a_job_or_for_a_step():
    for per, expected in (("job", 2.0), ("step", 20.0)):
        clock = Times(Constant(2.0, per)).bind(1, 0)
        assert clock.durations(job(), 0, 0).compute == clock.compute.mean(0, 10) == expected
        assert (clock.compute.cdf(expected - 0.1, 0, 10), clock.compute.cdf(expected, 0, 10)) == (0, 1)


def test_pers_5_uploads_take_four_to_six_times_the_download_on_average():
    clock = Times(network=Delays(download=(0.5, 2.0))).bind(300, seed=4)
    down = np.array([clock.download.mean(c) for c in range(300)])
    ratio = np.array([clock.upload.mean(c) for c in range(300)]) / down
    assert stats.kstest(ratio, stats.uniform(4, 2).cdf).pvalue > 0.01
    assert stats.kstest(down, stats.uniform(0.5, 1.5).cdf).pvalue > 0.01
    assert abs(np.corrcoef(ratio, down)[0, 1]) < 0.2


@pytest.mark.parametrize("way", ["download", "upload"])
def test_pers_5_delays_follow_their_closed_form_and_compute_takes_none(way):
    clock = Times(network=Delays()).bind(3, seed=4)
    times = sample(clock, client=1, down=10**9, up=1)
    part = getattr(clock, way)
    assert stats.kstest([getattr(d, way) for d in times], np.vectorize(lambda t: part.cdf(t, 1))).pvalue > 0.01
    assert {d.compute for d in times} == {0.0}
    assert abs(np.corrcoef([d.download for d in times], [d.upload for d in times])[0, 1]) < 0.06


def test_defa_4_1_3_compute_and_network():
    # 17.0 MFLOPs a step at 10 GFLOPS, slow-down from 1 to 5, 2.2 MB at 400 Mbit/s both ways
    clock = Times(Flops(17e6, 10e9), Bandwidth(400, 400), Spread(1, 5)).bind(500, seed=0)
    got = clock.durations(job(client=9, steps=50), down=2_200_000, up=2_200_000)
    factors = [clock.compute.mean(c) / 1.7e-3 for c in range(500)]
    assert got.download == got.upload == pytest.approx(0.044)
    assert got.compute == pytest.approx(50 * 1.7e-3 * factors[9])
    assert stats.kstest(factors, stats.uniform(1, 4).cdf).pvalue > 0.01
    assert clock.download.mean(0, 2_200_000) == pytest.approx(0.044)
    assert clock.download.cdf(0.0, 0, 0) == 1.0


def test_bandwidths_may_differ_each_way():
    got = Times(network=Bandwidth(down=80, up=8)).bind(1, 0).durations(job(), 10**6, 10**6)
    assert (got.download, got.upload) == (pytest.approx(0.1), pytest.approx(1.0))


def test_links_take_any_law_and_draw_their_rates_apart():
    rates = Exponential(Normal(10, 5, 0.5))
    clock = Times(rates, Links(rates, rates)).bind(200, seed=0)
    means = np.array([[part.mean(c) for c in range(200)] for part in (clock.compute, clock.download, clock.upload)])
    assert np.abs(np.corrcoef(1 / means) - np.eye(3)).max() < 0.25


def test_records_are_replayed_in_order_and_wrap_around():
    clock = Times(RecordedTimes(((1.0, 2.0, 3.0), (7.0,))), speeds=Factors((1.0, 1.0, 2.0))).bind(3, 0)
    assert [clock.durations(job(0, k), 0, 0).compute for k in range(5)] == [1, 2, 3, 1, 2]
    assert [clock.durations(job(c, 1), 0, 0).compute for c in range(3)] == [2, 7, 4]
    assert clock.compute.mean(2) == 4.0
    assert [clock.compute.cdf(t, 2) for t in (1.9, 2.0, 4.0, 6.0)] == pytest.approx([0, 1 / 3, 2 / 3, 1])


def test_dropouts_come_with_their_probability_and_leave_the_times_alone():
    plain, lossy = (Times(Exponential(1.0), Delays(), dropout=p).bind(2, seed=3) for p in (0.0, 0.05))
    a, b = sample(plain), sample(lossy)
    assert [d[:3] for d in a] == [d[:3] for d in b]
    assert not any(d.lost for d in a)
    assert stats.binomtest(sum(d.lost for d in b), len(b), 0.05).pvalue > 0.01


def test_a_network_leaves_the_compute_times_alone():
    a, b = (Times(Exponential(1.0), network).bind(2, seed=3) for network in (None, Delays()))
    assert [d.compute for d in sample(a, count=20)] == [d.compute for d in sample(b, count=20)]


@pytest.mark.parametrize("name", MODELS)
def test_the_same_seed_gives_the_same_times_and_another_seed_others(name):
    a, b, c = (MODELS[name].bind(8, seed) for seed in (1, 1, 2))
    jobs = [job(client, k) for client in range(8) for k in range(3)]
    times = [[clock.durations(j, 5, 5) for j in jobs] for clock in (a, b, c)]
    assert times[0] == times[1] == [a.durations(j, 5, 5) for j in jobs]
    assert not set(times[0]) & set(times[2])


def test_a_jobs_draws_come_from_the_key_of_its_client_and_number():
    clock = Times(Exponential(10.0)).bind(9, seed=6)
    assert clock.durations(job(7, 4), 0, 0).compute == pytest.approx(Stream(key(6, DELAY, 7, 4)).exponential(0.1))
    drawn = Stream(key(6, CLIENT, 7, laws.SPEED)).uniform(1, 5)
    assert Spread(1, 5).factors(9, seed=6)[7] == pytest.approx(drawn)


def test_a_share_of_the_clients_takes_new_work_drawn_anew_each_time():
    clock = Times(Constant(1.0), available=0.3).bind(2, seed=0)
    stream = Stream(key(0, AVAILABLE))
    yes = [clock.available(0, 1.0, stream) for _ in range(4000)]
    assert stats.binomtest(sum(yes), 4000, 0.3).pvalue > 0.01
    assert stats.binomtest(sum(a and b for a, b in pairwise(yes)), 3999, 0.09).pvalue > 0.01
    assert (clock.always, clock.present(0, 1.0), clock.flip(0, 1.0)) == (False, True, None)


def test_everybody_is_always_there_unless_something_says_otherwise():
    clock = Times(Constant(1.0)).bind(2, seed=0)
    assert clock.always
    assert clock.available(1, 5.0, Stream(1))
    assert not Times(Constant(1.0), presence=Diurnal(10.0)).bind(2, 0).always


def test_an_absent_client_takes_no_work():
    clock = Times(Constant(1.0), presence=Diurnal(10.0, on=0.5, spread=0)).bind(1, 0)
    assert [clock.available(0, t, Stream(1)) for t in (1.0, 6.0, 11.0)] == [True, False, True]


@pytest.mark.slow
def test_a_hundred_thousand_clients_bind_in_less_than_a_second_and_a_draw_takes_microseconds():
    from time import process_time  # others may have the processor meanwhile

    start = process_time()
    clock = Times(Exponential(Normal(10, 5, 0.5)), available=0.3).bind(100_000, seed=0)
    bound = process_time()
    jobs = [job(client) for client in range(100_000)]
    drawn = process_time()
    for j in jobs:
        clock.durations(j, 0, 0)
    assert bound - start < 1
    assert process_time() - drawn < 1
