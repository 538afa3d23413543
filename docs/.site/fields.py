"""Docstrings as Markdown: `name: meaning` becomes a list, doctests and drawings become blocks of code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_NAMES = r"([a-z]\w*(?:, [a-z]\w*)*)"


class Fields(Extension):
    """Lays out the docstring of every object."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = "\n\n".join(map(_laid_out, obj.docstring.value.split("\n\n")))


def _laid_out(paragraph: str) -> str:
    if paragraph.startswith(">>>") or "├" in paragraph:
        return f"```pycon\n{paragraph}\n```" if paragraph.startswith(">>>") else f"```text\n{paragraph}\n```"
    if re.match(_NAMES + ": ", paragraph):
        listed = re.sub(r"(?:\A| {2,}|\n)" + _NAMES + ": ", r"\n- `\1`: ", paragraph)
        return "\n".join(line if line.startswith("- ") else "  " + line.strip() for line in listed.strip().splitlines())
    return paragraph
