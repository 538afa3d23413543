"""`offbeat privacy` says what was spent, recomputed from the contributions, and what it rests on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from command import offbeat

from offbeat.core.errors import FolderError, OffbeatError
from offbeat.experiment.backup import backup, check_budgets
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.real import RunIdentity, save_identity
from offbeat.experiment.spending import LocalSpending, Spending, spending, together
from offbeat.privacy.accounting import epsilon_of, mu_of

FILE: dict[str, Any] = {
    "problem": {"data": "digits", "clients": 6},
    "timing": {"exponential": {"rate": 1.0}},
    "algorithm": {"fedbuff": {"size": 3, "local": {"sgd": {"lr": 0.5, "batch": 16}}}},
    "until": {"updates": 18},
}
PRIVACY = {"clip": 1.0, "noise": {"epsilon": 8.0, "participations": 2}}


def test_it_says_what_was_spent_and_what_that_rests_on(tmp_path: Path) -> None:
    results = Experiment.parse({**FILE, "privacy": PRIVACY}).run(tmp_path / "run", progress=False)
    assert results[0].stopped == "privacy budget"
    (found,) = spending(tmp_path / "run")
    assert found.clients == {str(c): (2, pytest.approx(8.0)) for c in range(6)}
    assert "no amplification by sampling is claimed" in (tmp_path / "run" / "report.md").read_text()
    code, out, _ = offbeat("privacy", str(tmp_path / "run"))
    assert code == 0
    assert "(8, 1e-06)-differentially private" in out
    assert "no amplification by sampling is claimed" in out
    assert "this simulation hides nothing" in out
    told = json.loads(offbeat("privacy", str(tmp_path / "run"), "--json").out)
    assert told["runs"][0]["clients"]["0"]["contributions"] == 2


def test_it_says_whose_noise_it_is_where_clients_add_it(tmp_path: Path) -> None:
    table = {**FILE, "privacy": PRIVACY, "secure": {"cohort": 3, "mode": "cohort", "bits": 17}}
    Experiment.parse(table).run(tmp_path / "run", progress=False)
    (found,) = spending(tmp_path / "run")
    said = "\n".join(found.lines)
    assert "a sum has at least 3\n  clients, of whom at least 2 tell nobody theirs" in said
    assert "a server that deviates from the protocol, or works with more members of a sum than that" in said
    assert found.kept["share"] == pytest.approx(found.kept["multiplier"] / 2**0.5)  # type: ignore[union-attr]


def test_a_run_without_privacy_has_spent_nothing_that_could_be_told(tmp_path: Path) -> None:
    Experiment.parse(FILE).run(tmp_path / "run", progress=False)
    with pytest.raises(FolderError, match="no finished run with a"):
        spending(tmp_path / "run")


DP = {"lr": 0.5, "steps": 5, "batch": 32, "clip": 1.0, "noise": {"multiplier": 1.0, "epsilon": 4.0}}


def test_it_says_what_each_client_has_spent_of_its_own_budget(tmp_path: Path) -> None:
    table = {**FILE, "algorithm": {"fedbuff": {"size": 3, "local": {"dp-sgd": DP}}}, "until": {"updates": 10**6}}
    results = Experiment.parse(table).run(tmp_path / "run", progress=False)
    assert results[0].stopped == "privacy budget"
    (found,) = spending(tmp_path / "run")
    assert all(steps % 5 == 0 and 3.5 < (epsilon or 0.0) <= 4.0 for steps, epsilon in found.clients.values())
    code, out, _ = offbeat("privacy", str(tmp_path / "run"))
    assert code == 0
    assert "unit: one sample at one client" in out
    told = json.loads(offbeat("privacy", str(tmp_path / "run"), "--json").out)
    assert told["runs"][0]["clients"]["0"]["samples"] > 0


def test_several_tasks_are_told_one_by_one_and_together(tmp_path: Path) -> None:
    task = {"data": "digits", "local": {"sgd": {"lr": 0.1, "batch": 16}}}
    table = {
        "clients": {"count": 6},
        "task": {"one": task, "two": task},
        "timing": {"exponential": {"rate": 1.0}},
        "algorithm": {"fedast": {"requests": 6, "size": 3}},
        "privacy": PRIVACY,
        "until": {"updates": 10**6},
    }
    Experiment.parse(table).run(tmp_path / "run", progress=False)
    out = offbeat("privacy", str(tmp_path / "run")).out
    assert "for every client, over all tasks together" in out
    assert "task one: 4 sums, at most 2 contributions of a client, epsilon 8" in out
    assert "6 clients: 4 contributions each" in out


def test_a_run_with_budgets_is_not_restored_from_a_backup_and_none_is_made_of_it(tmp_path: Path) -> None:
    own = {**FILE, "algorithm": {"fedbuff": {"local": {"dp-sgd": DP}}}}
    for table in ({**FILE, "privacy": PRIVACY}, own):
        with pytest.raises(OffbeatError, match="would spend more"):
            check_budgets("run", table)
    check_budgets("run", FILE)
    save_identity(tmp_path / "run", RunIdentity("run", ["a"]))
    (tmp_path / "experiment.json").write_text(json.dumps({"experiment": {**FILE, "privacy": PRIVACY}}))
    with pytest.raises(OffbeatError, match="let a second server stand by"):
        asyncio.run(backup(None, tmp_path / "run", tmp_path / "file"))  # type: ignore[arg-type]
    assert not (tmp_path / "file").exists()


def test_what_a_client_claims_to_have_spent_beyond_its_limit_is_told_and_not_composed() -> None:
    own = {"samples": 100, "batch": 10}
    clients = {"0": {"steps": 20, **own}, "1": {"steps": 2**53 - 1, **own}, "2": {"steps": 2**70}}
    found = LocalSpending(
        "run", {"multiplier": 1.0, "delta": 1e-5, "clip": 1.0, "limit": 4.0, "clients": clients}, True
    )
    assert [epsilon is None for _, epsilon in found.clients.values()] == [False, True, True]
    said = "\n".join(found.lines)
    assert "client 1: 9,007,199,254,740,991 local steps, epsilon above its limit if that were so" in said
    assert "client 2: 1,180,591,620,717,411,303,424 local steps, epsilon known to the client alone" in said
    json.dumps(found.plain, allow_nan=False)


def test_noise_that_is_worth_nothing_claims_nothing_and_a_careless_delta_is_named(tmp_path: Path) -> None:
    noise = {"multiplier": 1e-4, "participations": 2, "delta": 0.5}
    Experiment.parse({**FILE, "privacy": {"clip": 1.0, "noise": noise}}).run(tmp_path / "run", progress=False)
    code, out, _ = offbeat("privacy", str(tmp_path / "run"))
    assert code == 0
    assert "nothing is claimed: epsilon is beyond a million for every client" in out
    assert "delta = 0.5 is not below one over the 6 clients" in out
    assert "differentially private" not in out

    def refused(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    told = json.loads(offbeat("privacy", str(tmp_path / "run"), "--json").out, parse_constant=refused)
    assert told["runs"][0]["clients"]["0"]["epsilon"] is None


def test_runs_on_the_same_clients_are_told_together(tmp_path: Path) -> None:
    """Two runs of two contributions are as four contributions of one run."""
    Experiment.parse({**FILE, "privacy": PRIVACY, "trials": 2}).run(tmp_path / "run", progress=False)
    one, two = spending(tmp_path / "run")
    assert isinstance(one, Spending)
    both = epsilon_of(1e-6, mu_of(one.kept["multiplier"], 4))
    assert together([one, two]) == (pytest.approx(both), 1e-6)
    assert together([one]) is None
    said = f"All runs with a [privacy] table together, if their clients are the same: ({both:.4g}, 1e-06)-diff"
    assert said in offbeat("privacy", str(tmp_path / "run")).out
    assert said in (tmp_path / "run" / "report.md").read_text()
    told = json.loads(offbeat("privacy", str(tmp_path / "run"), "--json").out)
    assert told["together"]["epsilon"] == pytest.approx(both)


def test_a_client_that_claims_too_much_is_not_left_out_of_the_first_line() -> None:
    own = {"samples": 100, "batch": 10}
    clients = {"0": {"steps": 20, **own}, "1": {"steps": 2**53 - 1, **own}}
    found = LocalSpending(
        "run", {"multiplier": 1.0, "delta": 1e-5, "clip": 1.0, "limit": 4.0, "clients": clients}, True
    )
    assert found.lines[0] == "run: at most (4, 1e-05)-differentially private for every sample"
