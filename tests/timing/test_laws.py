"""Every law's draws against its own closed forms, and the closed forms against scipy's."""

import math

import numpy as np
import pytest
from scipy import stats

from offbeat.core.random import DELAY, Stream, key
from offbeat.timing import laws

SMOOTH = {
    "exponential": (laws.exponential(0.1), stats.expon(scale=0.1)),
    "shifted": (laws.shifted(0.148, 0.296), stats.expon(loc=0.148, scale=0.296)),
    "uniform": (laws.uniform(1.0, 5.0), stats.uniform(1, 4)),
    "lognormal": (laws.lognormal(2.0, 0.5), stats.lognorm(0.5, scale=2)),
    "pareto": (laws.pareto(1.5, 3.0), stats.pareto(3, scale=1.5)),
    "normal, hardly cut": (laws.normal(10.0, 1.0, 0.5), stats.norm(10, 1)),
}


def draws(law: laws.Law, count: int = 4000, seed: int = 7) -> list[float]:
    stream = Stream(key(seed, DELAY))
    return [law.draw(stream.uniform()) for _ in range(count)]


@pytest.mark.parametrize("name", SMOOTH)
def test_draws_follow_the_distribution_function(name):
    law, known = SMOOTH[name]
    sample = draws(law)
    assert stats.kstest(sample, known.cdf).pvalue > 0.01
    assert [law.cdf(t) for t in sample[:50]] == pytest.approx(known.cdf(sample[:50]))


@pytest.mark.parametrize("name", SMOOTH)
def test_the_mean_is_the_mean_of_the_draws(name):
    law, known = SMOOTH[name]
    sample = draws(law)
    assert law.mean == pytest.approx(known.mean())
    assert abs(np.mean(sample) - law.mean) < 4 * known.std() / math.sqrt(len(sample))


CUT = {
    "normal": (laws.normal(10.0, 5.0, 0.5), 0.5),
    "normal, mostly cut": (laws.normal(1.0, 2.0, 3.0), 3.0),
    "inverse normal": (laws.inverse_normal(5.0, 5.0, 0.5), 2.0),
    "inverse normal, mostly cut": (laws.inverse_normal(1.0, 1.0, 2.0), 0.5),
}


@pytest.mark.parametrize("name", CUT)
def test_cut_laws_agree_with_their_closed_forms_beside_the_mass_at_the_cut(name):
    law, cut = CUT[name]
    sample = np.array(draws(law, 20_000))
    for t in (cut / 2, cut, cut * 2, *np.quantile(sample, [0.2, 0.5, 0.8])):
        assert abs(np.mean(sample <= t) - law.cdf(t)) < 4 * 0.5 / math.sqrt(len(sample))
    assert abs(sample.mean() - law.mean) < 4 * sample.std() / math.sqrt(len(sample))


def test_a_cut_normal_never_falls_below_its_cut_and_reaches_it():
    assert min(draws(laws.normal(10.0, 5.0, 0.5))) == 0.5
    assert max(draws(laws.inverse_normal(5.0, 5.0, 0.5))) == 2.0


def test_the_mean_of_a_heavy_pareto_tail_is_infinite():
    assert laws.pareto(1.0, 1.0).mean == math.inf
    assert laws.pareto(1.0, 1.001).mean == pytest.approx(1001)


@pytest.mark.parametrize(
    "law", [laws.point(2.0), laws.uniform(2.0, 2.0), laws.lognormal(2.0, 0.0), laws.normal(2.0, 0.0, 0.1)]
)
def test_laws_without_spread_are_points(law):
    assert law.mean == law.draw(0.3) == 2.0
    assert (law.cdf(1.999), law.cdf(2.0)) == (0.0, 1.0)
    assert laws.inverse_normal(0.5, 0.0, 0.1).draw(0.3) == 2.0


def test_distribution_functions_are_zero_before_the_support():
    for law, _ in SMOOTH.values():
        assert law.cdf(-1.0) == law.cdf(0.0) == 0.0
    assert laws.inverse_normal(5.0, 5.0, 0.5).cdf(0.0) == 0.0


def test_what_is_fixed_for_a_client_depends_on_the_seed_the_client_and_the_purpose():
    law = laws.uniform(0.0, 1.0)
    speeds = laws.each(law, 50, 1, laws.SPEED)
    assert speeds == laws.each(law, 80, 1, laws.SPEED)[:50]
    assert len({*speeds, *laws.each(law, 50, 2, laws.SPEED), *laws.each(law, 50, 1, laws.RATE)}) == 150


@pytest.mark.parametrize(
    ("clients", "counts"), [(1000, [250, 500, 250]), (10, [3, 5, 2]), (1, [0, 1, 0]), (3, [1, 1, 1])]
)
def test_classes_are_rounded_to_whole_clients_by_largest_remainder(clients, counts):
    classes = laws.divide((0.25, 0.5, 0.25), clients, 3, laws.SPEED)
    assert [classes.count(i) for i in range(3)] == counts


def test_exact_counts_survive_the_last_bit():
    classes = laws.divide((0.7, 0.1, 0.1, 0.1), 10, 0, laws.SPEED)
    assert [classes.count(i) for i in range(4)] == [7, 1, 1, 1]
