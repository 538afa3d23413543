"""`offbeat new` and `offbeat check`."""

from __future__ import annotations

import json
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import DIGITS, offbeat, sets

from offbeat.cli.new import Kind
from offbeat.experiment.project import KINDS

AREA = """
until = { time = 6.0 }
evaluate = { every = 0.5 }
trials = 3
timing = { exponential = { rate = 10.0 } }

[problem]
data = "digits"
clients = 8
split = { dirichlet = 0.1 }

[algorithm.area]
size = 4
local = { sgd = { lr = 3.0, batch = 32 } }
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for a project, whose modules are forgotten afterwards: those of the next one have the same names."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path / "mine"
    for name in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[name]


def checked(folder: Path, text: str, *overrides: str) -> tuple[int, list[str]]:
    """(exit code, what is remarked)."""
    file = folder / "experiment.toml"
    file.write_text(text, encoding="utf-8")
    outcome = offbeat("check", file, "--json", "--seconds", "1", *sets(*overrides))
    assert outcome.err == ""
    remarks = [f"{r['level']}: {r['text']}" for r in json.loads(outcome.out)["remarks"]]
    # what takes longer, evaluating or training, is measured: on a busy machine it may be either
    return outcome.code, [remark for remark in remarks if "takes longer than training" not in remark]


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_project_runs_at_once(kind: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = offbeat("new", place, "--kind", kind)
    assert (code, err) == (0, "")
    assert {*out.splitlines()[:-1]} == {str(path) for path in place.iterdir()}
    assert out.splitlines()[-1] == f"next: cd {place} && offbeat run experiment.toml"
    monkeypatch.chdir(place)
    found = offbeat("run", "experiment.toml", "--out", "runs", "--json", *sets("until.updates=8"))
    assert found.code == 0, found.err


@pytest.mark.parametrize("kind", KINDS)
def test_the_readme_of_a_project_names_its_files_and_no_other(kind: str, place: Path) -> None:
    offbeat("new", place, "--kind", kind)
    text = (place / "README.md").read_text()
    rows = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    assert rows == {path.name for path in place.iterdir()} - {"README.md"}
    assert not {"NAME", "ABOUT", "SWEPT", "REAL", "FILES"} & set(text.replace("`", " ").split())


def test_a_language_model_can_be_a_gpt_on_a_folder_of_texts_as_its_readme_says(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offbeat("new", place, "--kind", "language-model")
    readme = (place / "README.md").read_text()
    assert '`data = { texts = "FOLDER" }` and `model = "gpt"`' in readme
    (place / "letters").mkdir()
    for name in "abcdefgh":
        (place / "letters" / f"{name}.txt").write_text(f"to be or not to be, said {name}. " * 40)
    lines = (place / "experiment.toml").read_text().splitlines()
    text = "\n".join(line for line in lines if line.split(" =")[0] not in ("client", "loss", "metrics"))
    (place / "experiment.toml").write_text(text)
    monkeypatch.chdir(place)
    given = sets('problem.data={ texts = "letters" }', "problem.model=gpt", "until.updates=4")
    found = offbeat("run", "experiment.toml", "--out", "runs", *given)
    assert found.code == 0, found.err


def test_a_folder_with_a_blank_is_quoted_and_an_unknown_kind_is_plain(tmp_path: Path) -> None:
    place = tmp_path / "a b"
    assert offbeat("new", place).out.splitlines()[-1] == f"next: cd '{place}' && offbeat run experiment.toml"
    wrong = offbeat("new", tmp_path / "c", "--kind", "x")
    assert wrong.err.startswith("offbeat new: Invalid value for '--kind': 'x' is not one of 'classification', ")


def test_the_command_offers_every_kind() -> None:
    assert typing.get_args(Kind) == tuple(KINDS)


def test_nothing_is_overwritten(place: Path) -> None:
    place.mkdir()
    (place / "notes.txt").write_text("mine")
    assert offbeat("new", place) == (1, "", f"offbeat: {place} is not empty; name a new folder\n")
    assert [path.name for path in place.iterdir()] == ["notes.txt"]


def test_a_sound_experiment_passes_and_nothing_is_written(tmp_path: Path) -> None:
    assert checked(tmp_path, AREA) == (0, [])
    assert [path.name for path in tmp_path.iterdir()] == ["experiment.toml"]


def test_the_table_says_how_much_would_run(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(DIGITS)
    shown = offbeat("check", tmp_path / "experiment.toml").out
    assert "5 clients" in shown
    assert "2 runs: about " in shown
    assert " MB of memory" in shown
    (line,) = (line.split() for line in shown.splitlines() if line.startswith(" fedbuff"))
    done = offbeat("run", tmp_path / "experiment.toml", "--out", tmp_path / "out", "--json").runs[1]
    assert line[1:3] == [str(done["updates"]), "2"]
    assert line[5] == "100%"


def test_a_step_size_that_diverges_is_a_problem(tmp_path: Path) -> None:
    code, remarks = checked(tmp_path, AREA, "algorithm.area.local.sgd.lr=3000.0")
    assert code == 1
    assert remarks[0].startswith("problem: algorithm.area.local.sgd.lr = 3000: the loss ")


def test_a_step_size_for_more_clients_looks_large(tmp_path: Path) -> None:
    """lr = 200 with shares s_i/S is for 64 clients."""
    code, remarks = checked(tmp_path, AREA, "problem.weighted=true", "algorithm.area.local.sgd.lr=200.0")
    assert code == 0
    assert remarks[0].startswith("warning: algorithm.area.local.sgd.lr = 200 looks large")
    assert remarks[1].startswith("note: problem.weighted = true: step sizes have to grow")


def test_relative_weights_suit_8_and_64_clients_alike(tmp_path: Path) -> None:
    for clients in (8, 64):
        found = checked(tmp_path, AREA, 'problem.weighted="relative"', f"problem.clients={clients}", "until.time=3")
        assert found == (0, [])


@pytest.mark.parametrize(
    ("override", "remark"),
    [
        ("evaluate.every=1e-9", "problem: evaluate.every = 1e-09: that is 6,000,000,000 evaluations of one run"),
        ("evaluate.every=100", "warning: evaluate.every = 100: a run ends at time 6, before the first one"),
        ("workers=3", 'warning: workers = 3 has no effect with executor = "auto"'),
        ("trials=1", "note: trials = 1: one seed shows no spread; 3 or more do"),
        (
            "algorithm.area.local.sgd.momentum=0.9",
            "warning: algorithm.area: momentum = 0.9 has no effect with one local step per job; set keep = true, or "
            "more steps",
        ),
    ],
)
def test_settings_without_effect_are_named(override: str, remark: str, tmp_path: Path) -> None:
    assert remark in checked(tmp_path, AREA, override)[1]


def test_a_step_size_that_a_schedule_replaces_has_no_effect(tmp_path: Path) -> None:
    found = checked(tmp_path, AREA, "algorithm.area.schedule={ constant = 1.0 }")
    assert "warning: algorithm.area.local.sgd.lr = 3 has no effect: a quarter of it gives the same model" in found[1]


VISITS = """
until = { updates = 40 }
trials = 3
timing = { exponential = { rate = 10.0 } }

[problem]
data = { file = "visits.csv" }
clients = 2
model = "linear"

[algorithm.fedbuff]
size = 2
local = { sgd = { lr = 0.05, batch = 4 } }
"""


def test_columns_far_from_standard_are_named_with_the_remedy(tmp_path: Path) -> None:
    rows = [f"{20 + at},{at % 3},{(at % 3) / 2}" for at in range(40)]
    (tmp_path / "visits.csv").write_text("\n".join(["age,dose,y", *rows]))
    code, remarks = checked(tmp_path, VISITS)
    assert code == 1
    assert remarks[0].startswith("problem: algorithm.fedbuff.local.sgd.lr = 0.05: the loss ")
    assert remarks[1].startswith("warning: input columns have means or standard deviations up to ")
    code, remarks = checked(tmp_path, VISITS, 'problem.inputs="standard"')
    assert code == 0
    assert not [remark for remark in remarks if "input columns" in remark]


def test_text_that_nothing_uses_is_named_and_a_file_is_no_name_of_data(tmp_path: Path) -> None:
    rows = [f"s{at % 4},{'ab'[at % 2]},{at % 7},{(at % 3) / 2}" for at in range(40)]
    (tmp_path / "visits.csv").write_text("\n".join(["site,heating,dose,y", *rows]))
    _, remarks = checked(tmp_path, VISITS, 'problem.client="site"')
    assert "note: not used as inputs: 'heating' is text; make numbers of those that you need" in remarks
    assert not [remark for remark in remarks if "site" in remark]
    found = offbeat("check", tmp_path / "experiment.toml", *sets("problem.data=visits.csv"))
    wanted = 'problem.data = "visits.csv": a file; write problem.data = { file = "visits.csv" }'
    assert (found.code, found.err) == (1, f"offbeat: {wanted}\n")


def test_the_time_that_is_foretold_is_that_of_the_whole_command(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(AREA)
    script = str(Path(sys.executable).with_name("offbeat"))  # which imports everything, other than a forked process
    command = [script, "check", "experiment.toml", "--json", "--seconds", "0.5"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120)
    found = json.loads(done.stdout)
    runs = sum(trial["seconds"] for trial in found["trials"]) / len(found["trials"]) * found["runs"]
    assert found["seconds"] == pytest.approx(found["start"] + runs + found["end"])
    assert found["start"] > 0.1  # importing PyTorch alone takes longer
    assert found["end"] > 0.001
    assert [path.name for path in tmp_path.iterdir()] == ["experiment.toml"]


def test_the_first_update_is_waited_for_however_short_the_trial(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(AREA)
    found = json.loads(offbeat("check", tmp_path / "experiment.toml", "--json", "--seconds", "0.0001").out)
    assert not [remark for remark in found["remarks"] if "no update arrived" in remark["text"]]


@pytest.mark.parametrize(
    ("table", "cause"),
    [
        ("[privacy]\nclip = 1.0\nnoise = { multiplier = 50.0, participations = 50 }", "the noise of [privacy]"),
        ("[[attack]]\nclients = 4\nkind = { sign-flip = 50.0 }", "the clients of [[attack]]"),
    ],
)
def test_a_loss_that_no_smaller_step_would_lower_is_not_laid_to_the_step_size_alone(
    table: str, cause: str, tmp_path: Path
) -> None:
    text = AREA.replace("algorithm.area", "algorithm.fedbuff").replace("lr = 3.0", "lr = 0.5")
    code, remarks = checked(tmp_path, f"{text}\n{table}\n")
    assert code == 1
    assert f"; {cause} may be the cause" in remarks[0]


def test_a_run_without_a_server_step_is_a_problem(tmp_path: Path) -> None:
    code, remarks = checked(tmp_path, AREA, "algorithm.area.size=1000")
    assert code == 1
    assert remarks[0].startswith("problem: algorithm.area: the run ends after ")
    assert remarks[0].endswith("its model never changes; aggregate fewer updates, or run longer")


def test_a_baseline_that_takes_no_server_steps_passes(tmp_path: Path) -> None:
    alone = AREA.replace("[algorithm.area]", "[algorithm.local-only]").replace("size = 4\n", "")
    assert checked(tmp_path, alone) == (0, [])


def test_a_table_with_chosen_columns_is_scaled_and_a_large_target_is_remarked(tmp_path: Path) -> None:
    rows = [f"{at % 7},{at % 5},{at % 3},{1000 + at}" for at in range(60)]
    (tmp_path / "houses.csv").write_text("\n".join(["rooms,age,other,price", *rows]))
    text = AREA.replace("clients = 8", 'target = "price"\nloss = "mse"\nmodel = "linear"\nclients = 2')
    text = text.replace("split = { dirichlet = 0.1 }", 'columns = ["rooms", "age"]\ninputs = "standard"')
    text = text.replace('"digits"', f'{{ file = "{tmp_path}/houses.csv" }}')
    _, remarks = checked(tmp_path, text, "algorithm.area.local.sgd.lr=0.01")
    large = "the target 'price' has a mean or standard deviation of 1.03e+03; scale it where it is loaded"
    assert f"warning: {large}" in remarks
