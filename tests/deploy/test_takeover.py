"""Two servers, three brokers and four clients as processes, killed and halted at random: the run goes on, nothing that
was acknowledged is lost, and nothing counts twice.

What happened is found out from outside: from what clients write down of the verdicts they hear (`witnessing`), from
their disks, and from the log with the brokers' own time stamps. CHAOS_SECONDS sets the duration, CHAOS_SEED the order.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import witnessing
from cluster import Cluster
from command import offbeat
from federation import AREA, PATIENCE, Federation, check, connected, plan_for

from offbeat.core.errors import OffbeatError
from offbeat.deploy import encoding, identity, wire
from offbeat.deploy.admission import APPLIED
from offbeat.deploy.broker import free_port
from offbeat.deploy.connection import FAILURES
from offbeat.deploy.journal import Chain, LogAudit, Scribe, UncertainError
from offbeat.deploy.ledger import Ledger
from offbeat.deploy.link import Link
from offbeat.deploy.reducer import Reducer
from offbeat.deploy.refold import fingerprint, mended
from offbeat.deploy.server import NAME
from offbeat.deploy.streams import BrokerLog, StreamReader
from offbeat.experiment.real import saved_identity

SECONDS = float(os.environ.get("CHAOS_SECONDS", "300"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "1"))
CALM = 45.0  # seconds without faults before the run ends, less what the last fault takes
SOON = 10.0  # seconds within which another server leads
FAULTS = {
    ("leader", "kill"): 4,
    ("leader", "halt"): 2,
    ("standby", "kill"): 1,
    ("standby", "halt"): 1,
    ("broker", "kill"): 2,
    ("broker", "halt"): 2,
    ("client", "kill"): 3,
    ("client", "halt"): 2,
}


class Death(NamedTuple):
    """A leader that was killed. calm: the brokers and the other server were well, and stayed so."""

    at: float
    leader: str
    calm: bool


class Pair(Federation):
    """A federation with two servers, whose clients have witnesses."""

    def __init__(self, folder: Path, text: str) -> None:
        super().__init__(folder, text)
        self.servers: list[subprocess.Popen[bytes] | None] = [None, None]
        self.ports = [free_port(), free_port()]

    @property
    def outs(self) -> list[Path]:
        return [self.out, self.folder / "other"]

    @property
    def run(self) -> str:
        identity = saved_identity(self.out / "area-0")
        assert identity is not None
        return identity.run

    def program(self, name: str) -> list[str]:
        return [sys.executable, witnessing.__file__, str(self.folder / f"{name}.verdicts")]

    def serve_as(self, number: int) -> None:
        where = ("--keys", self.keys / identity.SERVER, "--nats", self.url, "--out", self.outs[number])
        limits = ("--patience", PATIENCE, "--lease", 10, "--replicas", 3)
        others = ("--metrics", self.ports[number], "--json")
        self.servers[number] = self._start(f"server{number}", "serve", self.file, *where, *limits, *others)

    def ready(self, number: int) -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.ports[number]}/readyz", timeout=2).close()
        except OSError:
            return False
        return True

    def leader(self) -> str:
        """Who has written the last record of the log; "" if no broker can say so just now."""

        async def look() -> str:
            try:
                link = await connected(self)
            except OffbeatError:
                return ""
            try:
                stream = BrokerLog(link, self.run)
                raw = await stream.read(await stream.end())
                return scribe_of(self, link).read(raw).leader if raw is not None else ""
            except (*FAILURES, UncertainError):
                return ""
            finally:
                await link.close()

        return asyncio.run(look())

    def number(self, leader: str) -> int:
        return [(out / "area-0" / NAME).read_text() for out in self.outs].index(leader)

    def alive(self) -> None:
        """Whoever ends by itself while the run goes on has a fault."""
        named = {**{f"server{n}": process for n, process in enumerate(self.servers)}, **self.clients}
        for name, process in named.items():
            assert process is None or process.poll() is None, f"{name}: {process.poll()} {self.said(name)[-3000:]}"

    def stop(self) -> None:
        for process in [*self.servers, *self.clients.values()]:
            if process is not None:
                process.kill()
                process.wait()


def scribe_of(federation: Pair, link: Link) -> Scribe:
    return Scribe(link.creds.federation, federation.run, link.ours)


def wait_until(what: Callable[[], Any], patience: float, why: str) -> None:
    until = time.monotonic() + patience
    while not what():
        assert time.monotonic() < until, why
        time.sleep(0.1)


# Faults


@dataclass
class Chaos:
    """Kills and halts in random order. Of the brokers one at a time, and whatever is killed is started again."""

    pair: Pair
    cluster: Cluster
    rng: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    deaths: list[Death] = field(default_factory=list)

    def go_on(self, seconds: float) -> None:
        until, bag = time.monotonic() + seconds, list[tuple[str, str]]()
        while time.monotonic() < until:
            if not bag:  # every kind in every round, in another order
                bag = [fault for fault, weight in FAULTS.items() for _ in range(weight)]
                self.rng.shuffle(bag)
            time.sleep(self.rng.uniform(0.3, 2.0))
            self.pair.alive()
            who, how = bag.pop()
            print(f"{until - time.monotonic():6.1f} s left: {who} {how}", flush=True)
            self.counts[f"{who} {how}"] += 1
            if who == "broker":
                self._broker(how)
            elif who == "client":
                self._client(self.rng.choice(self.pair.names), how)
            else:
                self._server(who, how)

    def well(self) -> bool:
        return self.cluster.healthy() and all(map(self.pair.ready, (0, 1))) and self.pair.leader() != ""

    def _client(self, name: str, how: str) -> None:
        process = self.pair.clients[name]
        if how == "kill":
            self.pair.kill(process)
            time.sleep(self.rng.uniform(0, 3))
            self.pair.join(name)
        else:
            self._halt(process, self.rng.uniform(0.5, PATIENCE + 3))

    def _halt(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)

    def _server(self, who: str, how: str) -> None:
        wait_until(self.well, 60, f"{self.pair.said('server0')[-2000:]}\n{self.pair.said('server1')[-2000:]}")
        leader = self.pair.leader()
        number = self.pair.number(leader) if who == "leader" else 1 - self.pair.number(leader)
        process = self.pair.servers[number]
        assert process is not None
        if how == "halt":
            self._halt(process, self.rng.uniform(0.5, 9.0))
            return
        at = time.time()
        self.pair.kill(process)
        if who == "leader":
            self.deaths.append(Death(at, leader, True))
            wait_until(lambda: self.pair.leader() not in ("", leader), 30, "nobody takes over")
        time.sleep(self.rng.uniform(0, 3))
        self.pair.serve_as(number)

    def leader_and_broker(self, number: int, how: str) -> None:
        """Both at the same moment; the other server takes over before either is there again."""
        wait_until(self.well, 60, "a server or a broker does not come back")
        leader = self.pair.leader()
        first = self.pair.number(leader)
        self.deaths.append(Death(time.time(), leader, False))
        (self.cluster.kill if how == "kill" else self.cluster.halt)(number)
        self.pair.kill(self.pair.servers[first])
        wait_until(lambda: self.pair.leader() not in ("", leader), 60, "nobody takes over")
        (self.cluster.start if how == "kill" else self.cluster.resume)(number)
        self.pair.serve_as(first)

    def _broker(self, how: str) -> None:
        """Meanwhile, a client or the leader may be killed as well."""
        wait_until(self.cluster.healthy, 60, "a broker does not come back")
        number = self.rng.randrange(3)
        (self.cluster.kill if how == "kill" else self.cluster.halt)(number)
        until = time.monotonic() + self.rng.uniform(1, 8)
        also = self.rng.choice(["", "", "client", "leader"])
        if also == "client":
            self.counts["client kill"] += 1
            self._client(self.rng.choice(self.pair.names), "kill")
        elif also == "leader" and (leader := self.pair.leader()):
            self.counts["leader kill"] += 1
            self.deaths.append(Death(time.time(), leader, False))
            self.pair.kill(self.pair.servers[self.pair.number(leader)])
            self.pair.serve_as(self.pair.number(leader))
        time.sleep(max(0.0, until - time.monotonic()))
        (self.cluster.start if how == "kill" else self.cluster.resume)(number)


# What was


class Said(NamedTuple):
    """A record of the log. at: when the broker took it.   message: (client, epoch, number, digest) of a result."""

    at: float
    term: int
    sender: str
    message: tuple[str, int, int, str] | None
    job: int
    code: str


class TimedReader(StreamReader):
    """A reader that also notes when the broker took each message."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.times: dict[int, float] = {}

    async def _hear(self, generation: int, message: Any) -> None:
        if (message.headers or {}).get("Status") is None:
            self.times[message.metadata.sequence.stream] = message.metadata.timestamp.timestamp()
        await super()._hear(generation, message)


@dataclass
class Account:
    """The whole log, verified and folded by somebody who took no part."""

    records: list[Said]
    fingerprints: dict[int, str]  # by position
    ledger: Ledger


def account(pair: Pair, positions: set[int]) -> Account:
    async def read() -> Account:
        link = await connected(pair)
        try:
            plan, scribe, entries = plan_for(pair), scribe_of(pair, link), asyncio.Queue[tuple[int, bytes]]()
            reducer, said, prints = Reducer(plan), list[Said](), dict[int, str]()
            audit = LogAudit(scribe, Chain(), lambda seq: mended(link, plan.run, seq))
            reader = TimedReader(link, f"LOG-{plan.run}", lambda n, _, raw: entries.put_nowait((n, raw)))
            end = await link.end(f"LOG-{plan.run}")
            await reader.start(0)
            while len(said) < end:
                for record, _ in await audit.take(*await asyncio.wait_for(entries.get(), 30)):
                    entry = scribe.entry(record)
                    header: Any = wire.heard(encoding.unpack(entry.data))
                    trained = isinstance(header, wire.Trained)
                    message = (entry.sender, header.epoch, header.seq, encoding.digest(entry.data)) if trained else None
                    job = header.job if trained else -1
                    at = reader.times.get(record.seq, 0.0)
                    said.append(Said(at, record.term, entry.sender, message, job, reducer.fold(entry)))
                    if record.seq in positions:
                        prints[record.seq] = fingerprint(reducer.ledger)
            await reader.stop()
            assert not audit.mended, audit.mended
            return Account(said, prints, reducer.ledger)
        finally:
            await link.close()

    return asyncio.run(read())


def witnessed(pair: Pair) -> list[tuple[str, int, int, str]]:
    """What clients were told was applied, as often as they were."""
    lines = [json.loads(line) for n in pair.names for line in (pair.folder / f"{n}.verdicts").read_text().splitlines()]
    return [(client, epoch, seq, digest) for client, epoch, seq, digest, verdict in lines if verdict == APPLIED]


def taken_over(records: list[Said], death: Death) -> tuple[float, float]:
    """Seconds from a leader's death to the first record of the next term, and to the first update applied in it.

    With a broker down, the server that was killed is started again at once and may lead itself."""
    term = max(said.term for said in records if said.at <= death.at)
    after = [said for said in records if said.term > term]
    served = next(said.at for said in after if said.code == APPLIED)
    return after[0].at - death.at, served - death.at


def longest_pause(records: list[Said]) -> float:
    times = [said.at for said in records if said.code == APPLIED]
    return max(after - before for before, after in pairwise(times))


# The test


def results(pair: Pair, patience: float) -> list[dict[str, Any]]:
    """What both servers print at the end."""
    found = []
    for number, process in enumerate(pair.servers):
        assert process is not None
        assert process.wait(patience) == 0, pair.said(f"server{number}")[-3000:]
        found.append(json.loads((pair.folder / f"server{number}.out").read_text())["runs"][0])
    return found


@contextlib.contextmanager
def chaotic(folder: Path, seconds: float) -> Iterator[Chaos]:
    """Two servers, one of which leads, three brokers and four clients at work, for so many seconds."""
    pair = Pair(folder / "pair", AREA.replace("TIME", str(seconds)))
    with Cluster(folder / "brokers", pair.keys) as cluster:
        pair.url = cluster.url
        chaos = Chaos(pair, cluster, random.Random(SEED))
        try:
            pair.serve_as(0)
            for name in pair.names:
                pair.join(name)
            wait_until(lambda: pair.ready(0), 60, "the first server does not lead")
            pair.serve_as(1)
            begun = pair.folder / "site0.verdicts"
            wait_until(lambda: begun.exists() and begun.stat().st_size and chaos.well(), 60, "it does not begin")
            yield chaos
        finally:
            pair.stop()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "halt"])
def test_another_server_leads_soon_although_a_broker_goes_down_with_the_first(tmp_path: Path, how: str) -> None:
    """Each broker in turn: one leads those that keep the log, and the server that stands by is connected to one."""
    with chaotic(tmp_path, 1e6) as chaos:
        for number in [*range(3)] * ROUNDS:
            chaos.leader_and_broker(number, how)
        wait_until(chaos.well, 60, "a server or a broker does not come back")
        time.sleep(3.0)  # until updates are applied again
        records = account(chaos.pair, set()).records
        over = [taken_over(records, death) for death in chaos.deaths]
        print("led", [round(led, 1) for led, _ in over], "applied", [round(served, 1) for _, served in over])
        assert max(led for led, _ in over) < SOON


@pytest.mark.slow
def test_two_servers_three_brokers_and_clients_are_killed_and_halted(tmp_path: Path) -> None:
    with chaotic(tmp_path, SECONDS + CALM) as chaos:
        pair = chaos.pair
        chaos.go_on(SECONDS)
        pair.alive()
        first, second = results(pair, CALM + 90)
        for name, process in pair.clients.items():
            assert process.wait(30) == 0, f"{name}: {pair.said(name)[-3000:]}"
        where = ("--keys", pair.keys / identity.SERVER, "--nats", pair.url)
        made = [json.loads((out / "area-0" / "result.json").read_text())["real"] for out in pair.outs]
        seen = account(pair, {each["position"] for each in made})
        applied = [said for said in seen.records if said.code == APPLIED]
        told = witnessed(pair)

        # nothing that was acknowledged is lost, and nothing counts twice
        assert set(told) == {said.message for said in applied}
        assert len({said.message for said in applied}) == len({said.job for said in applied}) == len(applied)
        assert first["updates"] == second["updates"] == len(applied)
        check(pair, seen.ledger)  # clients' disks, and mean(y_i) = x + u

        # the log folded by others gives what each of the servers has, which is the same
        assert [seen.fingerprints[each["position"]] for each in made] == [each["fingerprint"] for each in made]
        models = [(out / "area-0" / "model.safetensors").read_bytes() for out in pair.outs]
        assert models[0] == models[1]
        for out in pair.outs:
            folded = offbeat("replay", out / "area-0", *where)
            assert folded.code == 0, folded.err

        over = [(death, *taken_over(seen.records, death)) for death in chaos.deaths]
        calm = [(led, served) for death, led, served in over if death.calm]
        print(
            f"{dict(sorted(chaos.counts.items()))}; {len(applied)} updates, {len(told)} verdicts, "
            f"{seen.ledger.term} terms, {seen.ledger.tally.refused}, repeated {seen.ledger.tally.repeated}, "
            f"longest pause {longest_pause(seen.records):.1f} s, {first['metrics']}"
        )
        print("another leads after", sorted(round(led, 1) for led, _ in calm), "s, and applies an update after")
        print(sorted(round(served, 1) for _, served in calm), "s; with a broker down as well", end=" ")
        print(sorted(round(led, 1) for death, led, _ in over if not death.calm), "s")
        assert calm
        assert max(led for _, led, _ in over) < SOON
        assert first["metrics"]["accuracy"] > 0.9
