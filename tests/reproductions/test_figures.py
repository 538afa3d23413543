"""Papers' experiments in parts, in memory: `studies.figures`."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from offbeat.experiment.experiment import Experiment
from offbeat.experiment.session import Session
from offbeat.watch.history import History
from studies import figures, rounds

SMALL = "problem.data=digits problem.model=softmax problem.clients=10 trials=2 until.time=2 evaluate.every=0.5"
WAVE = f"defedavg-fig7/fashion-iid/K-20,K-50 {SMALL}"
GIVEN = argparse.Namespace(device="cpu", processes=1, limit=60.0, share=1.0)


def do(folder: Path, waves: list[dict[str, Any]], given: argparse.Namespace = GIVEN) -> tuple[str, list[Any]]:
    (line,) = figures.run(folder, waves, given)
    (path,) = folder.glob("*.json")
    return line, json.loads(path.read_text())["runs"]


def alone(table: dict[str, Any]) -> History:
    experiment, history = Experiment.parse(table), History()
    with closing(Session(experiment)) as session, session.computing(experiment.runs[0]):
        for _ in session.simulation(experiment.runs[0], [history]).steps():
            pass
    return history


def test_a_wave_has_the_curves_of_single_runs(tmp_path: Path) -> None:
    (wave,) = figures.plan([WAVE])
    _, runs = do(tmp_path, [wave])
    tables = {(each["algorithm"], each["seed"]): each["table"] for each in wave["runs"]}
    assert len(runs) == len(tables) == 4
    for run in runs:
        mine, same = figures.result(run).history, alone(tables[run["algorithm"], run["seed"]]).measurements
        assert [(m.time, m.version) for m in mine] == [(m.time, m.version) for m in same]
        assert [m.metrics["accuracy"] for m in mine] == pytest.approx([m.metrics["accuracy"] for m in same], abs=1e-3)


def test_a_second_call_does_what_is_missing(tmp_path: Path) -> None:
    waves = figures.plan([WAVE])
    _, first = do(tmp_path, [{**waves[0], "runs": waves[0]["runs"][:3]}])
    line, second = do(tmp_path, waves)
    assert second[:3] == first
    assert "4 of 4 runs" in line


def test_a_wave_without_time_says_so_and_starts_nothing(tmp_path: Path) -> None:
    (line,) = figures.run(
        tmp_path, figures.plan([WAVE]), argparse.Namespace(device="cpu", processes=1, limit=-1.0, share=1.0)
    )
    assert line.endswith("no time")
    assert not list(tmp_path.iterdir())


def test_records_are_judged_like_a_reproduction(tmp_path: Path) -> None:
    do(tmp_path, figures.plan([WAVE.replace("/K-20,K-50", "")]))
    page = figures.judged(tmp_path, "defedavg-fig7")
    (tmp_path / "one").mkdir()
    figures.write(tmp_path / "one" / "fig7.json", figures.merged(tmp_path, "defedavg-fig7"))
    assert figures.judged(tmp_path / "one", "defedavg-fig7") == page
    assert "| fashion-iid/K-20:rounds_fashion_iid |" in page
    assert "K = 100, 50, 20 (fashion-iid)" in page


def test_server_steps_follow_from_the_clock_alone(tmp_path: Path) -> None:
    """Whatever is trained: `studies.rounds`."""
    wave = WAVE.replace("K-20,K-50", "K-20").replace("softmax", "mlp").replace("trials=2", "trials=1")
    _, (run,) = do(tmp_path, figures.plan([wave]))
    curve = run["tasks"][0]["curve"]
    assert rounds.versions(wave, 0, curve[-1][0]) == {at: version for at, version, _ in curve}


@pytest.mark.parametrize("entry", ["defedavg-table1", "defedavg-fig7"])
def test_the_verdicts_of_the_page_are_those_of_the_records(entry: str) -> None:
    results = Path(__file__).parents[2] / "docs" / "results"
    (row,) = [line for line in (results / "README.md").read_text().splitlines() if f"`{entry}` |" in line]
    page = figures.judged(results / "defedavg", entry).rpartition("| claim |")[2]
    held, failed, open_, left = (page.count(f"**{state}") for state in ("held", "not held", "undecided", "not checked"))
    by_means = held + page.count("means: held")
    assert f" {held} / {failed} / {open_}, {left} not checked ({by_means} of {held + failed + open_}) " in row
