"""Low-rank adapters: what is trained, what it computes, and that stacked clients are those alone."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.core.errors import ModelError, SettingError
from offbeat.data.texts import windows
from offbeat.experiment.session import Session
from offbeat.models.lora import Adapted, LoRA, adapted, merged
from offbeat.problems.supervised import Supervised

TEXTS = {str(i): f"{word} and {word}, said {i}; " * 40 for i, word in enumerate(("ham", "spam", "eggs", "toast"))}
SMALL = {"layers": 1, "heads": 2, "width": 16}


def problem(lora: LoRA | None, **options) -> Supervised:
    return Supervised.split(windows(TEXTS, window=12), 4, model="gpt", options={**SMALL, **options}, lora=lora)


def moved(p: Supervised, rows: int = 4) -> torch.Tensor:
    return p.initial() + 0.1 * torch.randn(rows, p.dim, generator=torch.Generator().manual_seed(0))


def test_a_new_adapter_changes_nothing_and_leaves_the_module_alone() -> None:
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    x, names = torch.randn(5, 6), [*module.state_dict()]
    for dora in (False, True):
        made = adapted(module, LoRA(2, dora=dora), seed=1)
        torch.testing.assert_close(made(x), module(x))
    assert [*module.state_dict()] == names
    assert all(p.requires_grad for p in module.parameters())


@pytest.mark.parametrize("dora", [False, True])
def test_an_adapted_layer_is_the_one_with_the_changed_weights(dora: bool) -> None:
    """W + s·B A; with DoRA (Liu et al. 2024, eq. 5) each row of it has a trained length."""
    layer = adapted(nn.Sequential(nn.Linear(6, 8)), LoRA(2, alpha=6.0, dora=dora), seed=1)[0]
    assert isinstance(layer, Adapted)
    with torch.no_grad():
        layer.b.normal_()
        weight = layer.base.weight + 3.0 * layer.b @ layer.a
        if dora:
            layer.lengths.mul_(1.5)
            weight = layer.lengths[:, None] * weight / weight.norm(dim=1, keepdim=True)
    x = torch.randn(5, 6)
    torch.testing.assert_close(layer(x), x @ weight.T + layer.base.bias)


@pytest.mark.parametrize("lora", [LoRA(2, alpha=6.0), LoRA(2, dora=True), LoRA(2, base="bf16")])
def test_merged_layers_compute_the_same_under_the_names_of_the_base(lora: LoRA) -> None:
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    made = adapted(module, lora, seed=1)
    with torch.no_grad():
        for layer in (made[0], made[2]):
            layer.b.normal_()
        x = torch.randn(5, 6)
        before = made(x.to(made[0].weight.dtype)).float()
        after = merged(made)
        torch.testing.assert_close(after(x), before, **({"rtol": 0.02, "atol": 0.05} if lora.base == "bf16" else {}))
    assert [*after.state_dict()] == [*module.state_dict()]


def test_an_adapter_of_shared_weights_is_not_merged() -> None:
    tied = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    tied[1].weight = tied[0].weight
    with pytest.raises(ModelError, match="the adapter of 1 cannot become part of its weights"):
        merged(adapted(tied, LoRA(2), seed=1))


def test_adapters_in_a_transformers_layer_count_in_its_fast_path_too() -> None:
    """In evaluation, the layer reads the weights of its linear layers itself."""
    made = adapted(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), LoRA(2, targets="linear*"), seed=1).eval()
    x = torch.randn(3, 5, 8)
    with torch.no_grad():
        before = made(x)
        made.linear1.b.normal_()
        made.linear2.b.normal_()
        assert (made(x) - before).abs().max() > 0.1


def test_only_the_adapters_and_what_is_named_travel() -> None:
    blocks = problem(LoRA(2, targets="blocks.*.attend.ask"))
    assert blocks.dim == 2 * 16 + 48 * 2
    assert problem(LoRA(2, targets="blocks.*.attend.ask", fixed=True)).dim == 48 * 2
    also = problem(LoRA(2, targets="blocks.*.attend.ask", also="norm.*"))
    assert also.dim == blocks.dim + 2 * 16


def test_a_shared_parameter_is_trained_in_full_by_either_name() -> None:
    one, other = (problem(LoRA(2, targets="blocks.*", also=name)) for name in ("tokens.weight", "head.weight"))
    assert one.dim == other.dim
    assert torch.equal(one.initial(), other.initial())


@pytest.mark.parametrize(
    "lora",
    [LoRA(2), LoRA(2, fixed=True), LoRA(2, dora=True), LoRA(2, dropout=0.2), LoRA(2, also="tokens.weight")],
    ids=["plain", "fixed", "dora", "dropout", "also"],
)
def test_stacked_clients_are_those_alone(lora: LoRA) -> None:
    """Measured: at most 1e-6 relative."""
    p = problem(lora, dropout=0.1)
    w = moved(p)
    rows = p.oracle(range(4), range(4), 1, 5, False).gradient(w, 0)
    for i in range(4):
        alone = p.oracle([i], [i], 1, 5, False).gradient(w[i : i + 1], 0)[0]
        assert (rows[i] - alone).norm() < 1e-5 * alone.norm()


def test_a_base_in_half_precision_stays_so_and_gives_about_the_same() -> None:
    single, half = (problem(LoRA(2, base=base)) for base in ("single", "bf16"))
    kept = {t.dtype for n, t in half.flat._constants[torch.device("cpu")].items() if "base.weight" in n}
    assert kept == {torch.bfloat16}
    assert half.initial().dtype == torch.float32
    w = moved(single, 2)
    one, other = (p.oracle([0, 1], [0, 1], 1, 5, False).gradient(w, 0) for p in (single, half))
    assert 0 < (one - other).norm() < 0.1 * one.norm()
    alone = half.oracle([0], [0], 1, 5, False).gradient(w[:1], 0)
    assert (other[:1] - alone).norm() < 0.05 * alone.norm()


def test_averages_are_exact_with_a_fixed_a_and_are_not_without() -> None:
    """The mean of B_i A_i against mean(B_i) mean(A_i)."""
    torch.manual_seed(0)
    a, b = torch.randn(5, 2, 6), torch.randn(5, 8, 2)
    torch.testing.assert_close((b @ a[0]).mean(0), b.mean(0) @ a[0])
    assert not torch.allclose((b @ a).mean(0), b.mean(0) @ a.mean(0), atol=0.1)


def test_the_same_events_stacked_and_one_by_one() -> None:
    table = {
        "until": {"updates": 12},
        "problem": {"data": {"topics": {"window": 16}}, "clients": 4, "model": {"gpt": SMALL}, "lora": {"rank": 2}},
        "timing": {"exponential": {"rate": 10.0}},
        "algorithm": {"area": {"size": 2, "local": {"sgd": {"lr": 0.5, "steps": 2, "batch": 2}}}},
    }
    ends = []
    for executor in ("serial", "batched"):
        session = Session(ob.Experiment.parse({**table, "executor": executor}))
        spec = session.experiment.runs[0]
        simulation = session.simulation(spec)
        for _ in simulation.steps():
            pass
        world = simulation.world
        ends.append((world.now, world.tally.updates, simulation.server.models(world.server)[0].vector))
    assert ends[0][:2] == ends[1][:2]
    torch.testing.assert_close(ends[0][2], torch.as_tensor(ends[1][2]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("lora", "line"),
    [
        (LoRA(2, targets="block.*"), r"lora.targets = 'block\.\*': no linear layer has such a name; there are blocks"),
        (LoRA(2, also="heads"), "lora.also = 'heads': no parameter has such a name; there are tokens.weight"),
    ],
)
def test_names_that_are_not_there_are_said(lora: LoRA, line: str) -> None:
    with pytest.raises(SettingError, match=line):
        problem(lora)


def test_settings_that_cannot_be_are_refused() -> None:
    for wrong, line in (({"rank": 0}, "rank = 0"), ({"rank": 2, "dropout": 1.0}, "dropout = 1.0")):
        with pytest.raises(SettingError, match=line):
            LoRA(**wrong)
    attention = nn.Sequential(nn.MultiheadAttention(8, 2))
    with pytest.raises(SettingError, match="reads its weights itself"):
        adapted(attention, LoRA(2), 1)


def test_a_digest_tells_one_frozen_base_from_another_and_does_not_see_adapters() -> None:
    one, same = problem(LoRA(2)), problem(LoRA(3))
    other = Supervised.split(windows(TEXTS, window=12), 4, model="gpt", options=SMALL, lora=LoRA(2), seed=1)
    half = problem(LoRA(2, base="bf16"))
    assert one.flat.frozen == same.flat.frozen
    assert len({one.flat.frozen, other.flat.frozen, half.flat.frozen}) == 3
    assert problem(None).flat.frozen == ""
    nudged = problem(LoRA(2))
    nudged.flat._constants[torch.device("cpu")]["places.weight"][0, 0] += 1e-6
    assert nudged.flat.frozen != one.flat.frozen


@pytest.mark.parametrize("lora", [8, {"rank": 8}])
def test_what_is_no_lora_is_refused(lora: Any) -> None:
    with pytest.raises(SettingError, match=re.escape(f"lora = {lora!r}: expected LoRA(rank=…)")):
        adapted(nn.Linear(2, 2), lora, 0)
