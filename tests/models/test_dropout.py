"""Masks by key: the same alone and stacked, other ones for every key, call and element."""

import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn import functional as F  # noqa: N812

from offbeat.core.random import draw
from offbeat.models.dropout import Keyed, dropped
from offbeat.models.flat import Flat, forward

KEYS = draw(torch.arange(4), 7)


class Attention(nn.Module):
    def __init__(self, weights=False):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.weights = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True), weights

    def forward(self, x):
        return self.inner(x, x, x, need_weights=self.weights)[0]


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        h = F.dropout(self.linear(x), 0.4, self.training)
        return F.scaled_dot_product_attention(h, h, h, dropout_p=0.3 if self.training else 0.0, is_causal=True)


LAYERS = {
    "Dropout": lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.4), nn.Linear(8, 8), nn.Dropout(0.4)),
    "in place": lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.4, inplace=True), nn.Tanh()),
    "Dropout1d": lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout1d(0.4)),
    "AlphaDropout": lambda: nn.Sequential(nn.Linear(8, 8), nn.AlphaDropout(0.4)),
    "FeatureAlphaDropout": lambda: nn.Sequential(nn.Linear(8, 8), nn.FeatureAlphaDropout(0.4)),
    "MultiheadAttention": Attention,
    "MultiheadAttention with weights": lambda: Attention(weights=True),
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True),
    "functional": Functional,
}


def case(name):
    torch.manual_seed(1)
    flat = Flat(LAYERS[name]())
    flat.random = True  # functions are noticed by the problem that the module is part of
    return flat, flat.initial(), torch.randn(4, 3, 5, 8)


@pytest.mark.parametrize("name", LAYERS)
def test_masks_are_the_same_stacked_and_alone_and_a_new_key_gives_others(name):
    flat, w, x = case(name)
    stacked = vmap(lambda x, key: flat.apply(w, forward, x, key=key))(x, KEYS)
    alone = torch.stack([flat.alone(flat.pieces(w), forward, x[i], key=KEYS[i]) for i in range(4)])
    torch.testing.assert_close(stacked, alone, rtol=1e-5, atol=1e-6)
    assert torch.equal(alone[0], flat.alone(flat.pieces(w), forward, x[0], key=KEYS[0]))
    assert not torch.allclose(alone[0], flat.alone(flat.pieces(w), forward, x[0], key=KEYS[1]), atol=1e-3)


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_go_through_the_same_masks(name):
    flat, w, x = case(name)
    stacked = vmap(grad(lambda w, x, key: flat.apply(w, forward, x, key=key).square().sum()), (None, 0, 0))(w, x, KEYS)
    pieces = flat.pieces(w)
    pieces = flat.pieces(w)
    leaves = flat.leaves(pieces)
    value = flat.alone(pieces, forward, x[2], key=KEYS[2]).square().sum()
    alone = flat.gathered(torch.autograd.grad(value, leaves), pieces)
    assert (stacked[2] - alone).norm() < 1e-5 * alone.norm()


@pytest.mark.parametrize("name", LAYERS)
def test_nothing_is_dropped_in_evaluation_nor_by_a_module_in_eval_mode(name):
    flat, w, x = case(name)
    with flat.evaluating(), torch.no_grad():
        found = flat(w, x[0])
    module = LAYERS[name]().eval()
    nn.utils.vector_to_parameters(w, module.parameters())
    torch.testing.assert_close(found, module(x[0]), rtol=1e-5, atol=1e-6)
    still = Flat(module)
    torch.testing.assert_close(still.apply(w, forward, x[0], key=KEYS[0]), module(x[0]), rtol=1e-5, atol=1e-6)
    assert flat.module.training


@pytest.mark.parametrize(
    ("function", "shape", "whole"),
    [
        (F.dropout, (100, 10, 10), (10_000,)),
        (F.dropout1d, (100, 20, 3), (2000, 3)),
        (F.dropout1d, (2000, 3), (2000, 3)),  # a single sample
        (F.dropout2d, (100, 20, 3, 2), (2000, 6)),
        (F.dropout3d, (100, 20, 3, 2, 2), (2000, 12)),
    ],
)
def test_the_share_of_zeros_is_p_and_channels_fall_as_a_whole(function, shape, whole):
    with Keyed(KEYS[0]) as mode:
        found = function(torch.ones(shape), 0.3, True)
    rows = found.reshape(whole)
    assert mode.calls == 1
    assert abs(float((found == 0).float().mean()) - 0.3) < 0.03
    torch.testing.assert_close(found[found != 0], torch.full_like(found[found != 0], 1 / 0.7))
    assert len(whole) == 1 or bool((rows == rows[:, :1]).all())


@pytest.mark.parametrize("function", [F.dropout, F.dropout1d, F.alpha_dropout])
def test_in_place_the_input_is_what_is_left(function):
    x = torch.ones(4, 50, 2)
    with Keyed(KEYS[0]):
        found = function(x, 0.5, True, inplace=True)
    assert torch.equal(x, found)
    assert 0 < int((x != x.max()).sum()) < x.numel()


def test_alpha_dropout_keeps_mean_and_variance_and_torch_s_values():
    x = torch.randn(100_000)
    with Keyed(KEYS[0]):
        found = F.alpha_dropout(x, 0.3, True)
    assert abs(float(found.mean())) < 0.02
    assert abs(float(found.std()) - 1) < 0.02
    torch.testing.assert_close(found.mode().values, F.alpha_dropout(x, 0.3, True).mode().values)


def test_attention_with_a_mask_is_that_of_torch_where_nothing_falls():
    q, k, v, mask = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8), torch.rand(5, 6) > 0.3
    mask[:, 0] = True
    for given in ({"attn_mask": mask}, {"attn_mask": torch.randn(5, 6)}, {"is_causal": True, "scale": 0.1}):
        with Keyed(KEYS[0]):
            found = F.scaled_dot_product_attention(q, k, v, dropout_p=1e-12, enable_gqa=True, **given)
        torch.testing.assert_close(found, F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **given))


def test_masks_for_many_models_at_once_are_those_of_the_same_calls_alone():
    x, found = torch.randn(4, 3, 5), []
    for i in range(4):
        with Keyed(KEYS[i]):
            found.append(torch.stack([F.dropout(x[i], 0.4), F.dropout(x[i], 0.4)]))
    assert torch.equal(torch.stack([dropped(x, KEYS, call, 0.4) for call in (1, 2)], 1), torch.stack(found))


def test_torch_s_own_random_state_is_neither_read_nor_moved():
    flat, w, x = case("TransformerEncoderLayer")
    state = torch.get_rng_state()
    once = flat.apply(w, forward, x[0], key=KEYS[0])
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(5)
    assert torch.equal(once, flat.apply(w, forward, x[0], key=KEYS[0]))
