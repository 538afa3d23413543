"""AREA's step sizes by the name of a theorem in an experiment file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import offbeat as ob
from offbeat.algorithms import AREA, Decay, FedAST, Poisson, Steady
from offbeat.core.errors import SettingError
from offbeat.experiment.session import Session
from offbeat.theory import area
from offbeat.theory.schedules import Theorem7, Theorem8

RATES = [4.0, 2.0, 1.0]
SMOOTH = {
    "until": {"iterations": 300},
    "evaluate": {"every": 10.0},
    "problem": {"data": "quadratic", "clients": 3, "dim": 4, "noise": 0.5, "smoothness": 2.0, "convexity": 0.5},
    "timing": {"exponential": {"rate": RATES}},
    "algorithm": {
        "area": {"size": {"poisson": {"rate": 3.0}}, "schedule": "theorem7", "local": {"sgd": {"lr": 0.1, "steps": 4}}}
    },
}
FLAT = {
    **SMOOTH,
    "problem": {"data": "absolute", "clients": 3, "noise": 0.5, "lipschitz": 2.0, "distance": 3.0},
    "algorithm": {"area": {**SMOOTH["algorithm"]["area"], "schedule": "theorem8", "average": True}},  # type: ignore[index]
}
EVENTS = area.Events.from_rates(RATES, 3.0)


def changed(table: Any, path: str, value: Any) -> ob.Experiment:
    return ob.Experiment.parse(table, {path: value})


def settled(experiment: ob.Experiment) -> Any:
    session, (spec, *_) = Session(experiment), experiment.runs
    return session.simulation(spec).server.schedule


def test_theorem_7_takes_its_constants_from_the_run() -> None:
    assert settled(ob.Experiment.parse(SMOOTH)) == area.schedule(area.Smooth(0.5, 2.0, 4), EVENTS)


def test_constants_that_are_given_come_before_those_of_the_problem() -> None:
    given = {"theorem7": {"smoothness": 8.0}}
    found = settled(changed(SMOOTH, "algorithm.area.schedule", given))
    assert found == area.schedule(area.Smooth(0.5, 8.0, 4), EVENTS)


def test_theorem_8_takes_k_from_the_limit_of_iterations() -> None:
    flat = area.Nonsmooth(2.0, 4, 0.5, 3.0)
    assert settled(ob.Experiment.parse(FLAT)) == Steady(area.nonsmooth_step(flat, EVENTS, 300))
    for iterations, ratio in ((300, 1.0), (1200, 0.5)):
        found = settled(changed(FLAT, "until.iterations", iterations))
        assert found.lr == pytest.approx(ratio * area.nonsmooth_step(flat, EVENTS, 300))


@pytest.mark.parametrize("size", [6, {"period": {"time": 0.7}}, {"poisson": {"rate": "optimal"}}])
def test_the_server_s_rate_is_that_of_its_criterion(size: Any) -> None:
    rate = {int: 7.0 / 6.0}.get(type(size)) or (1 / 0.7 if "period" in size else area.optimal_rate(RATES))
    found = settled(changed(SMOOTH, "algorithm.area.size", size))
    assert found == area.schedule(area.Smooth(0.5, 2.0, 4), area.Events.from_rates(RATES, rate))


def test_the_run_uses_it_and_theory_says_that_the_bound_is_that_of_these_steps() -> None:
    experiment = ob.Experiment.parse(SMOOTH)
    (line,) = [line for line in experiment.advice() if "E|x − x*|²" in line]
    assert "not with the step sizes chosen" not in line
    wide = {"data": "quadratic", "clients": 3, "dim": 10, "convexity": 0.1}  # μ is estimated to a percent
    (line,) = [line for line in changed(SMOOTH, "problem", wide).advice() if "E|x − x*|²" in line]
    assert "not with the step sizes chosen" not in line
    plain = changed(SMOOTH, "algorithm.area.schedule", {"decay": {"c": 1.0, "d": 10.0}})
    assert any("not with the step sizes chosen" in line for line in plain.advice())


REFUSED = [
    (FLAT, "until", {"time": 10.0}, "theorem8: its step size depends on K; set until.iterations"),
    (
        SMOOTH,
        "problem",
        {"data": "digits", "clients": 3},
        "digits does not know its smoothness and convexity",
    ),
    (SMOOTH, "problem", {"data": "absolute", "clients": 3}, "absolute does not know its smoothness and convexity"),
    (FLAT, "problem", {"data": "quadratic", "clients": 3}, "quadratic does not know its lipschitz; give them"),
    (SMOOTH, "algorithm.area.local", {"adam": {"lr": 0.1}}, "the theorems are about plain local steps"),
    (SMOOTH, "algorithm.area.server", {"adam": {"lr": 0.1}}, "the theorems are about a server's own steps"),
    (SMOOTH, "algorithm.area.schedule", {"theorem7": {"mu": 1.0}}, "mu"),
    (SMOOTH, "algorithm.area.schedule", "theorem9", "did you mean 'theorem"),
]


@pytest.mark.parametrize(("table", "path", "value", "said"), REFUSED)
def test_what_a_theorem_does_not_cover_is_refused_in_one_line(table: Any, path: str, value: Any, said: str) -> None:
    with pytest.raises(SettingError, match=said) as refused:
        settled(changed(table, path, value))
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith("algorithm.area")


def test_under_fedast_and_before_a_run_there_are_no_numbers() -> None:
    for schedule in (Theorem7(), Theorem8()):
        with pytest.raises(SettingError, match="no numbers before a run of AREA with one task"):
            schedule(0)
    server = FedAST(requests=3, aggregate=AREA(schedule=Theorem7()))
    algorithm, times = ob.Algorithm(server, ob.SGD(lr=0.1)), ob.timing.Times(ob.timing.Exponential(1.0))
    with pytest.raises(SettingError, match="no numbers before a run of AREA with one task"):
        ob.run(ob.Quadratic(3), algorithm, times, ob.Until(updates=3))


def test_from_python_it_is_settled_too() -> None:
    algorithm = ob.Algorithm(AREA(size=Poisson(3.0), schedule=Theorem7()), ob.SGD(lr=0.1, steps=2))
    times = ob.timing.Times(ob.timing.Exponential(tuple(RATES)))
    result = ob.run(ob.Quadratic(3), algorithm, times, ob.Until(iterations=40))
    assert isinstance(result.simulation.server.schedule, Decay)


def test_the_mean_of_the_models_is_evaluated_and_saved_and_the_same_after_a_resume(tmp_path: Path) -> None:
    (result,) = ob.Experiment.parse(FLAT).run(tmp_path / "whole", progress=False)
    assert result.outputs is not None
    assert set(result.outputs["average"]) == {"loss", "gap", "distance"}
    mean = result.output("average")
    problem = Session(ob.Experiment.parse(FLAT)).problems(ob.Experiment.parse(FLAT).runs[0])[0]
    assert problem.measure(mean.unsqueeze(0))[0] == pytest.approx(dict(result.outputs["average"]))
    assert not torch.equal(mean, result.model)
    read = ob.open_runs(tmp_path / "whole") if hasattr(ob, "open_runs") else None
    assert read is None or read[0].outputs == result.outputs
    with pytest.raises(SettingError, match="avrage"):
        result.output("avrage")


def test_the_bound_of_theorem_8_holds_for_the_mean_of_a_file_s_run(tmp_path: Path) -> None:
    table = {**FLAT, "trials": 8}
    gaps = [run.outputs["average"]["gap"] for run in ob.Experiment.parse(table).run(tmp_path / "runs", progress=False)]
    bound = area.nonsmooth_bound(area.Nonsmooth(2.0, 4, 0.5, 3.0), EVENTS, 300, printed=False).total
    assert 0 < sum(gaps) / 8 < bound
