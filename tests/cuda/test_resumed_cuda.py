"""Runs on a GPU that are interrupted and resumed, and runs that are done abreast: they end where they would have.

PYTHONPATH=src:tests python3 tests/cuda/test_resumed_cuda.py
"""

from __future__ import annotations

import json
from typing import Any

import torch

from offbeat.core.state import Tensors, dump, load
from offbeat.core.vectors import materialise
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.session import Session
from offbeat.simulate.abreast import Abreast, abreast
from offbeat.simulate.arena import Arenas
from offbeat.simulate.execute import Executor
from offbeat.simulate.loop import Simulation
from offbeat.simulate.program import Program
from offbeat.simulate.world import World
from offbeat.watch.history import History

IMAGES = {"offbeat.bench.material:synthetic": {"name": "mnist"}}
MODELS: dict[str, Any] = {"softmax": "softmax", "mlp": {"mlp": {"hidden": [32]}}}

try:
    import pytest

    pytestmark = [
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        pytest.mark.parametrize("server", ["fedbuff", "area"]),
        pytest.mark.parametrize("model", list(MODELS)),
    ]
except ImportError:  # run as a script
    pass


def table(server: str, model: str, lr: float = 0.3) -> dict[str, Any]:
    return {
        "until": {"updates": 600},
        "evaluate": {"every": 1.0},
        "executor": "batched",
        "device": "cuda",
        "problem": {"data": IMAGES, "model": MODELS[model], "clients": 50, "split": {"dirichlet": 0.5}},
        "timing": {"exponential": {"rate": {"normal": [10, 5], "min": 1}}},
        "algorithm": {server: {"size": 10, "local": {"sgd": {"lr": lr, "steps": 3, "batch": 8}}}},
    }


def made(given: dict[str, Any], history: History, world: World | None = None, **shared: Any) -> Simulation:
    session = Session(Experiment.parse(given))
    spec = session.experiment.runs[0]
    if shared:
        return session.shared(spec, [history], world, lambda _: shared["executor"], shared["arenas"])
    return session.simulation(spec, [history], world)


def model_of(run: Simulation) -> torch.Tensor:
    return materialise(run.server.models(run.world.server)[0].vector).cpu()


def test_a_run_resumed_where_nothing_is_owed_ends_bit_for_bit_where_it_would_have(server: str, model: str) -> None:
    whole, stopped, resumed = (History(keep_events=True) for _ in range(3))
    run = made(table(server, model), whole)
    run.run()
    first, owing = made(table(server, model), stopped), 0
    for count, _ in enumerate(first.steps()):
        owing += bool(first.computing.owed)
        if count > 250 and not first.computing.owed:
            break
    tensors = Tensors()
    text = json.dumps(dump(first.world, tensors))
    again = made(table(server, model), resumed, load(json.loads(text), tensors.table))
    again.run()
    assert owing or server == "area", "nothing was ever owed"
    assert repr(stopped.events + resumed.events) == repr(whole.events)
    apart = float((model_of(run) - model_of(again)).abs().max())
    assert torch.equal(model_of(run), model_of(again)), f"the model differs by up to {apart:.1e}"
    print(f"{server}, {model}: resumed bit for bit, {owing} events while results were owed", flush=True)


def test_runs_abreast_have_the_events_of_runs_alone_and_their_models(server: str, model: str) -> None:
    lrs, ends = (0.03, 0.3, 0.1), dict[int, torch.Tensor]()
    shared: dict[str, Any] = {"executor": Executor(stacked=True), "arenas": Arenas()}
    histories = [History(keep_events=True) for _ in lrs]
    problems = Session(Experiment.parse(table(server, model)))

    def all_made() -> dict[int, Simulation]:
        found = {}
        for number, lr in enumerate(lrs):
            session = Session(Experiment.parse(table(server, model, lr)), problems.shared_problems)
            spec, watchers = session.experiment.runs[0], [histories[number]]
            found[number] = session.shared(spec, watchers, None, lambda _: shared["executor"], shared["arenas"])
        return found

    wide = abreast(all_made(), shared["arenas"], all_made)
    assert isinstance(wide, Abreast), "not done abreast"
    makers = iter([(0, lambda: wide)])
    for _ in Program(makers, lambda number, run, _: ends.update({number: model_of(run)})).rounds():
        pass
    for number, lr in enumerate(lrs):
        alone = History(keep_events=True)
        run = made(table(server, model, lr), alone)
        run.run()
        apart = float((model_of(run) - ends[number]).norm() / ends[number].norm())
        assert repr(alone.events) == repr(histories[number].events)
        assert apart < 1e-4
        print(f"{server}, {model}, lr {lr}: the same events abreast; the model differs by {apart:.1e}", flush=True)


if __name__ == "__main__":
    tests = (
        test_a_run_resumed_where_nothing_is_owed_ends_bit_for_bit_where_it_would_have,
        test_runs_abreast_have_the_events_of_runs_alone_and_their_models,
    )
    for which in ("fedbuff", "area"):
        for network in MODELS:
            for test in tests:
                try:
                    test(which, network)
                except AssertionError as error:
                    print(f"FAILED: {test.__name__}, {which}, {network}: {error}", flush=True)
