"""The report of a run folder: plots and tables in one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from offbeat.core.errors import FolderError
from offbeat.report import figures
from offbeat.report.content import Content, gather
from offbeat.report.page import page
from offbeat.watch.files import PAGE, write_text

__all__ = ["PAGE", "Content", "figures", "gather", "save", "write"]


def write(folder: Path | str | Sequence[Path | str], out: Path | str | None = None) -> Path:
    """Write the report of an experiment's folder, or one that compares several; return its path.

    out: the file to write; by default `report.html` in the (first) folder.
    """
    if out is not None and Path(out).is_dir():
        raise FolderError(f"{out} is a folder; name a file to write, or compare folders as a list, write([A, B])")
    folders = [Path(each) for each in ([folder] if isinstance(folder, Path | str) else folder)]
    return save(gather(folders), folders[0] / PAGE if out is None else Path(out))


def save(content: Content, out: Path) -> Path:
    """Write the page atomically."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, page(content), errors="xmlcharrefreplace")
    except OSError as error:
        raise FolderError(f"cannot write {out}: {error.strerror}; name another file with --out") from None
    return out
