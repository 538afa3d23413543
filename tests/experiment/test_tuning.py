"""Tuning: the same budget for every algorithm, on seeds that do not judge."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from command import offbeat
from report.folders import embedded

import offbeat as ob
from offbeat.core.errors import SettingError
from offbeat.core.metric import Metric
from offbeat.core.watcher import Measurement
from offbeat.experiment import sweep, tuning
from offbeat.experiment.samplers import Latin, Values, axis, sampler
from offbeat.report import toml

TABLE: dict[str, Any] = {
    "until": {"time": 3.0},
    "evaluate": {"every": 0.5},
    "trials": 2,
    "problem": {"data": "quadratic", "clients": 4, "dim": 6},
    "timing": {"exponential": {"rate": 4.0}},
    "algorithm": {
        "fedasync": {"local": {"sgd": {"lr": 0.1}}},
        "fedbuff": {"size": 2, "local": {"sgd": {"lr": 0.1}}},
    },
}


def tune(folder: Path, **changes: Any) -> tuning.Tuned:
    table = {**TABLE, **changes.pop("table", {})}
    return ob.Experiment.parse(table).tune(9, out=folder, workers=1, progress=False, **changes)


def test_every_algorithm_gets_the_same_budget_on_seeds_of_its_own(tmp_path: Path) -> None:
    found = tune(tmp_path / "t", best="loss")
    assert {a: sum(t.algorithm == a for t in found.trials) for a in found.best} == {"fedasync": 13, "fedbuff": 13}
    seeds = {r.seed for rung in sorted((tmp_path / "t").glob("rung-*")) for r in ob.open(rung)}
    assert seeds == {1000, 1001}
    assert {r.seed for r in found.results} == {0, 1}
    assert {(t.length, t.algorithm) for t in found.trials} == {
        (length, a) for length in (1 / 9, 1 / 3, 1.0) for a in found.best
    }


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([{"algorithm.a.local.sgd.lr": 0.5, "algorithm.a.size": 4}], ["a+lr0.5+size4"]),
        ([{"algorithm.a.lr": 0.50001}, {"algorithm.a.lr": 0.50002}], ["a+0", "a+1"]),  # look alike
        ([{"algorithm.a.weight": "x / y"}], ["a+0"]),  # not a folder's name
    ],
)
def test_a_setting_that_is_tried_is_named_by_its_values_where_that_makes_a_label(values: Any, names: list[str]) -> None:
    assert tuning._names("a", values) == names


def test_the_best_of_the_last_rung_is_judged(tmp_path: Path) -> None:
    found = tune(tmp_path / "t", best="loss", rungs=1)
    mine = {t.settings["algorithm.fedasync.local.sgd.lr"]: t.cost for t in found.trials if t.algorithm == "fedasync"}
    assert len(mine) == 9
    best = min(mine, key=lambda lr: mine[lr])
    assert found.best["fedasync"] == {"algorithm.fedasync.local.sgd.lr": best}
    again = ob.load(tmp_path / "t" / "best.toml").run(tmp_path / "again", progress=False)
    judged = [r.metrics["loss"] for r in found.results if r.algorithm == "fedasync"]
    assert [r.metrics["loss"] for r in again if r.algorithm == "fedasync"] == pytest.approx(judged, rel=1e-6)


def test_seeds_that_tune_and_judge_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="seed 1 is used for tuning and for evaluation"):
        tune(tmp_path / "t", seed=1)
    assert not (tmp_path / "t").exists()


def test_a_stopped_tuning_goes_on_and_ends_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tune(tmp_path / "whole", best="loss")
    work, calls = sweep.work, []

    def stopping(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            raise sweep.StoppedSweepError("stopped", [])
        return work(*given)

    monkeypatch.setattr(sweep, "work", stopping)
    with pytest.raises(sweep.StoppedSweepError, match=r"offbeat resume .*broken"):
        tune(tmp_path / "broken", best="loss")
    found = tuning.resume(tmp_path / "broken", progress=False)
    assert found.to_json() == whole.to_json()


def test_a_run_that_falls_short_costs_more_the_farther_it_is() -> None:
    accuracy = Metric("accuracy", higher=True, share=True)
    far = ob.Result("a", 0, time=2.0, metrics={"accuracy": 0.4}, measured=(accuracy,), curve=())
    near = replace(far, metrics={"accuracy": 0.6}, tasks=())
    there = replace(near, curve=(Measurement(0, 1.5, 1, 1, {"accuracy": 0.9}),), tasks=())
    costs = [tuning.cost(run, "time:accuracy=0.8") for run in (there, near, far)]
    assert costs == [1.5, pytest.approx(2.0 * 1.25), pytest.approx(2.0 * 1.5)]
    assert tuning.cost(ob.Result("a", 0, error="diverged"), "time:accuracy=0.8") == inf
    assert tuning.cost(near, "accuracy") == -0.6


def test_a_run_that_reaches_the_value_and_ends_worse_than_it_began_has_diverged() -> None:
    curve = tuple(Measurement(0, float(t), t, t, {"r2": value}) for t, value in enumerate((-0.1, 0.7, -3.0)))
    run = ob.Result("a", 0, time=2.0, metrics={"r2": -3.0}, measured=(Metric("r2", higher=True),), curve=curve)
    assert tuning.cost(run, "time:r2=0.6") == inf
    assert tuning.cost(replace(run, metrics={"r2": 0.7}, curve=curve[:2], tasks=()), "time:r2=0.6") == 1.0


def test_an_even_spread_uses_every_part_of_a_range_once() -> None:
    axes = {"a": Values(0.01, 100.0), "b": Values(1, 9, log=False), "c": ["x", "y"]}
    found = Latin(axes, 0).ask(9)
    assert sorted(each["a"] for each in found) == pytest.approx([10 ** (at / 2 - 2) for at in range(9)], rel=1e-3)
    assert sorted(each["b"] for each in found) == list(range(1, 10))
    assert Latin({"c": ["x", "y"], "d": [1, 2]}, 0).ask(4) == [{"c": c, "d": d} for c in "xy" for d in (1, 2)]


def test_optuna_proposes_within_the_ranges_and_the_same_again(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    axes = {"a": Values(0.01, 100.0), "b": [1, {"x": 2}], "n": Values(1, 8)}

    def proposed() -> list[Any]:
        made = sampler("tpe", axes, 3)
        first = made.ask(5)
        for each in first:
            made.tell(each, each["a"])
        return [*first, *made.ask(5)]

    found = proposed()
    assert found == proposed()
    assert all(0.01 <= each["a"] <= 100 and each["b"] in axes["b"] and each["n"] in range(1, 9) for each in found)
    best = tune(tmp_path / "t", best="loss", sampler="tpe")
    assert len({repr(t.settings) for t in best.trials if t.algorithm == "fedbuff"}) == 9


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"low": 1.0, "high": 0.5}, "low = 1.0: must be below high = 0.5"),
        ({"low": 0.0, "high": 0.5}, "low = 0.0: must be a positive number"),
        ({"lo": 1.0, "high": 2.0}, "tune.x.lo: unknown; did you mean 'low'?"),
        (3.0, "tune.x = 3.0: give a list of values"),
    ],
)
def test_a_range_that_is_none_is_refused(given: Any, words: str) -> None:
    with pytest.raises(SettingError, match=words.replace("?", r"\?")):
        axis("x", given)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--over", "problem.clients=[1,2]"), "name a key of an algorithm"),
        (("--for", "time:accuracy"), "ranked by 'time:accuracy': the time to a value"),
        (("--for", "perplexty"), "ranked by 'perplexty': runs measure "),
        (("--over", "lr"), "--over 'lr': expected key.path=value, such as problem.clients=[32,64]"),
        (("--rungs", "4"), "rungs = 4: a budget of 9 is enough for 3"),
        (("--sampler", "magic"), "sampler = 'magic': must be one of"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    (tmp_path / "x.toml").write_text(toml.dumps(TABLE))
    outcome = offbeat("tune", tmp_path / "x.toml", "--out", tmp_path / "t", *options)
    assert (outcome.code, words in outcome.err) == (1, True), outcome.err
    assert not (tmp_path / "t").exists()


def test_the_command_prints_the_best_settings_and_resumes(tmp_path: Path) -> None:
    path = '"algorithm.*.local.sgd.lr"'
    (tmp_path / "x.toml").write_text(toml.dumps(TABLE) + f"\n[tune]\n{path} = [0.01, 0.1, 0.3]\n")
    given = ("--budget", "3", "--for", "loss", "--workers", "1", "--out", tmp_path / "t")
    outcome = offbeat("tune", tmp_path / "x.toml", *given)
    assert outcome.code == 0, outcome.err
    assert "lr = 0.3 (at the edge)" in outcome.out
    assert "± 95 %" in outcome.out
    assert "settings tried" not in outcome.out
    again = offbeat("resume", tmp_path / "t", "--json")
    assert json.loads(again.out)["best"]["fedbuff"] == {"algorithm.fedbuff.local.sgd.lr": 0.3}
    refused = offbeat("run", tmp_path / "x.toml", "--out", tmp_path / "r")
    assert "run it with `offbeat tune`" in refused.err
    assert offbeat("report", tmp_path / "t", "--out", tmp_path / "page.html").err == ""
    assert embedded(tmp_path / "page.html")["series"] == embedded(tmp_path / "t" / "judged" / "report.html")["series"]


def test_unequal_numbers_of_settings_and_a_single_seed_are_said(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(toml.dumps({**TABLE, "trials": 1}))
    given = ("--over", "algorithm.fedbuff.size=[1,2]", "--budget", "3", "--rungs", "1", "--seeds", "1")
    outcome = offbeat("tune", tmp_path / "x.toml", *given, "--workers", "1", "--out", tmp_path / "t")
    assert outcome.code == 0, outcome.err
    assert "settings tried: fedasync 3, fedbuff 2; some lists" in outcome.out
    assert "of one evaluation seed" in outcome.out
    assert "95 %" not in outcome.out


def test_the_tuned_experiment_finds_its_files_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data.csv").write_text("x,y\n" + "".join(f"{at},{at % 2}\n" for at in range(40)))
    problem = {"data": {"file": "data.csv"}, "target": "y", "model": "linear", "clients": 2}
    (tmp_path / "x.toml").write_text(toml.dumps({**TABLE, "problem": problem, "until": {"time": 1.0}}))
    given = ("--budget", "1", "--seeds", "1", "--workers", "1", "--out", tmp_path / "t")
    assert offbeat("tune", tmp_path / "x.toml", *given).code == 0
    monkeypatch.chdir(tmp_path / "t")
    outcome = offbeat("run", "best.toml", "--out", "again")
    assert outcome.code == 0, outcome.err


def test_the_tuned_experiment_finds_its_modules_from_any_folder(tmp_path: Path) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    (project / "parts").mkdir(parents=True)
    elsewhere.mkdir()
    (project / "parts" / "tuned_data.py").write_text("def load():\n    return [[1.0], [2.0]] * 20, [0, 1] * 20\n")
    problem = {"data": "tuned_data:load", "clients": 2}
    table = {**TABLE, "modules": ["parts"], "problem": problem, "until": {"time": 1.0}}
    (project / "x.toml").write_text(toml.dumps(table))

    def alone(*words: object) -> str:  # in a process that has not imported the module
        command = [sys.executable, "-m", "offbeat", *map(str, words)]
        done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    given = ("--budget", 1, "--seeds", 1, "--workers", 1, "--out", tmp_path / "t")
    alone("tune", project / "x.toml", *given)
    alone("run", tmp_path / "t" / "best.toml", "--out", tmp_path / "again")
    (tmp_path / "t" / "tuned.json").unlink()
    assert "tuned experiment: " in alone("resume", tmp_path / "t")
