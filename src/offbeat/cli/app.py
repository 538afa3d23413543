"""`offbeat`: all commands, in the groups that `--help` shows.

No module here imports PyTorch or the library at its top, so help and completion answer at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from offbeat import __version__
from offbeat.core.errors import InterruptedRunError, OffbeatError, disk_full

_COMMANDS = {  # what people do -> name -> module in this package, and its function or group of commands
    "Run an experiment": {
        "new": "new:new",
        "check": "new:check",
        "run": "run:run",
        "resume": "run:resume",
        "list": "lists:list_",
        "data": "lists:data",
        "schema": "lists:schema",
    },
    "Compare settings and algorithms": {
        "sweep": "sweep:sweep",
        "tune": "tune:tune",
        "suite": "suite:suite",
        "report": "report:report",
        "privacy": "privacy:privacy",
        "theory": "theory:theory",
        "bench": "bench:bench",
    },
    "Reproduce a paper": {
        "reproduce": "reproduce:reproduce",
    },
    "Deploy to real machines": {
        "up": "deploy:up",
        "keys": "keys:keys",
        "doctor": "deploy:doctor",
        "serve": "deploy:serve",
        "join": "deploy:join",
        "helper": "deploy:helper",
        "status": "deploy:status",
        "runs": "deploy:runs",
        "retire": "deploy:retire",
        "backup": "deploy:backup",
        "restore": "deploy:restore",
        "replay": "deploy:replay",
        "trace": "deploy:trace",
        "export": "deploy:export",
    },
}
_PLACES = {name: place for group in _COMMANDS.values() for name, place in group.items()}
_HELP = "Asynchronous federated learning: simulate an experiment in virtual time, then run it across real machines."


@cache
def _command(name: str) -> Any:
    """A command or a group of commands, with its options."""
    module, _, attribute = _PLACES[name].partition(":")
    found = getattr(import_module(f"offbeat.cli.{module}"), attribute)
    app = typer.Typer(rich_markup_mode=None)
    app.add_typer(found, name=name) if isinstance(found, typer.Typer) else app.command(name)(found)
    return typer.main.get_group(app).commands[name]


class _Commands(Mapping[str, Any]):
    """The commands by name. Each is made when it is needed: to make all of them takes longer than most of them run."""

    def __getitem__(self, name: str) -> Any:
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


class _Grouped(TyperGroup):
    """Help that lists commands by what they are for, each with its whole first sentence."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands: Any = _Commands()

    def format_commands(self, context: Any, formatter: Any) -> None:
        for title, group in _COMMANDS.items():
            with formatter.section(title):
                shown = [(name, self.commands[name].get_short_help_str(limit=1000)) for name in group]
                formatter.write_dl(shown)


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


def commands() -> typer.Typer:
    """All commands."""
    app = typer.Typer(cls=_Grouped, help=_HELP, no_args_is_help=True, rich_markup_mode=None)
    app.callback()(_root)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Errors made by offbeat are one line and exit code 1; 130 if the user stopped it, 2 for a wrong command line."""
    try:
        words = sys.argv[1:] if arguments is None else list(arguments)
        code = commands()(args=words, prog_name="offbeat", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except OffbeatError as error:
        print(f"offbeat: {error}", file=sys.stderr)
        sys.exit(130 if isinstance(error, InterruptedRunError) else 1)
    except Exception as error:
        if not hasattr(error, "format_message"):  # not one of the parser's
            if not disk_full(error):
                raise
            place = getattr(error, "filename", None)
            where = f" for {place}" if place else ""
            again = "free space, then continue a run with `offbeat resume`, or call the same again"
            print(f"offbeat: no space left on the disk{where}; {again}", file=sys.stderr)
            sys.exit(1)
        if error.format_message().startswith("Usage:"):  # of a group without a command: its help
            error.show()  # type: ignore[attr-defined]
        else:
            print(_usage(error), file=sys.stderr)
        sys.exit(2)


def _usage(error: Any) -> str:
    """What is wrong with a command line, in one line."""
    context = error.ctx
    path = context.command_path if context else "offbeat"
    said = error.format_message().rstrip(".").replace("Value error, ", "")  # as pydantic begins what it refuses
    options = {name for parameter in context.command.params for name in parameter.opts} if context else ()
    if getattr(error, "option_name", "") and not getattr(error, "possibilities", None) and "--set" in options:
        said += "; change a key of the file with --set KEY=VALUE"
    return f"{path}: {said}; see `{path} --help`"
