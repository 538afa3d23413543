"""Names that an installed package announces: listed, used in a file, refused with a near one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = '''
from dataclasses import dataclass

import numpy as np
from torch import nn

import offbeat as ob
from offbeat import data, timing


@dataclass(frozen=True)
class Keen(ob.FedAsync):
    """FedAsync under another name."""


@dataclass(frozen=True)
class Plain(ob.SGD):
    """SGD under another name."""


@dataclass(frozen=True)
class Blocks:
    """Neighbouring samples go to one client."""

    def __call__(self, labels, clients, rng, owner=None):
        return np.array_split(np.arange(len(labels)), clients)


@dataclass(frozen=True)
class Steady(timing.Constant):
    """A constant time."""


def net(shape, classes, width: int = 8):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, classes))


def samples():
    return data.load("digits")
'''
POINTS = """
[offbeat.algorithms]
keen = theirs:Keen
[offbeat.locals]
plain = theirs:Plain
[offbeat.splits]
blocks = theirs:Blocks
[offbeat.timing]
steady = theirs:Steady
[offbeat.models]
net = theirs:net
[offbeat.data]
samples = theirs:samples
"""
FILE = """
until = { updates = 8 }
problem = { data = "samples", clients = 4, split = "blocks", model = { net = { width = 4 } } }
timing = { steady = { time = 1.0 } }
algorithm = { keen = { lr = 0.5, local = { plain = { lr = 0.1, batch = 8 } } } }
"""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of a process in which a package with entry points is installed."""
    (tmp_path / "theirs.py").write_text(MODULE)
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}


SCRIPT = """
import json, sys
from pathlib import Path
import offbeat as ob
from offbeat.experiment.catalogue import catalogue
from offbeat.experiment.experiment import json_schema

lists = catalogue()
for shelf, name in zip(("algorithms", "locals", "splits", "timing", "models", "data"), sys.argv[1:]):
    assert name in lists[shelf], (shelf, name)
assert "steady" in json_schema()["properties"]["timing"]["properties"]
assert ob.load("e.toml").run("out", progress=False)[0].updates == 8
try:
    ob.load("e.toml", {"algorithm.keen.local.plain.lr": "0.1"})
except ob.OffbeatError as error:
    print(error)
"""


def test_announced_names_are_listed_used_and_in_the_schema(installed: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(FILE)
    command = [sys.executable, "-c", SCRIPT, "keen", "plain", "blocks", "steady", "net", "samples"]
    done = subprocess.run(command, env=installed, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == 'algorithm.keen.local.plain.lr = "0.1": expected a number\n'
