"""`offbeat report`: run folders as one page, or as figures for a paper. Default: off."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from offbeat.core.errors import SettingError


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of experiments, sweeps or single runs.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="File to write. Default: report.html in the folder; here if there are several.")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--figures", metavar="DIR", help="Also write the plots as figures for a paper. Default: off."),
    ] = None,
    form: Annotated[str, typer.Option("--format", help="Format of the figures: pdf or png.")] = "pdf",
    as_json: Annotated[bool, typer.Option("--json", help="Print a single JSON object on standard output.")] = False,
) -> None:
    """Write the HTML report of finished or unfinished runs: one file that opens without a network.

    If files are missing or damaged, the report shows what can be read and says what is missing.
    """
    from offbeat.report import PAGE, figures, gather, save

    if form not in figures.FORMATS:
        raise SettingError(f"--format {form}: must be one of {', '.join(figures.FORMATS)}")
    content = gather(runs)
    page = save(content, out or (runs[0] if len(runs) == 1 else Path()) / PAGE)
    drawn = figures.draw(content, to, form) if to is not None else []
    if as_json:
        print(json.dumps({"report": str(page), "figures": [str(path) for path in drawn], "missing": content.warnings}))
        return
    for line in content.warnings:
        print(f"offbeat: {line}", file=sys.stderr)
    print(f"report: {page}")
    if drawn:
        print(f"figures: {', '.join(path.name for path in drawn)} in {to}")
