"""A server with its guard; what contradicts itself is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from offbeat.algorithms.area import AREA
from offbeat.algorithms.criteria import fixed
from offbeat.algorithms.fedast import FedAST
from offbeat.algorithms.fedavg import FedAvg
from offbeat.core.errors import SettingError
from offbeat.core.server import Server, Stepping, releasing
from offbeat.privacy.differential import Privacy
from offbeat.privacy.robust import Robust
from offbeat.privacy.rules import NormBound


def guarded(server: Server[Any], robust: Robust | None, privacy: Privacy | None, clients: int) -> Server[Any]:
    """The same server with what an experiment asks for between updates and its steps."""
    if robust is not None and privacy is not None:
        raise SettingError(
            "robust: one client can move what a robust rule gives by more than clip over the size of a sum, on which "
            "[privacy] rests; keep one of the two (privacy clips, and takes one update a client for each sum)"
        )
    if robust is not None:
        return _robust(server, robust)
    return server if privacy is None else _private(server, privacy, clients)


def _robust(server: Server[Any], robust: Robust) -> Server[Any]:
    if not isinstance(server, Stepping) or not server.combines:
        raise SettingError(
            f"robust: {type(server).__name__} neither collects updates in a buffer nor keeps a table of one vector a "
            "client; use fedbuff, fadas, fedavg, area, mifa or ace"
        )
    alone = server.combines == "buffer" and fixed(getattr(server, "size", 0)) == 1
    if alone and not isinstance(robust.rule, NormBound | None):
        raise SettingError(
            f"robust: {type(server).__name__} steps with every single update (size = 1), which a rule has no others to "
            "compare with; give a size, or rule = { norm-bound = ... }"
        )
    return replace(server, guard=robust)


def _private(server: Server[Any], privacy: Privacy, clients: int) -> Server[Any]:
    name = type(server).__name__
    if server.several:
        return _private_tasks(server, privacy, clients)
    if not isinstance(server, Stepping) or not releasing(server) or len(server.reads) != 1:
        raise SettingError(
            f"privacy: an update must count in one sum and never again, and {name} uses it otherwise; use fedbuff, "
            "fadas, fedavg or area"
        )
    size = sum_size(server, clients)
    if size is None:
        raise SettingError(
            f"privacy: {name} aggregates by the clock, and a sum must be divided by a fixed number; give size as one"
        )
    if isinstance(server, FedAvg) and server.replacement:
        raise SettingError("privacy: replacement = true: a client that is drawn twice counts twice; leave it out")
    if size * privacy.separation > clients:
        raise SettingError(
            f"privacy: sums of {size} updates with separation = {privacy.separation} need {size * privacy.separation} "
            f"clients, and there are {clients}; a client counts once in a sum. Give a smaller size"
        )
    return replace(server, guard=privacy)


def _private_tasks(server: Server[Any], privacy: Privacy, clients: int) -> Server[Any]:
    """FedAST, each of whose tasks has a ledger."""
    name = type(server).__name__
    if not isinstance(server, FedAST):
        raise SettingError(f"privacy: {name} needs the reports of single clients; use fedast, or one task at a time")
    if server.allocation != "static":
        raise SettingError(
            f'privacy: allocation = "{server.allocation}" goes by the variance of updates without noise, and everybody '
            'sees who is given work; use allocation = "static"'
        )
    if not releasing(server):
        raise SettingError(
            f"privacy: an update must count in one sum and never again, and {name} may use it otherwise; if it does "
            "not, let it declare releases = True"
        )
    given = server.size if server.size is not None else max(1, round(server.total / server.ratio))
    sizes = (given,) if isinstance(given, int) else tuple(given.values() if isinstance(given, Mapping) else given)
    for m, size in enumerate(sizes):
        _private(server.inner(m, size), privacy, clients)  # as if it were alone
    return replace(server, guard=privacy)


def sum_size(server: Stepping[Any], clients: int) -> int | None:
    """How many updates a sum of this server has; None: that depends on the clock."""
    if isinstance(server, FedAvg):
        return server.first or server.sampled or clients
    size: int | None = fixed(getattr(server, "size", 1))
    return 1 if size is None and isinstance(server, AREA) else size  # AREA divides by n, however many there are
