"""`offbeat bench`: how fast offbeat is on this machine."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.deploy import needs_deploy
from offbeat.core.errors import OffbeatError, SettingError

DEPLOY, SECURE = "deploy", "secure"


def bench(
    workloads: Annotated[
        list[str] | None, typer.Argument(help="W1 to W9, deploy or secure. Default: all that run on the device.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Run fewer and shorter turns.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    turns: Annotated[
        int | None, typer.Option(min=1, help="Number of turns of each contender. Default: as the workload has it.")
    ] = None,
    clients: Annotated[str, typer.Option(help="deploy: numbers of clients, separated by commas.")] = "1,8,64,1000",
    sizes: Annotated[
        str, typer.Option("--bytes", help="deploy: bytes per update, separated by commas.")
    ] = "2600,4000000",
    seconds: Annotated[float, typer.Option(help="deploy: seconds that each number and size is measured.")] = 5.0,
    simulated: Annotated[int, typer.Option(min=0, help="deploy: simulated clients of one server; 0: none.")] = 10_000,
    markdown: Annotated[bool, typer.Option("--markdown", help="deploy: print the table of docs/deploy.md.")] = False,
    before: Annotated[
        Path | None,
        typer.Option(
            help="deploy: with --markdown, what `benchmarks/deploy/before.py` has printed. Default: no such column."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a single JSON object on standard output.")] = False,
) -> None:
    """Measure how fast offbeat is on this machine; takes a few minutes.

    Contenders take turns, each in its own process. The check column shows that they did the same work.

    `deploy` measures a real federation instead: a broker, a server and clients on this machine, and for
    comparison an echo through the same broker; then one server alone with very many simulated clients. It takes less
    than ten minutes.

    `secure` measures what secure aggregation adds to an update of a million numbers, with a helper and without.
    """
    if workloads == [SECURE]:
        _secure(as_json)
        return
    if workloads == [DEPLOY]:
        _deploy(_numbers("clients", clients), _numbers("bytes", sizes), seconds, simulated, as_json, markdown, before)
        return
    from offbeat.bench import session, table
    from offbeat.experiment.folder import json_text

    report = session.bench(
        workloads or (), quick=quick, device=device, turns=turns, say=lambda line: print(line, file=sys.stderr)
    )
    print(json_text(report.plain()) if as_json else table.text(report))
    if report.disagreements:
        raise OffbeatError("; ".join(report.disagreements))


def _deploy(
    clients: list[int],
    sizes: list[int],
    seconds: float,
    simulated: int,
    as_json: bool,
    markdown: bool,
    before: Path | None,
) -> None:
    from offbeat.experiment.folder import json_text

    with needs_deploy():
        from offbeat.bench import deploy
    then = None if before is None else deploy.read_before(before.read_text(encoding="utf-8"))
    report = deploy.bench(clients, sizes, seconds, lambda line: print(line, file=sys.stderr), simulated)
    if as_json:
        print(json_text(report.plain()))
    else:
        print(deploy.markdown(report, then) if markdown else deploy.text(report))


def _secure(as_json: bool) -> None:
    from offbeat.experiment.folder import json_text

    with needs_deploy():
        from offbeat.bench import cohort, secure
    helped, alone = secure.bench(), cohort.bench()
    if as_json:
        print(json_text({**secure.plain(helped), "cohort": [asdict(row) for row in alone]}))
    else:
        print(f"{secure.text(helped)}\n\n{cohort.text(alone)}")


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SettingError(f"--{name} {text}: expected whole numbers, separated by commas") from None
