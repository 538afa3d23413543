"""A real run that diverges: its server says so when it is served, and again when it is served again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from logs import plan

from offbeat.algorithms import FedAsync
from offbeat.core.errors import DivergedError
from offbeat.core.vectors import Vector
from offbeat.deploy import identity, keys
from offbeat.deploy.broker import Broker
from offbeat.deploy.link import Link
from offbeat.deploy.server import RunServer


def nowhere(task: int, vector: Vector) -> dict[str, float]:
    return {"loss": float("nan")}


async def serve(folder: Path, url: str) -> None:
    link = Link(identity.read_creds(folder / "fed" / "server.creds"), url)
    await link.connect(60)
    try:
        made = plan(FedAsync(lr=0.1))
        roster = identity.read_roster(folder / "fed")
        server = RunServer(made, link, folder / "run", {"run": "run"}, roster, measure=nowhere, every=1.0, wait=0)
        await asyncio.wait_for(server.run(), 120)
    finally:
        await link.close()


def test_a_loss_of_nan_ends_the_run_and_its_folder_remembers(tmp_path: Path) -> None:
    keys.init(tmp_path / "fed", ["a", "b"], tls=False)
    broker = Broker(tmp_path / "broker", tmp_path / "fed")
    broker.start()
    try:
        for _ in range(2):
            with pytest.raises(DivergedError, match="the loss of task 0 is nan at time"):
                asyncio.run(serve(tmp_path, broker.url))
    finally:
        broker.stop()
