"""A run with any objective is the same one by one, stacked and in another process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from objectives import CASES

from offbeat.algorithms import FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.until import Until
from offbeat.local import SGD
from offbeat.simulate.execute import Executor
from offbeat.simulate.pool import Pool
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times
from offbeat.watch.history import History


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool(1)
    yield made
    made.close()


def outcome(name: str, executor: Executor | str) -> tuple[torch.Tensor, list[float]]:
    """The last model and the losses of a short run."""
    algorithm = Algorithm(FedBuff(size=2, lr=0.5), SGD(lr=0.05, steps=3, batch=4))
    history = History()
    problem = CASES[name].problem(l2=0.01)
    run = prepare(
        problem,
        algorithm,
        Times(Exponential(1.0)),
        Until(updates=24),
        evaluate=2.0,
        executor=executor,
        watchers=[history],
    )
    run.run()
    (model,) = run.server.models(run.world.server)
    return model.vector, [m.metrics["loss"] for m in history.measurements]


@pytest.mark.parametrize("name", CASES)
def test_executors_agree(name: str, pool: Pool) -> None:
    model, losses = outcome(name, "serial")
    stacked, their = outcome(name, "batched")
    torch.testing.assert_close(torch.as_tensor(stacked), model, rtol=0, atol=1e-5)
    assert their == pytest.approx(losses, abs=1e-5)
    elsewhere, their = outcome(name, pool)
    assert torch.equal(elsewhere, model)
    assert their == losses
