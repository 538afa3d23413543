"""`offbeat privacy`: what the clients of runs with differential privacy have spent, and what that rests on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def privacy(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of experiments or single runs.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print a single JSON object on standard output.")] = False,
) -> None:
    """Print what each client has spent of its privacy budget, and the assumptions behind it."""
    from offbeat.experiment.spending import spending

    found = [each for folder in runs for each in spending(folder)]
    if as_json:
        print(json.dumps({"runs": [each.plain for each in found]}))
        return
    for each in found:
        print("\n".join(each.lines))
