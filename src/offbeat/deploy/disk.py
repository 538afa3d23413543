"""A client's disk: one file, replaced whole, which only one process uses at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from offbeat.core.errors import FolderError


class Disk:
    """The state of one client in one run."""

    def __init__(self, folder: Path, run: str) -> None:
        self.path = folder / f"{run}.state"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.lock: IO[str] = (folder / f"{run}.lock").open("w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FolderError(f"{self.path} is in use: another process is this client already") from None

    def read(self) -> bytes | None:
        """What was saved last."""
        return self.path.read_bytes() if self.path.exists() else None

    def save(self, data: bytes) -> None:
        """Whole or not at all, and still there after a power failure."""
        part = self.path.with_suffix(".part")
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        part.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        """Another process may use it now."""
        self.lock.close()
