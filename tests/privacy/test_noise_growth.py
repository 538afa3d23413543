"""Noise stays in AREA's model and leaves FedBuff's, as docs/privacy.md says, from clients that start at the minimum."""

from __future__ import annotations

from statistics import mean

import pytest

from studies.noise_growth import growth, predicted


def over_seeds(server: str, releases: int, correlated: bool = False) -> float:
    return mean(growth(server, releases, seed, correlated) for seed in range(21, 25))


def test_noise_in_area_s_model_grows_with_every_release_as_predicted() -> None:
    few, many = over_seeds("area", 60), over_seeds("area", 240)
    assert many == pytest.approx(predicted("area", 240), rel=0.25)
    assert many - few == pytest.approx(predicted("area", 240) - predicted("area", 60), rel=0.25)


def test_noise_in_fedbuff_s_model_levels_off() -> None:
    """Four times the releases would be four times as much if it grew; seeds differ by a quarter, four by an eighth."""
    assert over_seeds("fedbuff", 240) < 2 * over_seeds("fedbuff", 60)
    assert over_seeds("fedbuff", 240) < over_seeds("area", 60) / 3


def test_correlated_noise_grows_too_but_less() -> None:
    few, many = over_seeds("area", 60, correlated=True), over_seeds("area", 240, correlated=True)
    assert few < many < predicted("area", 240) / 3
