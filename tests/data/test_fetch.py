"""Where sets are looked for, and how they are downloaded. Servers are file:// or on 127.0.0.1."""

import hashlib
import io
import os
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from offbeat.core.errors import DataError, SettingError
from offbeat.data import NAMES, fetch, load, status
from offbeat.data.folder import BUNDLED, SOURCES, Source, find, root

FILES = {"a.bin": b"first file", "b.bin": b"second"}
SUMS = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}


@pytest.fixture
def tiny(monkeypatch):
    """A set of two small files in the place of MNIST."""
    monkeypatch.setitem(SOURCES, "mnist", Source("mnist", SUMS, "http://127.0.0.1:9/"))


@pytest.fixture
def publisher(tmp_path):
    folder = tmp_path / "publisher"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return folder


def archive(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def names(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_files_are_downloaded_checked_and_kept(tiny, publisher, tmp_path):
    lines = []
    got = fetch("mnist", tmp_path / "data", publisher.as_uri(), lines.append)
    assert [path.name for path in got] == ["a.bin", "b.bin"]
    assert names(tmp_path / "data") == ["mnist/a.bin", "mnist/b.bin"]
    assert find("mnist", tmp_path / "data")[0].read_bytes() == b"first file"
    assert lines[0].endswith("/publisher/a.bin")


def test_only_missing_and_damaged_files_are_downloaded(tiny, publisher, tmp_path):
    fetch("mnist", tmp_path, publisher.as_uri())
    assert fetch("mnist", tmp_path, publisher.as_uri()) == []
    (tmp_path / "mnist" / "b.bin").write_bytes(b"secon")
    assert fetch("mnist", tmp_path, publisher.as_uri()) == [tmp_path / "mnist" / "b.bin"]
    assert (tmp_path / "mnist" / "b.bin").read_bytes() == b"second"


def test_a_wrong_checksum_leaves_nothing_behind(tiny, publisher, tmp_path):
    (publisher / "a.bin").write_bytes(b"another file")
    with pytest.raises(DataError, match=r"a\.bin .* not the published file: expected SHA-256 .* found"):
        fetch("mnist", tmp_path / "data", publisher.as_uri())
    assert names(tmp_path / "data") == []


def test_a_failed_download_keeps_the_old_file(tiny, publisher, tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "a.bin").write_bytes(b"damaged")
    (publisher / "a.bin").unlink()
    with pytest.raises(DataError, match=r"cannot download file:.*a\.bin"):
        fetch("mnist", tmp_path, publisher.as_uri())
    assert (tmp_path / "mnist" / "a.bin").read_bytes() == b"damaged"


def test_a_server_that_is_not_there_is_an_error_with_a_remedy(tiny, tmp_path):
    with pytest.raises(DataError, match=r"cannot download http://127\.0\.0\.1:9/a\.bin.*check the network"):
        fetch("mnist", tmp_path)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def test_files_come_over_http_too_and_a_404_is_an_error(tiny, publisher, tmp_path):
    (publisher / "b.bin").unlink()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(publisher))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        with pytest.raises(DataError, match=r"b\.bin: HTTP Error 404"):
            fetch("mnist", tmp_path / "data", f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()
    assert names(tmp_path / "data") == ["mnist/a.bin"]


def test_a_disk_that_cannot_be_written_is_told_from_the_network(tiny, publisher, tmp_path):
    (tmp_path / "data").write_bytes(b"a file where the folder should be")
    with pytest.raises(DataError, match=r"cannot write to .*OFFBEAT_DATA"):
        fetch("mnist", tmp_path / "data", publisher.as_uri())


@pytest.fixture
def packed(monkeypatch, publisher):
    monkeypatch.setitem(SOURCES, "cifar10", Source("batches", SUMS, "http://127.0.0.1:9/", "all.tar.gz"))
    return publisher / "all.tar.gz"


def test_an_archive_is_unpacked_by_file_name_and_nothing_else_of_it_is_written(packed, tmp_path):
    members = {"x/a.bin": FILES["a.bin"], "../../b.bin": FILES["b.bin"], "/evil.sh": b"no", "x/readme": b"no"}
    archive(packed, members)
    fetch("cifar10", tmp_path / "data", packed.parent.as_uri())
    assert names(tmp_path / "data") == ["batches/a.bin", "batches/b.bin"]
    assert names(tmp_path) == [
        "data/batches/a.bin", "data/batches/b.bin", "publisher/a.bin", "publisher/all.tar.gz", "publisher/b.bin"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("members", "message"),
    [({"a.bin": FILES["a.bin"]}, r"lacks b\.bin"), ({**FILES, "b.bin": b"wrong"}, "not the published file")],
)
def test_an_archive_with_wrong_contents_is_refused(packed, tmp_path, members, message):
    archive(packed, members)
    with pytest.raises(DataError, match=message):
        fetch("cifar10", tmp_path / "data", packed.parent.as_uri())
    assert names(tmp_path / "data") == ["batches/a.bin"]


@pytest.mark.parametrize("keep", [0, 10, 100])
def test_a_truncated_archive_is_refused_and_removed(packed, tmp_path, keep):
    archive(packed, {"a.bin": os.urandom(5000)})
    packed.write_bytes(packed.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"not a whole \.tar\.gz archive"):
        fetch("cifar10", tmp_path / "data", packed.parent.as_uri())
    assert names(tmp_path / "data") == []


def test_the_plays_have_no_publisher_and_the_digits_need_none(tmp_path):
    with pytest.raises(DataError, match=r"shakespeare has no publisher .* shakespeare/TITLE\.txt"):
        fetch("shakespeare", tmp_path)
    assert fetch("digits", tmp_path) == fetch("randhie", tmp_path) == []
    with pytest.raises(SettingError, match="unknown data set 'cifar'; did you mean 'cifar10'"):
        fetch("cifar", tmp_path)


def test_the_folder_is_the_callers_then_the_environments_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path))
    assert root(Path("x")) == Path("x")
    assert root() == tmp_path
    monkeypatch.delenv("OFFBEAT_DATA")
    assert root() == Path.home() / ".cache" / "offbeat"


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_a_missing_set_says_what_was_looked_for_and_how_to_get_it(tmp_path, name):
    with pytest.raises(DataError) as error:
        load(name, tmp_path)
    for part in (str(tmp_path), *SOURCES[name].files, f"offbeat data --get {name}", "OFFBEAT_DATA"):
        assert part in str(error.value)


def test_status_tells_present_from_incomplete_and_missing(tiny, publisher, tmp_path):
    fetch("mnist", tmp_path, publisher.as_uri())
    (tmp_path / "cifar-10-batches-bin").mkdir()
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(b"12345")
    rows = {row.name: row for row in status(tmp_path)}
    assert list(rows) == list(NAMES)
    assert {name: row.state for name, row in rows.items()} == {
        **dict.fromkeys(BUNDLED, "present"), "mnist": "present", "fashion-mnist": "missing",
        "cifar10": "incomplete", "shakespeare": "missing",
    }  # fmt: skip
    assert (rows["mnist"].size, rows["cifar10"].size) == (16, 5)
    assert rows["mnist"].where == str(tmp_path / "mnist")
    assert "by hand" in rows["shakespeare"].get


@pytest.mark.skipif(not os.environ.get("OFFBEAT_DATA"), reason="OFFBEAT_DATA names no folder of data sets")
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_the_real_files_have_the_embedded_checksums(name):
    assert fetch(name, url="file:///nowhere") == []
