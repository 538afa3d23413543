"""Real processes, killed at random as in a power failure: nothing acknowledged is lost, and training ends as well."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from federation import AREA, PATIENCE, Federation, check, final_ledger, revive, wait_for_updates

from offbeat.deploy.ledger import Ledger


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
    print(dict(killed), result["updates"], ledger.tally.refused, result["metrics"], [s.epoch for s in ledger.clients])
    assert min(killed[what] for what in ("server", "broker", "client", "disk")) >= 3
    assert result["updates"] > 500
    calm = undisturbed(tmp_path / "calm", AREA.replace("TIME", "60"))
    assert abs(result["metrics"]["accuracy"] - calm) < 0.01
