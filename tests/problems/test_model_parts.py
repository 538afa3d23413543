"""Random layers, frozen and personal parts, and half precision, of a problem."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from parted import IMAGES, KEYS, LABELS, conv, problem
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from offbeat.core.errors import ModelError, SettingError
from offbeat.models.flat import Flat
from offbeat.problems.supervised import Supervised

EVERYBODY = [0, 1, 2, 3]


class Functional(nn.Module):
    """Drops by a function, also in evaluation, as people forget to say."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(128, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.dropout(torch.tanh(self.first(x.flatten(1))), 0.5))


class Recomputed(Functional):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(lambda h: F.dropout(self.first(h), 0.5), x.flatten(1), use_reentrant=False))


class Drawn(Functional):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.rand(1))


def gradients(p: Supervised, clients: list[int], step: int = 0, sample: int = 0, batch: int | None = 4) -> Tensor:
    keys = [KEYS[c] for c in clients]
    return p.oracle(clients, keys, 5, batch, False).gradient(p.initial().expand(len(clients), -1), step, sample)


@pytest.mark.parametrize("module", [Functional, lambda: conv(norm=False)], ids=["function", "module"])
@pytest.mark.parametrize("batch", [4, None])
def test_masks_are_the_same_stacked_and_alone(module: Any, batch: int | None) -> None:
    p = problem(module())
    assert p.flat.random
    together = gradients(p, EVERYBODY, batch=batch)
    for client in EVERYBODY:
        torch.testing.assert_close(together[client], gradients(p, [client], batch=batch)[0], rtol=1e-4, atol=1e-6)
    oracle = p.oracle(EVERYBODY, KEYS, 5, batch, False)
    v = p.initial().expand(4, -1)
    alone = [p.oracle([c], [KEYS[c]], 5, batch, False) for c in EVERYBODY]
    torch.testing.assert_close(oracle.loss(v, 1), torch.cat([o.loss(v[:1], 1) for o in alone]), rtol=1e-4, atol=1e-6)
    products = torch.cat([o.hvp(v[:1], v[:1], 1) for o in alone])
    torch.testing.assert_close(oracle.hvp(v, v, 1), products, rtol=1e-3, atol=1e-5)
    full = torch.cat([o.full(v[:1]) for o in alone])
    torch.testing.assert_close(oracle.full(v), full, rtol=1e-3, atol=1e-5)


def test_every_client_step_and_independent_batch_has_masks_of_its_own() -> None:
    """One sample and a whole-data batch of it: what differs are the masks."""
    p = problem(Functional(), shards=[np.array([3]), np.array([3])])
    seen = [gradients(p, [c], step, sample, batch=None) for c in (0, 1) for step in (0, 1) for sample in (0, 1)]
    assert all(not torch.equal(a, b) for i, a in enumerate(seen) for b in seen[:i])
    assert torch.equal(seen[0], gradients(p, [0], 0, 0, batch=None))


def test_the_samples_of_a_batch_have_masks_of_their_own() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(128, 64), nn.Dropout(0.5), Sorted())
    p = problem(module, shards=[np.array([3])])
    first = p.oracle([0], KEYS[:1], 1, 2, False)
    pieces = p.flat.pieces(p.initial())
    found = p.flat.alone(pieces, lambda m, x: m[2](m[1](m[0](x))), IMAGES[[3, 3]], key=first._masks(0, 0)[0][0])
    assert not torch.equal(found[0] == 0, found[1] == 0)


class Sorted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :3]


def test_nothing_is_dropped_in_evaluation() -> None:
    p = problem(Functional())
    w = p.initial()
    views = p.flat.views(w)
    hidden = torch.tanh(F.linear(IMAGES.flatten(1), views["first.weight"], views["first.bias"]))
    right = (F.linear(hidden, views["last.weight"], views["last.bias"]).argmax(1) == LABELS).float().mean()
    assert p.measure(w.unsqueeze(0))[0]["accuracy"] == pytest.approx(float(right))
    assert p.measure(w.unsqueeze(0)) == p.measure(w.unsqueeze(0))


def test_a_model_without_such_layers_is_called_as_before() -> None:
    p = problem(conv(dropout=0.0, norm=False))
    assert not p.flat.moded
    assert p.flat._places
    assert p.oracle([0], KEYS[:1], 1, 4, False)._masks(0, 0) == ()
    from offbeat.local import SGD

    local = SGD(lr=0.1)
    assert p.pair(local) is local


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Recomputed, "gradients differ for the same masks; does it recompute activations"),
        (Drawn, "returns other outputs for the same inputs"),
    ],
)
def test_what_no_key_reaches_is_refused(module: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        problem(module())


class Noisy(torch.autograd.Function):
    """Passes on, and its gradient differs in the last digits each time, like that of a convolution on a GPU."""

    calls = 0

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        Noisy.calls += 1
        return slope * (1 + 1e-6 * Noisy.calls)


class Rounded(Functional):
    def forward(self, x: Tensor) -> Tensor:
        return Noisy.apply(super().forward(x))  # type: ignore[no-any-return]


def test_gradients_may_differ_by_rounding() -> None:
    assert problem(Rounded()).flat.random


# Parts


def half() -> nn.Module:
    torch.manual_seed(3)
    module = nn.Sequential(nn.Flatten(), nn.Linear(128, 16), nn.Tanh(), nn.Linear(16, 3)).bfloat16()
    return nn.Sequential(ToHalf(), module)


class ToHalf(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.bfloat16()


def test_frozen_weights_stay_in_half_precision_in_one_copy_for_all_clients() -> None:
    module = half()
    p = problem(module, train="1.3.*")
    assert p.dim == 16 * 3 + 3
    frozen = p.flat._constants[torch.device("cpu")]
    assert {t.dtype for t in frozen.values()} == {torch.bfloat16}
    assert frozen["1.1.weight"].data_ptr() == module[1][1].weight.data_ptr()
    together = gradients(p, EVERYBODY)
    assert together.dtype == torch.float32
    for client in EVERYBODY:
        torch.testing.assert_close(together[client], gradients(p, [client])[0], rtol=3e-2, atol=1e-2)
    which = p.oracle([1], KEYS[1:2], 5, 4, False).draws.indices(0, 0)[0]
    F.cross_entropy(module(IMAGES[which]), LABELS[which]).backward()
    expected = torch.cat([module[1][3].weight.grad.flatten(), module[1][3].bias.grad]).float()
    torch.testing.assert_close(together[1], expected, rtol=3e-2, atol=1e-2)


def test_only_what_is_named_is_trained_and_the_rest_is_constant() -> None:
    p = problem(conv(0.0, norm=False), train=["5.weight", "7.*"])
    whole = problem(conv(0.0, norm=False))
    assert list(p.flat.views(p.initial())) == ["5.weight", "7.weight", "7.bias"]
    g, everything = gradients(p, [0, 1]), gradients(whole, [0, 1])
    for row in (0, 1):
        expected = whole.flat.views(everything[row])
        for name, value in p.flat.views(g[row]).items():
            torch.testing.assert_close(value, expected[name])


def test_wrong_names_of_parts_are_refused() -> None:
    with pytest.raises(
        SettingError, match=r"train = 'head.\*': no trained parameter has such a name; there are 0.weight"
    ):
        Flat(conv(), train="head.*")
    with pytest.raises(
        SettingError, match=r"personal = '0.\*': no trained parameter has such a name; there are 7.weight"
    ):
        Flat(conv(), train="7.*", personal=["7.bias", "0.*"])
    with pytest.raises(SettingError, match="nothing would be learnt jointly"):
        Flat(conv(norm=False), personal="*")
    with pytest.raises(SettingError, match=r"train = \[\]: name at least one parameter"):
        Flat(conv(), train=[])
    with pytest.raises(SettingError, match="precision = 'half': must be one of single, tf32, bf16"):
        Flat(conv(), precision="half")  # type: ignore[arg-type]


class Tied(nn.Module):
    """Two layers with one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3, bias=False), nn.Linear(3, 3)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))


def test_a_pattern_that_matches_a_shared_parameter_by_one_of_its_names_only_is_refused() -> None:
    for setting in ("train", "personal"):
        with pytest.raises(SettingError, match=rf"{setting} = 'last.\*': last.weight is first.weight by another name"):
            Flat(Tied(), **{setting: "last.*"})  # type: ignore[arg-type]
    assert Flat(Tied(), train=["first.*", "last.*"]).dim == 12
    assert Flat(Tied(), train="last.bias").dim == 3


# Half precision


def test_bf16_rounds_the_products_and_leaves_vectors_and_evaluations_in_single_precision() -> None:
    single, p = problem(conv(0.0)), problem(conv(0.0), precision="bf16")
    g, exact = gradients(p, EVERYBODY), gradients(single, EVERYBODY)
    assert g.dtype == torch.float32
    assert 1e-4 < float((g - exact).norm() / exact.norm()) < 3e-2
    for client in EVERYBODY:
        alone = gradients(p, [client])[0]
        assert float((g[client] - alone).norm() / alone.norm()) < 3e-2
    w = p.initial().unsqueeze(0)
    assert p.measure(w) == single.measure(w)
    assert not torch.is_autocast_enabled("cpu")


def test_bf16_replaces_closed_forms_which_know_single_precision_only() -> None:
    from offbeat.models.linear import Softmax

    p = problem(Softmax((2, 8, 8), 3), precision="bf16")
    assert p.closed is None
    assert problem(Softmax((2, 8, 8), 3)).closed is not None
    assert gradients(p, [0, 1]).shape == (2, p.dim)
