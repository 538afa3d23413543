"""Trained modules: given back with what they were made of, and exported with a card."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from command import offbeat
from safetensors.torch import load_file
from torch import nn

import offbeat as ob
from offbeat import timing
from offbeat.data.readers import load

CLOCK = timing.Times(timing.Exponential(rate=5.0))

MODELS = '''
import torch
from torch import nn


class Partly(nn.Module):
    """A frozen layer, a buffer and a trained head."""

    def __init__(self, shape, classes):
        super().__init__()
        self.register_buffer("shift", torch.full((1,), 0.5))
        self.base = nn.Linear(64, 16).requires_grad_(False)
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        return self.head(torch.relu(self.base(x.flatten(1) - self.shift)))


class Published(Partly):
    def save_pretrained(self, folder):
        from pathlib import Path

        Path(folder).mkdir(parents=True)
        (Path(folder) / "config.json").write_text("{}")
'''

FILE = """
until = { updates = 60 }
evaluate = { every = 5.0 }
seed = 4

[problem]
data = "digits"
clients = 4
model = "mymodels:Partly"

[timing]
exponential = { rate = 2.0 }

[algorithm.fedbuff]
size = 2
local = { sgd = { lr = 0.3, steps = 2, batch = 16 } }
"""

TASKS = """
until = { time = 2.0 }
clients = { count = 4 }
task = [{ name = "a", data = "digits" }, { name = "b", data = "digits", model = { mlp = { hidden = [8] } } }]
timing = { exponential = { rate = 5.0 } }

[algorithm.fedast]
requests = 4
local = { sgd = { lr = 0.5, batch = 16 } }
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mymodels.py").write_text(MODELS)
    (tmp_path / "e.toml").write_text(FILE)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mymodels", raising=False)
    return tmp_path


def accuracy(module: nn.Module) -> float:
    test = load("digits").test.take(torch.arange(len(load("digits").test)))
    with torch.no_grad():
        return float((module(test["x"]).argmax(1) == test["y"]).float().mean())


def test_the_module_of_a_file_is_the_one_that_was_measured(lab: Path) -> None:
    (result,) = ob.load(lab / "e.toml").run(lab / "out", progress=False)
    module = result.module()
    assert not module.training
    assert accuracy(module) == pytest.approx(result.metrics["accuracy"])
    (later,) = ob.open(lab / "out")
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), later.module().parameters(), strict=True))
    assert "shift" in dict(module.named_buffers())


def test_a_state_dict_has_frozen_parameters_and_buffers_and_loads_strictly(lab: Path) -> None:
    (result,) = ob.load(lab / "e.toml").run(lab / "out", progress=False)
    assert offbeat("export", lab / "out" / "fedbuff-4", lab / "m.safetensors", "--to", "state-dict").code == 0
    fresh = type(result.module())((1, 8, 8), 10)
    fresh.load_state_dict(load_file(lab / "m.safetensors"))
    assert accuracy(fresh) == pytest.approx(result.metrics["accuracy"])
    assert offbeat("export", lab / "out" / "fedbuff-4", lab / "p.safetensors").code == 0
    assert set(load_file(lab / "p.safetensors")) == {"head.weight", "head.bias"}
    card = (lab / "m.md").read_text()
    said = ("digits", "mymodels.Partly", "FedBuff(", "SGD(lr=0.3", "| seed | 4 |", "Exponential(rate=2.0)", "torch")
    assert [word for word in said if word not in card] == []
    assert f"| accuracy | {result.metrics['accuracy']:.6g} (higher is better) |" in card


def test_a_folder_for_hugging_face_and_what_cannot_be_written(lab: Path) -> None:
    (lab / "e.toml").write_text(FILE.replace("Partly", "Published"))
    ob.load(lab / "e.toml").run(lab / "out", progress=False)
    run = lab / "out" / "fedbuff-4"
    assert offbeat("export", run, lab / "hub", "--to", "hf").code == 0
    assert (lab / "hub" / "config.json").exists()
    assert "a folder for `from_pretrained`" in (lab / "hub" / "README.md").read_text()
    refused = offbeat("export", run, lab / "m.onnx", "--to", "onnx")
    assert refused.code == 1
    assert "torch.onnx.export(result.module(), example_inputs, file)" in refused.err


def test_each_of_several_tasks_has_its_own_module_file_and_card(lab: Path) -> None:
    (lab / "two.toml").write_text(TASKS)
    (result,) = ob.load(lab / "two.toml").run(lab / "out", progress=False)
    assert accuracy(result.module("b")) == pytest.approx(result.tasks[1].metrics["accuracy"])
    assert accuracy(result.module(0)) == pytest.approx(result.tasks[0].metrics["accuracy"])
    run = lab / "out" / "fedast-0"
    assert offbeat("export", run, lab / "m.safetensors", "--to", "state-dict").code == 0
    result.module("b").load_state_dict(load_file(lab / "m.b.safetensors"))
    assert "# a, trained with fedast" in (lab / "m.a.md").read_text()
    assert "no save_pretrained" in offbeat("export", run, lab / "hub", "--to", "hf").err
    with pytest.raises(ob.OffbeatError, match="unknown task 'c'"):
        result.module("c")


def test_modules_of_objects_made_by_hand(tmp_path: Path) -> None:
    problem = ob.Supervised.split(load("digits"), clients=3, model="mlp")
    algorithm = ob.Algorithm(ob.AREA(size=2), ob.SGD(lr=0.5, steps=2, batch=16))
    done = ob.run(problem, algorithm, CLOCK, ob.Until(updates=40), evaluate=5.0, out=tmp_path / "out")
    assert accuracy(done.module()) == pytest.approx(done.metrics["accuracy"])
    own = done.module(client=1, steps=2)
    assert torch.equal(nn.utils.parameters_to_vector(own.parameters()), done.personal(1, steps=2))
    (result,) = ob.open(tmp_path / "out")
    same = result.module(problem=problem)
    assert torch.equal(nn.utils.parameters_to_vector(same.parameters()), done.model)
    with pytest.raises(ob.OffbeatError, match=r"made from Python objects.*\.module\(problem=problem\)"):
        result.module()
    other = ob.Supervised.split(load("digits"), clients=3, model="softmax")
    with pytest.raises(ob.OffbeatError, match="and that of this problem 640"):
        result.module(problem=other)


def test_a_problem_without_a_module_says_so() -> None:
    algorithm = ob.Algorithm(ob.FedBuff(size=1), ob.SGD(lr=0.1))
    done = ob.run(ob.Quadratic(3), algorithm, CLOCK, ob.Until(updates=3))
    with pytest.raises(ob.OffbeatError, match="quadratic has no module, only a vector"):
        done.module()
