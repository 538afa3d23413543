"""Writing tables into a page that people also write: each between a pair of marks, everything else left alone."""

from __future__ import annotations

from pathlib import Path


def write(page: Path, name: str, body: str) -> None:
    """Put the body between this name's marks in a Markdown page; without such marks or page, at its end."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    block = f"{begin}\n\n{body.strip()}\n\n{end}"
    if begin in text and end in text:
        before, rest = text.split(begin, 1)
        text = before + block + rest.split(end, 1)[1]
    else:
        text = f"{text.rstrip()}\n\n{block}\n".lstrip()
    page.write_text(text, encoding="utf-8")
