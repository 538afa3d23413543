"""A server with its guard; what contradicts itself is refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from offbeat.core.errors import SettingError
from offbeat.core.guard import Guard
from offbeat.core.server import Server, Stepping


def guarded(server: Server[Any], guard: Guard, name: str) -> Server[Any]:
    """The same server with this guard. name: what the guard's table is called."""
    if not isinstance(server, Stepping) or not server.combines:
        raise SettingError(
            f"{name}: {type(server).__name__} neither collects updates in a buffer nor keeps a table of one vector a "
            "client; use fedbuff, fadas, fedavg, area, mifa or ace"
        )
    return replace(server, guard=guard)
