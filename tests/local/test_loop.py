"""Training loops of the user's own: they train as offbeat's trainers do, on every executor, and fail with one line."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch
from ideal import Ideal
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import offbeat as ob
from offbeat import algorithms, timing
from offbeat.core.errors import TrainingError
from offbeat.core.events import Job
from offbeat.core.local import Work
from offbeat.data.readers import load
from offbeat.local.loop import _Turn
from offbeat.simulate.arena import Arenas
from offbeat.simulate.execute import Executor, Ready
from offbeat.simulate.pool import Pool

CLOCK = timing.Times(timing.Exponential(rate=1.0))
PROBLEM = ob.Supervised.split(load("digits"), clients=5, model="mlp", options={"hidden": [32]}, seed=1)
# without kinks: at one of them the last digit decides, and two ways to train part within 40 updates (seen on one CPU)
SMOOTH = ob.Supervised.split(
    load("digits"),
    clients=5,
    model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)),
    seed=1,
)


def descend(model: nn.Module, data: Any, job: Any) -> None:
    """Plain SGD on offbeat's own mini-batches."""
    optimiser = torch.optim.SGD(model.parameters(), lr=job.lr)
    for x, y in job.batches():
        optimiser.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimiser.step()


def adamw(model: nn.Module, data: Any, job: Any) -> None:
    """What PyTorch's tutorials do, with dropout on the scores and a count of steps that the client keeps."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=job.lr, weight_decay=job.decay)
    while True:
        for x, y in DataLoader(data, job.batch, shuffle=True, generator=job.generator):
            optimiser.zero_grad()
            functional.cross_entropy(functional.dropout(model(x), 0.1), y).backward()
            optimiser.step()
            job.memory["count"] += 1
            if not job.step():
                return


ADAMW = ob.Loop(adamw, lr=0.01, steps=4, batch=16, stops=True, decay=0.01, memory={"count": 1})


def trained(server: Any, local: Any, updates: int = 40, problem: Any = PROBLEM, **options: Any) -> ob.Run:
    return ob.run(problem, ob.Algorithm(server, local), CLOCK, ob.Until(updates=updates), **options)


@pytest.mark.parametrize("server", [ob.FedBuff(size=3), ob.AREA(size=3), ob.FedAvg(), algorithms.Favano(sampled=2)])
@pytest.mark.parametrize("batch", [16, None])
def test_plain_sgd_is_offbeats_own(server: Any, batch: int | None) -> None:
    loop = ob.Loop(descend, lr=0.1, steps=4, batch=batch, stops=True)
    mine = trained(server, loop, problem=SMOOTH, executor="serial")
    ours = trained(server, ob.SGD(lr=0.1, steps=4, batch=batch), problem=SMOOTH, executor="serial")
    assert float((mine.model - ours.model).abs().max()) < 1e-6
    assert float((mine.model - SMOOTH.initial()).abs().max()) > 1e-2


def test_full_steps_over_the_data_set_are_offbeats_own() -> None:
    def full(model: nn.Module, data: Any, job: Any) -> None:
        x, y = data[:]
        assert (len(x), job.batch) == (len(data), len(data))
        for _ in range(job.steps):
            loss = functional.cross_entropy(model(x), y)
            slopes = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, slope in zip(model.parameters(), slopes, strict=True):
                    parameter -= job.lr * slope

    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    problem = ob.Supervised.split(load("digits"), clients=1, model=model)
    once = [
        ob.run(problem, ob.Algorithm(ob.FedAsync(lr=1.0), local), CLOCK, ob.Until(updates=3), executor="serial").model
        for local in (ob.Loop(full, lr=0.1, steps=3), ob.SGD(lr=0.1, steps=3, batch=None))
    ]
    assert float((once[0] - once[1]).abs().max()) < 1e-7


@pytest.mark.parametrize("server", [ob.FedBuff(size=3), ob.AREA(size=3)])
def test_adamw_trains_digits(server: Any) -> None:
    done = trained(server, ADAMW, updates=150, evaluate=100.0)
    assert done.metrics["accuracy"] > 0.8
    count = int(done.world.memories[0, 0][1]["kept.count"])
    assert 0 < count <= 4 * done.world.numbers[0]
    assert count % 4 == 0


def test_every_executor_gives_the_same_bits_and_auto_says_why_it_does_not_stack() -> None:
    serial, batched, auto, again = (
        trained(algorithms.QuAFL(sampled=2), ADAMW, executor=name) for name in ("serial", "batched", "auto", "serial")
    )
    for other in (batched, auto, again):
        assert torch.equal(other.model, serial.model)
    assert auto.simulation.executor.reason == f"serial: {ADAMW.label} trains one client at a time"


def test_worker_processes_give_the_same_bits() -> None:
    with Pool(workers=1) as pool:
        one, two = (trained(ob.AREA(size=3), ADAMW, updates=12, executor=name) for name in ("serial", pool))
    assert torch.equal(one.model, two.model)


def test_jobs_of_unlike_length_are_stacked_too() -> None:
    def one(stacked: bool, steps: list[int]) -> list[torch.Tensor]:
        arenas, model = Arenas(), PROBLEM.initial()
        given = arenas.adopt(model) if stacked else model
        jobs = [Job(c, c, 0, 0, n, 0.1 + 0.01 * c, 0) for c, n in enumerate(steps)]
        group = [(None, Ready(j, {"model": given}, ADAMW.remember(model), j.client, j.client)) for j in jobs]
        done, _ = Executor(stacked).compute(PROBLEM, ADAMW, arenas.like(model) if stacked else None, group)
        return [torch.as_tensor(upload["delta"][:]) for upload, _ in done]

    pairs = zip(one(True, [3, 0, 1, 2, 3]), one(False, [3, 0, 1, 2, 3]), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("server", [ob.FedBuff(size=3), ob.AREA(size=3), algorithms.Favano(sampled=2, period=0.7)])
def test_over_an_ideal_network_it_is_the_simulation_bit_for_bit(server: Any) -> None:
    until = ob.Until(updates=30)
    real = Ideal(PROBLEM, server, ADAMW, CLOCK, until, seed=3)
    core = real.run()
    virtual = trained(server, ADAMW, updates=30, seed=3, executor="serial")
    assert core.ledger.tally.updates == 30
    assert torch.equal(core.plan.server.models(core.ledger.server)[0].vector, virtual.model)


def test_global_random_numbers_are_the_jobs_own_and_are_put_back() -> None:
    drawn: list[tuple[float, ...]] = []

    def draws(model: nn.Module, data: Any, job: Any) -> None:
        drawn.append(
            (float(torch.rand(())), np.random.rand(), random.random(), float(torch.rand((), generator=job.generator)))
        )

    torch.manual_seed(7), np.random.seed(7), random.seed(7)
    expected = float(torch.rand(())), np.random.rand(), random.random()
    torch.manual_seed(7), np.random.seed(7), random.seed(7)
    trained(ob.FedBuff(size=3), ob.Loop(draws), updates=6, executor="serial")
    assert (float(torch.rand(())), np.random.rand(), random.random()) == expected
    first, drawn[:] = list(drawn), []
    trained(ob.FedBuff(size=3), ob.Loop(draws), updates=6, executor="serial")
    assert drawn == first
    assert len(set(drawn)) == len(drawn)


def test_the_job_tells_what_the_server_asked_for() -> None:
    seen: list[Any] = []

    def look(model: nn.Module, data: Any, job: Any) -> nn.Module:
        assert model.training
        seen.append(
            (job.client, job.number, job.version, job.steps, job.lr, job.epochs, job.options["depth"], job.depth)
        )
        with pytest.raises(AttributeError, match="no 'dept', and the loop's own options are: depth"):
            job.dept  # noqa: B018
        return model.double()

    done = trained(ob.FedBuff(size=1), ob.Loop(look, lr=0.5, epochs=3, depth=8), updates=8, executor="serial")
    assert {job[3:] for job in seen} == {(3, 0.5, 3, 8, 8)}
    assert len({job[:2] for job in seen}) == len(seen)
    assert {job[2] for job in seen} > {0}
    assert torch.equal(done.model, PROBLEM.initial())  # doubles go back to what they were


def test_a_loop_is_shown_with_its_own_options() -> None:
    shown = repr(ob.Loop(adamw, lr=0.01, decay=0.25))
    assert "lr=0.01" in shown
    assert shown.endswith("decay=0.25)")
    assert "options" not in shown


def test_samples_with_more_columns_are_dicts() -> None:
    x = torch.randn(40, 3)
    columns = {"x": x, "y": x.sum(1), "sure": torch.rand(40)}

    def loss(output: torch.Tensor, target: torch.Tensor, sure: torch.Tensor) -> torch.Tensor:
        return sure * (output.squeeze(1) - target) ** 2

    seen = []

    def train(model: nn.Module, data: Any, job: Any) -> None:
        batch = next(iter(DataLoader(data, 4)))
        seen.append({**{name: list(part.shape) for name, part in batch.items()}, "one": list(data[-1]["x"].shape)})

    problem = ob.Supervised.split(columns, 2, model=nn.Linear(3, 1), loss=loss, inputs="x", target="y")
    ob.run(problem, ob.Algorithm(ob.FedBuff(size=1), ob.Loop(train)), CLOCK, ob.Until(updates=1))
    assert seen[0] == {"x": [4, 3], "y": [4], "sure": [4], "one": [3]}


def own_loss(model: nn.Module, data: Any, job: Any) -> None:
    """SGD on the experiment's own loss."""
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=job.lr)
    for batch in job.batches():
        optimiser.zero_grad()
        job.loss(model, batch).backward()
        optimiser.step()


PARTS: dict[str, dict[str, Any]] = {
    "statistics are averaged": {"statistics": "average"},
    "statistics stay": {"statistics": "local"},
    "statistics are frozen": {"statistics": "frozen"},
    "the head is trained": {"train": "4.*"},
    "the head is personal": {"personal": "4.*", "l2": 0.01, "weighted": True},
}


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("server", [ob.FedBuff(size=2), ob.AREA(size=2)])
def test_parts_of_models_and_running_statistics_are_those_of_offbeats_own_sgd(server: Any, parts: str) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
    problem = ob.Supervised.split(load("digits"), clients=3, model=model, **PARTS[parts])
    loop, sgd = ob.Loop(own_loss, lr=0.2, steps=3, batch=16), ob.SGD(lr=0.2, steps=3, batch=16)
    one, two = (
        ob.run(problem, ob.Algorithm(server, local), CLOCK, ob.Until(updates=20), executor="serial", evaluate=20.0)
        for local in (loop, sgd)
    )
    assert float((one.model - two.model).abs().max()) < 1e-5
    assert one.metrics == pytest.approx(two.metrics, abs=0.01)
    assert float((one.model - problem.initial()).abs().max()) > 1e-2
    still = one.module().state_dict()["2.running_mean"].equal(model.state_dict()["2.running_mean"])
    assert still == (parts in ("statistics stay", "statistics are frozen"))


def test_half_precision_is_that_of_the_experiment() -> None:
    seen = []

    def look(model: nn.Module, data: Any, job: Any) -> None:
        seen.append((model(data[:][0]).dtype, next(model.parameters()).dtype))

    problem = ob.Supervised.split(load("digits"), clients=2, model="mlp", precision="bf16")
    ob.run(problem, ob.Algorithm(ob.FedBuff(size=1), ob.Loop(look)), CLOCK, ob.Until(updates=1))
    assert seen[0] == (torch.bfloat16, torch.float32)


def test_a_clients_own_model_is_made_by_the_loop() -> None:
    done = trained(ob.AREA(size=3), ADAMW, updates=12, executor="serial")
    assert torch.equal(done.personal(1, steps=0), done.model)
    two = done.personal(1, steps=2)
    assert torch.equal(two, done.personal(1, steps=2))
    assert not torch.equal(two, done.model)


def broken(model: nn.Module, data: Any, job: Any) -> None:
    raise ValueError("no such layer\nand more")


def quits(model: nn.Module, data: Any, job: Any) -> None:
    raise SystemExit(3)


def gives(model: nn.Module, data: Any, job: Any) -> Any:
    return {"loss": 0.3}


def grows(model: Any, data: Any, job: Any) -> None:
    model.extra = nn.Linear(2, 2)


def forgets(model: nn.Module, data: Any, job: Any) -> None:
    job.step()


def overruns(model: nn.Module, data: Any, job: Any) -> None:
    for _ in range(4):
        job.step()


def reshapes(model: nn.Module, data: Any, job: Any) -> None:
    job.memory["m"] = torch.zeros(3)


def changes(model: Any, data: Any, job: Any) -> None:
    with torch.no_grad():
        next(iter(model.parameters())).add_(1.0)


WRONG: dict[Callable[..., Any], tuple[dict[str, Any], str]] = {
    broken: ({}, r"ValueError: no such layer \(test_loop.py, line \d+\)$"),
    quits: ({}, r"SystemExit: 3 \(test_loop.py, line \d+\)$"),
    gives: ({}, "returned a dict; train the model in place, or return a module"),
    grows: ({}, "the model has a new parameter 'extra.weight'"),
    forgets: ({"stops": True}, r"job.step\(\) was called 1 times for 3 steps"),
    overruns: ({"stops": True}, r"job.step\(\) was called 4 times for 3 steps"),
    reshapes: ({"memory": {"m": 2}}, r"memory\['m'\] is \[3\], and was \[2\]"),
}


@pytest.mark.parametrize("function", WRONG, ids=lambda function: function.__name__)
def test_a_loop_that_fails_is_named_with_its_client_and_job(function: Callable[..., Any]) -> None:
    settings, said = WRONG[function]
    local = ob.Loop(function, steps=3, **settings)
    with pytest.raises(TrainingError, match=rf"test_loop:{function.__name__}, client \d, job \d+: .*{said}") as raised:
        trained(ob.FedBuff(size=2), local, executor="serial")
    assert "\n" not in str(raised.value)


def averages(model: nn.Module, data: Any, job: Any) -> None:
    mean([])


class Averages:
    __call__ = staticmethod(averages)


@pytest.mark.parametrize(("function", "place"), [(averages, "test_loop.py"), (Averages(), "statistics.py")])
def test_a_failure_is_placed_in_the_users_file_or_else_where_it_happened(function: Any, place: str) -> None:
    with pytest.raises(TrainingError, match=rf"StatisticsError: .* \({place}, line \d+\)$"):
        trained(ob.FedBuff(size=2), ob.Loop(function), executor="serial")


def test_a_frozen_parameter_that_was_changed_is_not_lost_in_silence() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Linear(4, 10))
    model[1].requires_grad_(False)
    problem = ob.Supervised.split(load("digits"), clients=2, model=model)
    with pytest.raises(TrainingError, match=r"the parameter '1.weight' is not trained here, but was changed"):
        ob.run(problem, ob.Algorithm(ob.FedBuff(size=1), ob.Loop(changes)), CLOCK, ob.Until(updates=1))


def test_a_loop_that_forgets_to_train_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    def forgetful(model: nn.Module, data: Any, job: Any) -> None:
        for x, y in job.batches():
            functional.cross_entropy(model(x), y).backward()

    trained(ob.FedBuff(size=2), ob.Loop(descend, lr=0.1, steps=2, batch=16), updates=6)
    assert not caplog.messages
    trained(ob.FedBuff(size=2), ob.Loop(forgetful, steps=2, batch=16), updates=6)
    (said,) = caplog.messages
    assert "forgetful, client" in said
    assert "no parameter has changed; does it step an optimiser" in said


def test_a_model_that_is_not_finite_has_diverged() -> None:
    def explodes(model: nn.Module, data: Any, job: Any) -> None:
        with torch.no_grad():
            next(model.parameters()).fill_(torch.nan)

    with pytest.raises(ob.OffbeatError, match=r"client \d, job \d of digits: its delta is not finite"):
        trained(ob.FedBuff(size=1), ob.Loop(explodes), executor="serial", updates=1)


@pytest.mark.parametrize("server", [algorithms.Favano(), algorithms.QuAFL(), algorithms.DeFedAvg()])
def test_servers_that_recall_work_are_refused_unless_the_loop_can_be_stopped(server: Any) -> None:
    said = f"{type(server).__name__} recalls work that is under way, and {ADAMW.label} cannot be stopped"
    with pytest.raises(ob.OffbeatError, match=said):
        ob.Algorithm(server, replace(ADAMW, stops=False))
    ob.Algorithm(server, ADAMW)


def test_servers_that_need_gradients_are_refused() -> None:
    with pytest.raises(ob.OffbeatError, match=f"SCAFFOLD reads 'control' but {ADAMW.label} sends only 'delta'"):
        ob.Algorithm(algorithms.SCAFFOLD(), ADAMW)
    with pytest.raises(ob.OffbeatError, match=f"AsySG reads 'gradient' but {ADAMW.label} sends only 'delta'"):
        ob.Algorithm(algorithms.AsySG(lr=0.1), ADAMW)


def test_what_cannot_be_a_loop_is_refused() -> None:
    with pytest.raises(ob.OffbeatError, match="'mytraining:train' is a str, not a function"):
        ob.Loop("mytraining:train")  # type: ignore[arg-type]
    with pytest.raises(ob.OffbeatError, match="seed: the job has that already"):
        ob.Loop(adamw, seed=3)
    with pytest.raises(ob.OffbeatError, match="accumulate = 4: a loop adds gradients up itself"):
        ob.Loop(adamw, accumulate=4, batch=8)
    with pytest.raises(ob.OffbeatError, match=r"memory\.m = 0: must be at least 1"):
        ob.Loop(adamw, memory={"m": 0})
    algorithm = ob.Algorithm(ob.FedBuff(size=1), ob.Loop(descend))
    with pytest.raises(ob.OffbeatError, match="trains a module on samples, and this problem has neither"):
        ob.run(ob.Quadratic(3), algorithm, CLOCK, ob.Until(updates=1))


def unruly(model: nn.Module, data: Any, job: Any) -> None:
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True)


def test_torch_s_settings_are_put_back() -> None:
    def settings() -> tuple[Any, ...]:
        strict = torch.are_deterministic_algorithms_enabled()
        return torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(), strict

    before = settings()
    try:
        trained(ob.FedBuff(size=1), ob.Loop(unruly), executor="serial", updates=2)
        assert settings() == before
    finally:
        torch.set_num_threads(before[0]), torch.set_default_dtype(before[1]), torch.use_deterministic_algorithms(False)


def test_two_loops_that_take_turns_leave_the_global_generators_as_they_were() -> None:
    """The second begins while the first is between two steps, and ends after it."""
    device = torch.device("cpu")
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first, second = _Turn(1, device), _Turn(2, device)
    first.__enter__()
    mine = torch.rand(())
    away = first.paused()
    away.__enter__()
    assert torch.equal(torch.get_rng_state(), before)
    second.__enter__()
    other = second.paused()
    other.__enter__()
    away.__exit__(None, None, None)
    assert not torch.equal(torch.rand(()), mine)
    first.__exit__()
    other.__exit__(None, None, None)
    second.__exit__()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_memory_as_long_as_the_shared_part_is_no_vector_of_the_model() -> None:
    seen = []

    def counts(model: nn.Module, data: Any, job: Any) -> None:
        seen.append(job.memory["mine"].tolist())
        job.memory["mine"] += 1.0

    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 1, bias=False), nn.Linear(1, 10))
    problem = ob.Supervised.split(load("digits"), clients=1, model=model, personal="2.*")
    local = ob.Loop(counts, memory={"mine": problem.dim})
    ob.run(problem, ob.Algorithm(ob.FedBuff(size=1), local), CLOCK, ob.Until(updates=3))
    assert seen == [[0.0] * 64, [1.0] * 64, [2.0] * 64]


def test_statistics_that_are_frozen_and_changed_by_a_loop_are_not_lost_in_silence() -> None:
    def usual(model: nn.Module, data: Any, job: Any) -> None:
        model.train()
        own_loss(model, data, job)

    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    for statistics in ("average", "frozen"):
        problem = ob.Supervised.split(load("digits"), clients=2, model=model, statistics=statistics)  # type: ignore[arg-type]
        algorithm = ob.Algorithm(ob.FedBuff(size=1), ob.Loop(usual, batch=8))
        refused = pytest.raises(TrainingError, match=r"the buffer '2.running_mean' is constant here, but was changed")
        with refused if statistics == "frozen" else nullcontext():
            ob.run(problem, algorithm, CLOCK, ob.Until(updates=1), executor="serial")


def test_a_job_does_not_write_into_the_memory_that_it_was_given() -> None:
    """It moves on with the result: a job that is lost leaves no trace."""

    def counts(model: nn.Module, data: Any, job: Any) -> None:
        job.memory["count"] += 1

    local, memory = ob.Loop(counts, memory={"count": 1}), {"kept.count": torch.zeros(1, 1)}
    payload = {"model": PROBLEM.initial().unsqueeze(0)}
    work = Work(payload, memory, 0.1, 1, PROBLEM.oracle([0], [5], 1, 8, False), [5])
    carry = local.step(local.init(work), work)
    assert (float(carry["kept.count"]), float(memory["kept.count"])) == (1.0, 0.0)
