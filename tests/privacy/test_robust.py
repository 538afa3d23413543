"""A robust rule in the place of the mean: in buffers, in tables, from a file, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from worlds import Line, Scripted, run

from offbeat.algorithms import ACE, AREA, FADAS, MIFA, FedAST, FedAvg, FedBuff
from offbeat.algorithms.buffer import Buffer
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.server import Model
from offbeat.core.until import Until
from offbeat.core.vectors import Vector
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.run import run as simulate
from offbeat.local import SGD
from offbeat.privacy.robust import Robust, by_client
from offbeat.privacy.rules import CenteredClipping, GeometricMedian, Krum, Median, NormBound, TrimmedMean
from offbeat.timing import Exponential, Times

TIMES, UNTIL = Times(Exponential(1.0)), Until(updates=60)


@dataclass(frozen=True)
class Mean:
    """No defence, by the way that defences take."""

    def __call__(self, rows: Vector, /) -> Vector:
        return rows.mean(dim=0)


PLAIN: dict[str, Any] = {
    "fedbuff": FedBuff(size=4, lr=0.7),
    "fadas": FADAS(size=4),
    "fedavg": FedAvg(sampled=4),
    "area": AREA(size=3),
    "mifa": MIFA(size=2),
    "ace": ACE(),
}


@pytest.mark.parametrize("name", PLAIN)
def test_the_mean_as_a_rule_changes_nothing(name: str) -> None:
    problem = Line([1.0, 2.0, 4.0, 8.0, -3.0])
    plain = run(problem, PLAIN[name], SGD(lr=0.1, steps=2), TIMES, UNTIL)
    ruled = run(problem, replace(PLAIN[name], guard=Robust(Mean())), SGD(lr=0.1, steps=2), TIMES, UNTIL)
    assert torch.allclose(plain.model, ruled.model, atol=1e-12)
    assert plain.world.tally.updates == ruled.world.tally.updates


def test_a_rule_works_on_the_single_updates_of_a_buffer() -> None:
    """Median of the deltas of five clients at w = 0: 0.1 times the middle centre."""
    problem = Line([1.0, 2.0, 4.0, 8.0, 1e9])
    clock = Scripted([[1.0]])
    result = run(problem, FedBuff(size=5, guard=Robust(Median())), SGD(lr=0.1), clock, Until(versions=1))
    assert float(result.model[0]) == pytest.approx(0.4)


def test_a_client_has_one_slot_with_the_mean_of_its_updates() -> None:
    found = by_client([3, 1, 3, 3], [torch.tensor([float(v)]) for v in (1.0, 10.0, 2.0, 6.0)])
    assert [float(row) for row in found] == [3.0, 10.0]


def test_area_s_table_counts_a_client_once_however_often_it_reports() -> None:
    """One of five clients is fifty times as fast and far away: the median of the table does not move to it."""
    problem = Line([1.0, 1.1, 0.9, 1.05, 1e6])
    fast = Times(Exponential((1.0, 1.0, 1.0, 1.0, 50.0)))
    until = Until(time=60.0)
    table = run(problem, AREA(size=5, guard=Robust(Median())), SGD(lr=0.1), fast, until)
    buffer = run(problem, FedBuff(size=5, guard=Robust(Median())), SGD(lr=0.1), fast, until)
    assert 0.9 <= float(table.model[0]) <= 1.1
    assert float(buffer.model[0]) > 1e5  # all slots of most buffers are the fast client's


@pytest.mark.parametrize("rule", [NormBound(1.0), CenteredClipping(1.0), GeometricMedian(), Krum(), TrimmedMean()])
def test_a_client_whose_updates_add_up_to_more_than_a_number_can_hold_does_not_break_a_rule(rule: Any) -> None:
    guard, buffer = Robust(rule, one_slot=True), Buffer()
    for client, size in ((0, 3e38), (0, 3e38), (1, 1.0), (2, 1.0), (3, 1.0), (4, 1.0)):
        guard.collect(Model(torch.zeros(2)), buffer, client, torch.full((2,), size))
    found = guard.mean(Model(torch.zeros(2)), buffer, 6, None)  # type: ignore[arg-type]
    assert bool(torch.isfinite(found).all())
    assert float(found.abs().max()) <= 1.5


def test_several_tasks_have_their_rules() -> None:
    tasks = [Line([1.0, 2.0, 4.0, 1e9], name="a"), Line([1.0, 3.0, 5.0, 1e9], name="b")]
    server = FedAST(requests=60, size=30, lr=1.0, guard=Robust(Median(), one_slot=True))
    made = simulate(tasks, Algorithm(server, SGD(lr=0.1)), TIMES, Until(updates=4000), executor="serial")
    models = [float(m.vector[0]) for m in server.models(made.world.server)]
    assert all(abs(w) < 1e3 for w in models)


FILE: dict[str, Any] = {
    "problem": {"data": "digits", "clients": 6},
    "timing": {"exponential": {"rate": 1.0}},
    "algorithm": {"fedbuff": {"size": 4, "local": {"sgd": {"lr": 0.5, "batch": 16}}}},
    "until": {"updates": 12},
}


def parsed(**changes: Any) -> Experiment:
    return Experiment.parse({**FILE, **changes})


def test_a_file_names_a_rule() -> None:
    made = parsed(robust={"rule": {"trimmed-mean": {"share": 0.3}}, "one_slot": True})
    server: Any = made.algorithms["fedbuff"].server
    assert server.guard == made.robust
    assert made.resolved["experiment"]["robust"].startswith("Robust(rule=TrimmedMean(share=0.3)")


@pytest.mark.parametrize(
    ("robust", "said"),
    [
        ({}, "rule missing"),
        ({"rule": "mean"}, "did you mean 'median'"),
        ({"rule": {"trimmed-mean": 0.6}}, "no rule survives a bad half"),
        ({"rule": "centered-clipping"}, "radius missing"),
    ],
)
def test_what_is_no_rule_is_refused(robust: Any, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        parsed(robust=robust)


@pytest.mark.parametrize("name", ["fedasync-mixing", "scaffold", "quafl", "ca2fl", "aced", "local-only"])
def test_servers_without_single_updates_are_refused_by_name(name: str) -> None:
    local = {"scaffold" if name == "scaffold" else "sgd": {"lr": 0.1}}
    with pytest.raises(SettingError, match=rf"algorithm.{name}: robust: \w+ neither collects updates"):
        parsed(algorithm={name: {"local": local}}, robust={"rule": "median"})


@pytest.mark.parametrize("name", ["fedasync", "fedbuff"])
def test_a_rule_that_has_one_update_to_work_on_is_refused(name: str) -> None:
    one, several = ({name: {"size": size, "local": {"sgd": {"lr": 0.1}}}} for size in (1, 2))
    with pytest.raises(SettingError, match=r"robust: .* has no others to compare with; give a size"):
        parsed(algorithm=one, robust={"rule": "median"})
    assert parsed(algorithm=several, robust={"rule": "median"}).algorithms
    assert parsed(algorithm=one, robust={"rule": {"norm-bound": 1.0}}).algorithms
