"""`offbeat privacy`: what the clients of runs with differential privacy have spent, and what that rests on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def privacy(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of experiments or single runs.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print a single JSON object on standard output.")] = False,
) -> None:
    """Print what each client has spent of its privacy budget, and the assumptions behind it."""
    from offbeat.experiment.folder import json_text
    from offbeat.experiment.spending import spending, together, told

    found = [each for folder in runs for each in spending(folder)]
    if as_json:
        plain: dict[str, Any] = {"runs": [each.plain for each in found]}
        if (all_ := together(found)) is not None:
            plain["together"] = dict(zip(("epsilon", "delta"), all_, strict=True))
        print(json_text(plain))
        return
    print("\n".join(told(found)))
