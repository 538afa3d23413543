"""Several seeds from Python: one call, the results of all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import offbeat as ob
from offbeat import timing

CLOCK = timing.Times(timing.Exponential(rate=10.0))
FEDBUFF = ob.Algorithm(ob.FedBuff(size=4), ob.SGD(lr=0.1))
END = ob.Until(updates=100)


def quadratic(seed: int) -> ob.Quadratic:
    return ob.Quadratic(clients=6, noise=0.5, seed=seed)


def runs(seeds: Any = (3, 1), problem: Any = quadratic, **settings: Any) -> ob.Results:
    return ob.run(problem, FEDBUFF, CLOCK, END, evaluate=2.0, seeds=seeds, **settings)


def test_every_seed_is_run_as_if_it_were_alone() -> None:
    results = runs()
    assert [result.seed for result in results] == [3, 1]
    for result in results:
        alone = ob.run(quadratic, FEDBUFF, CLOCK, END, evaluate=2.0, seed=result.seed)
        assert torch.equal(result.model, alone.model)
        assert result.history == tuple(alone.history)
        assert result.metrics == alone.metrics
    same = runs(problem=quadratic(0))  # a problem stays as it is, whatever the seed
    assert same[0].history[0] == same[1].history[0] != results[0].history[0]


def test_their_mean_has_an_interval() -> None:
    results = runs(range(3))
    losses = [result.metrics["loss"] for result in results]
    best = results.best("loss")
    assert (best.seeds, best.mean) == (3, pytest.approx(sum(losses) / 3))
    assert best.half is not None
    assert best.half > 0
    assert f"fedbuff, mean of 3 seeds: loss {best.mean:.3f} ± {best.half:.3f}, " in repr(results)
    assert len(results.frame()) == 3
    with pytest.raises(ob.OffbeatError, match="in memory only; give run a folder"):
        results.report()


def test_in_a_folder_they_are_the_same_and_go_on_where_they_were(tmp_path: Path) -> None:
    there = runs((3, 1, 2), out=tmp_path / "out")
    assert [r.model.tolist() for r in there] == [r.model.tolist() for r in runs((3, 1, 2))]
    (tmp_path / "out" / "fedbuff-1" / "result.json").unlink()
    assert [result.seed for result in ob.open(tmp_path / "out")] == [3, 2]
    with pytest.raises(ob.OffbeatError, match="made from Python objects; pass them"):
        ob.resume(tmp_path / "out")
    again = ob.resume(tmp_path / "out", quadratic, FEDBUFF, CLOCK)
    assert [(r.seed, r.metrics) for r in again] == [(r.seed, r.metrics) for r in there]
    assert there.report().exists()


def test_one_that_diverges_does_not_end_the_others(tmp_path: Path) -> None:
    def some(seed: int) -> ob.Quadratic:
        return ob.Quadratic(clients=6, smoothness=1.0 if seed else 1e30, seed=seed)

    for out in (None, tmp_path / "out"):
        bad, good = runs((0, 1), some, out=out)
        assert bad.error is not None
        assert good.error is None
        assert good.updates == 100


def test_a_module_comes_out_of_each() -> None:
    torch.manual_seed(0)
    problem = ob.Supervised.split((torch.randn(60, 4), torch.arange(60) % 3), clients=3)
    results = ob.run(problem, FEDBUFF, CLOCK, END, seeds=range(2))
    assert all(torch.equal(each.module().linear.weight.flatten(), each.model[:12]) for each in results)  # type: ignore[union-attr]


def test_mistakes_in_seeds_are_named() -> None:
    for said, settings in {
        "seeds = 5: give several, as in seeds=range(5), or seed=5": {"seeds": 5},
        "seeds is empty": {"seeds": ()},
        "seeds: 1 is given twice": {"seeds": (1, 2, 1)},
        "seed = 4 and seeds: keep one": {"seed": 4},
        "give out instead": {"keep_events": True},
    }.items():
        with pytest.raises(ob.OffbeatError) as error:
            runs(**settings)
        assert said in str(error.value)
