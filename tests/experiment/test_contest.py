"""The contest of docs/results/contest.md: its file, its step sizes and its tables."""

from __future__ import annotations

import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import offbeat as ob
from studies import contest

TABLE = {k: v for k, v in ob.load(contest.ROOT / "experiments" / "contest.toml").table.items() if k != "trials"}


def test_every_method_of_the_file_has_a_step_size_that_is_tuned_with_the_same_budget() -> None:
    axes = dict(contest.axis(label, method) for label, method in TABLE["algorithm"].items())
    assert {len(values) for values in axes.values()} == {7}
    for key, values in axes.items():
        ob.load(contest.ROOT / "experiments" / "contest.toml", {key: values[0]})
    assert {"m-sync", "centralised", "fedavg"} <= set(TABLE["algorithm"])


def test_tuning_and_trials_share_no_seed() -> None:
    tuning, trials = ({t["seed"] + at for at in range(t["trials"])} for t in (contest.TUNING, contest.TRIALS))
    assert len(trials) == 5
    assert not tuning & trials


def test_the_interval_is_that_of_student() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 10.0]
    half = 2.776 * statistics.stdev(values) / 5**0.5
    assert contest.interval(values, 2) == f"4.00 ± {half:.2f}"
    assert contest.interval([0.5, 0.5], 1, 100.0) == "50.0 ± 0.0"


def test_a_part_is_done_once_and_read_again(tmp_path: Path) -> None:
    small: dict[str, Any] = {**TABLE, "until": {"time": 0.5}, "algorithm": {}}
    small["algorithm"] = {label: TABLE["algorithm"][label] for label in ("m-sync", "asysg")}
    clock = contest.clocks(small["problem"]["clients"])["slow"]
    first = contest.contest(small, tmp_path, clock)
    seconds = (tmp_path / "trials" / "runs.jsonl").stat().st_mtime_ns
    again = contest.contest(small, tmp_path, clock)
    assert [(line.label, line.step, line.edge, len(line.runs)) for line in again] == [
        (line.label, line.step, line.edge, 5) for line in first
    ]
    assert (tmp_path / "trials" / "runs.jsonl").stat().st_mtime_ns == seconds
    rows = [*contest.rows(again, 0.85)]
    assert {row.split("`")[1] for row in rows[2:]} == {"m-sync", "asysg"}


def test_a_run_that_diverged_is_said_and_counts_as_the_worst() -> None:
    good = [SimpleNamespace(error=None, metrics={"loss": 0.5, "accuracy": 0.9}, updates=9, time_to=lambda *_: 1.0)] * 5
    bad = [*good[:4], SimpleNamespace(error="nan", metrics={})]
    rows = [*contest.rows([contest.Line("x", 1.0, True, bad), contest.Line("m-sync", 0.1, False, good)], 0.85)]
    assert rows[2].startswith("| `m-sync` | 0.500 ± 0.000 |")
    assert rows[3] == "| `x` | diverged in 1 of 5 | | | | | 1 |"


@pytest.mark.parametrize("name", ["equal", "exponential", "phones", "slow"])
def test_every_clock_can_be_written_in_a_file(name: str) -> None:
    clock = contest.clocks(12)[name]
    ob.Experiment.parse({**TABLE, "timing": clock.table, "algorithm": {"m-sync": TABLE["algorithm"]["m-sync"]}})
