"""Three brokers that keep every stream together, made from the configuration that `offbeat keys init` writes."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

from offbeat.deploy import identity
from offbeat.deploy.broker import free_port, program


class Cluster:
    """Brokers on loopback, each of which a test may kill and start again."""

    def __init__(self, folder: Path, fed: Path, size: int = 3) -> None:
        self.folder, self.scheme = folder, "tls" if (fed / "broker.pem").exists() else "nats"
        self.ports = [free_port() for _ in range(size)]
        self.monitors = [free_port() for _ in range(size)]
        among = [free_port() for _ in range(size)]
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in among)
        folder.mkdir(parents=True, exist_ok=True)
        for number, (port, own) in enumerate(zip(self.ports, among, strict=True)):
            text = (fed / identity.BROKER).read_text()
            text = re.sub(r"listen: .*", f'listen: "127.0.0.1:{port}"', text)
            text = re.sub(r"store_dir: .*", f'store_dir: "{folder / f"store{number}"}"', text)
            shutil.copytree(fed / identity.TOKENS, folder / f"jwt{number}")
            text = re.sub(r'dir: "[^"]*", allow', f'dir: "{folder / f"jwt{number}"}", allow', text)
            text += f'server_name: "n{number}"\nhttp: "127.0.0.1:{self.monitors[number]}"\n'
            text += f'cluster {{ name: "test", listen: "127.0.0.1:{own}", routes: [{routes}] }}\n'
            (folder / f"n{number}.conf").write_text(text)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        return ",".join(f"{self.scheme}://127.0.0.1:{port}" for port in self.ports)

    def start(self, number: int) -> None:
        with (self.folder / f"n{number}.log").open("ab") as log:
            command = [program(), "-c", str(self.folder / f"n{number}.conf")]
            self.processes[number] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, number: int) -> None:
        """As a power failure does."""
        self.processes[number].kill()
        self.processes[number].wait()

    def halt(self, number: int) -> None:
        """As a machine that hangs."""
        self.processes[number].send_signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self.processes[number].send_signal(signal.SIGCONT)

    def healthy(self) -> bool:
        """Whether every broker runs and has everything that it is to keep."""
        try:
            for port in self.monitors:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2).close()
        except OSError:
            return False
        return True

    def ready(self, patience: float = 60.0) -> None:
        """Wait until the brokers have chosen one that leads."""
        until = time.monotonic() + patience
        while not any("JetStream cluster new metadata leader" in self.said(n) for n in range(len(self.ports))):
            assert time.monotonic() < until, self.said(0)[-3000:]
            time.sleep(0.1)

    def said(self, number: int) -> str:
        return (self.folder / f"n{number}.log").read_text()

    def __enter__(self) -> Cluster:
        for number in range(len(self.ports)):
            self.start(number)
        self.ready()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
                process.wait()
