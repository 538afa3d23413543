"""The table that a run ends with."""

from __future__ import annotations

import io
from math import nan
from typing import Any

from rich.console import Console
from worlds import MEASURED

from offbeat.cli.show import table
from offbeat.core.metric import LOSS, Metric
from offbeat.report.tables import TableCell, markdown, note, rows
from offbeat.watch.results import MeanMax, Result


def result(name: str, seed: int, accuracy: float, reached: float | None = 1.0, **more: Any) -> Result:
    found = {
        "metrics": {"accuracy": accuracy, "loss": 0.25},
        "measured": MEASURED,
        "targets": {"0.8": reached},
        "updates": 12345,
        "versions": 99,
        "staleness": MeanMax(3.14159, 1000 + seed),
    }
    return Result(name, seed, **(found | more))


def cells(*results: Result) -> dict[str, TableCell]:
    head, body = rows(results)
    return dict(zip(head, body[0], strict=True))


def test_one_seed_is_shown_as_it_is() -> None:
    assert cells(result("area", 0, 0.9512, 0.5)) == {
        "algorithm": TableCell("area"),
        "accuracy": TableCell("95.1 %"),
        "loss": TableCell("0.25"),
        "time\nto 80 %": TableCell("0.5"),
        "updates": TableCell("12,345"),
        "server\nsteps": TableCell("99"),
        "staleness": TableCell("mean 3.14", "max 1,000"),
    }


def test_several_seeds_are_a_mean_with_the_lowest_and_the_highest() -> None:
    shown = cells(result("area", 0, 0.90, 1.0), result("area", 1, 0.94, 2.0))
    assert shown["accuracy"] == TableCell("92.0 %", "90.0–94.0")
    assert shown["time\nto 80 %"] == TableCell("1.5", "1–2")
    assert shown["loss"] == TableCell("0.25")
    assert shown["staleness"] == TableCell("mean 3.14", "max 1,001")


def test_a_target_that_was_not_always_reached_says_so() -> None:
    seldom = cells(result("area", 0, 0.9, 2.0), result("area", 1, 0.7, None))
    never = cells(result("area", 0, 0.7, None))
    assert seldom["time\nto 80 %"] == TableCell("2", "by 1 of 2")
    assert never["time\nto 80 %"] == TableCell("never")


def test_failed_seeds_are_counted_and_left_out_of_the_means() -> None:
    failed = Result("area", 1, error="client 3 …")
    assert cells(result("area", 0, 0.9), failed)["algorithm"] == TableCell("area", "1 of 2 failed")
    assert cells(result("area", 0, 0.9), failed)["accuracy"] == TableCell("90.0 %")
    head, body = rows([failed])
    assert head == ["algorithm", "updates", "server\nsteps", "staleness"]
    assert body == [[TableCell("area", "1 of 1 failed"), TableCell("–"), TableCell("–"), TableCell("–")]]


def test_a_metric_that_is_no_share_is_not_written_in_per_cent() -> None:
    rmse = Metric("rmse")
    shown = cells(result("area", 0, 0.9, 2.5, metrics={"loss": 1.0, "rmse": 0.512}, measured=(rmse, LOSS)))
    assert list(shown)[1:3] == ["rmse", "loss"]  # the task's own first
    assert shown["rmse"] == TableCell("0.512")
    assert shown["time\nto 0.8"] == TableCell("2.5")


def test_without_targets_there_are_no_columns_for_them() -> None:
    shown = cells(result("area", 0, 0.9, metrics={"loss": 1.0, "gap": nan}, measured=(LOSS, Metric("gap")), targets={}))
    assert list(shown) == ["algorithm", "loss", "gap", "updates", "server\nsteps", "staleness"]
    assert shown["gap"] == TableCell("–")


def test_numbers_are_short_and_never_in_a_form_that_hides_them() -> None:
    for value, shown in ((999.7, "1,000"), (999.4, "999"), (0.012345, "0.0123"), (1e-9, "1e-09"), (2e6, "2,000,000")):
        assert cells(result("area", 0, 0.9, updates=value))["updates"].main == shown


def test_it_fits_into_80_columns_with_a_long_name_and_wide_ranges() -> None:
    metrics = [{"accuracy": 0.9 + seed / 100, "loss": 0.354 + 0.011 * seed} for seed in range(3)]
    results = [result("fedasync-mixing", seed, 0.9, 10.25 + seed, metrics=metrics[seed]) for seed in range(3)]
    file = io.StringIO()
    Console(file=file, width=80).print(table(*rows(results), note(results)))
    assert "fedasync-mixing" in file.getvalue()
    assert "0.354–0.376" in file.getvalue()
    assert "means over 3 seeds" in file.getvalue()


def test_markdown_has_one_line_an_algorithm() -> None:
    results = [result("area", 0, 0.9), result("area", 1, 0.92), result("fedavg", 0, 0.5)]
    lines = markdown(*rows(results), note(results)).splitlines()
    assert lines[0].count("|") == lines[1].count("|") == 8
    assert lines[2].startswith("| area | 91.0 % (90.0–92.0) | 0.25 | 1 | 12,345 | 99 | mean 3.14 (max 1,001) |")
    assert lines[-1] == "Means over 2 seeds, with the lowest and highest value."
