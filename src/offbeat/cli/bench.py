"""`offbeat bench`: how fast offbeat is on this machine."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from offbeat.cli.deploy import needs_deploy
from offbeat.core.errors import OffbeatError, SettingError

DEPLOY = "deploy"


def bench(
    workloads: Annotated[list[str] | None, typer.Argument(help="W1 to W6, or deploy. Default: W1 to W6.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Run fewer and shorter turns.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    turns: Annotated[int | None, typer.Option(min=1, help="Number of turns of each contender.")] = None,
    clients: Annotated[str, typer.Option(help="deploy: numbers of clients, with commas.")] = "1,8,64",
    sizes: Annotated[str, typer.Option("--bytes", help="deploy: bytes of an update, with commas.")] = "2600,4000000",
    seconds: Annotated[float, typer.Option(help="deploy: seconds that each number and size is measured.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print a single JSON object on standard output.")] = False,
) -> None:
    """Measure how fast offbeat is on this machine; takes a few minutes.

    Contenders take turns, each in its own process. The check column shows that they did the same work.

    `deploy` measures a real federation instead: a broker, a server and clients on this machine, beside an echo through
    the same broker.
    """
    if workloads == [DEPLOY]:
        _deploy(_numbers("clients", clients), _numbers("bytes", sizes), seconds, as_json)
        return
    from offbeat.bench import session, table
    from offbeat.experiment.folder import json_text

    report = session.bench(
        workloads or (), quick=quick, device=device, turns=turns, say=lambda line: print(line, file=sys.stderr)
    )
    print(json_text(report.plain()) if as_json else table.text(report))
    if report.disagreements:
        raise OffbeatError("; ".join(report.disagreements))


def _deploy(clients: list[int], sizes: list[int], seconds: float, as_json: bool) -> None:
    from offbeat.experiment.folder import json_text

    with needs_deploy():
        from offbeat.bench import deploy
    rows = deploy.bench(clients, sizes, seconds, say=lambda line: print(line, file=sys.stderr))
    print(json_text([row.plain() for row in rows]) if as_json else deploy.text(rows))


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SettingError(f"--{name} {text}: give whole numbers, with commas") from None
