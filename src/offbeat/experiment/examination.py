"""`offbeat doctor`: everything that a run needs, looked at before it runs.

PyTorch is imported for the last part only, so that problems with keys and broker are reported at once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

from offbeat.core import names
from offbeat.core.errors import OffbeatError
from offbeat.deploy import doctor as checks, identity
from offbeat.deploy.doctor import Finding
from offbeat.experiment.admin import URL
from offbeat.experiment.overrides import Overrides
from offbeat.experiment.partner import state_folder


def doctor(
    keys: Path,
    *,
    url: str = URL,
    file: Path | None = None,
    overrides: Overrides = (),
    data: str = "",
    holdout: float = 0.2,
    device: str = "",
    state: Path | None = None,
) -> Iterator[Finding]:
    """Try everything, from the broker's name to a local step, one finding after the other.

    What cannot be tried because of a problem is left out.
    """
    names.search(os.getcwd())
    creds = None
    try:
        creds = identity.read_creds(keys)
        yield Finding("file", "ok", f"{keys} is that of {creds.client or 'the server'} in {creds.federation}")
    except OffbeatError as error:
        yield Finding("file", "problem", str(error), "ask the coordinator for it")
    if creds is not None:
        yield from checks.connection(creds, url)
        if checks.trouble(creds, url) is None:
            yield from asyncio.run(checks.session(creds, url))
    server = creds is not None and not creds.client
    for place in (Path("runs"), keys.parent / "broker") if server else (state or state_folder(),):
        yield checks.disk(place)
    if data or file is not None:
        from offbeat.experiment import trial

        yield from trial.training(file, overrides, creds.client if creds else "", data, holdout, device)
