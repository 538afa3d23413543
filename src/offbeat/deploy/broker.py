"""A broker of our own: the nats-server program as a child process."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from offbeat.core.errors import FolderError, OffbeatError, not_installed
from offbeat.deploy.broker_config import configuration, has_tls, list_tokens, read_tokens
from offbeat.deploy.identity import PROCESS, TOKENS
from offbeat.deploy.jwt import issued_at


class Broker:
    """nats-server with its store in this folder. `start` again after a crash: it goes on with what it has on disk.

    keys: the folder of a federation's keys; accounts that were changed there count from the next start on.
    """

    def __init__(self, folder: Path, keys: Path, *, host: str = "127.0.0.1", port: int = 0, sync: bool = True) -> None:
        self.folder, self.keys, self.host, self.sync = folder, keys, host, sync
        self.port = port or free_port()
        folder.mkdir(parents=True, exist_ok=True)
        self.config = folder / "nats.conf"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        name = "127.0.0.1" if self.host == "0.0.0.0" else self.host
        return f"{'tls' if has_tls(self.keys) else 'nats'}://{name}:{self.port}"

    def start(self, patience: float = 20.0) -> None:
        """Start it and wait until it takes connections."""
        lock = self._lock()
        try:
            self._check_store()
            self._check_port()
            self._configure()
            with (self.folder / "broker.log").open("ab") as log:
                before = log.tell()
                self.process = subprocess.Popen(
                    [program(), "-c", str(self.config)],
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                    pass_fds=[lock],  # the lock is held for as long as the program runs, also without us
                )
            os.truncate(lock, 0)
            os.pwrite(lock, f"{self.process.pid} {os.getpid()}".encode(), 0)
        finally:
            os.close(lock)
        self._wait(self.process, before, patience)

    def _wait(self, process: subprocess.Popen[bytes], before: int, patience: float) -> None:
        """Until its log says that it takes connections: on its port, another program may answer.

        before: bytes of its log that are of earlier ones.
        """
        until, log = time.monotonic() + patience, self.folder / "broker.log"
        while time.monotonic() < until:
            if process.poll() is not None:
                self._check_port()  # another program may have taken the port
                raise OffbeatError(f"the broker ended with {process.returncode}; see {log}")
            with log.open("rb") as said:
                said.seek(before)
                if b"Server is ready" in said.read():
                    return
            time.sleep(0.02)
        raise OffbeatError(f"the broker takes no connections on port {self.port}; see {log}")

    def _check_store(self) -> None:
        """A broker that was started by hand holds no lock, but has left its number. Linux only."""
        with contextlib.suppress(OSError, ValueError):
            number = int((self.folder / PROCESS).read_text(encoding="ascii"))
            words = Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace").split("\0")
            named = [Path(f"/proc/{number}/cwd") / word for word in words[1:] if word]
            if "nats-server" in words[0] and any(each.exists() and each.samefile(self.config) for each in named):
                raise _in_use(self.folder, str(number))

    def _check_port(self) -> None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.host, self.port))
            except OSError as error:
                raise OffbeatError(
                    f"the broker cannot listen on {self.host}:{self.port} ({error.strerror}{_listener(self.port)}); "
                    f"if this federation's broker runs there already, leave out --embedded"
                ) from None

    def _configure(self) -> None:
        text = configuration(self.keys, self.port, self.host, self.folder, self.sync)
        self.config.write_text(text, encoding="utf-8")
        (self.folder / TOKENS).mkdir(exist_ok=True)
        changed = [name for name in list_tokens(self.keys) if _text(self.keys, name) != _text(self.folder, name)]
        for account, token in read_tokens(self.keys, changed).items():
            if issued_at(_text(self.folder, account)) < issued_at(token):  # the broker may have heard of a newer one
                (self.folder / TOKENS / f"{account}.jwt").write_text(token, encoding="utf-8")

    def _lock(self, patience: float = 5.0) -> int:
        """Lock the store: two brokers would ruin it. One that has lost its parent is given time to end."""
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        until = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except BlockingIOError:
                broker, _, parent = os.pread(lock, 64, 0).decode(errors="replace").partition(" ")
                if time.monotonic() > until or _is_running(parent):
                    os.close(lock)
                    raise _in_use(self.folder, broker) from None
                time.sleep(0.05)

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


def _text(folder: Path, account: str) -> str:
    """A token in a folder of keys or of a broker; empty if there is none."""
    path = folder / TOKENS / f"{account}.jwt"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _in_use(folder: Path, process: str) -> FolderError:
    return FolderError(
        f"{folder} is the store of a broker that runs already (process {process}); "
        f"connect to it without --embedded, or stop it first"
    )


def _listener(port: int) -> str:
    """Which process listens on a port, for an error; "" if that cannot be found out. Linux only."""
    with contextlib.suppress(OSError, ValueError):
        lines = [
            line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()
        ]
        sockets = {f"socket:[{words[9]}]" for words in lines if words[3] == "0A" and words[1].endswith(f":{port:04X}")}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if any(os.readlink(each) in sockets for each in (process / "fd").iterdir()):
                    return f" by process {process.name}, {(process / 'comm').read_text().strip()}"
    return ""


def _is_running(process: str) -> bool:
    return process.isdigit() and Path(f"/proc/{process}").exists()


def program() -> str:
    """Where nats-server is: beside this Python, or on the path."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.is_file() else shutil.which("nats-server")
    if found is None:
        raise not_installed("nats-server is not installed", "deploy")
    return found


def free_port() -> int:
    """A port that nobody listens on now.

    Not one of those that the system gives to outgoing connections: any program could be given it before it is used.
    """
    for port in random.sample(range(20_000, 32_000), 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
