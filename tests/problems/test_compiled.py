"""Stacked steps, compiled. Most tests trace without a compiler; one uses it, which takes a minute (slow)."""

from __future__ import annotations

import copy
import itertools
import json
import logging
import shutil
import warnings
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from torch import nn
from torch.nn import functional

from offbeat.core.state import Tensors, dump, load
from offbeat.core.vectors import materialise
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.session import Session
from offbeat.models.lora import LoRA
from offbeat.problems.compiled import CACHE, SIZES, Compiled, cut, known_seconds, remember
from offbeat.problems.supervised import Supervised
from offbeat.simulate.loop import Simulation
from offbeat.simulate.world import World


def made(model: nn.Module | None = None, **options) -> Supervised:
    torch.manual_seed(0)
    data = torch.randn(300, 6), torch.arange(300) % 3
    default = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))
    return Supervised.split(data, 20, model=model or default, **options)


def moved(p: Supervised, rows: int) -> torch.Tensor:
    return p.initial() + 0.1 * torch.randn(rows, p.dim, generator=torch.Generator().manual_seed(0))


def test_batches_are_cut_into_known_sizes_with_few_padded_rows() -> None:
    for rows in range(1, 300):
        sizes = list(cut(rows))
        assert set(sizes) <= set(SIZES)
        assert rows <= sum(sizes) <= rows + 7
        assert list(cut(rows, (5,))) == [5] * -(-rows // 5)


@pytest.mark.parametrize(
    "options",
    [{}, {"l2": 0.1, "weighted": True}, {"lora": LoRA(2, targets="0")}, {"precision": "bf16"}],
    ids=["dropout", "l2", "lora", "bf16"],
)
def test_compiled_steps_are_those_of_torch_vmap(options: dict) -> None:
    p = made(**options)
    w, clients = moved(p, 12), range(12)
    oracle = p.oracle(clients, clients, 2, 4, False)
    slopes, steps = oracle.gradient(w, 0), oracle.descend(w, 0.3, 1)
    p.compile("eager")
    oracle = p.oracle(clients, clients, 2, 4, False)
    torch.testing.assert_close(oracle.gradient(w, 0), slopes, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(oracle.descend(w, 0.3, 1), steps, rtol=1e-4, atol=1e-6)
    assert p.compiled.startswith("compiled for 16 clients in ")
    lr = torch.linspace(0.1, 0.5, 12).unsqueeze(1)  # clients with step sizes of their own
    torch.testing.assert_close(oracle.descend(w, lr, 0), w - lr * slopes, rtol=1e-4, atol=1e-6)


def test_all_steps_of_a_job_at_once_are_the_steps_one_by_one_bit_for_bit() -> None:
    p = made()
    p.compile("eager")
    oracle, steps = p.oracle(range(20), range(20), 12, 4, False), 12
    rows = w = moved(p, 20)
    for step in range(steps):
        rows = oracle.descend(rows, 0.3, step)
    found = p.oracle(range(20), range(20), steps, 4, False).descend_often(w, 0.3, steps)
    assert found is not None
    assert torch.equal(found, rows)


def test_the_same_batch_gives_the_same_bits_whatever_came_before() -> None:
    p, q = made(), made()
    for each in (p, q):
        each.compile("eager")
    w = moved(p, 7)
    q.oracle(range(20), range(20), 1, 4, False).descend(moved(q, 20), 0.3, 0)
    one, other = (each.oracle(range(7), range(7), 1, 4, False).descend(w, 0.3, 0) for each in (p, q))
    assert torch.equal(one, other)


def test_what_is_read_besides_the_arguments_becomes_an_argument() -> None:
    """So that other frozen parameters do not need another compilation, and values are no part of what is cached."""
    base = torch.randn(3, 4)
    function = Compiled(lambda rows: rows @ base, "eager")
    rows = torch.randn(5, 3)
    torch.testing.assert_close(function(rows), rows @ base)
    before = rows @ base
    base.mul_(2)
    torch.testing.assert_close(function(rows), 2 * before)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("no compiler\nand more", "no compiler"),
        ("backend raised:\n\nno compiler\nand more", "backend raised: no compiler"),
    ],
)
def test_what_cannot_be_compiled_falls_back_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: str, reason: str
) -> None:
    p = made(nn.Sequential(nn.Linear(6, 3)))
    w = moved(p, 4)
    wanted = p.oracle(range(4), range(4), 1, 4, False).gradient(w, 0)

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError(error)

    monkeypatch.setattr(torch, "compile", fails)
    p.compile()
    with caplog.at_level(logging.WARNING, "offbeat.problems"):
        assert torch.equal(p.oracle(range(4), range(4), 1, 4, False).gradient(w, 0), wanted)
    assert p.compiled == f"not compiled: RuntimeError: {reason}"
    assert caplog.messages == [f"not compiled: RuntimeError: {reason}"]


def test_pytorchs_advice_on_precision_is_no_error() -> None:
    """Its compiler gives it on GPUs, where the precision is a setting of the experiment."""

    def advising(graph: Any, _: Any) -> Any:
        warnings.warn("TensorFloat32 tensor cores available but not enabled", stacklevel=1)
        return graph.forward

    p = made()
    wanted = p.oracle(range(4), range(4), 1, 4, False).gradient(moved(p, 4), 0)
    p.compile(advising)
    found = p.oracle(range(4), range(4), 1, 4, False).gradient(moved(p, 4), 0)
    torch.testing.assert_close(found, wanted)
    assert p.compiled.startswith("compiled for")


def test_forms_of_their_own_are_left_alone_and_what_cannot_be_stacked_is_said(caplog: pytest.LogCaptureFixture) -> None:
    softmax = Supervised.split("digits", 4)
    softmax.compile()
    assert softmax.replay is None
    recurrent = made(Recurrent())
    with caplog.at_level(logging.WARNING, "offbeat.problems"):
        recurrent.compile()
    assert "cannot be stacked: torch.vmap has no rule for recurrent layers" in caplog.text


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.GRU(1, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(x.unsqueeze(-1))[0][:, -1])


def test_the_forms_of_a_problem_are_not_mixed_up() -> None:
    p = made()
    assert p.compiled_form.measured is None
    assert p.measuring(20).compiled_form.measured == 20
    assert not isinstance(p.measuring(20).replay, Compiled)
    p.compile("eager")
    assert p.measuring(20).replay is p.replay


def test_a_compiled_problem_travels_to_other_processes() -> None:
    p = made()
    p.compile("eager")
    p.oracle(range(4), range(4), 1, 4, False).descend(moved(p, 4), 0.3, 0)
    again = cloudpickle.loads(cloudpickle.dumps(p))
    assert isinstance(again.replay_step, Compiled)
    assert again.compiled == ""
    copy.copy(p)


class Attends(nn.Module):
    """PyTorch's fused attention, by its function and by its module."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.ask, self.module, self.head, self.p = (
            nn.Linear(2, 12),
            nn.MultiheadAttention(4, 2, dropout=dropout, batch_first=True),
            nn.Linear(4, 3),
            dropout,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.ask(x.view(-1, 3, 2)).view(-1, 3, 3, 2, 2).permute(2, 0, 3, 1, 4)
        p = self.p if self.training else 0.0
        h = functional.scaled_dot_product_attention(q, k, v, None, p, is_causal=True).transpose(1, 2).reshape(-1, 3, 4)
        return self.head(self.module(h, h, h, need_weights=False)[0].mean(1))


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_fused_attention_is_written_out_where_clients_are_stacked(dropout: float) -> None:
    """Warnings are errors here: PyTorch warns where it computes client by client."""
    p = made(Attends(dropout))
    assert p.flat.attends
    w = moved(p, 3)
    rows = p.oracle(range(3), range(3), 1, 4, False).gradient(w, 0)
    for i in range(3):
        alone = p.oracle([i], [i], 1, 4, False).gradient(w[i : i + 1], 0)[0]
        assert (rows[i] - alone).norm() < 1e-5 * alone.norm()
    losses = [each["loss"] for each in p.measure(w)]
    assert losses == pytest.approx([p.measure(w[i : i + 1])[0]["loss"] for i in range(3)], rel=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_by_the_compiler_itself() -> None:
    p = made()
    w = moved(p, 12)
    wanted = p.oracle(range(12), range(12), 1, 4, False).descend(w, 0.3, 0)
    p.compile()
    found = p.oracle(range(12), range(12), 1, 4, False).descend(w, 0.3, 0)
    assert p.compiled.startswith("compiled for 16 clients"), p.compiled
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("lora", [{}, {"lora": {"rank": 2, "targets": "layers.*"}}], ids=["whole", "lora"])
def test_a_compiled_run_has_the_events_of_one_that_is_not(lora: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Supervised.compile, "__defaults__", ("eager",))
    table = {
        "until": {"updates": 20},
        "problem": {"data": "digits", "clients": 6, "model": {"mlp": {"hidden": [8]}}, **lora},
        "timing": {"exponential": {"rate": {"normal": [10, 5], "min": 1}}},
        "algorithm": {"area": {"size": 2, "local": {"sgd": {"lr": 0.1, "steps": 2, "batch": 4}}}},
    }
    ends = []
    for own in ({"executor": "serial"}, {"executor": "batched"}, {"executor": "batched", "compile": True}):
        session = Session(Experiment.parse({**table, **own}))
        simulation = session.simulation(session.experiment.runs[0])
        for _ in simulation.steps():
            pass
        world, (problem,) = simulation.world, simulation.problems
        assert bool(problem.compiled) is ("compile" in own)
        events = (world.now, world.tally.updates, world.tally.staleness_sum, list(world.numbers))
        ends.append((events, materialise(simulation.server.models(world.server)[0].vector)))
    for events, model in ends[1:]:
        assert events == ends[0][0]
        torch.testing.assert_close(torch.as_tensor(model), torch.as_tensor(ends[0][1]), rtol=1e-4, atol=1e-5)


AUTO = {
    "until": {"updates": 40},
    "executor": "batched",
    "compile": "auto",
    "problem": {"data": "digits", "clients": 6, "model": {"mlp": {"hidden": [8]}}},
    "timing": {"exponential": {"rate": {"normal": [10, 5], "min": 1}}},
    "algorithm": {"area": {"size": 2, "local": {"sgd": {"lr": 0.1, "steps": 2, "batch": 4}}}},
}


def started(table: dict, world: World | None = None) -> Simulation:
    session = Session(Experiment.parse(table))
    simulation = session.simulation(session.experiment.runs[0], (), world)
    next(simulation.steps())
    return simulation


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ({}, "not compiled: local steps would take about "),
        ({"executor": "serial"}, "not compiled: clients are computed by serial"),
        ({"until": {"loss": 0.1}}, "not compiled: how long the run will be is not known"),
        ({"problem": {"data": "digits", "clients": 6}}, "not compiled: digits has a faster form of its own"),
        ({"until": {"time": 1e6}}, "compiled: local steps would take about "),
    ],
    ids=["short", "serial", "unknown", "softmax", "long"],
)
def test_compile_auto_says_what_it_does_and_why(own: dict, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Supervised.compile, "__defaults__", ("eager",))
    simulation = started({**AUTO, **own})
    assert simulation.compiling.startswith(reason), simulation.compiling
    assert simulation.world.compiled is (not reason.startswith("not"))


def test_what_compile_auto_has_chosen_holds_for_the_resumed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Supervised.compile, "__defaults__", ("eager",))
    long = {**AUTO, "until": {"time": 1e6}}
    for table, other in ((long, AUTO), (AUTO, long)):  # by itself, the resumed run would choose otherwise
        world = load(*saved(started(table).world))
        assert started(other, world).world.compiled is world.compiled is (table is long)


def saved(world: World) -> tuple[Any, dict[str, torch.Tensor]]:
    tensors = Tensors()
    return json.loads(json.dumps(dump(world, tensors))), tensors.table


def test_the_time_that_compiling_took_is_remembered_with_its_results(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path))
    assert known_seconds("net") is None
    for seconds in (40.0, 9.0):
        remember("net", seconds)
    assert known_seconds("net") == pytest.approx(12.0)  # from the cache


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")
def test_a_compiled_run_that_was_stopped_and_resumed_ends_bit_for_bit_like_one_that_was_not() -> None:
    """By the compiler itself; the resumed run takes what it compiles from the cache, as another process would."""
    table = {**AUTO, "compile": True}

    def run(world: World | None = None, events: int = 1 << 30) -> World:
        session = Session(Experiment.parse(table))
        simulation = session.simulation(session.experiment.runs[0], (), world)
        for _ in itertools.islice(simulation.steps(), events):
            pass
        assert simulation.problems[0].compiled.startswith("compiled for 8 clients"), simulation.problems[0].compiled
        return simulation.world

    whole, stopped = run(), run(events=17)
    resumed = run(load(*saved(stopped)))
    assert resumed.tally.updates == whole.tally.updates == 40
    assert torch.equal(materialise(resumed.server.model.vector), materialise(whole.server.model.vector))
