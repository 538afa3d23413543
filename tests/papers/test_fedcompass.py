"""FedCompass (Li et al. 2024): as many local steps as a client needs to arrive together with others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
import torch
from worlds import Line, Scripted, run

from offbeat.algorithms import FedAvg, FedCompass
from offbeat.algorithms.staleness import Equal
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.events import Job
from offbeat.core.until import Until
from offbeat.local import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Constant, Exponential, Factors, OnOff, Times
from offbeat.timing.base import Durations

HALF = SGD(lr=0.5)  # q steps on the line: delta = (received − centre)·(1 − 2^−q)
THREE = Line([6.0, 12.0, -6.0])


@dataclass(frozen=True)
class Paced(Scripted):
    """A clock on which a job takes its client's pace for every local step, except for the jobs of a list."""

    jobs: Sequence[Sequence[float | Durations]] = ()
    paces: Sequence[float] = ()
    odd: Mapping[tuple[int, int], float] = field(default_factory=dict)  # (client, number of its job) -> time

    def durations(self, job: Job, down: int, up: int) -> Durations:
        return Durations(0.0, self.odd.get((job.client, job.number), self.paces[job.client] * job.steps), 0.0)


EXACT = FedCompass(least=1, most=4, lateness=1.25, newest=1.0, weight=Equal())


def test_eleven_arrivals_by_hand() -> None:
    """Paces 1, 5/2 and 7/2, so that the first jobs of four steps end at 4, 10 and 14; a step is a third of the sum."""
    expected = [  # (time, model after it, steps of the jobs that were sent)
        (4.0, Fraction(15, 8), {0: 4}),  # −45/8; opens group 0: expected at 8
        (8.0, Fraction(405, 128), {0: 4}),  # group 0 is complete; opens group 1, at 12, until 13
        (10.0, Fraction(885, 128), {1: 2}),  # −45/4; too slow for group 1: ⌊(13 + 4 − 10)/2.5⌋; group 2, at 15
        (12.0, Fraction(15975, 2048), {0: 3}),  # group 1; three steps until 15: joins group 2
        (14.0, Fraction(12135, 2048), {2: 1}),  # 45/8; ⌊(16.25 + 4 − 14)/3.5⌋; group 3, at 17.5
        (15.0, Fraction(12135, 2048), {}),  # the first of group 2
        (15.0, Fraction(109309, 16384), {0: 2, 1: 1}),  # group 2: 25809/16384 and −1953/512; both join group 3
        (17.0, Fraction(109309, 16384), {}),
        (17.5, Fraction(109309, 16384), {}),
        (17.5, Fraction(1062523, 196608), {0: 4, 1: 4, 2: 4}),  # group 3: 33015/65536, −87299/32768, 24423/4096
    ]
    simulation = prepare(THREE, Algorithm(EXACT, HALF), Paced(paces=(1.0, 2.5, 3.5)), Until(updates=10))
    found, sent = [], 3
    for world in simulation.steps():
        if world.now and world.tally.updates > len(found):
            new = {f.job.client: f.job.steps for f in world.flights.values() if f.job.id >= sent}
            sent += len(new)
            found.append((world.now, pytest.approx(world.server.model.vector.item(), abs=1e-13), new))
    assert found[:9] == [(time, float(w), new) for time, w, new in expected[:9]]
    assert found[9][1] == float(expected[9][1])


def test_who_comes_too_late_for_its_group_goes_on_at_once_and_counts_in_the_next() -> None:
    """Client 1 would arrive with client 0 at 12 and takes until 40; the others go ahead at the latest time."""
    clock = Paced(paces=(1.0, 1.5), odd={(1, 1): 34.0})
    server = FedCompass(least=1, most=4, lateness=1.25, weight=Equal())
    simulation = prepare(Line([6.0, 12.0]), Algorithm(server, HALF), clock, Until(time=41.0))
    late = {}
    for world in simulation.steps():
        late[world.now] = (sorted(world.server.late), world.server.group.get(1), world.server.model.version)
    assert late[40.0][0] == [1]
    assert late[40.0][1] is not None  # it has work again
    version = late[40.0][2]
    after = [value for time, value in late.items() if time > 40.0]
    assert all(value[2] == version for value in after if value[0])  # nobody has stepped while its update waited
    rest = run(Line([6.0, 12.0]), server, HALF, clock, Until(time=60.0)).world.server
    assert not rest.late


def test_with_equal_speeds_everybody_arrives_together_and_it_is_fedavg_from_the_third_round_on() -> None:
    """The first updates are applied one by one, so the second round starts from four models; the third from one."""
    problem = Quadratic(4, dim=3, dtype=torch.float64)
    clock, local = Times(Constant(1.0, per="step")), SGD(lr=0.05, steps=5)
    server = FedCompass(least=1, most=5, weight=Equal())
    compass = run(problem, server, local, clock, Until(updates=4 + 40))
    steps = [e.version for e in compass.events if e.event == "Arrived"]
    assert steps[:4] == [1, 2, 3, 4]
    assert steps[4:] == [4 + number // 4 for number in range(1, 41)]
    middle = run(problem, server, local, clock, Until(updates=8)).model
    there = run(Moved(problem, middle), FedAvg(), local, clock, Until(versions=9)).model  # type: ignore[arg-type]
    torch.testing.assert_close(compass.model, there, rtol=0, atol=1e-12)


class Moved:
    """A problem that begins elsewhere."""

    def __init__(self, problem: Quadratic, start: torch.Tensor) -> None:
        self.problem, self.start = problem, start

    def initial(self) -> torch.Tensor:
        return self.start

    def __getattr__(self, name: str) -> object:
        return getattr(self.problem, name)


def test_clients_of_unlike_speeds_arrive_in_groups_and_are_less_stale() -> None:
    problem = Quadratic(6, dim=3, noise=0.3, dtype=torch.float64)
    clock = Times(Constant(1.0, per="step"), speeds=Factors((1.0, 1.3, 1.7, 2.3, 3.1, 4.0)))
    result = run(problem, FedCompass(least=4, most=20), SGD(lr=0.02), clock, Until(updates=400))
    arrived = [e for e in result.events if e.event == "Arrived"]
    assert len({e.version for e in arrived[-200:]}) < 120  # several updates a step
    assert max(e.staleness for e in arrived[-200:]) <= 8
    assert {job.steps for job in (f.job for f in result.world.flights.values())} <= set(range(4, 21))


def test_lost_jobs_and_clients_that_leave_stop_no_group() -> None:
    problem = Quadratic(6, dim=3, dtype=torch.float64)
    rough = Times(Exponential(1.0), presence=OnOff(on=20.0, off=5.0), dropout=0.3)
    state = run(problem, FedCompass(least=1, most=4), SGD(lr=0.05), rough, Until(updates=1500)).world.server
    members = [client for group in state.groups.values() for client in group.awaited]
    assert sorted(members) == sorted(state.group)  # every client in at most one group, and the two agree
    assert all(group.awaited or group.arrived for group in state.groups.values())


@pytest.mark.parametrize("settings", [{"least": 5, "most": 4}, {"least": 0}, {"lateness": 0.9}, {"newest": 0.0}])
def test_settings_that_cannot_work_are_refused(settings: dict) -> None:
    with pytest.raises(SettingError, match=next(iter(settings))):
        FedCompass(**settings)
