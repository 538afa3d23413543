"""DeFedAvg: "Achieving Linear Speedup in Asynchronous Federated Learning with Heterogeneous Clients"."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from worlds import Line, Scripted, run

from offbeat.algorithms.defedavg import DeFedAvg, DeFedAvgIID
from offbeat.algorithms.fedbuff import FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.until import Until
from offbeat.core.watcher import ARRIVED
from offbeat.local.sgd import SGD
from offbeat.simulate.loop import Simulation
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times
from offbeat.timing.base import Durations

HALF = SGD(lr=0.5)  # on the line: reached = (received + centre) / 2
THREE = Line([6.0, 12.0, -6.0])
CLOCK = Scripted([[1.0], [2.5], [4.0]])
DRAWS = [{0: 2}, {1: 1, 2: 1}, {0: 1, 1: 1}, {0: 1, 2: 1}]  # of the first four rounds with this seed
SEED = 28
RENEW = pytest.mark.parametrize("renew", ["always", "drawn"])


def by_hand(renew: str, executor: str = "auto") -> Simulation:
    """Four rounds of two draws from three clients."""
    algorithm = Algorithm(DeFedAvg(sampled=2, renew=renew), HALF)
    return prepare(THREE, algorithm, CLOCK, Until(versions=4), seed=SEED, executor=executor)


def messages(simulation: Simulation) -> list[tuple[float, float]]:
    """(time, model after it) of every message."""
    steps = simulation.steps()
    next(steps)  # Started
    return [(world.now, world.server.model.vector.item()) for world in steps]


@RENEW
def test_the_draws_of_the_runs_by_hand(renew: str) -> None:
    """Server line 4: "Sample n clients out of [N] uniformly with replacement"."""
    simulation = by_hand(renew)
    drawn: dict[int, dict[int, int]] = {}
    for world in simulation.steps():
        drawn.setdefault(world.server.model.version, dict(world.server.drawn))
    assert [drawn[version] for version in range(4)] == DRAWS


def test_four_rounds_by_hand_when_results_are_always_renewed() -> None:
    """Algorithm 1 with N = 3, n = 2, K = 1, η = 1 and the first variant of §2.3."""
    expected = [
        (1.0, Fraction(3)),  # client 0, drawn twice, from 0: delta −3; 0 − (−3 − 3)/2
        (2.5, Fraction(3)),  # client 1 from 0: delta −6
        (4.0, Fraction(9, 2)),  # client 2 from 0: delta 3; 3 − (−6 + 3)/2
        (4.0, Fraction(9, 2)),  # client 0 had finished from 3 at time 2: delta −3/2, at once
        (5.0, Fraction(15, 2)),  # client 1 from 3, since 2.5: delta −9/2; 9/2 − (−3/2 − 9/2)/2
        (5.0, Fraction(15, 2)),  # client 0 from 9/2, since 4: delta −3/4
        (8.0, Fraction(45, 8)),  # client 2 from 3, since 4: delta 9/2; 15/2 − (−3/4 + 9/2)/2
    ]
    assert messages(by_hand("always")) == [(time, float(x)) for time, x in expected]


def test_four_rounds_by_hand_when_clients_train_only_after_being_drawn() -> None:
    """§2.3: "let the send buffer be overwritten only when the client is sampled by the server"."""
    expected = [
        (1.0, Fraction(3)),
        (2.5, Fraction(3)),
        (4.0, Fraction(9, 2)),
        (4.0, Fraction(9, 2)),
        (5.0, Fraction(15, 2)),
        (5.0, Fraction(15, 2)),
        (8.0, Fraction(21, 4)),  # client 2 got nothing between 0 and 9/2: delta 21/4; 15/2 − (−3/4 + 21/4)/2
    ]
    assert messages(by_hand("drawn")) == [(time, float(x)) for time, x in expected]


@pytest.mark.parametrize("executor", ["serial", "batched"])
def test_results_that_are_overwritten_are_timed_and_never_computed(executor: str) -> None:
    """A result that is overwritten before the server takes it need not be computed; 7 of the 18 jobs are taken."""
    simulation = by_hand("always", executor)
    world = simulation.run()
    assert world.jobs == 3 + 3 + 1 + 3 + 1 + 3 + 1 + 3  # to all at the start and after a step, else to who answered
    assert world.tally.computed == world.tally.updates == 7


def test_most_results_are_overwritten_when_few_are_drawn_from_many() -> None:
    result = run(Line([0.0] * 50), DeFedAvg(sampled=2), HALF, Times(Exponential(1.0)), Until(versions=200))
    tally = result.world.tally
    assert tally.computed == tally.updates <= 400  # two clients a round, or one drawn twice
    assert result.world.jobs > 20 * tally.computed


def test_a_client_drawn_twice_counts_twice() -> None:
    """§2.1.2: "I_t is a multiset that may contain repeated elements". Five draws from two clients, one round."""
    algorithm = Algorithm(DeFedAvg(sampled=5), SGD(lr=1.0))
    steps = prepare(Line([0.0, 10.0]), algorithm, Scripted([[1.0], [2.0]]), Until(versions=1)).steps()
    drawn = dict(next(steps).server.drawn)
    assert sum(drawn.values()) == 5
    *_, last = steps
    assert last.server.model.vector.item() == pytest.approx(10.0 * drawn.get(1, 0) / 5)


def test_whoever_replaces_a_client_that_left_counts_as_often_as_it_did() -> None:
    """All five draws of a round are made good, so that the mean is over five."""
    clock = Scripted([[4.0], [4.0], [9.0]], flips={0: (1.0,), 1: (2.0,)})
    steps = prepare(Line([0.0] * 3), Algorithm(DeFedAvg(sampled=5), HALF), clock, Until(time=3.0)).steps()
    drawn = [dict(world.server.drawn) for world in steps]
    assert len(drawn[0]) > 1
    assert [sum(round_.values()) for round_ in drawn] == [5] * len(drawn)
    assert drawn[-1] == {2: 5}


def test_who_joins_after_all_have_left_is_drawn_for_what_the_round_still_lacks() -> None:
    """Client 0's result counts as one or more of five draws; client 1's draws are lost with it, and made good later."""
    clock = Scripted([[1.0], [4.0]], flips={0: (1.5,), 1: (2.0, 3.0)})
    steps = prepare(Line([0.0] * 2), Algorithm(DeFedAvg(sampled=5), HALF), clock, Until(time=3.5), seed=1).steps()
    found = [(world.now, world.server.buffer.count, sum(world.server.drawn.values())) for world in steps]
    had = found[-1][1]
    assert 0 < had < 5
    assert found[-1][1:] == (had, 5 - had)
    assert (2.0, had, 0) in found


def test_draws_are_with_replacement_and_uniform() -> None:
    """Line 4: of n = 2 draws from N = 4, a quarter hit the same client twice, and every client is hit alike."""
    simulation = prepare(
        Line([0.0] * 4),
        Algorithm(DeFedAvg(sampled=2), HALF),
        Times(Exponential((9.0, 3.0, 1.0, 0.3))),
        Until(versions=3000),
    )
    drawn: dict[int, dict[int, int]] = {}
    for world in simulation.steps():
        drawn.setdefault(world.server.model.version, dict(world.server.drawn))
    assert sum(len(round_) == 1 for round_ in drawn.values()) / len(drawn) == pytest.approx(1 / 4, abs=0.03)
    hits: Counter[int] = Counter()
    for round_ in drawn.values():
        hits.update(round_)
    assert [hits[c] / (2 * len(drawn)) for c in range(4)] == pytest.approx([1 / 4] * 4, abs=0.02)


def test_a_new_model_goes_to_everybody() -> None:
    """Line 9: "Broadcast w^{t+1} to all the N clients", drawn or not."""
    algorithm = Algorithm(DeFedAvg(sampled=1), HALF)
    steps = prepare(Line([0.0] * 5), algorithm, Scripted([[1.0]]), Until(versions=9)).steps()
    next(steps)
    world = next(steps)  # one client's result and the first step
    newest = {f.job.client for f in world.flights.values() if f.job.version == 1}
    assert newest == set(range(5))


def test_a_newer_broadcast_replaces_the_one_that_a_busy_client_has_not_begun() -> None:
    """§2.1.1: "the receive buffer may be updated with the server's latest global model"."""
    algorithm = Algorithm(DeFedAvg(sampled=1), HALF)
    simulation = prepare(Line([0.0] * 2), algorithm, Scripted([[1.0], [100.0]]), Until(time=9.5), seed=0)
    world = simulation.run()
    slow = [f.job for f in world.flights.values() if f.job.client == 1]
    assert len(slow) <= 2  # what it is at, and the newest model
    assert slow[-1].version == world.server.model.version


def test_the_server_waits_for_an_empty_send_buffer() -> None:
    """Line 5: "Collect the local updates Δ_i from all clients i ∈ I_t"; nothing is there before time 3."""
    result = run(Line([6.0]), DeFedAvg(sampled=1), HALF, Scripted([[3.0]]), Until(versions=1))
    assert [(e.time, e.event) for e in result.events] == [(0.0, "Started"), (3.0, "Arrived")]


def test_the_global_step_size_multiplies_the_mean() -> None:
    """Line 8: "w^{t+1} ← w^t − η Δ^t"."""
    result = run(Line([6.0]), DeFedAvg(sampled=3, lr=0.5), HALF, Scripted([[1.0]]), Until(versions=1))
    assert result.model.item() == 1.5


@pytest.mark.parametrize(
    ("settings", "message"), [({"sampled": 0}, "sampled = 0: must be at least 1"), ({"renew": "x"}, "renew = 'x'")]
)
def test_settings_that_cannot_work_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        DeFedAvg(**settings)


# Algorithm 2: alike data


def test_six_messages_by_hand_of_clients_that_train_while_messages_travel() -> None:
    """Algorithm 2 with N = 2, n = 1, K = 1, η = 1; a model is on its way for 0.2, a result for 0.5."""
    clock = Scripted([[Durations(0.2, 1.0, 0.5)], [Durations(0.2, 2.1, 0.5)]])
    simulation = prepare(Line([8.0, -8.0]), Algorithm(DeFedAvgIID(size=1), HALF), clock, Until(versions=6))
    expected = [
        (1.7, 4.0),  # client 0 from 0: delta −4; its receive buffer is empty until 1.9
        (2.8, 0.0),  # client 1 from 0: delta 4; it has begun with 4 at 2.3
        (3.4, 2.0),  # client 0 from 4, since 1.9: delta −2
        (4.5, 6.0),  # client 0 from 0, since 3.0, when that model came: delta −4
        (4.9, 0.0),  # client 1 from 4: delta 6
        (5.5, 3.0),  # client 0 from 2, since 4.0, while its last result was on its way: delta −3
    ]
    assert [(pytest.approx(time), x) for time, x in messages(simulation)] == expected


def test_nobody_waits_for_messages_when_rounds_are_short() -> None:
    """§1: "the client then initiates new local training using the global model stored in its receive buffer".

    There is a broadcast about every 0.15, on its way for 0.3: the receive buffer is never empty, and is not emptied by
    a model that has only been sent.
    """
    times = [0.8 + 0.02 * client for client in range(20)]
    clock, until = Scripted([[Durations(0.3, time, 0.2)] for time in times]), Until(time=60.0)
    problem = Line([0.0] * 20)
    exact = run(problem, DeFedAvgIID(size=3), HALF, clock, until).world.tally.updates
    waiting = run(problem, FedBuff(size=3), HALF, clock, until).world.tally.updates
    assert waiting == sum(int(60 / (0.5 + time)) for time in times)
    assert exact == pytest.approx(sum(59.5 / time for time in times), abs=30)  # they wait for the first model alone


def test_a_model_on_its_way_replaces_none_that_is_begun_before_it_is_there() -> None:
    """The receive buffer is overwritten when a model has arrived. Client 1 is free at 2.0 and begins with what it has
    by then, the model that was sent at 1.0, though another has been sent at 1.9."""
    clock = Scripted([[Durations(0.0, 1.0, 0.0), Durations(0.0, 0.9, 0.0)], [Durations(0.5, 1.5, 0.0)]])
    simulation = prepare(Line([0.0, 0.0]), Algorithm(DeFedAvgIID(size=1), HALF), clock, Until(time=2.1))
    world = simulation.run()
    begun = [f for f in world.flights.values() if f.job.client == 1 and f.start <= 2.0]
    assert [(f.job.version, f.start) for f in begun] == [(1, 2.0)]


def test_a_round_takes_the_first_results_whoever_sends_them() -> None:
    """Server line 4: "from a set I_t of clients that first complete local training"; the mean over n, times η."""
    clock = Scripted([[1.0], [1.5], [9.0]])
    result = run(Line([4.0, 12.0, 100.0]), DeFedAvgIID(size=2, lr=0.5), HALF, clock, Until(versions=1))
    assert result.world.now == 1.5
    assert result.model.item() == 0.5 * (2.0 + 6.0) / 2


FIVE = Scripted([[1.0], [1.6], [2.1], [3.5], [4.0]])


def rounds_of(server: DeFedAvgIID, clock: Scripted, rounds: int) -> tuple[list[list[int]], float]:
    """(the clients of each round, the time at the end of the last)."""
    result = run(Line([0.0] * 5), server, HALF, clock, Until(versions=rounds))
    clients = [row.client for row in result.events if row.event == ARRIVED]
    return [clients[i : i + server.size] for i in range(0, len(clients), server.size)], result.world.now


def test_with_as_many_results_as_clients_every_client_takes_part_once() -> None:
    """Client line 2: "if the receive buffer is nonempty"; §2.3: "full" participation "by setting n = N"."""
    rounds, end = rounds_of(DeFedAvgIID(size=5), FIVE, 3)
    assert [sorted(clients) for clients in rounds] == [[0, 1, 2, 3, 4]] * 3
    assert end == 12.0  # three times the slowest client's time


def test_a_client_without_a_new_model_may_repeat_the_old_one() -> None:
    rounds, end = rounds_of(DeFedAvgIID(size=5, repeat=True), FIVE, 1)
    assert (rounds, end) == ([[0, 1, 0, 2, 0]], 3.0)


def test_a_client_that_comes_back_within_a_round_is_not_counted_again() -> None:
    clock = Scripted(FIVE.jobs, flips={0: (2.2, 2.4), 4: (3.7, 3.8)})  # client 4 leaves before it is done
    rounds, end = rounds_of(DeFedAvgIID(size=5), clock, 2)
    assert [sorted(clients) for clients in rounds] == [[0, 1, 2, 3, 4]] * 2
    assert end == pytest.approx(3.8 + 4.0 + 4.0)


def test_more_results_than_clients_are_refused_unless_clients_repeat() -> None:
    with pytest.raises(SettingError, match=r"size = 6: a round needs that many clients, and there are 5"):
        run(Line([0.0] * 5), DeFedAvgIID(size=6), HALF, FIVE, Until(versions=1))
    assert run(Line([0.0] * 5), DeFedAvgIID(size=6, repeat=True), HALF, FIVE, Until(versions=1)).world.now == 3.2


def test_a_round_of_nothing_is_refused() -> None:
    with pytest.raises(SettingError, match="size = 0: must be at least 1"):
        DeFedAvgIID(size=0)
