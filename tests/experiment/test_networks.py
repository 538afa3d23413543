"""A ResNet-18 with batch normalisation and a network with dropout, from a file: simulated twice, and run for real."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command import offbeat
from safetensors.torch import load_file

NETWORK = """
from sklearn.datasets import load_digits
from torch import nn

def few():
    digits = load_digits()
    return digits.images[:40, None].astype("float32") / 16, digits.target[:40]

def network(classes):
    layers = nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, classes)
    return nn.Sequential(nn.Flatten(), *layers)
"""

FILE = """
until = {{ updates = {updates}, time = 300.0 }}
evaluate = {{ every = 20.0 }}
executor = "serial"

[problem]
data = "nets:few"
clients = 2
model = "{model}"

[timing]
exponential = {{ rate = 1.0 }}

[algorithm.fedbuff]
size = 2
local = {{ sgd = {{ lr = 0.01, steps = 2, batch = 8 }} }}

[algorithm.area]
size = 2
local = {{ sgd = {{ lr = 0.01, steps = 2, batch = 8 }} }}
"""


@pytest.mark.parametrize(
    ("model", "updates"),
    [("nets:network", 20), pytest.param("resnet18", 4, marks=pytest.mark.slow)],
    ids=["dropout", "resnet18"],
)
def test_it_trains_under_fedbuff_and_area_twice_with_the_same_bits_and_for_real(
    model: str, updates: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nets.py").write_text(NETWORK)
    (tmp_path / "e.toml").write_text(FILE.format(model=model, updates=updates))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(tmp_path))
    for words in (("run", "--out", "one"), ("run", "--out", "two"), ("up", "--processes", "1", "--out", "real")):
        done = offbeat(words[0], "e.toml", "--json", *words[1:])
        assert done.code == 0, done.err
        assert [(run["algorithm"], run["updates"]) for run in done.runs] == [("fedbuff", updates), ("area", updates)]
    for run in ("fedbuff-0", "area-0"):
        files = [tmp_path / out / run / "model.safetensors" for out in ("one", "two", "real")]
        assert files[0].read_bytes() == files[1].read_bytes()
        simulated, trained = (load_file(file) for file in files[1:])
        assert {name: t.shape for name, t in trained.items()} == {name: t.shape for name, t in simulated.items()}
        assert all(bool(tensor.isfinite().all()) for tensor in trained.values())
