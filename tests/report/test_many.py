"""A sweep of 24 settings in a real browser: every line can be told without colour, on a desk and on a phone."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from command import offbeat
from report.browser import CHROMIUM, chromium, opened
from report.folders import embedded

from offbeat.report import figures, gather

SWEEP = """
trials = 2
until = { time = 2.0 }
evaluate = { every = 0.5 }

[problem]
data = "quadratic"
clients = 4
dim = 6

[timing]
exponential = { rate = 4.0 }

[algorithm.area]
size = 2
local = { sgd = { lr = 0.1 } }

[algorithm.fedbuff]
size = 2
local = { sgd = { lr = 0.1 } }

[sweep]
"algorithm.*.local.sgd.lr" = [0.01, 0.03, 0.1, 0.2]
"algorithm.*.size" = [1, 2, 3]
"""
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("many")
    (place / "sweep.toml").write_text(SWEEP)
    outcome = offbeat("sweep", place / "sweep.toml", "--out", place / "20260101-000000", "--workers", "1")
    assert outcome.code == 0, outcome.err
    return place / "20260101-000000" / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def test_the_title_says_what_was_run_and_no_local_path_is_printed(page: Path) -> None:
    text = page.read_text()
    assert "<h1>area and fedbuff on quadratic</h1>" in text
    assert str(page.parent.parent) not in text


@needs_browser
def test_every_line_can_be_told_without_colour(page: Path, browser: Any) -> None:
    tab = opened(browser, page)
    names = embedded(page)["series"]
    assert len(names) == 24
    titles = tab.locator("#progress-plots .multiples h3").all_text_contents()
    assert titles == [f"{at} {name}" for at, name in enumerate(names, 1)]
    looks = tab.eval_on_selector_all(
        "#legend line", "nodes => nodes.map(n => n.getAttribute('stroke') + n.getAttribute('stroke-dasharray'))"
    )
    assert len(set(looks)) == 24
    tab.locator("#progress-bar label", has_text="together").click()
    tab.wait_for_timeout(200)
    ends = tab.locator("#progress-plots text.end:visible")
    assert sorted(int(text.split()[0]) for text in ends.all_text_contents()) == list(range(1, 25))
    boxes = sorted((box["y"], box["height"]) for box in (end.bounding_box() for end in ends.all()))
    assert all(b[0] - a[0] >= 9 for a, b in pairwise(boxes))
    assert all(tab.locator("svg text.title:visible").all_text_contents())
    assert tab.problems == []


@needs_browser
def test_settings_are_filtered_in_plots_and_tables(page: Path, browser: Any) -> None:
    tab = opened(browser, page)
    tab.locator("#legend input").fill("area lr = 0.1")
    tab.wait_for_timeout(200)
    rows = tab.locator("#results tbody tr:visible").all_text_contents()
    assert len(rows) == 3
    assert all("area, lr = 0.1," in row for row in rows)
    assert tab.locator("#progress-plots .multiples h3:visible").count() == 3
    tab.locator("#legend input").fill("")
    assert tab.locator("#results tbody tr:visible").count() == 24


@needs_browser
def test_on_a_phone_nothing_overflows_and_values_are_next_to_their_names(page: Path, browser: Any) -> None:
    tab = opened(browser, page, width=375, height=800)
    assert tab.evaluate("document.documentElement.scrollWidth") == 375
    first = tab.locator("#results tbody tr").first
    name, value = first.locator("th").bounding_box(), first.locator("td").first.bounding_box()
    assert name["width"] < 170
    assert value["x"] + value["width"] <= 375
    tab.locator("#progress-bar label", has_text="together").click()
    tab.wait_for_timeout(200)
    ends = tab.locator("#progress-plots text.end:visible").all_text_contents()
    assert sorted(map(int, ends)) == list(range(1, 25))


@needs_browser
def test_a_plot_is_saved_as_svg_png_and_csv(page: Path, browser: Any, tmp_path: Path) -> None:
    tab = opened(browser, page)
    tab.locator("#progress-bar label", has_text="together").click()
    tab.wait_for_timeout(200)
    saved = {}
    for kind in ("SVG", "PNG", "CSV"):
        with tab.expect_download() as found:
            tab.locator("#progress-plots > div:not(.multiples) .save button", has_text=kind).first.click()
        found.value.save_as(tmp_path / kind)
        saved[kind] = (tmp_path / kind).read_bytes()
        assert found.value.suggested_filename.endswith(f".{kind.lower()}")
    assert saved["PNG"].startswith(b"\x89PNG")
    assert len(saved["PNG"]) > 20_000  # it is drawn, not blank
    assert b"var(--" not in saved["SVG"].replace(b'stroke="var(--', b"").replace(b'fill="var(--', b"")
    rows = list(csv.DictReader(io.StringIO(saved["CSV"].decode())))
    band = next(p for p in embedded(page)["progress"] if p["series"] == 0 and p["axis"] == "time")
    mine = [float(row["virtual time"]) for row in rows if row["series"] == "1 area, lr = 0.01, size = 1"]
    assert mine == pytest.approx(band["x"])


def test_figures_keep_their_height_and_have_the_legend_outside(page: Path, tmp_path: Path) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    content = gather([page.parent])
    with plt.rc_context(figures._STYLE):
        name, figure = next(iter(figures._figures(content)))
        figure.savefig(tmp_path / f"{name}.png", dpi=100)
    (axes,), (legend,) = figure.axes, figure.legends
    drawn, box = axes.get_window_extent(), legend.get_window_extent()
    assert len(legend.get_texts()) == 24
    assert drawn.height / figure.dpi > 1.5
    assert box.y1 <= drawn.y0
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width
