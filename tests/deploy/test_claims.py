"""What one client can do to a run with results and evaluations that are well-formed and wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from faults import freeze, same, thaw
from hypothesis import given, strategies as st
from logs import Log, plan
from worlds import MEASURED, accuracies

from offbeat.algorithms import AREA, FedAST, FedAsync, FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.until import Until
from offbeat.deploy import wire
from offbeat.deploy.admission import Limits
from offbeat.deploy.assignment import Models, read_assignment, write_assignment
from offbeat.deploy.judging import LOSS, WEIGHT, objection, weigh
from offbeat.deploy.norms import CLIENTS, UsualNorms
from offbeat.deploy.reducer import Reducer
from offbeat.deploy.server_core import AGAIN, LATE, Append, ServerCore
from offbeat.deploy.verdicts import LONGEST, PAUSE, STRIKES
from offbeat.deploy.wire import LogEntry
from offbeat.local import SGD
from offbeat.problems.metrics import F1, R2, RMSE, Accuracy
from offbeat.watch.history import History

BIG = 2**53 - 1
NAN = float("nan")


def free(server: Any, names: str = "ab", **options: Any) -> Any:
    """A plan without a fixed bound on norms."""
    return replace(plan(server, limits=Limits(size=5000), **options), roster=list(names))


def answer(log: Log, name: str, value: float) -> str:
    record = log.reducer.ledger.clients[log.reducer.index[name]]
    return log.result(name, record.seq + 1, record.queue[0], value)


# Norms


def test_the_norm_bound_is_learned_from_what_clients_usually_send() -> None:
    log = Log(free(FedAsync(lr=0.001), "abcd")).begin(*"abcd")
    assert answer(log, "a", 99.0) == "applied"  # before anything is known: 100 times the initial model, at least 100
    assert answer(log, "a", 102.0) == "norm"
    for name in "abcdabcd":
        assert answer(log, name, 1.0) == "applied"
    assert answer(log, "b", 19.0) == "applied"
    assert answer(log, "b", 21.0) == "norm"
    for _ in range(5):
        assert answer(log, "b", 19.0) == "applied"
    assert answer(log, "b", 21.0) == "norm"  # however often one client sends long ones


def test_updates_that_become_shorter_do_not_shut_out_who_comes_late() -> None:
    log = Log(free(AREA(size=1))).begin("a")

    def send(name: str, value: float) -> str:
        record = log.reducer.ledger.clients[log.reducer.index[name]]
        parts = {"residual": torch.tensor([value], dtype=torch.float64)}
        return log.result(name, record.seq + 1, record.queue[0], parts=parts)

    for _ in range(40):
        assert send("a", 1.0) == "applied"  # the model goes from 0 to 20
    for _ in range(100):
        assert send("a", 1e-9) == "applied"
    log.add("b", "hello", epoch=1, nonce="b")
    assert send("b", 20.0) == "applied"
    assert send("b", 61.0) == "norm"  # more than twice the way that the model has come, from 0 to 30
    assert send("b", 59.0) == "applied"


def test_a_fixed_bound_or_none_takes_the_place_of_the_learned_one() -> None:
    fixed = Log(plan(FedAsync(lr=1e-9), limits=Limits(size=5000, norm=5.0))).begin()
    assert (answer(fixed, "a", 4.0), answer(fixed, "a", 6.0)) == ("applied", "norm")
    none = Log(plan(FedAsync(lr=1e-9), limits=Limits(size=5000, norm=0.0))).begin()
    assert [answer(none, "a", value) for value in (1.0, 1e300)] == ["applied", "applied"]


def test_an_update_as_long_as_numbers_go_is_refused_by_default() -> None:
    log = Log(free(FedAsync(lr=0.1))).begin()
    assert answer(log, "a", 3e38) == "norm"
    assert answer(log, "a", 1.7e308) == "norm"


def test_only_so_many_clients_are_remembered_and_the_median_is_theirs() -> None:
    usual = UsualNorms()
    for client in range(2 * CLIENTS):
        usual.learn(client, {"delta": 1.0 if client < CLIENTS else 2.0}, members=200)
    assert len(usual.last) == CLIENTS
    assert usual.usual == {"delta": 2.0}
    for client in range(2 * CLIENTS):
        usual.learn(client, {"delta": 0.5}, members=200)
    assert usual.usual == {"delta": 2.0}


# Evaluations


def weighed(claims: dict[int, tuple[int, int, float]], members: int) -> Any:
    """Of (right answers, samples, summed loss) by client."""
    said = {client: (total, loss, {"accuracy": [right, total]}) for client, (right, total, loss) in claims.items()}
    return weigh(said, members, [Accuracy()])


def test_samples_count_and_a_client_weighs_at_most_so_many_medians() -> None:
    found = weighed({0: (1, 10, 5.0), 1: (9, 10, 15.0), 2: (10, 20, 20.0)}, members=3)
    assert found is not None
    assert found.metrics == {"accuracy": 0.5, "loss": 1.0}
    assert found.sure["accuracy"] == pytest.approx(11 / 30)
    lie = weighed({0: (1, 10, 5.0), 1: (5, 10, 15.0), 2: (BIG, BIG, 0.0)}, members=3)
    assert lie is not None
    assert lie.metrics["accuracy"] == pytest.approx((6 + 10 * WEIGHT) / (20 + 10 * WEIGHT))
    assert lie.sure["accuracy"] == pytest.approx(6 / 20)


def test_a_loss_that_is_no_number_counts_for_nothing_unless_half_of_the_members_have_it() -> None:
    one = weighed({0: (1, 10, NAN), 1: (1, 10, 20.0), 2: (1, 10, 10.0)}, members=3)
    assert one is not None
    assert (one.metrics["loss"], one.diverged) == (1.5, False)
    alone = weighed({0: (1, 10, NAN)}, members=3)
    assert alone is not None
    assert ("loss" in alone.metrics, alone.diverged) == (False, False)
    half = weighed({0: (1, 10, NAN), 1: (1, 10, 11 * LOSS)}, members=4)
    assert half is not None
    assert half.diverged
    only = weighed({0: (9, 10, NAN)}, members=1)
    assert only is not None
    assert (only.diverged, only.sure["accuracy"]) == (True, 0.9)
    assert weighed({0: (0, 0, 0.0)}, members=1) is None


REGRESSION = [RMSE(), R2()]


def claim(guess: list[float], right: list[float]) -> tuple[int, float, dict[str, list[float]]]:
    both = torch.tensor(guess), torch.tensor(right)
    return len(right), 1.0, {score.name: score.state(*both).tolist() for score in REGRESSION}


def test_sums_of_any_metric_are_weighed_together_as_if_one_had_all_samples() -> None:
    parts = [([1.0, 2.0], [1.5, 2.5]), ([3.0, 5.0], [3.0, 4.0]), ([0.0, 1.0], [0.5, 0.0])]
    found = weigh({client: claim(*part) for client, part in enumerate(parts)}, 3, REGRESSION)
    whole = claim([g for guess, _ in parts for g in guess], [r for _, right in parts for r in right])[2]
    assert found is not None
    assert found.metrics["rmse"] == pytest.approx(RMSE().value(torch.tensor(whole["rmse"])))
    assert found.metrics["r2"] == pytest.approx(R2().value(torch.tensor(whole["r2"])))


def test_without_the_client_that_helps_most_an_error_is_higher() -> None:
    honest = {0: claim([1.0, 2.0], [2.0, 3.0]), 1: claim([4.0, 0.0], [3.0, 1.0])}
    lie = {**honest, 2: claim([5.0] * 8, [5.0] * 8)}
    found, without = weigh(lie, 3, REGRESSION), weigh(honest, 2, REGRESSION)
    assert found is not None
    assert without is not None
    assert found.sure is not None
    assert found.metrics["rmse"] < without.metrics["rmse"] == pytest.approx(found.sure["rmse"])
    alone = weigh({0: honest[0]}, 3, REGRESSION)
    assert alone is not None
    assert alone.sure == {"rmse": float("inf"), "r2": float("-inf"), "loss": float("inf")}


def test_who_claims_more_samples_than_others_is_scaled_down() -> None:
    claims = {0: claim([0.0], [1.0]), 1: claim([0.0], [1.0]), 2: (BIG, 0.0, {"rmse": [0.0, float(BIG)]})}
    found = weigh(claims, 3, REGRESSION)
    assert found is not None
    assert found.metrics["rmse"] == pytest.approx((2 / (2 + WEIGHT)) ** 0.5)


def test_sums_of_another_length_do_not_count() -> None:
    scores = [F1()]
    good = {client: (2, 1.0, {"f1": [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]}) for client in range(2)}
    found = weigh({**good, 2: (2, 1.0, {"f1": [0.0, 9.0, 9.0]})}, 3, scores)
    assert found is not None
    assert found.metrics["f1"] == 1.0


@pytest.mark.parametrize(
    ("sums", "says"),
    [
        ({"accuracy": [3.0, 2.0]}, "accuracy is a share, not 1.5"),
        ({"accuracy": [-1.0, -2.0]}, "a sum of accuracy is negative"),
        ({"accuracy": [1.0]}, "1 sums of accuracy, not 2"),
        ({"rmse": [1.0, 2.0]}, "no metric 'rmse'"),
    ],
)
def test_sums_that_cannot_be_are_refused(sums: dict[str, list[float]], says: str) -> None:
    log = Log(free(FedBuff(size=2))).begin()
    log.add("", "asked", task=0)
    assert log.add("a", "judged", epoch=1, number=1, total=2, sums=sums) == "malformed"
    assert log.reducer.ledger.judging[0].claims == {}
    scores = {"accuracy": Accuracy()}
    wrong = [objection(scores[name], each) for name, each in sums.items() if name in scores] or ["no metric 'rmse'"]
    assert wrong == [says]


def test_a_run_ends_at_an_error_that_clients_measure() -> None:
    until, scores = Until(updates=99, rmse=0.5), [[RMSE()]]
    log = Log(free(FedBuff(size=2), "abc", until=until, scores=scores)).begin(*"abc")
    for number, errors in enumerate([(0.0, 4.0, 4.0), (0.0, 0.2, 0.2)], 1):
        log.add("", "asked", task=0)
        for name, error in zip("abc", errors, strict=True):
            log.add(name, "judged", epoch=1, number=number, total=1, sums={"rmse": [error, 1.0]})
        assert log.reducer.ledger.stopped == ("" if number == 1 else "rmse")


CLAIMS = st.tuples(st.integers(0, BIG), st.integers(0, BIG), st.just(NAN) | st.floats(-1e30, 1e30)).map(
    lambda claim: (min(claim[:2]), max(claim[:2]), claim[2])
)


@given(st.dictionaries(st.integers(0, 20), CLAIMS, max_size=8), st.integers(1, 20))
def test_no_claims_are_too_strange(claims: Any, members: int) -> None:
    found = weighed(claims, members)
    if found is not None:
        assert 0 <= found.sure["accuracy"] <= 1 + 1e-9
        assert 0 <= found.metrics["accuracy"] <= 1 + 1e-9
        assert abs(found.metrics.get("loss", 0.0)) <= LOSS * (1 + 1e-9)


def test_no_client_ends_a_run_alone_with_what_it_claims() -> None:
    history = History()
    log = Log(free(FedBuff(size=2), "abc", until=Until(updates=99, accuracy=0.9), metrics=[MEASURED]), history).begin(
        *"abc"
    )
    log.add("", "asked", task=0)
    for name, right, total in (("b", 0, 10), ("c", 1, 10), ("a", BIG, BIG)):
        log.add(name, "judged", epoch=1, number=1, total=total, loss=1.0, sums={"accuracy": [right, total]})
    assert history.measurements[-1].metrics["accuracy"] < 0.7
    assert log.reducer.ledger.stopped == ""
    log.add("", "asked", task=0)
    log.add("a", "judged", epoch=1, number=2, total=BIG, loss=0.0, sums={"accuracy": [BIG, BIG]})
    log.add("", "asked", task=0)  # the others have not answered
    assert log.reducer.ledger.stopped == ""
    for name in "abc":
        log.add(name, "judged", epoch=1, number=3, total=10, loss=0.0, sums={"accuracy": [10, 10]})
    assert log.reducer.ledger.stopped == "accuracy"


def test_nor_a_task() -> None:
    made = Algorithm(FedAST(requests=2, targets=accuracies(0.9, 0.9)), SGD(lr=0.1))
    base = free(FedAsync(lr=0.1), "abc")
    log = Log(replace(base, server=made.server, locals=made.locals(2), initial=[*base.initial] * 2)).begin(*"abc")
    log.add("", "asked", task=1)
    for name, right in (("a", 0), ("b", 0), ("c", BIG)):
        log.add(
            name, "judged", epoch=1, number=1, total=max(right, 1), loss=0.0, sums={"accuracy": [right, max(right, 1)]}
        )
    assert log.reducer.ledger.finished == {}


def test_one_client_s_nan_ends_no_run() -> None:
    log = Log(free(FedBuff(size=2), "abc")).begin(*"abc")
    log.add("", "asked", task=0)
    log.add("a", "judged", epoch=1, number=1, total=10, loss=0.0, diverged=True)
    log.add("", "asked", task=0)
    assert log.reducer.ledger.stopped == ""
    for name in "ab":
        log.add(name, "judged", epoch=1, number=2, total=10, loss=0.0, diverged=True)
    log.add("", "asked", task=0)
    assert log.reducer.ledger.stopped == "diverged"


def test_more_right_answers_than_answers_are_refused() -> None:
    log = Log(free(FedBuff(size=2))).begin()
    log.add("", "asked", task=0)
    assert log.add("a", "judged", epoch=1, number=1, total=10, loss=0.0, sums={"accuracy": [11, 10]}) == "malformed"
    assert log.reducer.ledger.judging[0].claims == {}


# Pauses


def jobs(log: Log, client: int) -> int:
    """The jobs that a client is shown."""
    return len(
        read_assignment(write_assignment("run", log.reducer.ledger, client, Models(), lambda name, data: None)).jobs
    )


@pytest.mark.parametrize("how", ["refused", "failed"])
def test_a_client_whose_results_are_of_no_use_gets_work_after_a_growing_pause(how: str) -> None:
    log = Log(plan(FedAsync(lr=0.1))).begin()
    record, ledger = log.reducer.ledger.clients[0], log.reducer.ledger

    def useless() -> None:
        given = {"value": NAN} if how == "refused" else {"error": "broken", "parts": {}}
        log.result("a", record.seq + 1, record.queue[0], **given)

    for _ in range(STRIKES - 1):
        useless()
        assert (record.paused, jobs(log, 0)) == (False, 1)
    pauses = []
    for _ in range(11):
        useless()
        assert (record.paused, jobs(log, 0), len(record.queue)) == (True, 0, 1)
        ((number, (when, _)),) = ledger.alarms.items()
        pauses.append(when - ledger.now)
        assert log.result("a", record.seq + 1, record.queue[0]) == "paused"  # it guesses its next job
        assert jobs(log, 1) == 1  # the others go on
        log.add("", "rung", wait=when - ledger.now, alarm=number)
        assert (record.paused, jobs(log, 0), ledger.alarms) == (False, 1, {})
        assert ledger.flights[record.queue[0]].since == ledger.now  # its lease begins
    assert pauses == pytest.approx([min(PAUSE * 2**n, LONGEST) for n in range(11)])
    assert log.result("a", record.seq + 1, record.queue[0]) == "applied"
    assert record.strikes == 0
    useless()
    assert not record.paused
    again = Reducer(log.reducer.plan)
    for entry in log.entries:
        again.fold(entry)
    assert same(freeze(again.ledger), freeze(ledger))


def test_a_pause_ends_by_an_entry_that_the_server_asks_for_also_after_a_restart() -> None:
    log = Log(plan(FedAsync(lr=0.1))).begin()
    for number in range(STRIKES):
        log.result("a", number + 1, log.reducer.ledger.clients[0].queue[0], NAN)
    core = ServerCore(log.reducer.plan, thaw(freeze(log.reducer.ledger)))
    assert core.due(0.0) == []
    (rung,) = core.due(PAUSE + 0.01)
    assert isinstance(rung, Append)
    log.now += PAUSE
    log.raw("", rung.data)
    assert not log.reducer.ledger.clients[0].paused


def test_clients_are_asked_for_the_next_evaluation_when_it_is_due_although_the_last_was_asked_for_just_now() -> None:
    log = Log(plan(FedAsync(lr=0.1))).begin()
    core = ServerCore(log.reducer.plan, log.reducer.ledger, every=1.0, asks=True)
    for clock in (0.0, 1.5, 3.0):
        (asked,) = core.due(clock)
        assert isinstance(asked, Append)
        assert core.due(clock + 0.3) == []  # it is on its way
        entry = LogEntry(log.seq + 1, log.now + clock, "", asked.data)
        log.seq += 1
        core.fold(entry, clock + 0.4)
    assert log.reducer.ledger.asked == 3


def test_an_evaluation_is_not_made_again_while_its_score_is_on_its_way_into_the_log() -> None:
    log = Log(plan(FedAsync(lr=0.1))).begin()
    core = ServerCore(log.reducer.plan, log.reducer.ledger, every=1.0)
    assert core.next_evaluation(0.0) == [0]
    _, when, updates, version = core.evaluated(0, 0.0)
    assert core.next_evaluation(9.0) == []  # it takes a while
    scored = core.score(0, when, updates, version, {"loss": 1.0})
    assert core.next_evaluation(9.1) == []
    assert core.next_evaluation(9.1 + AGAIN) == [0]  # it was lost
    log.seq += 1
    core.fold(LogEntry(log.seq, log.now, "", scored.data), 20.0)
    assert core.next_evaluation(20.1) == []
    assert core.next_evaluation(21.1) == [0]


def test_no_client_keeps_a_run_from_ending_by_talking_after_its_end() -> None:
    """One that owes an answer to the last evaluation, and greets again and again instead."""
    log = Log(plan(FedAsync(lr=0.1))).begin()
    core = ServerCore(log.reducer.plan, log.reducer.ledger, every=1.0, asks=True)

    def add(sender: str, header: wire.Header, clock: float) -> None:
        log.seq += 1
        core.fold(LogEntry(log.seq, log.now, sender, wire.say(header)), clock)

    add("", wire.Asked("run", 0), 1.0)
    add("", wire.Halted("run", "enough"), 2.0)
    (judging,) = core.ledger.judging.values()
    add("a", wire.Judged("run", "a", 1, judging.number, 10, 1.0), 2.0 + 0.9 * LATE)
    for clock in range(7, 7 + int(LATE)):
        add("b", wire.Hello("run", "b", 1, "b"), float(clock))
        assert core.due(float(clock) - 0.5) == []  # it may still answer
    (counted,) = core.due(2.0 + 2 * LATE)
    assert isinstance(counted, Append)
    core.fold(LogEntry(log.seq + 1, log.now, "", counted.data), 13.0)
    assert core.ledger.judging == {}


def test_coming_back_does_not_end_a_pause() -> None:
    log = Log(plan(FedAsync(lr=0.1))).begin()
    for number in range(STRIKES):
        log.result("a", number + 1, log.reducer.ledger.clients[0].queue[0], NAN)
    log.add("a", "bye", epoch=1)
    log.add("a", "hello", epoch=2, nonce="z", after_epoch=1, after_seq=STRIKES)
    assert (log.reducer.ledger.clients[0].paused, jobs(log, 0)) == (True, 0)


def test_late_results_and_results_that_nobody_called_for_are_no_reason_for_a_pause() -> None:
    log = Log(plan(FedAsync(lr=0.1))).begin()
    for number in range(2 * STRIKES):
        log.add("", "expired", job=log.reducer.ledger.clients[0].queue[0])
        assert log.result("a", number + 1, 0) == "late"
    assert not log.reducer.ledger.clients[0].paused


def test_no_more_is_admitted_than_can_be_sealed() -> None:
    with pytest.raises(SettingError, match="sealed at once"):
        Limits(size=1 << 31)
