"""The networks' GPU kernels, in Triton's interpreter where there is no GPU; skipped without Triton.

`make test-kernels` installs Triton beside the environment and runs them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from offbeat.core.errors import SettingError
from offbeat.data.base import Dataset
from offbeat.data.samples import Stored
from offbeat.models import flat as flats, lstm
from offbeat.models.conv import DropoutCNN, LeNet5, _Chain, _TwoConv
from offbeat.models.flat import Flat, forward
from offbeat.models.lstm import LSTM
from offbeat.problems.supervised import Supervised

GPU = torch.cuda.is_available()
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")  # interpreter's
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
DEVICE = "cuda" if GPU else "cpu"


@pytest.fixture(autouse=True)
def interpreted_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter keeps bfloat16 as the integers of its bits; it would multiply those, and rounds down."""
    if GPU or find_spec("triton") is None:
        return
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, tl

    dot, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    def single(factor: TensorHandle) -> TensorHandle:
        if factor.dtype.scalar != tl.bfloat16:
            return factor
        return TensorHandle((factor.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def product(self: InterpreterBuilder, a: TensorHandle, b: TensorHandle, *rest: object) -> TensorHandle:
        return dot(self, single(a), single(b), *rest)

    def rounded(self: InterpreterBuilder, source: TensorHandle, to: Any) -> TensorHandle:
        if source.dtype.scalar != tl.float32 or to.scalar != tl.bfloat16:
            return cast(self, source, to)
        bits = np.ascontiguousarray(source.data).view(np.uint32)
        return TensorHandle(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16), to.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", product)
    monkeypatch.setattr(InterpreterBuilder, "cast_impl", rounded)


torch.manual_seed(0)  # the networks' first weights
MODELS = {"lenet5": LeNet5((1, 16, 16), 10), "dropout": DropoutCNN((1, 16, 16), 10, layers=2)}


def made(model: str) -> Supervised:
    """Three clients with ten and with 25 samples."""
    g = torch.Generator().manual_seed(0)
    x = torch.randint(256, (60, 1, 16, 16), generator=g, dtype=torch.uint8)
    y = torch.randint(10, (60,), generator=g)
    data = Dataset.pairs("made", x, y, x[:5], y[:5], 10, 1 / 255)
    shards = [np.arange(10), np.arange(10, 35), np.arange(35, 60)]
    return Supervised(data, MODELS[model], shards, l2=0.1, weighted=True, device=DEVICE)


def stacks(flat: Flat, n: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    return (flat.initial() + 0.1 * torch.randn(n, flat.dim, generator=g)).to(DEVICE)


NETWORKS = [
    (LeNet5((1, 28, 28), 10), (1, 28, 28), 3),  # padded, few channels
    (LeNet5((1, 28, 28), 10, padding=0, rectified=True), (1, 28, 28), 3),
    (_TwoConv("colours", (3, 19, 19), 4, (8, 16), (12, 7), 1), (3, 19, 19), 2),  # odd sides, two hidden layers
    (_TwoConv("wide", (1, 16, 16), 4, (32, 64), (), 0), (1, 16, 16), 40),  # as many channels as DeFedAvg's
    (_TwoConv("long", (1, 16, 16), 4, (2, 3), (130, 33), 0), (1, 16, 16), 70),  # more samples and units than a tile has
    (DropoutCNN((3, 8, 8), 4), (3, 8, 8), 2),  # every convolution padded, down to 1 × 1
    (DropoutCNN((1, 9, 9), 4, layers=2, dropout=0.5), (1, 9, 9), 3),
    (DropoutCNN((1, 9, 9), 4, layers=1), (1, 9, 9), 3),  # nothing between full layers, so nothing is dropped
]
IDS = ["lenet5", "rectified", "colours", "wide", "long", "dropout", "dropout, odd sides", "one layer"]


@needs_triton
@pytest.mark.parametrize("half", [False, True], ids=["single", "bf16"])
@pytest.mark.parametrize(("module", "shape", "batch"), NETWORKS, ids=IDS)
def test_gradients_are_added_to_what_is_kept_of_the_models(
    module: _Chain, shape: tuple, batch: int, half: bool
) -> None:
    flat, n = Flat(module), 2
    g = torch.Generator().manual_seed(1)
    w = stacks(flat, n)
    x = torch.rand(n, batch, *shape, generator=g).to(DEVICE)
    y = torch.randint(4, (n, batch), generator=g).to(DEVICE)
    weights = torch.rand(n, batch, generator=g).to(DEVICE)

    masks = [torch.tensor([7, -8], device=DEVICE)] if flat.random else []

    def loss(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor, *key: torch.Tensor) -> Any:
        outputs = flat.apply(w, forward, x, key=key[0] if key else None)
        return (cross_entropy(outputs, y, reduction="none") * weights).sum()

    expected = vmap(grad(loss))(w, x, y, weights, *masks)
    # with 16 bits, another corner of a window may be the largest: autocast is as far off, too, up to a fifth
    allowed = 0.2 if half else 1e-5
    keep, to = torch.tensor([0.0, 0.5], device=DEVICE), torch.full_like(w, torch.nan)
    module.add_gradient(flat.named(w), keep, flat.named(to), x, y, weights, *masks, half=half)
    assert float((to - keep.unsqueeze(1) * w - expected).norm() / expected.norm()) < allowed


@needs_triton
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("lr", [0.1, torch.tensor([[0.1], [0.3], [0.2]])], ids=["one step size", "one each"])
def test_a_local_step_by_kernels_is_the_plain_one(lr: float | torch.Tensor, model: str) -> None:
    problem = made(model)
    lr = lr.to(DEVICE) if isinstance(lr, torch.Tensor) else lr
    w, which, keys = stacks(problem.flat, 3), np.array([0, 1, 2]), np.array([5, 6, 7])

    def steps(quick: Callable[..., torch.Tensor] | None) -> torch.Tensor:
        problem.replay_step, problem.replay = quick, None  # type: ignore[assignment]
        oracle, reached = problem.oracle(which, keys, 2, 4, False), w
        for step in range(2):
            reached = oracle.descend(reached, lr, step)
        return reached - w

    problem.adds = False
    expected, found = steps(None), steps(problem.stepped)
    assert float((found - expected).norm() / expected.norm()) < 1e-5


@needs_triton
@pytest.mark.parametrize("model", MODELS)
def test_the_gradients_of_a_problem_by_kernels_are_those_by_vmap(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    monkeypatch.setattr(flats, "kernels", lambda _: True)
    problem = made(model)
    assert problem.adds
    w, indices = stacks(problem.flat, 3), torch.arange(12, device=DEVICE).view(3, 4)
    weights, shares = torch.full((3, 4), 0.25, device=DEVICE), torch.tensor([0.5, 1.0, 2.0], device=DEVICE)
    masks = [torch.tensor([5, 6, 7], device=DEVICE)] if problem.flat.random else []
    given = (w, *problem.samples(indices), weights, shares, *masks)
    expected, found = problem.stacked_slopes(*given), problem.slopes(*given)
    assert float((found - expected).norm() / expected.norm()) < 1e-5


def test_a_module_that_drops_has_gradients_of_its_own_only_if_they_take_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flats, "kernels", lambda _: True)

    class Keyless(DropoutCNN):
        def add_gradient(self, parameters: Any, keep: Any, to: Any, x: Any, y: Any, weights: Any) -> None: ...  # type: ignore[override]

    device = torch.device(DEVICE)
    assert Flat(DropoutCNN((1, 8, 8), 4)).adds(device)
    assert not Flat(Keyless((1, 8, 8), 4)).adds(device)
    assert Flat(Keyless((1, 8, 8), 4).eval()).adds(device)  # which drops nothing


def test_with_bf16_a_form_is_used_only_if_it_takes_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flats, "kernels", lambda _: True)

    class Single(LeNet5):
        def add_gradient(self, parameters: Any, keep: Any, to: Any, x: Any, y: Any, weights: Any) -> None: ...  # type: ignore[override]

    device = torch.device(DEVICE)
    assert Flat(LeNet5((1, 16, 16), 4), precision="bf16").adds(device)
    assert Flat(Single((1, 16, 16), 4)).adds(device)
    assert not Flat(Single((1, 16, 16), 4), precision="bf16").adds(device)


def test_a_stacked_form_is_not_used_for_a_module_that_drops() -> None:
    class Dropping(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.drop = torch.nn.Linear(6, 3), torch.nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> Any:
            return self.linear(self.drop(x))

        def stacked(self, parameters: Any, x: torch.Tensor, keys: Any = None) -> torch.Tensor:
            raise AssertionError("nobody hands it the keys")

    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 6, generator=g), torch.randint(3, (40,), generator=g)
    data = Dataset.pairs("made", x, y, x[:5], y[:5], 3)
    problem = Supervised(data, Dropping(), [np.arange(20), np.arange(20, 40)])
    assert not problem.own
    oracle = problem.oracle(np.array([0, 1]), np.array([5, 6]), 1, 4, False)
    assert oracle.gradient(stacks(problem.flat, 2).cpu(), 0).isfinite().all()
    assert Flat(Dropping().eval()).own


def test_gradients_of_a_modules_own_are_of_one_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flats, "kernels", lambda _: True)

    class Two(torch.nn.Linear):
        def forward(self, a: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:  # type: ignore[override]
            return super().forward(a if b is None else a + b)

        def add_gradient(self, parameters: Any, keep: Any, to: Any, x: Any, y: Any, weights: Any) -> None: ...

    g = torch.Generator().manual_seed(0)
    columns = {name: torch.randn(40, 6, generator=g) for name in "ab"} | {"y": torch.randint(3, (40,), generator=g)}
    samples, shards = Stored(columns), [np.arange(20), np.arange(20, 40)]
    for inputs in (("a",), ("a", "b")):
        data = Dataset("made", samples, samples, 3, inputs=inputs)
        assert Supervised(data, Two(6, 3), shards).adds is (inputs == ("a",))


@needs_triton
def test_more_samples_than_kernels_can_count_are_refused() -> None:
    from offbeat.models.conv_gpu import conv_pool

    x = torch.empty(1, device=DEVICE).expand(1, 40_000, 32, 32, 4)  # without memory
    with pytest.raises(SettingError, match=r"40000 samples of a client at once .* set batch = 28339 or less"):
        conv_pool(x, torch.empty(1, 64, 3, 5, 5), torch.empty(1, 64))


@needs_triton
def test_tiles_fit_into_the_shared_memory_of_most_gpus() -> None:
    """99 KiB: consumer GPUs since 2020; A100 has 163 and Hopper 227."""
    from offbeat.models.conv_gpu import TILES

    for (kernel, half), (rows, depth, _, stages) in TILES.items():
        patches = 4 if kernel == "convolve" else 1  # one for each corner of a window
        numbers = patches * rows * depth + 64 * (rows if kernel == "to weights" else depth)  # 64: the widest layer
        assert stages * numbers * (2 if half else 4) <= 99 << 10, kernel


@needs_triton
@pytest.mark.parametrize(("hidden", "length", "batch"), [(16, 5, 3), (40, 4, 20), (32, 2, 70)])
def test_an_lstm_of_kernels_has_the_gradients_of_torchs(
    monkeypatch: pytest.MonkeyPatch, hidden: int, length: int, batch: int
) -> None:
    monkeypatch.setattr(lstm, "kernels", lambda _: True)
    check_lstm(hidden, length, batch)


@pytest.mark.parametrize(("hidden", "length", "batch"), [(16, 5, 3), (40, 4, 20)])
def test_an_lstm_written_out_has_the_gradients_of_torchs(
    monkeypatch: pytest.MonkeyPatch, hidden: int, length: int, batch: int
) -> None:
    monkeypatch.setattr(lstm, "kernels", lambda _: False)
    check_lstm(hidden, length, batch)


@needs_triton
@pytest.mark.parametrize(
    ("hidden", "length", "batch", "layers", "units"),
    [(16, 5, 3, 2, 16), (40, 4, 20, 3, 16), (40, 4, 20, 2, 32), (32, 2, 70, 2, 16), (100, 3, 5, 1, 64)],
)
def test_an_lstm_in_half_precision_has_nearly_the_same_gradients(
    monkeypatch: pytest.MonkeyPatch, hidden: int, length: int, batch: int, layers: int, units: int
) -> None:
    from offbeat.models import lstm_gpu

    monkeypatch.setattr(lstm, "kernels", lambda _: True)
    for plans in ("FORWARD", "BACKWARD"):
        monkeypatch.setattr(lstm_gpu, plans, (lstm_gpu.Division(units, 4),))
    expected, found = (lstm_gradient(hidden, length, batch, layers, half) for half in (False, True))
    assert found.dtype is torch.float32
    assert 0 < float((found - expected).norm() / expected.norm()) < 2e-2
    flat = Flat(LSTM((length,), 11, hidden=hidden, layers=layers))
    parts = zip(flat.named(found - expected).values(), flat.named(expected).values(), strict=True)
    assert all(float(apart.norm() / part.norm()) < 4e-2 for apart, part in parts)


@pytest.mark.skipif(not GPU, reason="programs that wait for each other need a GPU")
@pytest.mark.parametrize(("hidden", "models"), [(256, 3), (256, 40), (100, 8)])
def test_steps_of_one_launch_are_those_of_a_launch_each(
    monkeypatch: pytest.MonkeyPatch, hidden: int, models: int
) -> None:
    from offbeat.models import lstm_gpu

    found = lstm_gradient(hidden, 20, 64, 2, True, models)
    assert all(torch.equal(found, lstm_gradient(hidden, 20, 64, 2, True, models)) for _ in range(5))
    monkeypatch.setattr(lstm_gpu, "TOGETHER", False)
    assert torch.allclose(found, lstm_gradient(hidden, 20, 64, 2, True, models), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("hidden", "kernels", "wide"), [(16, False, True), (16, True, False), (18, True, True)])
def test_without_kernels_half_precision_is_single(
    monkeypatch: pytest.MonkeyPatch, hidden: int, kernels: bool, wide: bool
) -> None:
    """There are none for a width that is no multiple of four, and before PyTorch 2.8."""
    monkeypatch.setattr(lstm, "kernels", lambda _: kernels)
    monkeypatch.setattr(lstm, "_WIDE", wide)
    if kernels and find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    assert torch.equal(*(lstm_gradient(hidden, 4, 3, 2, half) for half in (False, True)))


def lstm_gradient(hidden: int, length: int, batch: int, layers: int, half: bool, n: int = 2) -> torch.Tensor:
    module = LSTM((length,), 11, hidden=hidden, layers=layers)
    flat, g = Flat(module), torch.Generator().manual_seed(1)
    w = 0.1 * torch.randn(n, flat.dim, generator=g)
    x, y = torch.randint(11, (n, batch, length), generator=g), torch.randint(11, (n, batch), generator=g)
    rows = w.to(DEVICE).requires_grad_()
    outputs = module.stacked(flat.named(rows), x.to(DEVICE), half)
    value = cross_entropy(outputs.flatten(0, 1), y.flatten().to(DEVICE), reduction="sum")
    return torch.autograd.grad(value, rows)[0]


def check_lstm(hidden: int, length: int, batch: int) -> None:
    flat, n = Flat(LSTM((length,), 11, hidden=hidden)), 2
    g = torch.Generator().manual_seed(1)
    w = stacks(flat, n)
    x = torch.randint(11, (n, batch, length), generator=g).to(DEVICE)
    y = torch.randint(11, (n, batch), generator=g).to(DEVICE)
    rows = w.clone().requires_grad_()
    value = cross_entropy(flat.stacked(rows, x).flatten(0, 1), y.flatten(), reduction="sum")
    (found,) = torch.autograd.grad(value, rows)
    for i in range(n):
        pieces = [piece.requires_grad_() for piece in flat.pieces(w[i])]
        slopes = torch.autograd.grad(cross_entropy(flat.alone(pieces, forward, x[i]), y[i], reduction="sum"), pieces)
        expected = torch.cat([slope.reshape(-1) for slope in slopes])
        assert float((found[i] - expected).norm() / expected.norm()) < 1e-5
