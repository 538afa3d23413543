"""`offbeat bench deploy`: what is measured adds up; sizes that do not fit are left out with a reason."""

from __future__ import annotations

import json

import pytest
from command import offbeat

from offbeat.bench import deploy
from offbeat.core.errors import SettingError


@pytest.mark.slow
def test_server_broker_and_clients_are_measured_beside_an_echo() -> None:
    words = ("--clients", "3", "--bytes", "2600", "--seconds", "1", "--simulated", "100", "--json")
    code, out, err = offbeat("bench", "deploy", *words)
    assert (code, err) == (0, "3 clients, 2,600 bytes\n100 clients, simulated\n")
    found = json.loads(out)
    (row,) = found["rows"]
    assert found["machine"]["load"] >= 0
    assert found["alone"]["restart_s"] > 0
    for part in (row["echo"], row["offbeat"]):
        assert all(part[name] > 0 for name in ("updates_per_s", "server", "broker", "clients"))
    assert row["echo"]["sealing"] == 0 < row["sealing_share"] < 1
    assert row["cpu_ratio"] > 0


def report() -> deploy.DeployReport:
    echo, own = deploy.Spent(1000.0, 0.1, 0.3, 0.1), deploy.Spent(400.0, 0.5, 0.5, 11.0, 0.6)
    rows = [
        deploy.DeployRow(8, 2600, 4, echo, own, 300.0),
        deploy.DeployRow(9, 10**12, skipped="needs more memory"),
    ]
    machine = {"processor": "abacus", "cores": 2, "load": 0.25, "load_after": 1.5, "offbeat": "1", "python": "3"}
    alone = {"clients": 10_000, "dim": 8000, "joined_s": 1.9, "us_per_entry": 282.0, "memory_mb": 860}
    alone |= {"pause_cpu_s": 0.18, "restart_s": 1.2, "boot_posts": 957, "boot_mb": 31.0}
    return deploy.DeployReport({**machine, "date": "today"}, rows, 5.0, alone)


def test_the_table_has_two_lines_for_what_was_measured_and_a_reason_for_what_was_not() -> None:
    lines = deploy.text(report()).splitlines()
    assert lines[0] == "abacus, 2 cores, load 0.2 before and 1.5 after; offbeat 1, python 3; today"
    assert [line.split() for line in lines[2:5]] == [
        ["8", "2,600", "echo", "1,000", "0.1", "0.3", "0.1", "0.5"],
        ["offbeat", "400", "0.5", "0.5", "11", "12", "24.00", "5.0", "%", "300"],
        ["9", "1,000,000,000,000", "needs", "more", "memory"],
    ]
    assert lines[6] == "as many as memory allows had work: 2.6 KB, 8 (4 at a time)"
    assert "the server uses 0.86 GB" in lines[7]
    assert "a restart takes 1.2 s and posts 957 assignments, 31 MB" in lines[7]


def test_the_table_of_the_page_has_another_version_beside_this_one() -> None:
    before = '{"of": 8, "bytes": 2600, "updates_per_s": 800.0, "server": 0.4, "broker": 0.4, "clients": 0.8}'
    lines = deploy.markdown(report(), deploy.read_before(before)).splitlines()
    assert lines[4:6] == [
        "| 2.6 KB, 8 (4 at a time) | 1,000, 0.5 | 800, 0.4 + 0.4 + 0.8 | 400, 0.5 + 0.5 + 11 | 5 % | 0.30 GB |",
        "| 1e+06 MB, 9 | needs more memory | – | – | – | – |",
    ]
    assert "before" not in deploy.markdown(report()).splitlines()[2]
    with pytest.raises(SettingError, match=r"before\.py"):
        deploy.read_before("{}")


def test_what_cannot_fit_into_memory_is_left_out() -> None:
    (row,) = deploy.bench([10**6], [10**12], 1.0).rows
    assert row.skipped.startswith("needs about 32000 GB of memory")


@pytest.mark.slow
def test_of_clients_that_do_not_all_fit_into_memory_some_have_work_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy, "_free", lambda: 4.0 * 2 * deploy.COPIES * 40_000)
    (row,) = deploy.bench([4], [40_000], 1.0).rows
    assert row.at_once == 2
    assert row.echo is not None
    assert row.echo.updates_per_s > 0
    assert row.offbeat is not None
    assert row.offbeat.updates_per_s > 0


def test_numbers_that_mean_nothing_are_refused() -> None:
    assert (
        offbeat("bench", "deploy", "--clients", "1,x").err
        == "offbeat: --clients 1,x: expected whole numbers, separated by commas\n"
    )
    with pytest.raises(SettingError, match="must be positive"):
        deploy.bench([0], [2600], 1.0)
