"""A sweep over a Ray cluster of three nodes on this machine, one of which is killed."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from command import QUADRATIC, offbeat

from offbeat.experiment import sweep, sweep_workers
from offbeat.experiment.grid import Grid
from offbeat.watch.files import UNFINISHED

TABLE = {
    "trials": 3,
    "until": {"updates": 1500},
    "evaluate": {"every": 5.0},
    "problem": {"data": "quadratic", "dim": 30, "clients": 8},
    "timing": {"exponential": 1.0},
    "algorithm": {"fedbuff": {"size": 4, "local": {"sgd": {"lr": 0.1, "steps": 5}}}},
    "sweep": {"algorithm.fedbuff.local.sgd.lr": [0.05, 0.1, 0.2, 0.3]},
}


def swept(folder: Path, **options: Any) -> list[dict[str, Any]]:
    found = sweep.work(*_made(folder, sweep.Options(**options)), progress=False)
    return [{**run.to_json(), "wall_s": None, "executor_reason": None} for run in found]


def _made(folder: Path, options: sweep.Options) -> tuple[Path, Grid, sweep.Options]:
    grid = Grid(TABLE)
    return sweep.create(folder, grid, options), grid, options


@pytest.mark.parametrize("words", ["run --workers 1", "sweep", "tune", "suite v1 --quick", "reproduce area-table3"])
def test_an_address_where_nobody_answers_leaves_nothing_behind(words: str, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    command, *options = words.split()
    (tmp_path / "experiment.toml").write_text(QUADRATIC if command != "sweep" else "trials = 2\n" + QUADRATIC)
    file = [] if command in ("suite", "reproduce") else [tmp_path / "experiment.toml"]
    refused = offbeat(command, *options, *file, "--ray", "127.0.0.1:1", "--out", tmp_path / "out")
    assert "ray = '127.0.0.1:1': no Ray cluster answers there" in refused.err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_node_that_is_killed_costs_nothing_but_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setattr(sweep_workers, "SAVE", 0.5)
    alone = swept(tmp_path / "alone", workers=1)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        folder, killed = tmp_path / "spread", threading.Event()

        def kill() -> None:
            while not list(folder.glob("runs/*/checkpoint.safetensors")) and not (folder / UNFINISHED).exists():
                time.sleep(0.05)
            cluster.remove_node(nodes[0], allow_graceful=False)
            killed.set()

        threading.Thread(target=kill, daemon=True).start()
        spread = swept(folder, ray=cluster.address)
        assert killed.is_set()
    finally:
        import ray

        ray.shutdown()
        cluster.shutdown()
    assert spread == alone
    assert not list(folder.rglob("*checkpoint*"))
