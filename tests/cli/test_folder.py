"""Run folders that are not what they should be, and resuming those that are."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from command import QUADRATIC, ended, offbeat, record, run, sets, started

import offbeat as ob
from offbeat.core import names
from offbeat.data import texts


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished experiment of two algorithms and two seeds."""
    assert run(tmp_path, QUADRATIC, *sets("trials=2")).code == 0
    return tmp_path / "out"


def test_a_folder_that_holds_a_run_is_not_written_over(folder: Path) -> None:
    before = contents(folder)
    outcome = run(folder.parent, QUADRATIC)
    assert outcome.code == 1
    assert outcome.err == (
        f"offbeat: {folder} already holds a run; continue it with `offbeat resume {folder}` or name another folder\n"
    )
    assert contents(folder) == before


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "e.toml").write_text(QUADRATIC)
    for out, says in (("file", "is a file; name a folder"), ("file/deeper", "Not a directory; name another folder")):
        outcome = offbeat("run", tmp_path / "e.toml", "--out", tmp_path / out)
        assert (outcome.code, outcome.err.count("\n")) == (1, 1)
        assert says in outcome.err


def test_a_disk_that_is_full_when_tables_are_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "experiment.toml").write_text(QUADRATIC)

    def refuse(path: Path, value: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("offbeat.experiment.runs.write_json", refuse)
    found = offbeat("run", tmp_path / "experiment.toml", "--out", tmp_path / "out", *sets("until.updates=8"))
    line = f"offbeat: no space left on the disk for {tmp_path}/out/summary.json; free space, then continue a run with "
    assert found.code == 1
    assert found.err.splitlines()[-1] == f"{line}`offbeat resume`, or call the same again"


def test_what_is_not_a_run_folder_cannot_be_resumed(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "absent"):
        outcome = offbeat("resume", place)
        assert outcome.code == 1
        assert outcome.err.startswith(f"offbeat: {place} is not a run folder: it has no experiment.json")


def test_what_is_not_there_is_named_and_not_the_folder_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["export", "nope", "model"], ["replay", "nope"]):
        assert offbeat(*words).err.startswith("offbeat: nope is not a folder; name that of a run")
    verified = offbeat("suite", "verify", "nope.json").err
    assert verified == "offbeat: cannot read nope.json: No such file or directory; name a result.json or its folder\n"


def test_a_model_is_exported_without_the_packages_of_real_runs(folder: Path) -> None:
    without = "import sys; sys.modules['cryptography'] = None; from offbeat.cli import main; main()"
    done = ended(started("export", folder / "area-0", folder / "model.safetensors", code=without))
    assert (done.code, done.err) == (0, "")
    assert (folder / "model.safetensors").exists()


@pytest.mark.parametrize("text", ["", "{", "3", "{}", '{"experiment": 3, "versions": {}}'])
def test_a_damaged_experiment_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "experiment.json").write_text(text)
    outcome = offbeat("resume", tmp_path)
    assert outcome.code == 1
    assert outcome.err.startswith(f"offbeat: {tmp_path / 'experiment.json'} is damaged")


def test_a_setting_that_no_longer_works_is_not_called_damage(folder: Path) -> None:
    saved = json.loads((folder / "experiment.json").read_text())
    saved["experiment"]["problem"]["clients"] = 0
    (folder / "experiment.json").write_text(json.dumps(saved))
    assert offbeat("resume", folder).err == "offbeat: problem.clients = 0: must be at least 1\n"


def test_resuming_what_is_finished_prints_the_table_again_and_changes_nothing(folder: Path) -> None:
    before = contents(folder)
    outcome = offbeat("resume", folder)
    assert outcome.code == 0
    assert "fedasync" in outcome.out
    assert outcome.err.count("finished before") == 4
    assert contents(folder) == before


def test_resuming_does_only_what_is_missing_and_ends_the_same(folder: Path) -> None:
    before = {name: record(folder / name) for name in ("area-0", "fedasync-0", "area-1", "fedasync-1")}
    kept = (folder / "area-0" / "result.json").read_bytes()
    (folder / "fedasync-0" / "result.json").unlink()
    (folder / "area-1" / "result.json").write_text('{"algorithm": "ar')  # an interrupted write
    outcome = offbeat("resume", folder, "--json")
    assert outcome.code == 0
    assert outcome.err.count("finished before") == 2
    assert [(r["algorithm"], r["seed"]) for r in outcome.runs] == [
        ("area", 0),
        ("fedasync", 0),
        ("area", 1),
        ("fedasync", 1),
    ]
    assert {name: record(folder / name) for name in before} == before
    assert (folder / "area-0" / "result.json").read_bytes() == kept


def test_another_version_than_the_one_it_was_begun_with_is_mentioned(folder: Path) -> None:
    saved = json.loads((folder / "experiment.json").read_text())
    now, saved["versions"]["torch"] = saved["versions"]["torch"], "1.0"
    (folder / "experiment.json").write_text(json.dumps(saved))
    outcome = offbeat("resume", folder)
    assert outcome.code == 0
    assert f"offbeat: torch 1.0 then, {now} now: the end may differ" in outcome.err


def test_a_module_that_was_edited_since_the_run_began_is_mentioned(tmp_path: Path) -> None:
    (tmp_path / "edited_server.py").write_text("from edited_part import Mine as Mine\n")
    (tmp_path / "edited_part.py").write_text("import offbeat as ob\n\n\nclass Mine(ob.FedAsync):\n    pass\n")
    assert run(tmp_path, QUADRATIC.replace('"fedasync"', '"edited_server:Mine"\nlabel = "mine"')).code == 0
    unchanged = offbeat("resume", tmp_path / "out")
    assert (unchanged.code, "has changed" in unchanged.err) == (0, False)
    with (tmp_path / "edited_part.py").open("a") as file:
        file.write("    several = False\n")
    outcome = offbeat("resume", tmp_path / "out")
    assert outcome.code == 0
    assert "offbeat: the module edited_part has changed since the first run of this folder: the end" in outcome.err
    assert "edited_server" not in outcome.err


TEXTS = """
until = { updates = 4 }
problem = { data = { texts = { folder = "letters", window = 8 } }, clients = 2, model = "gpt" }
timing = { exponential = { rate = 1.0 } }
[algorithm.fedasync]
local = { sgd = { lr = 0.1, batch = 2 } }
"""


def test_texts_next_to_the_file_are_found_from_any_folder_and_mentioned_if_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "letters").mkdir()
    for name in ("anna", "bert"):
        (tmp_path / "letters" / f"{name}.txt").write_text(f"dear {name}, " * 20)
    (tmp_path / "x.toml").write_text(TEXTS)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert offbeat("run", "../x.toml", "--out", "out").code == 0
    names.search()  # as another process would begin
    texts._texts.cache_clear()
    assert ob.open("out")[0].module() is not None
    assert "have changed" not in offbeat("resume", "out").err
    (tmp_path / "letters" / "anna.txt").write_text("dear anne, " * 20)
    assert "offbeat: the data in letters have changed since the first run" in offbeat("resume", "out").err


def test_a_module_without_its_file_is_no_part_of_the_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`torch.classes` says that it is in `_classes.py` of the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_server.py").write_text("import offbeat as ob\n\n\nclass Mine(ob.FedAsync):\n    pass\n")
    assert run(tmp_path, QUADRATIC.replace('"fedasync"', '"own_server:Mine"\nlabel = "mine"')).code == 0
    assert [*json.loads((tmp_path / "out" / "experiment.json").read_text())["code"]] == ["own_server"]
