"""Which executor is used, and why."""

from __future__ import annotations

import pytest
import torch
from worlds import through_text

from offbeat.algorithms import FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.local import Carry, Work
from offbeat.core.until import Until
from offbeat.data import load
from offbeat.local import MAML, SGD, Scaffold
from offbeat.problems.quadratic import Quadratic
from offbeat.problems.supervised import Supervised
from offbeat.simulate import choose
from offbeat.simulate.choose import executor
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

DIGITS = load("digits")


def softmax(clients: int = 8, **options: object) -> Supervised:
    return Supervised.split(DIGITS, clients, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("local", [SGD(lr=0.1, batch=8), MAML(lr=0.1, alpha=0.1), Scaffold(lr=0.1, steps=9)])
def test_auto_tries_both_ways_and_says_what_it_found(local: object) -> None:
    made = executor("auto", [softmax()], [local]).settle()  # type: ignore[list-item]
    assert "an update stacked by 4, " in made.reason
    assert made.reason.startswith(f"{made.name}: ")


@pytest.mark.parametrize(("alone", "together", "name"), [(1.0, 0.5, "batched"), (0.5, 1.0, "serial")])
def test_the_faster_way_is_taken(alone: float, together: float, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {False: alone * 1e-4, True: together * 1e-4}
    monkeypatch.setattr(choose, "trial", lambda problem, local, clients, stacked: times[stacked])
    made = executor("auto", [softmax()], [SGD(lr=0.1, steps=10)]).settle()
    assert (made.name, made.stacked) == (name, name == "batched")
    assert made.reason.endswith(
        f"{together:g} ms an update stacked by 4, {alone:g} ms one by one".replace("0.5 ms", "500 µs")
    )


@pytest.mark.parametrize(("problem", "name"), [(softmax(), "batched"), (softmax(model="mlp"), "batched")])
def test_a_difference_that_may_be_chance_does_not_count(
    problem: Supervised, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "trial", lambda p, local, clients, stacked: 1.1e-4 if stacked else 1e-4)
    assert executor("auto", [problem], [SGD(lr=0.1)]).settle().name == name


def test_what_needs_no_trial_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(choose, "trial")
    assert executor("auto", [Quadratic(5)], [SGD(lr=0.1)]).settle().reason == "batched: known without a trial"
    assert executor("auto", [softmax(1)], [SGD(lr=0.1)]).settle().name == "batched"
    assert executor("auto", [softmax()]).settle().name == "batched"


class Odd(SGD):
    """A local trainer that only its own server can feed."""

    def init(self, work: Work) -> Carry:
        return {"w": work.payload["secret"]}


def test_a_trial_that_fails_decides_nothing() -> None:
    assert executor("auto", [softmax()], [Odd(lr=0.1)]).settle().reason == (
        "batched: no trial (Odd, client 0, job 0: KeyError: 'secret' (test_choose.py:67, in init))"
    )


def test_a_heavy_step_is_not_tried_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.zeros(64, 1, 16, 16, dtype=torch.uint8)
    data = type(DIGITS).pairs("blank", images, torch.arange(64) % 10, images, torch.arange(64) % 10, 10, 1 / 255)
    problem = Supervised.split(data, 4, model="cnn")

    def trial(problem: Supervised, local: SGD, clients: int, stacked: bool) -> float:
        assert not stacked
        return 7e-3

    monkeypatch.setattr(choose, "trial", trial)
    made = executor("auto", [problem], [SGD(lr=0.1)]).settle()
    assert made.reason == "serial: a local step takes 7 ms, of which stacking would save little"


def test_a_saved_run_goes_on_with_the_executor_that_it_began_with() -> None:
    problem, fedbuff = softmax(), Algorithm(FedBuff(size=2), SGD(lr=0.1, batch=8))
    for name in ("serial", "batched"):
        begun = prepare(problem, fedbuff, Times(Exponential(1.0)), Until(updates=20), executor=name)
        for _ in zip(range(9), begun.steps(), strict=False):
            pass
        saved = through_text(begun.world)
        resumed = prepare(problem, fedbuff, Times(Exponential(1.0)), Until(updates=20), world=saved)
        assert (resumed.executor.name, resumed.executor.reason) == (name, f"the run began as {name}")


def test_workers_are_for_executors_that_have_them() -> None:
    assert executor("auto", [Quadratic(2)], workers=3).name == "processes"
    with pytest.raises(SettingError, match="workers = 3 with executor = 'serial': use 'processes' or 'ray'"):
        executor("serial", [Quadratic(2)], workers=3)
