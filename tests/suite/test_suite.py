"""The suite from the command to a result that others can check."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import offbeat, wait_for

from offbeat.core.errors import FolderError
from offbeat.core.metric import Metric
from offbeat.core.watcher import Measurement
from offbeat.simulate.transport import Child
from offbeat.suite import definition, result as results, run as suite_run
from offbeat.suite.compare import standings, versus
from offbeat.suite.definition import SuiteTask
from offbeat.suite.page import facts
from offbeat.suite.run import SuiteRequest, create
from offbeat.suite.scores import scores
from offbeat.suite.tables import overview, where, winners
from offbeat.watch.results import Result

MINE = '''
from dataclasses import dataclass
from offbeat.algorithms.fedasync import FedAsync


@dataclass(frozen=True)
class Mine(FedAsync):
    """Half steps."""

    def arrived(self, state, update, view):
        self.step(state.model, -0.5, update["delta"])
        yield from self.next(state, update.job.client, view)
'''


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A suite of one small cell with a method of a user's own."""
    place = tmp_path_factory.mktemp("suite")
    (place / "mine.py").write_text(MINE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OFFBEAT_DATA", str(place / "none"))
        load = definition.load

        def small(*given: Any) -> definition.Suite:
            suite = load(*given)
            methods = {name: m for name, m in suite.methods.items() if m.reference or m.own or name == "fedavg"}
            tasks = {name: replace(task, time=1.0, steps=task.steps[:2]) for name, task in suite.tasks.items()}
            return replace(suite, methods=methods, tasks=tasks)

        patch.setattr(definition, "load", small)
        words = ("--quick", "--only", "tabular/equal", "--algorithm", f"{place / 'mine.py'}:Mine", "--jobs", "1")
        outcome = offbeat("suite", "v1", *words, "--out", place / "out")
        assert outcome.code == 0, outcome.err
        assert "quick suite v1: 2 cells (tabular), 4 methods, 20 runs\n" in outcome.err
        assert "tabular/equal, time to target: better than" in outcome.out
        yield place / "out"


def test_the_result_holds_every_seed_of_every_method_and_its_settings(run: Path) -> None:
    found = results.read(run)
    assert set(found.cells) == {"tabular/centralised", "tabular/equal"}
    assert set(found.with_references("tabular/equal")) == {"m-sync", "fedavg", "mine", "centralised"}
    for method in found.cells["tabular/equal"].methods.values():
        assert [each.seed for each in method.seeds] == [0, 1, 2]
        assert len(method.settings) == 1
        assert all(each.area is not None and each.worst is not None for each in method.seeds)
    assert found.digests == definition.load("v1").digests_of(["tabular"])
    assert found.own["mine"][0] == "mine.py"
    assert found.sources["mine.py"] == MINE


def test_a_result_is_verified_and_code_that_comes_with_it_is_never_run(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "result.json"
    copy.write_bytes((run / "result.json").read_bytes())
    outcome = offbeat("suite", "verify", copy)
    assert outcome.code == 0, outcome.err
    assert "verified: 3 runs came out as stated" in outcome.out
    assert outcome.out.endswith("\nmine was not checked: pass --algorithm FILE:CLASS\n")
    whole = offbeat("suite", "verify", copy, "--algorithm", f"{run.parent / 'mine.py'}:Mine")
    assert whole.out == "verified: 4 runs came out as stated\n"


def test_elsewhere_a_score_may_be_one_that_another_seed_could_have_had(run: Path, tmp_path: Path) -> None:
    content = json.loads((run / "result.json").read_text())
    seeds = content["cells"]["tabular/equal"]["methods"]["fedavg"]["seeds"]
    seeds[1]["final"], seeds[2]["final"] = seeds[0]["final"] - 0.1, seeds[0]["final"] + 0.1
    seeds[0]["final"] += 0.25
    (tmp_path / "here.json").write_text(json.dumps(content))
    assert "fedavg, seed 0: final" in offbeat("suite", "verify", tmp_path / "here.json").err
    content["versions"]["torch"] = "2.9.9"
    (tmp_path / "elsewhere.json").write_text(json.dumps(content))
    outcome = offbeat("suite", "verify", tmp_path / "elsewhere.json")
    assert "verified: 2 runs came out as stated\n1 run differs by more than rounding" in outcome.out
    assert "tabular/equal, fedavg, seed 0: final " in outcome.err  # and which
    seeds[0]["final"] = 5.65  # a false score does not widen the range that it is compared with
    (tmp_path / "false.json").write_text(json.dumps(content))
    outcome = offbeat("suite", "verify", tmp_path / "false.json")
    assert "fedavg, seed 0: final 5.65 stated" in outcome.err
    assert outcome.err.endswith("offbeat: 1 difference in 3 runs\n")
    seeds[0]["final"] = 5.0
    seeds[1]["final"] = seeds[2]["final"] = 4.9
    (tmp_path / "all.json").write_text(json.dumps(content))
    assert "fedavg, seed 0: final 5" in offbeat("suite", "verify", tmp_path / "all.json").err


def test_methods_that_a_cell_lacks_are_named(run: Path, tmp_path: Path) -> None:
    content = json.loads((run / "result.json").read_text())
    del content["cells"]["tabular/equal"]["methods"]["fedavg"]
    (tmp_path / "result.json").write_text(json.dumps(content))
    outcome = offbeat("suite", "verify", tmp_path / "result.json")
    assert outcome.code == 0
    assert "tabular/equal lacks fedavg" in outcome.err


def _equal(content: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = content["cells"]["tabular/equal"]
    return found


def _step(lr: float) -> dict[str, float]:
    return {"algorithm.mine.local.sgd.lr": lr}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda r: r["cells"]["tabular/equal"]["methods"]["mine"]["seeds"][0].update(area=0.9),
            "mine, seed 0: area 0.9",
        ),
        (lambda r: r["cells"]["tabular/equal"]["methods"]["fedavg"]["seeds"][0].update(updates=1), "1 updates stated"),
        (lambda r: _equal(r)["methods"]["mine"].update(settings=_step(1e-5)), "mine, seed 0"),
        (lambda r: _equal(r)["methods"]["fedavg"].update(settings=_step(1e-5)), "settings are none that the suite"),
        (lambda r: r["digests"].update({"tasks.toml, tabular": "0"}), "of another suite"),
        (lambda r: r["digests"].pop("tasks.toml, tabular"), "of another suite"),
        (lambda r: r["digests"].pop("protocol.toml"), "of another suite"),
        (lambda r: r["sources"].update({"mine.py": MINE + "# other\n"}), "its text is not that of the digest"),
        (
            lambda r: r["cells"]["tabular/equal"]["experiment"]["until"].update(time=0.5),
            "until is not that of the suite",
        ),
        (lambda r: _equal(r).update(target=0.1), "target is not that of the suite"),
        (lambda r: _equal(r)["experiment"]["algorithm"]["fedavg"].update(lr=2.0), "fedavg is not that of the suite"),
        (lambda r: r["own"].update({"mine": ["mine.py", "0"]}), "here is not the file of the result"),
        (lambda r: r.pop("cells"), "is not a result file: cells is missing"),
    ],
)
def test_a_result_that_was_touched_is_found_out(run: Path, tmp_path: Path, change: Any, words: str) -> None:
    content = json.loads((run / "result.json").read_text())
    change(content)
    (tmp_path / "result.json").write_text(json.dumps(content))
    mine = ("--algorithm", f"{run.parent / 'mine.py'}:Mine")
    outcome = offbeat("suite", "verify", tmp_path / "result.json", *mine)
    assert outcome.code == 1
    assert words in outcome.err


def test_the_page_names_every_method_and_loads_nothing(run: Path) -> None:
    page, text = (run / "result.html").read_text(), (run / "result.md").read_text()
    for label in ("m-sync", "centralised", "mine", "fedavg"):
        assert f'<th scope="row">{label}</th>' in page
        assert f"| {label} |" in text
    assert "http://" not in page
    assert "https://" not in page
    assert str(run) not in page + text + (run / "result.json").read_text()
    assert where(results.read(run), "mine")


def test_the_page_says_which_tasks_were_not_run_and_who_wins_without_the_yardstick(run: Path) -> None:
    found = results.read(run)
    assert "that were not run: mnist, cifar10, shakespeare, personal." in (run / "result.html").read_text()
    ((cell, *best),) = winners(found)[1]
    assert cell == "tabular/equal"
    assert len(best) == 3
    assert "centralised" not in "".join(best)


def test_the_page_says_which_methods_a_cell_lacks(run: Path) -> None:
    found, suite = results.read(run), definition.load("v1", "quick")
    cell = found.cells["tabular/equal"]
    less = {label: method for label, method in cell.methods.items() if label != "fedavg"}
    lacking = replace(found, cells={**found.cells, "tabular/equal": replace(cell, methods=less)})
    assert "tabular/equal was not finished: it lacks fedavg." in facts(lacking, suite)
    assert not any("lacks" in line for line in facts(found, suite))


def test_the_places_of_several_tasks_are_means_over_their_clocks(run: Path) -> None:
    found = results.read(run)
    cell = found.cells["tabular/equal"]
    again = {f"tabular/{clock}": replace(cell, clock=clock) for clock in ("phones", "hospital")}
    several = replace(found, cells={**found.cells, **again, "other/equal": replace(cell, task="other")})
    (head, body), (_, single) = overview(several), overview(found)
    assert head == ["method", "wins", "losses", "tabular", "other"]
    places = {row[0]: row[3].split()[0] for row in single}
    assert all(row[3].split()[0] == places[row[0]] for row in body)
    assert {row[0] for row in body if not row[4]} == {"centralised"}


def test_a_finished_suite_resumes_without_running_again(run: Path) -> None:
    before = (run / "tabular/equal/scores.json").stat().st_mtime_ns
    assert offbeat("resume", run).code == 0
    assert (run / "tabular/equal/scores.json").stat().st_mtime_ns == before
    again = offbeat("suite", "v1", "--quick", "--out", run)
    assert "already holds a suite" in again.err


STUB = """
import signal, time
from pathlib import Path


def serve(pipe, folder, cell, workers, cells):
    if cell == "bad":
        while not (Path(folder) / "ready").exists():
            time.sleep(0.01)
        pipe.send("out of memory")
        return
    heard = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    (Path(folder) / "ready").touch()
    while not heard:
        time.sleep(0.01)
    time.sleep(0.7)  # saving; the parent waits in steps of 0.2 s
    (Path(folder) / "heard").write_text(str(len(heard)))
    pipe.send("stopped and saved")
"""


def test_a_cell_that_fails_is_named_and_the_others_are_asked_once_to_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stubbed.py").write_text(STUB)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(suite_run, "Child", lambda function, arguments: Child("stubbed:serve", arguments))
    with pytest.raises(FolderError, match="bad: out of memory; continue with"):
        suite_run._several(tmp_path, ["slow", "bad"], 2, 1, lambda cell: None)
    assert (tmp_path / "heard").read_text() == "1"


def test_a_cell_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    folder = create(SuiteRequest(scale="quick", only=("tabular/equal",)), tmp_path / "out")
    cell = Child("offbeat.suite.run:serve", (str(folder), "tabular/equal", 1, 1))
    wait_for(folder / "tabular" / "equal" / "tuning.json", cell.process)  # type: ignore[arg-type]
    cell.connection.close()  # as the system does when the other end has been killed
    cell.process.wait(30)
    assert not (folder / "tabular" / "equal" / "scores.json").exists()


TASK = SuiteTask("t", "", "accuracy", 0.8, 4.0, 1.0, [0.1], 8, {"clients": 2})
ACCURACY = Metric("accuracy", higher=True, share=True)


def test_the_area_is_the_mean_over_time() -> None:
    curve = tuple(Measurement(0, t, 10 * int(t), 1, {"accuracy": v}) for t, v in ((0.0, 0.0), (2.0, 0.8), (4.0, 1.0)))
    run = Result("a", 0, time=4.0, updates=40, metrics={"accuracy": 1.0}, measured=(ACCURACY,), curve=curve)
    found = scores(run, TASK, 2)
    assert found["area"] == pytest.approx((2 * 0.4 + 2 * 0.9) / 4)
    assert (found["time"], found["final"], found["worst"]) == (2.0, 1.0, None)
    assert set(scores(Result("a", 0, error="diverged"), TASK, 2).values()) == {None}


def _r2(*values: float) -> Result:
    curve = tuple(Measurement(0, float(t), t, t, {"r2": value}) for t, value in enumerate(values))
    return Result(
        "a", 0, time=2.0, updates=40, metrics={"r2": values[-1]}, measured=(Metric("r2", higher=True),), curve=curve
    )


def test_a_run_that_ends_below_the_untrained_model_has_diverged_and_a_dip_counts_no_less_than_it() -> None:
    task = replace(TASK, metric="r2", target=0.6)
    assert scores(_r2(-0.5, -1e9, 0.7), task, 2)["area"] == pytest.approx((-0.5 + (-0.5 + 0.7) / 2) / 2)
    for end in (-1e9, -0.51, float("nan")):
        found = scores(_r2(-0.5, 0.7, end), task, 2)
        assert found.pop("updates") == 40
        assert set(found.values()) == {None}


def test_a_method_beats_another_only_beyond_the_interval_of_the_difference() -> None:
    assert versus([0.5, 0.6, 0.7], [0.4, 0.5, 0.61], higher=True) == 1
    assert versus([0.5, 0.6, 0.7], [0.4, 0.5, 0.61], higher=False) == -1
    assert versus([0.5, 0.6, 0.7], [0.7, 0.5, 0.6], higher=True) == 0
    assert versus([None, 0.6], [0.1, 0.2], higher=True) == -1
    assert versus([None, 0.6], [0.1, None], higher=True) == 0


def test_standings_count_whom_a_method_beats() -> None:
    found = standings({"a": [0.5, 0.6, 0.7], "b": [0.4, 0.5, 0.6], "c": [0.9, None, 0.9]})
    assert [(s.label, s.wins, s.losses) for s in found] == [("a", 2, 0), ("b", 1, 1), ("c", 0, 2)]
