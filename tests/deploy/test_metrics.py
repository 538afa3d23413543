"""What Prometheus reads of a run that is being served."""

from __future__ import annotations

import asyncio
import urllib.request
from types import SimpleNamespace
from typing import Any

from logs import Log, plan

from offbeat.algorithms import FedAsync
from offbeat.deploy.broker import free_port
from offbeat.deploy.metrics import exposed


def test_the_numbers_of_a_run_can_be_read_while_it_goes_on() -> None:
    log = Log(plan(FedAsync(lr=0.1))).begin()
    log.result("a", 1, 0)
    log.result("b", 1, 1, float("nan"))
    server: Any = SimpleNamespace(
        plan=log.reducer.plan,
        ledger=log.reducer.ledger,
        core=SimpleNamespace(reducer=log.reducer),
        link=SimpleNamespace(bytes_in=7, bytes_out=5),
        entries=asyncio.Queue(),
        lag=0.25,
    )
    port = free_port()
    with exposed(server, port), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    expected = (
        *("offbeat_updates_total 1.0", 'offbeat_refused_total{code="nonfinite"} 1.0', 'offbeat_version{task="0"} 1.0'),
        *("offbeat_clients_present 2.0", "offbeat_jobs_in_flight 2.0", "offbeat_lag_seconds 0.25"),
    )
    assert set(expected) <= set(lines)
    assert any(line.startswith("process_cpu_seconds_total") for line in lines)
