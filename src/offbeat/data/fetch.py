"""Download a set from its publisher: into a .part file beside its place, checked, then renamed.

A name without .part is therefore a whole file with the published checksum, whatever interrupts the download.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import tarfile
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from offbeat.core.errors import DataError
from offbeat.data.folder import BUNDLED, remedy, root, source

_CHUNK = 1 << 20
_TIMEOUT = 30.0  # seconds without a byte


def fetch(
    name: str,
    folder: Path | None = None,
    url: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Get the files of a set that are not there yet or are damaged, and give the paths of those it wrote.

    url: a mirror to use instead of the publisher.   say: called with one line before each download.
    """
    if name in BUNDLED:
        return []
    kept = source(name)
    if not kept.url:
        raise DataError(f"{name} has no publisher to download from: {remedy(name)} (under {root(folder)})")
    place = root(folder) / kept.folder
    wanted = {file: sum for file, sum in kept.files.items() if _checksum(place / file) != sum}
    if not wanted:
        return []
    base = (url or kept.url).rstrip("/") + "/"
    try:
        place.mkdir(parents=True, exist_ok=True)
        if kept.archive:
            say(f"{base}{kept.archive}")
            _unpack(base + kept.archive, place, wanted)
        for file, checksum in {} if kept.archive else wanted.items():
            say(f"{base}{file}")
            with _opened(base + file) as stream:
                _store(stream, place / file, checksum, base + file)
    except OSError as error:
        raise DataError(f"cannot write to {place}: {error}; choose a folder with OFFBEAT_DATA") from error
    return [place / file for file in wanted]


@contextmanager
def _opened(url: str) -> Iterator[IO[bytes]]:
    """The bytes behind an address; whatever goes wrong with the network is a DataError."""
    try:
        stream = urllib.request.urlopen(url, timeout=_TIMEOUT)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _unreachable(url, error) from error
    with stream:
        yield _Guarded(stream, url)  # type: ignore[misc]


class _Guarded:
    """A stream whose read errors are DataErrors, so that they are told from errors of the disk."""

    def __init__(self, stream: IO[bytes], url: str) -> None:
        self._stream, self._url = stream, url

    def read(self, size: int = -1) -> bytes:
        try:
            return self._stream.read(size)
        except (OSError, http.client.HTTPException) as error:
            raise _unreachable(self._url, error) from error


def _unreachable(url: str, error: Exception) -> DataError:
    return DataError(
        f"cannot download {url}: {error}; check the network, or get the file elsewhere and put it in the data folder"
    )


def _unpack(url: str, place: Path, wanted: dict[str, str]) -> None:
    """Store the wanted files of a tar archive; only their names are read from it, never their paths."""
    archive = _part(place / url.rsplit("/", 1)[1])
    missing = dict(wanted)
    try:
        with _opened(url) as stream, archive.open("wb") as out:
            for chunk in _chunks(stream):
                out.write(chunk)
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                file = member.name.rsplit("/", 1)[-1]
                stream_or_none = tar.extractfile(member) if member.isfile() and file in missing else None
                if stream_or_none is not None:
                    _store(stream_or_none, place / file, missing.pop(file), url)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{url} is not a whole .tar.gz archive: {error}; try again later") from error
    finally:
        archive.unlink(missing_ok=True)
    if missing:
        raise DataError(f"{url} lacks {', '.join(missing)}; try again later or put the files there by hand")


def _store(stream: IO[bytes], path: Path, checksum: str, url: str) -> None:
    """Copy a stream to its place if it has the checksum; otherwise leave nothing behind."""
    part, digest = _part(path), hashlib.sha256()
    try:
        with part.open("wb") as out:
            for chunk in _chunks(stream):
                digest.update(chunk)
                out.write(chunk)
        if digest.hexdigest() != checksum:
            raise DataError(
                f"{path.name} from {url} is not the published file: expected SHA-256 {checksum}, found "
                f"{digest.hexdigest()}; nothing was kept, try again or put the file in {path.parent} by hand"
            )
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _part(path: Path) -> Path:
    """The name a file has until it is whole; it carries the process, so that two downloads do not meet."""
    return path.with_name(f"{path.name}.{os.getpid()}.part")


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    while chunk := stream.read(_CHUNK):
        yield chunk


def _checksum(path: Path) -> str | None:
    """The SHA-256 of a file, None where there is none."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
