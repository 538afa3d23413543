"""Splits as they are written in a settings file."""

import pytest

from offbeat.core.errors import SettingError
from offbeat.data import IID, Classes, Dirichlet, NearlyIID, Owners
from offbeat.data.splits import Split
from offbeat.experiment import catalogue, schema


@pytest.mark.parametrize(
    ("table", "split"),
    [
        ({"dirichlet": 0.1}, Dirichlet(0.1)),
        ({"dirichlet": 1}, Dirichlet(1.0)),
        ({"dirichlet": 0.1, "per_client": 300}, Dirichlet(0.1, 300)),
        ({"dirichlet": 0.1, "min_size": 8}, Dirichlet(0.1, min_size=8)),
        ({"dirichlet": 0.3, "by": "label"}, Dirichlet(0.3, by="label")),
        ({"dirichlet": 0.3, "by": "price", "bins": 5}, Dirichlet(0.3, by="price", bins=5)),
        ({"classes": 5}, Classes(5)),
        ({"classes": 5, "by": "site"}, Classes(5, by="site")),
        ("iid", IID()),
        ({"iid": True}, IID()),
        ("nearly-iid", NearlyIID()),
        ({"nearly-iid": True, "by": "site"}, NearlyIID(by="site")),
        ("owners", Owners()),
        ({"owners": True}, Owners()),
        ({"owners": "speaker"}, Owners("speaker")),
    ],
)
def test_every_form_of_a_split_is_understood(table, split):
    assert schema.read(Split, table, "split") == split


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("dirichlt", "did you mean 'dirichlet'"),
        ({"per_client": 300}, "split.per_client: unknown; known: classes, dirichlet"),
        ("dirichlet", "split.dirichlet: alpha missing; alpha: concentration"),
        ({"dirichlet": "a"}, 'split.dirichlet = "a": expected a number'),
        ({"dirichlet": -1.0}, "split.dirichlet = -1.0: must be a positive number"),
        ({"dirichlet": 0.1, "alpha": 2}, "split.dirichlet: alpha is given twice; keep one"),
        ({"dirichlet": 0.1, "size": 3}, "split.dirichlet.size: unknown; did you mean 'min_size'"),
        ({"dirichlet": 0.1, "classes": 3}, "split has dirichlet and classes; keep one"),
        ({"dirichlet": 0.1, "by": 3}, "split.dirichlet.by = 3: expected a string"),
        ({"dirichlet": 0.1, "bins": 0}, "split.dirichlet.bins = 0: must be"),
        ({"classes": 2.5}, "split.classes = 2.5: expected a whole number"),
        ({"iid": False}, "split.iid = false: it takes no settings"),
        ({"iid": True, "clients": 3}, "split.iid.clients: unknown"),
        ({}, "split = {}: expected one of dirichlet, classes"),
        (3, "split = 3: expected one of dirichlet, classes"),
    ],
)
def test_a_wrong_split_is_answered_with_its_key(table, message):
    with pytest.raises(SettingError, match=message):
        schema.read(Split, table, "split")


def test_every_split_that_is_listed_can_be_named():
    names = [name for name in catalogue.catalogue()["splits"] if ":" not in name]
    made = [schema.read(Split, {name: 1 if name in ("classes", "dirichlet") else True}, "split") for name in names]
    assert len(made) == 5
