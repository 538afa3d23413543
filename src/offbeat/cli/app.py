"""`offbeat`: all commands. A command's module is imported when it is called, so that it answers at once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from offbeat import __version__
from offbeat.core.errors import InterruptedRunError, OffbeatError

_COMMANDS = {  # name -> module in this package, and function
    "run": "run:run",
    "resume": "run:resume",
    "sweep": "sweep:sweep",
    "report": "report:report",
    "reproduce": "reproduce:reproduce",
    "list": "lists:list_",
    "schema": "lists:schema",
    "data": "lists:data",
    "up": "deploy:up",
    "serve": "deploy:serve",
    "join": "deploy:join",
    "doctor": "deploy:doctor",
    "status": "deploy:status",
    "retire": "deploy:retire",
    "replay": "deploy:replay",
    "backup": "deploy:backup",
    "restore": "deploy:restore",
    "trace": "deploy:trace",
    "export": "deploy:export",
    "bench": "bench:bench",
}
_HELP = "Asynchronous federated learning: simulate an experiment in virtual time, then run it across real machines."
_GROUPS = {"keys": "keys:keys", "runs": "deploy:runs", "theory": "theory:theory"}


def _version(wanted: bool) -> None:
    if wanted:
        print(f"offbeat {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    pass


def commands(called: str = "") -> typer.Typer:
    """All commands, or the one that is called alone; `--version` needs none."""
    app = typer.Typer(
        help=_HELP,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    wanted = {called} if called in {*_COMMANDS, *_GROUPS, "--version"} else {*_COMMANDS, *_GROUPS}
    for name, place in (_COMMANDS | _GROUPS).items():
        if name in wanted:
            module, _, attribute = place.partition(":")
            found = getattr(import_module(f"offbeat.cli.{module}"), attribute)
            app.add_typer(found, name=name) if name in _GROUPS else app.command(name)(found)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Errors made by offbeat are one line and exit code 1; 130 if the user stopped it."""
    try:
        words = sys.argv[1:] if arguments is None else list(arguments)
        commands(words[0] if words else "")(args=words, prog_name="offbeat", standalone_mode=True)
    except OffbeatError as error:
        print(f"offbeat: {error}", file=sys.stderr)
        sys.exit(130 if isinstance(error, InterruptedRunError) else 1)
