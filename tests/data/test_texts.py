"""Texts as windows of tokens, and tokenisers."""

import numpy as np
import pytest
import torch

from offbeat.core.errors import DataError, ModelError, SettingError
from offbeat.data.texts import texts, topics, windows
from offbeat.data.tokens import BytePairs, Characters
from offbeat.problems.supervised import Supervised

TEXTS = {"first": "to be or not to be, " * 20, "second": "that is the question. " * 30, "short": "aye"}


def test_a_target_is_the_window_one_place_further():
    data = windows(TEXTS, window=16)
    x, y = data.train["x"], data.train["y"]
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert data.tokens.decode(x[0].tolist()) == TEXTS["first"][:16]
    assert data.tokens.decode(y[0].tolist()) == TEXTS["first"][1:17]
    assert data.classes == data.tokens.size == len(set("".join(TEXTS.values())))


def test_windows_stay_within_their_text_and_texts_without_one_are_left_out():
    data = windows(TEXTS, window=16)
    assert data.owners == ("first", "second")
    for part, owner, cut in ((data.train, data.owner, slice(0, -1)), (data.test, data.test_owner, slice(1, None))):
        for row, who in zip(part["x"], owner, strict=True):
            text, edge = TEXTS[data.owners[who]], len(TEXTS[data.owners[who]]) * 4 // 5
            assert data.tokens.decode(row.tolist()) in (text[:edge] if cut.start == 0 else text[edge:])


def test_stride_is_from_one_training_window_to_the_next():
    every, one = windows(TEXTS, window=16, stride=1), windows(TEXTS, window=16)
    assert len(every.train) > 10 * len(one.train)
    assert len(every.test) == len(one.test)  # every token is tested on once
    assert torch.equal(every.train["x"][1], every.train["y"][0])


def test_test_windows_do_not_overlap():
    data = windows({"numbers": "".join(chr(1000 + i) for i in range(1000))}, window=20)
    seen = data.test["y"].flatten().tolist()
    assert len(seen) == len(set(seen))


def test_too_short_texts_are_one_clear_line():
    with pytest.raises(DataError, match=r"no text is long enough for a window of 400 .* 660 characters"):
        windows(TEXTS, window=400)
    with pytest.raises(SettingError, match="stride = 0: must be at least 1"):
        windows(TEXTS, stride=0)


def test_a_folder_of_files_is_a_client_a_file(tmp_path):
    for name, text in TEXTS.items():
        (tmp_path / f"{name}.txt").write_text(text)
    data = texts(str(tmp_path), window=16)
    assert data.owners == ("first", "second")
    with pytest.raises(DataError, match=r"expected a folder with \.txt files"):
        texts(str(tmp_path / "none"))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "good.txt").write_text(TEXTS["first"])
    bad = tmp_path / "bad.txt"
    bad.write_bytes("café".encode("latin-1"))
    with pytest.raises(DataError, match=r"bad\.txt: expected UTF-8, found .* at byte 3; save it as UTF-8"):
        texts(str(tmp_path), window=8)
    bad.unlink()
    bad.mkdir()
    with pytest.raises(DataError, match=r"bad\.txt cannot be read: Is a directory"):
        texts(str(tmp_path), window=8)


def test_files_that_are_left_out_are_named(tmp_path):
    for name, text in (TEXTS | {"empty": ""}).items():
        (tmp_path / f"{name}.txt").write_text(text)
    data = texts(str(tmp_path), window=16)
    assert [remark.split(": ")[1] for remark in data.remarks] == ["empty, short"]
    assert not windows(TEXTS, window=16).remarks
    with pytest.raises(SettingError, match=r"4 clients, but the data have only 2 owners; .*: empty, short"):
        Supervised.split(data, clients=4, model="gpt")


def test_a_way_to_make_tokens_that_there_is_not_is_refused():
    with pytest.raises(SettingError, match=r"unknown tokens: 'bytes'; .*byte-pair"):
        windows(TEXTS, window=16, tokens="bytes")


def test_a_vocabulary_of_characters_is_refused_as_it_would_have_no_effect():
    with pytest.raises(SettingError, match=r'vocabulary = 600: .*; set tokens = "byte-pair", too'):
        windows(TEXTS, window=16, vocabulary=600)


@pytest.mark.parametrize("model", ["softmax", "linear", "mlp", "lstm"])
def test_a_model_that_does_not_fit_windows_of_tokens_is_told_which_one_does(model):
    with pytest.raises((DataError, ModelError), match=r'windows of tokens need a model with .*, such as "gpt"'):
        Supervised.split(windows(TEXTS, window=16), model=model)


def test_texts_in_a_list_are_one_clear_line():
    with pytest.raises(SettingError, match=r"folder: expected the path of one, got a list; .* use windows"):
        texts(["to be"])
    with pytest.raises(SettingError, match=r"texts: expected a mapping of them by owner, .*, got a list"):
        windows(["to be"])


class NoPadding(torch.nn.Module):
    """Fails as a GPT-2 of transformers that classifies does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        raise ValueError("Cannot handle batch sizes > 1 if no padding token is defined.")


def test_a_model_without_a_padding_token_is_told_how_to_have_one():
    data = {"input_ids": np.ones((8, 5), np.int64), "label": np.arange(8) % 2}
    with pytest.raises(ModelError, match=r"no padding token is defined.*settings = { pad_token_id = 0 }"):
        Supervised.split(data, 2, model=NoPadding())


def test_topics_come_with_python_and_are_read_once():
    data = topics(window=64)
    assert data is topics(window=64)
    assert len(data.owners) > 30
    assert np.bincount(data.owner).min() >= 1


def test_a_character_that_was_not_seen_is_named():
    with pytest.raises(DataError, match="'z' does not occur"):
        Characters("abc").encode("abz")


def test_byte_pairs_restore_any_text_and_count_its_characters():
    pytest.importorskip("tokenizers")
    pairs = BytePairs([*TEXTS.values()], 300)
    for text in (TEXTS["first"], "ünseen – 文字 text\n"):
        tokens = pairs.encode(text)
        assert pairs.decode(tokens) == text
        assert pairs.lengths[tokens].sum() == len(text)
    assert pairs.size <= 300
    assert len(pairs.encode(TEXTS["first"])) < len(TEXTS["first"]) / 2
    assert BytePairs([*TEXTS.values()], 300).model.to_str() == pairs.model.to_str()
    with pytest.raises(SettingError, match="at least 257"):
        BytePairs(["a"], 256)


def test_byte_pairs_without_the_package_say_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(SettingError, match=r"pip install 'offbeat\[llm\]'"):
        windows(TEXTS, tokens="byte-pair")
