"""What Prometheus reads of a run that is being served."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest
from logs import Log, plan

from offbeat.algorithms import FedAsync
from offbeat.core.errors import SettingError
from offbeat.core.watcher import Measurement
from offbeat.deploy.broker import free_port
from offbeat.deploy.metrics import exposed


def served(log: Log) -> Any:
    """A server as the metrics see it."""
    return SimpleNamespace(
        plan=log.reducer.plan,
        ledger=log.reducer.ledger,
        core=SimpleNamespace(reducer=log.reducer, folded_at=time.monotonic()),
        link=SimpleNamespace(bytes_in=7, bytes_out=5, client=SimpleNamespace(is_connected=True)),
        backlog=(3, 0.25),
        lag=0.25,
        refused=log.refused,
        ready=True,
        leading=True,
        recorder=SimpleNamespace(measurements=[Measurement(0, 1.0, 1, 1, {"accuracy": 0.5, "personal": 0.75})]),
    )


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_numbers_of_a_run_can_be_read_while_it_goes_on() -> None:
    log = Log(plan(FedAsync(lr=0.1))).begin()
    log.result("a", 1, 0)
    log.result("b", 1, 1, float("nan"))
    port = free_port()
    with exposed(served(log), port):
        lines = get(port, "/metrics")[1].splitlines()
    expected = (
        *("offbeat_updates_total 1.0", 'offbeat_refused_total{code="nonfinite"} 1.0', 'offbeat_version{task="0"} 1.0'),
        *("offbeat_clients_present 2.0", "offbeat_jobs_in_flight 2.0", "offbeat_lag_seconds 0.25"),
        "offbeat_connected 1.0",
        *('offbeat_metric{name="accuracy",task="0"} 0.5', 'offbeat_metric{name="personal",task="0"} 0.75'),
    )
    assert set(expected) <= set(lines)
    assert any(line.startswith("process_cpu_seconds_total") for line in lines)


def test_a_process_is_healthy_while_its_loop_goes_round_and_ready_while_it_serves() -> None:
    server, port = served(Log(plan(FedAsync(lr=0.1))).begin()), free_port()
    with exposed(server, port) as health:
        assert [get(port, path)[0] for path in ("/healthz", "/readyz", "/other")] == [200, 200, 404]
        server.link.client.is_connected = False
        assert get(port, "/healthz")[0] == 200
        status, text = get(port, "/readyz")
        assert (status, json.loads(text)["connected"]) == (503, False)
        server.link.client.is_connected, server.ready = True, False
        assert json.loads(get(port, "/readyz")[1])["caught_up"] is False
        server.ready = True
        health.beaten -= 60  # the event loop has been stuck for a minute
        assert [get(port, path)[0] for path in ("/healthz", "/readyz")] == [503, 503]


def test_a_port_that_is_taken_is_named() -> None:
    server = served(Log(plan(FedAsync(lr=0.1))).begin())
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SettingError, match=f"--metrics {port}: cannot listen"), exposed(server, port):
            pass
