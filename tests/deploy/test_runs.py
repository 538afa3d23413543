"""The runs of a federation: listed, stopped, deleted, saved to a file and restored."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import stat
import time
from pathlib import Path

import pytest
from command import offbeat
from federation import LOADER, OWN, Federation, wait_for_updates
from sites import running, served, site

from offbeat.core.errors import OffbeatError
from offbeat.deploy import identity, keys, server as server_module
from offbeat.deploy.board import change_board, read_board
from offbeat.deploy.broker import Broker
from offbeat.deploy.link import Link
from offbeat.deploy.push import push
from offbeat.experiment import admin, joining, serving
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.real import RunIdentity, same_run, save_identity, saved_identity


def test_runs_are_listed_stopped_and_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "GONE", 3.0)
    monkeypatch.setattr(admin, "PATIENCE", 1.5)
    monkeypatch.setattr(admin, "SURE", 10.0)
    fed = tmp_path / "fed"
    keys.init(fed, ["a", "b"], tls=False)
    broker = Broker(tmp_path / "broker", fed)

    async def play() -> None:
        link = Link(identity.read_creds(fed / "server.creds"), broker.url)
        await link.connect(60)
        with site(tmp_path, fed / "a.creds", broker.url) as a:
            async with a, served(tmp_path, broker.url, "left", 10**6):
                await a.says("takes part in left", 60)
        with site(tmp_path, fed / "a.creds", broker.url) as a:
            async with a, served(tmp_path, broker.url, "one", 10**6) as (server, task):
                await a.says("takes part in one", 60)
                found = {run.run: run for run in await admin.list_runs(link)}
                while found["one"].state != "active":  # a busy machine: its server has not answered in time
                    found = {run.run: run for run in await admin.list_runs(link)}
                assert {run: status.state for run, status in found.items()} == {"left": "abandoned", "one": "active"}
                assert min(found["one"].entries, found["one"].bytes) > 0
                with pytest.raises(OffbeatError, match="stop it first: `offbeat runs stop one`"):
                    await admin.delete_run(link, "one")
                assert "its server writes the results" in await admin.stop_run(link, "one")
                await asyncio.wait_for(task, 60)
                assert server.ledger.stopped == "stopped"
                await a.says("one was stopped by its operator; ", 60)
        assert "is off the board" in await admin.stop_run(link, "left")
        assert {run.state for run in await admin.list_runs(link)} == {"stopped"}
        await admin.delete_run(link, "left")
        assert [run.run for run in await admin.list_runs(link)] == ["one"]
        with pytest.raises(OffbeatError, match="there is no run 'left' on the broker; it has one"):
            await admin.stop_run(link, "left")
        await link.close()

    with running(broker):
        asyncio.run(play())
        words = ("--keys", fed / "server.creds", "--nats", broker.url)
        (listed,) = json.loads(offbeat("runs", *words, "--json").out)["runs"]
        assert (listed["run"], listed["state"]) == ("one", "stopped")
        assert "stopped" in offbeat("runs", *words).out
        assert offbeat("runs", "delete", "one", *words, "--yes").out == "one is deleted\n"
        assert offbeat("runs", *words).out == "the broker has no runs of this federation\n"
        said = offbeat("runs", "--keys", fed / "a.creds", "--nats", broker.url)
        assert (said.code, "the server's are in server.creds" in said.err) == (1, True)


def test_sites_come_back_to_a_run_that_was_taken_off_the_board_and_is_served_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "GONE", 1.0)
    monkeypatch.setattr(joining, "SILENT", 0.5)
    monkeypatch.setattr(admin, "SURE", 1.0)
    fed = tmp_path / "fed"
    keys.init(fed, ["a", "b"], tls=False)
    broker = Broker(tmp_path / "broker", fed)

    async def play() -> None:
        link = Link(identity.read_creds(fed / "server.creds"), broker.url)
        await link.connect(60)
        with site(tmp_path, fed / "a.creds", broker.url) as a:
            async with a:
                async with served(tmp_path, broker.url, "one", 10**6):
                    await a.says("takes part in one", 60)
                await a.says("has been silent", 60)
                assert "with its folder goes on" in await admin.stop_run(link, "one")
                await a.says("leaves one, which was stopped by its operator", 60)
                assert "is there again" not in a.log.read_text()
                async with served(tmp_path, broker.url, "one", 10**6) as (server, _):
                    before = server.ledger.tally.updates
                    while server.ledger.tally.updates < before + 5:
                        await asyncio.sleep(0.02)
        await link.close()

    with running(broker):
        asyncio.run(asyncio.wait_for(play(), 120))


def test_a_run_that_is_over_leaves_the_board_although_its_leader_died_before_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "SILENCE", 0.5)
    fed = tmp_path / "fed"
    keys.init(fed, ["a", "b"], tls=False)
    broker = Broker(tmp_path / "broker", fed)

    async def play() -> None:
        link = Link(identity.read_creds(fed / "server.creds"), broker.url)
        await link.connect(60)
        with site(tmp_path, fed / "a.creds", broker.url) as a:
            async with a, served(tmp_path, broker.url, "one", 20) as (_, task):
                await asyncio.wait_for(task, 60)
        for before in (lambda board: board.with_run("one", {}), lambda board: board.without("one", "restored")):
            await change_board(link, before)
            async with served(tmp_path, broker.url, "one", 20) as (_, task):
                await asyncio.wait_for(task, 60)
            board = await read_board(link)
            assert board is not None
            assert (dict(board.runs), dict(board.past)) == ({}, {"one": "updates"})
        assert await admin.stop_run(link, "one") == "one is finished (updates) already, and no server is running it"
        await link.close()

    with running(broker):
        asyncio.run(asyncio.wait_for(play(), 120))


def test_a_run_is_saved_to_a_file_and_goes_on_from_it_on_another_broker(tmp_path: Path) -> None:
    fed, out, file = tmp_path / "fed", tmp_path / "back", tmp_path / "run.tar"
    keys.init(fed, ["a", "b"], tls=False)
    first, second = (Broker(tmp_path / name, fed) for name in ("one", "two"))

    terms, began = set[int](), int(time.time())

    async def play(url: str, updates: int) -> int:
        with site(tmp_path, fed / "a.creds", url) as a:
            async with a, served(tmp_path, url, "run", updates) as (server, task):
                while server.ledger.tally.updates < min(updates, 20):
                    await asyncio.sleep(0.02)
                if updates < 10**6:
                    await asyncio.wait_for(task, 60)
        terms.add(server.ledger.term)
        return server.ledger.tally.updates

    words = ("--keys", fed / "server.creds", "--nats")
    with running(first):
        made = asyncio.run(play(first.url, 10**6))
        save_identity(tmp_path / "run", RunIdentity("run", ["a", "b"]))
        (tmp_path / "experiment.json").write_text("{}")
        said = offbeat("backup", tmp_path / "run", file, *words, first.url)
        assert (said.code, "records" in said.out) == (0, True), said.err
        assert "already exists" in offbeat("backup", tmp_path / "run", file, *words, first.url).err
        assert "runs delete run" in offbeat("restore", file, "--out", out, *words, first.url).err
    damaged = bytearray(file.read_bytes())
    damaged[damaged.rindex(b"OBS1") + 90] ^= 1  # of a record
    (tmp_path / "damaged.tar").write_bytes(damaged)
    with running(second):
        said = offbeat("restore", tmp_path / "damaged.tar", "--out", tmp_path / "not", *words, second.url)
        assert (said.code, "was changed or is damaged: LOG" in said.err) == (1, True), said.err
        said = offbeat("restore", file, "--out", out, *words, second.url)
        assert said.code == 0, said.err
        assert stat.S_IMODE((out / "run").stat().st_mode) == 0o700
        assert "already exists" in offbeat("restore", file, "--out", out, *words, second.url).err
        shutil.rmtree(tmp_path / "run")
        (out / "run").replace(tmp_path / "run")
        assert asyncio.run(play(second.url, made + 20)) == made + 20
        # another epoch: whoever has heard the run before takes its signs of life for new ones
        assert min(terms) == 1
        assert max(terms) >= began


def test_the_same_run_is_found_however_many_clients_there_are_now() -> None:
    table = {"problem": {"data": "digits", "clients": 2}, "algorithm": [{"name": "fedasync", "local": {"sgd": 0.1}}]}
    ours = Experiment.parse({**table, "problem": {"data": "digits", "clients": 3}})
    charter = {"run": "r", "experiment": table, "label": "fedasync", "seed": 0, "roster": ["a", "b", "late"]}
    others = [{**charter, "seed": 1}, {**charter, "experiment": {**table, "seed": 4}}, {"run": "x"}, {}]
    assert same_run([charter, *others], ours, ours.runs[0]) == RunIdentity("r", ["a", "b"])
    assert same_run(others, ours, ours.runs[0]) is None


def test_of_two_servers_that_begin_the_same_run_at_once_one_does(tmp_path: Path) -> None:
    keys.init(tmp_path / "fed", ["a"], tls=False)
    broker = Broker(tmp_path / "broker", tmp_path / "fed")
    table = {"problem": {"data": "digits", "clients": 1}, "algorithm": [{"name": "fedasync", "local": {"sgd": 0.1}}]}
    experiment = Experiment.parse(table)
    spec = experiment.runs[0]

    async def begin(link: Link, run: str) -> bool:
        save_identity(tmp_path / run, RunIdentity(run, ["a"]))
        plain = {"experiment": experiment.table, "label": spec.label, "seed": spec.seed}
        charter = {**json.loads(json.dumps(plain)), "run": run, "roster": ["a"]}
        with contextlib.suppress(OffbeatError):  # start this one again, and it stands by
            await serving.claim(link, experiment, spec, tmp_path / run, charter)
        return saved_identity(tmp_path / run) is not None

    async def play() -> list[bool]:
        async with admin.connected(identity.read_creds(tmp_path / "fed" / "server.creds"), broker.url) as link:
            return [*await asyncio.gather(*(begin(link, run) for run in "xyz"))]

    with running(broker):
        assert sorted(asyncio.run(play())) == [False, False, True]


@pytest.mark.slow
def test_clients_are_added_while_servers_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mysite.py").write_text(LOADER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    text = OWN.replace("updates = 30, time = 120.0", "time = 25.0")
    with Federation(tmp_path / "fed", text, clients=2) as federation:
        federation.serve("--wait", "1")
        federation.join("site0", "--data", "mysite:load")
        wait_for_updates(federation)
        keys.add(federation.keys, ["late"])
        asyncio.run(push(federation.keys, federation.url))
        federation.join("late", "--data", "mysite:load")
        first, federation.out = federation.server, tmp_path / "fed" / "second"
        federation.serve("--wait", "1")  # stands by, although the roster is another by now
        time.sleep(10)
        federation.kill(first)
        result = federation.wait()
        assert result["updates"] > 50
        run = federation.out / "fedbuff-0"
        assert saved_identity(run) == saved_identity(tmp_path / "fed" / "out" / "fedbuff-0")
        said = offbeat("replay", run, "--keys", federation.keys / "server.creds", "--nats", federation.url)
        assert (said.code, "the same state" in said.out) == (0, True), said.err
