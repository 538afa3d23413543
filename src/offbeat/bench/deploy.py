"""`offbeat bench deploy`: updates a second of a real federation on this machine, and what each of its processes spends.

Clients that compute nothing ask for work as fast as they can. First an echo answers them: an update of the same size up
and a model of the same size down, through the same broker and the same streams, with no log, no state and no signature.
Then offbeat's own server and clients do. All processes share one machine, so CPU time per update says more than updates
a second.

Last, one server without a network folds the log of very many clients, is saved and begins again: `fold`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from offbeat.bench.roles import PATIENCE, Role
from offbeat.bench.session import machine
from offbeat.bench.table import figure
from offbeat.core.errors import OffbeatError, SettingError
from offbeat.deploy import keys
from offbeat.deploy.broker import Broker

CROWD = 64  # clients from which on several processes hold them
MANY, LARGE = 256, 100e6  # clients, and bytes of an update of each, beyond which a row is measured longer: in the first
# seconds the first models and updates are under way, and CPU time is spent on updates that are not counted yet
COPIES = 8  # of an update that a client with work and the server hold in memory, about
LONGEST = 2 * PATIENCE  # seconds that a turn may take besides those that are measured
SHARE = 0.25  # of the free memory that all of them may take
ALONE = ("--dim", "8000", "--entries", "1000", "--restart", "1000")  # of the server without a network


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
    """One number of clients and one size. skipped: why it was not measured.

    at_once: clients that have work at a time: as many as memory allows.
    """

    clients: int
    bytes: int
    at_once: int = 0
    echo: Spent | None = None
    offbeat: Spent | None = None
    memory_mb: float = 0.0  # of the server, at most
    skipped: str = ""

    @property
    def title(self) -> str:
        """The size of an update and the number of clients, in words."""
        size = f"{self.bytes / 1e6:g} MB" if self.bytes >= 1e6 else f"{self.bytes / 1e3:g} KB"
        some = f" ({self.at_once:,} at a time)" if 0 < self.at_once < self.clients else ""
        return f"{size}, {self.clients:,}{some}"

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


@dataclass(frozen=True)
class DeployReport:
    """What was measured. machine: on what, as `session.machine` says, and its load at the end (`load_after`).

    alone: one server that folds the log of very many clients, as `fold.measure` says; None: not asked for.
    """

    machine: dict[str, Any]
    rows: list[DeployRow]
    seconds: float
    alone: dict[str, Any] | None = None

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        rows = [row.plain() for row in self.rows]
        return {"machine": self.machine, "seconds": self.seconds, "rows": rows, "alone": self.alone}


def bench(
    clients: Sequence[int],
    sizes: Sequence[int],
    seconds: float,
    say: Callable[[str], None] = lambda _: None,
    simulated: int = 0,
) -> DeployReport:
    """Measure every number of clients with every size of updates. simulated: clients of one server on no network."""
    if min(clients) < 1 or min(sizes) < 4 or seconds <= 0 or simulated < 0:
        raise SettingError("clients, bytes and seconds must be positive, and an update is at least 4 bytes")
    where, rows = machine("cpu"), list[DeployRow]()
    for size in sizes:
        for count in clients:
            say(f"{count:,} clients, {size:,} bytes")
            room = int(SHARE * _free() / (COPIES * size))  # clients with work
            if room < 1:
                need = COPIES * size / SHARE
                why = f"needs about {need / 1e9:.0f} GB of memory, {_free() / 1e9:.0f} are free"
                rows.append(DeployRow(count, size, skipped=why))
            else:
                rows.append(_measured(count, size, seconds * stretch(count, size), min(count, room)))
    alone = None
    if simulated:
        say(f"{simulated:,} clients, simulated")
        alone = _alone(simulated)
    return DeployReport({**where, "load_after": os.getloadavg()[0]}, rows, seconds, alone)


def _alone(clients: int) -> dict[str, Any]:
    """In a process of its own, whose memory is measured."""
    words = [sys.executable, "-m", "offbeat.bench.fold", "--clients", str(clients), *ALONE]
    done = subprocess.run(words, capture_output=True, text=True, timeout=20 * PATIENCE, check=False)
    if done.returncode:
        raise OffbeatError(f"a process of the benchmark failed: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def setting(report: DeployReport) -> str:
    """One line about the machine."""
    m = report.machine
    load = f"load {m['load']:.1f} before and {m['load_after']:.1f} after"
    return f"{m['processor']}, {m['cores']} cores, {load}; offbeat {m['offbeat']}, python {m['python']}; {m['date']}"


def about_alone(alone: dict[str, Any]) -> str:
    """One sentence about a server and its simulated clients."""
    return (
        f"{alone['clients']:,} simulated clients with models of {4 * alone['dim'] / 1e3:g} KB: all have work after "
        f"{alone['joined_s']:.1f} s, an entry takes {alone['us_per_entry']:.0f} µs of CPU time, the server uses "
        f"{alone['memory_mb'] / 1e3:.2f} GB, a checkpoint stops it for {alone['pause_cpu_s']:.2f} s, and a "
        f"restart takes {alone['restart_s']:.1f} s and posts {alone['boot_posts']:,} assignments, "
        f"{alone['boot_mb']:.0f} MB"
    )


def text(report: DeployReport) -> str:
    """Tables for the terminal."""
    head = ("clients", "bytes", "", "updates/s", "server", "broker", "clients", "CPU-ms", "vs echo", "sealing", "MB")
    cells: list[tuple[str, ...]] = [head]
    for row in report.rows:
        start = (str(row.clients), f"{row.bytes:,}")
        if row.echo is None or row.offbeat is None:
            cells.append((*start, row.skipped, *[""] * 8))
            continue
        cells.append((*start, "echo", *_figures(row.echo), "", "", ""))
        ratio, sealing = f"{row.ratio:.2f}", f"{100 * row.sealing:.1f} %"
        cells.append(("", "", "offbeat", *_figures(row.offbeat), ratio, sealing, f"{row.memory_mb:,.0f}"))
    widths = [max(len(line[at]) for line in cells if line[3] or at < 2) for at in range(len(head))]
    lines = ["  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    some = [f"{row.title}" for row in report.rows if 0 < row.at_once < row.clients]
    return "\n".join(
        [
            setting(report),
            *lines,
            "CPU milliseconds of an update: server, broker, clients and together; sealing is a share of that",
            *([f"as many as memory allows had work: {'; '.join(some)}"] if some else []),
            *([about_alone(report.alone)] if report.alone else []),
        ]
    )


def markdown(report: DeployReport, before: Mapping[tuple[int, int], Spent] | None = None) -> str:
    """The table of docs/deploy.md. before: another version's figures, by number of clients and size."""
    parts = ["echo: updates/s, CPU ms", *(["before: updates/s, CPU ms"] if before is not None else [])]
    head = ["update, clients", *parts, "offbeat: updates/s, CPU ms", "signatures and seals", "server's memory"]
    lines = [head, ["---"] * len(head)]
    for row in report.rows:
        if row.echo is None or row.offbeat is None:
            lines.append([row.title, row.skipped, *["–"] * (len(head) - 2)])
            continue
        then = [] if before is None else [_cells(before.get((row.clients, row.bytes)))]
        own = [_cells(row.offbeat), f"{100 * row.sealing:.0f} %", f"{row.memory_mb / 1e3:.2f} GB"]
        echo = f"{figure(row.echo.updates_per_s)}, {_ms(row.echo.total)}"
        lines.append([row.title, echo, *then, *own])
    beyond = f"more than {MANY} clients or {LARGE / 1e6:.0f} MB of updates"
    long = f"{report.seconds:g} s each, three times as long with {beyond}"
    said = [
        f"{setting(report)}; {long}.",
        "",
        *(f"| {' | '.join(line)} |" for line in lines),
    ]
    return "\n".join([*said, *(["", f"{about_alone(report.alone)}."] if report.alone else [])])


def _cells(spent: Spent | None) -> str:
    if spent is None:
        return "–"
    return f"{figure(spent.updates_per_s)}, {_ms(spent.server)} + {_ms(spent.broker)} + {_ms(spent.clients)}"


def _ms(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def read_before(text: str) -> dict[tuple[int, int], Spent]:
    """Another version's figures, from the lines that `benchmarks/deploy/before.py` prints."""
    found = {}
    try:
        for row in map(json.loads, text.splitlines()):
            which = row.pop("of"), row.pop("bytes")
            found[which] = Spent(**row)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SettingError("--before: give a file of what `python benchmarks/deploy/before.py` has printed") from None
    return found


def _figures(spent: Spent) -> list[str]:
    return [figure(value) for value in (spent.updates_per_s, spent.server, spent.broker, spent.clients, spent.total)]


def stretch(count: int, size: int) -> int:
    """How many times as long as others this row is measured."""
    return 3 if count > MANY or count * size > LARGE else 1


def _measured(count: int, size: int, seconds: float, at_once: int) -> DeployRow:
    """One row. A machine that is too busy costs this one, and not those that were measured before it."""
    try:
        return _measure(count, size, seconds, at_once)
    except subprocess.TimeoutExpired:
        why = f"it did not end within {seconds + LONGEST:g} s, at a load of {os.getloadavg()[0]:.1f}"
        return DeployRow(count, size, skipped=why)


def _measure(count: int, size: int, seconds: float, at_once: int) -> DeployRow:
    with tempfile.TemporaryDirectory() as place:
        folder, names = Path(place), [f"c{number}" for number in range(count)]
        keys.init(folder / "fed", names, tls=False)
        broker = Broker(folder / "broker", folder / "fed")
        broker.start()
        assert broker.process is not None
        try:
            job = Role(broker.url, str(folder / "fed"), str(folder), count, names, size, seconds, at_once)
            echo, _ = _turn("echo_", job, broker.process.pid)
            offbeat, memory = _turn("", job, broker.process.pid)
        finally:
            broker.stop()
    return DeployRow(count, size, at_once, echo, offbeat, memory)


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
    out, err = process.communicate(timeout=job.seconds + LONGEST)
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
