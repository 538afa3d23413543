"""Measures of how clients worked, on worlds that follow a script: every number is worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from worlds import Line, Scenario, Scripted, send

from offbeat.algorithms import SCAFFOLD, DeFedAvg, FedAsync, FedAvg, FedBuff, QuAFL
from offbeat.core.algorithm import Algorithm
from offbeat.core.local import Local
from offbeat.core.server import Server
from offbeat.core.until import Until
from offbeat.local import SGD, Moreau, Scaffold
from offbeat.problems.quadratic import Quadratic
from offbeat.problems.supervised import Supervised
from offbeat.report.run import RecordedRun
from offbeat.simulate.run import prepare
from offbeat.timing import Delays, Times
from offbeat.timing.base import Durations, Timing
from offbeat.watch.measures import WINDOWS, Bytes, Measures, Messages, measure
from offbeat.watch.record import Recorder

HALF = SGD(lr=0.5)


def measured(folder: Path, problem: Any, server: Server, timing: Timing, until: Until, local: Local = HALF) -> Measures:
    """The measures of a recorded run."""
    recorder = Recorder(folder)
    simulation = prepare(problem, Algorithm(server, local), timing, until, watchers=[recorder])
    simulation.run()
    recorder.flush()
    return measure(folder, simulation)


def test_clients_that_wait_for_a_round_are_idle(tmp_path: Path) -> None:
    """Rounds of 4: client 0 works 1 of them, client 1 works 2 and client 2 all 4, so 7 of 12."""
    clock = Scripted([[1.0], [2.0], [4.0]])
    found = measured(tmp_path, Line([0.0] * 3), FedAvg(), clock, Until(time=20.0))
    assert found.concurrency.mean == pytest.approx(7 / 12)
    assert found.computing == pytest.approx(7 / 12)
    assert found.idle == pytest.approx(5 / 12)
    assert found.waiting == pytest.approx(4.0)
    # 20 windows of one unit of time each: all three work, then two, then one, and so on
    assert found.concurrency.windows == pytest.approx([1, 2 / 3, 1 / 3, 1 / 3] * 5)


def test_the_values_of_single_clients_are_written_down(tmp_path: Path) -> None:
    clock = Scripted([[1.0], [2.0], [4.0]])
    measured(tmp_path, Line([0.0] * 3), FedAvg(), clock, Until(time=20.0))
    table = pq.read_table(tmp_path / "clients.parquet").to_pydict()
    times = {"busy": [5.0, 10.0, 20.0], "idle": [15.0, 10.0, 0.0]}
    assert table == {"client": [0, 1, 2], "name": [None] * 3, "updates": [5, 5, 5], **times}


def test_clients_have_the_names_that_the_problem_knows(tmp_path: Path) -> None:
    problem = Supervised.split("grunfeld", 3, model="linear")
    measured(tmp_path, problem, FedAvg(), Scripted([[1.0], [2.0], [4.0]]), Until(time=20.0), SGD(lr=0.1))
    assert pq.read_table(tmp_path / "clients.parquet")["name"].to_pylist() == problem.client_names
    run = RecordedRun(tmp_path, "fedavg", 0, None)
    assert run.sites == tuple(problem.client_names) == ("General Motors", "US Steel", "General Electric")


def test_client_driven_clients_are_always_at_work(tmp_path: Path) -> None:
    """Also when it ends in the middle of their jobs, at 9.5."""
    found = measured(tmp_path, Line([0.0] * 3), FedAsync(), Scripted([[1.0], [2.0], [4.0]]), Until(time=9.5))
    assert found.concurrency.mean == pytest.approx(1.0)
    assert found.concurrency.windows == pytest.approx([1.0] * WINDOWS)
    assert found.idle == pytest.approx(0.0)


def test_on_its_way_is_at_work_and_not_computing(tmp_path: Path) -> None:
    """Download 1, compute 2, upload 5: at work all the time, computing for a quarter of it."""
    clock = Scripted([[Durations(1.0, 2.0, 5.0)]])
    found = measured(tmp_path, Line([0.0] * 2), FedAsync(), clock, Until(time=80.0))
    assert (found.concurrency.mean, found.computing) == pytest.approx((1.0, 1 / 4))


def test_a_client_with_a_queue_is_one_client_at_work(tmp_path: Path) -> None:
    """Three jobs of 2 sent at once to one of two clients: it has work until 6 of 12."""
    server = Scenario({0: [send(0), send(0), send(0)]})
    found = measured(tmp_path, Line([0.0] * 2), server, Scripted([[2.0]]), Until(time=12.0))
    assert (found.concurrency.mean, found.computing) == pytest.approx((1 / 4, 1 / 4))
    assert found.concurrency.windows == pytest.approx([1 / 2] * 10 + [0.0] * 10)


def test_work_that_is_lost_was_work(tmp_path: Path) -> None:
    """Every second job is lost; the client of it worked all the same."""
    clock = Scripted([[1.0, Durations(0.0, 3.0, 0.0, lost=True)]])
    found = measured(tmp_path, Line([0.0]), FedAsync(), clock, Until(time=40.0))
    assert found.computing == pytest.approx(1.0)
    assert found.participation.silent == 0
    assert found.bytes == Bytes(down=4 * 21, up=4 * 10)  # 20 jobs were done and the next was sent; 10 arrived


def test_a_client_that_leaves_stops_working(tmp_path: Path) -> None:
    """Client 0 leaves at 4 in the middle of a job of 8, comes back at 14 and works to the end at 20."""
    clock = Scripted([[8.0]], flips={0: [4.0, 14.0]})
    found = measured(tmp_path, Line([0.0]), FedAsync(), clock, Until(time=20.0))
    assert found.concurrency.mean == pytest.approx((4 + 6) / 20)
    assert found.computing == pytest.approx((4 + 6) / 20)


def test_participation_is_the_distance_from_equal_shares(tmp_path: Path) -> None:
    """Shares 6/8, 2/8 and 0 of three: ½(|3/4 − 1/3| + |1/4 − 1/3| + 1/3) = 5/12."""
    clock = Scripted([[1.0], [3.0], [100.0]])
    found = measured(tmp_path, Line([0.0] * 3), FedAsync(), clock, Until(time=6.5))
    assert (found.participation.distance, found.participation.silent) == (pytest.approx(5 / 12), 1)


def test_equal_participation_has_distance_0(tmp_path: Path) -> None:
    found = measured(tmp_path, Line([0.0] * 4), FedAvg(), Scripted([[1.0]]), Until(versions=3))
    assert (found.participation.distance, found.participation.silent) == (pytest.approx(0.0), 0)


def test_staleness_quantiles_and_windows(tmp_path: Path) -> None:
    """Client 0 reports at 1.25, 2.25, …, 19.25 and client 1 at 10.5, 10 steps late; client 0's next is 1 step late.

    So of 20 numbers 18 are 0, one is 1 and one is 10, with quantiles at places 9.5, 17.1 and 18.81 of 0 to 19.
    """
    clock = Scripted([[1.25, *[1.0] * 30], [10.5, 100.0]])
    found = measured(tmp_path, Line([0.0] * 2), FedAsync(), clock, Until(time=20.0)).staleness
    assert [found.p50, found.p90, found.p99] == pytest.approx([0.0, 0.1, 1 + 0.81 * 9])
    assert found.windows == (None, *[0.0] * 9, (0 + 10) / 2, 1.0, *[0.0] * 8)


def test_bytes_are_what_the_wires_carry(tmp_path: Path) -> None:
    """Ten rounds of two clients: 4 bytes a number."""
    problem = Quadratic(2, dim=100)
    until, clock = Until(time=10.5), Scripted([[1.0]])
    plain = measured(tmp_path / "a", problem, FedAvg(), clock, until)
    assert plain.bytes == Bytes(down=22 * 400, up=20 * 400)  # the eleventh round is on its way
    found = measured(tmp_path / "b", problem, FedBuff(size=2), clock, until, Moreau(lr=0.1))
    assert found.bytes == Bytes(down=22 * 400, up=20 * 404)  # and one number, ν


def test_scaffold_s_messages_are_twice_as_long(tmp_path: Path) -> None:
    found = measured(tmp_path, Quadratic(2, dim=100), SCAFFOLD(), Scripted([[1.0]]), Until(time=10.5), Scaffold(lr=0.1))
    assert found.bytes == Bytes(down=22 * 800, up=20 * 800)


def test_quafl_s_messages_are_as_short_as_its_bits(tmp_path: Path) -> None:
    """Rounds at 1, …, 10: both clients answer and go on; 100 numbers of 4 bits and the span take 54 bytes."""
    server = QuAFL(sampled=2, period=1.0, bits=4)
    found = measured(tmp_path, Quadratic(2, dim=100), server, Scripted([[1.0]]), Until(time=10.5))
    assert found.bytes == Bytes(down=22 * 54, up=20 * 54)


def test_broadcasts_to_all_are_counted_as_sent(tmp_path: Path) -> None:
    """DeFedAvg sends to all three after each of 10 rounds and takes one result in each."""
    server = DeFedAvg(sampled=1)
    found = measured(tmp_path, Quadratic(3, dim=1), server, Scripted([[1.0]]), Until(time=10.5))
    versions = 10.5 / found.waiting
    assert found.bytes.up == pytest.approx(4 * versions)
    assert found.bytes.down == pytest.approx(4 * (3 + 3 * versions))


def test_asynchronous_clients_are_at_work_more_than_synchronous_ones(tmp_path: Path) -> None:
    """PersA-FL, figure 2a: "the concurrency level for asynchronous methods is considerably higher"."""
    problem, timing = Quadratic(30, dim=2, dtype=torch.float32), Times(network=Delays(download=1.0, ratio=(4.0, 6.0)))
    found = {
        name: measured(tmp_path / name, problem, server, timing, Until(time=200.0)).concurrency.mean
        for name, server in {
            "async": FedAsync(lr=0.1),
            "half": FedAsync(lr=0.1, concurrency=15),
            "all": FedAvg(),
            "ten": FedAvg(sampled=10),
        }.items()
    }
    assert found["async"] == pytest.approx(1.0)
    assert found["half"] == pytest.approx(0.5)
    assert found["ten"] < found["all"] < 0.5
    assert found["ten"] < 1 / 3


def test_nothing_happened(tmp_path: Path) -> None:
    found = measured(tmp_path, Line([0.0]), FedAsync(), Scripted([[100.0]]), Until(time=1.0))
    assert found.staleness.p50 is None
    assert found.waiting is None
    assert found.concurrency.mean == pytest.approx(1.0)
    assert found.bytes.up == 0


def test_what_messages_weigh_is_written_down(tmp_path: Path) -> None:
    """One number each way; the eleventh and twelfth job of the two clients are on their way at the end."""
    found = measured(tmp_path, Line([0.0] * 2), FedAsync(), Scripted([[1.0]]), Until(time=5.5))
    assert found.messages == (Messages(down=4, up=4, jobs=12),)
    assert found.bytes == Bytes(down=4 * 12, up=4 * 10)


def test_jobs_that_the_end_finds_on_their_way_are_written_down(tmp_path: Path) -> None:
    measured(tmp_path, Line([0.0] * 2), FedAsync(), Scripted([[1.0], [4.0]]), Until(time=5.5))
    table = pq.read_table(tmp_path / "underway.parquet").to_pydict()
    assert (table["client"], table["sent"], table["finished"]) == ([1, 0], [4.0, 5.0], [8.0, 6.0])
    assert table["version"] == [4, 6]  # client 1 reported first at time 4: three results of client 0 and its own
