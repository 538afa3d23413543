"""`offbeat list`, `offbeat data` and --help."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from command import offbeat

from offbeat import __version__
from offbeat.cli import app
from offbeat.data.folder import NAMES as SETS
from offbeat.experiment.catalogue import catalogue
from offbeat.models.build import NAMES as NETWORKS

SHELVES = {shelf: list(lines) for shelf, lines in catalogue().items()}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("rnu",), "offbeat: No such command 'rnu'. Did you mean 'run'?; see `offbeat --help`"),
        (("run", "--ste", "x=1"), "offbeat run: No such option: --ste (Possible options: "),
        (("run", "--device", "cuda"), "offbeat run: No such option: --device; change a key of the file with --set"),
        (("keys", "init", "fed"), "offbeat keys init: Missing option '--clients'; see `offbeat keys init --help`"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments: tuple[str, ...], says: str) -> None:
    code, out, err = offbeat(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(says)


@pytest.mark.parametrize("arguments", [(), ("keys",)])
def test_a_group_without_a_command_shows_its_help(arguments: tuple[str, ...]) -> None:
    code, out, err = offbeat(*arguments)
    assert code == 2
    assert "Usage: offbeat" in out + err


@pytest.mark.parametrize("shelf", SHELVES)
def test_a_list_has_one_line_of_explanation_for_each_name(shelf: str) -> None:
    code, out, err = offbeat("list", shelf)
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == SHELVES[shelf]
    assert all(len(line.split()) > 2 for line in out.splitlines())
    assert all(" ".join(line.split()) in " ".join(out.split()) for line in catalogue()[shelf].values())  # [b, t], too
    assert not any(line.endswith(" ") for line in out.splitlines())


def test_without_a_name_all_lists_are_shown() -> None:
    lines = offbeat("list").out.splitlines()
    for shelf, names in SHELVES.items():
        start = lines.index(shelf) + 1
        assert [line.split()[0] for line in lines[start : start + len(names)]] == names


def test_a_list_that_does_not_exist_is_refused() -> None:
    assert offbeat("list", "algorithm") == (1, "", "offbeat: unknown list 'algorithm'; did you mean 'algorithms'?\n")


def test_the_lists_name_everything_there_is() -> None:
    assert set(SHELVES["data"]) == {*SETS, "file", "quadratic", "absolute", "texts", "topics", "plays", "own"}
    assert set(SHELVES["models"]) == {*NETWORKS, "package.module:factory"}
    assert {"area", "fedbuff", "centralised", "sync-bayes-st"} < set(SHELVES["algorithms"])


@pytest.mark.parametrize("command", ["run", "resume", "list", "data"])
def test_every_command_explains_itself_in_80_columns(command: str) -> None:
    code, out, err = offbeat(command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: offbeat {command}")
    assert max(map(len, out.splitlines())) <= 80


def test_without_a_command_the_commands_are_shown() -> None:
    shown = offbeat("--help").out
    assert all(f"\n  {command}  " in shown for command in ("run", "resume", "list", "data"))
    bare = offbeat()
    assert shown in (bare.out, bare.err)


def test_the_version_is_printed_without_a_command() -> None:
    assert offbeat("--version") == (0, f"offbeat {__version__}\n", "")


def test_help_and_completion_import_neither_pytorch_nor_the_library() -> None:
    """These take a second and more; help answers in a fifth of one."""
    heavy = "torch", "numpy", "pyarrow", "sklearn", "nats", "offbeat.experiment", "offbeat.theory", "offbeat.report"
    code = f"""
import sys
from offbeat.cli.app import main
try:
    main(["--help"])
except SystemExit:
    print([name for name in {heavy} if name in sys.modules])
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "[]"


def test_help_costs_less_than_half_a_second() -> None:
    """Of CPU time, the children's of this process: the machine may be busy."""
    before = os.times()
    subprocess.run([sys.executable, "-m", "offbeat", "--help"], capture_output=True, check=True)
    after = os.times()
    assert after.children_user + after.children_system - before.children_user - before.children_system < 0.5


def test_commands_are_grouped_by_what_people_do_and_their_lines_are_not_cut_off() -> None:
    shown = offbeat("--help").out
    titles = [line.rstrip(":").split()[0] for line in shown.splitlines() if line.endswith(":") and line[0] != " "]
    assert titles == ["Options", "Run", "Compare", "Reproduce", "Deploy"]
    assert "..." not in shown.replace("[ARGS]...", "")
    assert shown.index("\n  run ") < shown.index("\n  sweep ") < shown.index("\n  up ")


def _parameters(command: Any, path: str = "offbeat") -> Iterator[tuple[str, Any]]:
    for name, each in getattr(command, "commands", {}).items():
        yield from _parameters(each, f"{path} {name}")
    yield from ((f"{path} {each.name}", each) for each in command.params if not getattr(each, "hidden", False))


def test_every_option_says_what_happens_without_it() -> None:
    own = {"offbeat install_completion", "offbeat show_completion"}
    missing = [
        where
        for where, each in _parameters(typer.main.get_command(app.commands()))
        if not each.required
        and not (getattr(each, "is_flag", False) and each.default is False)  # off
        and each.default in (None, "", [])
        and not {"Default:", "Required."} & set((each.help or "").split())
    ]
    assert set(missing) <= own


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options(shell: str) -> None:
    words = {
        "bash": {"COMP_WORDS": "offbeat swe", "COMP_CWORD": "1"},
        "zsh": {"_TYPER_COMPLETE_ARGS": "offbeat swe"},
        "fish": {"_TYPER_COMPLETE_ARGS": "offbeat swe", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    found = subprocess.run(
        [sys.executable, "-m", "offbeat"],
        env={**os.environ, **words, "_OFFBEAT_COMPLETE": f"complete_{shell}"},
        capture_output=True,
        text=True,
    )
    assert "sweep" in found.stdout
    assert "serve" not in found.stdout


def test_models_are_listed_by_a_process_that_has_imported_nothing_else() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "offbeat", "list", "models"], capture_output=True, text=True, check=True
    )
    assert found.stdout.split()[0] == "softmax"
