"""A client imports nothing because a server's charter names it, wherever the name stands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from offbeat.core.errors import SettingError
from offbeat.experiment.overrides import override
from offbeat.experiment.partner import VERSION, Partner
from offbeat.experiment.real import PartyMaker

TABLE = {
    "until": {"updates": 2},
    "problem": {"data": "digits", "clients": 1},
    "timing": {"exponential": {"rate": 1.0}},
    "algorithm": {"fedbuff": {"local": {"sgd": {"lr": 0.1}}}},
}
EVIL = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"
PLACES: list[dict[str, Any]] = [
    {"problem.model": "evil:x"},
    {"problem.model": {"name": "evil:x"}},
    {"problem.model": {"evil:x": {}}},
    {"problem.data": "evil:x"},
    {"problem.split": "evil:x"},
    {"problem.split": {"evil:x": {"a": 1}}},
    {"timing": {"evil:x": {}}},
    {"timing": {"name": "evil:x"}},
    {"timing": {"links": {"download": {"evil:x": {}}, "upload": {"constant": 1.0}}}},
    {"algorithm.fedbuff.name": "evil:x"},
    {"algorithm": {"evil:x": {}}},
    {"algorithm.fedbuff.local": {"evil:x": {"lr": 1.0}}},
    {"algorithm.fedbuff.weight": "evil:x"},
    {"algorithm.fedbuff.size": {"evil:x": {}}},
]


def test_a_client_does_not_track_for_the_server() -> None:
    made = PartyMaker()._experiment({**TABLE, "trackers": {"tensorboard": "theirs"}})
    assert "trackers" not in made.table
    assert made.trackers.tensorboard is None


@pytest.mark.parametrize("place", PLACES)
def test_a_name_that_is_not_allowed_is_refused_before_it_is_imported(
    place: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.py").write_text(EVIL)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    charter = {"version": VERSION, "run": "r", "roster": ["a"], "label": "fedbuff", "seed": 0, "paced": False}
    charter |= {"unit": 1.0, "dtype": "", "experiment": override(TABLE, place)}
    with pytest.raises(
        SettingError, match="the server asks for 'evil:x', which is not offbeat's; allow it with --allow"
    ):
        Partner().party(charter, "a")
    assert not (tmp_path / "ran").exists()
    assert "evil" not in sys.modules


def test_all_names_that_are_not_allowed_are_said_at_once() -> None:
    asked = override(TABLE, {"problem.model": "mine:net", "problem.loss": "mine:loss", "problem.metrics": ["mine:M"]})
    with pytest.raises(SettingError, match=r"allow them with --allow mine:net --allow mine:M$"):
        PartyMaker(models=["mine:loss"])._experiment(asked)
