"""`offbeat`: all commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from offbeat import __version__
from offbeat.cli import bench, deploy, keys, lists, report, reproduce, run, sweep
from offbeat.cli.theory import theory
from offbeat.core.errors import InterruptedRunError, OffbeatError

app = typer.Typer(
    help="Asynchronous federated learning: simulate an experiment in virtual time, then run it across real machines.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
_COMMANDS: dict[str, Callable[..., None]] = {
    "run": run.run,
    "resume": run.resume,
    "sweep": sweep.sweep,
    "report": report.report,
    "reproduce": reproduce.reproduce,
    "list": lists.list_,
    "schema": lists.schema,
    "data": lists.data,
    "up": deploy.up,
    "serve": deploy.serve,
    "join": deploy.join,
    "status": deploy.status,
    "retire": deploy.retire,
    "replay": deploy.replay,
    "trace": deploy.trace,
    "export": deploy.export,
    "bench": bench.bench,
}
for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)
app.add_typer(keys.keys, name="keys")
app.add_typer(theory, name="theory")


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        print(f"offbeat {__version__}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> None:
    """Errors made by offbeat are one line and exit code 1; 130 if the user stopped it."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="offbeat", standalone_mode=True)
    except OffbeatError as error:
        print(f"offbeat: {error}", file=sys.stderr)
        sys.exit(130 if isinstance(error, InterruptedRunError) else 1)
