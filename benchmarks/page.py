"""A report as Markdown, and tables written into a page that people also write: each between a pair of marks."""

from __future__ import annotations

from pathlib import Path

from offbeat.bench.session import Report
from offbeat.bench.table import HEAD, about, lines, setting


def markdown(report: Report, command: str) -> str:
    """Tables for a page of the docs."""
    parts = [f"`{command}` on {setting(report)}.\n"]
    for row in report.rows:
        parts.append(f"**{about(row)}**\n")
        table = [HEAD, ("---", *["---:"] * 4, "---"), *lines(row)]
        parts.append("\n".join("| " + " | ".join(cells) + " |" for cells in table) + "\n")
        if row.disagreement:
            parts.append(f"**These figures mean nothing: {row.disagreement}.**\n")
    return "\n".join(parts)


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
