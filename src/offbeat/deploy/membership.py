"""What the log is to say about limits and clients, given what it says already: entries that the leading server adds."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import NamedTuple

from offbeat.core.errors import FolderError, SettingError
from offbeat.deploy import encoding, wire
from offbeat.deploy.ledger import ClientRecord, Ledger
from offbeat.deploy.plan import Plan

ROWS = 2000  # clients that one entry opens a run for: about 400 KB

Keys = tuple[str, str, str]  # (account, sign, seal)


class Changes(NamedTuple):
    """Entries to add, and why others are not."""

    entries: list[bytes]
    refused: list[str]


def openings(plan: Plan, keys: Mapping[str, Keys] | None = None) -> list[bytes]:
    """The first entries of a run's log. keys: of each client, by name."""
    rows = [[name, *((keys or {}).get(name) or ("", "", ""))] for name in plan.roster]
    return [
        wire.say(
            wire.Opening(plan.run, encoding.VERSION, plan.limits.plain(), first),
            {"roster": json.dumps(rows[first : first + ROWS], separators=(",", ":")).encode()},
        )
        for first in range(0, len(rows), ROWS)
    ]


def changes(
    ledger: Ledger, plan: Plan, keys: Mapping[str, Keys], gone: Collection[str] = (), serial: int = 0
) -> Changes:
    """What has changed since the log last said so.

    keys: of all clients that may take part, in the order in which they were added.   gone: clients that may not.
    serial: of the roster that says so. From one that is older than the log's, nothing follows about clients.
    """
    if serial < ledger.roster and not ledger.version:
        raise FolderError(
            f"{plan.run} was begun with roster {ledger.roster}, and this one is {serial}; serve it with the newest "
            f"roster.json of the coordinator"
        )
    if not ledger.version:
        opened = openings(plan, keys)
        known = {name: ClientRecord(name, *keys.get(name, ("", "", ""))) for name in plan.roster}
    else:
        limited = wire.say(wire.Limited(plan.run, plan.limits.plain()))
        opened = [limited] if ledger.limits != plan.limits else []
        known = {record.name: record for record in ledger.clients}
    if serial < ledger.roster:
        return Changes(opened, [])
    newer = [wire.say(wire.Rostered(plan.run, serial))] if serial > ledger.roster else []
    found, members = Changes([*newer, *opened], []), sum(not record.removed for record in known.values())
    number = {name: client for client, name in enumerate(known)}
    for name, theirs in keys.items():
        if name not in known:
            why = "" if plan.grows else "its data were split among the clients that it began with"
            why = why or _refusal(ledger, plan, members + 1) or _bad_name(name)
            if why:
                found.refused.append(f"{name} is not enrolled in {plan.run}: {why}")
                continue
            number[name], members = len(number), members + 1
            found.entries.append(wire.say(wire.Enrolled(plan.run, number[name], name, *theirs)))
        elif not known[name].removed and (known[name].account, known[name].sign, known[name].seal) != theirs:
            found.entries.append(wire.say(wire.Rekeyed(plan.run, number[name], *theirs)))
    for name in gone:
        if name in known and not known[name].removed:
            why = _refusal(ledger, plan, members - 1)
            if why:
                found.refused.append(f"{name} stays in {plan.run}: {why}")
                continue
            members -= 1
            found.entries.append(wire.say(wire.Removed(plan.run, number[name])))
    return found


def _refusal(ledger: Ledger, plan: Plan, clients: int) -> str:
    """Why the algorithm cannot have so many clients, if it cannot."""
    try:
        plan.server.resize(ledger.server, clients)
    except SettingError as error:
        return str(error)
    return ""


def _bad_name(name: str) -> str:
    try:
        encoding.check_name("client", name)
    except SettingError as error:
        return str(error)
    return ""
