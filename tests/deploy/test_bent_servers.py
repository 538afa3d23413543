"""Servers that bend the protocol of secure sums, and sums that an honest one could take apart."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from logs import Log, plan
from rounds import SIGN, called

from offbeat.algorithms import FedAsync
from offbeat.core.errors import SettingError
from offbeat.core.sums import Secure
from offbeat.deploy.assignment import Models, read_assignment, write_assignment
from offbeat.deploy.client_state import ClientState, read_client_state, write_client_state
from offbeat.deploy.masking import PairMasking
from offbeat.deploy.taking_part import TakingPart
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.partner import Partner
from offbeat.experiment.real import DeployOptions, PartyMaker, plan_of
from offbeat.experiment.session import Session, Spec

ONE, OTHER = (7, (0, 1, 2, 3), (4,)), (7, (0, 1, 2, 4), (3,))  # (sum, survivors, drop-outs)
ASKED = [(), (ONE,), (OTHER,), (ONE, OTHER), (OTHER, ONE), ((7, (0, 1, 2, 3, 4), ()),)]


def taking_part() -> TakingPart:
    return TakingPart(PairMasking("fed", "run", Secure(cohort=2, mode="cohort"), SIGN["c0"], b""))


@pytest.mark.parametrize("seed", range(40))
def test_however_a_server_asks_a_client_gives_its_shares_of_a_sum_away_once(seed: int) -> None:
    """In one assignment or in several, in any order, and after restarts."""
    ledger, random = Log(plan(FedAsync())).begin().reducer.ledger, Random(seed)
    told = read_assignment(write_assignment("run", ledger, 0, Models(), lambda *_: None))
    member = called(5).hear(0, range(5)).to_bytes()
    part, said = taking_part(), set[bytes]()
    state = ClientState("run", "c0", 1, "a", accepted=True, members={7: member}, cohort=7)
    for asked in random.choices(ASKED, k=6):
        assignment = replace(told, reveal=asked)
        state = part.after(state, assignment)
        said |= {each.data for each in part.tell(state, assignment)}  # type: ignore[union-attr]
        if random.random() < 0.3:
            part, state = taking_part(), read_client_state(write_client_state(state))
    assert len(said) <= 1


FILE: dict[str, Any] = {
    "problem": {"data": "digits", "clients": 3},
    "secure": {"cohort": 2, "mode": "cohort"},
    "algorithm": {"fedbuff": {"size": 3, "local": {"sgd": {"lr": 0.5, "batch": 16}}}},
    "until": {"updates": 12},
}
CHARTER = {
    "version": 1,
    "run": "run",
    "roster": [*"abc"],
    "label": "fedbuff",
    "seed": 0,
    "paced": False,
    "unit": 1.0,
    "dtype": "",
}


def dp_file(**noise: float) -> dict[str, Any]:
    local = {"dp-sgd": {"lr": 0.5, "batch": 16, "clip": 1.0, "noise": {"multiplier": 1.0, **noise}}}
    return {**FILE, "algorithm": {"fedbuff": {"size": 3, "local": local}}}


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (FILE, "trains without dp-sgd"),
        (dp_file(epsilon=9.0), "may spend epsilon = 9"),
        (dp_file(epsilon=8.0, delta=1e-4), "delta = 0.0001"),
        (dp_file(epsilon=8.0), ""),
    ],
)
def test_a_site_that_insists_on_a_budget_refuses_a_server_that_would_spend_more(
    file: dict[str, Any], said: str
) -> None:
    partner, charter = Partner(budget=(8.0, 1e-5)), {**CHARTER, "experiment": file}
    if said:
        with pytest.raises(SettingError, match=said):
            partner.party(charter, "a")
    else:
        assert partner.party(charter, "a").client == "a"


@pytest.mark.parametrize(
    ("secure", "said"),
    [
        (None, "shows its server single updates"),
        ({"cohort": 29}, "sums the updates of only 29"),
        ({"cohort": "30"}, "shows its server single updates"),
        ({"cohort": None}, "shows its server single updates"),
        ({"cohort": float("inf")}, "shows its server single updates"),
        ("all", "shows its server single updates"),
        ({"cohort": 30}, ""),
        ({}, ""),
    ],
)
def test_a_site_that_insists_on_a_cohort_takes_part_in_no_other_run_whatever_its_server_says(
    secure: Any, said: str
) -> None:
    experiment = {name: each for name, each in FILE.items() if name != "secure"}
    charter = {**CHARTER, "experiment": experiment if secure is None else {**experiment, "secure": secure}}
    found = Partner(cohort=30).objection(charter, "a")
    assert said in found
    assert bool(said) == bool(found)


def test_updates_that_would_come_twice_from_one_model_are_refused_by_server_and_clients() -> None:
    """A sum of all and one of all but one, from one model on all data, differ in that one's update."""
    whole = {**FILE, "algorithm": {"fedbuff": {"size": 3, "local": {"sgd": {"lr": 0.5}}}}}
    for file, said in ((FILE, ""), (whole, "the same update again")):
        session, spec = Session(Experiment.parse(file)), Spec("fedbuff", 0)
        for make in (
            lambda session=session, spec=spec: plan_of(session, spec, "run", [*"abc"], DeployOptions()),
            lambda file=file: PartyMaker().party({**CHARTER, "experiment": file}, "a"),
        ):
            if said:
                with pytest.raises(SettingError, match=said):
                    make()
            else:
                assert make().secure == Secure(cohort=2, mode="cohort")
