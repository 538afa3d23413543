"""`offbeat doctor` finds what is wrong before anything runs, and says what to do about it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from command import DIGITS, offbeat
from federation import LOADER, OWN

from offbeat.deploy import doctor, keys
from offbeat.deploy.broker import Broker, free_port


class Place(NamedTuple):
    """A federation with a broker that runs, and a site's folder."""

    folder: Path
    keys: Path
    url: str

    def doctor(self, *words: str | Path, who: str = "a") -> tuple[int, dict[str, dict[str, Any]]]:
        """The exit code and the findings by what they are about."""
        creds = self.keys / f"{who}.creds"
        said = offbeat("doctor", *words, "--keys", creds, "--nats", self.url, "--state", self.folder, "--json")
        return said.code, {finding["what"]: finding for finding in json.loads(said.out)["findings"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder, port = tmp_path_factory.mktemp("doctor"), free_port()
    keys.init(folder / "fed", ["a", "b"], port=port)
    broker = Broker(folder / "broker", folder / "fed", port=port)
    broker.start()
    yield Place(folder, folder / "fed", broker.url)
    broker.stop()


@pytest.fixture(autouse=True)
def loaders(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    text = LOADER + "\ndef wide():\n    return torch.zeros(9, 5), torch.zeros(9)\n\ndef many():\n"
    text += "    return torch.zeros(9, 4), torch.arange(9)\n\ndef gone():\n    open('/nowhere')\n"
    (place.folder / "doctors_site.py").write_text(text)
    monkeypatch.chdir(place.folder)
    monkeypatch.syspath_prepend(str(place.folder))


def levels(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {what: finding["level"] for what, finding in found.items()}


def test_a_server_that_has_all_it_needs_is_told_so(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text(DIGITS)
    code, found = place.doctor(file, who="server")
    expected = ("file", "name", "port", "certificate", "keys", "broker", "streams", "clock", "disk", "area", "fedbuff")
    assert (code, levels(found)) == (0, dict.fromkeys(expected, "ok")), found
    assert "days" in found["certificate"]["text"]
    assert "one local step" in found["area"]["text"]


def test_a_sites_data_are_tried_against_the_experiment(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(OWN)
    code, found = place.doctor(file, "--data", "doctors_site:load")
    assert (code, set(levels(found).values())) == (0, {"ok"}), found
    assert "160 samples to train on, 40 held out" in found["fedbuff"]["text"]
    for name, says in {
        "wide": "inputs have the shape [5], the experiment says [4]",
        "many": "run from 0 to 8, and the model has 3 outputs",
        "gone": "failed with FileNotFoundError",
        "laod": "did you mean 'load'?",
    }.items():
        code, found = place.doctor(file, "--data", f"doctors_site:{name}")
        assert (code, found["fedbuff"]["level"]) == (1, "problem")
        assert says in found["fedbuff"]["text"]
    assert "give --data" in place.doctor(file)[1]["data"]["remedy"]
    assert place.doctor("--data", "doctors_site:load")[1]["data"]["level"] == "ok"


def test_problems_have_a_line_a_remedy_and_an_exit_code(place: Place, tmp_path: Path) -> None:
    other = place._replace(url=f"tls://127.0.0.1:{free_port()}")
    code, found = other.doctor()
    assert (code, found["port"]["level"]) == (1, "problem")
    assert "start the broker" in found["port"]["remedy"]
    assert "keys" not in found  # which cannot be tried
    code, found = place.doctor(who="nobody")
    assert (code, found["file"]["level"]) == (1, "problem")
    said = offbeat("doctor", "--keys", place.keys / "a.creds", "--nats", "tls:/x", "--state", tmp_path)
    assert said.code == 1
    assert "problem  address      'tls:/x' is no address of a broker; write tls://HOST:PORT" in said.out
    stranger = tmp_path / "fed"
    keys.init(stranger, ["a"])
    code, found = place._replace(keys=stranger).doctor()
    assert (code, "not this federation's broker" in found["certificate"]["text"]) == (1, True)


def test_a_certificate_that_ends_soon_is_said(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SOON", 10_000)
    code, found = place.doctor()
    assert (code, found["certificate"]["level"]) == (0, "warning")
    assert "offbeat keys renew" in found["certificate"]["remedy"]


def test_a_disk_that_is_nearly_full_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.disk(tmp_path / "not" / "yet").level == "ok"
    for free, level in ((200 << 20, "warning"), (20 << 20, "problem")):
        monkeypatch.setattr("shutil.disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        found = doctor.disk(tmp_path)
        assert (found.level, found.text.startswith("only 0.")) == (level, True)
