"""Splits as they are written in a settings file."""

import pytest

from offbeat.core.errors import SettingError
from offbeat.data import IID, NAMES as SETS, Classes, Dirichlet, NearlyIID, Owners
from offbeat.experiment.problem_parts import DATA, MODELS, SPLITS, split_from
from offbeat.models import NAMES as NETWORKS


@pytest.mark.parametrize(
    ("table", "split"),
    [
        ({"dirichlet": 0.1}, Dirichlet(0.1)),
        ({"dirichlet": 1}, Dirichlet(1.0)),
        ({"dirichlet": 0.1, "per_client": 300}, Dirichlet(0.1, 300)),
        ({"dirichlet": 0.1, "min_size": 8}, Dirichlet(0.1, min_size=8)),
        ({"classes": 5}, Classes(5)),
        ("iid", IID()),
        ({"iid": True}, IID()),
        ("nearly-iid", NearlyIID()),
        ("owners", Owners()),
    ],
)
def test_every_form_of_a_split_is_understood(table, split):
    assert split_from(table, "split") == split


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("dirichlt", "did you mean 'dirichlet'"),
        ({"per_client": 300}, "unknown split in split: 'per_client'"),
        ("dirichlet", 'split = "dirichlet": it takes a number, as in { dirichlet = 1 }'),
        ({"dirichlet": "a"}, "split.dirichlet = 'a': expected a number"),
        ({"dirichlet": -1.0}, "split: .*alpha = -1.0"),
        ({"dirichlet": 0.1, "alpha": 2}, "split.alpha: write it as dirichlet = 2"),
        ({"dirichlet": 0.1, "size": 3}, "unknown key in split: 'size'"),
        ({"dirichlet": 0.1, "classes": 3}, "dirichlet and classes; it takes one"),
        ({"classes": 2.5}, "split.classes = 2.5: expected a whole number"),
        ({"iid": False}, 'split.iid = False: write "iid"'),
        ({"iid": True, "clients": 3}, "unknown key in split: 'clients'"),
        ({}, "expected a split"),
        (3, "split = 3: expected a split"),
    ],
)
def test_a_wrong_split_is_answered_with_its_key(table, message):
    with pytest.raises(SettingError, match=message):
        split_from(table, "split")


def test_everything_that_can_be_named_is_explained():
    assert set(DATA) == set(SETS)
    assert set(MODELS) == {*NETWORKS, "package.module:factory"}
    assert all(split_from({name: 1 if name in ("classes", "dirichlet") else True}, "split") for name in SPLITS)
