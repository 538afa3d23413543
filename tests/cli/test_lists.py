"""`offbeat list`, `offbeat data` and --help."""

from __future__ import annotations

import pytest
from command import offbeat

from offbeat import __version__
from offbeat.data.folder import NAMES as SETS
from offbeat.experiment.catalogue import catalogue
from offbeat.models.build import NAMES as NETWORKS

SHELVES = {shelf: list(lines) for shelf, lines in catalogue().items()}


@pytest.mark.parametrize("shelf", SHELVES)
def test_a_list_has_one_line_of_explanation_for_each_name(shelf: str) -> None:
    code, out, err = offbeat("list", shelf)
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == SHELVES[shelf]
    assert all(len(line.split()) > 2 for line in out.splitlines())


def test_without_a_name_all_lists_are_shown() -> None:
    lines = offbeat("list").out.splitlines()
    for shelf, names in SHELVES.items():
        start = lines.index(shelf) + 1
        assert [line.split()[0] for line in lines[start : start + len(names)]] == names


def test_a_list_that_does_not_exist_is_refused() -> None:
    assert offbeat("list", "algorithm") == (1, "", "offbeat: unknown list 'algorithm'; did you mean 'algorithms'?\n")


def test_the_lists_name_everything_there_is() -> None:
    assert set(SHELVES["data"]) == {*SETS, "file", "quadratic", "own"}
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
