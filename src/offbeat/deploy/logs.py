"""What a server and its clients say about themselves: lines of text for people, JSON objects for programs."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

Level = Literal["debug", "info", "warning", "error"]
Style = Literal["text", "json"]

log = logging.getLogger("offbeat.deploy")


def note(event: str, level: Level = "info", **fields: Any) -> None:
    """Log an event with what belongs to it."""
    log.log(_number(level), event, extra={"fields": fields})


@contextmanager
def logged(to: Path | None, level: Level = "info", style: Style = "text") -> Iterator[None]:
    """Within, what happens is written to this file, or to standard error, from this level on."""
    handler = _Stderr() if to is None else logging.FileHandler(to, encoding="utf-8")
    handler.setFormatter(_Json() if style == "json" else _Text())
    handler.setLevel(_number(level))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)  # the handlers decide
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()


def plain(text: str) -> str:
    """Text that others may have written, on one line: what a terminal would obey is spelled out."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def _number(level: Level) -> int:
    return int(getattr(logging, level.upper()))


class _Stderr(logging.StreamHandler[IO[str]]):
    """To what standard error is now: a live display puts itself in its place for a while."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> IO[str]:  # type: ignore[override]
        return sys.stderr


class _Json(logging.Formatter):
    """An object a line: time, level, event and the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": round(record.created, 3), "level": record.levelname.lower(), "event": record.getMessage()}
        fields = getattr(record, "fields", {})
        line |= {f"run_{name}" if name in line else name: value for name, value in fields.items()}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _Text(logging.Formatter):
    """`19:40:12 siteA: message`, with the level in front of what is more than information."""

    def format(self, record: logging.LogRecord) -> str:
        fields = dict(getattr(record, "fields", {}))
        client = f"{fields.pop('client')}: " if "client" in fields else ""
        level = f"{record.levelname.lower()}: " if record.levelno > logging.INFO else ""
        rest = "".join(f" {name}={value}" for name, value in fields.items())
        trace = self.formatException(record.exc_info).split("\n") if record.exc_info else []
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        return "\n".join(map(plain, [f"{clock} {client}{level}{record.getMessage()}{rest}", *trace]))
