"""What a reproduction found, on its page: claims, ours beside the paper's, reasons."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from offbeat.report.comparison import PaperComparison, body, comparison, lead
from offbeat.watch.files import OUTCOME


def cell(name: str, shows: str, shown: str, paper: str, **more: Any) -> dict[str, Any]:
    found = {"cell": name, "shows": shows, "shown": shown, "printed": paper, "note": "", "ratio": None}
    return {**found, "differs": False, "why": "", **more}


def outcome(*cells: dict[str, Any], **more: Any) -> dict[str, Any]:
    found = {
        "name": "table1", "scale": "quick", "title": "time to an accuracy", "paper": "P", "where": "table 1",
        "scope": "one seed", "notes": ["a note"], "cells": cells, "seeds": {"main": [0]},
        "claims": [{"claim": "a is first", "state": "held"}, {"claim": "b is last", "state": "not held"},
                   {"claim": "c", "state": "not checked"}],
    }  # fmt: skip
    return {**found, **more}


def found(tmp_path: Path, table: Any) -> tuple[PaperComparison | None, list[str]]:
    (tmp_path / OUTCOME).write_text(table if isinstance(table, str) else json.dumps(table), encoding="utf-8")
    said: list[str] = []
    return comparison(tmp_path, said), said


def shown(tmp_path: Path, table: dict[str, Any]) -> str:
    made, said = found(tmp_path, table)
    assert made is not None, said
    assert said == []
    return body(made)


def rows(html: str) -> list[list[str]]:
    """Every table's lines as words, without marks."""
    tables = re.findall(r"<tbody>(.*?)</tbody>", html)
    return [[re.sub(r"<[^>]*>", " ", row).split() for row in re.findall(r"<tr>(.*?)</tr>", t)] for t in tables]  # type: ignore[misc]


def test_claims_and_what_it_is_come_first(tmp_path: Path) -> None:
    made, _ = found(tmp_path, outcome(cell("a:t", "time", "1", "2")))
    assert made is not None
    assert lead(made) == "Time to an accuracy (P, table 1). 1 of 2 claims held."
    html = body(made)
    assert '<li data-state="held"><b>held</b> a is first</li><li data-state="not held">' in html
    assert html.index("Quick: one seed.") < html.index("a is first") < html.index("<table") < html.index("a note")
    assert "1 of 1 cells and 2 of 3 claims are shown; the others were not run." in html


def test_lines_go_down_and_quantities_across(tmp_path: Path) -> None:
    cells = [cell("a/1:t", "time", "5", "6"), cell("a/1:acc", "accuracy", "80", "81"), cell("b/1:t", "time", "7", "8")]
    html = shown(tmp_path, outcome(*cells))
    assert rows(html) == [[["a/1", "5", "paper", "6", "80", "paper", "81"], ["b/1", "7", "paper", "8"]]]
    assert re.findall(r'<th scope="col">([a-z]+)</th>', html) == ["time", "accuracy"]


def test_lines_that_share_no_quantity_stand_apart(tmp_path: Path) -> None:
    cells = [
        cell("a/1:t", "time", "5", "6"),
        cell("a:largest", "largest step", "9", "9"),
        cell("gain", "gain", "2", "-"),
    ]
    assert rows(shown(tmp_path, outcome(*cells))) == [
        [["a/1", "5", "paper", "6"]],
        [["a", "9", "paper", "9"]],
        [["gain", "2"]],  # worked out from several cells; the paper prints none
    ]


def test_experiments_have_tables_of_their_own(tmp_path: Path) -> None:
    cells = [cell("two/a:t", "time", "1", "1"), cell("one/a:t", "time", "2", "2")]
    cells.append(cell("three/a:t", "time", "not run", "3", note="not run"))
    html = shown(tmp_path, outcome(*cells, seeds={"two": [0], "one": [0]}))
    assert re.findall(r"<h3>(.*?)</h3>", html) == ["two", "one"]
    assert rows(html) == [[["a", "1", "paper", "1"]], [["a", "2", "paper", "2"]]]
    assert "2 of 3 cells and 2 of 3 claims are shown" in html


def test_reasons_are_given_once_and_by_number(tmp_path: Path) -> None:
    off = {"differs": True, "why": "slow clocks"}
    cells = [cell("a:t", "time", "1", "2", ratio=0.5, **off), cell("b:t", "time", "2", "4", ratio=0.5, **off)]
    cells += [
        cell("c:t", "time", "4", "4", ratio=1.0, why="slow clocks"),
        cell("d:t", "time", "> 4", "5", differs=True),
    ]
    html = shown(tmp_path, outcome(*cells))
    assert html.count("<sup>1</sup>") == 2
    assert html.count('class="off marked"') == 3
    assert '<ol class="whys"><li>slow clocks</li></ol>' in html


@pytest.mark.parametrize(("ratio", "at"), [(1.0, 20.0), (4.0, 36.0), (0.25, 4.0), (2.0, 28.0), (1e9, 36.0)])
def test_a_mark_shows_how_far_from_the_paper_ours_is(tmp_path: Path, ratio: float, at: float) -> None:
    html = shown(tmp_path, outcome(cell("a:t", "time", "1", "2", ratio=ratio)))
    assert f'cx="{at:.1f}"' in html
    assert f"{ratio:.2g} times the paper" in html


def test_a_loss_where_the_paper_has_a_gain_has_no_place_on_the_scale(tmp_path: Path) -> None:
    html = shown(tmp_path, outcome(cell("gain", "gain", "-5", "40", ratio=-0.125, differs=True)))
    assert "circle" not in html
    assert rows(html) == [[["gain", "-5", "paper", "40"]]]


def test_what_comes_from_the_folder_is_escaped(tmp_path: Path) -> None:
    bad = "<script>x</script>"
    table = outcome(cell(f"{bad}/a:t", bad, bad, bad, differs=True, why=bad), notes=[bad], seeds={bad: [0]}, scope=bad)
    table["claims"] = [{"claim": bad, "state": bad}]
    assert "<script" not in shown(tmp_path, table | {"stopped": bad})


@pytest.mark.parametrize(
    "table",
    [
        "", "[]", "{", "null", '{"name": 1}', outcome({}), outcome(cell("a:t", "t", "1", "2", ratio="far")),
        outcome(claims=[1]), outcome(seeds=None), outcome(notes=3), outcome(cells=5),
    ],
)  # fmt: skip
def test_a_damaged_one_is_left_out_and_said(tmp_path: Path, table: Any) -> None:
    made, said = found(tmp_path, table)
    assert made is None
    assert said[0].startswith("outcome.json is damaged and left out (")


def test_a_folder_without_one_is_no_reproduction(tmp_path: Path) -> None:
    said: list[str] = []
    assert comparison(tmp_path, said) is None
    assert said == []
