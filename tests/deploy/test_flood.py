"""One client sends as fast as it can: the others go on, and what it sends is neither folded nor kept."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from served import Served, staged, until

from offbeat.deploy.gate import BURST, RATE, USELESS, Budget
from offbeat.deploy.link import WAITING

FLOOD = """
import asyncio, sys, time
from pathlib import Path
from offbeat.deploy import keys, wire, encoding, identity
from offbeat.deploy.link import Link
from offbeat.deploy.questions import channel_of

async def main():
    link = Link(identity.read_creds(Path(sys.argv[1])), sys.argv[2])
    await link.connect(10)
    hello = encoding.pack("hello", {"run": "run", "client": "carol", "epoch": 1, "nonce": "c"})
    signed = [channel_of(link.creds, "run").seal("entry", hello) for _ in range(100)]
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    until, sent = time.monotonic() + float(sys.argv[3]), 0
    while time.monotonic() < until:
        for each in signed:
            await link.say("up.run", each)
            await link.say("up.run", b"rubbish")
        sent += 200
        await link.client.flush()
    print(sent)

asyncio.run(main())
"""


def test_a_budget_is_spent_by_what_brings_nothing_and_comes_back_with_time() -> None:
    budget = Budget(1000, 0.0)
    for _ in range(int(BURST / USELESS) + 1):
        assert budget.wait(0.0) == 0.0
        budget.spend(100, USELESS)
    assert 0.0 < budget.wait(0.0) < 1.0
    assert budget.wait(1.0) == 0.0
    for _ in range(int(BURST + RATE)):  # useful work at a thousand a second does not wait
        budget.spend(100)
    assert budget.wait(5.0) == 0.0


@pytest.mark.slow
def test_a_client_at_full_tilt_costs_the_others_little(tmp_path: Path) -> None:
    async def act(served: Served) -> None:
        server, _ = await served.serve("one", wait=2)
        for name in ("alice", "bob"):
            await served.join(name)
        await until(lambda: server.ledger.tally.updates > 50)

        async def rate(seconds: float) -> float:
            before = server.ledger.tally.updates
            await asyncio.sleep(seconds)
            return (server.ledger.tally.updates - before) / seconds

        words = [sys.executable, "-c", FLOOD, str(tmp_path / "fed" / "carol.creds"), served.broker.url, "10"]
        pipe = subprocess.PIPE
        flood = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
        assert flood.stdin is not None
        assert flood.stdout is not None
        assert await asyncio.to_thread(flood.stdout.readline) == "ready\n"
        os.setpriority(os.PRIO_PROCESS, flood.pid, 19)  # it would be another machine's processor
        calm = await rate(6.0)
        flood.stdin.write("go\n")
        flood.stdin.flush()
        await until(lambda: server.gate.held["carol"] > 0)
        position, began = server.ledger.position, time.monotonic()
        flooded = await rate(6.0)
        entries = server.ledger.position - position
        updates = flooded * (time.monotonic() - began)
        sent = int((await asyncio.to_thread(flood.communicate))[0])
        print(f"{calm:.0f} updates/s alone, {flooded:.0f} beside {sent / 10:.0f} messages/s, lag {server.lag:.2f} s")
        assert entries < updates + 60 * RATE / USELESS  # of the flood, only what the budget allows is in the log
        assert server.backlog[0] <= WAITING * len(served.names)
        assert flooded > 0.8 * calm

    staged(Served(tmp_path), act)
