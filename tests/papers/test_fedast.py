"""FedAST: "FedAST: Federated Asynchronous Simultaneous Training", algorithms 2 to 4 and §4."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from command import offbeat
from hypothesis import given, settings, strategies as st
from scipy.stats import chisquare
from worlds import ACCURACY, Line, accuracies, run

from offbeat.algorithms import AREA, FedAST, FedAsyncMixing, FedBuff, OneByOne, Period, Polynomial
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.events import Alarm, Command, Job, Send, Stop, Update
from offbeat.core.metric import Metric
from offbeat.core.random import Stream
from offbeat.core.until import Until
from offbeat.core.vectors import materialise
from offbeat.data.readers import digits
from offbeat.local.sgd import SGD
from offbeat.problems.supervised import Supervised
from offbeat.simulate.loop import Simulation
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, OnOff, Times
from offbeat.watch.history import History


@dataclass
class Desk:
    """The view of handlers that are called by hand: whoever asks for clients gets 0, 1, 2, … in turn."""

    tasks: Sequence[int]
    now: float = 0.0
    clients: int = 1000
    flying: int = 0
    sealed: bool = False
    rng: Stream = field(default_factory=lambda: Stream(0))
    given: int = 0

    def available(self, count: int) -> list[int]:
        self.given += count
        return [c % self.clients for c in range(self.given - count, self.given)]

    def present(self, client: int) -> bool:
        return True

    def barred(self, client: int, version: int, task: int = 0) -> bool:
        return False

    def everyone(self) -> Iterable[int]:
        return range(self.clients)


class Office:
    """A FedAST server whose updates are brought by hand, all of dimension 1 and from 0."""

    def __init__(self, server: FedAST, tasks: int = 2) -> None:
        self.server, self.view = server, Desk(range(tasks))
        self.state = server.begin([torch.zeros(1, dtype=torch.float64) for _ in range(tasks)], self.view)
        self.said: list[Command] = list(server.started(self.state, self.view))

    def bring(self, task: int, delta: float, lr: float = 0.1, steps: int = 1, version: int = 0) -> int:
        """A client's delta; gives K_m, how many requests it is followed by."""
        job = Job(0, 0, task, version, steps, lr, 0)
        name = self.server.reads[0]
        update = Update(job, {name: torch.tensor([delta], dtype=torch.float64)})
        self.said = list(self.server.arrived(self.state, update, self.view))
        return sum(isinstance(command, Send) and command.task == task for command in self.said)

    def model(self, task: int) -> float:
        return float(self.state.tasks[task].inner.model.vector)

    def all(self, name: str) -> list[int]:
        return [getattr(task, name) for task in self.state.tasks]


# Algorithm 2


def test_the_beginning_sends_r_requests_for_each_task() -> None:
    """Line 4: "randomly select R_m clients and send LocalTrain requests"; static and equal at first."""
    office = Office(FedAST(requests=10, ratio=2.5))
    assert [command.task for command in office.said] == [0] * 5 + [1] * 5
    assert office.all("requests") == office.all("flying") == [5, 5]
    assert office.all("size") == [2, 2]


def test_a_full_buffer_is_a_step_along_its_mean_and_every_arrival_sends_one_request() -> None:
    """Lines 7 to 13 with b = 2: x ← x − η_s · η_c τ · mean(Δ), where η_c τ Δ is the delta that clients send."""
    office = Office(FedAST(requests=8, ratio=2.0, lr=0.5))
    assert [office.bring(0, 4.0), office.model(0)] == [1, 0.0]
    assert [office.bring(1, 6.0), office.model(0)] == [1, 0.0]  # the other task's buffer
    assert [office.bring(0, 8.0), office.model(0)] == [1, -0.5 * 6.0]
    assert [office.bring(1, 2.0), office.model(1)] == [1, -0.5 * 4.0]
    assert [task.inner.model.version for task in office.state.tasks] == [1, 1]


def test_new_requests_carry_the_model_after_the_step() -> None:
    """Line 13 comes after line 10: "LocalTrain(m, τ_m, x_m^{(t_m)}, η_m^c)"."""
    office = Office(FedAST(requests=4, size=1, lr=1.0))
    office.bring(1, 3.0)
    (sent,) = (command for command in office.said if isinstance(command, Send))
    assert (sent.task, float(sent.payload["model"]), sent.version) == (1, -3.0, 1)


def test_no_buffer_is_a_step_for_every_update() -> None:
    """FedAST-NoBuffer: b = 1, whatever R."""
    office = Office(FedAST(requests=100, size=1, lr=1.0))
    for at in range(1, 6):
        office.bring(0, 1.0)
        assert office.model(0) == -at
    assert office.all("size") == [1, 1]


def test_static_allocation_stays() -> None:
    office = Office(FedAST(requests=4, period=0.1, window=2))
    followed = [office.bring(at % 2, float(at * at)) for at in range(50)]
    assert followed == [1] * 50
    assert office.all("requests") == [2, 2]
    assert len(office.state.decisions) == 1


# Remark 7: "weighting an update from client i with 1/|A^{(t−γ_i)}| instead of taking average over buffer"


def test_an_update_counts_one_over_the_requests_of_its_round() -> None:
    """One task, R = 5 and b = 2. A⁰ are the five of the beginning and the one after the first arrival: six.

    A¹ has the one that follows the first step and one more: two.
    """
    office = Office(FedAST(requests=5, size=2, lr=0.5, weights="sent"), tasks=1)
    assert [office.bring(0, 4.0), office.model(0)] == [1, 0.0]
    assert [office.bring(0, 8.0), office.model(0)] == [1, -0.5 * (4.0 + 8.0) / 6]
    before = office.model(0)
    office.bring(0, 3.0, version=1)
    office.bring(0, 9.0, version=0)
    assert office.model(0) == pytest.approx(before - 0.5 * (3.0 / 2 + 9.0 / 6))
    assert office.state.tasks[0].rounds.sent == {0: (6, 3), 1: (2, 1), 2: (1, 0)}


def test_where_a_round_is_what_the_last_one_sent_both_weights_are_the_same() -> None:
    """R = b = 3: from the second round on, the three requests of a round are the next one's buffer."""
    offices = [Office(FedAST(requests=3, size=3, weights=w), tasks=1) for w in ("buffer", "sent")]
    moved = []
    for office in offices:
        at = []
        for k in range(15):  # the first round's two own requests come in the second; so on, one late
            office.bring(0, (k + 1) ** 1.5, version=max(0, (k - 1) // 3))
            at.append(office.model(0))
        moved.append([b - a for a, b in pairwise(at[5::3])])
    assert moved[0] == pytest.approx(moved[1])


def test_a_lost_request_is_none_of_its_round_and_no_round_is_kept_longer_than_its_requests() -> None:
    office = Office(FedAST(requests=4, size=2, weights="sent"), tasks=1)
    list(office.server.lost(office.state, Job(0, 0, 0, 0, 1, 0.1, 0), "left", office.view))
    assert office.state.tasks[0].rounds.sent == {0: (4, 0)}  # one less, and the one that follows it
    for version in (0, 0, 0, 0, 0, 1, 1, 2, 2, 3, 3):
        office.bring(0, 1.0, version=version)
    assert min(office.state.tasks[0].rounds.sent) >= 2


def test_what_cannot_be_weighed_by_rounds_is_refused() -> None:
    with pytest.raises(SettingError, match=r'weights = "sent".*leave out aggregate'):
        FedAST(weights="sent", aggregate=AREA())
    with pytest.raises(SettingError, match=r'weights = "sent": \[secure\]'):
        FedAST(size=2, weights="sent").adds()


# Algorithms 3 and 4

DYNAMIC = FedAST(requests=10, ratio=2.5, lr=0.5, allocation="dynamic", window=2, period=0.5)  # every 10 arrivals


def reallocated() -> tuple[Office, list[int]]:
    """After ten arrivals, the last of task 1; and how many requests each was followed by.

    Task 0: last deltas 1 and 3, variance 1/4, η_c τ = 0.1. Task 1: 1 and 9, variance 16/25, η_c τ = 5/8.
    σ̂ ∝ 0.5·√0.1 and 0.8·√0.625, which is 1 to 4: of ten requests 2 and 8.
    """
    office = Office(DYNAMIC)
    followed = [office.bring(0, delta) for delta in (7.0, 7.0, 7.0, 1.0, 3.0)]
    followed += [office.bring(1, delta, 0.125, 5) for delta in (7.0, 7.0, 7.0, 1.0, 9.0)]
    return office, followed


def test_requests_follow_the_square_root_of_the_scaled_variance_by_hand() -> None:
    """Algorithm 4, line 3: "σ̂² = η_c η_s τ σ̃²"; algorithm 3, line 3: R_m ∝ σ̂_m with ΣR as before."""
    office, _ = reallocated()
    assert office.all("requests") == [2, 8]
    decision = office.state.decisions[-1]
    weights = [decision["weights"][m] for m in ("0", "1")]
    assert weights == pytest.approx([math.sqrt(0.25 * 0.1 * 0.5), math.sqrt(0.64 * 0.625 * 0.5)])
    assert (decision["requests"], decision["sizes"]) == ([2, 8], [1, 4])  # b_m: 2/2.5 and 8/2.5, rounded up
    assert decision["why"] == "variance of updates"


@pytest.mark.parametrize(("requests", "size"), [(175, 5), (105, 3), (50, 2), (75, 3), (36, 2), (35, 1), (1, 1)])
def test_a_buffer_has_at_least_one_place_for_every_so_many_requests(requests: int, size: int) -> None:
    """Appendix C.5: "R_m / b_m ≲ 37"; its examples are 175 requests with b = 5 and 105 with 3, a ratio of 35."""
    assert Office(FedAST(requests=2 * requests, ratio=35)).all("size") == [size, size]


def test_requests_follow_the_variance_alone_where_that_is_asked_for() -> None:
    """Equation 2, without "other constants": the same updates, σ̂ = 1/2 and 4/5 whatever the step sizes."""
    office = Office(replace(DYNAMIC, allocation="variance"))
    for task, deltas in enumerate(((7.0, 7.0, 7.0, 1.0, 3.0), (7.0, 7.0, 7.0, 1.0, 9.0))):
        for delta in deltas:
            office.bring(task, delta, 0.125, 5)
    decision = office.state.decisions[-1]
    assert [decision["weights"][m] for m in ("0", "1")] == pytest.approx([0.5, 0.8])
    assert office.all("requests") == [4, 6]


def test_the_number_of_requests_that_follow_an_update_by_hand() -> None:
    """§3: K_m is 0 when R_m shrinks, 2 when it grows, 1 when it is there; one more or less with every arrival."""
    office, followed = reallocated()
    assert followed == [1] * 9 + [2]  # the arrival that triggers it is the first: 5 → 6
    assert [office.bring(1, 1.0) for _ in range(2)] == [2, 2]  # 7, 8
    assert office.bring(1, 1.0) == 1
    assert [office.bring(0, 1.0) for _ in range(3)] == [0, 0, 0]  # 4, 3, 2
    assert office.all("flying") == [2, 8]


def test_reallocation_comes_every_three_quarters_of_m_times_r_arrivals() -> None:
    """Appendix A: "c_period = 0.75 × M × Σ R_m"; here 0.75 · 2 · 8 = 12."""
    office = Office(FedAST(requests=8, allocation="dynamic", window=2))
    after = []
    for arrival in range(1, 37):
        office.bring(arrival % 2, 1.0 + arrival % 3)
        after.append(len(office.state.decisions))
    assert [at + 1 for at in range(36) if at and after[at] > after[at - 1]] == [12, 24, 36]


def test_a_task_that_is_over_does_not_count_in_the_period_of_reallocations() -> None:
    """M is the number of tasks in training: 0.75 · 2 · 8 = 12 arrivals, though there were three."""
    office = Office(FedAST(requests=8, allocation="dynamic", window=2), tasks=3)
    list(office.server.closed(office.state, 2, office.view))
    before = len(office.state.decisions)
    after = []
    for arrival in range(1, 26):
        office.bring(arrival % 2, 1.0 + arrival % 3)
        after.append(len(office.state.decisions) - before)
    assert [after[11 - 1], after[12 - 1], after[24 - 1]] == [0, 1, 2]


def test_nothing_is_reallocated_before_every_task_has_a_full_window() -> None:
    office = Office(FedAST(requests=4, allocation="dynamic", window=8, period=0.125))  # every arrival
    for _ in range(30):
        office.bring(0, 1.0)
    for _ in range(7):
        office.bring(1, 1.0)
    assert len(office.state.decisions) == 1
    office.bring(1, 2.0)
    assert len(office.state.decisions) == 2


def test_only_the_last_updates_count() -> None:
    office = Office(DYNAMIC)
    for delta in (100.0, -50.0, 1.0, 3.0):
        office.bring(0, delta)
    assert [float(u) for u in office.state.tasks[0].recent] == [1.0, 3.0]


def test_a_new_buffer_size_begins_with_the_next_round_and_no_update_is_lost() -> None:
    """Algorithm 2, line 9 compares with b^{(t_m)}, line 8 sets b^{(t_m+1)}: 3 of 4 are here when b becomes 1."""
    office = Office(FedAST(requests=8, ratio=1.0, lr=1.0, allocation="dynamic", window=2, period=0.3125))  # every 5
    for task, delta in ((0, 5.0), (0, 5.001), (0, 2.0), (1, 1.0), (1, 9.0)):
        office.bring(task, delta)
    first = office.state.tasks[0]
    assert (first.size, first.gathered, first.inner.buffer.count) == (4, 3, 3)
    assert first.coming == first.requests < 4
    office.bring(0, 3.999)
    assert office.model(0) == pytest.approx(-(5.0 + 5.001 + 2.0 + 3.999) / 4)
    assert first.size == first.coming


@dataclass(frozen=True)
class Slopes:
    """f_i(w) = g_i · w: a client's delta is lr · steps · g_i, whatever the model; accuracy grows as w falls."""

    slopes: Sequence[float]
    name: str = "slopes"
    dim: int = 1
    stacks: bool = True
    metrics: Sequence[Metric] = (ACCURACY,)

    @property
    def clients(self) -> int:
        return len(self.slopes)

    def initial(self) -> torch.Tensor:
        return torch.zeros(1, dtype=torch.float64)

    def oracle(self, clients: Sequence[int], keys: Sequence[int], steps: int, batch: int | None, shuffle: bool) -> Any:
        return _Slope(torch.tensor([[self.slopes[c]] for c in clients], dtype=torch.float64))

    def measure(self, models: torch.Tensor) -> list[Mapping[str, float]]:
        return [{"loss": 0.0, "accuracy": 1.0 - math.exp(-abs(float(w)))} for w in models]


@dataclass
class _Slope:
    slopes: torch.Tensor

    def gradient(self, w: torch.Tensor, step: int, sample: int = 0) -> torch.Tensor:
        return self.slopes


def shares(*spreads: float, requests: int = 80) -> list[float]:
    """Mean R_m over the later decisions of a run whose clients' gradients are 1 ± spread."""
    problems = [Slopes([1.0 + (spread if c % 2 else -spread) for c in range(200)], f"s{spread}") for spread in spreads]
    server = FedAST(requests=requests, size=1, allocation="dynamic", window=40, period=0.25)
    result = run(problems, server, SGD(lr=0.1), Times(Exponential(1.0)), Until(updates=6000))
    later = [d["requests"] for d in result.world.server.decisions][5:]
    assert len(later) > 40
    return [sum(parts[m] for parts in later) / len(later) for m in range(len(spreads))]


def test_two_identical_tasks_get_equal_shares() -> None:
    first, second = shares(0.2, 0.2)
    assert first == pytest.approx(40, abs=1)
    assert second == pytest.approx(40, abs=1)


def test_ten_times_the_update_variance_is_about_the_square_root_of_ten_times_the_requests() -> None:
    small, large = shares(0.1, 0.1 * math.sqrt(10))
    assert large / small == pytest.approx(math.sqrt(10), rel=0.05)


def test_the_local_steps_of_a_task_count_like_its_variance() -> None:
    """(7): R_m ∝ σ_m · √(η_s η_c τ): four times the local steps are twice the requests."""
    problems = [Slopes([0.8, 1.2] * 50, name) for name in ("short", "long")]
    halves = (SGD(lr=0.1, steps=2), SGD(lr=0.1, steps=8))
    server = FedAST(requests=60, size=1, allocation="dynamic", window=40)
    made = prepare(problems, Algorithm(server, halves), Times(Exponential(1.0)), Until(updates=1000))
    short, long = made.run().server.decisions[-1]["requests"]
    assert long / short == pytest.approx(2.0, rel=0.1)


def test_a_task_that_is_alone_is_not_reallocated() -> None:
    office = Office(FedAST(requests=4, allocation="dynamic", window=2, period=0.25), tasks=1)
    for at in range(20):
        office.bring(0, float(at))
    assert len(office.state.decisions) == 1


# Whole runs


def follow(simulation: Simulation, history: History, slopes: Sequence[Sequence[float]], lr: float) -> None:
    """Go through a run and check every event against algorithm 2, with each task's model recomputed beside it."""
    server = simulation.server
    held: list[list[float]] = [[] for _ in slopes]
    models = [0.0] * len(slopes)
    seen, before = 0, [(0, 1)] * len(slopes)
    for world in simulation.steps():
        if world.stopped:
            return
        tasks, rows = world.server.tasks, history.events[seen:]
        seen = len(history.events)
        active = [task for task in tasks if task.active]
        assert sum(task.requests for task in active) == (server.requests if active else 0)
        assert all(task.requests >= 1 for task in active)
        for m, task in enumerate(tasks):
            flights = sum(flight.job.task == m for flight in world.flights.values())
            assert (task.flying, flights) == (flights, flights if task.active else 0)
            assert task.gathered == task.inner.buffer.count < task.size
        if [row.event for row in rows] == ["Arrived"]:
            m = rows[0].task
            had, size = before[m]
            held[m].append(lr * slopes[m][rows[0].client])
            if len(held[m]) == size:  # the round's own b_m, whatever was decided since it began
                models[m] -= server.lr * sum(held[m]) / size
                held[m] = []
            assert tasks[m].gathered == len(held[m])
            assert float(tasks[m].inner.model.vector) == pytest.approx(models[m])
            assert tasks[m].flying - had == max(-1, min(1, tasks[m].requests - had))  # K − 1, towards R_m
        before = [(task.flying, task.size) for task in tasks]


slope_lists = st.lists(st.floats(-1.0, 3.0), min_size=7, max_size=7)


@settings(max_examples=40, deadline=None)
@given(
    slopes=st.lists(slope_lists, min_size=2, max_size=4),
    spare=st.integers(0, 30),
    ratio=st.floats(0.5, 8.0),
    window=st.integers(2, 4),
    period=st.floats(0.05, 0.5),
    targets=st.lists(st.sampled_from([None, 0.3, 0.9]), min_size=4, max_size=4),
    seed=st.integers(0, 1000),
)
def test_every_event_keeps_the_rules(
    slopes: list[list[float]], spare: int, ratio: float, window: int, period: float, targets: Any, seed: int
) -> None:
    """ΣR constant, R_m ≥ 1, requests in flight move by one towards R_m, buffers below b_m, no update lost."""
    tasks = len(slopes)
    problems = [Slopes(each, f"task{m}") for m, each in enumerate(slopes)]
    server = FedAST(
        requests=tasks + spare,
        ratio=ratio,
        lr=0.5,
        allocation="dynamic",
        window=window,
        period=period,
        targets=accuracies(*targets[:tasks]),
    )
    history = History(keep_events=True)
    made = prepare(
        problems,
        Algorithm(server, SGD(lr=0.1)),
        Times(Exponential(1.0)),
        Until(updates=300),
        seed=seed,
        evaluate=2.0,
        watchers=[history],
        terms=[(0.0, math.inf), (1.5, 20.0), (0.0, math.inf), (3.0, math.inf)][:tasks],
    )
    follow(made, history, slopes, 0.1)


def test_requests_in_flight_arrive_at_what_was_decided() -> None:
    """After a decision every task is there once as many of its updates have come as it was off by."""
    problems = [Slopes([1.0, 1.2] * 50, "calm"), Slopes([-2.0, 4.0] * 50, "wild")]
    server = FedAST(requests=60, size=2, allocation="dynamic", period=2.0)  # one in 240 arrivals
    made = prepare(problems, Algorithm(server, SGD(lr=0.1)), Times(Exponential(1.0)), Until(updates=239 + 240))
    tasks = made.run().server.tasks
    assert [task.requests for task in tasks] == [task.flying for task in tasks]
    assert tasks[0].requests < 15


def test_it_goes_on_when_jobs_get_lost_and_clients_come_and_go() -> None:
    rough = Times(Exponential(1.0), presence=OnOff(on=10.0, off=5.0), dropout=0.2)
    result = run([Slopes([1.0] * 20), Slopes([2.0] * 20)], FedAST(requests=10), SGD(lr=0.1), rough, Until(updates=3000))
    tasks = result.world.server.tasks
    assert result.world.tally.lost > 500
    assert [task.flying for task in tasks] == [5, 5]


# A finished task


def test_a_task_that_reaches_its_target_frees_its_requests_at_once() -> None:
    """§5: "its requests go to the others"; what is lacking is sent in the same moment."""
    office = Office(FedAST(requests=9, targets=accuracies(0.5, None, None)), tasks=3)
    said = list(office.server.measured(office.state, 0, {"accuracy": 0.51}, office.view))
    assert said[0] == Stop(0, "target")
    assert sorted(command.task for command in said[1:]) == [1, 1, 2]
    assert office.all("requests") == [0, 5, 4]
    assert office.all("flying") == [0, 5, 4]
    assert office.state.decisions[-1]["why"] == "task 0 is done"


def test_a_task_below_its_target_goes_on() -> None:
    office = Office(FedAST(requests=9, targets=accuracies(0.5, None)))
    assert list(office.server.measured(office.state, 0, {"accuracy": 0.49}, office.view)) == []
    assert list(office.server.measured(office.state, 1, {"accuracy": 1.0}, office.view)) == []


def test_the_requests_of_a_finished_task_go_where_requests_are() -> None:
    """In proportion to what the others have, after a reallocation has set them apart."""
    office = Office(FedAST(requests=22, targets=accuracies(0.5, None, None)), tasks=3)
    for m, requests in enumerate((10, 4, 8)):
        office.state.tasks[m].requests = office.state.tasks[m].flying = requests
    list(office.server.measured(office.state, 0, {"accuracy": 1.0}, office.view))
    assert office.all("requests") == [0, 7, 15]


def test_the_last_task_ends_the_run() -> None:
    problems = [Slopes([1.0] * 5, "a"), Slopes([3.0] * 5, "b")]
    server = FedAST(requests=6, ratio=3, targets=accuracies(0.9, 0.9))
    result = run(problems, server, SGD(lr=0.1), Times(Exponential(1.0)), Until(time=1e4), evaluate=1.0)
    assert result.world.stopped == "target"
    assert result.world.ends[1] < result.world.ends[0] == result.world.now < 1e4


# §4: how long a round takes


@pytest.mark.parametrize(("requests", "size"), [((12, 12), 3), ((20, 20), 8)])
def test_a_round_takes_b_over_r_lambda(requests: tuple[int, int], size: int) -> None:
    """ "The expected time to fill the buffer corresponding to task m is b_m/(R_m λ)", without queues."""
    rate, clients = 2.0, 20_000
    problems = [Slopes([1.0] * clients, name) for name in ("a", "b")]
    server = FedAST(requests=sum(requests), size=size)
    result = run(problems, server, SGD(lr=0.1), Times(Exponential(rate)), Until(updates=30_000))
    for m, task in enumerate(result.world.server.tasks):
        mean = result.world.now / task.inner.model.version
        assert mean == pytest.approx(size / (requests[m] * rate), rel=0.02)


# Who is asked


def test_requests_go_to_all_clients_alike_busy_or_not() -> None:
    """§3: "clients selected uniformly at random"; a slow client has as many requests as a fast one."""
    speeds = Times(Exponential((0.2, *[5.0] * 9)))
    problems = [Slopes([1.0] * 10, "a"), Slopes([1.0] * 10, "b")]
    made = prepare(problems, Algorithm(FedAST(requests=8), SGD(lr=0.1)), speeds, Until(updates=4000))
    world = made.run()
    assert chisquare(world.numbers).pvalue > 0.01
    assert len(world.flying.get(0, ())) >= 4  # most of what is on its way waits for the slow one


def test_a_client_works_on_one_request_at_a_time_in_the_order_of_sending() -> None:
    """ "Queued and processed in a first-come-first-served manner", one model in its memory."""
    problems = [Slopes([1.0] * 3, "a"), Slopes([1.0] * 3, "b")]
    result = run(problems, FedAST(requests=12), SGD(lr=0.1), Times(Exponential(1.0)), Until(updates=600))
    for client in range(3):
        jobs = [row for row in result.events if row.event == "Arrived" and row.client == client]
        assert [row.job for row in jobs] == sorted(row.job for row in jobs)
        assert all(later.started >= earlier.finished for earlier, later in pairwise(jobs))
        assert {row.task for row in jobs} == {0, 1}
        assert any(later.started == earlier.finished > later.sent for earlier, later in pairwise(jobs))


# Any server for each task


def test_area_for_each_task_keeps_its_invariant() -> None:
    """mean(y_i) = x + u after every event, for every task, though clients queue several jobs of one task."""
    lines = [Line([6.0, 12.0, -6.0, 1.0], name="a"), Line([1.0, 2.0, 3.0, 9.0], start=5.0, name="b")]
    server = FedAST(requests=10, allocation="dynamic", window=2, period=0.2, aggregate=AREA(size=3))
    times = Times(Exponential((0.3, 1.0, 2.0, 4.0)), presence=OnOff(on=20.0, off=3.0), dropout=0.1)
    made = prepare(lines, Algorithm(server, SGD(lr=0.3)), times, Until(updates=600))
    for world in made.steps():
        for m, task in enumerate(world.server.tasks):
            y = [world.memories[i, m][1]["y"] if (i, m) in world.memories else lines[m].initial() for i in range(4)]
            x = materialise(task.inner.model.vector + task.inner.u)
            torch.testing.assert_close(torch.stack(y).mean(dim=0), x, rtol=0, atol=1e-9)


def test_area_for_each_task_ends_at_the_optimum_of_each() -> None:
    lines = [Line([6.0, 12.0, -6.0, 1.0], name="a"), Line([1.0, 2.0, 3.0, 9.0], start=5.0, name="b")]
    times = Times(Exponential((0.3, 1.0, 2.0, 4.0)))
    server = FedAST(requests=10, aggregate=AREA(size=3))
    tasks = run(lines, server, SGD(lr=0.05), times, Until(updates=6000)).world.server.tasks
    assert float(tasks[0].inner.model.vector) == pytest.approx(3.25, abs=0.1)
    assert float(tasks[1].inner.model.vector) == pytest.approx(3.75, abs=0.1)


def test_area_gets_the_model_of_before_its_own_aggregation() -> None:
    """What a task's server would have sent is what is sent, only to whom is FedAST's."""
    office = Office(FedAST(requests=4, aggregate=AREA(size=1)))
    office.bring(0, 1000.0)
    (sent,) = (command for command in office.said if isinstance(command, Send))
    assert (float(sent.payload["model"]), sent.version, office.model(0)) == (0.0, 0, 1.0)


def test_fedbuff_for_each_task_weighs_stale_updates() -> None:
    office = Office(FedAST(requests=4, ratio=1.0, aggregate=FedBuff(weight=Polynomial(1.0))))
    office.bring(0, 1.0)
    office.bring(0, 1.0)
    assert office.model(0) == -1.0
    office.bring(1, 1.0)
    office.bring(0, 3.0, version=0)  # one version behind: half
    office.bring(0, 4.0, version=1)
    assert office.model(0) == -1.0 - (3.0 / 2 + 4.0) / 2
    assert office.model(1) == 0.0


def test_a_server_that_steps_by_the_clock_does_so_for_each_task() -> None:
    """Also for a task that opens later: its alarms begin with it."""
    problems = [Slopes([1.0] * 5, "a"), Slopes([1.0] * 5, "b")]
    server = FedAST(requests=6, aggregate=FedBuff(size=Period(1.0)))
    made = prepare(
        problems,
        Algorithm(server, SGD(lr=0.1)),
        Times(Exponential(5.0)),
        Until(time=30.5),
        terms=[(0.0, math.inf), (10.25, math.inf)],
    )
    tasks = made.run().server.tasks
    assert [task.inner.model.version for task in tasks] == [30, 20]


def test_the_alarms_of_two_tasks_have_names_of_their_own() -> None:
    office = Office(FedAST(requests=4, aggregate=AREA(size=Period(2.0))))
    assert [c for c in office.said if isinstance(c, Alarm)] == [Alarm(2.0, "0:aggregate"), Alarm(2.0, "1:aggregate")]


def test_the_variance_of_whole_models_is_that_of_how_far_they_went() -> None:
    """A server that reads models: those are far from zero and alike, what clients did to them is not."""
    office = Office(FedAST(requests=4, allocation="dynamic", aggregate=FedAsyncMixing(mixing=1.0)))
    for reached in (1.0, 4.0, 2.0):
        office.bring(0, reached)
    assert [float(u) for u in office.state.tasks[0].recent] == [-1.0, -3.0, 2.0]


def test_how_many_work_is_said_by_requests_and_not_by_the_tasks_servers() -> None:
    with pytest.raises(SettingError, match="requests say how many clients work"):
        FedAST(aggregate=FedBuff(concurrency=4))


# One after the other


def test_one_by_one_trains_the_tasks_in_their_order_each_with_all_requests() -> None:
    problems = [Slopes([1.0] * 5, name) for name in ("a", "b", "c")]
    server = OneByOne(requests=6, size=2, targets=accuracies(0.9, 0.9, 0.9))
    result = run(problems, server, SGD(lr=0.1), Times(Exponential(1.0)), Until(time=1e4), evaluate=1.0)
    ends = [result.world.ends[m] for m in range(3)]
    assert ends == sorted(ends)
    for m, (since, until) in enumerate(zip([0.0, *ends], ends, strict=False)):
        sent = {row.sent for row in result.events if row.event == "Arrived" and row.task == m}
        assert min(sent) == since
        assert max(sent) <= until
    assert [d["requests"] for d in result.world.server.decisions] == [[6, 0, 0], [0, 6, 0], [0, 0, 6]]


def test_one_by_one_goes_back_to_an_earlier_task_that_opens_later() -> None:
    problems = [Slopes([1.0] * 5, name) for name in ("late", "early")]
    server = OneByOne(requests=6, size=2, targets=accuracies(0.9, 0.99))
    made = prepare(
        problems,
        Algorithm(server, SGD(lr=0.1)),
        Times(Exponential(1.0)),
        Until(time=1e4),
        evaluate=1.0,
        terms=[(3.5, math.inf), (0.0, math.inf)],
    )
    world = made.run()
    assert [d["requests"] for d in world.server.decisions] == [[0, 6], [6, 0], [0, 6]]
    assert world.ends[0] < world.ends[1]


# What is refused


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"requests": 0}, "requests = 0: must be at least 1"),
        ({"ratio": 0.0}, "ratio = 0.0"),
        ({"ratio": -1.0}, "ratio = -1.0"),
        ({"size": 0}, "size = 0: must be at least 1"),
        ({"window": 1}, "window = 1: must be at least 2"),
        ({"allocation": "clever"}, "allocation = 'clever': must be one of 'static', 'dynamic', 'variance'"),
        ({"period": 0.0}, "period = 0.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingError, match=why):
        FedAST(**settings)


def test_fewer_requests_than_tasks_or_other_than_one_target_each_are_refused() -> None:
    with pytest.raises(SettingError, match="requests = 2 for 3 tasks"):
        Office(FedAST(requests=2), tasks=3)
    with pytest.raises(SettingError, match="1 targets for 3 tasks"):
        Office(FedAST(targets=accuracies(0.5)), tasks=3)


# Experiments


@pytest.mark.slow
def test_on_digits_it_is_done_before_rounds_that_wait_for_all_and_before_one_task_after_the_other(
    tmp_path: Path,
) -> None:
    """docs/several-models.md, experiments/digits.toml; against first-k the gain is of the size of its spread."""
    file = Path(__file__).parents[2] / "experiments" / "digits.toml"
    runs = offbeat("run", file, "--out", tmp_path / "out", "--json").runs
    times = {name: [r["time"] for r in runs if r["algorithm"] == name] for name in {r["algorithm"] for r in runs}}
    mean = {name: sum(found) / len(found) for name, found in times.items()}
    assert all(task["stopped"] == "target" for r in runs for task in r["tasks"].values())
    assert max(times["fedast"]) < min(times["sync-st-all"])
    assert max(times["fedast"]) < min(times["one-by-one"])
    assert mean["fedast"] < 1.05 * mean["sync-st"]
    assert mean["fedast-dynamic"] < 0.7 * mean["sync-st-all"]


# Settings of each task (algorithm 2: η_s, b_m, R_m⁰ and T_m belong to a task)


def test_requests_buffers_and_server_steps_can_be_each_task_s_own() -> None:
    """Line 4 sends R_m⁰ requests, line 9 waits for b_m updates, line 10 steps by η_s of task m; ΣR is their sum."""
    office = Office(FedAST(requests=(6, 2), size=(2, 1), lr=(0.5, 2.0)))
    assert office.all("requests") == office.all("flying") == [6, 2]
    assert office.all("size") == [2, 1]
    office.bring(1, 3.0)
    office.bring(0, 4.0)
    assert (office.model(0), office.model(1)) == (0.0, -2.0 * 3.0)
    office.bring(0, 8.0)
    assert office.model(0) == -0.5 * 6.0


def test_the_server_step_of_a_task_scales_its_own_variance() -> None:
    """Algorithm 4, line 3, with η_s of each task: 16 times the step size is 4 times the weight."""
    office = Office(FedAST(requests=10, size=1, lr=(0.1, 1.6), allocation="dynamic", window=2, period=0.2))
    for task, delta in ((0, 1.0), (0, 3.0), (1, 1.0), (1, 3.0)):
        office.bring(task, delta)
    assert office.all("requests") == [2, 8]


def test_a_task_stops_after_its_own_number_of_server_steps() -> None:
    """Line 5: "while t_m < T_m"; its requests go to the other task."""
    office = Office(FedAST(requests=4, size=1, versions=(2, 5)))
    office.bring(0, 1.0)
    assert not any(isinstance(command, Stop) for command in office.said)
    office.bring(0, 1.0)
    assert [command for command in office.said if isinstance(command, Stop)] == [Stop(0, "versions")]
    assert (office.all("requests"), office.all("flying")) == ([0, 4], [0, 4])


def test_a_task_that_aggregates_by_the_clock_stops_at_its_horizon_too() -> None:
    server = FedAST(requests=4, versions=3, aggregate=FedBuff(size=Period(1.0)))
    result = run([Line([1.0] * 9)] * 2, server, SGD(lr=0.1), Times(Exponential(3.0)), Until(time=50.0))
    assert [task.inner.model.version for task in result.world.server.tasks] == [3, 3]


def test_settings_by_task_are_named_like_the_tasks() -> None:
    server = FedAST(requests={"b": 6, "a": 2}, lr={"a": 0.5, "b": 2.0}).for_tasks(["a", "b"])
    assert (server.requests, server.lr) == ((2, 6), (0.5, 2.0))
    with pytest.raises(SettingError, match=r"unknown task in lr: 'c'"):
        FedAST(lr={"a": 0.5, "b": 0.5, "c": 1.0}).for_tasks(["a", "b"])
    with pytest.raises(SettingError, match=r"size has nothing for the task 'b'"):
        FedAST(size={"a": 1}).for_tasks(["a", "b"])
    with pytest.raises(SettingError, match=r"lr has 3 values for 2 tasks"):
        Office(FedAST(lr=(1.0, 1.0, 1.0)))
    with pytest.raises(SettingError, match=r"requests\.a = 0: must be at least 1"):
        FedAST(requests={"a": 0, "b": 3})


# The allocation of the authors' demonstration (github.com/askinb/FedAST)

DEMONSTRATION = FedAST(requests=16, ratio=4.0, lr=0.5, allocation="demonstration", window=3, period=0.5)  # every 16


def demonstrated(server: FedAST, first: Sequence[float], second: Sequence[float]) -> Office:
    """Eight updates of each task; η_c τ is 0.1 for the first and 0.125 · 5 for the second."""
    office = Office(server)
    for delta in first:
        office.bring(0, delta)
    for delta in second:
        office.bring(1, delta, 0.125, 5)
    return office


def test_the_demonstration_s_allocation_by_hand() -> None:
    """mean over the period of η_s η_c · variance / (η_c τ)², halved; of a full window the oldest is dropped first.

    Task 0: windows (1,1), (1,1), (1,1), (1,3), (3,1), (1,3): on average 1/8, times 0.05 / 0.01 / 2.
    Task 1: (1,9) in either order, 16/25, times 0.0625 / 0.625² / 2.
    """
    office = demonstrated(DEMONSTRATION, (1, 1, 1, 1, 1, 3, 1, 3), (1, 9) * 4)
    decision = office.state.decisions[-1]
    assert [decision["weights"][m] for m in ("0", "1")] == pytest.approx([0.3125, 0.0512])
    assert (decision["requests"], decision["sizes"]) == ([12, 4], [3, 1])


def test_the_demonstration_begins_its_means_anew_after_every_allocation() -> None:
    office = demonstrated(DEMONSTRATION, (1, 1, 1, 1, 1, 3, 1, 3), (1, 9) * 4)
    for _ in range(8):
        office.bring(0, 2.0)
        office.bring(1, 1.0, 0.125, 5)
    found = [office.state.decisions[-1]["weights"][m] for m in ("0", "1")]
    assert found == pytest.approx([2.5 * 0.04 / 8, 0.08 * 0.64 / 8])  # one window of eight has any spread: (3,2), (9,1)
    assert len(office.state.decisions) == 3


def test_the_demonstration_allocates_nothing_before_every_task_has_made_more_steps_than_a_window() -> None:
    office = demonstrated(DEMONSTRATION, (1, 3) * 6, (1, 9, 1, 9))  # b = 2: six steps, but two of the other
    assert len(office.state.decisions) == 1
    for delta in (1, 9, 1, 9):
        office.bring(1, delta, 0.125, 5)
    assert len(office.state.decisions) == 2  # due since the sixteenth arrival


def test_buffers_are_rounded_up_in_the_demonstration() -> None:
    assert Office(replace(DEMONSTRATION, requests=18)).all("size") == [3, 3]  # ⌈9/4⌉; plain rounding gives 2
    with pytest.raises(SettingError, match=r"ratio = 4.5: .* a whole number"):
        replace(DEMONSTRATION, ratio=4.5)


def test_the_demonstration_leaves_out_the_biases_of_the_problem() -> None:
    problem = Supervised.split(digits(), 4, model="mlp", options={"hidden": [3]})  # 64·3 + 3 + 3·10 + 10 parameters
    server = Algorithm(DEMONSTRATION, SGD(lr=0.1)).server_for([problem, problem])
    assert server.biases == (((192, 195), (225, 235)),) * 2
