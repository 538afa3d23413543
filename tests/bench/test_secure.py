"""`offbeat bench secure`: every figure is there, and an update grows by less than a kilobyte."""

from __future__ import annotations

from offbeat.bench import cohort, secure


def test_an_update_grows_by_little_and_the_table_has_its_rows() -> None:
    rows = secure.bench((2, 3), dim=1000)
    assert [row.cohort for row in rows] == [2, 3]
    assert all(0 < row.bytes_masked - row.bytes_plain < 200 for row in rows)
    assert len(secure.text(rows, 1000).splitlines()) == 4


def test_a_cohort_s_sum_is_checked_and_the_table_has_its_rows() -> None:
    rows = cohort.bench((3, 10), dim=1000)
    assert [row.cohort for row in rows] == [3, 10]
    assert all(row.up < 4000 and row.down < 30_000 for row in rows)
    assert len(cohort.text(rows, 1000).splitlines()) == 4
