"""`offbeat bench secure`: every figure is there, and an update grows by less than a kilobyte."""

from __future__ import annotations

from offbeat.bench import secure


def test_an_update_grows_by_little_and_the_table_has_its_rows() -> None:
    rows = secure.bench((2, 3), dim=1000)
    assert [row.cohort for row in rows] == [2, 3]
    assert all(0 < row.bytes_masked - row.bytes_plain < 200 for row in rows)
    assert len(secure.text(rows, 1000).splitlines()) == 4
