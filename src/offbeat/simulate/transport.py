"""Python processes of this machine that work for this one, each at the other end of a socket.

They are started afresh, neither forked nor by importing the caller's script again, and share nothing: whoever dies
leaves the others as they are, and both ends see when the other is gone.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

_START = "import sys; from offbeat.simulate.transport import serve; serve(*sys.argv[1:])"
_PATIENCE = 5.0  # seconds for a process to end


class Child:
    """A process that runs `module:function(connection, *arguments)`; the arguments travel as JSON."""

    def __init__(self, function: str, arguments: Sequence[Any] = (), env: Mapping[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            words = [function, str(theirs.fileno()), json.dumps(sys.path), json.dumps(list(arguments))]
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START, *words],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **(env or {}), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
                start_new_session=True,  # Ctrl-C is for the caller, which ends its children itself
            )
        self.connection = Connection(ours.detach())

    def end(self, kill: bool = False) -> str:
        """Close the connection, wait until it is gone, and tell how it ended."""
        self.connection.close()
        if kill:
            self.process.kill()
        try:
            code = self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def serve(function: str, handle: str, path: str, arguments: str) -> None:
    """In the child: call the function."""
    sys.path[:] = json.loads(path)
    module, _, name = function.partition(":")
    getattr(importlib.import_module(module), name)(Connection(int(handle)), *json.loads(arguments))
