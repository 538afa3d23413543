"""The networks: shapes, sizes, first parameters, and a user's own."""

import pytest
import torch
from torch import nn

from offbeat.core.errors import SettingError
from offbeat.models import NAMES, build

GREY, COLOUR, TEXT = (1, 28, 28), (3, 32, 32), (80,)


def inputs(shape, count=2, classes=10):
    if len(shape) == 1:
        return torch.randint(0, classes, (count, *shape))
    return torch.rand(count, *shape)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("softmax", GREY, 10, 7840),
        ("softmax", (1, 8, 8), 10, 640),
        ("linear", GREY, 1, 785),
        ("mlp", GREY, 10, 784 * 200 + 200 + 200 * 100 + 100 + 100 * 10 + 10),
        ("mlp", COLOUR, 10, 3072 * 200 + 200 + 200 * 100 + 100 + 100 * 10 + 10),
        ("lenet5", GREY, 10, 61_706),
        ("lenet5", COLOUR, 10, 62_006),
        ("cnn", COLOUR, 10, 75 * 32 + 32 + 800 * 64 + 64 + 1600 * 512 + 512 + 512 * 10 + 10),
        ("cnn", GREY, 10, 25 * 32 + 32 + 800 * 64 + 64 + 1024 * 512 + 512 + 512 * 10 + 10),
        ("cifar-cnn", COLOUR, 10, 797_962),
        ("lstm", TEXT, 80, 80 * 8 + 4 * 256 * (8 + 256 + 2) + 4 * 256 * (512 + 2) + 256 * 80 + 80),
        ("resnet18-gn", COLOUR, 10, 11_173_962),
    ],
)
def test_models_have_the_published_sizes_and_one_output_per_class(name, shape, classes, parameters):
    model = build(name, shape, classes, seed=0)
    assert sum(p.numel() for p in model.parameters()) == parameters
    with torch.no_grad():
        assert model(inputs(shape)).shape == (2, classes)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("softmax", "linear", "huggingface")])
def test_equal_seeds_give_equal_parameters_and_leave_the_global_state_alone(name):
    shape = TEXT if name in ("lstm", "gpt") else COLOUR
    before = torch.get_rng_state()
    first, second, third = (next(build(name, shape, 10, seed).parameters()) for seed in (3, 3, 2**64 - 1))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    assert torch.equal(torch.get_rng_state(), before)


def test_softmax_regression_starts_at_zero():
    """AREA eq. (4) has one weight vector per class and no bias."""
    model = build("softmax", GREY, 10, seed=0)
    assert [p.shape for p in model.parameters()] == [(10, 784)]
    assert not any(p.any() for p in model.parameters())
    assert sum(p.numel() for p in build("softmax", GREY, 10, 0, bias=True).parameters()) == 7850


def test_options_reach_the_model():
    sizes = [tuple(p.shape) for p in build("mlp", (4,), 3, 0, hidden=[5]).parameters()]
    assert sizes == [(5, 4), (5,), (3, 5), (3,)]
    assert build("lstm", TEXT, 80, 0, hidden=16, layers=1).lstm.hidden_size == 16
    lenet = build("lenet5", GREY, 10, 0, padding=0, rectified=True)  # as in FedAST's demonstration: 16 · 4 · 4 = 256
    assert lenet.full[0].in_features == 256
    assert lenet(inputs(GREY)).min() == 0.0


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("lenet", GREY, {}, "unknown; did you mean 'lenet5'"),
        ("mlp", GREY, {"hiden": [3]}, "unknown option of the model mlp: 'hiden'; did you mean 'hidden'"),
        ("mlp", GREY, {"hidden": [0]}, r"hidden\[0\] = 0: must be at least 1"),
        ("lenet5", (1, 8, 8), {}, "lenet5 needs images of at least 12 pixels a side, not 8; use mlp"),
        ("cnn", (1, 8, 8), {}, "cnn needs images of at least 16"),
        ("cnn", TEXT, {}, r"takes square images .* \[80\]"),
        ("resnet18-gn", TEXT, {}, "takes images"),
        ("resnet18-gn", COLOUR, {"groups": 5}, "groups = 5: has to divide"),
        ("lstm", GREY, {}, "takes windows of tokens"),
        ("lstm", TEXT, {"layers": 0}, "layers = 0"),
        ("gpt", TEXT, {"dropout": 1.0}, r"dropout = 1.0: must be in \[0, 1\)"),
        ("offbeat.models.conv:DropoutCNN", COLOUR, {"dropout": 1.0}, r"dropout = 1.0: must be in \[0, 1\)"),
        ("nowhere.at_all:make", GREY, {}, "no module 'nowhere.at_all'; it was not found next to"),
        (":make", GREY, {}, "unknown; known: cifar-cnn"),
        ("torch.nn:Liner", GREY, {}, "the module 'torch.nn' has no 'Liner'"),
        ("torch:pi", GREY, {}, "not callable"),
        ("builtins:dict", GREY, {}, "gave a dict, not a torch.nn.Module"),
    ],
)
def test_models_that_cannot_be_are_refused_with_a_reason(name, shape, options, message):
    with pytest.raises(SettingError, match=message):
        build(name, shape, 10, 0, **options)


def test_no_classes_are_refused():
    with pytest.raises(SettingError, match="classes = 0"):
        build("mlp", GREY, 0, 0)


OWN = """
from torch import nn
def plain(): return nn.Linear(3, 2)
def adapts(shape, classes, width=4): return nn.Sequential(nn.Linear(shape[0], width), nn.Linear(width, classes))
def takes_all(**settings): return nn.Linear(settings["shape"][0], settings["classes"])
class Nested:
    net = staticmethod(plain)
import_error = 1
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "offbeat_test_own.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_users_factory_gets_what_it_asks_for(own):
    assert build("offbeat_test_own:plain", (7,), 5, 0).in_features == 3
    assert build("offbeat_test_own:Nested.net", (7,), 5, 0).in_features == 3
    assert build("offbeat_test_own:takes_all", (7,), 5, 0).out_features == 5
    net = build("offbeat_test_own:adapts", (7,), 5, 0, width=6)
    assert [tuple(layer.weight.shape) for layer in net] == [(6, 7), (5, 6)]
    assert torch.equal(
        build("offbeat_test_own:plain", (7,), 5, 9).weight, build("offbeat_test_own:plain", (7,), 5, 9).weight
    )


def test_a_users_factory_is_not_handed_options_it_has_not(own):
    with pytest.raises(SettingError, match="unknown option of the model offbeat_test_own:plain: 'width'"):
        build("offbeat_test_own:plain", (7,), 5, 0, width=6)


def test_a_module_that_fails_to_import_says_why(tmp_path, monkeypatch):
    (tmp_path / "offbeat_test_broken.py").write_text("import a_library_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingError, match="No module named 'a_library_nobody_has'"):
        build("offbeat_test_broken:make", (7,), 5, 0)


def test_a_model_class_can_be_named_too():
    assert isinstance(build("offbeat.models.linear:MLP", (7,), 5, 0, hidden=(3,)), nn.Module)
