"""Golden texts: sections of a file whose words must be the same and whose numbers must agree to eight digits.

To write them anew after a change that is meant: OFFBEAT_WRITE_TRANSCRIPTS=1 pytest tests/transcripts
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

WRITE = "OFFBEAT_WRITE_TRANSCRIPTS"
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?!\w)")


@cache
def sections(path: Path) -> dict[str, list[str]]:
    """The lines of each section, which begins with its name in brackets."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        if line.startswith("[") and line.endswith("]"):
            lines = found.setdefault(line[1:-1], [])
        else:
            lines.append(line)
    return found


def check(path: Path, name: str, found: Sequence[str]) -> None:
    """Compare these lines with a section of the file, or write them there."""
    kept = sections(path)
    if os.environ.get(WRITE):
        kept[name] = list(found)
        text = "".join(f"[{each}]\n" + "".join(f"{line}\n" for line in kept[each]) for each in sorted(kept))
        path.write_text(text, encoding="utf-8")
    assert len(found) == len(kept.get(name, ())), f"if this change is meant, run {WRITE}=1 pytest tests/transcripts"
    for line, expected in zip(found, kept[name], strict=True):
        assert _NUMBER.sub("#", line) == _NUMBER.sub("#", expected)
        wanted = [float(number) for number in _NUMBER.findall(expected)]
        assert [float(number) for number in _NUMBER.findall(line)] == pytest.approx(wanted, rel=1e-8, abs=1e-12), line
