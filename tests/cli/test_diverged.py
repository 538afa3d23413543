"""A run whose training explodes: it is named, and the others of its experiment still count."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from command import DIGITS, QUADRATIC, Outcome, offbeat, run, sets

SAYS = r"client \d+, job \d+ of quadratic: its \w+ is not finite after 1 local steps with lr = 500"


@pytest.fixture
def diverged(tmp_path: Path) -> Outcome:
    """Two algorithms under two seeds; the second explodes."""
    return run(tmp_path, QUADRATIC, "--json", *sets("trials=2", "algorithm.fedasync.local.sgd.lr=500"))


def test_the_error_names_client_job_and_step_size_and_what_to_do(diverged: Outcome) -> None:
    assert diverged.code == 1
    failed = [r for r in diverged.runs if "error" in r]
    assert [list(r) for r in failed] == 2 * [["algorithm", "seed", "error"]]
    for result in failed:
        assert re.match(SAYS, result["error"])
        assert "use a smaller step or clip gradients" in result["error"]
        assert f"offbeat: fedasync, seed {result['seed']}: {result['error']}\n" in diverged.err


def test_the_other_runs_of_the_experiment_finish(diverged: Outcome) -> None:
    assert [(r["algorithm"], r["seed"], "error" in r) for r in diverged.runs] == [
        ("area", 0, False),
        ("fedasync", 0, True),
        ("area", 1, False),
        ("fedasync", 1, True),
    ]
    assert all(r["updates"] == 400 for r in diverged.runs if "error" not in r)


def test_table_summary_and_report_say_what_failed(tmp_path: Path) -> None:
    outcome = run(tmp_path, QUADRATIC, *sets("algorithm.fedasync.local.sgd.lr=500"))
    assert "1 of 1 failed" in outcome.out
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())["runs"]
    assert re.match(SAYS, summary[1]["error"])
    assert re.search(r"## Failed\n\n- fedasync, seed 0: " + SAYS, (tmp_path / "out" / "report.md").read_text())
    result = json.loads((tmp_path / "out" / "fedasync-0" / "result.json").read_text())
    assert result["error"] == summary[1]["error"]


def test_a_run_that_only_got_worse_or_made_no_step_is_named(tmp_path: Path) -> None:
    settings = sets("algorithm.area.size=2000", "algorithm.fedasync.local.sgd.lr=2.2", "until.updates=20")
    outcome = run(tmp_path, QUADRATIC, *settings)
    assert outcome.code == 0
    first, second = outcome.err.splitlines()[-2:]
    assert first == "offbeat: area, seed 0: no server step was made: 20 updates arrived, and the server waits for more"
    said = r"offbeat: fedasync, seed 0: the loss is larger than before training \(\S+, then \S+\): a smaller step\?"
    assert re.fullmatch(said, second)


def test_how_clients_worked_is_not_shown_where_every_run_failed(tmp_path: Path) -> None:
    shown = run(tmp_path, QUADRATIC, *sets("algorithm.*.local.sgd.lr=500000")).out
    assert "1 of 1 failed" in shown
    assert "equally" not in shown


def test_the_record_of_the_way_there_is_kept(tmp_path: Path) -> None:
    run(tmp_path, QUADRATIC, *sets("evaluate.every=0.1", "algorithm.fedasync.local.sgd.lr=500"))
    losses = pq.read_table(tmp_path / "out" / "fedasync-0" / "metrics.parquet").column("loss").to_pylist()
    assert losses[-1] > losses[0] > 0


def test_resuming_gives_the_same_error_again(diverged: Outcome, tmp_path: Path) -> None:
    again = offbeat("resume", tmp_path / "out", "--json")
    assert (again.code, again.runs) == (1, diverged.runs)


def test_a_loss_that_no_number_can_hold_is_null_in_json(tmp_path: Path) -> None:
    outcome = run(tmp_path, QUADRATIC, "--json", *sets("until.updates=60", "algorithm.*.local.sgd.lr=30"))
    losses = [r["metrics"]["loss"] for r in outcome.runs if "error" not in r]
    json.loads(outcome.out, parse_constant=pytest.fail)
    assert None in losses


def test_digits_with_an_absurd_step_size_say_so_too(tmp_path: Path) -> None:
    outcome = run(tmp_path, DIGITS, "--json", *sets("algorithm.*.local.sgd.lr=1e30"))
    assert outcome.code == 1
    assert all("of digits" in r["error"] and "lr = 1e+30" in r["error"] for r in outcome.runs)
