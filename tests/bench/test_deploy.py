"""`offbeat bench deploy`: what is measured adds up; sizes that do not fit are left out with a reason."""

from __future__ import annotations

import json

import pytest
from command import offbeat

from offbeat.bench import deploy
from offbeat.core.errors import SettingError


def test_server_broker_and_clients_are_measured_beside_an_echo() -> None:
    code, out, err = offbeat("bench", "deploy", "--clients", "2", "--bytes", "2600", "--seconds", "1", "--json")
    assert (code, err) == (0, "2 clients, 2,600 bytes\n")
    (row,) = json.loads(out)
    for part in (row["echo"], row["offbeat"]):
        assert all(part[name] > 0 for name in ("updates_per_s", "server", "broker", "clients"))
    assert row["echo"]["sealing"] == 0 < row["sealing_share"] < 1
    assert row["cpu_ratio"] > 0


def test_the_table_has_two_lines_for_what_was_measured_and_a_reason_for_what_was_not() -> None:
    echo, own = deploy.Spent(1000.0, 0.1, 0.3, 0.1), deploy.Spent(400.0, 0.5, 0.5, 1.0, 0.2)
    rows = [deploy.DeployRow(8, 2600, echo, own, 300.0), deploy.DeployRow(9, 10**12, skipped="needs more memory")]
    lines = deploy.text(rows).splitlines()
    assert [line.split() for line in lines[1:4]] == [
        ["8", "2,600", "echo", "1,000", "0.1", "0.3", "0.1", "0.5"],
        ["offbeat", "400", "0.5", "0.5", "1", "2", "4.00", "10.0", "%", "300"],
        ["9", "1,000,000,000,000", "needs", "more", "memory"],
    ]


def test_what_cannot_fit_into_memory_is_left_out() -> None:
    (row,) = deploy.bench([10**6], [10**9], 1.0)
    assert row.skipped.startswith("needs about 8000000 GB of memory")


def test_numbers_that_mean_nothing_are_refused() -> None:
    assert (
        offbeat("bench", "deploy", "--clients", "1,x").err
        == "offbeat: --clients 1,x: give whole numbers, with commas\n"
    )
    with pytest.raises(SettingError, match="must be positive"):
        deploy.bench([0], [2600], 1.0)
