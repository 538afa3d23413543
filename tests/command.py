"""The command line as a test uses it: small experiments, calls within this process and in one of their own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from offbeat.cli.app import main

DIGITS = """
until = { time = 1.0 }
evaluate = { every = 0.5 }

[problem]
data = "digits"
clients = 5
split = { dirichlet = 0.5 }
l2 = 1e-3

[timing]
exponential = { rate = 10.0 }

[[algorithm]]
name = "area"
size = 4
local = { sgd = { lr = 0.5, steps = 2, batch = 16 } }

[[algorithm]]
name = "fedbuff"
size = 2
local = { sgd = { lr = 0.5, batch = 16 } }
"""

TASKS = """
until = { time = 100.0 }
evaluate = { every = 2.0 }
clients = { count = 10 }
task = [
  { name = "a", data = "digits", target = { accuracy = 0.7 }, local = { sgd = { lr = 0.5, batch = 16, steps = 3 } } },
  { name = "b", data = "digits", target = { accuracy = 0.8 }, local = { sgd = { lr = 0.5, batch = 16, steps = 3 } } },
]
timing = { exponential = { rate = 1.0 } }
algorithm = [{ name = "fedast", requests = 8, size = 2 }]
"""

QUADRATIC = """
until = { updates = 400 }
evaluate = { every = 2.0 }

[problem]
data = "quadratic"
clients = 6
noise = 0.5

[timing]
exponential = { rate = { normal = [10, 5], min = 0.5 } }

[[algorithm]]
name = "area"
size = 4
local = { sgd = { lr = 0.1 } }

[[algorithm]]
name = "fedasync"
local = { sgd = { lr = 0.1 } }
"""


class Outcome(NamedTuple):
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def runs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.out)["runs"]
        return found


def offbeat(*arguments: str | Path) -> Outcome:
    """`offbeat` with these arguments, within this process."""
    out, err = io.StringIO(), io.StringIO()
    code: int | str | None = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(a) for a in arguments])
        except SystemExit as end:
            code = end.code
    return Outcome(int(code or 0), out.getvalue(), err.getvalue())


def run(folder: Path, text: str, *arguments: str | Path) -> Outcome:
    """`offbeat run` of this experiment with the run folder `folder/out`."""
    file = folder / "experiment.toml"
    file.write_text(text, encoding="utf-8")
    return offbeat("run", file, "--out", folder / "out", *arguments)


def sets(*overrides: str) -> list[str]:
    """--set once for each of these."""
    return [word for override in overrides for word in ("--set", override)]


def started(*arguments: str | Path, code: str = "from offbeat.cli import main; main()") -> subprocess.Popen[str]:
    """`offbeat` with these arguments as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def ended(process: subprocess.Popen[str]) -> Outcome:
    """The outcome of a process that is about to end."""
    out, err = process.communicate(timeout=300)
    return Outcome(process.returncode, out, err)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Until the process has made this path."""
    for _ in range(30_000):
        if path.exists():
            return
        if process.poll() is not None:
            raise AssertionError(f"ended with {process.returncode} before it made {path}: {process.communicate()}")
        time.sleep(0.01)
    raise AssertionError(f"{path} was never made")


def events(folder: Path) -> list[dict[str, Any]]:
    """The recorded events of a run, in order."""
    parts = sorted((folder / "events").glob("part-*.parquet"))
    return [row for part in parts for row in pq.read_table(part).to_pylist()]


def record(folder: Path) -> tuple[bytes, str, str]:
    """What two runs must share to be the same bit for bit: model, events, metrics."""
    metrics = pq.read_table(folder / "metrics.parquet").to_pylist()
    return (folder / "model.safetensors").read_bytes(), repr(events(folder)), repr(metrics)
