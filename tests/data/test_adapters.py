"""Whatever users have becomes the data set that they mean."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset, Subset, TensorDataset

import offbeat as ob
from offbeat.core.errors import DataError, SettingError
from offbeat.data import Read, Stored, dataset, samples
from offbeat.problems import supervised

RNG = np.random.default_rng(0)
N = 60
X = RNG.normal(size=(N, 3)).astype(np.float32)
Y = RNG.integers(0, 3, N)
NAMES = np.array(["ann", "bob", "cy"])[Y]
TABLE = pa.table({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "label": Y})


class Items(TorchDataset[Any]):
    """A map-style data set of the same samples."""

    def __init__(self, form: Callable[[int], Any] = lambda i: (X[i], int(Y[i]))) -> None:
        self.form = form

    def __len__(self) -> int:
        return N

    def __getitem__(self, at: int) -> Any:
        return self.form(at)


class Hub:
    """What is used of a HuggingFace data set."""

    __module__ = "datasets.arrow_dataset"
    __qualname__ = "Dataset"

    def __init__(self, table: pa.Table) -> None:
        self.table = self.data = table
        self.features = dict.fromkeys(table.column_names, object())

    def with_format(self, kind: str) -> Hub:
        assert kind == "arrow"
        return self

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, which: Any) -> Any:
        return self.table if isinstance(which, slice) else self.table.slice(which, 1).to_pylist()[0]


Hub.__name__ = "Dataset"


def frame(kind: str) -> Any:
    if kind == "arrow":
        return TABLE
    if kind == "hub":
        return Hub(TABLE)
    package = pytest.importorskip(kind)
    return TABLE.to_pandas() if kind == "pandas" else package.from_arrow(TABLE)


GIVEN = {
    "arrays": lambda: (X, Y),
    "tensors": lambda: (torch.from_numpy(X), torch.from_numpy(Y)),
    "unlike kinds": lambda: (X, torch.from_numpy(Y)),
    "two lists": lambda: (X.tolist(), Y.tolist()),
    "array and list": lambda: (X, Y.tolist()),
    "columns": lambda: {"x": X, "label": Y.astype(np.int32)},
    "lists": lambda: {"x": X.tolist(), "y": Y.tolist()},
    "a TensorDataset": lambda: TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
    "a part of one": lambda: Subset(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), range(N)),
    "pandas": lambda: frame("pandas"),
    "polars": lambda: frame("polars"),
    "Arrow": lambda: frame("arrow"),
    "HuggingFace": lambda: frame("hub"),
    "items": Items,
    "items by name": lambda: Items(lambda i: {"x": X[i], "label": int(Y[i])}),
    "a list of pairs": lambda: [(x, int(y)) for x, y in zip(X, Y, strict=True)],
    "text": lambda: (X, NAMES),
    "frame and series": lambda: (frame("pandas")[["a", "b", "c"]], frame("pandas")["label"]),
}


@pytest.mark.parametrize("name", GIVEN)
def test_the_same_samples_in_any_form_are_the_same_problem(name: str) -> None:
    data = dataset(GIVEN[name]())
    expected = dataset((X, Y))
    assert data.classes == 3
    assert data.inputs == ("x",)
    for part, same in ((data.train, expected.train), (data.test, expected.test)):
        found = part.take(torch.arange(len(same)))
        assert torch.equal(found["x"], same["x"])
        assert torch.equal(found[data.target], same["y"])
    problem = ob.Supervised.split(GIVEN[name](), clients=4, split=ob.data.Dirichlet(0.5))
    expected_problem = ob.Supervised.split((X, Y), clients=4, split=ob.data.Dirichlet(0.5))
    assert np.array_equal(problem.shards.order, expected_problem.shards.order)


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_files_are_tables(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"mine.{ending}"
    _ = pyarrow.parquet.write_table(TABLE, path) if ending == "parquet" else pyarrow.csv.write_csv(TABLE, path)
    data = dataset(str(path), target="label")
    assert torch.allclose(data.train["x"], dataset((X, Y)).train["x"])
    (tmp_path / "mine.txt").write_text("no table")
    with pytest.raises(DataError, match=r"expected a \.parquet or \.csv file"):
        samples(tmp_path / "mine.txt")
    with pytest.raises(DataError, match="no such file or folder"):
        samples(tmp_path / "other.csv")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a;b;label\n1;2;0\n", "has one column, 'a;b;label': columns are separated by commas, not by ';'$"),
        ("a;b;label\n1,5;2;0\n", "Expected 1 columns, got 2: .*; are its columns separated by commas\\?$"),
        ("a,b,label\n", "mine.csv has no rows$"),
    ],
)
def test_a_file_that_is_no_table_with_commas_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(text)
    with pytest.raises(DataError, match=said):
        dataset(tmp_path / "mine.csv")


def test_a_missing_cell_of_a_file_is_named_however_the_path_is_given(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(
        "\n".join(["a,label", *(f"{'' if at in (4, 6, 9) else at},0" for at in range(N))])
    )
    for path in (str(tmp_path / "mine.csv"), tmp_path / "mine.csv"):
        with pytest.raises(
            DataError, match=r"^'a': sample 4 and 2 others are not finite; fill them in or leave them out$"
        ):
            dataset(path)


def test_a_folder_of_images_has_a_class_for_each_folder(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for part, count in (("train", 3), ("test", 1)):
        for shade, name in enumerate(("cat", "dog")):
            (tmp_path / part / name).mkdir(parents=True)
            for at in range(count):
                image.new("RGB", (4, 5), (shade * 50, at, 255)).save(tmp_path / part / name / f"{at}.png")
    data = dataset(tmp_path)
    assert (len(data.train), len(data.test), data.classes) == (6, 2, 2)
    found = data.train.take(torch.tensor([3]))
    assert found["x"].shape == (1, 3, 5, 4)
    assert found["x"][0, 0, 0, 0] == torch.tensor(50) * (1 / 255)
    assert found["y"].tolist() == [1]


def test_training_and_test_samples_may_come_together() -> None:
    for given in (((X[:50], Y[:50]), (X[50:], Y[50:])), {"train": (X[:50], Y[:50]), "test": (X[50:], Y[50:])}):
        data = dataset(given)
        assert (len(data.train), len(data.test)) == (50, 10)
    with_test = dataset((X, Y), test=(X[:7], Y[:7]))
    assert (len(with_test.train), len(with_test.test)) == (N, 7)


def test_a_share_is_held_out_of_every_client_and_never_all_of_it() -> None:
    client = np.repeat(["b", "a", "c"], [40, 19, 1])
    data = dataset({"x": X, "y": Y, "who": client}, client="who", holdout=0.25)
    assert data.owners == ("a", "b", "c")
    assert data.inputs == ("x",)
    assert data.owner is not None
    assert data.test_owner is not None
    assert np.bincount(data.test_owner.numpy()).tolist() == [5, 10]
    assert np.bincount(data.owner.numpy()).tolist() == [14, 30, 1]


def test_a_table_becomes_one_input_unless_the_model_names_its_columns() -> None:
    class ByName(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 3)

        def forward(self, c: Tensor, a: Tensor) -> Tensor:
            return self.linear(torch.stack([a, c], 1))

    problem = ob.Supervised.split(TABLE, clients=2, model=ByName())
    assert problem.data.inputs == ("c", "a")
    assert ob.Supervised.split(TABLE, clients=2, model=nn.Linear(3, 3)).data.inputs == ("x",)
    assert ob.Supervised.split(TABLE, clients=2, model=nn.Linear(2, 3), inputs=["c", "a"]).data.shape == (2,)
    assert ob.Supervised.split(TABLE, clients=2, model=lambda: ByName()).data.inputs == ("c", "a")


def test_bytes_are_pixels_unless_they_are_the_target() -> None:
    pixels = np.full((6, 2, 2), 255, np.uint8)
    labels = np.ones((6, 4), np.uint8)
    data = dataset({"x": pixels, "y": labels}, whole=False)
    found = data.train.take(torch.tensor([0]))
    assert found["x"].max() == 1.0
    assert found["y"].tolist() == [[1, 1, 1, 1]]
    lazy = dataset([{"x": x, "y": y} for x, y in zip(pixels, labels, strict=True)], whole=False)
    assert all(torch.equal(value, found[name]) for name, value in lazy.train.take(torch.tensor([0])).items())


def test_lists_of_unlike_lengths_are_padded_and_padding_does_not_count() -> None:
    given = {"input_ids": [[1, 2, 3], [4], [5, 6]], "labels": [[1, 2, 3], [4], [5, 6]]}
    for each in (given, pa.table(given)):
        data = dataset(each, test=each)
        assert data.train["input_ids"].tolist() == [[1, 2, 3], [4, 0, 0], [5, 6, 0]]
        assert data.train["labels"].tolist() == [[1, 2, 3], [4, -100, -100], [5, 6, -100]]
        assert data.train["mask"].tolist() == [[True] * 3, [True, False, False], [True, True, False]]
        assert data.inputs == ("input_ids",)


def test_a_text_that_is_its_own_target_does_not_count_where_it_is_padded() -> None:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)

        def forward(self, input_ids: Tensor) -> Tensor:
            return self.head(self.words(input_ids))

    texts = [[*list(range(1, 2 + at % 5)), 0] for at in range(40)]
    table = pa.table({"input_ids": texts, "speaker": [f"s{at % 4}" for at in range(40)], "text": ["…"] * 40})
    problem = ob.Supervised.split(
        Hub(table),
        clients=4,
        split=ob.data.Owners("speaker"),
        model=Language(),
        loss="next-token",
        metrics=["perplexity"],
    )
    assert problem.data.owners == ("s0", "s1", "s2", "s3")
    assert problem.data.inputs == ("input_ids",)
    counts = (problem.data.train[problem.data.target] != -100).sum(1)
    assert torch.equal(counts, problem.data.train["mask"].sum(1))
    assert problem.measure(problem.initial().unsqueeze(0))[0]["perplexity"] > 1


def test_clients_keep_their_names_their_order_and_their_own_test_samples() -> None:
    sites = {"z": (X[:20], Y[:20]), "a": (X[20:], Y[20:])}
    problem = ob.Supervised.of_clients(sites, model="softmax")
    assert problem.data.owners == ("z", "a")
    assert problem.shards.sizes.tolist() == [16, 32]
    assert [len(share) for share in problem.test_shares] == [4, 8]
    shared = ob.Supervised.of_clients(sites, test=(X[:9], Y[:9]))
    assert (shared.shards.sizes.tolist(), len(shared.data.test)) == ([20, 40], 9)
    own = ob.Supervised.of_clients(sites, test={"z": (X[:3], Y[:3]), "a": (X[:5], Y[:5])})
    assert [len(share) for share in own.test_shares] == [3, 5]
    same = ob.Supervised.split(sites, clients=2)
    assert np.array_equal(same.shards.order, problem.shards.order)


def test_clients_of_unlike_kinds_are_one_data_set() -> None:
    mixed = {"memory": (X, Y), "items": Items(), "frame": {"x": X, "y": Y}}
    problem = ob.Supervised.of_clients(mixed, test=(X, Y), model=nn.Linear(3, 3))
    assert isinstance(problem.data.train, Read)
    expected = ob.Supervised.of_clients(dict.fromkeys(mixed, (X, Y)), test=(X, Y), model=nn.Linear(3, 3))
    for client in range(3):
        which = torch.from_numpy(problem.shards[client])
        for found, same in zip(problem.samples(which), expected.samples(which), strict=True):
            assert torch.equal(found, same)


def test_words_of_clients_and_of_test_samples_are_numbered_together() -> None:
    sites = {"one": (X[:30], np.array(["b", "c"] * 15)), "two": (X[30:], np.array(["a", "c"] * 15))}
    data = dataset(sites, test=(X[:2], np.array(["d", "b"])))
    assert data.train["y"][[0, 1, 30, 31]].tolist() == [1, 2, 0, 2]
    assert data.test["y"].tolist() == [3, 1]
    assert data.classes == 4


def test_lists_of_clients_are_padded_to_the_longest_of_all() -> None:
    one = pa.table({"ids": [[1], [2, 3]] * 2, "y": [0, 1] * 2})
    two = pa.table({"ids": [[1, 2, 3]] * 2, "y": [0, 1]})
    for given in ({"one": one, "two": two}, {"two": two, "one": one}):
        data = dataset(given, test=two)
        assert sorted(data.train["mask"].sum(1).tolist()) == [1, 1, 2, 2, 3, 3]
        assert data.train["ids"].shape == (6, 3)


def test_missing_numbers_and_missing_words_are_not_taken_for_values() -> None:
    table = pa.table({"a": [1.0, None, 2.0, 3.0], "y": pa.array([1, None, 0, 1])})
    with pytest.raises(DataError, match="'a': training sample 1 is not finite"):
        ob.Supervised.split(table, clients=1, test=table, loss="mse", model=nn.Linear(1, 1))
    named = pa.table({"a": [1.0, 4.0, 2.0, 3.0], "y": ["u", None, "v", "u"]})
    with pytest.raises(DataError, match="run from -1 to 1"):
        ob.Supervised.split(named, clients=1, test=named)


def test_a_missing_number_is_named_by_its_own_column() -> None:
    table = pa.table({"age": [1.0, 2.0, 3.0], "bmi": [1.0, 2.0, None], "y": [1.0, 0.0, 1.0]})
    with pytest.raises(DataError, match=r"^'bmi': sample 2 is not finite"):
        dataset(table)
    with pytest.raises(DataError, match=r"^'bmi': test sample 2 is not finite"):
        dataset(table.slice(0, 2), test=table)


def test_scikit_learn_s_data_sets_are_taken_as_they_come() -> None:
    from sklearn.datasets import load_diabetes

    data = dataset(load_diabetes(), whole=False)
    assert data.shape == (10,)
    assert len(data.train) + len(data.test) == 442


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: None, "a NoneType is not a data set"),
    "iterator": (lambda: iter([(X[0], 1)]), "can only be gone through; give a map-style data set"),
    "no target": (lambda: {"x": X, "price": Y}, "which column is the target.*there are x, price"),
    "unequal": (lambda: {"x": X, "y": Y[:9]}, "differ in their number of samples: x 60, y 9"),
    "empty": (lambda: (X[:0], Y[:0]), "the training set is empty"),
    "one sample": (lambda: (X[:1], Y[:1]), "one sample cannot be trained on and tested on"),
    "empty test": (lambda: ((X, Y), (X[:0], Y[:0])), "the test set is empty"),
    "no clients": (dict, "no clients: the mapping"),
    "empty client": (lambda: {"a": (X, Y), "b": (X[:0], Y[:0])}, "client 'b' has no samples; leave it out"),
    "wrong client": (lambda: {"a": (X, Y), "b": 3}, "client 'b': a int is not a data set"),
    "other columns": (
        lambda: {"a": (X, Y), "b": {"x": X, "z": Y}},
        "client 'b' has the columns x, z, and 'a' has x, y",
    ),
    "other shapes": (lambda: {"a": (X, Y), "b": (X[:, :2], Y)}, r"'x' is \[2\] a sample for client 'b', and \[3\]"),
    "dates": (lambda: {"x": np.zeros(3, "datetime64[s]"), "y": Y[:3]}, "'x' is datetime64.*convert it to numbers"),
    "objects": (lambda: {"x": [object()] * 3, "y": Y[:3]}, "'x' holds objects"),
    "empty list": (lambda: {"x": [[1, 2], [], [3]], "y": Y[:3]}, "'x': sample 1 is an empty list; leave it out"),
    "a number among lists": (lambda: {"x": [np.array(1), np.ones(2), np.ones(1)], "y": Y[:3]}, "'x' holds objects"),
    "complex": (lambda: (torch.zeros(3, 2, dtype=torch.complex64), Y[:3]), "'x' is complex64; give its parts"),
    "only text": (lambda: {"name": NAMES, "y": Y}, "no numeric column to use as input; columns of text: name"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_data_set_is_refused_in_one_line(name: str) -> None:
    given, said = WRONG[name]
    with pytest.raises((DataError, SettingError), match=said) as raised:
        dataset(given())
    assert "\n" not in str(raised.value)


def test_columns_that_are_named_have_to_be_there_and_to_be_of_use() -> None:
    table = pa.table({"a": X[:, 0], "when": pa.array([0] * N, pa.timestamp("s")), "city": NAMES, "y": Y})
    assert dataset(table).train.names == ("x", "city", "y")
    with pytest.raises(DataError, match="no column 'price'; known: a, city, y"):
        dataset(table, target="price")
    with pytest.raises(DataError, match="'when' is a date; make numbers of it"):
        dataset(table, target="when")
    with pytest.raises(DataError, match="'city' is text; make numbers of it"):
        dataset(table, inputs=["a", "city"])
    with pytest.raises(SettingError, match="holdout = 0"):
        dataset(table, holdout=0)


def test_columns_that_are_left_out_are_named_with_the_reason_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised, "_NOTED", set())
    ages = [str(20 + at) if at != 7 else "unknown" for at in range(N)]
    table = pa.table({"a": X[:, 0], "age": ages, "city": NAMES, "when": pa.array([0] * N, pa.date32()), "label": Y})
    pyarrow.csv.write_csv(table, tmp_path / "mine.csv")
    said = (
        "not used as inputs: 'when' is a date; 'age' is text, because of values such as 'unknown' in sample 7; "
        "'city' is text; make numbers of those that you need"
    )
    for given in (table, tmp_path / "mine.csv"):
        assert dataset(given).remarks == dataset(given).as_inputs("standard").remarks == [said]
        ob.Supervised.split(given, clients=3)
    assert caplog.messages == [f"data: {said}"]
    assert dataset(table, inputs=["a"]).remarks == []
    assert "'city'" not in dataset(table, client="city").remarks[0]
    assert "'city'" not in ob.Supervised.split(table, 3, ob.data.Dirichlet(1.0, by="city")).data.remarks[0]
    parts = {"north": table.slice(0, 5), "coast": table.slice(5)}
    assert "such as 'unknown' in sample 2 of client 'coast'" in dataset(parts).remarks[0]


def test_a_column_that_only_counts_the_samples_is_named() -> None:
    table = pa.table({"": np.arange(N), "a": X[:, 0], "label": Y})
    found = dataset({"north": table, "coast": table.slice(0, 20)})
    assert found.remarks == ["the column '' only counts the samples, and is an input; leave it out of the data"]
    assert dataset(table.rename_columns(["b", "a", "label"])).remarks == []


def test_packages_that_are_not_given_are_not_imported() -> None:
    import subprocess
    import sys

    code = (
        "import sys, numpy as np, offbeat as ob\n"
        "ob.Supervised.split((np.zeros((9, 2)), np.arange(9) % 2), clients=2)\n"
        "print([m for m in ('pandas', 'polars', 'datasets', 'torchmetrics', 'pyarrow', 'PIL') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", done.stdout


def test_a_data_set_of_offbeat_s_own_is_taken_as_it_is() -> None:
    data = dataset("digits")
    assert data is dataset(data)
    assert isinstance(data.train, Stored)
    assert importlib.import_module("offbeat.data").load("digits") is data


def test_a_problem_and_its_data_say_in_one_line_what_was_understood() -> None:
    problem = ob.Supervised.of_clients({"a": (X, Y), "b": (X[:20], Y[:20])}, nn.Linear(3, 3))
    assert repr(problem) == (
        "Supervised(data: 2 clients (a, b) with 16 to 48 samples each; x -> y (3 classes); 12 parameters; "
        "loss cross-entropy; metrics accuracy)"
    )
    table = pa.table({**{f"c{at}": X[:, 0] for at in range(10)}, "city": NAMES, "label": Y})
    assert "x (c0, c1, c2, c3, c4, c5, …, c9) -> label (3 classes); without city; " in repr(
        ob.Supervised.split(table, 2)
    )
    assert repr(problem.data) == ("Dataset(data: 64 training and 16 test samples; x -> y, one of 3 classes; 2 owners)")
