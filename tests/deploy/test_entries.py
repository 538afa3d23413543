"""What the log says about the run itself: its version, limits and clients, and who leads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from faults import freeze, same, thaw
from hypothesis import given, strategies as st
from logs import Log, plan

from offbeat.algorithms import MIFA, FedAsync
from offbeat.core.errors import FolderError
from offbeat.deploy import encoding, wire
from offbeat.deploy.admission import Limits
from offbeat.deploy.envelope import LARGEST
from offbeat.deploy.membership import ROWS, changes, openings
from offbeat.deploy.reducer import Reducer

KEYS = {"a": ("A-account", "A-sign", "A-seal"), "b": ("B-account", "B-sign", "B-seal")}


def opened(limits: Limits | None = None) -> Log:
    made = plan(FedAsync(lr=0.1))
    log = Log(replace(made, limits=limits) if limits else made)
    (first,) = openings(log.reducer.plan, KEYS)
    assert log.raw("", first) == ""
    return log


def test_the_first_entry_says_with_which_version_limits_and_clients_a_run_began() -> None:
    ledger = opened(Limits(norm=7.0, window=4, slot=True)).reducer.ledger
    assert ledger.version == encoding.VERSION
    assert ledger.limits == Limits(norm=7.0, window=4, slot=True)
    found = [(record.name, record.account, record.sign, record.seal) for record in ledger.clients]
    assert found == [(name, *keys) for name, keys in KEYS.items()]


def test_it_counts_once() -> None:
    log = opened(Limits(norm=7.0))
    log.raw("", openings(replace(log.reducer.plan, limits=Limits(norm=9.0)))[0])
    assert log.reducer.ledger.limits.norm == 7.0
    assert log.reducer.ledger.clients[0].sign == "A-sign"


def test_the_log_says_who_takes_part_whatever_the_plan_says() -> None:
    log = Log(replace(plan(FedAsync(lr=0.1)), roster=["x", "a", "b", "c"]))
    log.raw("", openings(plan(FedAsync(lr=0.1)))[0])
    log.begin("a", "b")
    assert log.reducer.index == {"a": 0, "b": 1}
    assert log.reducer.ledger.members == log.reducer.view.clients == 2
    assert log.add("c", "hello", epoch=1, nonce="c") == "identity"


def test_a_large_roster_comes_in_several_entries_and_what_is_lacking_is_enrolled() -> None:
    names = [f"c{number}" for number in range(2 * ROWS + 1)]
    made = replace(plan(FedAsync(lr=0.1)), roster=names)
    keys = {name: (name * 3, "s" * 64, "x" * 64) for name in names}
    log = Log(plan(FedAsync(lr=0.1)))
    entries = openings(made, keys)
    assert len(entries) == 3
    assert max(map(len, entries)) < 900_000
    for entry in entries[:2]:
        log.raw("", entry)
    ledger = log.reducer.ledger
    assert [record.name for record in ledger.clients] == names[: 2 * ROWS]
    rest = changes(ledger, made, keys).entries  # a server that was interrupted goes on
    assert [encoding.unpack(entry).kind for entry in rest] == ["enrolled"]
    log.raw("", entries[1])  # twice
    log.raw("", entries[2])
    assert [(record.name, record.account) for record in ledger.clients] == [(name, name * 3) for name in names]
    assert changes(ledger, made, keys).entries == []


def test_what_the_log_does_not_say_yet_is_said() -> None:
    log = opened()
    made, now = log.reducer.plan, {**KEYS, "b": ("B2", "S2", "X2"), "c": ("C", "S", "X")}

    def kinds(*entries: bytes) -> list[str]:
        return [encoding.unpack(entry).kind for entry in entries]

    assert kinds(*changes(Reducer(made).ledger, made, KEYS).entries) == ["opening"]
    assert changes(log.reducer.ledger, made, KEYS).entries == []
    other = replace(made, limits=Limits(norm=3.0))
    found = changes(log.reducer.ledger, other, {name: now[name] for name in "bc"}, ["a"]).entries
    assert kinds(*found) == ["limited", "rekeyed", "enrolled", "removed"]
    for entry in found:
        log.raw("", entry)
    ledger = log.reducer.ledger
    assert ledger.limits == other.limits
    assert [(record.name, record.account, record.removed) for record in ledger.clients] == [
        ("a", "A-account", True),
        ("b", "B2", False),
        ("c", "C", False),
    ]
    assert changes(ledger, other, {name: now[name] for name in "bc"}, ["a"]).entries == []


def test_from_a_roster_that_is_older_than_the_log_s_nothing_follows_about_clients() -> None:
    log, other = opened(), {**KEYS, "b": ("B2", "S2", "X2")}
    made, ledger = log.reducer.plan, log.reducer.ledger
    found = changes(ledger, made, other, serial=5).entries
    assert [encoding.unpack(entry).kind for entry in found] == ["rostered", "rekeyed"]
    for entry in found:
        log.raw("", entry)
    assert changes(ledger, made, KEYS, ["a"], serial=4).entries == []
    log.add("", "rostered", serial=4)
    assert ledger.roster == 5
    assert changes(ledger, made, other, serial=5).entries == []
    early = Reducer(made).ledger
    early.roster = 5
    with pytest.raises(FolderError, match="serve it with the newest"):
        changes(early, made, KEYS, serial=4)


def test_an_algorithm_that_has_no_room_refuses_before_there_is_an_entry() -> None:
    made = plan(MIFA(memory=20.0))  # of two clients with 8 bytes each
    found = changes(Reducer(made).ledger, replace(made, roster=["a", "b"]), {**KEYS, "c": ("", "", "")})
    assert [encoding.unpack(entry).kind for entry in found.entries] == ["opening"]
    assert len(found.refused) == 1
    assert "c is not enrolled in run: memory = 20: MIFA keeps a vector for each of 3 clients" in found.refused[0]


def test_a_run_whose_data_were_split_among_its_clients_takes_no_others() -> None:
    log = opened()
    found = changes(log.reducer.ledger, replace(log.reducer.plan, grows=False), {**KEYS, "c": ("C", "S", "X")})
    assert found.entries == []
    assert found.refused == ["c is not enrolled in run: its data were split among the clients that it began with"]


def test_limits_are_those_of_the_log_whatever_the_plan_says() -> None:
    log = opened(Limits(norm=7.0)).begin()
    assert log.result("a", 1, 0, 5.0) == "applied"
    log.add("", "limited", limits=Limits(norm=3.0).plain())
    assert log.result("b", 1, 1, 5.0) == "norm"
    other = Reducer(replace(log.reducer.plan, limits=Limits(norm=1.0, lease=1.0)))  # a server with other settings
    for entry in log.entries:
        other.fold(entry)
    assert same(freeze(other.ledger), freeze(log.reducer.ledger))
    back = Reducer(replace(log.reducer.plan, limits=Limits(norm=100.0)), thaw(freeze(log.reducer.ledger)))
    assert back.ledger.limits == Limits(norm=3.0)


@given(
    st.builds(
        Limits,
        size=st.integers(1, LARGEST),
        norm=st.none() | st.floats(1e-300, 1e300),
        window=st.none() | st.integers(1, 2**40),
        slot=st.booleans(),
        held=st.integers(2, 2**40),
        lease=st.floats(1e-3, 1e9),
        patience=st.floats(1e-3, 1e9),
    )
)
def test_limits_come_back_from_an_entry_as_they_were(limits: Limits) -> None:
    message = encoding.unpack(wire.say(wire.Limited("run", limits.plain())))
    assert Limits.read(wire.heard(message).limits) == limits


def test_keys_and_leaders_change_by_entries() -> None:
    log = opened()
    log.add("", "rekeyed", client=1, account="B2", sign="S2", seal="X2")
    record = log.reducer.ledger.clients[1]
    assert (record.account, record.sign, record.seal) == ("B2", "S2", "X2")
    leaders: list[Any] = []
    for term, server in ((1, "first"), (3, "second"), (2, "late")):
        log.add("", "led", term=term, server=server)
        leaders.append((log.reducer.ledger.term, log.reducer.ledger.leader))
    assert leaders == [(1, "first"), (3, "second"), (3, "second")]


def test_no_client_can_write_such_an_entry() -> None:
    log = opened().begin()
    before = freeze(log.reducer.ledger)
    for kind, header in {
        "limited": {"limits": {"norm": 1e9}},
        "removed": {"client": 1},
        "enrolled": {"client": 2, "name": "mallory"},
        "rekeyed": {"client": 1, "account": "", "sign": "", "seal": ""},
        "led": {"term": 9, "server": "mallory"},
        "halted": {"reason": "enough"},
    }.items():
        assert log.raw("a", encoding.pack(kind, {"run": "run", "client": "a", **header})) in ("malformed", "identity")
    after = log.reducer.ledger
    kept = thaw(before)
    kept.position, kept.stamp, kept.seconds, kept.now = after.position, after.stamp, after.seconds, after.now
    kept.tally.refused, kept.tally.bytes = after.tally.refused, after.tally.bytes
    assert same(freeze(kept), freeze(after))
