"""Clients that mask for each other: what the fold makes of a cohort's messages, and a run over a broker."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from logs import PROBLEM, Log
from rounds import SIGN, SIGNERS, drawing
from served import Served, cancel, kill, staged, until

from offbeat.algorithms import AREA, FedAST, FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.server import Server
from offbeat.core.state import Tensors, dump, load
from offbeat.core.sums import Secure
from offbeat.core.until import Until
from offbeat.deploy import cohorts, keys
from offbeat.deploy.admission import Limits
from offbeat.deploy.assignment import Models, read_assignment, write_assignment
from offbeat.deploy.client_state import ClientState, read_client_state, write_client_state
from offbeat.deploy.helping import context_of
from offbeat.deploy.ledger import ClientRecord, Gathering, Ledger
from offbeat.deploy.masking import PairMasking
from offbeat.deploy.membership import openings
from offbeat.deploy.plan import Plan
from offbeat.deploy.reducer import Reducer
from offbeat.deploy.refold import fingerprint, refold
from offbeat.deploy.reporter import Reporter
from offbeat.deploy.wire import LogEntry
from offbeat.local import SGD
from offbeat.privacy.secure import opening
from offbeat.privacy.secure.calls import Call, read_call
from offbeat.privacy.secure.member import CohortMember, begin
from offbeat.privacy.secure.tickets import TicketError

SECURE = Secure(cohort=2, mode="cohort")


def plan(server: Server[Any], clients: int = 4, secure: Secure = SECURE) -> Plan:
    made, names = Algorithm(server, SGD(lr=0.5), secure=secure), [f"c{n}" for n in range(clients)]
    start, limits = [secure.round(PROBLEM.initial())], Limits(lease=100.0)
    given = {"until": Until(updates=10**6), "limits": limits, "secure": secure, "federation": "fed"}
    return Plan("run", names, made.server, made.locals(1), start, **given)  # type: ignore[arg-type]


class Talk(Log):
    """A fold, and clients who say to it what they are told to. Jobs need no training: numbers are given."""

    def __init__(self, server: Server[Any] | None = None, clients: int = 4) -> None:
        made = plan(server or FedBuff(size=clients), clients)
        super().__init__(made)
        self.plan, self.draw, self.members = made, drawing(5), dict[str, CohortMember]()
        keys = {name: ("", SIGNERS[name].hex(), "") for name in made.roster}
        for entry in openings(made, keys):
            self.raw("", entry)
        self.begin(*made.roster)

    @property
    def ledger(self) -> Ledger:
        return self.reducer.ledger

    @property
    def gathering(self) -> Gathering:
        return [*self.ledger.gatherings.values()][-1]

    @property
    def call(self) -> Call:
        return read_call(bytes(self.gathering.call.tolist()))

    def record(self, name: str) -> ClientRecord:
        return self.ledger.clients[self.reducer.index[name]]

    def ready(self, *names: str, attempt: int = 0, sign: bytes = b"") -> str:
        code = ""
        for name in names or self.plan.roster:
            numbers = (1, self.record(name).seq + 1, attempt)
            member = begin(context_of(self.plan, 0), name, numbers, sign or SIGN[name], self.draw)
            self.members[name] = member
            header = {"epoch": 1, "seq": numbers[1], "job": self.record(name).queue[0], "steps": 1, "attempt": attempt}
            code = self.add(name, "trained", {"keys": member.own.keys}, **header)
        return code

    def deal(self, *names: str) -> None:
        call = self.call
        for name in names or self.plan.roster:
            self.members[name] = self.members[name].join(call, SIGNERS)
            self.add(name, "dealt", {"shares": self.members[name].sealed_shares()}, number=call.number)

    def mask(self, *names: str, value: int = 1) -> None:
        number = self.gathering.number
        for name in names or self.plan.roster:
            told = write_assignment("run", self.ledger, self.reducer.index[name], Models(), lambda *_: None, roster=b"")
            asked = read_assignment(told).call
            assert asked is not None
            others = [place for place in asked.sharers if self.call.members[place].client != name]
            sealed = [asked.shares[at : at + 82] for at in range(0, len(asked.shares), 82)]
            self.members[name] = self.members[name].hear(dict(zip(others, sealed, strict=True)))
            words = self.members[name].masked(np.array([value << SECURE.places], dtype=np.uint32))
            self.add(name, "masked", {"words": words.astype("<u4").tobytes()}, number=number)

    def reveal(self, *names: str, flip: int = 0) -> str:
        gathering, code = self.gathering, ""
        for name in names:
            answer = bytearray(self.members[name].answer(gathering.survivors, gathering.dropped)[1])
            answer[-1] ^= flip
            code = self.add(name, "revealed", {"shares": bytes(answer)}, number=gathering.number)
        return code

    def late(self) -> None:
        """The phase that is on takes too long."""
        key = f"\0phase:{self.gathering.number}:{self.gathering.phase}"
        (alarm,) = (number for number, (_, each) in self.ledger.alarms.items() if each == key)
        self.add("", "rung", alarm=alarm)

    @property
    def moved(self) -> float:
        """How far the model has gone from its beginning."""
        return float(self.reducer.model(0) - self.plan.initial[0])


def test_a_sum_is_open_when_enough_of_its_members_have_answered() -> None:
    talk = Talk()
    talk.ready()
    assert [record.verdict for record in talk.ledger.clients] == [""] * 4  # nothing is settled yet
    talk.deal()
    talk.mask(value=3)
    assert [record.verdict for record in talk.ledger.clients] == ["applied"] * 4
    assert talk.reveal("c2", "c0") == ""
    assert talk.moved == 0.0
    assert talk.reveal("c3") == "applied"
    assert talk.moved == -3.0
    assert (talk.ledger.gatherings, talk.ledger.closed, talk.ledger.waiting) == ({}, {}, {})
    assert talk.add("c1", "revealed", {"shares": bytes(132)}, number=1) == ""  # too late, and harmless


def test_clients_that_drop_out_before_they_have_sent_are_taken_off_the_sum() -> None:
    talk = Talk(clients=6)
    talk.ready()
    talk.add("c1", "bye", epoch=1)
    talk.deal("c0", "c2", "c3", "c4", "c5")
    talk.mask("c0", "c2", "c3", "c5", "c4", value=2)
    assert talk.gathering.survivors == [0, 2, 3, 4, 5]
    talk.reveal("c0", "c2", "c3", "c4", "c5")
    assert talk.moved == -2.0
    assert talk.record("c1").verdict == ""
    assert talk.ledger.tally.lost == 1


def test_one_who_has_sent_nothing_when_time_is_up_comes_again_with_fresh_keys() -> None:
    talk = Talk()
    talk.ready()
    talk.deal()
    talk.mask("c0", "c1", "c3")
    talk.late()
    assert (talk.gathering.survivors, talk.gathering.dropped) == ([0, 1, 3], [2])
    assert talk.record("c2").attempt == 1
    talk.reveal("c0", "c1", "c3")
    assert talk.moved == -1.0
    assert talk.add("c2", "masked", {"words": bytes(4)}, number=1) == ""  # too late
    talk.ready("c2")  # of the attempt that is over
    assert talk.ledger.ready == []
    talk.ready("c2", attempt=1)
    talk.ready("c0", "c1", "c3")
    assert [each.client for each in talk.call.members] == ["c2", "c0", "c1", "c3"]


@pytest.mark.parametrize("phase", ["sharing", "masking"])
def test_a_cohort_that_too_few_are_left_of_is_aborted_and_comes_again(phase: str) -> None:
    talk = Talk()
    talk.ready()
    if phase == "masking":
        talk.deal()
        talk.mask("c0")
    talk.add("c2", "bye", epoch=1)
    assert talk.gathering.phase == phase
    talk.add("c3", "bye", epoch=1)
    assert (talk.ledger.gatherings, talk.ledger.aborted) == ({}, 1)
    assert [talk.record(name).attempt for name in ("c0", "c1")] == [1, 1]
    talk.ready("c0", "c1", attempt=1)  # nobody else is at work: two are enough
    talk.deal("c0", "c1")
    talk.mask("c0", "c1", value=5)
    assert talk.reveal("c1", "c0") == "applied"
    assert talk.moved == -5.0


def test_a_result_that_waits_for_others_is_not_late_and_one_that_was_left_out_can_be() -> None:
    talk = Talk()
    talk.ready("c0", "c1")
    assert [*talk.reducer.traffic.leases] == [2, 3]
    talk.ready("c2", "c3")
    talk.late()
    assert sorted(talk.reducer.traffic.leases) == [0, 1, 2, 3]


def test_a_client_that_says_it_is_ready_with_other_keys_comes_again() -> None:
    """Its disk was put back: it does not have the first ones any more."""
    talk = Talk()
    talk.ready("c0", "c1")
    talk.ready("c0")
    assert talk.record("c0").attempt == 1
    assert talk.ledger.ready == [1]


def test_keys_that_others_would_refuse_are_refused() -> None:
    talk = Talk()
    assert talk.ready("c0", sign=SIGN["c1"]) == "forged"
    job = talk.record("c1").queue[0]
    header = {"epoch": 1, "seq": 1, "job": job, "steps": 1}
    assert talk.add("c1", "trained", {"keys": bytes(160)}, **header) == "key"
    assert talk.add("c2", "trained", {"delta": torch.zeros(1)}, **{**header, "job": 2}) == "names"
    assert [record.verdict for record in talk.ledger.clients] == ["forged", "key", "names", ""]


def test_messages_of_a_cohort_that_make_no_sense_change_nothing() -> None:
    talk = Talk()
    talk.ready()
    talk.deal("c0")
    before = talk.gathering.sealed[0]
    for kind, part, size in (("dealt", "shares", 246), ("masked", "words", 4), ("revealed", "shares", 132)):
        for number in (0, 1, 2, 1 << 50):
            talk.add("c0", kind, {part: bytes(size)}, number=number)
    assert talk.add("c1", "dealt", {"shares": bytes(7)}, number=1) == "length"
    assert talk.add("c1", "dealt", {"words": bytes(246)}, number=1) == "names"
    assert talk.gathering.sealed == {0: before}
    talk.deal("c1", "c2", "c3")
    assert talk.add("c1", "masked", {"words": bytes(5)}, number=1) == "length"
    talk.mask()
    assert talk.reveal("c0", "c1", "c2") == "applied"


FOUR = ("c0", "c1", "c2", "c3")


def test_shares_that_do_not_fit_lose_the_sum_and_not_the_run_if_others_can_go_on() -> None:
    """Its members have been in a sum of this model: they wait for the next one."""
    talk = Talk(FedBuff(size=4), clients=8)
    talk.ready(*FOUR)
    talk.deal(*FOUR)
    talk.mask(*FOUR)
    assert talk.reveal(*FOUR, flip=1) == "masks"
    assert (talk.moved, talk.ledger.unopened, talk.ledger.stopped) == (0.0, 1, "")
    assert [len(talk.record(name).queue) for name in FOUR] == [0] * 4
    others = ("c4", "c5", "c6", "c7")
    talk.ready(*others)
    talk.deal(*others)
    talk.mask(*others)
    assert talk.reveal("c4", "c5", "c6") == "applied"
    assert [len(record.queue) for record in talk.ledger.clients] == [1] * 8


def test_a_sum_that_does_not_open_is_tried_a_few_times_and_not_with_every_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each attempt takes a while in a large cohort. Six of 20 answer with wrong shares, and one leaves for good."""
    talk, tried = Talk(clients=20), list[int]()
    names = [*talk.plan.roster]
    talk.ready()
    talk.deal()
    talk.mask()

    def left(call: Call, survivors: list[int], dropped: list[int], answers: dict[int, bytes]) -> Any:
        tried.append(len(answers))
        return opening.left_masks(call, survivors, dropped, answers)

    monkeypatch.setattr(cohorts, "left_masks", left)
    talk.reveal(*names[:6], flip=1)
    talk.reveal(*names[6:19])
    assert tried == [14, 15, 16, 18]
    assert talk.ledger.closed
    talk.add("", "removed", client=19)
    assert tried == [14, 15, 16, 18, 19]
    assert (talk.ledger.closed, talk.ledger.unopened) == ({}, 1)


def test_the_run_is_over_if_a_sum_of_all_is_lost_since_another_could_show_one_of_them() -> None:
    talk = Talk()
    talk.ready()
    talk.deal()
    talk.mask()
    talk.reveal(*FOUR, flip=1)
    assert "all clients were in one of this model" in talk.ledger.stopped


def test_the_run_is_over_if_those_who_are_left_are_too_few_for_a_sum() -> None:
    talk = Talk(FedBuff(size=4), clients=5)
    talk.ready(*FOUR)
    talk.deal(*FOUR)
    talk.mask(*FOUR)
    talk.reveal(*FOUR, flip=1)
    assert talk.ledger.stopped == ""
    talk.ready("c4")  # alone, for ever
    assert "all clients were in one of this model" in talk.ledger.stopped


def test_a_member_gets_its_next_job_when_its_sum_is_open_and_not_before() -> None:
    talk = Talk()
    talk.ready()
    talk.deal()
    talk.mask()
    assert [record.verdict for record in talk.ledger.clients] == ["applied"] * 4
    for name in ("c0", "c1"):
        talk.reveal(name)
        assert [record.queue for record in talk.ledger.clients] == [[]] * 4
    talk.add("c3", "bye", epoch=1)
    talk.add("c3", "hello", epoch=1, nonce="c3")  # not by coming back, either
    assert talk.record("c3").queue == []
    talk.reveal("c2")
    assert [len(record.queue) for record in talk.ledger.clients] == [1] * 4


def test_fewer_than_a_step_takes_are_called_when_no_sum_is_being_opened() -> None:
    """Those who wait for one will be at work again; after a lease nobody waits for them."""
    talk = Talk(FedBuff(size=4), clients=6)
    talk.ready(*FOUR)
    talk.deal(*FOUR)
    talk.mask(*FOUR)
    talk.ready("c4", "c5")
    assert len(talk.ledger.gatherings) == 1
    talk.late()
    assert [each.clients for each in talk.ledger.gatherings.values()] == [[0, 1, 2, 3], [4, 5]]


def test_sealed_shares_that_nobody_can_open_abort_the_cohort_and_no_update_is_lost() -> None:
    talk = Talk()
    talk.ready()
    talk.deal("c0", "c1", "c2")
    talk.add("c3", "dealt", {"shares": bytes(246)}, number=1)
    with pytest.raises(TicketError, match="the shares of member 3"):
        talk.mask("c0")
    talk.late()
    assert (talk.ledger.aborted, talk.ledger.unopened, talk.ledger.stopped) == (1, 0, "")
    assert [record.attempt for record in talk.ledger.clients] == [1] * 4


@pytest.mark.parametrize("liar", FOUR)
def test_shares_of_one_member_that_do_not_fit_spoil_nothing_if_the_others_answer(liar: str) -> None:
    talk = Talk()
    talk.ready()
    talk.deal()
    talk.mask(value=2)
    talk.reveal(liar, flip=1)
    for name in FOUR:
        if name != liar:
            talk.reveal(name)
    assert (talk.moved, talk.ledger.unopened) == (-2.0, 0)


def test_a_third_of_the_members_has_to_accuse_one_before_it_counts() -> None:
    talk = Talk(clients=5)
    talk.ready()
    talk.deal()
    accused = {"accused": bytes([0, 0, 0, 0, 1])}
    talk.add("c0", "accused", accused, number=1)
    assert [talk.record(name).balks for name in ("c0", "c4")] == [0, 0]
    assert talk.record("c0").attempt == 1  # it comes again, and the others go on
    talk.add("c1", "accused", accused, number=1)
    assert [record.balks for record in talk.ledger.clients] == [0, 0, 0, 0, 1]
    assert talk.ledger.aborted == 1
    for name in ("c2", "c4"):
        talk.add(name, "accused", accused, number=1)  # too late, and harmless
    assert talk.record("c4").balks == 1


def test_a_client_that_was_restarted_refuses_a_roster_older_than_the_one_before(tmp_path: Path) -> None:
    made = keys.init(tmp_path / "fed", ["c0", "c1"], "fed", tls=False)
    old, new = made.to_json(), keys.add(tmp_path / "fed", ["c2"]).to_json()
    pairing = PairMasking("fed", "run", SECURE, SIGN["c0"], made.coordinator)
    assert "c2" in pairing.signers(new)
    seen = pairing.roster.serial if pairing.roster else 0
    kept = read_client_state(write_client_state(ClientState("run", "c0", 1, "a", roster=seen)))
    again = PairMasking("fed", "run", SECURE, SIGN["c0"], made.coordinator)
    with pytest.raises(TicketError, match="was seen before"):
        again.signers(old, kept.roster)
    assert "c2" in again.signers(new, kept.roster)


def test_one_that_is_left_out_is_not_waited_for_when_a_sum_of_all_others_is_lost() -> None:
    talk = Talk(FedBuff(size=4), clients=5)
    talk.record("c4").left_out = True
    talk.reducer.sessions.leave_out(4)
    talk.ready(*FOUR)
    talk.deal(*FOUR)
    talk.mask(*FOUR)
    talk.reveal(*FOUR, flip=1)
    assert "all clients were in one of this model" in talk.ledger.stopped
    assert talk.add("c4", "hello", epoch=1, nonce="c4") == "balks"


def test_under_area_a_sum_that_is_lost_ends_the_run() -> None:
    talk = Talk(AREA(size=4))
    talk.ready()
    talk.deal()
    talk.mask()
    talk.add("", "removed", client=1)
    assert talk.ledger.stopped == ""  # three can open it
    talk.add("", "removed", client=2)
    assert "its clients have moved on" in talk.ledger.stopped


def test_a_sum_is_opened_by_members_that_have_been_away() -> None:
    talk = Talk()
    talk.ready()
    talk.deal()
    talk.mask()
    for name in talk.plan.roster:
        talk.add(name, "bye", epoch=1)
    assert talk.moved == 0.0
    assert talk.reveal("c0", "c1", "c2") == "applied"
    assert talk.moved == -1.0


def test_a_closed_sum_waits_for_its_members_however_late() -> None:
    for server in (FedBuff(size=4), AREA(size=4)):
        talk = Talk(server)
        talk.ready()
        talk.deal()
        talk.mask()
        talk.late()
        assert (len(talk.ledger.closed), talk.ledger.stopped) == (1, "")
        assert talk.reveal("c0", "c1", "c2") == "applied"


def test_nothing_of_a_cohort_is_left_when_the_run_is_over_or_was_restored() -> None:
    for entry in ({"kind": "halted", "reason": "enough"}, {"kind": "restored", "epoch": 7}):
        talk = Talk()
        talk.ready()
        talk.deal("c0")
        talk.add("", **entry)  # type: ignore[arg-type]
        assert (talk.ledger.gatherings, talk.ledger.waiting, talk.ledger.ready) == ({}, {}, [])
        assert {record.verdict for record in talk.ledger.clients} == ({"over"} if talk.ledger.stopped else {""})


def test_other_keys_of_a_client_make_void_what_it_has_signed() -> None:
    talk = Talk()
    talk.ready()
    talk.add("", "rekeyed", client=3, account="", sign=SIGNERS["c9"].hex(), seal="")
    assert talk.record("c3").attempt == 1
    talk.deal("c0", "c1", "c2")
    assert talk.gathering.sharers == [0, 1, 2]


def test_when_all_is_well_no_alarm_of_a_cohort_is_left() -> None:
    talk = Talk()
    talk.ready()
    talk.deal()
    talk.mask()
    talk.reveal("c0", "c1", "c2")
    assert talk.ledger.alarms == {}


def test_a_client_takes_the_roster_of_its_own_coordinator_and_of_no_other(tmp_path: Path) -> None:
    ours, theirs = (keys.init(tmp_path / name, ["c0", "c1"], name, tls=False) for name in ("fed", "other"))
    pairing = PairMasking("fed", "run", SECURE, SIGN["c0"], ours.coordinator)
    assert pairing.signers(ours.to_json())["c1"] == ours.client("c1").sign
    for roster in (theirs.to_json(), ours.to_json().replace(b'"serial":1', b'"serial":2'), b"", b"{}"):
        with pytest.raises(TicketError, match="roster"):
            pairing.signers(roster)
    with pytest.raises(TicketError, match="another federation"):
        PairMasking("fed", "run", SECURE, SIGN["c0"], theirs.coordinator).signers(theirs.to_json())


def say_anything(talk: Talk, draw: Random) -> None:
    name, what = draw.choice(talk.plan.roster), draw.choice(["ready", "step", "step", "late", "bye", "hello"])
    if what == "ready" and talk.record(name).queue:
        talk.ready(name, attempt=draw.randrange(3))
    elif what == "step":
        kind, part, size = draw.choice([("dealt", "shares", 246), ("masked", "words", 4), ("revealed", "shares", 132)])
        sent = {part: draw.randbytes(draw.choice([size, size, size - 1]))}
        talk.add(name, kind, sent, number=draw.choice([0, 1, 2, talk.ledger.sums]))
    elif what == "late" and talk.ledger.gatherings:
        talk.late()
    elif what in ("bye", "hello"):
        talk.add(name, what, epoch=1, **({"nonce": name} if what == "hello" else {}))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_whatever_members_say_and_whenever_the_fold_goes_on_and_is_a_function_of_its_log(seed: int) -> None:
    talk, draw = Talk(), Random(seed)
    for _ in range(60):
        say_anything(talk, draw)
    again = Reducer(talk.plan)
    for entry in talk.entries:
        again.fold(entry)
    assert fingerprint(again.ledger) == fingerprint(talk.ledger)
    assert not talk.ledger.tally.refused.get("quarantined")


def test_an_operator_is_told_of_cohorts_that_are_aborted_and_of_sums_that_are_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    talk, reporter = Talk(), Reporter([], list)
    fold = talk.reducer.fold

    def watched(entry: LogEntry) -> str:
        was = reporter.before(talk.ledger, None)
        code = fold(entry)
        reporter.after(talk.ledger, None, entry, was)
        return code

    talk.reducer.fold = watched  # type: ignore[method-assign]
    talk.ready()
    talk.late()
    talk.ready(attempt=1)
    talk.deal()
    talk.mask()
    with caplog.at_level("WARNING"):
        talk.reveal(*FOUR, flip=1)
    said = " ".join(record.getMessage() for record in caplog.records)
    assert "too few members of a cohort were left" in said
    assert "a sum cannot be opened, and its updates are lost: masks: the shares of 'c3' do not give its" in said


# What is refused before a run begins


def test_what_a_cohort_cannot_do_is_refused_by_name() -> None:
    for server, secure, said in (
        (FedBuff(size=5), SECURE, "each of the 4 clients is in a sum once"),
        (FedBuff(size=4, concurrency=1), SECURE, r"concurrency = 1: .* have to be ready at the same time"),
    ):
        with pytest.raises(SettingError, match=said):
            plan(server, secure=secure)


# Over a broker


def test_a_run_over_a_broker_needs_no_helper_and_area_s_sum_is_exact(tmp_path: Path) -> None:
    """The server crashes in the middle of it, and one client leaves and comes back."""

    async def act(served: Served) -> None:
        server, task = await served.serve()
        clients = [await served.join(name) for name in served.names]
        await until(lambda: server.ledger.tally.updates >= 9)
        await kill(server, task)
        server, task = await served.serve()
        goes, going = clients[1]
        goes.leave()
        await going
        clients[1] = await served.join(served.names[1])
        await asyncio.wait_for(task, 60)
        for _, ends in clients:
            assert await asyncio.wait_for(ends, 60) == ""
        ledger, link = server.ledger, await served.link("server")
        assert fingerprint(await refold(link, served.plan(), ledger.position)) == fingerprint(ledger)
        assert (ledger.unopened, ledger.closed) == (0, {})
        y = sum(client.core.state.memory[0]["y"] for client, _ in clients if client.core.state)
        torch.testing.assert_close(y, 3 * (ledger.server.model.vector + ledger.server.u), atol=1e-12, rtol=0)

    staged(Served(tmp_path, server=AREA(size=3), secure=SECURE, until=Until(updates=30)), act)


def test_a_client_that_loses_its_disk_before_it_has_answered_opens_its_sum_all_the_same(tmp_path: Path) -> None:
    """All three have to answer; the one without a disk asks the broker for what it has left there."""

    async def act(served: Served) -> None:
        server, task = await served.serve(wait=3)
        clients = [await served.join(name) for name in served.names]
        client, going = clients[1]
        tell, name = client.core.part.tell, served.names[1]  # type: ignore[union-attr]

        def silent(state: Any, assignment: Any) -> Any:
            return [each for each in tell(state, assignment) if ".revealed." not in each.name]

        client.core.part.tell = silent  # type: ignore[union-attr, method-assign]
        await until(lambda: server.ledger.closed and client.core.state.answers)  # type: ignore[union-attr]
        await cancel(going)
        shutil.rmtree(served.folder / "state" / name)
        assert server.ledger.tally.updates == 3
        await served.join(name)
        await asyncio.wait_for(task, 60)
        assert (server.ledger.unopened, server.ledger.closed) == (0, {})

    staged(Served(tmp_path, server=FedBuff(size=3), secure=SECURE, until=Until(updates=12)), act)


def test_a_client_says_that_its_numbers_were_cut_and_the_run_counts_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(served: Served) -> None:
        server, task = await served.serve()
        for name in served.names:
            await served.join(name)
        await asyncio.wait_for(task, 60)
        assert server.ledger.tally.cut > 0

    secure = Secure(cohort=2, mode="cohort", bits=30)
    options = {"server": FedBuff(size=2), "local": SGD(lr=0.9), "until": Until(updates=6)}
    staged(Served(tmp_path, secure=secure, **options), act)
    assert "numbers of job" in caplog.text
    assert "give fewer secure.bits than 30" in caplog.text


def test_a_server_that_goes_on_from_a_checkpoint_knows_who_was_in_a_sum_of_the_present_model() -> None:
    talk, tensors = Talk(), Tensors()
    talk.ready()
    talk.deal()
    talk.mask()
    again = load(json.loads(json.dumps(dump(talk.ledger, tensors))), tensors.table)
    assert [again.barred(client, 0, 0) for client in range(4)] == [True] * 4
    assert again.waiting_for(0) == talk.ledger.waiting_for(0) == [0, 1, 2, 3]


# Several tasks


def tasks(requests: int = 8, least: int = 2, count: int = 2) -> Plan:
    """So many tasks over four clients, a server step for every four updates of one."""
    secure, names = Secure(cohort=least, mode="cohort"), [f"c{n}" for n in range(4)]
    made = Algorithm(FedAST(requests=requests, size=4), SGD(lr=0.5), secure=secure)
    given = {"until": Until(updates=10**6), "limits": Limits(lease=100.0), "secure": secure, "federation": "fed"}
    start = [secure.round(PROBLEM.initial())] * count
    return Plan("run", names, made.server, made.locals(count), start, **given)  # type: ignore[arg-type]


class SeveralTasks(Talk):
    """Clients that say that they are ready with the first job of their assignments."""

    def __init__(self, made: Plan) -> None:
        Log.__init__(self, made)
        self.plan, self.draw, self.members = made, drawing(5), {}
        for entry in openings(made, {name: ("", SIGNERS[name].hex(), "") for name in made.roster}):
            self.raw("", entry)
        self.begin(*made.roster)

    def listed(self, name: str) -> list[int]:
        told = write_assignment("run", self.ledger, self.reducer.index[name], Models(), lambda *_: None, roster=b"")
        return [job.task for job, _ in read_assignment(told).jobs]

    def says(self, name: str, task: int) -> None:
        """A client has trained for this task first."""
        record = self.record(name)
        (job,) = (n for n in record.queue if self.ledger.flights[n].job.task == task)
        numbers = (1, record.seq + 1, 0)
        member = self.members[name] = begin(context_of(self.plan, task), name, numbers, SIGN[name], self.draw)
        header = {"epoch": 1, "seq": numbers[1], "job": job, "steps": 1, "attempt": 0}
        self.add(name, "trained", {"keys": member.own.keys}, **header)

    def fails(self, name: str) -> None:
        """A client cannot do its first job, which is sent again."""
        record = self.record(name)
        self.add(name, "trained", epoch=1, seq=record.seq + 1, job=record.queue[0], steps=0, error="no power")


def test_one_task_s_clients_are_called_together_whatever_others_wait_for() -> None:
    talk = SeveralTasks(tasks())
    for name, task in (("c0", 0), ("c1", 1), ("c2", 0)):
        talk.says(name, task)
    assert not talk.ledger.gatherings
    talk.says("c3", 1)
    assert talk.gathering.task == 0  # nobody else is at work: the first of the tasks for which two are ready
    assert talk.gathering.clients == [0, 2]
    assert [talk.ledger.clients[n].verdict for n in range(4)] == [""] * 4


def test_where_too_few_are_ready_for_each_task_one_goes_first_and_nothing_is_lost() -> None:
    talk = SeveralTasks(tasks(least=3))
    for name, task in (("c0", 0), ("c1", 1), ("c2", 0), ("c3", 1)):
        talk.says(name, task)
    assert not talk.ledger.gatherings
    records = talk.ledger.clients
    assert [record.verdict for record in records] == ["", "crossed", "", "crossed"]
    assert [record.strikes for record in records] == [0] * 4
    assert [talk.listed(name) for name in talk.plan.roster] == [[0, 1]] * 4
    assert talk.ledger.tally.lost == 0
    for name in ("c1", "c3"):
        talk.says(name, 0)
    assert (talk.gathering.task, talk.gathering.clients) == (0, [0, 2, 1, 3])
    assert refold_of(talk) == fingerprint(talk.ledger)


def test_what_was_put_off_comes_after_the_job_that_goes_first_though_it_was_sent_before_it() -> None:
    talk = SeveralTasks(tasks(least=3))
    talk.fails("c0")
    assert talk.listed("c0") == [1, 0]
    for name, task in (("c0", 1), ("c1", 1), ("c2", 0), ("c3", 0)):
        talk.says(name, task)
    assert talk.record("c0").verdict == "crossed"
    assert talk.listed("c0") == [0, 1]


def test_every_task_has_its_turn_whatever_those_who_wait_have_trained_for() -> None:
    talk = SeveralTasks(tasks(requests=12, least=3, count=3))
    for name in ("c0", "c1", "c2", "c3", "c1", "c3"):
        talk.fails(name)
    assert [talk.listed(name) for name in talk.plan.roster] == [[1, 2, 0], [2, 0, 1]] * 2  # two ready for each at most
    called = list[int]()
    while len(called) < 6:
        if talk.ledger.gatherings:
            called.append(talk.gathering.task)
            members = [talk.plan.roster[client] for client in talk.gathering.clients]
            talk.deal(*members)
            talk.mask(*members)
            talk.reveal(*members)
        waiting = {each.client for each in talk.ledger.waiting.values()}
        for client, name in enumerate(talk.plan.roster):
            if client not in waiting and not talk.ledger.gatherings:
                talk.says(name, talk.listed(name)[0])
    assert sorted(called) == [0, 0, 1, 1, 2, 2]
    assert talk.reducer.ledger.tally.refused["crossed"] == 2


def refold_of(talk: Talk) -> str:
    """What the same log comes to again."""
    again = Reducer(talk.plan)
    for entry in talk.entries:
        again.fold(entry)
    return fingerprint(again.ledger)


def test_each_task_has_as_many_requests_as_a_sum_has_clients() -> None:
    with pytest.raises(SettingError, match=r"requests = 2: .* have to be ready at the same time"):
        tasks(requests=4, least=3)
