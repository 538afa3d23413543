"""What of the papers' figures has no record: planned, run, kept and drawn by `studies.remaining`."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from offbeat.papers import names
from studies import figures, persafl, remaining

SMALL = ("clients.count=30 task.0.data=digits task.0.model=softmax task.0.split=iid until.time=40 "
         "evaluate.every=10 algorithm.sync-st.sampled=20 sweep={\"algorithm.sync-st.first\"=[3,10]}")  # fmt: skip
GIVEN = argparse.Namespace(device="cpu", processes=1, limit=60.0, share=1.0, grid=None)


def test_a_plan_is_run_packed_and_kept_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, results = tmp_path / "folder", tmp_path / "results"
    wave = f"fedast-fig10/mnist {SMALL}"
    waves = remaining.plan(results, folder, [wave])
    folder.mkdir()
    figures.write(folder / "plan.json", {"waves": waves})
    for words in ([], ["--pack", str(tmp_path / "records.zip"), "--wait", "60"]):
        monkeypatch.setattr(sys, "argv", ["figures", str(folder), *words])
        figures.main()
    monkeypatch.setattr(sys, "argv", ["remaining", "keep", str(tmp_path / "records.zip"), "--results", str(results)])
    remaining.main()
    kept = json.loads((results / "fedast" / "fig10.json").read_text())
    assert len(kept["runs"]) == 6
    assert all(run["finished"] for run in kept["runs"])
    page = (results / "fedast" / "fig10.md").read_text()
    assert "a larger k makes rounds longer (mnist)" in page
    assert "6 runs are recorded" in page
    assert (results / "fedast" / "fig10-curves.png").stat().st_size > 1000
    again = [*remaining.keep(folder, results)]
    assert len(again) == 1
    assert json.loads((results / "fedast" / "fig10.json").read_text()) == kept


@pytest.mark.parametrize(("device", "share", "given"), [("cuda", 1.0, 0.99), ("cuda", 0.2, 0.2), ("cpu", 1.0, 1.0)])
def test_processes_know_that_they_share_a_gpu(
    monkeypatch: pytest.MonkeyPatch, device: str, share: float, given: float
) -> None:
    """Programs of one kernel that wait for each other do so only in a process that has all of the GPU."""
    monkeypatch.setattr(figures, "ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(1))
    monkeypatch.setattr(figures, "_work", lambda folder, wave, given, until: str(given.share))
    settings = {**vars(GIVEN), "device": device, "share": share, "processes": 2}
    assert [*figures.run(Path(), [{"wave": "one"}], argparse.Namespace(**settings))] == [str(given)]


def test_runs_with_the_same_settings_are_planned_once_and_kept_for_each_entry(tmp_path: Path) -> None:
    plain = " problem.data=digits problem.model=softmax problem.clients=20 trials=1 until.time=3 evaluate.every=1"
    first, second = f"defedavg-fig7/fashion-iid/K-50{plain}", f"defedavg-fig6/fashion-iid/n-10,n-20{plain}"
    planned = remaining.plan(tmp_path, None, [first, second])
    assert [[run["algorithm"] for run in wave["runs"]] for wave in planned] == [["K-50"], ["n-20"]]


def test_what_docs_results_has_is_not_planned() -> None:
    """Table 3's Sync-ST at the main targets is that of figure 7."""
    assert not remaining.plan(remaining.RESULTS, None, ["fedast-fig10/mnist", "fedast-table3/sync"])


def test_runs_of_an_earlier_form_are_planned_again(tmp_path: Path) -> None:
    """Figure 24's dynamic allocation at the main targets is FedAST of figure 7, whose buffers were not rounded up."""
    shutil.copytree(remaining.RESULTS / "fedast", tmp_path / "fedast")
    for later in ("fig24", "table3"):
        (tmp_path / "fedast" / f"{later}.json").unlink()
    (wave,) = remaining.plan(tmp_path, None, ["fedast-fig24/main"])
    assert {run["algorithm"] for run in wave["runs"]} == {"static", "dynamic"}
    assert not remaining.plan(remaining.RESULTS, None, ["fedast-fig24/main"])


def test_a_record_without_server_steps_does_not_serve_a_figure_over_rounds() -> None:
    """DeFedAvg's table has runs of figure 6's settings, recorded over time alone and as DeFedAvg-IID was then."""
    (wave,) = remaining.plan(remaining.RESULTS, None, ["defedavg-fig6/fashion-iid/n-10,n-20"])
    assert sorted((run["algorithm"], run["seed"]) for run in wave["runs"]) == [("n-20", 0), ("n-20", 1), ("n-20", 2)]


def test_every_wave_is_of_an_entry_and_the_most_valuable_come_first() -> None:
    assert {wave.name.split("/")[0] for wave in remaining.WAVES} <= set(names())
    assert len({figures.slug(wave.name) for wave in remaining.WAVES}) == len(remaining.WAVES)
    values = [wave.claims / wave.seconds for wave in remaining.WAVES]
    assert sorted(values, reverse=True)[:5] == sorted(values[:5], reverse=True)


def test_a_part_of_personalised_methods_is_a_wave_that_may_run_out_of_time(tmp_path: Path) -> None:
    small = "problem.data=digits problem.model=softmax until.time=12 evaluate={every=6,personal={steps=1,clients=3}}"
    (wave,) = remaining.plan(tmp_path, None, [f"persafl-fig2/cifar10-rest {small}"])
    (line,) = figures.run(tmp_path, [wave], argparse.Namespace(**{**vars(GIVEN), "limit": 0.5}))
    assert line.startswith("persafl-fig2/cifar10-rest")
    runs = json.loads((tmp_path / "cifar10-rest.json").read_text())["runs"]
    (line,) = figures.run(tmp_path, [wave], GIVEN)
    more = json.loads((tmp_path / "cifar10-rest.json").read_text())["runs"]
    assert len(more) == 9 + 6 * len(persafl.JUDGING) >= len(runs)
    assert [*remaining.keep(tmp_path, tmp_path / "results")] == ["persafl-fig2: CIFAR-10 at t = 12"]
    assert "cifar10/fedasync:personal" in (tmp_path / "results" / "persafl" / "cifar10.md").read_text()
