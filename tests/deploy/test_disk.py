"""A client's disk keeps the last state that was written whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from offbeat.core.errors import FolderError
from offbeat.deploy.disk import Disk, newest, slots


def test_what_was_saved_last_is_read(tmp_path: Path) -> None:
    disk = Disk(tmp_path, "run")
    assert disk.read() is None
    for data in (b"first", b"a longer second state", b"third"):
        disk.save(data)
    disk.close()
    again = Disk(tmp_path, "run")
    assert again.read() == b"third"
    again.close()


def test_a_disk_that_takes_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        FolderError, match=r"state in .*file \(File exists\); put that right, or name another folder with"
    ):
        Disk(tmp_path / "file", "run")
    disk = Disk(tmp_path, "run")
    disk.save(b"first")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(FolderError, match=r"run.0.state \(No space left on device\)"):
            disk.save(b"second")
    disk.close()
    again = Disk(tmp_path, "run")
    assert again.read() == b"first"
    again.close()


def test_two_processes_cannot_be_one_client(tmp_path: Path) -> None:
    first = Disk(tmp_path, "run")
    with pytest.raises(FolderError, match="in use"):
        Disk(tmp_path, "run")
    first.close()
    Disk(tmp_path, "run").close()


@given(cut=st.integers(0, 300), flip=st.integers(0, 255))
def test_a_torn_write_leaves_the_state_before(tmp_path_factory: pytest.TempPathFactory, cut: int, flip: int) -> None:
    folder = tmp_path_factory.mktemp("disk")
    disk = Disk(folder, "run")
    disk.save(b"a" * 200)
    disk.save(b"b" * 200)
    disk.close()
    second = slots(folder, "run")[0]
    raw = bytearray(second.read_bytes())
    torn = bytes(raw[: min(cut, len(raw) - 1)]) + bytes([flip])
    second.write_bytes(torn)
    expected = b"b" * 200 if torn == bytes(raw) else b"a" * 200
    assert newest(slots(folder, "run"))[1] == expected
