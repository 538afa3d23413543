"""`offbeat join` that writes down every verdict it hears, before it does anything about it.

python witnessing.py FILE join …
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from offbeat.cli import main
from offbeat.deploy.assignment import Assignment
from offbeat.deploy.client_core import ClientCore


def witness(path: str) -> None:
    """From now on, verdicts are added to this file: client, epoch, number, digest of the message, verdict."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    move = ClientCore._move

    def watched(self: ClientCore, assignment: Assignment) -> list[Any]:
        before = self.state.pending if self.state is not None else None
        wants = move(self, assignment)
        settled = before is not None and self.state is not None and self.state.pending is None
        if settled and before is not None and (before.epoch, before.seq) == assignment.last:
            said = [self.client, before.epoch, before.seq, before.digest, assignment.verdict]
            os.write(file, (json.dumps(said) + "\n").encode())
        return wants

    ClientCore._move = watched  # type: ignore[method-assign]


if __name__ == "__main__":
    witness(sys.argv.pop(1))
    main()
