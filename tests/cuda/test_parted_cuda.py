"""Dropout, running statistics and personal parts on a GPU: the masks and, to rounding, the vectors of a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from parted import KEYS, conv, problem

from offbeat.algorithms import AREA, FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.server import Server
from offbeat.core.until import Until
from offbeat.local import SGD
from offbeat.simulate.lazy import LazyVector
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

EVERYBODY = [0, 1, 2, 3]


@pytest.mark.parametrize("server", [AREA(size=2), FedBuff(size=2)], ids=["area", "fedbuff"])
@pytest.mark.parametrize("settings", [{}, {"statistics": "local"}, {"personal": "7.*"}, {"statistics": "frozen"}])
def test_a_run_is_that_of_a_cpu(settings: dict[str, Any], server: Server[Any]) -> None:
    vectors = []
    for device in ("cpu", "cuda"):
        p = problem(conv(), device=device, **settings)
        algorithm = Algorithm(server, SGD(lr=0.02, steps=3, batch=4))
        run = prepare(p, algorithm, Times(Exponential(1.0)), Until(updates=24), executor="batched", evaluate=4.0)
        run.run()
        vectors.append(run.world.server.model.vector.cpu())
    assert (vectors[0] - vectors[1]).norm() < 1e-2 * vectors[0].norm()


@pytest.mark.parametrize("norm", [True, False])
def test_a_captured_step_has_the_masks_of_its_own_key(norm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third call is a replay of the graph that the second one captured."""
    p, there = problem(conv(norm=norm)), problem(conv(norm=norm), device="cuda")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # as in a run
    oracle, captured = (q.oracle(EVERYBODY, KEYS, 9, 4, False) for q in (p, there))
    w = p.flat.whole(p.initial()).expand(4, -1).contiguous()
    for step in range(6):
        expected, found = oracle.gradient(w, step), captured.gradient(w.cuda(), step).cpu()
        assert (expected - found).norm() < 1e-3 * expected.norm()
        if norm:
            torch.testing.assert_close(captured.statistics.cpu(), oracle.statistics, rtol=1e-4, atol=1e-5)


def test_stale_statistics_are_rebased_without_leaving_recorded_arithmetic() -> None:
    p = problem(conv(), device="cuda")
    algorithm = Algorithm(FedBuff(size=2), SGD(lr=0.02, steps=3, batch=4))
    run = prepare(p, algorithm, Times(Exponential(1.0)), Until(updates=24), executor="batched")
    for world in run.steps():
        if not world.stopped:
            assert type(world.server.model.vector) is LazyVector
    assert world.tally.staleness_max > 0


def test_bf16_is_close_on_a_gpu() -> None:
    exact = problem(conv(0.0, norm=False), device="cuda")
    p = problem(conv(0.0, norm=False), device="cuda", precision="bf16")
    w = p.initial().expand(4, -1).contiguous()
    both = [q.oracle(EVERYBODY, KEYS, 9, 4, False).gradient(w, 0) for q in (exact, p)]
    assert 0 < float((both[0] - both[1]).norm() / both[0].norm()) < 5e-2


def test_bf16_with_batch_norm_is_what_it_is_for_a_client_alone() -> None:
    """Few samples with nearly equal features leave little of a gradient in bf16: 18 % off for one of these clients."""
    p = problem(conv(0.0), device="cuda", precision="bf16")
    w = p.initial().expand(4, -1).contiguous()
    together = p.oracle(EVERYBODY, KEYS, 9, 4, False).gradient(w, 0)
    for client in EVERYBODY:
        alone = p.oracle([client], [KEYS[client]], 9, 4, False).gradient(w[:1], 0)[0]
        assert (together[client] - alone).norm() < 2e-2 * alone.norm()
