"""A run that is restored from a backup: its sites are ahead of it, and take over the server's state in a new epoch."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import torch
from sites import Site, running, served

from offbeat.deploy import keys
from offbeat.deploy.admission import APPLIED
from offbeat.deploy.broker import Broker
from offbeat.deploy.client_state import ClientState, read_client_state
from offbeat.deploy.disk import newest, slots
from offbeat.deploy.journal import BrokenLogError
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

[algorithm.{algorithm}]
local = {{ {local} = {{ lr = 0.1, batch = 8 }} }}
"""
ALGORITHMS = {"area": "sgd", "scaffold": "scaffold", "fedasync": "sgd"}


def disk_of(folder: Path, name: str) -> ClientState:
    data = newest(slots(folder / name / "state" / "fed" / name, "run"))[1]
    assert data is not None
    return read_client_state(data)


@contextmanager
def site_logs(play: Play) -> Iterator[None]:
    """Within, both sites' logs have what is said."""
    with logged(play.folder / "a" / "join.log"), logged(play.folder / "b" / "join.log"):
        yield


class Play:
    """A run of two sites, its broker, and what an operator does with it."""

    def __init__(self, folder: Path, algorithm: str) -> None:
        self.folder, self.fed = folder, folder / "fed"
        self.text = TEXT.format(algorithm=algorithm, local=ALGORITHMS[algorithm])
        keys.init(self.fed, ["a", "b"], tls=False)
        self.broker = Broker(folder / "broker", self.fed)
        for name in "ab":
            (folder / name).mkdir()

    @asynccontextmanager
    async def link(self) -> AsyncIterator[Link]:
        async with admin.connected(keys.read_creds(self.fed / "server.creds"), self.broker.url) as link:
            yield link

    def site(self, name: str) -> Site:
        return Site(self.fed / f"{name}.creds", self.broker.url, self.folder / name)

    async def grow(self, server: RunServer, more: int) -> int:
        """Until each client has so many updates more; gives the number of all."""
        wanted = [record.applied + more for record in server.ledger.clients]
        for _ in range(3000):
            if all(record.applied >= least for record, least in zip(server.ledger.clients, wanted, strict=True)):
                return server.ledger.tally.updates
            await asyncio.sleep(0.02)
        raise AssertionError([(record.name, record.applied, wanted) for record in server.ledger.clients])

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
                await stays.says("a: run was restored from a backup; ")
                await again.says("b: run was restored from a backup; ")
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
        mine = disk_of(tmp_path, record.name)
        assert (mine.epoch, mine.nonce) == (record.epoch, record.nonce)
        pending = mine.pending
        applied = pending is not None and (record.seq, record.verdict) == (pending.seq, APPLIED)
        memory = {0: pending.memory} if pending is not None and applied and pending.memory else mine.memory
        known = server.plan.server.remembered(ledger.server, 0, number) if algorithm != "fedasync" else {}
        for name, vector in (known or {}).items():
            torch.testing.assert_close((memory[0] or {})[name], vector, rtol=1e-4, atol=1e-4)


def test_a_site_that_has_seen_the_end_takes_part_again_once_the_run_is_restored(tmp_path: Path) -> None:
    play = Play(tmp_path, "fedasync")

    async def story() -> None:
        site = play.site("a")
        async with site:
            async with served(tmp_path, play.broker.url, "run", 60, text=play.text) as (server, task):
                while server.ledger.tally.updates < 10:
                    await asyncio.sleep(0.01)
                await play.save()
                await asyncio.wait_for(task, 30)
            await site.says("run is finished (updates); 60 updates applied, 0 refused", 10)
            await play.put_back()
            async with served(tmp_path, play.broker.url, "run", 60, text=play.text) as (server, task):
                await asyncio.wait_for(task, 30)
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
                    await asyncio.wait_for(task, 20)
            assert await link.end("LOG-run") == end

    with running(play.broker), site_logs(play):
        asyncio.run(story())
