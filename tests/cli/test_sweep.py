"""`offbeat sweep`: which runs a grid has, that they end as they would alone, and that nothing is lost on the way."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from command import DIGITS, QUADRATIC, TASKS, Outcome, ended, events, offbeat, sets, started, wait_for
from safetensors.torch import load_file
from worlds import MEASURED

from offbeat.core.errors import OffbeatError
from offbeat.core.metric import LOSS, Metric
from offbeat.core.watcher import Measurement
from offbeat.experiment import sweep_workers as crew
from offbeat.experiment.folder import create
from offbeat.experiment.grid import Grid
from offbeat.experiment.logbook import Logbook
from offbeat.experiment.ranking import judged_by, missing, ranked
from offbeat.experiment.sweep_display import SweepDisplay
from offbeat.watch.results import Result, TaskResult

RATES = '\n[sweep]\n"algorithm.*.local.sgd.lr" = [0.2, 0.5]\n'


def grid(sweep: str, text: str = QUADRATIC, top: str = "") -> Grid:
    return Grid(tomllib.loads(f"{top}\n{text}\n[sweep]\n{sweep}"))


def runs(found: Grid) -> list[tuple[Any, ...]]:
    return [(p.label, p.seed, *p.settings.values()) for p in found.points]


def sweep(folder: Path, text: str, *arguments: str | Path) -> Outcome:
    file = folder / "sweep.toml"
    file.write_text(text, encoding="utf-8")
    return offbeat("sweep", file, "--out", folder / "out", *arguments)


def lines(folder: Path) -> list[dict[str, Any]]:
    """What runs.jsonl says, by the number of the run."""
    found = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    return sorted(found, key=lambda r: int(r["run"]))


def same(found: Path, expected: Path) -> bool:
    """Whether two sweeps came to the same results; lengths of models may differ by what batches round."""
    for a, b in zip(lines(found), lines(expected), strict=True):
        assert a.pop("vectors") == pytest.approx(b.pop("vectors"), rel=1e-5)
        for curve in (a.pop("curve"), b.pop("curve")):
            a.setdefault("curves", []).append([m[:4] for m in curve])
        assert a["curves"][0] == a.pop("curves")[1]
        assert a.pop("metrics") == pytest.approx(b.pop("metrics"), rel=1e-4)
        for result in (a, b):
            del result["executor_reason"]  # says whether it was resumed
            result.pop("measures", None)  # of runs with events
        assert a == b
    return True


# Grids


def test_every_algorithm_under_every_seed_at_every_combination() -> None:
    found = grid('"algorithm.*.local.sgd.lr" = [0.1, 0.2]\n"problem.noise" = [0, 1]', top="seed = 3\ntrials = 2")
    assert runs(found)[:4] == [("area", 3, 0.1, 0), ("area", 3, 0.1, 1), ("area", 3, 0.2, 0), ("area", 3, 0.2, 1)]
    assert len(set(runs(found))) == len(runs(found)) == 2 * 2 * 2 * 2
    assert [p.number for p in found.points] == list(range(16))
    point = found.points[5]
    assert point.name == "fedasync, lr = 0.1, noise = 1, seed 3"
    assert point.table["problem"]["noise"] == 1
    assert [a["local"]["sgd"]["lr"] for a in point.table["algorithm"].values()] == [0.1]
    assert (point.table["seed"], point.table["trials"]) == (3, 1)


def test_keys_of_one_algorithm_multiply_its_runs_alone() -> None:
    found = grid('"algorithm.area.size" = [1, 2, 3]\n"algorithm.1.local.sgd.lr" = [0.1, 0.2]')
    assert runs(found) == [("area", 0, e) for e in (1, 2, 3)] + [("fedasync", 0, lr) for lr in (0.1, 0.2)]


def test_nested_tables_are_dotted_keys_and_values_may_be_tables() -> None:
    found = grid("[sweep.timing.exponential]\nrate = [10.0, { normal = [10, 5], min = 0.5 }]")
    assert [p.table["timing"]["exponential"]["rate"] for p in found.points[:2]] == [
        10.0,
        {"normal": [10, 5], "min": 0.5},
    ]
    assert [p.name for p in found.points] == [
        f"{label}, rate = {rate}, seed 0"
        for label in ("area", "fedasync")
        for rate in ("10", "{normal: [10, 5], min: 0.5}")
    ]


def test_keys_that_are_joined_get_the_same_value() -> None:
    found = grid('"algorithm.area.local.sgd.lr & algorithm.fedasync.local.sgd.lr" = [0.1, 0.2]')
    assert [(p.label, p.table["algorithm"][p.label]["local"]["sgd"]["lr"]) for p in found.points] == [
        *(("area", lr) for lr in (0.1, 0.2)),
        *(("fedasync", lr) for lr in (0.1, 0.2)),
    ]


def test_seeds_may_be_named_one_by_one() -> None:
    assert runs(grid("seed = [7, 3]"))[::2] == [("area", 7), ("area", 3)]


REFUSED = {
    "sweep.problem.noise = 3: give a list of at least one value": '"problem.noise" = 3',
    "sweep.problem.noise = []: give a list": '"problem.noise" = []',
    "nois": '"problem.nois" = [1]',
    "sweep, area, lr = -1, seed 0: ": '"algorithm.*.local.sgd.lr" = [0.1, -1.0]',
    "lr = fast": '"algorithm.*.local.sgd.lr" = ["fast"]',
    "'fedbuf' matches none of area, fedasync": '"algorithm.fedbuf.size" = [1]',
    "name a key of an algorithm, as in algorithm.*.lr": "algorithm = [1]",
    "name a key of an algorithm, as in algorithm.area.lr": '"algorithm.area" = [1]',
    "trials is the same for all runs; set it outside": "trials = [1, 2]",
    "executor is the same for all runs": 'executor = ["serial"]',
    "trackers is the same for all runs": 'trackers.wandb = ["a"]',
    "sweep.seed holds 'x': seeds are whole numbers": 'seed = [1, "x"]',
    "sweep.seed holds 0.5": "seed = [0.5]",
    "sweep.seed = [3, 3]: 3 is given twice": "seed = [3, 3]",
    "lr = [0.1, 0.2, 0.1]: 0.1 is given twice; leave one out": '"algorithm.*.local.sgd.lr" = [0.1, 0.2, 0.1]',
    "lies within": '"problem.data.name" = ["digits"]',
}


@pytest.mark.parametrize(("says", "axes"), REFUSED.items(), ids=REFUSED)
def test_bad_keys_and_values_are_one_clear_line_before_anything_runs(says: str, axes: str, tmp_path: Path) -> None:
    outcome = sweep(tmp_path, f"{QUADRATIC}\n[sweep]\n{axes}", "--workers", "1")
    assert outcome.code == 1
    assert says in outcome.err
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("offbeat: ")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_there_is_found_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    text = "to be or not to be, that is the question. " * 30
    for name in "ab":
        (tmp_path / "there" / f"{name}.txt").write_text(text)
    data = f'problem.data={{ texts = {{ folder = "{tmp_path}/there", window = 8 }} }}'
    axes = f'\n[sweep]\n"problem.data.texts.folder" = ["{tmp_path}/there", "{tmp_path}/gone"]\n'
    given = sets(data, "problem.clients=2", "problem.split=owners", "problem.model=gpt", "algorithm.*.local.sgd.lr=0.1")
    outcome = sweep(tmp_path, DIGITS + axes, "--workers", "1", *given)
    assert outcome.code == 1
    assert f"problem.data.texts: {tmp_path}/gone is not there" in outcome.err
    assert not (tmp_path / "out").exists()


def test_seeds_and_trials_are_not_both_for_saying_which_seeds() -> None:
    with pytest.raises(OffbeatError, match=r"sweep\.seed and trials both set"):
        grid("seed = [1]", top="trials = 2")


def test_what_a_sweep_needs_and_what_it_cannot_have(tmp_path: Path) -> None:
    assert "has no [sweep] table" in sweep(tmp_path, QUADRATIC).err
    assert "ranked by 'time:often'" in sweep(tmp_path, QUADRATIC + RATES, "--best", "time:often").err
    assert "use --workers N" in sweep(tmp_path, QUADRATIC + RATES, "--set", "executor=processes").err
    broken = sweep(tmp_path, DIGITS + RATES, "--set", "problem.data=own")
    assert broken.code == 1
    assert not (tmp_path / "out").exists()
    (tmp_path / "sweep.toml").write_text(QUADRATIC + RATES)
    refused = offbeat("run", tmp_path / "sweep.toml", "--out", tmp_path / "out")
    assert (refused.code, refused.err.count("\n")) == (1, 1)
    assert "run it with `offbeat sweep" in refused.err


# Results


@pytest.fixture(scope="module", params=["1", "2"], ids=["one worker", "two workers"])
def swept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """A sweep of data and one of quadratics share nothing but their code: here the data, with events."""
    place = tmp_path_factory.mktemp("swept")
    return place, sweep(place, "trials = 2\n" + DIGITS + RATES, "--json", "--events", "--workers", request.param)


def test_every_run_is_what_offbeat_run_makes_of_it(swept: tuple[Path, Outcome], tmp_path: Path) -> None:
    place, outcome = swept
    assert outcome.code == 0, outcome.err
    results = lines(place / "out")
    assert len(results) == 8
    file = tmp_path / "one.toml"
    file.write_text(DIGITS)
    for lr in (0.2, 0.5):
        folder = tmp_path / f"{lr}"
        alone = offbeat(
            *("run", file, "--out", folder, "--json", "--set", "trials=2", "--set", f"algorithm.*.local.sgd.lr={lr}")
        )
        for expected in alone.runs:
            (mine,) = [
                r
                for r in results
                if (r["algorithm"], r["seed"], *r["settings"].values()) == (expected["algorithm"], expected["seed"], lr)
            ]
            single = folder / f"{expected['algorithm']}-{expected['seed']}"
            assert repr(events(place / "out" / "runs" / f"{mine['run']:05d}")) == repr(events(single))
            (model,) = load_file(single / "model.safetensors").values()
            assert list(mine["vectors"].values()) == pytest.approx([float(torch.linalg.vector_norm(model))], rel=1e-4)
            assert mine["metrics"] == pytest.approx(expected["metrics"], rel=1e-3)
            for name in ("updates", "versions", "time", "time_to", "staleness", "measures"):
                assert mine[name] == expected[name]


def test_json_has_the_runs_and_the_settings_from_best_to_worst(swept: tuple[Path, Outcome]) -> None:
    place, outcome = swept
    found = json.loads(outcome.out)
    assert found == json.loads((place / "out" / "summary.json").read_text())
    assert set(found) == {"runs", "best", "judged_by", "wall_s", "updates", "workers"}
    assert [r["run"] for r in found["runs"]] == list(range(8))
    assert found["updates"] == sum(r["updates"] for r in found["runs"])
    assert found["judged_by"] == "accuracy"
    assert len(found["best"]) == 4
    for line in found["best"]:
        mine = [
            r["metrics"]["accuracy"]
            for r in found["runs"]
            if (r["algorithm"], r["settings"]) == (line["algorithm"], line["settings"])
        ]
        assert (line["seeds"], line["reached"], line["diverged"]) == (2, 2, 0)
        assert line["mean"] == pytest.approx(sum(mine) / 2)
        assert (line["min"], line["max"]) == (min(mine), max(mine))
    means = [line["mean"] for line in found["best"]]
    assert means == sorted(means, reverse=True)


def test_two_tables_hold_all_runs_and_all_their_measurements(swept: tuple[Path, Outcome]) -> None:
    place, _ = swept
    results = lines(place / "out")
    table = pq.read_table(place / "out" / "runs.parquet").to_pylist()
    assert [row["run"] for row in table] == list(range(8))
    for row, result in zip(table, results, strict=True):
        assert (row["algorithm"], row["seed"], row["updates"]) == (
            *(result["algorithm"], result["seed"], result["updates"]),
        )
        assert row["algorithm.*.local.sgd.lr"] == result["settings"]["algorithm.*.local.sgd.lr"]
        assert (row["accuracy"], row["error"]) == (result["metrics"]["accuracy"], None)
        assert row["time_to_0.8"] == result["time_to"]["0.8"]
    curves = pq.read_table(place / "out" / "metrics.parquet").to_pylist()
    assert [(m["run"], m["time"], m["loss"]) for m in curves] == [
        (r["run"], m[1], m[4]["loss"]) for r in results for m in r["curve"]
    ]


@pytest.mark.slow
def test_the_same_sweep_with_other_workers_says_the_same(tmp_path: Path) -> None:
    for workers in ("1", "2"):
        (tmp_path / workers).mkdir()
        outcome = sweep(tmp_path / workers, "trials = 2\n" + QUADRATIC + RATES, "--workers", workers)
        assert outcome.code == 0, outcome.err
        assert "8 runs, 3,200 updates in" in outcome.out
        assert f"with {workers} workers" in outcome.out
    assert same(tmp_path / "2" / "out", tmp_path / "1" / "out")
    assert not (tmp_path / "1" / "out" / "runs").exists()  # nobody asked for events


def best(folder: Path, *arguments: str) -> tuple[Outcome, list[dict[str, Any]]]:
    outcome = sweep(folder, DIGITS + RATES, "--json", "--workers", "1", *arguments)
    found: list[dict[str, Any]] = json.loads(outcome.out)["best"]
    return outcome, found


def test_the_best_may_be_that_of_another_metric_or_of_a_time(tmp_path: Path) -> None:
    for name, sign in (("loss", 1.0), ("accuracy", -1.0), ("time:0.3", 1.0)):
        folder = tmp_path / name
        folder.mkdir()
        outcome, found = best(folder, "--best", name)
        means = [sign * line["mean"] for line in found if line["mean"] is not None]
        assert means == sorted(means)
        assert [line["mean"] is None for line in found] == sorted(line["mean"] is None for line in found)
        assert outcome.code == 0
    result = lines(tmp_path / "time:0.3" / "out")  # no target of the file: it is looked up in the curves
    for line in found:
        (mine,) = [r for r in result if (r["algorithm"], r["settings"]) == (line["algorithm"], line["settings"])]
        assert line["mean"] == next((m[1] for m in mine["curve"] if m[4]["accuracy"] >= 0.3), None)
    assert any(line["mean"] for line in found)


def test_settings_that_never_reach_the_target_are_last(tmp_path: Path) -> None:
    _, found = best(tmp_path, "--best", "time:0.999")
    assert [(line["reached"], line["mean"]) for line in found] == [(0, None)] * 4


@pytest.mark.parametrize("named", ["acuracy", "time:acuracy:0.8"])
def test_a_metric_that_runs_do_not_measure_is_refused_before_the_first_one(named: str, tmp_path: Path) -> None:
    outcome = sweep(tmp_path, DIGITS + RATES, "--best", named)
    assert outcome.err == f"offbeat: ranked by {named!r}: runs measure accuracy, loss; or finish\n"
    assert not (tmp_path / "out").exists()


def test_a_metric_that_only_some_runs_of_a_sweep_measure_ranks_those(tmp_path: Path) -> None:
    axes = '\n[sweep]\n"problem.data" = ["diabetes", "digits"]\n'
    assert sweep(tmp_path, DIGITS + axes, "--best", "accuracy", "--workers", "1", *sets("problem.split=iid")).code == 0


def test_without_an_accuracy_the_loss_decides_and_less_of_a_distance_is_better(tmp_path: Path) -> None:
    for at, arguments in enumerate(([], ["--best", "distance"])):
        (tmp_path / str(at)).mkdir()
        outcome = sweep(tmp_path / str(at), QUADRATIC + RATES, "--json", "--workers", "1", *arguments)
        found = json.loads(outcome.out)
        assert found["judged_by"] == ("distance" if at else "loss")
        means = [line["mean"] for line in found["best"]]
        assert means == sorted(means)


WILD = QUADRATIC + '\n[sweep]\n"algorithm.*.local.sgd.lr" = [0.1, 500.0]\n'


def test_runs_that_diverge_are_results_too_and_come_last(tmp_path: Path) -> None:
    outcome = sweep(tmp_path, "trials = 2\n" + WILD, "--workers", "1", "--best", "loss", *sets("evaluate.every=0.1"))
    assert outcome.code == 0
    assert outcome.err.endswith(f"offbeat: 4 of 8 runs diverged; {tmp_path / 'out' / 'runs.jsonl'} says which\n")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [line["diverged"] for line in summary["best"]] == [0, 0, 2, 2]
    failed = [r for r in summary["runs"] if "error" in r]
    assert all("is not finite after 1 local steps with lr = 500" in r["error"] for r in failed)
    assert all(len(r["curve"]) > 1 for r in lines(tmp_path / "out") if "error" in r)  # how it came to that
    assert "## Failed" in (tmp_path / "out" / "report.md").read_text()
    assert "2 diverged" in outcome.out
    table = pq.read_table(tmp_path / "out" / "runs.parquet").to_pylist()
    assert sum(row["error"] is not None for row in table) == 4


def test_a_sweep_of_which_nothing_is_left_has_failed(tmp_path: Path) -> None:
    outcome = sweep(tmp_path, WILD.replace("0.1, 500.0", "500.0, 600.0"), "--workers", "1", "--json")
    assert outcome.code == 1
    assert "4 of 4 runs diverged" in outcome.err
    assert len(outcome.runs) == 4


def test_a_setting_of_which_some_seeds_diverged_comes_before_one_of_which_all_did() -> None:
    """Whatever the sign: less of a loss is better, more of an accuracy."""

    def result(setting: int, seed: int, loss: float | None) -> Result:
        settings = {"lr": setting}
        if loss is None:
            return Result("area", seed, settings=settings, error="diverged")
        return Result("area", seed, settings=settings, metrics={"loss": loss, "accuracy": loss}, measured=MEASURED)

    results = [
        result(s, k, loss)
        for s, row in enumerate([[None, None], [2.0, None], [3.0, 3.0]])
        for k, loss in enumerate(row)
    ]
    for metric in ("loss", "accuracy"):
        assert [line.settings["lr"] for line in ranked(results, metric)] == [2, 1, 0]


def test_several_tasks_are_judged_together() -> None:
    """By when the last is done; where no run gets all done, by the mean of their accuracies."""

    def result(setting: int, ends: Sequence[float | None], accuracies: Sequence[float]) -> Result:
        curve = tuple(Measurement(task, 10.0 * (1 + task), 0, 0, {"accuracy": a}) for task, a in enumerate(accuracies))
        tasks = tuple(
            TaskResult(name, end, "target" if end else "time", 1, 1, 0.0, {"accuracy": a}, measured=MEASURED)
            for name, end, a in zip(("easy", "hard"), ends, accuracies, strict=True)
        )
        return Result("fedast", 0, settings={"lr": setting}, curve=curve, tasks=tasks)

    def ranking(best: str | None, results: list[Result]) -> tuple[str, list[tuple[int, float | None]]]:
        return judged_by(results, best), [(line.settings["lr"], line.mean) for line in ranked(results, best)]

    runs = [result(0, (5.0, 30.0), (0.9, 0.8)), result(1, (20.0, None), (0.9, 0.9)), result(2, (9.0, 8.0), (0.9, 0.7))]
    assert ranking(None, runs) == ("finish", [(2, 9.0), (0, 30.0), (1, None)])
    assert ranking(None, runs[1:2]) == ("accuracy", [(1, 0.9)])
    assert ranking("accuracy", runs)[1] == [(1, 0.9), (0, pytest.approx(0.85)), (2, pytest.approx(0.8))]
    assert ranking("time:0.75", runs)[1] == [(0, 20.0), (1, 20.0), (2, None)]
    assert ranking("time:accuracy:0.75", runs)[1] == [(0, 20.0), (1, 20.0), (2, None)]


def test_any_metric_ranks_in_its_own_direction() -> None:
    def result(setting: int, rmse: float, r2: float) -> Result:
        curve = tuple(Measurement(0, t, 0, 0, {"rmse": 3 * rmse / t, "r2": r2 * t / 3}) for t in (1.0, 2.0, 3.0))
        measured = (Metric("rmse"), Metric("r2", higher=True), LOSS)
        metrics = {"rmse": rmse, "r2": r2, "loss": rmse**2}
        return Result("area", 0, settings={"lr": setting}, metrics=metrics, measured=measured, curve=curve)

    runs = [result(0, 0.5, 0.6), result(1, 0.3, 0.9), result(2, 0.4, 0.8)]
    order = {best: [line.settings["lr"] for line in ranked(runs, best)] for best in (None, "rmse", "r2", "time:0.45")}
    assert order == {None: [1, 2, 0], "rmse": [1, 2, 0], "r2": [1, 2, 0], "time:0.45": [1, 2, 0]}
    assert judged_by(runs, None) == "rmse"
    assert [line.mean for line in ranked(runs, "time:0.45")] == [2.0, 3.0, None]
    assert [line.mean for line in ranked(runs, "time:r2:0.55")] == [2.0, 3.0, 3.0]
    assert missing(runs, "time:mape:0.5") == "no run has a metric 'mape'; there are loss, r2, rmse"


def test_shares_are_shown_in_per_cent_as_those_of_an_experiment_are(tmp_path: Path) -> None:
    outcome = sweep(tmp_path, DIGITS + RATES, "--workers", "1")
    best = json.loads((tmp_path / "out" / "summary.json").read_text())["best"][0]
    assert f"{100 * best['mean']:.1f} %" in outcome.out
    assert f"| {100 * best['mean']:.1f} % |" in (tmp_path / "out" / "report.md").read_text()


def test_a_sweep_over_several_tasks_says_how_each_ended(tmp_path: Path) -> None:
    outcome = sweep(tmp_path, TASKS + '[sweep]\n"algorithm.fedast.lr" = [0.5, 1.0]\n', "--workers", "1")
    assert outcome.code == 0, outcome.err
    assert re.search(
        r"1 of 2: fedast, lr = \S+, seed 0: a accuracy 0\.\d+, loss \S+, target at \d+; b acc", outcome.err
    )
    assert re.search(r"settings +seeds +finish", outcome.out)


def test_in_a_log_file_a_long_sweep_says_now_and_then_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 59.0, *3 * [60.0], 61.0, *3 * [150.0]])
    monkeypatch.setattr("offbeat.experiment.sweep_display.time.perf_counter", lambda: next(clock))
    board = SweepDisplay(4, [], None)
    said: list[str] = []
    monkeypatch.setattr(board, "say", said.append)
    for done in (0.2, 0.4, 0.5, 1.0):
        board.share(0, done, int(1200 * done))
    assert said == [
        "0 of 4 runs finished, 10% of the work done, 8 updates/s, 60 s, about 9 min left",
        "0 of 4 runs finished, 25% of the work done, 8 updates/s, 2 min, about 8 min left",
    ]


# Stopping


LONG = QUADRATIC.replace("updates = 400", "updates = 5000") + RATES


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the long sweep, done in one go."""
    folder = tmp_path_factory.mktemp("unbroken")
    assert sweep(folder, LONG, "--workers", "1").code == 0
    return folder / "out"


def begun(folder: Path, workers: str, text: str = LONG, *arguments: str) -> Any:
    (folder / "sweep.toml").write_text(text)
    process = started("sweep", folder / "sweep.toml", "--out", folder / "out", "--workers", workers, *arguments)
    wait_for(folder / "out" / "runs.jsonl", process)
    return process


def resumed(folder: Path) -> Outcome:
    """`offbeat resume` with one worker, which saves the start of another two."""
    saved = json.loads((folder / "experiment.json").read_text())
    saved["sweep"]["options"]["workers"] = 1
    (folder / "experiment.json").write_text(json.dumps(saved))
    return offbeat("resume", folder)


def ranking(folder: Path) -> list[tuple[Any, ...]]:
    found = json.loads((folder / "summary.json").read_text())["best"]
    return [(line["algorithm"], str(line["settings"]), f"{line['mean']:.5g}") for line in found]


@pytest.mark.parametrize(("workers", "options"), [("1", []), ("2", ["--events"])], ids=["one worker", "two workers"])
def test_ctrl_c_saves_what_is_at_work_and_resuming_ends_the_same(
    workers: str, options: list[str], tmp_path: Path, unbroken: Path
) -> None:
    process = begun(tmp_path, workers, LONG, *options)
    folder = tmp_path / "out"
    if options:
        wait_for(folder / "runs" / "00000" / "events", process)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    code, out, err = ended(process)
    assert (code, out) == (130, ""), err
    assert "stopping and saving" in err
    assert err.endswith(f"of 4 runs finished; continue with `offbeat resume {folder}`\n")
    assert len(list(folder.glob("runs/*/checkpoint.safetensors"))) + len(lines(folder)) >= int(workers)
    under_way = [json.loads(line)["run"] for line in (folder / "unfinished.jsonl").read_text().splitlines()]
    assert not {*under_way} & {line["run"] for line in lines(folder)}
    again = resumed(folder)
    assert again.code == 0, again.err
    assert same(folder, unbroken)
    assert ranking(folder) == ranking(unbroken)
    assert not list(folder.rglob("*checkpoint*"))
    assert not (folder / "unfinished.jsonl").exists()
    assert [path.name for path in folder.glob("runs/*")] == [] or options


def test_a_sweep_can_be_looked_at_while_it_is_under_way_and_after_it_has_died(
    tmp_path: Path, unbroken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, shown = tmp_path / "out", []

    def end(*_: Any) -> None:
        outcome = offbeat("report", folder)
        assert outcome.code == 0, outcome.err
        shown.append((folder / "report.html").read_text())
        raise MemoryError

    monkeypatch.setattr(crew, "_NOTE", 0.05)
    with monkeypatch.context() as context:
        context.setattr(Logbook, "end", end)
        with pytest.raises(MemoryError):
            sweep(tmp_path, LONG, "--workers", "1")
    under_way = [json.loads(line) for line in (folder / "unfinished.jsonl").read_text().splitlines()]
    named = re.search("not finished, shown as far as they had come: (.*?)<", shown[0])
    assert named is not None
    assert len(named[1].split("; ")) == len(under_way) > 0
    assert all(run["curve"] and run["unfinished"] for run in under_way)
    assert not list(folder.rglob("*checkpoint*"))  # they begin again
    assert resumed(folder).code == 0
    assert same(folder, unbroken)
    assert not (folder / "unfinished.jsonl").exists()


def test_killed_with_a_line_cut_off_it_ends_the_same_and_its_workers_end_too(tmp_path: Path, unbroken: Path) -> None:
    process = begun(tmp_path, "2")
    folder = tmp_path / "out"
    for _ in range(30_000):
        if (folder / "runs.jsonl").read_text().count("\n") or process.poll() is not None:
            break
        time.sleep(0.01)
    workers = children(process.pid)
    process.kill()
    ended(process)
    text = (folder / "runs.jsonl").read_text()
    assert text
    whole = text.splitlines()[0]
    (folder / "runs.jsonl").write_text(f"{whole}\n{whole[:50]}")
    for _ in range(30_000):
        if not any(Path(f"/proc/{pid}").exists() for pid in workers):
            break
        time.sleep(0.01)
    else:
        raise AssertionError(f"{workers} outlived the process that had started them")
    assert resumed(folder).code == 0
    assert same(folder, unbroken)


def test_after_a_crash_runs_go_on_from_where_they_were_saved_last(tmp_path: Path, unbroken: Path) -> None:
    table = tomllib.loads(LONG)
    folder = create(tmp_path / "out", Grid(table).experiment, {"axes": table["sweep"], "options": {"workers": 1}})
    orders = crew.Orders(str(folder), "cpu", False, 1, 4, save=0.2)
    runs = ([point] for point in Grid(table).points)
    for _ in crew.SweepWorker(orders, 0, runs, lambda message: None, lambda: False).steps():
        if list(folder.glob("runs/*/checkpoint.older.safetensors")):
            break  # and nobody saves what came after
    assert offbeat("resume", folder).code == 0
    assert {r["executor_reason"] for r in lines(folder)} == {"the run began as batched"}
    assert same(folder, unbroken)


def test_the_largest_of_several_problems_says_how_many_runs_are_at_work(tmp_path: Path) -> None:
    """A tiny problem, then one that fills the cache by itself."""
    table = tomllib.loads(
        QUADRATIC + '\n[sweep]\n"problem.dim" = [2, 30000]\n"algorithm.*.local.sgd.lr" = [0.1, 0.2, 0.3]'
    )
    found, at_work = Grid({**table, "until": {"updates": 40}}), []
    runs = ([point] for point in found.points)
    orders = crew.Orders(str(tmp_path), "cpu", False, 1, 12)
    hand = crew.SweepWorker(orders, 0, runs, lambda message: None, lambda: False)
    for _ in hand.steps():
        at_work.append([run.problems[0].dim for run in hand.program.active.values()])
    assert max(map(len, at_work)) >= 3
    assert max(dims.count(30000) for dims in at_work) == 1


def test_the_runs_of_a_worker_that_dies_go_on_elsewhere(tmp_path: Path, unbroken: Path) -> None:
    process = begun(tmp_path, "2")
    workers = []
    for _ in range(30_000):
        workers = children(process.pid)
        if len(workers) >= 2:
            break
        time.sleep(0.01)
    time.sleep(1.0)
    os.kill(workers[-1], signal.SIGKILL)
    code, _, err = ended(process)
    assert code == 0, err
    assert same(tmp_path / "out", unbroken)


def children(process: int) -> list[int]:
    """The processes that this one has started."""
    found = Path(f"/proc/{process}/task/{process}/children")
    workers = list[int]()
    for pid in found.read_text().split() if found.exists() else ():
        with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile
            if b"simulate.transport" in Path(f"/proc/{pid}/cmdline").read_bytes():
                workers.append(int(pid))
    return workers


@pytest.mark.slow
def test_many_points_that_nobody_has_taken_yet_do_not_hold_up_the_end(tmp_path: Path) -> None:
    """More of them than a pipe holds."""
    rates = ", ".join(f"{0.001 * (i + 1):g}" for i in range(300))
    text = LONG.replace("0.2, 0.5", rates)
    process = begun(tmp_path, "2", text)
    time.sleep(3.0)
    process.send_signal(signal.SIGINT)
    code, _, err = ended(process)
    assert code == 130, err
    assert "of 600 runs finished" in err


def test_resuming_a_finished_sweep_says_the_same_again(tmp_path: Path) -> None:
    first = sweep(tmp_path, QUADRATIC + RATES, "--json", "--workers", "1")
    again = offbeat("resume", tmp_path / "out", "--json")
    assert again.code == 0
    assert again.runs == first.runs
    assert json.loads(again.out)["best"] == json.loads(first.out)["best"]
    taken = sweep(tmp_path, QUADRATIC + RATES, "--workers", "1")
    assert (taken.code, "already holds a run" in taken.err) == (1, True)


def test_axes_and_settings_may_come_from_the_command_line(tmp_path: Path) -> None:
    outcome = sweep(
        *(tmp_path, QUADRATIC + RATES, "--json", "--workers", "1", "--set", "until.updates=50"),
        *("--over", "algorithm.*.local.sgd.lr=[0.3]", "--over", "problem.noise=[0.0,1.0]"),
    )
    assert sorted(tuple(r["settings"].values()) for r in outcome.runs) == [(0.3, 0.0)] * 2 + [(0.3, 1.0)] * 2
    assert all(r["updates"] == 50 for r in outcome.runs)
