"""The accounting is exact: it equals the closed form computed in another way, and dp-accounting where that is there."""

from __future__ import annotations

import math

import pytest
from scipy import integrate, stats

from offbeat.privacy.accounting import (
    column_norm,
    delta_of,
    epsilon_of,
    mu_of,
    multiplier_for,
    sampled_epsilon,
    steps_within,
    toeplitz,
)


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 4.0])
def test_delta_is_the_hockey_stick_divergence_of_two_normal_laws(mu: float, epsilon: float) -> None:
    def gap(x: float) -> float:
        return max(0.0, stats.norm.pdf(x, mu) - math.exp(epsilon) * stats.norm.pdf(x))

    found, _ = integrate.quad(gap, -15, 20, points=[epsilon / mu + mu / 2], limit=400)
    assert delta_of(epsilon, mu) == pytest.approx(found, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("participations", [1, 10, 100])
def test_noise_for_an_epsilon_gives_that_epsilon(participations: int) -> None:
    z = multiplier_for(8.0, 1e-6, participations)
    assert epsilon_of(1e-6, mu_of(z, participations)) == pytest.approx(8.0, rel=1e-9)
    assert epsilon_of(1e-6, mu_of(z, participations + 1)) > 8.0


@pytest.mark.parametrize(("z", "m"), [(0.7, 1), (2.0, 10), (4.0, 10), (6.5, 100), (1.0, 3)])
def test_it_equals_the_accountants_of_dp_accounting(z: float, m: int) -> None:
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting import pld

    accountant = pld.PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(dp.GaussianDpEvent(z), m)
    ours = epsilon_of(1e-6, mu_of(z, m))
    assert ours == pytest.approx(accountant.get_epsilon(1e-6), abs=1e-3)
    assert ours == pytest.approx(dp.gaussian_mechanism.get_epsilon_gaussian(z / math.sqrt(m), 1e-6), abs=1e-6)


def test_more_is_worse_and_none_is_nothing() -> None:
    spent = [epsilon_of(1e-6, mu_of(2.0, m)) for m in range(20)]
    assert spent[0] == 0.0
    assert spent == sorted(spent)


@pytest.mark.parametrize("bands", [1, 2, 5, 16])
def test_the_matrix_of_correlated_noise_squares_to_prefix_sums(bands: int) -> None:
    c = toeplitz(bands)
    square = [sum(c[j] * c[k - j] for j in range(k + 1)) for k in range(bands)]
    assert square == pytest.approx([1.0] * bands)
    assert column_norm(bands) == pytest.approx(math.sqrt(sum(each**2 for each in c)))


@pytest.mark.parametrize(
    ("rate", "z", "steps", "delta"),
    [
        (0.01, 1.0, 1000, 1e-5),
        (0.1, 1.0, 100, 1e-5),
        (0.5, 2.0, 10, 1e-6),
        (0.002, 0.6, 3000, 1e-6),
        (0.2, 4.0, 5000, 1e-5),
        (0.05, 1.1, 1, 1e-5),
        (0.9, 1.0, 3, 1e-5),
        (0.03, 0.5, 20, 1e-4),
        (1e-4, 1.0, 100, 1e-5),
        (0.00483, 4.769, 1447, 5.7e-8),
        (0.00667, 5.548, 246, 7.1e-8),
        (1.0, 5.0, 10, 1e-5),
    ],
)
def test_poisson_samples_cost_what_dp_accounting_says(rate: float, z: float, steps: int, delta: float) -> None:
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting import pld

    accountant = pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(z)), steps)
    assert sampled_epsilon(rate, z, steps, delta) == pytest.approx(accountant.get_epsilon(delta), abs=1e-3)


@pytest.mark.parametrize("rate", [0.01, 0.3, 1.0])
def test_one_step_on_a_poisson_sample_costs_the_integral_of_the_densities(rate: float) -> None:
    """δ(ε) of the mixture against the normal law and the other way round, by quadrature."""
    z, delta = 0.8, 1e-4
    epsilon = sampled_epsilon(rate, z, 1, delta)

    def mixture(x: float) -> float:
        return (1 - rate) * float(stats.norm.pdf(x, 0, z)) + rate * float(stats.norm.pdf(x, 1, z))

    found = []
    for p, q in ((mixture, lambda x: stats.norm.pdf(x, 0, z)), (lambda x: stats.norm.pdf(x, 0, z), mixture)):
        gap = lambda x, p=p, q=q: max(0.0, p(x) - math.exp(epsilon) * q(x))  # noqa: E731
        found.append(integrate.quad(gap, -12, 13, limit=2000, points=[*range(-4, 6)])[0])
    assert max(found) <= delta * (1 + 1e-6)
    assert max(found) == pytest.approx(delta, rel=1e-2)


def test_steps_within_an_epsilon_are_the_most_that_keep_it() -> None:
    most = steps_within(0.1, 1.0, 8.0, 1e-5)
    assert sampled_epsilon(0.1, 1.0, most, 1e-5) <= 8.0 < sampled_epsilon(0.1, 1.0, most + 1, 1e-5)
    assert steps_within(0.1, 0.1, 0.5, 1e-5) == 0
