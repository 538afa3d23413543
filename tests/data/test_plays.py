"""Who says what in a play, and which windows of it are samples."""

import pytest
import torch

from offbeat.core.errors import DataError
from offbeat.data.plays import VOCABULARY, WINDOW, encode, roles, shakespeare

PLAY = """\tA PLAY

\tDRAMATIS PERSONAE

ANNE\ta cook.
BOB\t|
\t|  sailors.

SCENE\tA kitchen.
\tand a ship.

ACT I

SCENE I\tThe kitchen.

\t[Enter ANNE and BOB,
\twith a pot]

ANNE\tWho's  there?
\tAnswer me. [Aside] Is it

\t[A noise]

\thim?

BOB:\t[Within]\tIt is I.
ANNE\t|
\t| Ah!
BOB\t

\tA PLAY

ACT II
\tNobody says this.
"""


def decode(tokens):
    return "".join(VOCABULARY[t] for t in tokens)


def write(path, text, encoding="utf-8"):
    path.write_text(text, encoding)
    return path


def test_speeches_are_gathered_by_role_without_cast_and_directions(tmp_path):
    said = roles(write(tmp_path / "a.txt", PLAY))
    assert said == {"ANNE": "Who's there? Answer me. Is it him?", "BOB": "It is I."}


def test_a_direction_that_is_never_closed_ends_with_its_paragraph(tmp_path):
    text = "\tT\nSCENE\tx\n\nANNE\tOne [Exit\n\tall\n\n\ttwo.\nBOB\t[Sings\nANNE\tthree.\n"
    assert roles(write(tmp_path / "a.txt", text)) == {"ANNE": "One two. three."}


def test_a_poem_and_an_empty_file_have_no_roles(tmp_path):
    assert roles(write(tmp_path / "poem.txt", "\tSONNETS\n\nI.\n\nFrom fairest creatures\n")) == {}
    assert roles(write(tmp_path / "empty.txt", "")) == {}


def test_the_vocabulary_has_leafs_eighty_characters():
    assert len(set(VOCABULARY)) == len(VOCABULARY) == 80
    assert decode(encode("O, $5 – naïve")) == "O,  5 ? na ve"


def long_play(path, lengths):
    lines = ["\tT", "SCENE\tx"]
    for i, length in enumerate(lengths):
        lines += [f"R{i}\t" + "".join("abcdefghij"[(i + j) % 10] for j in range(length))]
    return write(path, "\n".join(lines))


def test_windows_stay_within_a_role_and_predict_its_next_character(tmp_path):
    data = shakespeare([long_play(tmp_path / "a.txt", [200, 300])])
    assert data.owner.unique().tolist() == [-1, 0, 1]
    assert [int((data.owner == i).sum()) for i in (-1, 0, 1)] == [WINDOW, 160 - WINDOW, 240 - WINDOW]
    for i in torch.nonzero(data.owner >= 0).flatten()[::7]:
        steps = (data.train["y"][i] - data.train["x"][i, -1].long()) % 10
        assert int(steps) == 1  # the text counts up through ten neighbouring letters
    assert data.train["x"].data_ptr() == data.train["x"][0].data_ptr()
    assert data.train["x"].stride() == (1, 1)


def test_what_is_predicted_in_testing_was_never_predicted_in_training(tmp_path):
    data = shakespeare([long_play(tmp_path / "a.txt", [200])])
    assert (len(data.train["y"]), len(data.test["y"])) == (160 - WINDOW, 40)
    assert (data.test_owner >= 0).all()
    assert data.train.scales == {}


def test_roles_too_short_for_a_window_are_left_out(tmp_path):
    data = shakespeare([long_play(tmp_path / "a.txt", [101, 102, 300])])
    assert int(data.owner.max()) + 1 == 2
    assert set(data.test_owner.unique().tolist()) == {-1, 0, 1}


def test_plays_without_a_long_role_are_an_error_that_says_what_a_play_looks_like(tmp_path):
    with pytest.raises(DataError, match=r"no role with enough text in .*1 files.*NAME<TAB>"):
        shakespeare([write(tmp_path / "a.txt", PLAY)])
