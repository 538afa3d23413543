"""The folder of a federation's keys: what it may be called, who changes it, and what is no address of a broker."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import offbeat

from offbeat.core.errors import FolderError, SettingError
from offbeat.deploy import certificates, identity, keys
from offbeat.deploy.broker import Broker
from offbeat.experiment.serving import Place


@pytest.mark.parametrize("name", ["Größe", "模型 1", 'a "b" \\c', "tab\t"])
def test_a_broker_starts_wherever_its_folder_is(tmp_path: Path, name: str) -> None:
    keys.init(tmp_path / name / "fed", ["a"])
    broker = Broker(tmp_path / name / "broker", tmp_path / name / "fed")
    broker.start()
    broker.stop()
    assert (tmp_path / name / "broker" / "jetstream").is_dir()


def test_two_changes_of_one_folder_at_once_both_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, locked, faster = tmp_path / "fed", keys.locked, ["b"]
    keys.init(folder, ["a"], tls=False)

    @contextmanager
    def late(place: Path, otherwise: str = "") -> Iterator[None]:
        if faster:  # another process was, after this one had begun
            keys.add(folder, [faster.pop()])
        with locked(place, otherwise):
            yield

    monkeypatch.setattr(keys, "locked", late)
    assert keys.add(folder, ["c"]).active == ["a", "b", "c"]


@pytest.mark.parametrize("lost", [identity.ROSTER, identity.OPERATOR])
def test_keys_that_sign_for_all_are_never_written_over(tmp_path: Path, lost: str) -> None:
    keys.init(tmp_path, ["a"])
    (tmp_path / lost).unlink()
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.*")}
    with pytest.raises(FolderError, match="already holds keys"):
        keys.init(tmp_path, ["a"])
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.*")} == before


def test_a_folder_in_the_place_of_a_file_of_keys_is_said_to_be_one(tmp_path: Path) -> None:
    keys.init(tmp_path / "fed", ["a"], tls=False)
    with pytest.raises(FolderError, match=r"fed is a folder; name the file of keys in it, such as .*fed/server.creds"):
        identity.read_creds(tmp_path / "fed")


def test_keys_are_made_in_a_folder_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match=r"cannot write to .*file: File exists"):
        keys.init(tmp_path / "file", ["a"])


def test_a_federation_without_tls_has_no_certificate_to_renew(tmp_path: Path) -> None:
    keys.init(tmp_path, ["a"], tls=False)
    with pytest.raises(FolderError, match="made without TLS"):
        keys.renew(tmp_path)


@pytest.mark.parametrize("host", ["tls://broker.example.org", "broker.example.org:4222", "", "a b", "a..b", "x" * 64])
def test_what_is_no_host_is_in_no_certificate(host: str) -> None:
    key, _ = certificates.new_authority()
    with pytest.raises(SettingError, match="is no name or address of a host"):
        certificates.new_certificate(key, [host])


def test_hosts_have_names_in_any_alphabet(tmp_path: Path) -> None:
    key, _ = certificates.new_authority()
    hosts = ["bücher.example.org", "*.example.org", "192.0.2.7", "2001:db8::7", "under_score"]
    found = certificates.hosts_of(certificates.new_certificate(key, hosts)[1])
    assert found == ["xn--bcher-kva.example.org", *hosts[1:]]


@pytest.mark.parametrize("command", ["add", "remove", "rotate", "revoke"])
def test_a_change_of_nobody_s_keys_is_a_mistake(tmp_path: Path, command: str) -> None:
    code, _, err = offbeat("keys", command, tmp_path, "--clients", " , ")
    assert (code, err.strip()) == (1, "offbeat: --clients ' , ': name at least one")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("tls://127.0.0.1", "expected tls://HOST:PORT"),
        ("127.0.0.1:4222", "expected tls://HOST:PORT"),
        ("tls://127.0.0.1:70000", "expected tls://HOST:PORT"),
        ("", "expected tls://HOST:PORT"),
        ("nats://127.0.0.1:4222", "this federation uses TLS"),
        ("tls://a:4222,tls://b:4222", "--embedded runs one broker; name one address"),
    ],
)
def test_what_is_no_address_is_none_of_an_embedded_broker(
    made: tuple[Path, identity.Roster], url: str, text: str
) -> None:
    folder, roster = made
    with pytest.raises(SettingError, match=text):
        Place(identity.read_creds(folder / identity.SERVER), roster, folder, url, True).broker()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, identity.Roster]]:
    folder = tmp_path_factory.mktemp("fed")
    yield folder, keys.init(folder, ["a"])
    shutil.rmtree(folder)
