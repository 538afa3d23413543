"""Ratios, checks and tables from turns that are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.by_hand.workloads import LEAN, PLAIN, WORKLOADS
from benchmarks.page import markdown, write
from offbeat.bench.session import BenchRow, Report, paired, ratio, row as summary
from offbeat.bench.table import figure, lines, text
from offbeat.bench.worker import Turn
from offbeat.bench.workloads import BOTH, OFFBEAT

MACHINE = {
    "processor": "abacus", "cores": 2, "gpu": None, "python": "3.11", "torch": "2", "numpy": "2", "offbeat": "0.1",
    "date": "2024-02-29", "load": 0.5,
}  # fmt: skip


def turns(*times: float, accuracy: float = 0.9, wall: float = 2.0) -> list[Turn]:
    """Turns of 1000 updates that took so many CPU seconds."""
    return [Turn(1000, wall * cpu, cpu, 300.0, 0.0, {"accuracy": accuracy}) for cpu in times]


def row(accuracy: float = 0.9) -> BenchRow:
    taken = {OFFBEAT: turns(1.0, 2.0, 4.0), LEAN: turns(0.5, 1.2, 1.6, accuracy=accuracy)}
    return summary(WORKLOADS["W1"], taken, 1000, ["mnist"], "cpu")


def test_a_ratio_is_the_median_of_ratios_within_rounds() -> None:
    found = row().scores[1].ratio
    assert found is not None
    assert (found.median, found.low, found.high) == pytest.approx((0.5, 0.4, 0.6))


def test_on_a_gpu_the_clock_counts_and_not_cpu_time() -> None:
    found = ratio(LEAN, {OFFBEAT: turns(1.0, 1.0, wall=1.0), LEAN: turns(1.0, 1.0, wall=8.0)}, "cuda", {})
    assert found is not None
    assert found.median == 8.0


def test_both_cores_are_compared_by_the_clock_with_the_plain_loop() -> None:
    taken = {OFFBEAT: turns(1.0), PLAIN: turns(1.0, wall=2.2), BOTH: turns(1.0, wall=1.1)}
    found = ratio(BOTH, taken, "cpu", WORKLOADS["W3"].against)
    assert found is not None
    assert found.median == pytest.approx(2.0)


def test_rates_are_medians_by_the_clock_and_by_cpu_time() -> None:
    ours = row().scores[0]
    assert (ours.updates_per_s, ours.cpu_ms, ours.memory) == (250.0, 2.0, 300.0)


def test_unlike_accuracies_are_not_passed_over() -> None:
    assert row().disagreement == ""
    wrong = row(accuracy=0.8)
    assert wrong.disagreement == (
        "the contenders did not do the same work, their accuracy is 0.9 (offbeat), 0.8 (lean loop)"
    )
    assert Report(MACHINE, [wrong]).disagreements == [f"W1: {wrong.disagreement}"]
    assert wrong.disagreement in text(Report(MACHINE, [wrong]))
    assert wrong.disagreement in markdown(Report(MACHINE, [wrong]), "make bench")


def test_the_table_says_whether_an_aim_is_met() -> None:
    assert lines(row())[1] == ("lean loop", "417", "1.2", "300", "90.0 %", "× 0.50 (0.40–0.60), aim 0.5 met")


def test_markdown_has_as_many_cells_in_every_line() -> None:
    table = [line for line in markdown(Report(MACHINE, [row()]), "make bench").splitlines() if line.startswith("|")]
    assert len(table) == 4
    assert {line.count("|") for line in table} == {7}


def test_figures_have_three_digits() -> None:
    assert [figure(v) for v in (12345.6, 123.4, 12.34, 0.012345)] == ["12,346", "123", "12.3", "0.0123"]


def test_medians_of_even_counts_lie_between() -> None:
    assert paired([1.0, 3.0]).median == 2.0


def test_a_page_keeps_what_people_wrote(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    write(page, "one", "first")
    page.write_text("# Title\n\n" + page.read_text() + "\nThe end.\n")
    write(page, "two", "other")
    write(page, "one", "second")
    said = page.read_text()
    assert said.startswith("# Title\n\n<!-- begin one -->\n\nsecond\n\n<!-- end one -->\n\nThe end.")
    assert "first" not in said
    assert said.endswith("<!-- begin two -->\n\nother\n\n<!-- end two -->\n")
