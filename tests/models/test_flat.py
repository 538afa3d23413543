"""A module as a function of one flat vector."""

import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from offbeat.core.errors import ModelError, SettingError
from offbeat.models import Flat, build
from offbeat.models.flat import forward

SMALL = {  # every model, with sizes that keep the tests quick
    "softmax": ((1, 8, 8), {}),
    "mlp": ((1, 8, 8), {}),
    "lenet5": ((1, 12, 12), {}),
    "cnn": ((1, 16, 16), {}),
    "cifar-cnn": ((3, 16, 16), {}),
    "lstm": ((6,), {"hidden": 8}),
    "resnet18-gn": ((1, 8, 8), {}),
}


def case(name, copies=1):
    """(flat, its vector, inputs [copies, 2, ...], labels [2])"""
    shape, options = SMALL[name]
    torch.manual_seed(0)
    x = torch.randint(0, 10, (copies, 2, *shape)) if name == "lstm" else torch.rand(copies, 2, *shape)
    flat = Flat(build(name, shape, 10, seed=1, **options))
    return flat, flat.initial() + 0.01, x, torch.tensor([3, 7])


def set_parameters(module, vector):
    torch.nn.utils.vector_to_parameters(vector, module.parameters())


@pytest.mark.parametrize("name", SMALL)
def test_the_vector_round_trips_through_the_modules_parameters(name):
    flat, vector, _, _ = case(name)
    assert vector.shape == (flat.dim,)
    views = flat.views(vector)
    assert torch.equal(torch.cat([v.flatten() for v in views.values()]), vector)
    assert {n: v.shape for n, v in views.items()} == {n: p.shape for n, p in flat.module.named_parameters()}
    assert next(iter(views.values())).data_ptr() == vector.data_ptr()


@pytest.mark.parametrize("name", SMALL)
def test_value_and_gradient_are_the_modules_own(name):
    flat, vector, x, y = case(name)
    vector.requires_grad_()
    cross_entropy(flat(vector, x[0]), y).backward()
    set_parameters(flat.module, vector.detach())
    loss = cross_entropy(flat.module(x[0]), y)
    own = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(flat.module.parameters()))])
    torch.testing.assert_close(vector.grad, own)
    torch.testing.assert_close(flat(vector, x[0]), flat.module(x[0]))


@pytest.mark.parametrize("name", [name for name in SMALL if name != "lstm"])
def test_gradients_of_stacked_vectors_equal_a_loop(name):
    flat, vector, x, y = case(name, copies=2)
    assert flat.vmappable
    gradient = grad(lambda w, inputs: cross_entropy(flat(w, inputs), y))
    vectors = torch.stack([vector, vector * 1.1])
    loop = torch.stack([gradient(w, inputs) for w, inputs in zip(vectors, x, strict=True)])
    torch.testing.assert_close(vmap(gradient)(vectors, x), loop, rtol=1e-3, atol=1e-5)


def test_the_lstm_s_own_stacked_form_gives_the_outputs_and_gradients_of_one_at_a_time():
    flat, vector, x, y = case("lstm", copies=3)
    vectors = torch.stack([vector, vector * 1.5, vector - 0.1]).requires_grad_()
    outputs = flat.stacked(vectors, x)
    (slopes,) = torch.autograd.grad(sum(cross_entropy(rows, y) for rows in outputs), vectors)
    for row, inputs, output, slope in zip(vectors.detach(), x, outputs, slopes, strict=True):
        pieces = [piece.requires_grad_() for piece in flat.pieces(row)]
        alone = flat.alone(pieces, forward, inputs)
        torch.testing.assert_close(output, alone)
        expected = torch.autograd.grad(cross_entropy(alone, y), pieces)
        torch.testing.assert_close(slope, torch.cat([piece.reshape(-1) for piece in expected]))


def test_the_kinds_that_executors_ask_about_are_told_apart():
    flags = {name: (flat.vmappable, flat.convolutional) for name in SMALL for flat in [case(name)[0]]}
    assert flags["mlp"] == flags["softmax"] == (True, False)
    assert flags["cnn"] == flags["resnet18-gn"] == (True, True)
    assert flags["lstm"] == (False, False)
    assert not Flat(nn.GRUCell(2, 2)).vmappable


def test_recurrent_layers_still_have_no_batching_rule():
    """When this fails, torch has learnt it and `vmappable` can let them through."""
    flat, vector, x, _ = case("lstm")
    with pytest.raises(RuntimeError, match="Batching rule not implemented"):
        vmap(lambda w: flat(w, x[0]))(vector.expand(2, -1))


def test_the_module_and_the_vector_stay_as_they_were():
    flat, vector, x, y = case("mlp")
    before, kept = flat.initial(), vector.clone()
    grad(lambda w: cross_entropy(flat(w, x[0]), y))(vector)
    assert torch.equal(flat.initial(), before)
    assert torch.equal(vector, kept)
    flat.initial().zero_()
    assert torch.equal(flat.initial(), before)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 3), nn.Linear(3, 3)
        self.outer.weight = self.inner.weight

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)))


def test_a_shared_parameter_counts_once_and_gets_both_gradients():
    module, x = Tied(), torch.rand(2, 3)
    flat = Flat(module)
    assert flat.dim == 9 + 3 + 3
    vector = flat.initial().requires_grad_()
    flat(vector, x).square().sum().backward()
    module(x).square().sum().backward()
    own = torch.cat([p.grad.flatten() for p in module.parameters()])
    torch.testing.assert_close(vector.grad, own)


def test_a_shared_parameter_may_be_named_by_both_of_its_names():
    flat = Flat(Tied(), train=["inner.weight", "outer.weight"])
    assert flat.dim == 9
    with pytest.raises(SettingError, match=r"outer\.weight is inner\.weight by another name"):
        Flat(Tied(), train="outer.weight")


@pytest.mark.parametrize("turned", [False, True])
def test_two_parameters_in_one_memory_are_refused(turned):
    """An optimiser of torch would move both; here they would be two."""
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight.data = module[0].weight.data.T if turned else module[0].weight.data
    with pytest.raises(ModelError, match=r"'0\.weight' and '1\.weight' share memory"):
        Flat(module)


def test_parameters_side_by_side_in_one_memory_are_two():
    module, both = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), torch.rand(6, 3)
    module[0].weight.data, module[1].weight.data = both[:3], both[3:]
    assert Flat(module).dim == 24


def test_frozen_parameters_and_buffers_are_constants():
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    module[0].weight.requires_grad_(False)
    module[0].register_buffer("offset", torch.ones(1, dtype=torch.float64))
    flat, x = Flat(module), torch.rand(5, 3)
    assert flat.dim == 4 + 8 + 2
    assert flat.initial().dtype == torch.float32
    torch.testing.assert_close(flat(flat.initial(), x), module(x.double()).float())
    assert flat(torch.zeros(flat.dim), x).abs().sum() == 0
    assert module[0].weight.dtype == torch.float64


def test_a_vector_of_another_length_is_refused():
    flat = Flat(nn.Linear(2, 2))
    with pytest.raises(ModelError, match=r"vector of 6 parameters, not \[7\]"):
        flat.views(torch.zeros(7))


class First(nn.Module):
    def forward(self, several):
        return several[0]


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)),
        nn.Sequential(nn.Conv1d(1, 2, 3), nn.InstanceNorm1d(2, affine=True, track_running_stats=True)),
    ],
)
def test_running_statistics_are_refused_on_request_with_the_layer_s_name(module):
    with pytest.raises(ModelError, match=r"layer '1' \((Batch|Instance)Norm.*use GroupNorm .*statistics = \"average\""):
        Flat(module, statistics="refuse")
    assert Flat(module.eval(), statistics="refuse").running is None  # they are constants there


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.BatchNorm1d(2, momentum=None)), r"layer '0' \(BatchNorm1d\) .*set momentum=0.1"),
        (nn.LSTM(2, 2, 2, dropout=0.5), r"layer 'itself' \(LSTM\) .*set dropout=0"),
        (nn.Sequential(nn.Linear(2, 2), nn.RReLU()), "RReLU.*LeakyReLU"),
        (nn.Embedding(4, 2, sparse=True), "sparse gradients"),
        (nn.Embedding(4, 2, max_norm=1.0), "in place"),
        (nn.Sequential(nn.ReLU()), "no parameter to train"),
        (nn.Linear(2, 2).requires_grad_(False), "no parameter to train"),
        (nn.LazyLinear(3), "parameter 'weight' is lazy.*run the module once"),
        (nn.Linear(2, 2, dtype=torch.complex64), "only real numbers"),
    ],
)
def test_modules_that_are_no_function_of_a_vector_are_refused(module, message):
    with pytest.raises(ModelError, match=message):
        Flat(module)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(2, 2), nn.LSTM(2, 2, 2, dropout=0.5, batch_first=True).eval(), First()),
        nn.Sequential(nn.Linear(2, 2), nn.RReLU().eval()),
        nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)),
        nn.Sequential(nn.Linear(2, 2), nn.GroupNorm(1, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0)),
        nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)),
    ],
)
def test_their_harmless_relatives_are_not_refused(module):
    flat = Flat(module)
    assert flat(flat.initial(), torch.rand(4, 2)).shape == (4, 2)


@pytest.mark.parametrize("name", SMALL)
def test_one_clients_pieces_give_the_same_output_and_the_same_gradient(name):
    flat, vector, (x,), y = case(name)
    before = flat.initial()
    pieces = [piece.requires_grad_() for piece in flat.pieces(vector)]
    output = flat.alone(pieces, forward, x)
    torch.testing.assert_close(output, flat(vector, x), rtol=1e-4, atol=1e-5)
    slopes = torch.autograd.grad(cross_entropy(output, y), pieces)
    expected = grad(lambda w: cross_entropy(flat(w, x), y))(vector)
    apart = torch.cat([s.reshape(-1) for s in slopes]) - expected
    assert apart.norm() < 1e-4 * expected.norm()
    assert torch.equal(flat.initial(), before)
    assert all(isinstance(p, nn.Parameter) for p in flat.module.parameters())


class Echo(nn.Module):
    def __init__(self, frozen):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.b.bias.requires_grad_(not frozen)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


@pytest.mark.parametrize("frozen", [True, False])
def test_shared_and_frozen_parameters_are_so_for_one_client_too(frozen):
    flat, x = Flat(Echo(frozen)), torch.rand(4, 3)
    vector = torch.rand(flat.dim)
    torch.testing.assert_close(flat.alone(flat.pieces(vector), forward, x), flat(vector, x))


def test_a_module_that_fails_keeps_its_own_parameters():
    flat = Flat(nn.Linear(3, 3))
    before = flat.initial()
    with pytest.raises(RuntimeError):
        flat.alone(flat.pieces(torch.rand(flat.dim)), forward, torch.rand(4, 7))
    assert torch.equal(flat.initial(), before)
