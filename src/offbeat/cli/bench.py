"""`offbeat bench`: how fast offbeat is on this machine."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from offbeat.core.errors import OffbeatError
from offbeat.experiment.folder import json_text


def bench(
    workloads: Annotated[list[str] | None, typer.Argument(help="W1 to W5. Default: all.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Run fewer and shorter turns.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    turns: Annotated[int | None, typer.Option(min=1, help="Number of turns of each contender.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a single JSON object on standard output.")] = False,
) -> None:
    """Measure how fast offbeat is on this machine; takes a few minutes.

    Contenders take turns, each in its own process. The check column shows that they did the same work.
    """
    from offbeat.bench import session, table

    report = session.bench(
        workloads or (), quick=quick, device=device, turns=turns, say=lambda line: print(line, file=sys.stderr)
    )
    print(json_text(report.plain()) if as_json else table.text(report))
    if report.disagreements:
        raise OffbeatError("; ".join(report.disagreements))
