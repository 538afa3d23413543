"""The command line: the only place where strings become objects."""

from __future__ import annotations


def main() -> None:
    """`offbeat`; imports the commands only when they are wanted."""
    from offbeat.cli.app import main as run

    run()
