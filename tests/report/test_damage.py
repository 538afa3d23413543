"""Folders with missing, truncated or hostile files: a page of what can be read, which says what is missing."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import sets
from hypothesis import HealthCheck, given, settings, strategies as st
from report.folders import embedded, real

from offbeat.core.errors import FolderError
from offbeat.report import write
from offbeat.watch.files import write_table

FILES = [
    *("experiment.json", "summary.json"),
    *("area-0/result.json", "area-0/metrics.parquet", "area-0/clients.parquet", "area-0/events/part-00000.parquet"),
    *("area-0/underway.parquet", "area-0/personal.parquet"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    return real(folder, *sets("trials=2", "evaluate.personal.steps=1", "problem.split={classes=5}"))


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def said(page: Path) -> str:
    """What the page says is missing."""
    found = re.search(r'<aside class="missing".*?</aside>', page.read_text(encoding="utf-8"), re.DOTALL)
    return found.group() if found else ""


def test_of_a_whole_folder_nothing_is_missing(folder: Path) -> None:
    page = write(folder)
    assert said(page) == ""
    assert {p["series"] for p in embedded(page)["personal"]} == {0, 1}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", ["missing", "empty", "truncated", "rubbish", "folder"])
def test_a_damaged_file_costs_what_was_in_it_and_no_more(folder: Path, name: str, harm: str) -> None:
    path = folder / name
    content = path.read_bytes()
    path.unlink()
    if harm == "folder":
        path.mkdir()
    elif harm != "missing":
        path.write_bytes({"empty": b"", "truncated": content[: len(content) // 2], "rubbish": b"\xff\x00{"}[harm])
    page = write(folder)
    found = embedded(page)
    assert found["series"] == (["area", "fedbuff"])
    assert len([p for p in found["progress"] if p["series"] == 1]) == len(found["metrics"]) * 3  # fedbuff has all
    optional = harm in ("missing", "folder") and name.endswith(("underway.parquet", "personal.parquet"))
    if not optional:  # runs without these are as good
        words = "not finished" if (name.endswith("result.json") and harm == "missing") else Path(name).stem
        assert words in said(page) or "events/ is missing" in said(page)


def test_a_part_of_the_events_that_is_lost_is_named(folder: Path) -> None:
    parts = folder / "area-0" / "events"
    (parts / "part-00000.parquet").rename(parts / "part-00002.parquet")
    text = said(write(folder))
    assert "events/part-00000.parquet is missing" in text
    assert "events/part-00001.parquet is missing" in text


def test_a_run_folder_that_is_gone_is_named(folder: Path) -> None:
    shutil.rmtree(folder / "fedbuff-1")
    assert "the folder of fedbuff, seed 1 is missing" in said(write(folder))


def test_a_table_without_its_columns_is_damaged(folder: Path) -> None:
    write_table(pa.table({"time": [1.0], "other": ["x"]}), folder / "area-0" / "metrics.parquet")
    assert "area-0: metrics.parquet is damaged and left out" in said(write(folder))


@pytest.mark.parametrize("wrong", [[], {}, {"algorithm": "area"}, {"algorithm": "area", "seed": 0, "metrics": 3}])
def test_a_result_of_another_shape_is_damaged(folder: Path, wrong: object) -> None:
    (folder / "area-0" / "result.json").write_text(json.dumps(wrong))
    assert "area-0: result.json is damaged and left out" in said(write(folder))


def test_a_failed_run_says_why(folder: Path) -> None:
    (folder / "area-0" / "result.json").write_text('{"algorithm": "area", "seed": 0, "error": "the loss is nan"}')
    page = write(folder)
    assert "area, seed 0: the loss is nan" in said(page)
    assert "1 of 2 failed" in page.read_text()


def test_numbers_that_are_not_finite_are_left_out(folder: Path) -> None:
    nothing, infinite = float("nan"), float("inf")
    columns = {"task": [0] * 4, "time": [0.0, 1.0, 2.0, nothing], "updates": [0, 1, 2, 3], "version": [0, 1, 2, 3]}
    write_table(pa.table({**columns, "loss": [1.0, infinite, 3.0, None]}), folder / "area-0" / "metrics.parquet")
    write_table(pa.table({**columns, "loss": [3.0, 2.0, nothing, 9.0]}), folder / "area-1" / "metrics.parquet")
    band = next(
        p for p in embedded(write(folder))["progress"] if (p["series"], p["axis"], p["metric"]) == (0, "time", "loss")
    )
    assert (band["x"], band["mean"], band["count"]) == ([0, 1, 2], [2, 2, 3], [2, 2, 1])


def test_what_is_no_run_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="holds no run"):
        write(tmp_path)
    with pytest.raises(FolderError, match="is not a folder"):
        write(tmp_path / "nowhere")


HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">&amp;\'"'


def test_text_from_the_folder_is_shown_and_never_run(folder: Path) -> None:
    for path in (folder / "area-0" / "result.json", folder / "summary.json", folder / "experiment.json"):
        path.write_text(path.read_text().replace('"area"', json.dumps(HOSTILE)))
    (folder / "area-1" / "result.json").write_text(json.dumps({"algorithm": "b", "seed": 1, "error": HOSTILE}))
    page = write(folder)
    text = page.read_text(encoding="utf-8")
    assert embedded(page)["series"][0] == HOSTILE
    assert text.count("<script") == 2  # the data and the page's own
    assert "<img" not in text
    assert "onerror=&quot;" in text
    assert "default-src 'none'" in text


@given(
    name=st.sampled_from(FILES), places=st.lists(st.floats(0, 0.999), min_size=1, max_size=20), byte=st.integers(0, 255)
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_that_flipped_never_stop_a_report(whole: Path, name: str, places: list[float], byte: int) -> None:
    path, page = whole / name, whole.parent / "flipped.html"
    content = path.read_bytes()
    flipped = bytearray(content)
    for place in places:
        flipped[int(place * len(flipped))] ^= byte or 1
    path.write_bytes(flipped)
    try:
        write(whole, page)
        assert embedded(page)["series"]
    finally:
        path.write_bytes(content)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, each in inner for found in leaves(each, (*path, key)))][:400]


@given(st.sampled_from(["experiment.json", "summary.json", "area-0/result.json"]), st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_values_of_other_kinds_never_stop_a_report(whole: Path, name: str, data: st.DataObject) -> None:
    path, page = whole / name, whole.parent / "odd.html"
    content = path.read_text()
    value = json.loads(content)
    *above, last = data.draw(st.sampled_from([found for found in leaves(value) if found]))
    at = value
    for key in above:
        at = at[key]
    at[last] = data.draw(st.sampled_from([None, "x", [], {}, -1, 1e300, [[1]], {"a": [None]}, True, "9" * 400]))
    path.write_text(json.dumps(value))
    try:
        write(whole, page)
        assert embedded(page)["series"]
    finally:
        path.write_text(content)


def test_numbers_out_of_all_proportion_are_damage(folder: Path) -> None:
    path = folder / "area-0" / "events" / "part-00000.parquet"
    table = pq.read_table(path)
    at = table.column_names.index("client")
    write_table(table.set_column(at, "client", pa.array([2**31 - 1] * len(table), pa.int32())), path)
    assert "client has implausible numbers" in said(write(folder))


def test_a_client_s_reason_for_a_failed_job_is_shown_and_never_run(folder: Path) -> None:
    path = folder / "area-0" / "events" / "part-00000.parquet"
    table = pq.read_table(path)
    reasons = pa.array([f"failed: {HOSTILE}"] * len(table), table.schema.field("reason").type)
    pq.write_table(
        table.set_column(table.schema.get_field_index("reason"), table.schema.field("reason"), reasons), path
    )
    page = write(folder)
    text = page.read_text(encoding="utf-8")
    assert HOSTILE in json.dumps(embedded(page), ensure_ascii=False).replace('\\"', '"')
    assert text.count("<script") == 2
    assert "<img" not in text
