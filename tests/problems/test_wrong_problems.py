"""What does not fit together is named in one line before the first job: which column, its value, and what to do."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import offbeat as ob
from offbeat.core.errors import OffbeatError
from offbeat.data import dataset
from offbeat.data.base import Dataset

N = 30
G = torch.Generator().manual_seed(0)
X, Y, REAL = torch.randn(N, 4, generator=G), torch.arange(N) % 3, torch.randn(N, generator=G)
IMAGES = torch.randint(0, 255, (N, 12, 12, 3), generator=G, dtype=torch.uint8)
TOKENS = torch.randint(0, 7, (N, 5), generator=G)


def split(data: Any, outputs: int = 3, width: int = 4, **settings: Any) -> ob.Supervised:
    return ob.Supervised.split(data, **{"clients": 3, "model": nn.Linear(width, outputs), **settings})


def changed(values: Tensor, at: Any, value: float) -> Tensor:
    found = values.clone()
    found[at] = value
    return found


class Made(nn.Module):
    """A linear model with something wrong in what it takes or gives."""

    def __init__(self, forward: Callable[..., Any], width: int = 4, outputs: int = 3) -> None:
        super().__init__()
        self.linear, self.words = nn.Linear(width, outputs), nn.Embedding(7, outputs)
        self.made = forward

    def forward(self, x: Tensor) -> Any:
        return self.made(self, x)


class TwoInputs(Made):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:  # type: ignore[override]
        return self.linear(left + right)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(X[0], 0)])


def squared(output: Tensor, target: Tensor) -> Tensor:
    return (output.squeeze(-1) - target) ** 2


def wide(output: Tensor, target: Tensor) -> Tensor:
    return (output - target) ** 2


def summed(output: Tensor, target: Tensor) -> Tensor:
    return squared(output, target).sum()


def averaged(output: Tensor, target: Tensor) -> Tensor:
    return squared(output, target).mean()


def detached(output: Tensor, target: Tensor) -> Tensor:
    return squared(output.detach(), target)


def masked(output: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    return squared(output, target) * mask


def gathered(output: Tensor, target: Tensor) -> Tensor:
    return -output.log_softmax(1).gather(1, target.unsqueeze(1)).squeeze(1)


def write(label: Tensor) -> Path:
    path = Path(tempfile.mkdtemp()) / "mine.csv"
    path.write_text("\n".join(["a,b,label", *(f"{at % 7},{at % 5},{each}" for at, each in enumerate(label.tolist()))]))
    return path


def raises(output: Tensor, target: Tensor) -> Tensor:
    raise ValueError("my own\nmistake")


def infinite(output: Tensor, target: Tensor) -> Tensor:
    return squared(output, target) / 0


raises.higher = True  # type: ignore[attr-defined]


def unmade() -> nn.Module:
    settings: dict[str, int] = {}
    return nn.Linear(4, settings["depth"])


def misshaped() -> nn.Module:
    return nn.Linear(4, "three")  # type: ignore[arg-type]


PAIRS = Dataset.pairs("made", X, Y, X, Y, 3)
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    # the target's range, type and shape
    "amounts": (
        lambda: split((X, Y - 9), model=nn.Linear(4, 1)),
        "1 output: if 'y' is a quantity, use the loss \"mse\"",
    ),
    "classes from 1, for which a model is made": (
        lambda: split((X, Y + 1), model="softmax"),
        "classes in 'y' run from 1 to 3, and classes start at 0: subtract 1",
    ),
    "ages, for which a model is made": (
        lambda: split((X, Y + 18), model="mlp"),
        'run from 18 to 20, and classes start at 0: subtract 18; for a quantity, use the loss "mse"',
    ),
    "0/1 labels, one output": (
        lambda: split((X, Y > 0), 1),
        "run from 0 to 1, and the model has 1 output: for labels of 0 and 1, use the loss \"bce\"; if 'y'",
    ),
    "classes from 1 in a file": (
        lambda: split(write(Y + 1), model="softmax"),
        "classes in 'label' run from 1 to 3, and classes start at 0: subtract 1",
    ),
    "classes from 1 in a file by its name": (
        lambda: split(str(write(Y + 1)), model="softmax"),
        "classes in 'label' run from 1 to 3, and classes start at 0: subtract 1",
    ),
    "classes from 1 for a loss of one's own": (
        lambda: split((X, Y + 1), loss=nn.CrossEntropyLoss()),
        "CrossEntropyLoss fails on 'y', whose labels run from 1 to 3: IndexError: .*; if they are classes, subtract 1",
    ),
    "too many classes for a loss of one's own": (
        lambda: split((X, changed(Y, 20, 5)), loss=gathered),
        "the loss gathered fails on 'y', whose labels run from 0 to 5: RuntimeError: index 5 is out of bounds",
    ),
    "whole real numbers and softmax": (
        lambda: split((X, Y.double()), model="softmax"),
        "'y' is float64 with whole numbers only, and softmax is a model for classes: cast it to int64; for a quantity, "
        'use the loss "mse"',
    ),
    "accuracy of quantities": (
        lambda: split((X, changed(Y + 1.0, 9, 4.5)), 1, metrics=["accuracy"]),
        "metric accuracy fails on .*: it is for classes, or labels of 0 and 1, and 'y' has the value 4.5; for",
    ),
    "auroc of whole quantities": (
        lambda: split((X, Y), 1, loss="mse", metrics=["auroc"]),
        "and 'y' has the value 2; for quantities use rmse, mae or r2",
    ),
    "the target among the inputs": (
        lambda: split(write(Y), inputs=["a", "label"], target="label"),
        "'label' is the target; take it out of the inputs",
    ),
    "channels last": (
        lambda: split((IMAGES, Y), model=nn.Sequential(nn.Conv2d(3, 1, 3), nn.Flatten(), nn.Linear(100, 3))),
        r"expected input\[2, 12, 12, 3\] .*; channels come first: move the last axis, np.moveaxis",
    ),
    "channels last, cnn": (
        lambda: split((IMAGES, Y), model="cnn"),
        r"the data are \[12, 12, 3\]; channels come first: move the last axis",
    ),
    "channels last, resnet18": (
        lambda: split((IMAGES, Y), model="resnet18"),
        r"the data are \[12, 12, 3\]; channels come first: move the last axis",
    ),
    "a misspelt argument": (
        lambda: split((X, Y), clinets=5),
        "unknown argument of Supervised.split: 'clinets'; did you mean 'clients'",
    ),
    "a seed as text": (lambda: split((X, Y), seed="0"), "seed = '0': must be a whole number"),
    "classes from 1": (lambda: split((X, Y + 1)), "run from 1 to 3, and the model has 3 outputs: subtract 1"),
    "classes from −1": (lambda: split((X, Y - 1)), "run from -1 to 1, .*: classes start at 0"),
    "too many classes": (lambda: split((X, Y), 2), "run from 0 to 2, and the model has 2 outputs: it needs 3"),
    "test classes": (lambda: split((X, Y), test=(X, Y + 1)), "run from 0 to 3, .*: it needs 4"),
    "real classes": (
        lambda: split((X, REAL), loss="cross-entropy"),
        "'y' is float32.*cast it, or use the loss \"mse\"",
    ),
    "one-hot": (lambda: split((X, nn.functional.one_hot(Y))), r"'y' is int64 \[3\] a sample; .*argmax"),
    "a class in a list": (lambda: split((X, Y.unsqueeze(1))), r"'y' is int64 \[1\] a sample; .*squeeze"),
    "outputs": (
        lambda: split((X, REAL), loss="mse"),
        r"'y' is float32 \[\] a sample, and the model returns \[3\] a sample",
    ),
    "a class as a real number": (
        lambda: split((X, Y.float())),
        "give the model one output, or cast classes to whole numbers",
    ),
    "padded numbers": (
        lambda: split({"x": X, "y": [[0.5] * (1 + at % 3) for at in range(N)]}, loss="mse"),
        r"'y' holds lists that were padded, and mse would count the padding: write a loss\(output, target, mask\)",
    ),
    "nan before any is held out": (
        lambda: split((changed(X, (17, 2), np.nan), Y)),
        "'x': sample 17 is not finite; fill it in or leave it out",
    ),
    "nan of a client": (
        lambda: split({"north": (X, REAL), "coast": (X, changed(REAL, 4, np.nan))}),
        "'y': sample 4 of client 'coast' is not finite; fill it in or leave it out, or write -100 for a label that is",
    ),
    "metric of numbers": (
        lambda: split((X, Y), metrics=["rmse"]),
        r"the metric rmse fails on outputs \[2, 3\] and y int64 \[2\]: it takes one output for each number",
    ),
    "mse of classes": (lambda: split((X, Y), loss="mse"), 'for classes use the loss "cross-entropy"'),
    "bce": (
        lambda: split((X, Y), 1, loss="bce"),
        r"'y' has the label 2; labels of bce are in \[0, 1\], or -100 where unknown",
    ),
    "nan target": (
        lambda: split((X, changed(REAL, 7, np.nan)), 1, test=(X, REAL)),
        "'y': training sample 7 is not finite",
    ),
    "nan test": (lambda: split((X, REAL), 1, test=(X, changed(REAL, 3, np.nan))), "'y': test sample 3 is not finite"),
    "inf input": (lambda: split((changed(X, (9, 2), np.inf), Y), test=(X, Y)), "'x': training sample 9 is not finite"),
    # columns and sizes
    "column": (lambda: split({"x": X, "label": Y}, target="labels"), "no column 'labels'; did you mean 'label'"),
    "no target": (lambda: split({"x": X, "price": REAL}), "which column is the target.*there are x, price"),
    "weight": (lambda: split((X, Y), weight="w"), "no column 'w'; known: x, y"),
    "loss's column": (lambda: split((X, REAL), 1, loss=masked), "no column 'mask'; known: x, y"),
    "test column": (lambda: split((X, Y), test={"x": X, "label": Y}), "no column 'y'; known: label, x"),
    "lengths": (lambda: split((X, Y[:9])), "differ in their number of samples: x 30, y 9"),
    "weights": (lambda: split({"x": X, "y": REAL, "w": -X[:, 0].abs()}, 1, weight="w"), "'w': weights run from -"),
    "empty": (lambda: split((X[:0], Y[:0]), test=(X, Y)), "the training set is empty"),
    "empty test": (lambda: split((X, Y), test=(X[:0], Y[:0])), "the test set is empty"),
    "empty data set": (lambda: split(Dataset.pairs("made", X, Y, X[:0], Y[:0], 3)), "the test set is empty"),
    "client without": (
        lambda: ob.Supervised(PAIRS, nn.Linear(4, 3), [np.arange(3), np.arange(0)]),
        "client 1 has no data",
    ),
    "client of nothing": (
        lambda: ob.Supervised.of_clients({"a": (X, Y), "b": (X[:0], Y[:0])}),
        "client 'b' has no samples",
    ),
    "shard": (
        lambda: ob.Supervised(PAIRS, nn.Linear(4, 3), [np.arange(31)]),
        "training sample 30; expected numbers from 0 to 29",
    ),
    "clients": (lambda: split((X, Y), clients=31), "31 clients, but only 24 samples"),
    "stream": (lambda: split(Stream()), "a Stream can only be gone through; give a map-style data set"),
    "loader": (lambda: split(DataLoader(TensorDataset(X, Y))), "give its data set, .dataset"),
    "four arrays": (lambda: split((X, Y, X, Y)), r"4 arrays; give \(x, y\)"),
    "objects": (lambda: split({"x": X, "y": [{"class": 1}] * N}), r"'y' holds objects \(dict\)"),
    "test shape": (
        lambda: split((X, Y), test=(X[:, :3], Y)),
        r"'x' is \[4\] a training sample and \[3\] a test sample",
    ),
    "test type": (
        lambda: split((X, Y), test=(X.long(), Y)),
        "'x' has real numbers to train on and whole ones to test on",
    ),
    # the model
    "width": (lambda: split((X, Y), width=5), r"fails on x float32 \[2, 4\]: .*cannot be multiplied"),
    "whole inputs": (
        lambda: split((TOKENS, Y), width=5),
        r"fails on x int64 \[2, 5\]: .*; cast whole numbers to float",
    ),
    "real tokens": (lambda: split((X, Y), model=Made(lambda m, x: m.words(x).sum(1))), "; cast the column to int64"),
    "token": (
        lambda: split((changed(TOKENS, (20, 3), 9), Y), model=Made(lambda m, x: m.words(x).sum(1))),
        "fails on 'x', whose numbers run from 0 to 9: IndexError: index out of range",
    ),
    "two inputs": (
        lambda: split({"left": X, "y": Y}, model=TwoInputs(lambda m, x: x)),
        "argument: 'right'; .*inputs=…",
    ),
    "output": (
        lambda: split((X, Y), model=Made(lambda m, x: {"out": m.linear(x)})),
        "returns a dict, not a tensor; .*loss",
    ),
    "random": (lambda: split((X, Y), model=Made(lambda m, x: m.linear(x + torch.rand(4)))), "returns other outputs"),
    "probabilities": (
        lambda: split((X, Y), model=nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))),
        "leave its softmax out",
    ),
    "mean of all": (lambda: split((X, Y), model=Made(lambda m, x: m.linear(x).mean(0))), "for two samples"),
    "failing model": (
        lambda: split((X, Y), model=unmade),
        r"model 'unmade' cannot be made: KeyError: 'depth' \(test_wrong_problems.py:\d+, in unmade\)$",
    ),
    "model that torch refuses": (
        lambda: split((X, Y), model=misshaped),
        r"cannot be made: TypeError: .* \(test_wrong_problems.py:\d+, in misshaped\)$",
    ),
    # the loss and the metrics
    "loss's name": (lambda: split((X, REAL), 1, loss="mes"), "unknown loss 'mes'; did you mean 'mse'"),
    "pairwise": (lambda: split((X, REAL), 1, loss=wide), r"returns \[2, 2\] for two samples; return one for each"),
    "sum": (lambda: split((X, REAL), 1, loss=summed), "is a sum, which grows with the batch: take the mean"),
    "weighted mean": (lambda: split({"x": X, "y": REAL, "w": Y}, 1, loss=averaged, weight="w"), "cannot weigh"),
    "detached": (lambda: split((X, REAL), 1, loss=detached), "does not depend on the parameters"),
    "failing loss": (lambda: split((X, REAL), 1, loss=raises), "the loss raises fails on x .*: ValueError: my own$"),
    "infinite": (lambda: split((X, REAL), 1, loss=infinite), "is not finite at the start"),
    "metric's name": (lambda: split((X, Y), metrics=["acuracy"]), "there is no 'acuracy'; did you mean 'accuracy'"),
    "failing metric": (lambda: split((X, Y), metrics=[raises]), "the metric raises fails on .*: ValueError: my own$"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_problem_is_refused_in_one_line(name: str) -> None:
    make, said = WRONG[name]
    with pytest.raises(OffbeatError, match=said) as raised:
        make()
    assert "\n" not in str(raised.value)


RIGHT: dict[str, Callable[[], Any]] = {
    "accuracy of 0/1 labels": lambda: split((X, (Y > 0).float()), 1, loss="mse", metrics=["accuracy"]),
    "accuracy of labels of −1 and 1": lambda: split(
        (X, Y.sub(1).sign().float()), 1, loss=squared, metrics=["accuracy"]
    ),
    "one metric": lambda: split((X, Y), metrics="f1"),
    "whole numbers as quantities": lambda: split((X, Y.float()), model="softmax", loss="mse"),
    "bool labels": lambda: split((X, Y > 0), 2),
    "bytes for labels": lambda: split((X.numpy(), Y.numpy().astype(np.uint8))),
    "int32 labels": lambda: split((X, Y.int())),
    "double inputs": lambda: split((X.double(), Y)),
    "labels that do not count": lambda: split(
        (TOKENS, changed(TOKENS, (slice(None), 0), -100)), model=Made(lambda m, x: m.words(x), outputs=7)
    ),
    "whole numbers as numbers": lambda: split((X, Y), 1, loss="mse"),
    "arrays that cannot be written to": lambda: split((np.broadcast_to(X.numpy()[:1], (N, 4)), Y.numpy())),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_meant_is_accepted(name: str) -> None:
    problem = RIGHT[name]()
    assert np.isfinite(problem.measure(problem.initial().unsqueeze(0))[0]["loss"])


def test_classes_that_nothing_has_may_be_declared() -> None:
    known = changed(Y, 0, -100)
    assert ob.Supervised.split(dataset((X, Y + 1), classes=5), 3, model="softmax").data.classes == 5
    assert ob.Supervised.split((X, known), 3, model="softmax").data.classes == 3
    assert ob.Supervised.split((X, Y + 1), 3, model=nn.Linear(4, 4)).data.classes == 4


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (
            Y.double(),
            r'although all its values are whole numbers; cast it to int64 for classes, or set the loss: "mse"$',
        ),
        ((Y > 0).float(), 'or set the loss: "mse" or, for labels of 0 and 1, "bce"$'),
        (changed(Y.float(), 5, 4.5), "although all its values but some, such as 4.5, are whole numbers"),
        (
            changed(Y, 5, 50),
            "'y' has 51 classes, because its largest label is 50, and 47 of them have no sample; is that",
        ),
    ],
)
def test_a_target_that_may_be_meant_otherwise_is_noted(y: Tensor, said: str) -> None:
    (remark,) = ob.Supervised.split((X, y), 3, model="mlp").data.remarks
    assert re.search(said, remark)


@pytest.mark.parametrize("y", [Y, REAL, torch.arange(N).float()])
def test_other_targets_are_not(y: Tensor) -> None:
    assert ob.Supervised.split((X, y), 3, model="mlp").data.remarks == []
