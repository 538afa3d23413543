"""Readers of the publishers' formats, on tiny files and on the real ones where OFFBEAT_DATA has them."""

import gzip
import os

import numpy as np
import pytest
import torch

from offbeat.core.errors import DataError, OffbeatError, SettingError
from offbeat.data import load
from offbeat.data.base import Dataset, Normalised
from offbeat.data.readers import cifar10, digits, idx

real = pytest.mark.skipif(not os.environ.get("OFFBEAT_DATA"), reason="OFFBEAT_DATA names no folder of data sets")


def idx_bytes(array):
    header = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
    return header + array.astype(np.uint8).tobytes()


def write_mnist(folder, train=5, test=2, pack=True):
    (folder / "mnist").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for prefix, count in (("train", train), ("t10k", test)):
        pixels, labels = rng.integers(0, 256, (count, 28, 28)), rng.integers(0, 10, count)
        for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            raw, path = idx_bytes(array), folder / "mnist" / f"{prefix}-{kind}-ubyte"
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(raw)) if pack else path.write_bytes(raw)


def cifar_bytes(records, label=7):
    rows = np.arange(records * 3073).reshape(records, 3073) % 251
    rows[:, 0] = label
    return rows.astype(np.uint8).tobytes()


def test_the_embedded_digits_are_split_once_and_for_all():
    data = digits()
    assert data.shape == (1, 8, 8)
    assert (len(data.train["x"]), len(data.test["x"])) == (1442, 355)
    assert data.train["x"].dtype == torch.uint8
    assert int(data.train["x"].max()) == 16
    shares = torch.bincount(data.test["y"]) / torch.bincount(torch.cat([data.train["y"], data.test["y"]]))
    assert ((shares > 0.19) & (shares <= 0.2)).all()
    assert torch.equal(digits().test["x"], data.test["x"])


@pytest.mark.parametrize("pack", [True, False])
def test_idx_files_are_read_packed_or_plain(tmp_path, pack):
    write_mnist(tmp_path, pack=pack)
    data = load("mnist", tmp_path)
    assert data.train["x"].shape == (5, 1, 28, 28)
    assert data.test["y"].shape == (2,)
    assert data.train["y"].dtype == torch.int64
    assert data.train.scales == {"x": 1 / 255}


def test_a_set_is_read_once_per_folder(tmp_path):
    write_mnist(tmp_path / "a")
    write_mnist(tmp_path / "b", train=6)
    assert load("mnist", tmp_path / "a") is load("mnist", tmp_path / "a")
    assert len(load("mnist", tmp_path / "b").train) == 6


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "found nothing"),
        (bytes((0, 0, 8, 3)) + bytes(8), "expected an IDX header starting 00000801, found 00000803"),
        (bytes((0, 0, 8, 1)), "expected an IDX header"),
        (idx_bytes(np.zeros(9))[:-2], "expected 9 bytes after the header, which announces 9, found 7"),
        (idx_bytes(np.zeros(9)) + b"x", "found 10"),
    ],
)
def test_a_damaged_idx_file_is_named_with_what_was_expected(tmp_path, raw, message):
    path = tmp_path / "labels"
    path.write_bytes(raw)
    with pytest.raises(DataError, match=message) as error:
        idx(path, 1)
    assert str(path) in str(error.value)
    assert "offbeat data --get mnist" in str(error.value)


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b"not gzip", lambda b: b[:12] + b"\xff" * 9 + b[20:]])
def test_a_damaged_gzip_file_is_refused(tmp_path, damage):
    path = tmp_path / "labels.gz"
    path.write_bytes(damage(gzip.compress(idx_bytes(np.arange(200)))))
    with pytest.raises(DataError, match=r"labels\.gz: expected a readable IDX file"):
        idx(path, 1)


def test_labels_out_of_range_or_of_another_number_than_images_are_refused(tmp_path):
    write_mnist(tmp_path, pack=False)
    labels = tmp_path / "mnist" / "train-labels-idx1-ubyte"
    labels.write_bytes(idx_bytes(np.array([0, 1, 2, 3, 10])))
    with pytest.raises(DataError, match="expected labels 0 to 9, found label 10"):
        load("mnist", tmp_path)
    labels.write_bytes(idx_bytes(np.arange(4)))
    with pytest.raises(DataError, match="expected 5 labels, one for each image, found 4"):
        load("mnist", tmp_path)


def test_cifar_batches_are_read_plane_by_plane(tmp_path):
    paths = [tmp_path / f"{i}.bin" for i in range(3)]
    for i, path in enumerate(paths):
        path.write_bytes(cifar_bytes(4, label=i))
    data = cifar10(paths, records=4)
    assert data.train["y"].tolist() == [0] * 4 + [1] * 4
    assert data.test["y"].tolist() == [2] * 4
    assert data.train["x"].shape == (8, 3, 32, 32)
    assert data.test["x"].is_contiguous()
    assert data.train["x"][1, 2, 0, 5] == (3073 + 1 + 2 * 1024 + 5) % 251


def test_a_short_cifar_batch_and_a_wrong_label_are_refused(tmp_path):
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(cifar_bytes(4)[:-1])
    with pytest.raises(DataError, match=r"data_batch_1.*expected 4 records of 3073 bytes, found 12291 bytes"):
        cifar10([path, path], records=4)
    path.write_bytes(cifar_bytes(4, label=11))
    with pytest.raises(DataError, match="found label 11"):
        cifar10([path, path], records=4)


def test_an_unknown_set_is_answered_with_the_nearest():
    with pytest.raises(SettingError, match="unknown data set 'minst'; did you mean 'mnist'"):
        load("minst")


@real
@pytest.mark.parametrize(
    ("name", "train", "test", "shape"),
    [
        ("mnist", 60_000, 10_000, (1, 28, 28)),
        ("fashion-mnist", 60_000, 10_000, (1, 28, 28)),
        ("cifar10", 50_000, 10_000, (3, 32, 32)),
    ],
)
def test_the_real_images_have_their_published_sizes(name, train, test, shape):
    data = load(name)
    assert (len(data.train["x"]), len(data.test["x"]), data.shape) == (train, test, shape)
    assert data.test["y"].unique().tolist() == list(range(10))
    assert int(data.train["x"].max()) == 255


@real
def test_the_real_plays_have_over_a_thousand_roles():
    data = load("shakespeare")
    assert 1000 < int(data.owner.max()) + 1 < 1200
    assert data.train["x"].shape == (len(data.train["y"]), 80)
    assert 3_000_000 < int((data.owner >= 0).sum()) < 4_000_000
    assert data.train["x"].untyped_storage().nbytes() < 4_000_000  # windows are views of the text


def made_of(x: torch.Tensor, scale: float | None) -> Dataset:
    labels = torch.zeros(len(x), dtype=torch.int64)
    return Dataset.pairs("made", x, labels, x[:5], labels[:5], 2, scale)


def test_standard_inputs_have_mean_0_and_variance_1_in_every_channel():
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (50, 3, 4, 4), generator=g, dtype=torch.uint8)
    x[:, 2] = 7  # a channel without variance stays finite
    data = made_of(x, 1 / 255)
    made = data.as_inputs("standard")
    assert made.train.scales == {"x": 1.0}
    assert made.train["x"].dtype == torch.float32
    assert torch.allclose(made.train["x"].mean((0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(made.train["x"][:, :2].var((0, 2, 3), correction=0), torch.ones(2), atol=1e-4)
    assert torch.equal(made.test["x"], made.train["x"][:5])  # by the training set's numbers
    assert data.as_inputs("standard") is made  # so that runs with several seeds share it


def test_signed_inputs_reach_from_minus_1_to_1():
    x = torch.tensor([[0, 51], [204, 255]], dtype=torch.uint8).repeat(4, 1)
    data = made_of(x, 1 / 255)
    assert torch.allclose(data.as_inputs("signed").train["x"][:2], torch.tensor([[-1.0, -0.6], [0.6, 1.0]]))
    assert data.as_inputs("unit") is data


def test_normalised_inputs_have_a_mean_subtracted_and_are_divided_by_a_deviation():
    x = torch.tensor([[[[0]], [[51]]], [[[204]], [[255]]]], dtype=torch.uint8).repeat(4, 1, 1, 1)
    data = made_of(x, 1 / 255)
    one = data.as_inputs(Normalised(0.2, 0.5)).train["x"][:2].flatten(1)
    assert torch.allclose(one, torch.tensor([[-0.4, 0.0], [1.2, 1.6]]), atol=1e-6)
    both = data.as_inputs(Normalised((0.2, 0.6), (0.5, 0.1)))  # by channel
    assert torch.allclose(both.test["x"][:2].flatten(1), torch.tensor([[-0.4, -4.0], [1.2, 4.0]]))
    assert data.as_inputs(Normalised((0.2, 0.6), (0.5, 0.1))) is both
    with pytest.raises(DataError, match="made has 2 channels, mean and std 3"):
        data.as_inputs(Normalised((0.1, 0.2, 0.3), (1.0, 1.0, 1.0)))


def test_inputs_that_cannot_be_had_are_refused():
    x = torch.zeros(8, 4, dtype=torch.uint8)
    with pytest.raises(DataError, match="made has tokens for inputs, which cannot be signed"):
        made_of(x, None).as_inputs("signed")
    with pytest.raises(OffbeatError, match=r"signd.*signed"):
        made_of(x, 1.0).as_inputs("signd")
