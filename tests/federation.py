"""A federation of real processes on this machine, each of which a test may kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from offbeat.deploy import keys
from offbeat.deploy.broker import Broker, free_port

OFFBEAT = [sys.executable, "-c", "from offbeat.cli import main; main()"]

AREA = """
until = { time = TIME }
evaluate = { every = 2.0 }

[problem]
data = "digits"
clients = 4
split = { dirichlet = 0.5 }
l2 = 1e-3

[timing]
exponential = { rate = 10.0 }

[[algorithm]]
name = "area"
every = 4
local = { sgd = { lr = 1.0, steps = 2, batch = 32 } }
"""


class Federation:
    """Broker, server and clients, over TLS or without."""

    def __init__(self, folder: Path, text: str, clients: int = 4, tls: bool = True) -> None:
        self.folder, self.text = folder, text
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "experiment.toml"
        self.file.write_text(text, encoding="utf-8")
        self.names = [f"site{number}" for number in range(clients)]
        self.keys = folder / "fed"
        port = free_port()
        self.roster = keys.init(self.keys, self.names, port=port, tls=tls)
        self.broker = Broker(folder / "broker", self.roster, self.keys if tls else None, port=port)
        self.url = self.broker.url
        self.out = folder / "out"
        self.server: subprocess.Popen[bytes] | None = None
        self.clients: dict[str, subprocess.Popen[bytes]] = {}
        self.options: list[str] = []

    def __enter__(self) -> Federation:
        self.broker.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in [self.server, *self.clients.values()]:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        self.broker.stop()

    def serve(self, *options: str) -> None:
        """Start the server, or start it again."""
        self.options = list(options) or self.options
        words = ["serve", self.file, "--keys", self.keys / keys.SERVER, "--nats", self.url, "--out", self.out, "--json"]
        self.server = self._start("server", *words, *self.options)

    def join(self, name: str, *options: str) -> None:
        """Start a client, or start it again."""
        words = ["join", "--keys", self.keys / f"{name}.creds", "--nats", self.url, "--state", self.folder / "state"]
        self.clients[name] = self._start(name, *words, "--once", *options)

    def _start(self, name: str, *words: Any) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.out").open("ab") as out, (self.folder / f"{name}.err").open("ab") as err:
            return subprocess.Popen(
                [*OFFBEAT, *map(str, words)], stdout=out, stderr=err, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )

    def kill(self, process: subprocess.Popen[bytes] | None) -> None:
        """As a power failure does."""
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def wait(self, patience: float = 120.0) -> dict[str, Any]:
        """Until the server has ended; gives what it printed."""
        assert self.server is not None
        until = time.monotonic() + patience
        while self.server.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        said = (self.folder / "server.err").read_text()
        assert self.server.returncode == 0, f"{self.server.returncode}: {said[-2000:]}"
        result: dict[str, Any] = json.loads((self.folder / "server.out").read_text())["runs"][0]
        return result

    def said(self, name: str) -> str:
        """What a process has written on its standard error."""
        return (self.folder / f"{name}.err").read_text()
