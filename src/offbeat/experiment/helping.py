"""The helper of a federation: opens sums of clients' updates in its runs, one run after the other."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offbeat.core.errors import OffbeatError, SettingError
from offbeat.deploy.identity import HELPER, read_creds
from offbeat.deploy.link import Link
from offbeat.deploy.logs import Level, Style, logged
from offbeat.experiment.admin import URL
from offbeat.experiment.joining import Participant
from offbeat.experiment.partner import Partner, state_folder

LEAST = 30  # clients of a sum, unless the helper says otherwise


def help_runs(
    keys: Path,
    *,
    url: str = URL,
    state: Path | None = None,
    least: int = LEAST,
    until_closed: bool = False,
    level: Level = "info",
    style: Style = "text",
) -> None:
    """Open sums in the runs of a federation that have a [secure] table, until stopped.

    state: folder for what was opened, which must be kept.   least: open no sum of fewer clients, whatever a run says.
    """
    creds = read_creds(keys)
    if creds.client != HELPER:
        raise SettingError(f"{keys} holds no helper's keys; `offbeat keys helper` makes them")
    if least < 2:
        raise SettingError(f"cohort = {least}: the sum of one client is its update; give 2 or more")
    with logged(None, level, style):
        error = asyncio.run(_help(keys, url, state or state_folder(), least, until_closed))
    if error:
        raise OffbeatError(error)


async def _help(keys: Path, url: str, state: Path, least: int, until_closed: bool) -> str:
    leaving = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, leaving.set)
    return await HelperSite(keys, url, SumsOnly(), state, False, until_closed, leaving, least=least).take_part()


class SumsOnly(Partner):
    """Takes part in runs that need a helper."""

    def objection(self, charter: Mapping[str, Any], client: str) -> str:
        table = charter["experiment"].get("secure")
        if not isinstance(table, Mapping):
            return f"{charter['run']} has no [secure] table, and needs no helper"
        return f"the clients of {charter['run']} mask for each other" if table.get("mode") == "cohort" else ""


class HelperSite(Participant):
    """A helper, from one run to the next. least: clients of a sum at least."""

    def __init__(self, *arguments: Any, least: int) -> None:
        super().__init__(*arguments)
        self.least = least

    async def _client(self, link: Link, charter: Mapping[str, Any]) -> Any:
        from offbeat.deploy.helper import RunHelper

        return RunHelper(link, str(charter["run"]), self.state, self.least)
