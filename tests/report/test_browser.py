"""The page in a real browser: it loads without errors, plots are there, pointer and keyboard work, it fits a phone."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from command import run, sets
from report.browser import CHROMIUM, chromium, opened
from report.folders import embedded, real
from report.test_comparison import cell, outcome

from offbeat.report import write
from offbeat.report.comparison import OUTCOME

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")

TASKS = """
until = { time = 30.0 }
evaluate = { every = 2.0 }
clients = { count = 10 }

[[task]]
name = "small"
data = "digits"
target = { accuracy = 0.8 }

[[task]]
name = "late"
opens = 3.0
data = "digits"
split = { classes = 5 }

[timing]
shifted_exponential = { per_step = { small = 0.1, late = 0.1 } }

[[algorithm]]
name = "fedast"
requests = 8
ratio = 4
allocation = "dynamic"
local = { sgd = { lr = 0.3, steps = 5, batch = 16 } }
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = sets("trials=3", "until.time=3.0", "evaluate.personal.steps=1", "problem.split={classes=5}")
    return real(tmp_path_factory.mktemp("run"), *settings)


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    return write(folder)


@pytest.fixture
def tab(browser: Any, page: Path) -> Iterator[Any]:
    found = opened(browser, page)
    yield found
    assert found.problems == []
    found.context.close()


def choose(tab: Any, group: str, option: str, section: str = "progress") -> None:
    tab.locator(f"#{section} [role=radiogroup][aria-label='{group}'] label", has_text=option).first.click()


def hover(tab: Any, where: Any, x: float, y: float) -> str:
    """What the tip says when the pointer is at these shares of the element's width and height."""
    where.scroll_into_view_if_needed()
    tab.wait_for_timeout(50)
    box = where.bounding_box()
    tab.mouse.move(box["x"] + 5, box["y"] + 5)
    tab.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
    return str(tab.locator("#tip").inner_text())


def test_every_section_has_its_plots(tab: Any) -> None:
    counts = {
        section: tab.locator(f"#{section} .plot svg path.line, #{section} .plot canvas").count()
        for section in ("progress", "timeline", "staleness", "work", "personal")
    }
    assert counts == {"progress": 2, "timeline": 1, "staleness": 2, "work": 4, "personal": 4}
    assert tab.locator("#progress path.area").count() == 2
    assert tab.locator("#results tbody tr").count() == 2
    assert tab.locator("h1").inner_text() == "area and fedbuff on digits"


def test_pointing_at_a_plot_shows_the_numbers_there(tab: Any, folder: Path) -> None:
    text = hover(tab, tab.locator("#progress .plot svg"), 0.88, 0.5)  # the right end of the lines
    finals = [pq.read_table(folder / f"area-{seed}" / "metrics.parquet")["accuracy"][-1].as_py() for seed in range(3)]
    assert "virtual time 3" in text
    low, mean, high = (
        f"{100 * value:.3f}".rstrip("0").rstrip(".") for value in (min(finals), np.mean(finals), max(finals))
    )
    shown = next(line for line in text.replace("\u2009", "").splitlines() if line.startswith("area"))
    assert f"{mean}%" in shown
    assert f"{low}% to {high}%" in shown


def test_axis_metric_scale_and_band_can_be_chosen(tab: Any) -> None:
    plot = tab.locator("#progress .plot svg")
    before = plot.inner_html()
    for group, option, words in (
        ("Against", "bytes", "bytes sent and received"),
        ("Against", "updates", "updates"),
        ("Metric", "loss", "loss against updates"),
        ("Scale", "log", ""),
    ):
        choose(tab, group, option)
        after = plot.inner_html()
        assert after != before, option
        assert words in after + str(plot.get_attribute("aria-label"))
        before = after
    choose(tab, "Seeds", "none")
    assert tab.locator("#progress path.area").count() == 0
    choose(tab, "Seeds", "each")
    assert tab.locator("#progress path.thin").count() == 6
    choose(tab, "Seeds", "quartiles")
    assert tab.locator("#progress path.area").count() == 2


def test_the_table_of_targets_follows_the_axis(tab: Any) -> None:
    assert tab.locator("#progress [data-axis]:visible").get_attribute("data-axis") == "time"
    choose(tab, "Against", "bytes")
    assert tab.locator("#progress [data-axis]:visible").get_attribute("data-axis") == "bytes"


def test_a_click_in_the_legend_hides_an_algorithm_everywhere(tab: Any) -> None:
    button = tab.get_by_role("button", name="fedbuff")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert tab.locator("#progress path.line").count() == 1
    assert tab.locator("#staleness .plot svg path.line:visible").count() == 1
    assert "hidden" in tab.locator("#results tbody tr").nth(1).get_attribute("class")
    tab.get_by_role("button", name="area").click()
    assert "every algorithm is hidden" in tab.locator("#work").inner_text()
    button.dblclick()
    assert tab.locator("#legend [aria-pressed=true]").inner_text() == "fedbuff"
    button.dblclick()
    assert tab.locator("#legend [aria-pressed=true]").all_inner_texts() == ["area", "fedbuff"]
    assert tab.locator("#staleness .plot svg path.line:visible").count() == 2


def test_everything_can_be_reached_and_used_with_the_keyboard(tab: Any) -> None:
    reached: list[str] = []
    for _ in range(60):
        tab.keyboard.press("Tab")
        reached.append(
            tab.evaluate(
                "(document.activeElement.getAttribute('aria-label') || document.activeElement.textContent).slice(0, 40)"
            )
        )
        if "Timeline of the clients" in reached[-1]:
            break
    assert reached[0] == "Skip to the results"
    assert {"area", "fedbuff", "Zoom in"} <= set(reached)
    assert any("accuracy against virtual time" in name for name in reached)
    tab.get_by_role("button", name="area").focus()
    tab.keyboard.press("Space")
    assert tab.locator("#progress path.line").count() == 1
    tab.keyboard.press("Enter")
    assert tab.locator("#progress path.line").count() == 2


def test_arrow_keys_move_along_a_plot_and_say_what_is_there(tab: Any, page: Path) -> None:
    band = next(p for p in embedded(page)["progress"] if p["axis"] == "time" and p["metric"] == "accuracy")
    tab.locator("#progress .plot svg").focus()
    for _ in range(2):
        tab.keyboard.press("ArrowRight")
    said = tab.locator("#live").text_content().replace("\u2009", "")
    assert said.startswith(f"virtual time {band['x'][1]:g}; area{100 * band['mean'][1]:.5g}")
    tab.keyboard.press("End")
    assert f"virtual time {band['x'][-1]:g}" in tab.locator("#live").text_content()
    tab.keyboard.press("Escape")
    assert tab.locator("#tip").is_hidden()


def test_the_timeline_tells_of_a_job_under_the_pointer_and_by_keys(tab: Any, page: Path) -> None:
    line = embedded(page)["timelines"][0]
    canvas = tab.locator("#timeline canvas")
    canvas.focus()
    tab.keyboard.press("ArrowRight")
    said = tab.locator("#live").text_content()
    assert said.startswith(f"client {line['clients'][0]}, job {line['jobs']['job'][0]}; sent0")
    tab.keyboard.press("ArrowDown")
    assert f"client {line['clients'][1]}, job" in tab.locator("#live").text_content()
    tab.keyboard.press("Escape")
    texts = [hover(tab, canvas, x / 20, 0.4) for x in range(4, 18)]
    assert any("staleness" in text and "version" in text and "arrived" in text for text in texts)


def test_the_timeline_zooms_and_changes_its_run_and_colours(tab: Any) -> None:
    canvas, slider = tab.locator("#timeline canvas"), tab.locator("#timeline input[type=range]")
    draw = "canvas => canvas.toDataURL()"
    seen = {canvas.evaluate(draw)}
    tab.get_by_role("button", name="Zoom in").click()
    assert slider.is_visible()
    seen.add(canvas.evaluate(draw))
    choose(tab, "Colour by", "staleness", "timeline")
    seen.add(canvas.evaluate(draw))
    tab.locator("#timeline select").select_option("fedbuff, seed 0")
    seen.add(canvas.evaluate(draw))
    tab.get_by_role("button", name="Show the whole run").click()
    assert slider.is_hidden()
    assert len(seen) == 4


def test_the_experiment_is_copied_as_toml(tab: Any, folder: Path) -> None:
    tab.get_by_role("button", name="Copy as TOML").click()
    tab.get_by_role("button", name="Copied").wait_for()
    table = tomllib.loads(tab.evaluate("navigator.clipboard.readText()"))
    assert table["problem"]["clients"] == 5
    assert [each["name"] for each in table["algorithm"]] == ["area", "fedbuff"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable_on_a_phone(browser: Any, page: Path, scheme: str) -> None:
    tab = opened(browser, page, width=375, height=740, scheme=scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") == 375
    sizes = tab.evaluate(
        "[...document.querySelectorAll('p, td, th, button, text')].map(n => parseFloat(getComputedStyle(n).fontSize))"
    )
    assert min(sizes) >= 12
    assert tab.locator("#progress .plot svg").bounding_box()["width"] <= 343
    assert tab.problems == []
    tab.context.close()


@pytest.mark.parametrize("width", [375, 1200])
def test_a_reproduction_shows_claims_and_the_papers_numbers(
    browser: Any, folder: Path, tmp_path: Path, width: int
) -> None:
    home = Path(shutil.copytree(folder, tmp_path / "run"))
    more = {"ratio": 0.5, "differs": True, "why": "slow clocks"}
    cells = [cell(f"{name}/1:{q}", q, "58.97 (58.15 - 59.80)", "60 (50 - 70)", **more) for name in "ab" for q in "tuvw"]
    (home / OUTCOME).write_text(json.dumps(outcome(*cells)), encoding="utf-8")
    tab = opened(browser, write(home), width=width)
    assert tab.locator("h1").inner_text() == "table1, quick"
    assert tab.locator(".claims li").all_inner_texts() == ["held\na is first", "not held\nb is last"]
    assert tab.locator("#paper0 circle").count() == 8
    assert tab.locator("#paper0 td").first.bounding_box()["height"] < 60  # a number and the paper's, no more lines
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    assert tab.problems == []
    tab.context.close()


def test_several_tasks_have_a_panel_each_and_the_division_of_requests(browser: Any, tmp_path: Path) -> None:
    assert run(tmp_path, TASKS).code == 0
    tab = opened(browser, tmp_path / "out" / "report.html")
    assert tab.locator("#progress h3").all_inner_texts()[:2] == ["small", "late"]
    assert tab.locator("#allocation path.line").count() == 2
    assert "small" in hover(tab, tab.locator("#allocation .plot svg"), 0.5, 0.5)
    assert tab.locator("#timeline input[value=task]").is_checked()
    assert tab.problems == []
    tab.context.close()


def test_hostile_text_does_nothing(browser: Any, folder: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(folder, tmp_path / "run"))
    result = place / "area-0" / "result.json"
    hostile = "</script><script>document.title = 'taken'</script><img src=x onerror=alert(1)>"
    result.write_text(result.read_text().replace('"area"', f'"{hostile}"'))
    tab = opened(browser, write(place))
    assert tab.title().endswith("on digits · offbeat")  # with the text as text, which the script would have replaced
    assert tab.locator("#legend").inner_text().startswith("area") or hostile in tab.locator("#legend").inner_text()
    assert tab.locator("img").count() == 0
    assert tab.problems == []
    tab.context.close()
