"""`offbeat bench`: how fast offbeat is on this machine."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from offbeat.core.errors import OffbeatError
from offbeat.experiment.folder import json_text


def bench(
    workloads: Annotated[list[str] | None, typer.Argument(help="W1 to W5; without one, all.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and shorter turns.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    turns: Annotated[int | None, typer.Option(min=1, help="Turns of every contender.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """How fast offbeat is on this machine.

    Every contender does the same work in a process of its own, in turns; a few
    minutes. The check column shows that they did.
    """
    from offbeat.bench import session, table

    report = session.bench(
        workloads or (), quick=quick, device=device, turns=turns, say=lambda line: print(line, file=sys.stderr)
    )
    print(json_text(report.plain()) if as_json else table.text(report))
    if report.disagreements:
        raise OffbeatError("; ".join(report.disagreements))
