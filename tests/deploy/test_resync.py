"""What a client remembers once its run was restored from a backup, with its disk and without."""

from __future__ import annotations

from dataclasses import replace

import torch
from logs import Log, plan

from offbeat.algorithms import FedAsync
from offbeat.core.local import STEPS_SPENT
from offbeat.deploy import effects
from offbeat.deploy.assignment import Models, write_assignment
from offbeat.deploy.client_core import ClientCore
from offbeat.deploy.client_state import ClientState, PendingResult, read_client_state, write_client_state
from offbeat.deploy.effects import Done, Effect

FIRST, OWN = torch.zeros(2), torch.ones(2)


def restored(times: int = 1) -> bytes:
    """The assignment of a client that has taken part as "a", of a run that was restored since."""
    log = Log(plan(FedAsync())).begin()
    for number in range(times):
        log.add("", "restored", epoch=100 + number)
    return write_assignment("run", log.reducer.ledger, 0, Models(), lambda name, data: None)


def core() -> ClientCore:
    return ClientCore("run", "a", [{"own": FIRST}], lambda: "next", retry=1e9, beat=1e9)


def asked(wants: list[Effect]) -> list[str]:
    return [each.nonce for each in wants if isinstance(each, effects.Recover)]


def test_what_only_the_client_knows_stays() -> None:
    client = core()
    client.state = ClientState("run", "a", 1, "a", accepted=True, settled=(1, 7), memory={0: {"own": OWN}})
    assert asked(client.hear(restored(), 0.0)) == []
    assert client.state.epoch == 101
    assert torch.equal(client.state.memory[0]["own"], OWN)
    assert client.undone == 7


def test_what_a_client_has_spent_of_its_budget_is_not_for_a_server_to_say() -> None:
    log, spent = Log(plan(FedAsync())).begin(), torch.tensor([90.0, 3.0])
    log.add("", "restored", epoch=100)
    log.reducer.ledger.clients[0].resync = {0: {STEPS_SPENT: torch.zeros(2), "own": OWN}}
    lie = write_assignment("run", log.reducer.ledger, 0, Models(), lambda name, data: None)
    first, mine = {"own": FIRST, STEPS_SPENT: torch.zeros(2)}, {"own": FIRST, STEPS_SPENT: spent}
    left = ClientState("run", "a", 1, "a", accepted=True, memory={0: mine})
    for disk in (True, False):
        client = ClientCore("run", "a", [first], lambda: "next", retry=1e9, beat=1e9)
        client.state = left if disk else None
        assert asked(client.hear(lie, 0.0)) == ([] if disk else ["a"])
        client.recovered(write_client_state(left), 0.0)
        assert client.state is not None
        assert client.state.memory[0][STEPS_SPENT].tolist() == [90.0 if disk else 93.0, 3.0]  # a lost disk: a job more
        assert torch.equal(client.state.memory[0]["own"], OWN)


def test_a_job_that_has_failed_is_charged_and_one_that_was_refused_is_not() -> None:
    log = Log(plan(FedAsync())).begin()
    assignment = write_assignment("run", log.reducer.ledger, 0, Models(), lambda name, data: None)
    for reason, expected in (("delta is not finite after 1 steps", 91.0), ("privacy budget: spent", 90.0)):
        client = ClientCore("run", "a", [{STEPS_SPENT: torch.zeros(2)}], lambda: "next", retry=1e9, beat=1e9)
        mine = {0: {STEPS_SPENT: torch.tensor([90.0, 3.0])}}
        client.state = ClientState("run", "a", 1, "a", accepted=True, settled=(1, 0), memory=mine)
        (train,) = (each for each in client.hear(assignment, 0.0) if isinstance(each, effects.Train))
        (saved, *_) = client.failed(train.job, reason, 0.0)
        assert isinstance(saved, effects.Save)
        assert read_client_state(saved.data).memory[0][STEPS_SPENT].tolist() == [expected, 3.0]


def test_a_held_result_that_goes_out_after_another_job_has_failed_does_not_take_that_charge_back() -> None:
    log = Log(plan(FedAsync())).begin()
    client = ClientCore("run", "a", [{STEPS_SPENT: torch.zeros(2)}], lambda: "next", retry=1e9, beat=1e9)
    mine = {0: {STEPS_SPENT: torch.tensor([90.0, 3.0])}}
    client.state = ClientState("run", "a", 1, "a", accepted=True, settled=(1, 0), memory=mine)
    client.hear(write_assignment("run", log.reducer.ledger, 0, Models(), lambda name, data: None), 0.0)
    assert client.current is not None
    held = Done(client.current, {"delta": OWN}, {STEPS_SPENT: torch.tensor([93.0, 3.0])}, 3, 0.0, 0.0, 0.0)
    client.failed(client.current, "it was too hard", 0.0)
    client.state = replace(client.state, pending=None)  # the failure was heard
    client._pend(held.job, held)
    assert client.state.memory[0][STEPS_SPENT].tolist() == [94.0, 3.0]  # 90, 1 that failed, and 3


def test_what_a_lost_disk_costs_is_not_given_back_by_the_verdict_on_the_message_before() -> None:
    """The other machine lives on: its message is settled, and it can send one more."""
    log = Log(plan(FedAsync())).begin()
    client = ClientCore("run", "a", [{STEPS_SPENT: torch.zeros(2)}], lambda: "next", retry=1e9, beat=1e9)

    def assignment() -> bytes:
        return write_assignment("run", log.reducer.ledger, 0, Models(), lambda name, data: None)

    client.hear(assignment(), 0.0)
    log.result("a", 1, log.reducer.ledger.clients[0].queue[0], 1.0)
    spent = {STEPS_SPENT: torch.tensor([9.0, 3.0])}
    pending = PendingResult(1, 1, 0, 0, log.entries[-1].data, spent)
    left = ClientState("run", "a", 1, "a", True, 1, settled=(1, 0), memory={0: spent}, pending=pending)
    client.recovered(write_client_state(left), 0.0)
    client.hear(assignment(), 0.0)
    assert client.state is not None
    assert (client.state.settled, client.state.pending) == ((1, 1), None)
    assert client.state.memory[0][STEPS_SPENT].tolist() == [12.0, 3.0]


def test_without_a_disk_it_comes_from_the_copy_that_the_backup_has() -> None:
    for times in (1, 2):  # the second time it had not come back since the first
        client = core()
        assert asked(client.hear(restored(times), 0.0)) == ["a"]
        assert asked(client.hear(restored(times), 0.0)) == ["a"]
        client.recovered(write_client_state(ClientState("run", "a", 1, "a", memory={0: {"own": OWN}})), 0.0)
        assert client.state is not None
        assert (client.state.epoch, client.state.nonce) == (100 + times, "next")
        assert torch.equal(client.state.memory[0]["own"], OWN)


def test_without_a_disk_and_a_copy_the_client_stops_instead_of_beginning_anew() -> None:
    client = core()
    client.hear(restored(), 0.0)
    ((error,),) = (each for each in client.recovered(None, 0.0) if isinstance(each, effects.Exit))
    assert "no copy of this client's memory is left; retire this client" in error


def test_a_client_that_has_never_taken_part_begins() -> None:
    log = Log(plan(FedAsync())).begin("b")
    log.add("", "restored", epoch=100)
    client = core()
    assignment = write_assignment("run", log.reducer.ledger, 0, Models(), lambda name, data: None)
    assert asked(client.hear(assignment, 0.0)) == []
    assert client.state is not None
    assert torch.equal(client.state.memory[0]["own"], FIRST)


def test_a_copy_that_was_read_before_another_machine_s_last_result_is_asked_for_again() -> None:
    log = Log(plan(FedAsync())).begin()

    def assignment() -> bytes:
        return write_assignment("run", log.reducer.ledger, 0, Models(), lambda name, data: None)

    client, left = core(), ClientState("run", "a", 1, "a", settled=(1, 0), memory={0: {"own": FIRST}})
    assert asked(client.hear(assignment(), 0.0)) == ["a"]
    log.result("a", 1, log.reducer.ledger.clients[0].queue[0], 1.0)  # the old machine is still at work
    client.hear(assignment(), 0.0)
    assert asked(client.recovered(write_client_state(left), 0.0)) == [
        "a"
    ]  # it has been overtaken; a newer one is there
    newer = replace(left, seq=1, settled=(1, 1), memory={0: {"own": OWN}})
    assert asked(client.recovered(write_client_state(newer), 0.0)) == []
    assert client.state is not None
    assert torch.equal(client.state.memory[0]["own"], OWN)
    assert client.state.epoch == 2


def test_what_an_earlier_epoch_has_sent_does_not_count_in_a_restored_run() -> None:
    log = Log(plan(FedAsync())).begin()
    job, model = log.reducer.ledger.clients[0].queue[0], log.reducer.model(0).clone()
    log.add("", "restored", epoch=100)
    assert log.result("a", 1, job, 1.0) == "fenced"
    assert log.add("a", "bye", epoch=1) == "fenced"
    assert log.add("a", "hello", epoch=2, nonce="a", after_epoch=1) == "fenced"
    assert log.reducer.ledger.tally.updates == 0
    assert torch.equal(log.reducer.model(0), model)
    assert log.add("a", "hello", epoch=101, nonce="new", after_epoch=100) == ""
    assert log.reducer.ledger.clients[0].present
