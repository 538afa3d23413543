"""The contest of docs/results/contest.md: its methods, its step sizes, its seeds and its tables."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

import offbeat as ob
from offbeat.core import names
from offbeat.core.server import Server
from offbeat.data.folder import root
from studies import contest

SHORT = argparse.Namespace(device="cpu", until=0.2, limit=1e9, processes=1)
NOT_THERE = {  # one local step makes them another method; personal models; not client-driven; several tasks
    *("afa-cd", "afa-cs", "persafl-maml", "persafl-me", "local-only", "diloco"),
    *("fedprox", "scaffold", "per-fedavg", "pfedme"),
    *("fedast", "fedast-nobuffer", "one-by-one", "sync-st", "sync-ucb-st", "sync-bayes-st"),
}


def few(monkeypatch: pytest.MonkeyPatch, *labels: str) -> None:
    tables = contest.methods()
    monkeypatch.setattr(contest, "methods", lambda: {label: tables[label] for label in labels})


def test_every_client_driven_method_of_the_catalogue_takes_part() -> None:
    taking_part = {table.get("name", label) for label, table in contest.methods().items()}
    assert taking_part == set(names.members(Server)) - NOT_THERE


def test_every_method_has_a_step_size_that_is_tuned_with_the_same_budget() -> None:
    for task in contest.TASKS.values():
        axes = dict(contest.axis(label, table, task) for label, table in contest.methods().items())
        assert len(axes) == len(contest.methods())
        assert {len(values) for values in axes.values()} == {len(task.steps)}
        for key, values in axes.items():
            ob.load(contest.FILE, {key: values[0]})


def test_tuning_and_judging_share_no_seed() -> None:
    assert len(contest.JUDGING) == 5
    assert not set(contest.TUNING) & set(contest.JUDGING)


@pytest.mark.parametrize("name", contest.clocks(12))
def test_every_clock_can_be_written_in_a_file(name: str) -> None:
    table = {k: v for k, v in ob.load(contest.FILE).table.items() if k != "algorithm"}
    clock = contest.clocks(12)[name]
    ob.Experiment.parse({**table, "timing": clock.table, "algorithm": {"m-sync": contest.methods()["m-sync"]}})


@pytest.mark.parametrize("name", contest.clocks(12))
def test_processes_share_out_all_methods_of_a_clock_and_none_twice(name: str) -> None:
    shares = [contest.taking_part(name, share, 3) for share in range(3)]
    assert sorted(label for share in shares for label in share) == sorted(contest.taking_part(name))


def there(task: str) -> bool:
    folder = {"mnist": "mnist", "cifar10": "cifar-10-batches-bin"}.get(task)
    return folder is None or (root() / folder).is_dir()


@pytest.mark.parametrize("task", ["mnist", "regression", pytest.param("cifar10", marks=pytest.mark.slow)])
def test_a_part_is_tuned_judged_and_read_again(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not there(task):
        pytest.skip(f"no {task}")
    few(monkeypatch, "m-sync", "asysg")
    path = tmp_path / f"{task}-slow-0.json"
    contest.Part(path, task, "slow", 0, SHORT).work()
    part = contest.Part(path, task, "slow", 0, SHORT)
    judged = contest.lines(part.runs, contest.TASKS[task])
    assert {line.label for line in judged} == {"m-sync", "asysg"}
    chosen = contest.best(part.runs, {line.label: contest.TASKS[task].steps for line in judged})
    assert {line.label: line.step for line in judged} == chosen
    monkeypatch.setattr(part, "_make", None)  # nothing is left to run
    part.work()
    (tmp_path / "parts").mkdir()
    path.rename(tmp_path / "parts" / path.name)
    contest.merge(tmp_path, tmp_path / "parts", [(task, "slow")])
    tables = "\n".join(contest.tables(contest.read(tmp_path))).splitlines()
    assert sum(line.startswith("| `asysg` |") for line in tables) == 1
    assert sum(line.startswith(f"| {task} | slow | `") for line in tables) == 1


def test_out_of_time_the_waves_that_ended_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few(monkeypatch, "m-sync", "asysg")
    monkeypatch.setattr(contest, "WAVE", 3)
    path = tmp_path / "regression-slow.json"
    part = contest.Part(path, "regression", "slow", 0, SHORT)
    wave, sizes = part._wave, []

    def short(wanted: list[Any]) -> None:
        sizes.append(len(wanted))
        part.memory.limit = 0 if len(sizes) == 3 else 1e9
        wave(wanted)

    monkeypatch.setattr(part, "_wave", short)
    with pytest.raises(SystemExit):
        part.work()
    assert sizes == [3, 3, 3]
    again = contest.Part(path, "regression", "slow", 0, SHORT)
    assert len(again.runs) == 6
    again.work()
    assert len({(r["method"], r["step"], r["seed"]) for r in again.runs}) == len(again.runs) == 2 * (2 * 7 + 5)


def test_the_page_has_the_tables_of_the_record() -> None:
    page = contest.FILE.parent.parent / "docs" / "results" / "contest.md"
    words, _, tables = page.read_text(encoding="utf-8").partition(contest.MARK)
    assert words
    assert tables.strip().splitlines() == "\n".join(contest.tables(contest.read(page.with_suffix("")))).splitlines()


def lines(*losses: tuple[str, list[float] | None]) -> list[dict[str, Any]]:
    """Runs on the seeds that judge; None: that diverged."""
    return [
        {"method": label, "step": 0.1, "seed": seed, "diverged": loss is None, "updates": 9, "curve": curve}
        for label, five in losses
        for seed, loss in zip(contest.JUDGING, five or [None] * 5, strict=True)
        for curve in [[] if loss is None else [[1.0, 2 * loss, 0.5], [2.0, loss, 0.9]]]
    ]


def test_who_wins_is_decided_seed_by_seed_and_a_run_that_diverged_is_the_worst() -> None:
    easy = [1.0, 2.0, 3.0, 4.0, 5.0]  # what a seed does to everybody
    runs = lines(
        ("m-sync", easy),
        ("fedbuff", [x - 0.1 for x in easy]),
        ("area", [x - 0.1 + d for x, d in zip(easy, (0.02, -0.01, 0.0, 0.03, -0.01), strict=True)]),
        ("ace", None),
    )
    found = contest.lines(runs, contest.TASKS["mnist"])
    assert [line.label for line in found] == ["fedbuff", "area", "m-sync", "ace"]
    rows = [*contest.rows(found, contest.TASKS["mnist"])]
    assert rows[2].startswith("| `fedbuff` | 2.900 ± 1.963 | -0.100 ± 0.000 | 0.900 ± 0.000 | 2.0 ± 0.0 | 9 |")
    assert rows[5].startswith("| `ace` | diverged in 5 of 5 |")
    (said,) = [*contest.winners({("mnist", "equal"): runs})][2:]
    assert said == "| mnist | equal | `fedbuff` 2.900 ± 1.963 | 1 of 3 | `fedbuff`, `area` | 1 |"
