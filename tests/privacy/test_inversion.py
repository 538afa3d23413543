"""The attack of the inversion study works at all, and noise takes it its success."""

from __future__ import annotations

from studies.inversion import attack


def test_a_single_update_is_inverted_and_noise_prevents_it() -> None:
    assert attack(1, "psnr", False, 0.0, seed=3) > 40.0
    blind = attack(1, "blind", False, 0.0, seed=3)
    assert blind < 15.0
    assert attack(1, "psnr", False, 0.1, seed=3) < blind
