"""The command line: options into a call of the library, what came out into a table, errors into one line."""

from __future__ import annotations

import os


def main() -> None:
    """`offbeat`."""
    # PyTorch's waiting threads should sleep: spinning made small models 20 times slower on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from offbeat.cli.app import main as run

    run()
