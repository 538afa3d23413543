"""The same over Ray: two workers on this machine. Starting Ray takes half a minute of a processor: `make test-slow`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command import DIGITS, events, run as command
from contract import test_contract as single, test_several as several
from fragile import Broken, Deadly
from safetensors.torch import load_file
from worlds import run, same_world, seen

import offbeat.simulate.ray
from offbeat.algorithms import AREA, FedAsync
from offbeat.core.errors import SettingError, WorkerError
from offbeat.core.until import Until
from offbeat.data import load
from offbeat.local import SGD
from offbeat.problems.supervised import Supervised
from offbeat.simulate.choose import executor
from offbeat.simulate.ray import Actor, Cluster
from offbeat.timing import Exponential, Times

EQUAL = Times(Exponential(1.0))
SHORT = Until(updates=40)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two workers for all tests here: starting Ray takes seconds."""
    pytest.importorskip("ray")
    with Cluster(workers=2) as cluster:
        yield cluster


def where(cluster: Cluster) -> list[int]:
    import ray

    pids: list[int] = ray.get([w.actor.pid.remote() for w in cluster.started if isinstance(w, Actor)])
    return pids


def rows(*names: str) -> list[single.Row]:
    return [row for row in single.TABLE if row.name in names]


def agrees(row: single.Row, cluster: Cluster) -> None:
    serial, spread = (
        run(single.NOISY, row.server, row.local, single.ROUGH, SHORT, executor=e) for e in ("serial", cluster)
    )
    assert seen(serial.events) == seen(spread.events)
    assert torch.equal(single.outcome(row, serial), single.outcome(row, spread))


@pytest.mark.slow
def test_memories_held_work_and_networks_travel_and_nothing_changes(cluster: Cluster) -> None:
    for row in rows("area sampled", "scaffold", "favano"):
        agrees(row, cluster)
    digits = Supervised.split(load("digits"), 6, model="mlp", options={"hidden": [8]})
    serial, spread = (
        run(digits, AREA(size=2), SGD(lr=0.1, steps=3, batch=8), EQUAL, SHORT, executor=e) for e in ("serial", cluster)
    )
    assert torch.equal(serial.model, spread.model)


@pytest.mark.slow
def test_killing_a_worker_in_the_middle_of_a_run_changes_nothing(cluster: Cluster) -> None:
    (row,) = rows("scaffold")
    serial, expected = single.simulation(row, "serial")
    serial.run()
    running, found = single.simulation(row, cluster)  # type: ignore[arg-type]
    for count, _ in enumerate(running.steps()):
        if count == 40:
            os.kill(where(cluster)[0], signal.SIGKILL)
    assert seen(found.events) == seen(expected.events)
    assert same_world(running.world, replace(serial.world, executor="ray"))


@pytest.mark.slow
def test_a_job_that_kills_every_worker_is_an_error_that_names_it(cluster: Cluster) -> None:
    cluster.attempts = 2
    with pytest.raises(WorkerError, match=r"ray: job .* of client 3 was given to 2 workers and all of them died"):
        run(Deadly(6, deadly=frozenset({3})), AREA(size=2), SGD(lr=0.1), EQUAL, SHORT, executor=cluster)


@pytest.mark.slow
def test_an_error_of_the_problem_is_the_caller_s(cluster: Cluster) -> None:
    with pytest.raises(RuntimeError, match="no such sample") as caught:
        run(Broken([1.0, 2.0]), FedAsync(), SGD(lr=0.1), EQUAL, SHORT, executor=cluster)
    assert "on the cluster" in caught.value.__notes__[0]


@pytest.mark.slow
@single.EVERY_ROW
def test_every_algorithm_gives_the_events_and_the_model_of_the_serial_one(row: single.Row, cluster: Cluster) -> None:
    agrees(row, cluster)


@pytest.mark.slow
@several.EVERY_ROW
def test_so_does_every_algorithm_for_several_tasks(row: several.Row, cluster: Cluster) -> None:
    (serial, expected), (spread, found) = (several.simulation(row, e) for e in ("serial", cluster))  # type: ignore[arg-type]
    worlds = [serial.run(), spread.run()]
    assert seen(expected.events) == seen(found.events)
    assert same_world(replace(worlds[0], executor="ray"), worlds[1])


@pytest.mark.slow
def test_a_cluster_that_has_no_cpu_left_is_an_error(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    agrees(rows("scaffold")[0], cluster)  # both CPUs are taken now
    monkeypatch.setattr(offbeat.simulate.ray, "_PATIENCE", 1.0)
    with Cluster(workers=1) as other, pytest.raises(WorkerError, match="no worker was given a CPU within 1 s"):
        run(single.NOISY, FedAsync(), SGD(lr=0.1), EQUAL, SHORT, executor=other)


@pytest.mark.slow
def test_the_command_starts_ray_and_ends_where_a_serial_run_does(tmp_path: Path, cluster: Cluster) -> None:
    cluster.close()  # it holds both CPUs
    for name, arguments in {"serial": ["--set", "executor=serial"], "ray": ["--ray", "auto", "--workers", "2"]}.items():
        (tmp_path / name).mkdir()
        outcome = command(tmp_path / name, DIGITS, *arguments)
        assert outcome.code == 0, outcome.err
    for run_ in ("area-0", "fedbuff-0"):
        one, two = (tmp_path / name / "out" / run_ for name in ("serial", "ray"))
        assert repr(events(one)) == repr(events(two))
        vectors = [load_file(place / "model.safetensors")["digits"] for place in (one, two)]
        torch.testing.assert_close(*vectors)


def test_without_ray_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offbeat.simulate.ray, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"pip install 'offbeat\[ray\]'"):
        executor("ray", [])


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense", "ray://127.0.0.1:1"])
def test_an_address_where_nobody_answers_is_refused(address: str, cluster: Cluster) -> None:
    cluster.close()
    with pytest.raises(SettingError, match=f"ray = '{address}': no Ray cluster answers there"):
        run(single.NOISY, FedAsync(), SGD(lr=0.1), EQUAL, SHORT, executor=Cluster(address))
