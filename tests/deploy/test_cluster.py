"""A cluster of three brokers that are killed one after the other: the run goes on, and nothing acknowledged is lost."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest
from cluster import Cluster
from command import events, offbeat
from federation import AREA, PATIENCE, Federation, check, final_ledger, revive, wait_for_updates

from offbeat.deploy.identity import SERVER


@pytest.mark.slow
def test_a_run_outlives_each_broker_of_a_cluster(tmp_path: Path) -> None:
    federation = Federation(tmp_path, AREA.replace("TIME", "75"))
    with Cluster(tmp_path / "brokers", federation.keys) as cluster:
        federation.url = cluster.url
        try:
            federation.serve("--replicas", "3", "--patience", str(PATIENCE), "--lease", "10")
            for name in federation.names:
                federation.join(name)
            wait_for_updates(federation)
            time.sleep(5)
            for number in range(3):
                cluster.kill(number)
                time.sleep(10)
                cluster.start(number)
                time.sleep(8)
                revive(federation)
            result = federation.wait(180)
            time.sleep(4)
            ledger = final_ledger(federation)
            check(federation, ledger)
            where = ("--keys", federation.keys / SERVER, "--nats", federation.url)
            folded = offbeat("replay", federation.out / "area-0", *where)
            assert folded.code == 0, folded.err
            times = [row["time"] for row in events(federation.out / "area-0") if row["event"] == "Arrived"]
            pause = max(after - before for before, after in pairwise(times))
            print(result["updates"], result["metrics"], ledger.tally, folded.out, f"longest pause {pause:.1f} s")
            assert result["updates"] > 500
            assert result["metrics"]["accuracy"] > 0.9
        finally:
            federation.stop()


@pytest.mark.slow
def test_more_replicas_than_brokers_are_refused(tmp_path: Path) -> None:
    with Federation(tmp_path, AREA.replace("TIME", "5")) as federation:
        federation.serve("--replicas", "3")
        assert federation.server is not None
        assert federation.server.wait(60) == 1
        assert "--replicas" in federation.said("server")
