"""The files of a run folder."""

from __future__ import annotations

import ast
from pathlib import Path

import pyarrow as pa
import pytest

import offbeat
from offbeat.core.errors import FolderError
from offbeat.core.watcher import EventRow
from offbeat.watch import files
from offbeat.watch.files import COLUMNS, EVENTS, drop_parts, locked, part_name, read_table, schema, write_text

ROOT = Path(offbeat.__file__).parent


def test_file_names_are_written_in_one_place() -> None:
    suffixes = (".json", ".jsonl", ".parquet", ".safetensors")
    names = {v for k, v in vars(files).items() if k.isupper() and isinstance(v, str) and v.endswith(suffixes)}
    assert len(names) > 10
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert {place.split(":")[0] for place in found} == {"watch/files.py"}


def test_the_columns_of_the_events_are_the_fields_of_a_row() -> None:
    assert tuple(COLUMNS[EVENTS]) == EventRow._fields
    assert schema(EVENTS).field("event").type == pa.dictionary(pa.int8(), pa.string())


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "before")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "before"
    write_text(path, "\ud800", errors="xmlcharrefreplace")
    assert path.read_text() == "&#55296;"


def test_parts_from_a_number_on_are_dropped(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / part_name(number)).touch()
    (tmp_path / f"{part_name(2)}.part").touch()
    drop_parts(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["part-00000.parquet"]


def test_a_table_that_is_damaged_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.parquet").write_bytes(b"rubbish")
    with pytest.raises(FolderError, match=r"metrics.parquet cannot be read"):
        read_table(tmp_path / "metrics.parquet")


def test_a_folder_is_locked_for_others(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(FolderError, match="another offbeat is at work"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass
