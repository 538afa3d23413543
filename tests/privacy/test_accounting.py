"""The accounting is exact: it equals the closed form computed in another way, and dp-accounting where that is there."""

from __future__ import annotations

import math

import pytest
from scipy import integrate, stats

from offbeat.privacy.accounting import column_norm, delta_of, epsilon_of, mu_of, multiplier_for, toeplitz


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
