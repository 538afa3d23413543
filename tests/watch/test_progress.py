"""What a person sees while runs go on."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from command import QUADRATIC
from rich.console import Console
from worlds import Line

from offbeat import AREA, SGD, Algorithm, Problem, Quadratic, Until, Vector
from offbeat.core.watcher import Measurement
from offbeat.simulate.loop import Simulation
from offbeat.simulate.run import prepare
from offbeat.timing import Constant, Times
from offbeat.watch.progress import describe, display, fraction
from offbeat.watch.record import Recorder


def simulation(until: Until, updates: int, problem: Problem | None = None) -> Simulation:
    """Four clients that report every second, after so many updates."""
    algorithm = Algorithm(AREA(size=2), SGD(lr=0.1))
    made = prepare(problem or Quadratic(4), algorithm, Times(Constant(1.0)), until)
    for world in made.steps():
        if world.tally.updates == updates:
            break
    return made


@pytest.mark.parametrize(
    ("until", "share"),
    [
        (Until(time=10.0), 0.2),
        (Until(updates=16), 0.5),
        (Until(versions=16), 0.25),
        (Until(time=10.0, updates=16, versions=16), 0.5),
    ],
)
def test_the_share_done_goes_by_the_nearest_limit(until: Until, share: float) -> None:
    assert fraction(simulation(until, 8)) == share


class Large(Quadratic):
    """Pretends to have many samples, of which some are measured."""

    sample = 2_000
    sampled_to_end = False

    def exact(self, model: Vector) -> float:
        raise NotImplementedError

    measuring = exact

    def samples_of(self, client: int) -> int:
        return 20_000


def test_the_last_measurement_of_many_samples_is_announced() -> None:
    console = Console(file=io.StringIO(), width=200)
    with display(console, 1) as shown:
        shown.begin("area, seed 0")
        shown.measure(simulation(Until(time=10.0), 4))
        shown.measure(simulation(Until(time=10.0), 4, Large(4)))
    said = console.file.getvalue().splitlines()
    assert said == [
        "area, seed 0: measuring the loss on all 80,000 training samples; evaluate.samples would limit that"
    ]


def test_a_run_is_described_by_time_pace_staleness_and_metric() -> None:
    running = simulation(Until(time=10.0), 4, Line([0.0] * 4))  # two of them after the first server step
    measurements = [Measurement(0, 1.0, 4, 2, {"loss": 0.5, "accuracy": 0.91234})]
    assert describe(running, measurements, 1234.5) == "time 1.00 · 1,234 updates/s · staleness 0.5 · accuracy 0.9123"
    of_a_quadratic = [Measurement(0, 1.0, 4, 2, {"loss": 0.5, "gap": 0.1})]
    assert describe(simulation(Until(time=10.0), 4), of_a_quadratic, 1).endswith(" · loss 0.5")
    assert describe(simulation(Until(time=10.0), 0), [], 0) == "time 0.00 · 0 updates/s"


def test_without_a_terminal_there_is_a_plain_line_a_run(tmp_path: Path) -> None:
    file, running = io.StringIO(), simulation(Until(time=10.0), 8)
    with display(Console(file=file), 2) as shown:
        shown.begin("area, seed 0")
        shown.tick(running, Recorder(tmp_path))
        shown.end("area, seed 0: " + "a long story [not markup] " * 5)
    assert file.getvalue() == "area, seed 0: " + "a long story [not markup] " * 5 + "\n"


def test_without_a_terminal_a_long_run_says_now_and_then_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, running = io.StringIO(), simulation(Until(time=10.0), 8)
    clock = iter([0.0, 1.0, 59.0, 61.0, 62.0, 121.5])
    monkeypatch.setattr("offbeat.watch.progress.time.perf_counter", lambda: next(clock))
    with display(Console(file=file), 2) as shown:
        shown.begin("area, seed 0")
        for _ in range(5):
            shown.tick(running, Recorder(tmp_path))
    assert file.getvalue() == 2 * "area, seed 0: 20%, time 2.00 · 0 updates/s · staleness 1.2\n"


def screen(tmp_path: Path, columns: int) -> str:
    """All that a short experiment writes to a terminal of this width, without colours and cursor movements."""
    (tmp_path / "e.toml").write_text(QUADRATIC.replace("updates = 400", "updates = 4000"))
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    words = ["run", str(tmp_path / "e.toml"), "--out", str(tmp_path / "out")]
    environment = {**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(name, None)
    command = [sys.executable, "-c", "from offbeat.cli import main; main()", *words]
    process = subprocess.Popen(command, stdout=there, stderr=there, env=environment)
    os.close(there)
    written = b""
    while chunk := _read(here):
        written += chunk
    os.close(here)
    assert process.wait() == 0
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode()).replace("\r", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # nobody holds the other end any more
        return b""


def test_on_a_terminal_of_80_columns_everything_is_readable(tmp_path: Path) -> None:
    text = screen(tmp_path, 80)
    *lines, report, folder = filter(None, text.splitlines())
    assert report == f"report: {tmp_path / 'out' / 'report.html'}"
    assert folder == f"run folder: {tmp_path / 'out'}"
    assert max(map(len, lines)) <= 80
    assert re.search(r"all runs +\S+ +[01] of 2 +0:00:0\d +\S+ left", text)
    assert re.search(r"area, seed 0 +\S+ +\d+ % +0:00:0\d +\S+ left", text)
    assert re.search(r"time \d+\.\d\d · [\d,]+ updates/s · staleness \d\.\d", text)
    assert re.search(r"area, seed 0: loss \S+ gap \S+ distance \S+ after 4,000 updates in", " ".join(text.split()))
    assert "…" not in text
