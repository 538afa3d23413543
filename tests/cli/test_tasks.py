"""Several [[task]] tables in one experiment file: what runs, what is shown, what is refused."""

from __future__ import annotations

import io
import json
import re
import signal
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from command import ended, events, offbeat, run, sets, started, wait_for
from rich.console import Console
from worlds import Line, accuracies

from offbeat.data.folder import root
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.session import Session
from offbeat.watch.progress import Display, describe
from offbeat.watch.record import Recorder
from offbeat.watch.session import drive

THREE = """
until = { time = 60.0 }
evaluate = { every = 1.0, samples = 500 }

[clients]
count = 20
available = 0.5

[[task]]
name = "easy"
data = "digits"
split = { dirichlet = 1.0, per_client = 40 }
target = { accuracy = 0.6 }

[[task]]
name = "hard"
data = "digits"
model = { name = "mlp", hidden = [16] }
split = { classes = 4 }
target = { accuracy = 0.5 }
local = { sgd = { lr = 0.5, steps = 4, batch = 16 } }

[[task]]
name = "late"
data = "digits"
opens = 5.0
split = "iid"
target = { accuracy = 0.6 }

[timing]
shifted_exponential = { per_step = { easy = 0.02, hard = 0.05, late = 0.02 } }
speeds = { slow = [0.5, 1.5], fast = [0.5, 0.7] }

[[algorithm]]
name = "fedast"
requests = 9
ratio = 3
lr = 0.5
allocation = "dynamic"
window = 4
local = { sgd = { lr = 0.5, steps = 4, batch = 16 } }

[[algorithm]]
name = "sync-st"
sampled = 9
first = 2
local = { sgd = { lr = 0.5, steps = 4, batch = 16 } }
"""

OWN = """
requests = { hard = 5, easy = 3, late = 1 }
size = { easy = 1, hard = 2, late = 1 }
lr = { easy = 0.4, hard = 0.6, late = 0.5 }
versions = { easy = 4, hard = 1000, late = 1000 }
"""

# The file of issue 4, word for word.
ISSUE = """
[clients]
count = 1000
available = 0.3                         # share that accepts new work at any time, redrawn independently of the past

[[task]]
name = "mnist"
data = "mnist"
model = "mlp"
split = { dirichlet = 0.1, per_client = 300 }
target = { accuracy = 0.93 }

[[task]]
name = "fashion"
data = "fashion-mnist"
model = "lenet5"
split = { dirichlet = 0.1, per_client = 300 }
target = { accuracy = 0.82 }

[timing]
shifted_exponential = { per_step = { mnist = 0.148, fashion = 0.240 }, speeds = { slow = [0.25, 1.3], normal = [0.5, 1.0], fast = [0.25, 0.7] } }

[[algorithm]]
name = "fedast"
requests = 150                          # total R over all tasks
ratio = 37                              # R_m / b_m
allocation = "dynamic"                  # or "static"

[[algorithm]]
name = "sync-st"
sampled = 150                           # clients drawn per round over all tasks
first = 30                              # updates taken per task, the rest discarded; absent = wait for all
"""  # noqa: E501
SMALL = ["clients.count=12", "task.*.data=digits", "task.*.split.per_client=20", "task.fashion.model=softmax"]


# What runs


def test_a_file_gives_each_task_its_requests_buffer_server_step_and_horizon(tmp_path: Path) -> None:
    table = tomllib.loads(THREE)
    table["algorithm"] = [{**table["algorithm"][0], **tomllib.loads(OWN)}]
    experiment = Experiment.parse({**table, "until": {"time": 20.0}})
    server = experiment.algorithms["fedast"].server
    assert (server.requests, server.size, server.lr) == ((3, 5, 1), (1, 2, 1), (0.4, 0.6, 0.5))
    (result,) = experiment.run(tmp_path / "own", progress=False).runs
    assert (result.tasks[0].stopped, result.tasks[0].versions) == ("versions", 4)
    said = json.loads((tmp_path / "own" / "fedast-0" / "result.json").read_text())["server"]["decisions"][0]
    assert (said["requests"], said["sizes"][:2]) == ([3, 6, 0], [1, 2])  # the late task is not there yet


def test_the_file_of_the_issue_parses_with_the_papers_settings() -> None:
    experiment = Experiment.parse(tomllib.loads(ISSUE))
    fedast, sync = (experiment.aimed(label, [Line([0.0])] * 2, seed=0) for label in experiment.labels)
    assert fedast.server.targets == sync.server.targets == accuracies(0.93, 0.82)
    assert [(half.steps, half.batch) for half in fedast.local] == [(27, 32)] * 2
    assert experiment.timing.available == 0.3


def test_the_file_of_the_issue_runs_on_digits(tmp_path: Path) -> None:
    short = [
        "until.time=30",
        "algorithm.fedast.requests=8",
        "algorithm.sync-st.sampled=8",
        "algorithm.sync-st.first=2",
    ]
    runs = run(tmp_path, ISSUE, "--json", *sets(*SMALL, *short)).runs
    assert [r["algorithm"] for r in runs] == ["fedast", "sync-st"]
    assert all(r["versions"] > 0 for r in runs)


@pytest.mark.slow
@pytest.mark.skipif(not (root() / "mnist").is_dir(), reason="no MNIST here")
def test_the_file_of_the_issue_runs(tmp_path: Path) -> None:
    outcome = run(tmp_path, ISSUE, "--json", *sets("until.time=20", "evaluate.every=20", "evaluate.samples=500"))
    assert outcome.code == 0
    assert all(r["updates"] > 100 for r in outcome.runs)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, str]:
    """(folder, runs, what was said) of the experiment with three tasks."""
    folder = tmp_path_factory.mktemp("three")
    outcome = run(folder, THREE, "--json")
    return folder / "out", outcome.runs, outcome.err


def test_json_has_the_whole_time_and_each_tasks_own(three: tuple[Path, Any, str]) -> None:
    for result in three[1]:
        assert list(result["tasks"]) == ["easy", "hard", "late"]
        assert result["time"] == max(task["time"] for task in result["tasks"].values())
        for task in result["tasks"].values():
            assert task["stopped"] == "target"
            assert task["metrics"]["accuracy"] >= 0.5
            assert task["versions"] > 0
    assert three[1][0]["tasks"]["late"]["time"] > 5.0


def test_json_has_what_each_task_was_given_and_when(three: tuple[Path, Any, str]) -> None:
    tasks = three[1][0]["tasks"]
    histories = [task["allocation"]["history"] for task in tasks.values()]
    for moment in {time for history in histories for time, _, _ in history}:
        given = [[r for time, r, _ in history if time <= moment][-1] for history in histories]
        assert sum(given) == 9
    assert all(one[1:] != other[1:] for history in histories for one, other in pairwise(history))
    assert [history[0][1] for history in histories] == [5, 4, 0]  # the third is not there yet
    assert tasks["easy"]["allocation"]["in_flight"] == 0


def test_the_record_says_what_was_decided_and_why(three: tuple[Path, Any, str]) -> None:
    said = json.loads((three[0] / "fedast-0" / "result.json").read_text())["server"]["decisions"]
    reasons = [decision["why"] for decision in said]
    assert reasons[0] == "the beginning"
    assert "task 2 is there" in reasons
    assert any(why.endswith("is done") for why in reasons)
    assert all(set(d) == {"time", "why", "weights", "requests", "sizes"} for d in said)


def test_the_table_has_a_column_for_each_task_the_whole_and_the_gain(three: tuple[Path, Any, str]) -> None:
    report = (three[0] / "report.md").read_text()
    head, _, fedast, sync = report.split("\n\n")[1].splitlines()[:4]
    assert head == "| algorithm | easy | hard | late | all | gain over sync-st |"
    times = {r["algorithm"]: r["time"] for r in three[1]}
    gain = 100 * (1 - times["fedast"] / times["sync-st"])
    assert fedast.endswith(f"| {gain:+.1f} % |")
    assert sync.endswith("|  |")


def test_without_sync_st_the_last_algorithm_is_the_baseline(tmp_path: Path) -> None:
    text = THREE.replace('name = "sync-st"', 'name = "sync-st"\nlabel = "rounds"')
    outcome = run(tmp_path, text, *sets("until.time=2"))
    assert "gain over" in outcome.out
    assert "rounds" in outcome.out.split("gain over")[1].splitlines()[1]


def test_every_algorithm_for_several_tasks_runs_from_a_file(tmp_path: Path) -> None:
    names = ["fedast", "fedast-nobuffer", "one-by-one", "sync-st", "sync-ucb-st", "sync-bayes-st"]
    head = THREE[: THREE.index("[[algorithm]]")]
    local = "local = { sgd = { lr = 0.5, steps = 4, batch = 16 } }\n"
    parts = [f'[[algorithm]]\nname = "{name}"\n{local}' for name in names]
    parts += [
        f'[[algorithm]]\nlabel = "each-{at}"\nname = "fedast"\naggregate = {aggregate}\n{local}'
        for at, aggregate in enumerate(
            [
                "{ area = { size = 4 } }",
                "{ fedbuff = { weight = { polynomial = { power = 0.5 } } } }",
                "{ fedbuff = { size = { period = 1.0 } } }",
                "{ fedasync-mixing = { mixing = 0.3 } }",
            ]
        )
    ]
    outcome = run(tmp_path, head + "".join(parts), "--json", *sets("until.time=8"))
    assert outcome.code == 0
    assert [r["versions"] > 5 for r in outcome.runs] == [True] * 10


def test_stopped_in_the_middle_and_resumed_it_ends_the_same(tmp_path: Path) -> None:
    far = sets("until.time=25", "task.*.target.accuracy=0.999")
    whole = run(tmp_path, THREE, "--json", *far)
    assert whole.code == 0
    folder = tmp_path / "broken"
    process = started("run", tmp_path / "experiment.toml", "--out", folder, "--json", *far)
    wait_for(folder / "fedast-0", process)
    process.send_signal(signal.SIGINT)
    outcome = ended(process)
    assert outcome.code in (0, 130)  # it may have been quicker
    again = offbeat("resume", folder, "--json")
    assert again.code == 0
    for name in ("fedast-0", "sync-st-0"):
        one, other = tmp_path / "out" / name, folder / name
        assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
        assert repr(events(one)) == repr(events(other))
    assert [r["tasks"] for r in again.runs] == [r["tasks"] for r in whole.runs]


# A target that is never reached


def test_a_target_that_cannot_be_reached_stops_at_the_horizon_and_says_so(tmp_path: Path) -> None:
    outcome = run(tmp_path, THREE, *sets("task.hard.target.accuracy=1.0", "until.time=20"))
    assert outcome.code == 0
    assert "fedast, seed 0: hard did not reach its target 1 by time 20; its accuracy is 0." in outcome.err
    assert "not all" in outcome.out
    assert "0 of 1 done" in outcome.out


# What is refused


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["clients.count=0"], "clients.count = 0: must be at least 1"),
        (["clients.available=0"], "available = 0.0: must be a share in (0, 1]"),
        (["clients.available=1.5"], "available = 1.5: must be a share in (0, 1]"),
        (["timing.available=0.5"], "clients.available and timing.available both set who takes work"),
        (["task.1.name=easy"], "two tasks are called 'easy'"),
        (["task.1.name=''"], "task[1]: name missing"),
        (["task.0.clients=4"], "task.easy.clients: all tasks share their clients; write count in [clients]"),
        (["task.0.target.accuracy=1.5"], "task.easy.target.accuracy = 1.5: must be a share in (0, 1]"),
        (["task.0.opens=9", "task.0.closes=3"], "a task opens before it closes"),
        (["algorithm.fedast.requests=2"], "requests = 2 for 3 tasks: each needs at least one"),
        (["algorithm.sync-st.sampled=2"], "sampled = 2 for 3 tasks: each needs at least one client"),
        (["algorithm.fedast.ratio=0"], "ratio = 0.0"),
        (["algorithm.fedast.ratio=-2"], "ratio = -2.0"),
        (["algorithm.fedast.allocation=clever"], 'expected one of "static", "dynamic", "variance"'),
        (
            ["algorithm.sync-st.name=fedavg"],
            "trains one model, but there are 3 tasks; use one of fedast, fedast-nobuffer",
        ),
        (["algorithm.fedast.aggregate={ fedavg = {} }"], "algorithm.fedast.aggregate.fedavg: unknown"),
        (["algorithm.fedast.aggregate={ area = { concurrency = 3 } }"], "requests say how many clients work"),
        (["timing.shifted_exponential.per_step={ easy = 0.1, hard = 0.1 }"], "late"),
        (["algorithm.fedast.lr={ easy = 0.5, hard = 0.5 }"], "algorithm.fedast: lr has nothing for the task 'late'"),
        (["algorithm.fedast.requests={ easy = 3, hard = 3, later = 3 }"], "did you mean 'late'?"),
        (["algorithm.fedast.versions.easy=0"], "versions.easy = 0: must be at least 1"),
    ],
)
def test_bad_input_is_refused_in_one_line(tmp_path: Path, overrides: list[str], why: str) -> None:
    outcome = run(tmp_path, THREE, *sets(*overrides))
    assert outcome.code == 1
    assert why in outcome.err
    assert outcome.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (THREE.replace("[clients]\ncount = 20\navailable = 0.5\n", ""), "[task.NAME] tables need [clients]"),
        (THREE + '[problem]\ndata = "digits"\nclients = 4\n', "has both problem and task; keep one of them"),
        (THREE[: THREE.index("[[task]]")] + THREE[THREE.index("[timing]") :], "lacks its [problem] table"),
    ],
)
def test_tables_that_do_not_go_together_are_refused(tmp_path: Path, text: str, why: str) -> None:
    outcome = run(tmp_path, text)
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert why in outcome.err


# The live view


def test_the_live_view_has_a_line_for_each_task_that_fits_into_80_columns(tmp_path: Path) -> None:
    experiment = Experiment.parse(tomllib.loads(THREE) | {"until": {"time": 4.0}})
    shown: list[str] = []

    def tick(simulation: Any, recorder: Recorder) -> None:
        shown.append(describe(simulation, recorder.measurements, 1234.0))

    session = Session(experiment)
    drive(lambda watchers, world: session.simulation(experiment.runs[0], watchers, world), tmp_path, tick=tick)
    lines = shown[-1].splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["easy", "hard", "late"]
    assert all(len(line) <= 80 for line in lines)
    assert re.match(r"  hard · accuracy 0\.\d{3} of 0\.500 · requests \d, buffer \d · staleness [\d.]+", lines[2])
    assert lines[1].endswith("done at 2.0")


def test_at_80_columns_the_terminal_shows_every_tasks_line(tmp_path: Path) -> None:
    experiment = Experiment.parse(tomllib.loads(THREE) | {"until": {"time": 4.0}})
    console = Console(width=80, height=20, force_terminal=True, file=io.StringIO())
    display = Display(console, 1)
    display.begin("fedast, seed 0")

    def tick(simulation: Any, recorder: Recorder) -> None:
        display.refreshed = 0.0
        display.tick(simulation, recorder)

    session = Session(experiment)
    drive(lambda watchers, world: session.simulation(experiment.runs[0], watchers, world), tmp_path, tick=tick)
    with console.capture() as capture:
        console.print(display.progress.get_renderable())
    lines = capture.get().splitlines()
    assert len(lines) == 2 + 4
    tells = {"easy": "done at", "hard": "requests", "late": "requests"}
    assert all(any(name in line and what in line for line in lines) for name, what in tells.items())
