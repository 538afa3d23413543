"""Secure aggregation with real processes that are killed: every sum is that of its clients' updates."""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import OFFBEAT, Federation, check, connected, plan_for

from offbeat.core.events import Update
from offbeat.core.sums import Cohort
from offbeat.deploy import identity, keys, wire
from offbeat.deploy.helping import context_of
from offbeat.deploy.ledger import Ledger
from offbeat.deploy.refold import Reducer, refold
from offbeat.privacy.secure.masks import Unmasker
from offbeat.privacy.secure.tickets import MaskTicket

SECURE = """
until = { time = TIME }
evaluate = { every = 5.0 }

[problem]
data = "digits"
clients = CLIENTS
split = { dirichlet = 0.5 }

[secure]
cohort = COHORT

[[algorithm]]
name = "fedbuff"
size = SIZE
local = { sgd = { lr = 0.5, steps = 4, batch = 32 } }
"""


class SecureFederation(Federation):
    """Clients share processes, `shares` of them; a helper takes part."""

    def __init__(self, folder: Path, text: str, clients: int, shares: int, cohort: int, helped: bool = True) -> None:
        super().__init__(folder, text, clients, tls=False)
        if helped:
            keys.add_helper(self.keys)
        self.cohort = cohort
        self.shares = [self.names[at::shares] for at in range(shares)]

    def join_share(self, at: int) -> None:
        files = [word for name in self.shares[at] for word in ("--keys", self.keys / f"{name}.creds")]
        words = ["join", *files, "--nats", self.url, "--state", self.folder / "state", "--once"]
        self.clients[f"share{at}"] = self._start(f"share{at}", *words, "--cohort", self.cohort)

    def help(self) -> None:
        words = ["helper", "--keys", self.keys / "helper.creds", "--nats", self.url, "--state", self.folder / "helper"]
        self.clients["helper"] = self._start("helper", *words, "--cohort", self.cohort)


class Opens(Reducer):
    """Folds the log, and takes the masks off every single update: with the helper's key, which no server has."""

    secret = b""

    def __init__(self, *given: Any) -> None:
        self.single: dict[str, torch.Tensor] = {}  # once -> the whole numbers of one update
        self.plain: Any = None  # the model in double precision, by plain FedBuff over the same updates
        self.taken = 0  # sums
        self.wrong: list[str] = []  # an error in here would be quarantined
        super().__init__(*given)

    def collect(self, cohort: Cohort, update: Update, result: wire.Trained) -> None:
        super().collect(cohort, update, result)
        name, epoch, seq, seal, once = cohort.tickets[-1]
        ticket = MaskTicket(name, epoch, seq, bytes.fromhex(seal), bytes.fromhex(once))
        mask = Unmasker(self.secret).total(context_of(self.plan, update.job.task), (ticket,))
        self.single[once] = (update["delta"] - torch.from_numpy(mask.view(np.int32))).long()
        assert self.plan.secure is not None
        if int(self.single[once].abs().max()) > self.plan.secure.largest(self.plan.server.adds() or 1):
            self.wrong.append(f"update {seq} of {name} is not one that a client sends")

    def summed(self, number: int, masks: Any = None) -> None:
        assert self.plan.secure is not None
        cohort = self.ledger.closed[number]
        total = sum(self.single[ticket[-1]] for ticket in cohort.tickets)
        assert isinstance(total, torch.Tensor)
        before = self.plan.initial[0].double() if self.plain is None else self.plain
        self.plain = before - total.double() * self.plan.secure.unit / cohort.count
        self.taken += 1
        super().summed(number, masks)


def run(folder: Path, seconds: float, clients: int, size: int, cohort: int, shares: int, kill: bool) -> Any:
    text = SECURE.replace("TIME", str(seconds)).replace("CLIENTS", str(clients))
    text = text.replace("SIZE", str(size)).replace("COHORT", str(cohort))
    killed: Counter[str] = Counter()
    with SecureFederation(folder, text, clients, shares, cohort) as federation:
        federation.serve("--patience", "6", "--lease", "10")
        federation.help()
        for at in range(shares):
            federation.join_share(at)
        rng = random.Random(1)
        while not list((folder / "state").rglob("*.state")):
            time.sleep(0.1)
        until = time.monotonic() + seconds * 0.75
        while kill and time.monotonic() < until:
            time.sleep(rng.uniform(1.0, 5.0))
            victim = rng.choice(["server", "helper", *(f"share{at}" for at in range(shares))])
            killed[victim.rstrip("0123456789")] += 1
            federation.kill(federation.server if victim == "server" else federation.clients[victim])
            time.sleep(rng.uniform(0, 2))
            if victim == "server":
                federation.serve()
            elif victim == "helper":
                federation.help()
            else:
                federation.join_share(int(victim.removeprefix("share")))
        result = federation.wait(seconds + 180)
        ledger, reducer = asyncio.run(fold(federation))
    return result, killed, ledger, reducer


async def fold(federation: SecureFederation) -> tuple[Ledger, Opens]:
    Opens.secret = identity.read_creds(federation.keys / "helper.creds").seal
    link, made = await connected(federation), list[Opens]()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("offbeat.deploy.refold.Reducer", lambda *given: made.append(Opens(*given)) or made[0])
            return await refold(link, replace(plan_for(federation), federation="fed")), made[0]
    finally:
        await link.close()


def same_as_plain(ledger: Ledger, opened: Opens) -> None:
    """The model is the one that plain FedBuff makes of the same updates, to rounding."""
    assert opened.wrong == []
    assert ledger.unopened == 0
    assert ledger.server.model.version == opened.taken
    torch.testing.assert_close(ledger.server.model.vector.double(), opened.plain, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_thirty_clients_killed_for_a_minute_end_with_the_model_of_plain_sums(tmp_path: Path) -> None:
    result, killed, ledger, opened = run(tmp_path, 80.0, clients=30, size=30, cohort=20, shares=5, kill=True)
    print(dict(killed), result["updates"], result["metrics"], opened.taken, ledger.tally.refused)
    assert min(killed[what] for what in ("server", "helper", "share")) > 0
    assert opened.taken >= 3
    same_as_plain(ledger, opened)


@pytest.mark.slow
def test_every_sum_of_a_real_run_is_that_of_its_updates(tmp_path: Path) -> None:
    _, _, ledger, opened = run(tmp_path, 15.0, clients=4, size=4, cohort=3, shares=2, kill=False)
    assert opened.taken >= 3
    same_as_plain(ledger, opened)


async def folded(federation: SecureFederation) -> Ledger:
    link = await connected(federation)
    try:
        return await refold(link, replace(plan_for(federation), federation="fed"))
    finally:
        await link.close()


COHORT = """
until = { updates = UPDATES }
evaluate = { every = 10.0 }

[problem]
data = "digits"
clients = 12
split = { dirichlet = 0.5 }

[secure]
cohort = 4
mode = "cohort"

[algorithm.area]
size = 8
local = { sgd = { lr = 0.5, steps = 4, batch = 32 } }
"""


@pytest.mark.slow
def test_clients_that_mask_for_each_other_are_killed_and_area_s_sum_is_whole(tmp_path: Path) -> None:
    """Every residual that a client remembers as sent is in the server's model, once: the sums were exact."""
    killed: Counter[str] = Counter()
    rng, began = random.Random(2), time.monotonic()
    with SecureFederation(tmp_path, COHORT.replace("UPDATES", "1000"), 12, 4, 4, helped=False) as federation:
        federation.serve("--patience", "6", "--lease", "60")
        for at in range(4):
            federation.join_share(at)
        while time.monotonic() - began < 60 and federation.server is not None and federation.server.poll() is None:
            time.sleep(rng.uniform(2.0, 6.0))
            victim = rng.choice(["server", *(f"share{at}" for at in range(4))])
            if victim == "server":
                federation.kill(federation.server)
                federation.serve()
            else:
                federation.kill(federation.clients[victim])
                federation.join_share(int(victim.removeprefix("share")))
            killed[victim.rstrip("0123")] += 1
        result = federation.wait(240)
        ledger = asyncio.run(folded(federation))
        spent = time.monotonic() - began
        print(dict(killed), result["updates"], result["metrics"], ledger.sums, ledger.aborted, f"{spent:.0f} s")
        assert (ledger.unopened, ledger.closed) == (0, {})
        check(federation, ledger)


@pytest.mark.slow
def test_up_needs_nothing_else_for_cohorts_and_its_log_can_be_replayed(tmp_path: Path) -> None:
    (tmp_path / "cohort.toml").write_text(COHORT.replace("UPDATES", "40"))
    out, said = tmp_path / "out", dict[str, str]()
    for words in (["up", tmp_path / "cohort.toml", "--processes", "2", "--out", out], ["replay", out / "area-0"]):
        done = subprocess.run([*OFFBEAT, *map(str, words)], capture_output=True, text=True, timeout=300, check=True)
        said[str(words[0])] = done.stdout + done.stderr
    assert "40 updates" in said["up"]
    assert "give the same state" in said["replay"]
