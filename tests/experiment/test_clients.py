"""The number of clients, where the data say who they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import offbeat as ob
from offbeat.experiment.grid import Grid

FILE = """
until = { time = 1.0 }

[problem]
data = { file = "visits.csv" }
target = "cost"
client = "clinic"
model = "linear"

[timing]
constant = 0.2

[algorithm.fedbuff]
size = 2
local = { sgd = { lr = 0.1 } }
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = "\n".join(f"{'cab'[at % 3]},{at / 50},{at / 25}" for at in range(50))
    Path("visits.csv").write_text(f"clinic,age,cost\n{rows}\n")
    Path("clinics.toml").write_text(FILE)
    return Path("clinics.toml")


def test_a_column_of_clients_says_how_many_there_are(file: Path) -> None:
    experiment = ob.load(file)
    assert experiment.problem is not None
    assert experiment.problem.clients == 3
    results = experiment.run("out", progress=False)
    assert results[0].updates == 15
    assert json.loads(Path("out/experiment.json").read_text())["experiment"]["problem"]["clients"] == 3
    Path("visits.csv").write_text(Path("visits.csv").read_text() + "d,1,2\nd,1,2\n")
    assert len(ob.resume("out", progress=False)) == 1  # a run keeps the clients that it began with
    assert ob.load(file).problem.clients == 4  # type: ignore[union-attr]


def test_another_number_that_is_given_holds_if_there_are_as_many(file: Path) -> None:
    assert ob.load(file, {"problem.clients": 2}).problem.clients == 2  # type: ignore[union-attr]
    with pytest.raises(ob.OffbeatError, match=r"problem: 4 clients, but the data have only 3 owners; .*leave it out"):
        ob.load(file, {"problem.clients": 4}).run("out", progress=False)
    with pytest.raises(ob.OffbeatError, match="problem: clients missing; give their number, or the column"):
        ob.load(file, {"problem.split": "iid"})


def test_a_sweep_has_one_number_of_clients_unless_it_sets_it(file: Path) -> None:
    table = dict(ob.load(file).table)
    for path in ("algorithm.fedbuff.size", "problem.l2"):
        assert {p.table["problem"]["clients"] for p in Grid({**table, "sweep": {path: [1, 2]}}).points} == {3}
    del table["problem"]["clients"]
    with pytest.raises(ob.OffbeatError, match=r"sweep\.problem\.client: the number of clients may depend on it"):
        Grid({**table, "sweep": {"problem.client": ["clinic", "age"]}})
