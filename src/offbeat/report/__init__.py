"""A run folder as a page for people: what happened, in plots and tables, in one file that opens anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from offbeat.core.errors import FolderError
from offbeat.report import figures
from offbeat.report.content import Content, gather
from offbeat.report.page import page

__all__ = ["NAME", "Content", "figures", "gather", "save", "write"]

NAME = "report.html"


def write(folder: Path | Sequence[Path], out: Path | None = None) -> Path:
    """Write `report.html` about an experiment's folder, or about several to compare; gives the path of the page.

    out: the file to write; by default `report.html` in the (first) folder.
    """
    folders = [folder] if isinstance(folder, Path) else list(folder)
    return save(gather(folders), out or folders[0] / NAME)


def save(content: Content, out: Path) -> Path:
    """Write the page of what was gathered, whole or not at all."""
    part = out.with_name(out.name + ".part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(page(content), encoding="utf-8", errors="xmlcharrefreplace")
        part.replace(out)
    except OSError as error:
        raise FolderError(f"cannot write {out}: {error.strerror}; name another file with --out") from None
    return out
