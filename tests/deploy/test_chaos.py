"""Real processes, killed at random as in a power failure: nothing acknowledged is lost, and training ends as well."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from federation import AREA, Federation

from offbeat.cli.experiment import read
from offbeat.cli.real import Options, plan_of, run_name
from offbeat.deploy import keys
from offbeat.deploy.admission import Limits
from offbeat.deploy.disk import newest, slots
from offbeat.deploy.host import refold
from offbeat.deploy.ledger import Ledger
from offbeat.deploy.link import Link
from offbeat.deploy.memoir import Memoir, read_memoir

PATIENCE = 6.0  # seconds after which a silent client counts as gone


def disturbed(federation: Federation, seconds: float, rng: random.Random) -> Counter[str]:
    """Kill something every few seconds, start it again, and at the end let everything come to rest."""
    killed: Counter[str] = Counter()
    federation.serve("--patience", str(PATIENCE), "--lease", "10")
    for name in federation.names:
        federation.join(name)
    wait_for_updates(federation)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(rng.uniform(0.5, 4.0))
        victim = rng.choice(["server", "broker", "client", "client", "disk"])
        killed[victim] += 1
        if victim == "server":
            federation.kill(federation.server)
            time.sleep(rng.uniform(0, 3))
            federation.serve()
        elif victim == "broker":
            assert federation.broker.process is not None
            federation.broker.process.kill()
            federation.broker.process.wait()
            time.sleep(rng.uniform(0, 3))
            federation.broker.start()
        else:
            name = rng.choice(federation.names)
            federation.kill(federation.clients[name])
            if victim == "disk":
                for path in (federation.folder / "state" / "fed" / name).glob("*.state"):
                    path.unlink()
            time.sleep(rng.uniform(0, 3))
            federation.join(name)
        revive(federation)
    return killed


def revive(federation: Federation) -> None:
    """A client or server that has ended by itself while the run goes on is a mistake."""
    assert federation.server is not None
    assert federation.server.poll() in (None, 0), federation.said("server")[-3000:]
    for name, process in federation.clients.items():
        assert process.poll() in (None, 0), f"{name}: {federation.said(name)[-3000:]}"


def wait_for_updates(federation: Federation, patience: float = 120.0) -> None:
    until = time.monotonic() + patience
    while not list((federation.folder / "state").rglob("*.state")):
        assert time.monotonic() < until
        time.sleep(0.1)


def final_ledger(federation: Federation) -> Ledger:
    """The state at the end of the log."""
    experiment = read(federation.file, [f"problem.clients={len(federation.names)}"])
    options, spec = Options(limits=Limits(lease=10.0, patience=PATIENCE)), experiment.runs[0]
    plan = plan_of(experiment, spec, run_name(spec, federation.out / spec.folder), federation.names, options)

    async def fold() -> Ledger:
        link = Link(keys.read_creds(federation.keys / keys.SERVER), federation.url)
        await link.connect(10)
        try:
            return await refold(link, plan)
        finally:
            await link.close()

    return asyncio.run(fold())


def memoir_of(federation: Federation, name: str) -> Memoir:
    folder = federation.folder / "state" / "fed" / name
    (run,) = {path.name.removesuffix(".0.state") for path in folder.glob("*.0.state")}
    _, data = newest(slots(folder, run))
    assert data is not None
    return read_memoir(data)


def check(federation: Federation, ledger: Ledger) -> None:
    """What clients know is what the server has applied, and AREA's sum is whole."""
    total: Any = 0.0
    for name, seat in zip(federation.names, ledger.seats, strict=True):
        memoir = memoir_of(federation, name)
        if not memoir.accepted and memoir.epoch == seat.epoch + 1:  # its disk was lost when the run was all but over
            assert memoir.settled == (seat.epoch, seat.seq), name
            total = total + memoir.memory[0]["y"]
            continue
        assert (memoir.epoch, memoir.nonce) == (seat.epoch, seat.nonce), name
        assert memoir.seq == seat.seq, name
        pending = memoir.pending  # the last one: its verdict was heard, and nothing was sent after it
        moved = pending is not None and pending.memory is not None and seat.verdict == "applied"
        assert pending is None or (pending.digest, pending.seq) == (seat.digest, seat.seq), name
        total = total + (pending.memory["y"] if moved and pending and pending.memory else memoir.memory[0]["y"])
    state = ledger.server
    torch.testing.assert_close(total / len(federation.names), state.model.vector + state.u, atol=1e-4, rtol=0)


def undisturbed(folder: Path, text: str) -> float:
    with Federation(folder, text) as federation:
        federation.serve()
        for name in federation.names:
            federation.join(name)
        return float(federation.wait(600)["metrics"]["accuracy"])


CALM = 60.0  # seconds without kills at the end: clients that are away leave the others a model that lacks them


def chaos(folder: Path, seconds: float, seed: int) -> tuple[dict[str, Any], Counter[str], Ledger]:
    text = AREA.replace("TIME", str(seconds + CALM))
    with Federation(folder, text) as federation:
        killed = disturbed(federation, seconds, random.Random(seed))
        result = federation.wait(CALM + 180)
        time.sleep(8)
        ledger = final_ledger(federation)
        check(federation, ledger)
    return result, killed, ledger


@pytest.mark.slow
def test_three_minutes_of_kill_minus_nine(tmp_path: Path) -> None:
    result, killed, ledger = chaos(tmp_path / "chaos", 180.0, seed=1)
    print(dict(killed), result["updates"], ledger.tally.refused, result["metrics"], [s.epoch for s in ledger.seats])
    assert min(killed[what] for what in ("server", "broker", "client", "disk")) >= 3
    assert result["updates"] > 500
    calm = undisturbed(tmp_path / "calm", AREA.replace("TIME", "60"))
    assert abs(result["metrics"]["accuracy"] - calm) < 0.01
