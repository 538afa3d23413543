"""Cells and claims on runs that can be checked by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from worlds import MEASURED

from offbeat.core.errors import SettingError
from offbeat.core.watcher import Measurement
from offbeat.papers import conclude
from offbeat.papers.cells import Cell
from offbeat.papers.claims import judge, term
from offbeat.papers.entry import Claim, Printed, read
from offbeat.watch.results import Result


def table(**more: Any) -> dict[str, Any]:
    """A reproduction of two settings of one algorithm."""
    experiment = {"algorithm": [{"name": "area"}], "sweep": {"algorithm.area.lr": [1.0, 10.0]}}
    return {
        "title": "t", "paper": "p", "where": "w",
        "experiment": {"main": experiment},
        "axis": {"lr": {"key": "algorithm.area.lr"}},
        "quantity": {
            "acc": {"of": "final", "scale": 100.0},
            "each": {"of": "time to", "target": 0.8},
            "mean": {"of": "time to", "target": 0.8, "curve": "mean", "per": 4.0},
            "rounds": {"of": "time to", "target": 0.8, "by": "version"},
            "best": {"of": "final", "metric": "loss", "best": "lowest"},
            "largest": {"of": "largest", "axis": "lr"},
            "useful": {"of": "largest", "axis": "lr", "keep": "improved"},
            "swing": {"of": "swing"},
        },
        "lines": [
            {"algorithm": "area", "lr": 1.0, "acc": "70 (65 - 80)", "each": 1, "mean": 0.5, "rounds": 9, "swing": 0},
            {"algorithm": "area", "best": "0.5", "largest": 10, "useful": 1},
        ],
        **more,
    }  # fmt: skip


def run(lr: float, seed: int, accuracies: list[float], losses: list[float]) -> Result:
    curve = tuple(
        Measurement(0, float(t), 0, 3 * t, {"accuracy": a, "loss": loss})
        for t, (a, loss) in enumerate(zip(accuracies, losses, strict=True))
    )
    metrics, settings = {"accuracy": accuracies[-1], "loss": losses[-1]}, {"algorithm.area.lr": lr}
    return Result("area", seed, number=0, settings=settings, metrics=metrics, measured=MEASURED, curve=curve, time=4.0)


RUNS = {
    "main": [
        run(1.0, 0, [0.1, 0.9, 0.5, 0.7, 0.7], [2.0, 1.0, 1.0, 1.0, 1.0]),
        run(1.0, 1, [0.1, 0.3, 0.8, 0.9, 0.9], [2.0, 1.0, 1.0, 1.0, 0.6]),
        run(10.0, 0, [0.1, 0.2, 0.2, 0.2, 0.2], [2.0, 9.0, 9.0, 9.0, 9.0]),
        run(10.0, 1, [0.1, 0.2, 0.2, 0.2, 0.2], [2.0, 9.0, 9.0, 9.0, 9.0]),
    ]
}


def test_cells_by_hand() -> None:
    cells = {cell.name: cell.ours for cell in conclude(read("x", table()), RUNS).cells}
    assert cells["area/1:acc"] == Cell(pytest.approx(80.0), pytest.approx(70.0), pytest.approx(90.0), 2)
    assert (cells["area/1:each"].mean, cells["area/1:each"].low, cells["area/1:each"].high) == (1.5, 1.0, 2.0)
    assert cells["area/1:mean"].mean == 3.0 / 4.0  # the mean curve is 0.1, 0.6, 0.65, 0.8, 0.8
    assert cells["area/1:rounds"].mean == 4.5
    assert (cells["area:best"].mean, cells["area:best"].note) == (pytest.approx(0.8), "best at lr 1")
    assert (cells["area:largest"].mean, cells["area:useful"].mean) == (10.0, 1.0)
    assert cells["area/1:swing"].mean == pytest.approx((0.1 + 0.05) / 2)


def test_a_target_that_was_not_reached_is_beyond_the_horizon() -> None:
    wide = table(quantity={"t": {"of": "time to", "target": 0.8, "per": 2.0}})
    wide["lines"] = [{"algorithm": "area", "lr": 10.0, "t": "> 1"}, {"algorithm": "area", "lr": 1.0, "t": "1"}]
    never, reached = (cell.ours for cell in conclude(read("x", wide), RUNS).cells)
    assert (never.mean, never.beyond) == (inf, 2.0)
    assert reached.mean == 0.75


def test_of_several_settings_the_one_that_got_there_is_the_best_or_none_is() -> None:
    sought = {"of": "time to", "best": "lowest"}
    wide = table(quantity={"t": {**sought, "target": 0.8}, "high": {**sought, "target": 0.95}})
    wide["lines"] = [{"algorithm": "area", "t": "1", "high": "> 3"}]
    diverged = [replace(run, error="not finite") for run in RUNS["main"][:2]]
    both, one, neither = (
        {cell.name: cell.ours for cell in conclude(read("x", wide), {"main": runs}).cells}
        for runs in (
            RUNS["main"],
            [*diverged, *RUNS["main"][2:]],
            [*diverged, replace(RUNS["main"][2], error="not finite")],
        )
    )
    assert (both["area:t"].mean, both["area:t"].note) == (1.5, "best at lr 1")
    assert (both["area:high"].beyond, both["area:high"].note) == (4.0, "")
    assert (one["area:high"].beyond, one["area:high"].note) == (4.0, "")  # the other setting might still
    assert (neither["area:high"].beyond, neither["area:high"].note) == (inf, "2 of 2 runs diverged")


def test_a_mean_outside_the_papers_range_is_marked() -> None:
    lines = [{"algorithm": "area", "lr": lr, "acc": "70 (65 - 80)"} for lr in (1.0, 10.0)]
    outcome = conclude(read("x", table(lines=lines, reason=[{"cells": "area/10:*", "text": "too large a step"}])), RUNS)
    assert [(cell.outside, cell.why) for cell in outcome.cells] == [(False, ""), (True, "too large a step")]
    assert "outside the paper's range: too large a step" in outcome.markdown


@pytest.mark.parametrize(("paper", "said"), [("1.6", "| × 0.94 |"), ("3", "| × 0.5: too slow a computer |")])
def test_a_reason_is_given_where_numbers_differ(paper: str, said: str) -> None:
    lines = [{"algorithm": "area", "lr": 1.0, "each": paper}]
    reason = [{"cells": "*:each", "text": "too slow a computer"}]
    assert said in conclude(read("x", table(lines=lines, reason=reason)), RUNS).markdown


@pytest.mark.parametrize(("paper", "said"), [("3", "| × 0.5: ours is faster |"), ("1", "| × 1.5 |")])
def test_a_reason_that_explains_one_direction_is_not_given_for_the_other(paper: str, said: str) -> None:
    lines = [{"algorithm": "area", "lr": 1.0, "each": paper}]
    reason = [{"cells": "*:each", "ours": "smaller", "text": "ours is faster"}]
    assert said in conclude(read("x", table(lines=lines, reason=reason)), RUNS).markdown


def test_a_diverged_run_leaves_no_number() -> None:
    failed = {"main": [RUNS["main"][0], replace(RUNS["main"][1], error="not finite")]}
    cells = {cell.name: cell.ours for cell in conclude(read("x", table()), failed).cells}
    assert (cells["area/1:acc"].mean, cells["area/1:acc"].note) == (None, "1 of 2 runs diverged")
    assert cells["area:largest"].mean is None


def test_a_run_that_diverged_before_its_target_will_never_reach_it() -> None:
    wide = table(quantity={"t": {"of": "time to", "target": 0.8}})
    wide["lines"] = [{"algorithm": "area", "lr": lr, "t": "1"} for lr in (1.0, 10.0)]
    both = {"main": [replace(run, error="not finite") for run in RUNS["main"]]}
    late, never = conclude(read("x", wide), both).cells
    assert late.ours.mean == 1.5  # reached before
    assert (never.ours.mean, never.ours.beyond) == (inf, inf)
    one = conclude(read("x", wide), {"main": both["main"][:3]})
    assert "| area/10:t | diverged | 1 | only one of the two reaches it |" in one.markdown
    assert "2 of 2 runs diverged" in conclude(read("x", wide), both).markdown


def test_of_a_run_that_is_under_way_only_times_are_known() -> None:
    some = {"main": [RUNS["main"][0], replace(RUNS["main"][3], unfinished=True)]}
    lines = [{"algorithm": "area", "lr": lr, "acc": "1", "each": "1"} for lr in (1.0, 10.0)]
    cells = {cell.name: cell.ours for cell in conclude(read("x", table(lines=lines)), some, whole=False).cells}
    assert (cells["area/1:acc"].mean, cells["area/1:each"].mean) == (70.0, 1.0)
    assert (cells["area/10:acc"].mean, cells["area/10:acc"].note) == (None, "under way")
    assert (cells["area/10:each"].beyond, cells["area/10:each"].note) == (4.0, "under way")


@pytest.mark.parametrize(
    ("kind", "pair", "bound", "state"),
    [
        ("less", ["one", "two"], 1.0, "held"),
        ("less", ["two", "one"], 1.0, "not held"),
        ("less", ["one", "two"], 0.5, "not held"),
        ("less", ["one", "never"], 1.0, "held"),  # never is known to be larger than 5
        ("less", ["never", "two"], 1.0, "not held"),
        ("less", ["nine", "never"], 1.0, "undecided"),
        ("less", ["nine", "diverged"], 1.0, "held"),
        ("less", ["diverged", "nine"], 1.0, "not held"),
        ("ratio", ["nine", "diverged"], 4.0, "not held"),
        ("less", ["one", "absent"], 1.0, "not checked"),
        ("ratio", ["never", "one"], 5.0, "held"),
        ("ratio", ["never", "one"], 6.0, "undecided"),
        ("ratio", ["two", "one"], 2.0, "held"),
        ("near", ["one", "two"], 1.0, "held"),
        ("near", ["one", "nine"], 1.0, "not held"),
        ("near", ["nine", "never"], 1.0, "undecided"),
    ],
)
def test_comparisons(kind: str, pair: list[str], bound: float, state: str) -> None:
    bounds = {"less": "factor", "ratio": "at_least", "near": "within"}
    cells = {
        "one": Cell(1.0),
        "two": Cell(2.0),
        "nine": Cell(9.0),
        "never": Cell(inf, beyond=5.0),
        "diverged": Cell(inf, beyond=inf),
        "absent": Cell(None),
    }
    assert judge(Claim("", **{kind: [pair], bounds[kind]: bound}), cells)[0] == state


def test_an_order_holds_if_every_step_does() -> None:
    cells = {"a": Cell(1.0), "b": Cell(2.0), "c": Cell(2.0)}
    assert judge(Claim("", order=["a", "b"]), cells)[0] == "held"
    assert judge(Claim("", order=["a", "b", "c"]), cells)[0] == "not held"


def test_terms() -> None:
    cells = {"a": Cell(1.0), "b": Cell(4.0), "never": Cell(inf, beyond=5.0)}
    assert term({"minus": ["b", "a"]}, cells) == (3.0, 3.0)
    assert term({"gain": ["a", "b"]}, cells) == (0.75, 0.75)
    assert term({"gain": ["a", "never"]}, cells) == (0.8, 1.0)
    assert term({"mean": ["a", "b", {"max": ["a", "b"]}]}, cells) == (3.0, 3.0)
    with pytest.raises(SettingError, match="is no term"):
        term({"power": ["a", "b"]}, cells)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("61.16 (52.75 - 66.46)", (61.16, 52.75, 66.46, None)),
        ("> 1", (inf, None, None, 1.0)),
        ("-", (None, None, None, None)),
        (1e3, (1000.0, None, None, None)),
    ],
)
def test_printed_numbers(text: Any, found: tuple[float | None, ...]) -> None:
    printed = Printed.read(text)
    assert (printed.mean, printed.low, printed.high, printed.beyond) == found


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"claims": []}, ".claims: unknown; did you mean 'claim'?"),
        ({"quantity": {"acc": {"of": "finl"}}}, '.quantity.acc.of = "finl": expected one of "final", "time to"'),
        ({"quantity": {"acc": {"of": "time to"}}}, ".quantity.acc: a quantity has a target if and only if"),
        ({"lines": [{"algorithm": "aera", "acc": "1"}]}, ".lines[0].algorithm: unknown 'aera'; did you mean 'area'?"),
        ({"lines": [{"algorithm": "area", "acc": "one"}]}, '.lines[0].acc = "one": expected 1.5, 1.5 (1.2 - 1.9)'),
        ({"lines": [{"algorithm": "area", "acc": "1"}] * 2}, ": two cells are called 'area:acc'"),
        (
            {"claim": [{"text": "a", "less": [["x", "y"]], "at_least": 2}]},
            ".claim[0].at_least goes with ratio, not with",
        ),
        ({"claim": [{"text": "a", "less": [["x"]]}]}, '.claim[0].less[0] = ["x"]: expected a list of 2'),
        ({"claim": [{"text": "a"}]}, ".claim[0]: a claim has one of less, ratio, near, order; this one has none"),
        ({"experiment": {"main": {"like": "other"}}}, ".experiment.main.like: unknown 'other'; known: main"),
    ],
)
def test_a_mistake_in_a_file_is_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match="^" + re.escape("reproduction x" + said)):
        read("x", table(**wrong))
