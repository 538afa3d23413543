"""A client is in one sum of each version of a model: what a server could work out from sums of one model, and cannot.

The attacker is the server of a simulation. It knows who is in which sum and with which version, and clients use
all their samples, so that the same model gives the same update. Every sum is an equation
in the updates; one that follows from the equations is found. As in a real run, sums are opened late: three at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from offbeat.algorithms import AREA, FedAST, FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.events import Job
from offbeat.core.run_state import RunState
from offbeat.core.server import Commands, View
from offbeat.core.sums import Secure
from offbeat.core.until import Until
from offbeat.local import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Factors, OnOff, Times

SECURE = Secure(cohort=2, bits=20)
UNEVEN = Times(compute=Exponential(1.0), speeds=Factors((0.2, 0.5, 1.0, 2.0)))
ROUGH = Times(Exponential(1.0), presence=OnOff(on=20.0, off=5.0), dropout=0.2)
Part = tuple[int, int, int]  # (client, task, version)


class Curious:
    """Runs a simulation and notes what goes into every sum, and what comes out."""

    def __init__(self, server: Any, timing: Times, clients: int = 4, updates: int = 60) -> None:
        tasks = 2 if server.several else 1
        problems = [Quadratic(dim=3, clients=clients, seed=task) for task in range(tasks)]
        algorithm = Algorithm(server, SGD(lr=0.1, steps=2), secure=SECURE)
        self.run = prepare(problems, algorithm, timing, Until(updates=updates, time=3000.0), seed=1, executor="serial")
        self.parts: list[list[Part]] = []
        self.totals: list[np.ndarray] = []
        self.updates: dict[Part, np.ndarray] = {}
        self.open: dict[int, list[Part]] = {}
        self.collect, self.summed = self.run.collect, self.run.summed
        self.look, self.closed = self.run._look_at_sums, list[int]()
        self.run.collect, self.run.summed = self._collect, self._summed  # type: ignore[method-assign]
        self.run.unmask, self.run._look_at_sums = self.closed.append, self._look  # type: ignore[method-assign]
        self.world = self.run.run()

    def _collect(self, cohort: Any, update: Any, result: Any) -> None:
        job, (vector,) = update.job, update.vectors.values()
        part = (job.client, job.task, job.version)
        self.open.setdefault(id(cohort), []).append(part)
        self.updates[part] = vector.double().numpy()
        self.collect(cohort, update, result)

    def _summed(self, number: int, masks: Any = None) -> None:
        cohort = self.run.world.closed[number]
        self.parts.append(self.open.pop(id(cohort)))
        self.totals.append(cohort.value(SECURE.unit, torch.float64).numpy())
        self.summed(number, masks)

    def _look(self, secure: Secure) -> None:
        self.look(secure)
        if len(self.closed) >= 3 or not self.run.world.flights:
            closed, self.closed[:] = [*self.closed], []
            for number in closed:
                self.run.summed(number)

    def twice(self) -> list[Part]:
        """What is in more than one sum, or twice in one."""
        every = [part for parts in self.parts for part in parts]
        return [part for part in {*every} if every.count(part) > 1]

    def found(self) -> dict[Part, float]:
        """The single updates that follow from the sums, and how far what follows is from the truth."""
        names = sorted({part for parts in self.parts for part in parts})
        matrix = np.array([[parts.count(name) for name in names] for parts in self.parts], dtype=float)
        inverse = np.linalg.pinv(matrix)
        known = np.abs(inverse @ matrix - np.eye(len(names))).max(axis=1) < 1e-6
        guesses = inverse @ np.array(self.totals)
        wrong = {n: float(np.abs(guesses[at] - self.updates[n]).max()) for at, n in enumerate(names)}
        return {name: wrong[name] for name, sure in zip(names, known, strict=True) if sure}


SERVERS: dict[str, Any] = {
    "fedbuff": FedBuff(size=2),
    "fedbuff of all": FedBuff(size=4),
    "some at a time": FedBuff(size=2, concurrency=3),
    "area": AREA(size=2),
    "fedast": FedAST(requests=5, size=2, lr=0.5),
    "fedast over area": FedAST(requests=5, size=2, aggregate=AREA(size=2)),
}


@pytest.mark.parametrize("timing", [UNEVEN, ROUGH], ids=["uneven", "rough"])
@pytest.mark.parametrize("name", SERVERS)
def test_no_update_follows_from_the_sums_and_the_run_goes_on(name: str, timing: Times) -> None:
    curious = Curious(SERVERS[name], timing)
    assert (curious.twice(), curious.found()) == ([], {})
    assert curious.world.stopped == "updates"
    assert len(curious.parts) >= 12


@pytest.mark.parametrize("name", ["fedbuff", "fedast"])
def test_if_clients_were_sent_a_model_twice_the_same_attack_would_find_their_updates(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunState, "barred", lambda *_: False)
    curious = Curious(SERVERS[name], UNEVEN)
    found = curious.found()
    assert len(found) >= 2
    assert max(found.values()) < 1e-4  # rounding at random, and nothing else


def test_a_server_of_ones_own_that_sends_a_model_twice_is_stopped() -> None:
    class Hasty(FedBuff):
        def sealed(self, state: Any, job: Job, view: View) -> Commands:
            yield from self.hand(state, (job.client,), view)

    with pytest.raises(SettingError, match=r"Hasty has sent client . a model twice"):
        Curious(Hasty(size=4), UNEVEN)


def test_when_nobody_is_at_work_a_sum_of_fewer_is_closed_but_never_of_fewer_than_the_cohort() -> None:
    """Two of six clients are there at a time, and a step takes five."""
    away = Times(Exponential(1.0), presence=OnOff(on=5.0, off=10.0))
    sums = Curious(FedBuff(size=5), away, clients=6, updates=40).parts
    distinct = [len({client for client, _, _ in parts}) for parts in sums]
    assert min(distinct) >= 2
    assert min(map(len, sums)) < 5


def test_a_client_that_has_sent_an_update_of_an_older_model_does_not_wait() -> None:
    """Nor does anybody else have to wait for the slowest."""
    slow = Times(compute=Exponential(1.0), speeds=Factors((1.0, 1.0, 1.0, 1.0, 30.0, 1.0)))
    curious = Curious(FedBuff(size=3), slow, clients=6, updates=60)
    versions = [version for parts in curious.parts for client, _, version in parts if client == 4]
    assert curious.world.server.model.version >= 15
    assert len(versions) <= 2
