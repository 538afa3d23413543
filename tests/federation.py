"""A federation of real processes on this machine, each of which a test may kill."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from offbeat.deploy import identity, keys
from offbeat.deploy.admission import Limits
from offbeat.deploy.broker import Broker, free_port
from offbeat.deploy.client_state import ClientState, read_client_state
from offbeat.deploy.disk import newest, slots
from offbeat.deploy.ledger import Ledger
from offbeat.deploy.link import Link
from offbeat.deploy.plan import Plan
from offbeat.deploy.refold import refold
from offbeat.experiment.experiment import load
from offbeat.experiment.real import DeployOptions, plan_of, saved_identity
from offbeat.experiment.session import Session

# An experiment on data that the sites have themselves, and what gives it to a site.
OWN = """
until = { updates = 30, time = 120.0 }
evaluate = { every = 0.5 }

[problem]
data = "own"
shape = [4]
classes = 3
clients = 2

[[algorithm]]
name = "fedbuff"
size = 2
local = { sgd = { lr = 0.5, batch = 8 } }
"""

LOADER = """
import torch

def load():
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    return x, x[:, :3].argmax(dim=1)
"""

PATIENCE = 6.0  # seconds after which a silent client counts as gone
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
size = 4
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
        self.broker = Broker(folder / "broker", self.keys, port=port)
        self.url = self.broker.url
        self.out = folder / "out"
        self.server: subprocess.Popen[bytes] | None = None
        self.clients: dict[str, subprocess.Popen[bytes]] = {}
        self.options: list[str] = []

    def __enter__(self) -> Federation:
        self.broker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.broker.stop()

    def stop(self) -> None:
        """End the server and the clients."""
        for process in [self.server, *self.clients.values()]:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    def serve(self, *options: str) -> None:
        """Start the server, or start it again."""
        self.options = list(options) or self.options
        words = [
            "serve",
            self.file,
            "--keys",
            self.keys / identity.SERVER,
            "--nats",
            self.url,
            "--out",
            self.out,
            "--json",
        ]
        self.server = self._start("server", *words, *self.options)

    def join(self, name: str, *options: str) -> None:
        """Start a client, or start it again."""
        words = ["join", "--keys", self.keys / f"{name}.creds", "--nats", self.url, "--state", self.folder / "state"]
        self.clients[name] = self._start(name, *words, "--once", *options, program=self.program(name))

    def program(self, name: str) -> list[str]:
        """What a client is started with."""
        return OFFBEAT

    def _start(self, name: str, *words: Any, program: list[str] = OFFBEAT) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.out").open("ab") as out, (self.folder / f"{name}.err").open("ab") as err:
            return subprocess.Popen(
                [*program, *map(str, words)], stdout=out, stderr=err, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )

    def kill(self, process: subprocess.Popen[bytes] | None) -> None:
        """As a power failure does."""
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def wait(self, patience: float = 300.0) -> dict[str, Any]:
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


def revive(federation: Federation) -> None:
    """A client or server that has ended by itself while the run goes on is a mistake."""
    assert federation.server is not None
    assert federation.server.poll() in (None, 0), federation.said("server")[-3000:]
    for name, process in federation.clients.items():
        assert process.poll() in (None, 0), f"{name}: {federation.said(name)[-3000:]}"


def wait_for_updates(federation: Federation, patience: float = 120.0) -> None:
    until = time.monotonic() + patience
    while not list((federation.folder / "state").rglob("*.state")):
        assert time.monotonic() < until
        time.sleep(0.1)


def plan_for(federation: Federation) -> Plan:
    """Of the run that was served."""
    experiment = load(federation.file, {"problem.clients": len(federation.names)})
    options, spec = DeployOptions(limits=Limits(lease=10.0, patience=PATIENCE)), experiment.runs[0]
    identity = saved_identity(federation.out / spec.folder)
    assert identity is not None
    return plan_of(Session(experiment), spec, identity.run, federation.names, options)


async def connected(federation: Federation) -> Link:
    """As the server."""
    link = Link(identity.read_creds(federation.keys / identity.SERVER), federation.url)
    await link.connect(60)
    return link


def final_ledger(federation: Federation) -> Ledger:
    """The state at the end of the log."""

    async def fold() -> Ledger:
        link = await connected(federation)
        try:
            return await refold(link, plan_for(federation))
        finally:
            await link.close()

    return asyncio.run(fold())


def state_of(federation: Federation, name: str) -> ClientState:
    folder = federation.folder / "state" / "fed" / name
    (run,) = {path.name.removesuffix(".0.state") for path in folder.glob("*.0.state")}
    _, data = newest(slots(folder, run))
    assert data is not None
    return read_client_state(data)


def check(federation: Federation, ledger: Ledger) -> None:
    """What clients know is what the server has applied, and AREA's sum is whole."""
    total: Any = 0.0
    for name, record in zip(federation.names, ledger.clients, strict=True):
        state = state_of(federation, name)
        if not state.accepted and state.epoch == record.epoch + 1:  # its disk was lost when the run was all but over
            assert state.settled == (record.epoch, record.seq), name
            total = total + state.memory[0]["y"]
            continue
        assert (state.epoch, state.nonce) == (record.epoch, record.nonce), name
        assert state.seq == record.seq, name
        pending = state.pending  # the last one: its verdict was heard, and nothing was sent after it
        moved = pending is not None and pending.memory is not None and record.verdict == "applied"
        assert pending is None or (pending.digest, pending.seq) == (record.digest, record.seq), name
        total = total + (pending.memory["y"] if moved and pending and pending.memory else state.memory[0]["y"])
    state = ledger.server
    torch.testing.assert_close(total / len(federation.names), state.model.vector + state.u, atol=1e-4, rtol=0)
