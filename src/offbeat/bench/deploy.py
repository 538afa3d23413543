"""`offbeat bench deploy`: updates a second of a real federation on this machine, and what each of its processes spends.

Clients that compute nothing ask for work as fast as they can. First an echo answers them: an update of the same size up
and a model of the same size down, through the same broker and the same streams, with no log, no state and no signature.
Then offbeat's own server and clients do. All processes share one machine, so CPU time per update says more than updates
a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from offbeat.bench.roles import PATIENCE, Role
from offbeat.bench.table import figure
from offbeat.core.errors import OffbeatError, SettingError
from offbeat.deploy import keys
from offbeat.deploy.broker import Broker

CROWD = 64  # clients from which on several processes hold them
COPIES = 8  # of an update that a client and the server hold in memory, about


@dataclass(frozen=True)
class Spent:
    """One way to answer the clients: updates a second, and CPU milliseconds of an update.

    sealing: those that signatures, seals and their checks take, of server and clients together.
    """

    updates_per_s: float
    server: float
    broker: float
    clients: float
    sealing: float = 0.0

    @property
    def total(self) -> float:
        return self.server + self.broker + self.clients


@dataclass(frozen=True)
class DeployRow:
    """One number of clients and one size. skipped: why it was not measured."""

    clients: int
    bytes: int
    echo: Spent | None = None
    offbeat: Spent | None = None
    memory_mb: float = 0.0  # of the server, at most
    skipped: str = ""

    @property
    def ratio(self) -> float:
        """CPU time of an update, against the echo's."""
        return self.offbeat.total / self.echo.total if self.offbeat and self.echo else float("nan")

    @property
    def sealing(self) -> float:
        """Share of the CPU time that signatures and seals take."""
        return self.offbeat.sealing / self.offbeat.total if self.offbeat else float("nan")

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "cpu_ratio": self.ratio, "sealing_share": self.sealing}


def bench(
    clients: Sequence[int], sizes: Sequence[int], seconds: float, say: Callable[[str], None] = lambda _: None
) -> list[DeployRow]:
    """Measure every number of clients with every size of updates."""
    if min(clients) < 1 or min(sizes) < 4 or seconds <= 0:
        raise SettingError("clients, bytes and seconds must be positive, and an update is at least 4 bytes")
    rows = []
    for size in sizes:
        for count in clients:
            say(f"{count} clients, {size:,} bytes")
            need = COPIES * count * size
            if need > _free():
                why = f"needs about {need / 1e9:.0f} GB of memory, {_free() / 1e9:.0f} are free"
                rows.append(DeployRow(count, size, skipped=why))
            else:
                rows.append(_measure(count, size, seconds))
    return rows


def text(rows: Sequence[DeployRow]) -> str:
    """A table for the terminal."""
    head = ("clients", "bytes", "", "updates/s", "server", "broker", "clients", "CPU-ms", "vs echo", "sealing", "MB")
    cells: list[tuple[str, ...]] = [head]
    for row in rows:
        start = (str(row.clients), f"{row.bytes:,}")
        if row.echo is None or row.offbeat is None:
            cells.append((*start, row.skipped, *[""] * 8))
            continue
        cells.append((*start, "echo", *_figures(row.echo), "", "", ""))
        ratio, sealing = f"{row.ratio:.2f}", f"{100 * row.sealing:.1f} %"
        cells.append(("", "", "offbeat", *_figures(row.offbeat), ratio, sealing, f"{row.memory_mb:,.0f}"))
    widths = [max(len(line[at]) for line in cells if line[3] or at < 2) for at in range(len(head))]
    lines = ["  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join(
        [*lines, "CPU milliseconds of an update: server, broker, clients and together; sealing is a share of that"]
    )


def _figures(spent: Spent) -> list[str]:
    return [figure(value) for value in (spent.updates_per_s, spent.server, spent.broker, spent.clients, spent.total)]


def _measure(count: int, size: int, seconds: float) -> DeployRow:
    with tempfile.TemporaryDirectory() as place:
        folder, names = Path(place), [f"c{number}" for number in range(count)]
        keys.init(folder / "fed", names, tls=False)
        broker = Broker(folder / "broker", folder / "fed")
        broker.start()
        assert broker.process is not None
        try:
            job = Role(broker.url, str(folder / "fed"), str(folder), count, names, size, seconds)
            echo, _ = _turn("echo_", job, broker.process.pid)
            offbeat, memory = _turn("", job, broker.process.pid)
        finally:
            broker.stop()
    return DeployRow(count, size, echo, offbeat, memory)


def _turn(kind: str, job: Role, broker: int) -> tuple[Spent, float]:
    """Let clients and their server work; gives what that took, and the server's memory."""
    processes = min(os.cpu_count() or 1, 1 + job.clients // CROWD)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_process(f"{kind}server", job))
        if kind:
            _line(server)  # it is ready
        before = _cpu(broker)
        shares = [job.names[at::processes] for at in range(processes)]
        crews = [
            stack.enter_context(_process(f"{kind}clients", Role(**{**asdict(job), "names": share}))) for share in shares
        ]
        found = [_result(crew, job) for crew in crews]
        spent = _cpu(broker) - before
        if kind and server.stdin is not None:
            server.stdin.write("stop\n")
            server.stdin.flush()
        served = _result(server, job)
    updates = max(1, served["updates"])
    cpu = sum(each["cpu"] for each in found)
    sealing = served["sealing"] + sum(each["sealing"] for each in found)
    each = [1e3 * seconds / updates for seconds in (served["cpu"], spent, cpu, sealing)]
    return Spent(updates / job.seconds, *each), served["memory_mb"]


@contextlib.contextmanager
def _process(role: str, job: Role) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "offbeat.bench.roles", role, json.dumps(asdict(job))]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _result(process: subprocess.Popen[str], job: Role) -> dict[str, Any]:
    out, err = process.communicate(timeout=job.seconds + 4 * PATIENCE)
    if process.returncode:
        raise OffbeatError(f"a process of the benchmark failed: {err.strip().splitlines()[-1] if err else 'no word'}")
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def _cpu(pid: int) -> float:
    """CPU seconds of a process so far; nan where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _free() -> float:
    """Bytes of memory that are free."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return 1024.0 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError):
        return float("inf")
