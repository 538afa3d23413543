"""What the leading server tells its operator: a line for each change, none for each update."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from federation import LOADER, OWN
from logs import Log, plan
from served import until
from sites import running, served, site

from offbeat.algorithms import FedAsync
from offbeat.core.errors import OffbeatError
from offbeat.deploy import keys, wire
from offbeat.deploy.broker import Broker, free_port
from offbeat.deploy.logs import logged, note
from offbeat.deploy.push import push
from offbeat.deploy.reporter import Reporter


def events(path: Path) -> list[tuple[str, str]]:
    """(client, event) of each line."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line.get("client", ""), line["event"]) for line in lines]


def test_arrivals_first_updates_evaluations_members_and_the_end_are_written_and_no_update_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "told_data.py").write_text(LOADER)
    monkeypatch.syspath_prepend(str(tmp_path))
    fed, told = tmp_path / "fed", tmp_path / "told.json"
    keys.init(fed, ["a", "b"], tls=False)
    broker = Broker(tmp_path / "broker", fed)

    async def play() -> int:
        with logged(told, "info", "json"), site(tmp_path, fed / "a.creds", broker.url, "told_data:load") as a:
            async with a, served(tmp_path, broker.url, "own", 10**6, text=OWN) as (server, _):
                await until(lambda: server.ledger.tally.updates >= 50 and ("", "evaluated") in events(told))
                keys.add(fed, ["late"])
                keys.remove(fed, ["b"])
                await push(fed, broker.url)
                await until(lambda: len(server.ledger.clients) == 3)
                a.leaving.set()
                await until(lambda: not server.ledger.clients[0].present)
                return server.ledger.tally.updates

    with running(broker):
        updates = asyncio.run(play())
    found = events(told)
    for line in (
        ("a", "is there; 1 of 2 clients, without b"),
        ("", "begins"),
        ("a", "its first update was applied"),
        ("", "evaluated"),
        ("b", "was removed from the run"),
        ("late", "was added to the run"),
        ("a", "has left; 0 of 2 clients, without a, late"),
    ):
        assert line in found, found
    assert len(found) < min(updates, 30)


def test_failed_jobs_and_silent_clients_are_warned_of(tmp_path: Path) -> None:
    log = Log(plan(FedAsync())).begin()
    reducer, there = log.reducer, log.reducer.traffic.census.present
    reporter = Reporter([], lambda: there)
    with logged(tmp_path / "told", "warning"):
        for _ in range(5):
            was = reporter.before(reducer.ledger, 0)
            reducer.ledger.clients[0].failed += 1
            said = wire.say(wire.Trained("run", "a", 1, 1, 1, 0, error="no such file"))
            reporter.after(reducer.ledger, 0, wire.LogEntry(1, 0.0, "a", said), was)
        gone = wire.LogEntry(2, 0.0, "", wire.say(wire.Gone("run", 0, 1)))
        was = reporter.before(reducer.ledger, None)
        reducer.ledger.clients[0].present = False
        reporter.after(reducer.ledger, None, gone, was)
    lines = (tmp_path / "told").read_text().splitlines()
    assert [line.count("its job failed: no such file") for line in lines] == [1, 1, 1, 0]
    assert "nothing was heard of it for 15 s; it counts as gone" in lines[-1]
    assert reporter.waiting(reducer.ledger).startswith(f"{len(there)} of ")


def test_what_a_line_says_of_the_run_s_time_does_not_replace_when_it_was_written(tmp_path: Path) -> None:
    with logged(tmp_path / "told", "info", "json"):
        note("evaluated", time=0.5, accuracy=0.9)
    line = json.loads((tmp_path / "told").read_text())
    assert abs(line["time"] - time.time()) < 60
    assert (line["run_time"], line["accuracy"]) == (0.5, 0.9)


def test_an_embedded_broker_does_not_begin_on_a_port_that_is_taken(tmp_path: Path) -> None:
    port = free_port()
    keys.init(tmp_path / "fed", ["a"], port=port, tls=False)
    first, second = (Broker(tmp_path / name, tmp_path / "fed", port=port) for name in ("one", "two"))
    with running(first), pytest.raises(OffbeatError, match="leave out --embedded"):
        second.start()
