"""An entry on which the fold fails is undone and quarantined, and the run goes on: the same whoever folds the log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import freeze, same, thaw
from logs import Log, plan
from served import Served, staged, until

from offbeat.algorithms import AREA, FedAsync
from offbeat.core.errors import FolderError, HandlerError
from offbeat.core.events import Job, Update
from offbeat.core.server import Commands, View
from offbeat.deploy import past, reducer as module, verdicts
from offbeat.deploy.assignment import Models, read_assignment, write_assignment
from offbeat.deploy.gate import BURST
from offbeat.deploy.membership import openings
from offbeat.deploy.reducer import Reducer
from offbeat.watch.history import History

BAD = 13.0  # the residual that sets the planted failures off


@dataclass(frozen=True)
class Fragile(AREA):
    """Fails on some updates after it has changed its state, and where `fails` says."""

    fails: str = "arrived"

    def arrived(self, state: Any, update: Update, view: View) -> Commands:
        bad = float(update["residual"]) == BAD
        commands = list(super().arrived(state, update, view))
        if bad and self.fails == "yielding":
            yield commands[0]
            yield commands[0]._replace(client=99)
        if bad:
            state.messages = -100
            raise KeyError("planted")
        yield from commands

    def lost(self, state: Any, job: Job, reason: str, view: View) -> Commands:
        state.k += 100
        if self.fails == "lost" and "quarantined" in reason:
            raise ZeroDivisionError("planted")
        yield from super().lost(state, job, reason, view)

    def joined(self, state: Any, client: int, view: View) -> Commands:
        state.k += 1000
        if self.fails == "joined" and client == 1:
            raise ValueError("planted")
        yield from super().joined(state, client, view)

    def left(self, state: Any, client: int, view: View) -> Commands:
        state.k += 10_000
        if self.fails == "left":
            raise ValueError("planted")
        yield from super().left(state, client, view)


def residual(value: float) -> dict[str, Any]:
    return {"parts": {"residual": torch.tensor([value], dtype=torch.float64)}}


def algorithm(log: Log) -> Any:
    """The algorithm's state, written down."""
    return freeze(log.reducer.ledger.server)


def refolded(log: Log) -> Reducer:
    again = Reducer(log.reducer.plan)
    for entry in log.entries:
        again.fold(entry)
    return again


@pytest.mark.parametrize("fails", ["arrived", "yielding"])
def test_a_failed_update_is_as_if_its_job_had_been_lost(fails: str) -> None:
    log, other = (Log(plan(Fragile(fails=fails, size=2))).begin() for _ in range(2))
    for each in (log, other):
        each.result("a", 1, 0, **residual(1.0))
    assert log.result("b", 1, 1, **residual(BAD)) == "quarantined"
    other.result("b", 1, 1, steps=7, **residual(BAD))
    assert same(algorithm(log), algorithm(other))
    ledger = log.reducer.ledger
    assert (ledger.tally.updates, ledger.tally.lost, log.refused) == (1, 1, {"quarantined": 1})
    assert "planted" in log.reducer.fault or "client 99" in log.reducer.fault
    job = ledger.clients[1].queue[0]
    assert job == other.reducer.ledger.clients[1].queue[0]
    assert log.result("b", 2, job, **residual(2.0)) == "applied"
    assert same(freeze(refolded(log).ledger), freeze(ledger))


def test_its_client_is_told() -> None:
    log = Log(plan(Fragile())).begin()
    log.result("b", 1, 1, **residual(BAD))
    assert 1 in log.reducer.changed
    told = read_assignment(write_assignment("run", log.reducer.ledger, 1, Models(), lambda name, data: None))
    assert (told.seq, told.verdict, len(told.jobs)) == (1, "quarantined", 1)


def test_where_even_the_loss_fails_only_the_client_is_told() -> None:
    log = Log(plan(Fragile(fails="lost"))).begin()
    before = algorithm(log)
    assert log.result("b", 1, 1, **residual(BAD)) == "quarantined"
    record = log.reducer.ledger.clients[1]
    assert same(algorithm(log), before)
    assert (record.seq, record.verdict, record.queue) == (1, "quarantined", [1])
    assert log.result("b", 2, 1, **residual(1.0)) == "applied"
    assert same(freeze(refolded(log).ledger), freeze(log.reducer.ledger))


def test_a_greeting_that_fails_is_turned_away() -> None:
    log = Log(plan(Fragile(fails="joined"))).begin("a")
    before = algorithm(log)
    assert log.add("b", "hello", epoch=1, nonce="b") == "quarantined"
    record = log.reducer.ledger.clients[1]
    assert same(algorithm(log), before)
    assert (record.present, record.epoch, record.turned_away) == (False, 0, ("b", "quarantined"))
    assert same(freeze(refolded(log).ledger), freeze(log.reducer.ledger))


def test_a_farewell_that_fails_changes_nothing() -> None:
    log = Log(plan(Fragile(fails="left"))).begin()
    before = algorithm(log)
    assert log.add("a", "bye", epoch=1) == "quarantined"
    assert same(algorithm(log), before)
    assert log.reducer.ledger.clients[0].present
    assert log.result("a", 1, 0, **residual(1.0)) == "applied"


def fail(*_: Any, **__: Any) -> Any:
    raise RuntimeError("planted")


PLACES: dict[str, tuple[Any, str]] = {
    "admission": (verdicts, "admit"),
    "the times of a job": (Reducer, "times"),
    "the report of an event": (module, "trips"),
    "landing": (module.LoggedTraffic, "_forget"),
    "sending": (module.LoggedTraffic, "touch"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_failure_anywhere_in_the_fold_is_contained(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Watching(module.TripWatcher, History):
        def trip(self, trip: Any) -> None:
            pass

    watching = Watching(keep_events=True)
    log = Log(plan(FedAsync(lr=0.1)), watching).begin()
    log.result("a", 1, 0)
    before, rows = freeze(log.reducer.ledger.server), len(watching.events)
    target, name = PLACES[place]
    original, calls = getattr(target, name), list[int]()

    def once(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return fail() if len(calls) == 1 else original(*args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(target, name, once)
        assert log.result("b", 1, 1) == "quarantined"
    assert same(freeze(log.reducer.ledger.server), before)
    assert [row.event for row in watching.events[rows:]] == ["Lost"]
    assert log.result("b", 2, log.reducer.ledger.clients[1].queue[0]) == "applied"


def test_decoding_that_fails_is_contained(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(plan(FedAsync(lr=0.1))).begin()
    with monkeypatch.context() as patched:
        heard = module.wire.heard
        patched.setattr(module.wire, "heard", lambda message: fail() if message.kind == "trained" else heard(message))
        assert log.result("b", 1, 1) == "quarantined"
    assert log.result("b", 1, 1) == "applied"


@pytest.mark.parametrize("entries", [1, 3, 1000])
def test_it_is_undone_however_long_ago_the_state_was_kept(entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "ENTRIES", entries)
    log = Log(plan(Fragile(size=3))).begin()
    for number in range(12):
        bad = number % 4 == 2
        job = log.reducer.ledger.clients[0].queue[0]
        code = log.result("a", number + 1, job, **residual(BAD if bad else 0.5))
        assert code == ("quarantined" if bad else "applied")
    assert log.refused == {"quarantined": 3}
    monkeypatch.setattr(past, "ENTRIES", 5)
    assert same(freeze(refolded(log).ledger), freeze(log.reducer.ledger))


def test_a_restart_in_between_gives_the_same() -> None:
    log = Log(plan(Fragile(size=3))).begin()
    log.result("a", 1, 0, **residual(BAD))
    later = Reducer(log.reducer.plan, thaw(freeze(log.reducer.ledger)))
    log.result("b", 1, 1, **residual(BAD))
    later.fold(log.entries[-1])
    assert same(freeze(later.ledger), freeze(log.reducer.ledger))


def test_who_watches_hears_nothing_of_what_was_undone() -> None:
    history = History(keep_events=True)
    log = Log(plan(Fragile()), history).begin()
    log.result("b", 1, 1, **residual(BAD))
    log.result("a", 1, 0, **residual(1.0))
    assert [(row.number, row.event, row.reason) for row in history.events] == [
        (1, "Started", ""),
        (2, "Lost", "refused: quarantined"),
        (3, "Arrived", ""),
    ]


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(28, "No space left on device"), RuntimeError("can't allocate")]
)
def test_what_is_the_machine_s_fault_is_not_blamed_on_the_entry(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(plan(FedAsync(lr=0.1))).begin()

    def fail_so(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(verdicts, "admit", fail_so)
    with pytest.raises(type(error)):
        log.result("b", 1, 1)


def test_the_server_s_own_entries_may_fail() -> None:
    log = Log(plan(Fragile(fails="left"))).begin()
    with pytest.raises(HandlerError, match="planted"):
        log.add("", "gone", client=0, epoch=1)


def test_a_log_of_another_version_stops_the_fold_with_both_versions() -> None:
    log = Log(plan(FedAsync(lr=0.1)))
    with pytest.raises(FolderError, match=r"the log of run has version: a message of protocol version '1'.*version 2"):
        log.raw("", b"OBT1" + openings(log.reducer.plan)[0][4:])


def test_who_sets_off_a_failure_waits_before_the_next(tmp_path: Path) -> None:
    """To undo an entry, 1,000 are folded again: a client that knows of a bug must not do so 50 times a second."""

    async def act(served: Served) -> None:
        server, _ = await served.serve()
        await served.join("alice")
        await until(lambda: server.ledger.tally.updates)  # those who are there when a run begins do not join it
        await served.join("bob")
        await until(lambda: server.ledger.tally.refused.get("quarantined"))
        assert server.gate.budgets["bob"].messages < BURST / 2
        assert server.gate.budgets["alice"].messages > BURST / 2

    staged(Served(tmp_path, server=Fragile(size=1, fails="joined")), act)
