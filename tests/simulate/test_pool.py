"""Jobs in worker processes: nothing but the time changes, whoever dies."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contract import test_contract as single, test_several as several
from fragile import Broken, Deadly
from worlds import Line, run, same_world, seen, through_text

from offbeat.algorithms import AREA, FedAsync, FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import DivergedError, SettingError, WorkerError
from offbeat.core.until import Until
from offbeat.data import load
from offbeat.data.splits import Dirichlet
from offbeat.local import MAML, SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.problems.supervised import Supervised
from offbeat.simulate.loop import Simulation
from offbeat.simulate.pack import pack, unpack
from offbeat.simulate.pool import Pool, Process, Shared, cores
from offbeat.simulate.run import prepare
from offbeat.simulate.world import World
from offbeat.timing import Exponential, Times
from offbeat.watch.history import History

EQUAL = Times(Exponential(1.0))
SHORT = Until(updates=40)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Two workers for all tests here: starting one takes a second or two."""
    with Pool(workers=2) as pool:
        yield pool


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def same_but_for_its_executor(a: World, b: World) -> bool:
    return same_world(a, replace(b, executor=a.executor))


def pids(pool: Pool) -> list[int]:
    return [worker.process.pid for worker in pool.started if isinstance(worker, Process)]


# The same as without it


@single.EVERY_ROW
def test_every_algorithm_gives_the_events_of_the_others_and_the_model_of_the_serial_one(
    row: single.Row, pool: Pool
) -> None:
    serial, batched, spread = (
        run(single.NOISY, row.server, row.local, single.ROUGH, SHORT, executor=executor)
        for executor in ("serial", "batched", pool)
    )
    assert seen(serial.events) == seen(batched.events) == seen(spread.events)
    assert torch.equal(single.outcome(row, serial), single.outcome(row, spread))
    torch.testing.assert_close(single.outcome(row, batched), single.outcome(row, spread))


@several.EVERY_ROW
def test_so_does_every_algorithm_for_several_tasks(row: several.Row, pool: Pool) -> None:
    worlds, logs = [], []
    for executor in ("serial", pool):
        running, log = several.simulation(row, executor)  # type: ignore[arg-type]
        worlds.append(running.run())
        logs.append(seen(log.events))
    assert logs[0] == logs[1]
    assert same_but_for_its_executor(*worlds)


@pytest.fixture(scope="module")
def digits() -> Supervised:
    return Supervised.split(load("digits"), 6, Dirichlet(0.5), model="mlp", l2=1e-3, options={"hidden": [8]})


@pytest.mark.parametrize(
    ("server", "local"),
    [(AREA(size=2), SGD(lr=0.1, steps=3, batch=8, shuffle=True)), (FedBuff(size=2), MAML(lr=0.1, alpha=0.1, batch=4))],
)
def test_networks_are_trained_as_by_the_serial_one(digits: Supervised, pool: Pool, server: Any, local: Any) -> None:
    serial, spread = (
        run(digits, server, local, EQUAL, Until(updates=30), executor=executor, evaluate=5.0)
        for executor in ("serial", pool)
    )
    assert seen(serial.events) == seen(spread.events)
    assert serial.history == spread.history
    assert torch.equal(serial.model, spread.model)


@pytest.mark.parametrize("name", ["area sampled", "scaffold", "favano", "fedbuff sampled"])
def test_saved_and_resumed_at_any_event_it_ends_bit_for_bit_the_same(name: str, pool: Pool) -> None:
    """Of what the workers had begun nothing is saved; it is begun again."""
    row = next(row for row in single.TABLE if row.name == name)
    whole, expected = simulation(row, pool)
    whole.run()
    first, before = simulation(row, pool)
    for _ in zip(range(random.Random(name).randrange(1, whole.world.events)), first.steps(), strict=False):
        pass
    second, after = simulation(row, pool, world=through_text(first.world))
    second.run()
    assert seen(before.events + after.events) == seen(expected.events)
    assert same_world(second.world, whole.world)


def simulation(row: single.Row, pool: Pool, **options: Any) -> tuple[Simulation, History]:
    return single.simulation(row, pool, **options)  # type: ignore[arg-type]


def test_two_runs_in_turns_share_the_workers(pool: Pool) -> None:
    row = single.TABLE[0]
    alone = simulation(row, pool)[0].run()
    pair = [simulation(row, pool)[0] for _ in range(2)]
    for _ in zip(*(running.steps() for running in pair), strict=True):
        pass
    assert all(same_world(alone, running.world) for running in pair)


def test_work_is_done_ahead_but_not_counted_before_it_is_needed(pool: Pool) -> None:
    runs = [run(Quadratic(9), FedAsync(), SGD(lr=0.1), EQUAL, Until(updates=20), executor=e) for e in ("serial", pool)]
    assert [r.world.tally.computed for r in runs] == [20, 20]


# Workers that die


def test_a_worker_that_dies_costs_a_retry_and_nothing_else(tmp_path: Path) -> None:
    with Pool(workers=2) as pool:
        problem = Deadly(6, noise=0.5, deadly=frozenset({2}), grave=str(tmp_path / "grave"))
        spread = run(problem, AREA(size=2), SGD(lr=0.1), EQUAL, SHORT, executor=pool)
    serial = run(Quadratic(6, noise=0.5), AREA(size=2), SGD(lr=0.1), EQUAL, SHORT, executor="serial")
    assert Path(problem.grave).exists()
    assert seen(serial.events) == seen(spread.events)
    assert torch.equal(serial.model, spread.model)


def test_killing_workers_in_the_middle_of_a_run_changes_nothing() -> None:
    row = next(row for row in single.TABLE if row.name == "scaffold")
    serial, expected = single.simulation(row, "serial")
    serial.run()
    with Pool(workers=2) as pool:
        running, found = simulation(row, pool)
        for count, _ in enumerate(running.steps()):
            if count == 40:
                os.kill(random.choice(pids(pool)), signal.SIGKILL)
    assert seen(found.events) == seen(expected.events)
    assert same_but_for_its_executor(running.world, serial.world)


def test_a_job_that_kills_every_worker_is_an_error_that_names_it() -> None:
    with Pool(workers=1, attempts=2) as pool:
        with pytest.raises(WorkerError, match=r"of client 3 was given to 2 workers and all of them died \(killed by"):
            run(Deadly(6, deadly=frozenset({3})), AREA(size=2), SGD(lr=0.1), EQUAL, SHORT, executor=pool)
        before = pids(pool)
    assert not any(alive(pid) for pid in before)


def test_workers_that_cannot_start_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.simulate.transport._START", "raise SystemExit(7)")
    with Pool(workers=2) as pool, pytest.raises(WorkerError, match=r"in a row ended before they were ready \(exit co"):
        run(Quadratic(3), FedAsync(), SGD(lr=0.1), EQUAL, SHORT, executor=pool)


# Errors


def test_an_error_of_the_problem_is_the_caller_s_with_the_worker_s_traceback(pool: Pool) -> None:
    with pytest.raises(RuntimeError, match="no such sample") as caught:
        run(Broken([1.0, 2.0]), FedAsync(), SGD(lr=0.1), EQUAL, SHORT, executor=pool)
    assert "in oracle" in caught.value.__notes__[0]
    assert run(Line([1.0, 2.0]), FedAsync(), SGD(lr=0.1), EQUAL, SHORT, executor=pool).world.tally.updates == 40


def test_a_result_that_is_not_finite_names_the_client_as_elsewhere(pool: Pool) -> None:
    messages = []
    for executor in ("serial", pool):
        with pytest.raises(DivergedError) as caught:
            run(Line([1.0, 1e308, 2.0]), FedAsync(), SGD(lr=1e9), EQUAL, SHORT, executor=executor)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(SettingError, match="workers = 0: must be at least 1"):
        Pool(workers=0)


# What is left behind


def test_closing_leaves_no_process_and_the_pool_can_be_used_again() -> None:
    pool = Pool(workers=1)
    for _ in range(2):
        run(Quadratic(3), FedAsync(), SGD(lr=0.1), EQUAL, Until(updates=5), executor=pool)
        before = pids(pool)
        assert len(before) == 1
        pool.close()
        assert not any(alive(pid) for pid in before)


def test_a_pool_that_is_forgotten_ends_its_processes() -> None:
    pool = Pool(workers=1)
    run(Quadratic(3), FedAsync(), SGD(lr=0.1), EQUAL, Until(updates=5), executor=pool)
    before = pids(pool)
    del pool
    gc.collect()
    assert not any(alive(pid) for pid in before)


SCRIPT = """
import signal
import sys
import numpy as np
import torch
import offbeat as ob
from offbeat.data import load
from offbeat.simulate.pool import Pool
from offbeat.timing import Exponential, Times

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell makes what it runs in the background deaf to it

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.full = torch.nn.Linear(64, 10)
    def forward(self, x):
        return self.full(torch.tanh(x.flatten(1)))

problem = ob.Supervised(load("digits"), Net(), [np.arange(i, 1400, 4) for i in range(4)])
pool = Pool(1)
algorithm = ob.Algorithm(ob.FedBuff(size=2), ob.SGD(lr=0.1, batch=8))
for count in range(int(sys.argv[1])):
    ob.run(problem, algorithm, Times(Exponential(1.0)), ob.Until(updates=10), executor=pool)
    if count == 0:
        print(*[worker.process.pid for worker in pool.started], flush=True)
"""


def started(times: int, *options: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A script with a model and no `if __name__ == "__main__"` of its own, and its workers."""
    script = subprocess.Popen(
        [sys.executable, *options, "-c", SCRIPT, str(times)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert script.stdout is not None
    line = script.stdout.readline()
    if not line:
        raise AssertionError(script.communicate()[1])
    return script, [int(pid) for pid in line.split()]


def test_a_script_with_its_own_model_ends_quietly_and_so_do_its_workers() -> None:
    script, workers = started(1, "-W", "error")
    _, errors = script.communicate(timeout=60)
    assert (script.returncode, errors) == (0, "")
    assert not any(alive(pid) for pid in workers)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_run_however_it_ends(number: signal.Signals) -> None:
    script, workers = started(1_000_000)
    assert all(alive(pid) for pid in workers)
    try:
        script.send_signal(number)
        script.communicate(timeout=60)
    finally:
        script.kill()
    for _ in range(500):
        if not any(alive(pid) for pid in workers):
            return
        time.sleep(0.01)
    raise AssertionError(f"still there: {workers}")


# What travels


def test_data_lie_in_shared_memory_once_however_many_problems_are_made_of_them() -> None:
    shared, data = Shared(), load("digits")
    data.as_inputs("signed")  # made once for all problems, and sent with none
    try:
        problems = [Supervised.split(data, clients) for clients in (4, 7)]
        packed = [pack(problem, shared.put) for problem in problems]
        assert [array.nbytes for array, _ in shared.kept] == [data.train["x"].numel()]  # all else is small
        back = unpack(packed[1], lambda number: shared.kept[number][0])
        assert torch.equal(back.train["x"], data.train["x"])
        assert np.array_equal(back.shards.order, problems[1].shards.order)
    finally:
        shared.close()


def test_there_is_a_worker_for_every_core_unless_somebody_says_otherwise() -> None:
    assert Pool().workers == cores() >= 1


def test_prepare_takes_a_pool(pool: Pool) -> None:
    made = prepare(Quadratic(3), Algorithm(FedAsync(), SGD(lr=0.1)), EQUAL, Until(updates=3), executor=pool)
    assert (made.run().tally.updates, made.executor.name) == (3, "processes")
