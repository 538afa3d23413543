"""A run that is restored from a backup: its sites are ahead of it, and take over the server's state in a new epoch."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from parted import normed
from served import until
from sites import Site, running, served

from offbeat.core.vectors import Payload
from offbeat.deploy import identity, keys
from offbeat.deploy.admission import APPLIED
from offbeat.deploy.broker import Broker
from offbeat.deploy.client_state import ClientState, read_client_state, write_client_state
from offbeat.deploy.disk import Disk, newest, slots
from offbeat.deploy.journal import BrokenLogError
from offbeat.deploy.ledger import ClientRecord
from offbeat.deploy.link import Link
from offbeat.deploy.logs import logged
from offbeat.deploy.refold import fingerprint, refold
from offbeat.deploy.server import RunServer
from offbeat.experiment import admin, backup
from offbeat.experiment.real import RunIdentity, save_identity

TEXT = """
until = {{ updates = 40 }}

[problem]
data = "digits"
clients = 2
{parts}

[algorithm.{algorithm}]
local = {{ {local} = {{ lr = 0.1, batch = 8 }} }}
"""
ALGORITHMS = {"area": "sgd", "scaffold": "scaffold", "fedasync": "sgd"}
PERSONAL = 'model = { name = "mlp", hidden = [8] }\npersonal = "layers.1.*"'
NORMED = f'model = "{normed.__module__}:{normed.__name__}"\nstatistics = "local"'
MARK = 7.0  # far from where personal parameters begin, and training does not take them far from it


def disk_of(folder: Path, name: str) -> ClientState:
    data = newest(slots(folder / name / "state" / "fed" / name, "run"))[1]
    assert data is not None
    return read_client_state(data)


def remembered(mine: ClientState, record: ClientRecord) -> Payload:
    """A client's memory once it knows the verdict on its last message."""
    assert (mine.epoch, mine.nonce) == (record.epoch, record.nonce)
    pending = mine.pending
    applied = pending is not None and (record.seq, record.verdict) == (pending.seq, APPLIED)
    return pending.memory if pending is not None and applied and pending.memory else mine.memory.get(0, {})


@contextmanager
def site_logs(play: Play) -> Iterator[None]:
    """Within, both sites' logs have what is said."""
    with logged(play.folder / "a" / "join.log"), logged(play.folder / "b" / "join.log"):
        yield


class Play:
    """A run of two sites, its broker, and what an operator does with it."""

    def __init__(self, folder: Path, algorithm: str, parts: str = "") -> None:
        self.folder, self.fed = folder, folder / "fed"
        self.text = TEXT.format(algorithm=algorithm, local=ALGORITHMS[algorithm], parts=parts)
        keys.init(self.fed, ["a", "b"], tls=False)
        self.broker = Broker(folder / "broker", self.fed)
        for name in "ab":
            (folder / name).mkdir()

    @asynccontextmanager
    async def link(self) -> AsyncIterator[Link]:
        async with admin.connected(identity.read_creds(self.fed / "server.creds"), self.broker.url) as link:
            yield link

    def site(self, name: str) -> Site:
        return Site(self.fed / f"{name}.creds", self.broker.url, self.folder / name, models=["parted:normed"])

    async def grow(self, server: RunServer, more: int) -> int:
        """Until each client has so many updates more; gives the number of all."""
        await until(lambda: server.ready)
        wanted = [record.applied + more for record in server.ledger.clients]
        await until(
            lambda: all(r.applied >= least for r, least in zip(server.ledger.clients, wanted, strict=True)), said=wanted
        )
        return server.ledger.tally.updates

    async def save(self) -> None:
        save_identity(self.folder / "run", RunIdentity("run", ["a", "b"]))
        (self.folder / "experiment.json").write_text("{}")
        async with self.link() as link:
            await backup.backup(link, self.folder / "run", self.folder / "run.tar")

    async def put_back(self) -> None:
        """As if the broker and the server had lost everything."""
        async with self.link() as link:
            await admin.delete_run(link, "run")
            (self.folder / "run").replace(self.folder / "lost")
            await backup.restore(link, self.folder / "run.tar", self.folder / "back")
            (self.folder / "back" / "run").replace(self.folder / "run")
            assert [each.state for each in await admin.list_runs(link)] == ["restored"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_sites_that_are_ahead_of_a_restored_run_go_on_with_it(tmp_path: Path, algorithm: str) -> None:
    play = Play(tmp_path, algorithm)

    async def story() -> tuple[RunServer, int, int]:
        stays, goes = play.site("a"), play.site("b")
        async with stays:  # through everything
            async with goes, served(tmp_path, play.broker.url, "run", 10**6, text=play.text) as (server, _):
                await play.grow(server, 10)
                await play.save()
                before = await play.grow(server, 25)
            await play.put_back()
            again = play.site("b")  # another process, with the same disk
            async with again, served(tmp_path, play.broker.url, "run", 10**6, text=play.text) as (server, _):
                back = server.ledger.tally.updates
                await stays.says("a: run was restored from a backup; ", 60)
                await again.says("b: run was restored from a backup; ", 60)
                await play.grow(server, 20)
            async with play.link() as link:
                folded = await refold(link, server.plan, server.ledger.position)
                assert fingerprint(folded) == fingerprint(server.ledger)
            return server, before, back

    with running(play.broker), site_logs(play):
        server, before, back = asyncio.run(story())
    ledger = server.ledger
    assert back < before
    assert sum(record.applied for record in ledger.clients) == ledger.tally.updates
    assert ledger.life > 10**9
    for number, record in enumerate(ledger.clients):
        memory = remembered(disk_of(tmp_path, record.name), record)
        known = server.plan.server.remembered(ledger.server, 0, number) if algorithm != "fedasync" else {}
        for name, vector in (known or {}).items():
            torch.testing.assert_close(memory[name], vector, rtol=1e-4, atol=1e-4)


def test_a_site_that_has_seen_the_end_takes_part_again_once_the_run_is_restored(tmp_path: Path) -> None:
    play = Play(tmp_path, "fedasync")

    async def story() -> None:
        site = play.site("a")
        async with site:
            async with served(tmp_path, play.broker.url, "run", 60, text=play.text) as (server, task):
                while server.ledger.tally.updates < 10:
                    await asyncio.sleep(0.01)
                await play.save()
                await asyncio.wait_for(task, 120)
            await site.says("run is finished (updates); 60 updates applied, 0 refused", 60)
            await play.put_back()
            async with served(tmp_path, play.broker.url, "run", 60, text=play.text) as (server, task):
                await asyncio.wait_for(task, 120)
                assert server.ledger.tally.updates == 60

    with running(play.broker), site_logs(play):
        asyncio.run(story())


def test_a_folder_from_before_the_restore_is_refused_and_adds_nothing(tmp_path: Path) -> None:
    play = Play(tmp_path, "fedasync")

    async def story() -> None:
        async with play.site("a"), served(tmp_path, play.broker.url, "run", 10**6, text=play.text) as (server, _):
            while server.ledger.tally.updates < 10:
                await asyncio.sleep(0.01)
            await play.save()
            while server.ledger.tally.updates < 40:
                await asyncio.sleep(0.01)
        await play.put_back()
        shutil.rmtree(tmp_path / "run")
        (tmp_path / "lost").replace(tmp_path / "run")
        async with play.link() as link:
            end = await link.end("LOG-run")
            with pytest.raises(BrokenLogError, match="restored from a backup"):
                async with served(tmp_path, play.broker.url, "run", 10**6, text=play.text) as (_, task):
                    await asyncio.wait_for(task, 120)
            assert await link.end("LOG-run") == end

    with running(play.broker), site_logs(play):
        asyncio.run(story())


def mark(folder: Path, name: str) -> None:
    """Give a client that does not run personal parameters like no other."""
    state = disk_of(folder, name)
    marked = {"personal": torch.full_like(state.memory[0]["personal"], MARK)}
    pending = state.pending
    if pending is not None and pending.memory is not None:
        pending = replace(pending, memory={**pending.memory, **marked})
    state = replace(state, memory={0: {**state.memory[0], **marked}}, pending=pending)
    disk = Disk(folder / name / "state" / "fed" / name, "run")
    disk.save(write_client_state(state))
    disk.close()


@pytest.mark.parametrize(
    ("algorithm", "lost"),
    [
        ("area", ""),
        pytest.param("scaffold", "its disk is lost, too", marks=pytest.mark.slow),
        ("fedasync", "its disk is lost, too"),
    ],
)
def test_personal_parameters_outlast_a_restore(tmp_path: Path, algorithm: str, lost: str) -> None:
    play = Play(tmp_path, algorithm, PERSONAL)

    async def story() -> RunServer:
        async with play.site("a"), served(tmp_path, play.broker.url, "run", 10**6, text=play.text) as (server, _):
            async with play.site("b"):
                await play.grow(server, 5)
            mark(tmp_path, "b")
            async with play.site("b"):
                await play.grow(server, 5)
                await play.save()
                await play.grow(server, 10)
        await play.put_back()
        if lost:
            shutil.rmtree(tmp_path / "b" / "state")
        site = play.site("b")
        async with (
            play.site("a"),
            site,
            served(tmp_path, play.broker.url, "run", 10**6, text=play.text) as (server, _),
        ):
            await play.grow(server, 5)
        assert lost or "b: run was restored from a backup; " in site.log.read_text()
        return server

    with running(play.broker), site_logs(play):
        server = asyncio.run(story())
    for number, record in enumerate(server.ledger.clients):
        memory = remembered(disk_of(tmp_path, record.name), record)
        size = memory["personal"].numel()
        known = server.plan.server.remembered(server.ledger.server, 0, number) if algorithm != "fedasync" else {}
        for name, vector in (known or {}).items():
            assert memory[name].numel() == vector.numel() + size
            torch.testing.assert_close(memory[name][: vector.numel()], vector, rtol=1e-4, atol=1e-4)
    assert size == 90
    assert (memory["personal"] - MARK).abs().max() < 1  # b's, which is the last


def test_local_statistics_outlast_a_restore(tmp_path: Path) -> None:
    play = Play(tmp_path, "fedasync", NORMED)

    async def story() -> None:
        async with play.site("a"), play.site("b"):
            async with served(tmp_path, play.broker.url, "run", 10**6, text=play.text) as (server, _):
                await play.grow(server, 10)
                await play.save()
                await play.grow(server, 10)
            before = server.ledger.tally.updates
            await play.put_back()
            async with served(tmp_path, play.broker.url, "run", 10**6, text=play.text) as (server, _):
                assert server.ledger.tally.updates < before
                await play.grow(server, 10)
                assert not server.ledger.tally.refused

    with running(play.broker), site_logs(play):
        asyncio.run(story())
    kept = disk_of(tmp_path, "b").memory[0]["personal"]  # the means and variances of 16 numbers
    assert kept.numel() == 32
    assert not torch.equal(kept, torch.cat([torch.zeros(16), torch.ones(16)]))
