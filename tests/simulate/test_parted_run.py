"""Models with dropout, running statistics and personal parts: the same run on every executor, resumed, and for real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from ideal import Ideal
from parted import SHARDS, conv, problem, resnet
from torch import Tensor, nn
from worlds import same_world, through_text

from offbeat.algorithms import (
    AREA,
    CA2FL,
    MIFA,
    SCAFFOLD,
    DeFedAvgIID,
    Favano,
    FedAST,
    FedAsync,
    FedAvg,
    FedBuff,
    QuAFL,
)
from offbeat.algorithms.optimisers import FedAdam
from offbeat.core.algorithm import Algorithm
from offbeat.core.compressor import Compressor
from offbeat.core.events import Job, Update
from offbeat.core.local import Local, Work
from offbeat.core.server import Commands, Server, View
from offbeat.core.state import exchange
from offbeat.core.until import Until
from offbeat.core.vectors import materialise
from offbeat.data import load
from offbeat.deploy.client_data import ClientProblem
from offbeat.deploy.reducer import Reducer
from offbeat.deploy.refold import fingerprint
from offbeat.deploy.wire import LogEntry
from offbeat.local import SGD, Adam, Scaffold
from offbeat.local.compress import QSGD, LargestK, Signs
from offbeat.problems.supervised import Supervised
from offbeat.simulate.arena import Arenas
from offbeat.simulate.loop import Simulation
from offbeat.simulate.pool import Pool
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times
from offbeat.watch.history import History

KEPT = Adam(lr=0.01, steps=3, batch=4, keep=True, eps=1e-2)  # biases before a normalisation have gradients of rounding
ADAM = FedBuff(size=2, server=FedAdam(lr=0.01))
SERVERS = {"fedbuff": FedBuff(size=2, lr=0.5), "area": AREA(size=2)}
LOCAL = SGD(lr=0.02, steps=3, batch=4)
MODELS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "dropout": (lambda: conv(norm=False), {}),
    "average": (conv, {"statistics": "average"}),
    "local": (conv, {"statistics": "local"}),
    "frozen": (conv, {"statistics": "frozen"}),
    "personal": (conv, {"personal": ["5.*", "7.*"], "statistics": "local"}),
    "personal, average": (conv, {"personal": "7.*"}),
    "train": (conv, {"train": ["5.*", "7.*"]}),
}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool(1)
    yield made
    made.close()


def begun(
    name: str, server: Server[Any], executor: Any, local: Local = LOCAL, updates: int = 16, **options: Any
) -> Simulation:
    make, settings = MODELS[name]
    until, timing = Until(updates=updates), Times(Exponential(1.0))
    algorithm = Algorithm(server, local)
    return prepare(problem(make(), **settings), algorithm, timing, until, executor=executor, evaluate=2.0, **options)


def memories(run: Simulation) -> dict[Any, Tensor]:
    return {(at, name): torch.as_tensor(v) for at, (_, kept) in run.world.memories.items() for name, v in kept.items()}


@pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)
@pytest.mark.parametrize("name", MODELS)
def test_executors_agree(name: str, server: Server[Any], pool: Pool) -> None:
    runs = [begun(name, server, executor) for executor in ("serial", "serial", "batched", pool)]
    for run in runs:
        run.run()
    first, again, stacked, elsewhere = (
        {**memories(r), "model": r.server.models(r.world.server)[0].vector} for r in runs
    )
    assert first.keys() == again.keys() == stacked.keys() == elsewhere.keys()
    for key, value in first.items():
        assert torch.equal(again[key], value)
        assert torch.equal(elsewhere[key], value)
        torch.testing.assert_close(torch.as_tensor(stacked[key]), value, rtol=1e-3, atol=1e-4)
    assert not torch.equal(first["model"], runs[0].problems[0].initial())


@pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)
@pytest.mark.parametrize("executor", ["serial", "batched"])
@pytest.mark.parametrize("name", MODELS)
def test_a_run_that_is_saved_goes_on_bit_for_bit(name: str, executor: str, server: Server[Any]) -> None:
    straight = begun(name, server, executor)
    straight.run()
    halves = begun(name, server, executor)
    for _, _world in zip(range(17), halves.steps(), strict=False):
        pass
    on = begun(name, server, executor, world=through_text(halves.world))
    on.run()
    assert same_world(on.world, straight.world)


@pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)
@pytest.mark.parametrize("name", MODELS)
def test_on_an_ideal_network_the_model_is_the_simulated_one_bit_for_bit(name: str, server: Server[Any]) -> None:
    as_simulated(name, server, LOCAL)


@pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)
@pytest.mark.parametrize("coder", [LargestK(0.1, feedback=True), QSGD(7), Signs(feedback=True)], ids=repr)
@pytest.mark.parametrize("name", ["average", "personal", "personal, average"])
def test_so_it_is_with_compressed_messages(name: str, coder: Compressor, server: Server[Any]) -> None:
    as_simulated(name, server, replace(LOCAL, compress=coder))


def as_simulated(name: str, server: Server[Any], local: Local) -> None:
    """Check that a run on an ideal network ends as a simulated one: the model, and what clients remember."""
    make, settings = MODELS[name]
    p, timing, until = problem(make(), **settings), Times(Exponential(1.0)), Until(updates=16)
    simulated = prepare(p, Algorithm(server, local), timing, until, seed=3, executor="serial")
    simulated.run()
    own: list[Any] = [
        ClientProblem(
            f"site {client}", make(), len(SHARDS), replace(p.data, train=p.data.train.part(shard)), **settings
        )
        for client, shard in enumerate(SHARDS)
    ]
    ideal = Ideal(p, server, local, timing, until, seed=3, own=own)
    found = ideal.run()
    assert torch.equal(found.reducer.model(0), simulated.server.models(simulated.world.server)[0].vector)
    for (client, _), (_, kept) in simulated.world.memories.items():
        state = ideal.client_cores[client].state
        assert state is not None
        pending = None if state.pending is None else state.pending.memory
        mine = [state.memory.get(0, {}), pending or {}]
        assert any(all(torch.equal(m[n], v) for n, v in kept.items()) for m in mine if m)


@pytest.mark.parametrize("server", [FedBuff(size=2), DeFedAvgIID(size=2)], ids=["fedbuff", "held"])
def test_statistics_of_stale_updates_are_the_same_for_real_and_when_the_log_is_folded_again(server: Any) -> None:
    p, times, until, entries = problem(), Times(Exponential((9.0, 3.0, 1.0, 1.0))), Until(updates=20), list[LogEntry]()
    simulated = prepare(p, Algorithm(server, LOCAL), times, until, seed=3, executor="serial")
    simulated.run()
    ideal = Ideal(p, server, LOCAL, times, until, seed=3)
    fold = ideal.core.fold
    ideal.core.fold = lambda entry, now: (entries.append(entry), fold(entry, now))[1]  # type: ignore[method-assign]
    found = ideal.run()
    assert torch.equal(found.reducer.model(0), simulated.server.models(simulated.world.server)[0].vector)
    again = Reducer(ideal.plan)
    for at, entry in enumerate(entries):
        if at % 7 == 0:  # a server that goes on from its checkpoint
            again = Reducer(ideal.plan, through_text(again.ledger))  # type: ignore[arg-type]
        again.fold(entry)
    assert fingerprint(again.ledger) == fingerprint(found.ledger)


@pytest.mark.parametrize("local", [LOCAL, KEPT], ids=["sgd", "kept adam"])
@pytest.mark.parametrize("name", ["average", "personal"])
def test_optimisers_on_both_sides_run_on_every_executor_and_go_on(name: str, local: Local, pool: Pool) -> None:
    runs = [begun(name, ADAM, executor, local) for executor in ("serial", "batched", pool)]
    halves = begun(name, ADAM, "batched", local)
    for _, _world in zip(range(17), halves.steps(), strict=False):
        pass
    runs.append(begun(name, ADAM, "batched", local, world=through_text(halves.world)))
    for run in runs:
        run.run()
    serial, batched, elsewhere, resumed = (run.world for run in runs)
    assert same_world(resumed, batched)
    assert torch.equal(elsewhere.server.model.vector, serial.server.model.vector)
    torch.testing.assert_close(batched.server.model.vector, serial.server.model.vector, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("name", ["average", "personal", "personal, average"])
def test_with_compressed_messages_executors_agree_and_what_is_personal_is_trained_as_before(name: str) -> None:
    runs = [
        begun(name, FedBuff(size=2, lr=0.5), executor, replace(LOCAL, compress=LargestK(0.2, feedback=True)))
        for executor in ("serial", "batched")
    ]
    for run in runs:
        run.run()
    serial, batched = map(memories, runs)
    assert {key for _, key in serial} >= {"error.delta"}
    for key, value in serial.items():
        torch.testing.assert_close(batched[key], value, rtol=1e-3, atol=1e-4)
        own = value[runs[0].problems[0].dim :] if key[1] == "error.delta" else value[:0]
        assert torch.equal(own, torch.zeros_like(own))  # of what is not sent, nothing is left over


@pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)
def test_resnet18_with_batch_normalisation_trains(server: Server[Any]) -> None:
    p, local = problem(resnet(), shards=[np.arange(12), np.arange(12, 24)]), SGD(lr=1e-3, steps=1, batch=8)
    vectors = []
    for executor in ("serial", "batched"):
        run = prepare(p, Algorithm(server, local), Times(Exponential(1.0)), Until(updates=3), executor=executor)
        run.run()
        vectors.append(torch.as_tensor(run.server.models(run.world.server)[0].vector) - p.initial())
    assert (vectors[0] - vectors[1]).norm() < 1e-2 * vectors[0].norm()
    assert (vectors[0][p.flat.running] != 0).float().mean() > 0.9


def digits(clients: int = 8) -> Supervised:
    """Two classes at most for each client, and batch normalisation."""
    torch.manual_seed(0)
    data = load("digits")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
    return Supervised(data, model, np.array_split(np.argsort(data.train["y"].numpy(), kind="stable"), clients))


STALE = {
    "fedbuff": FedBuff(size=2),
    "fedasync": FedAsync(lr=0.5),
    "fedast": FedAST(requests=12, size=2, lr=1.0),
    "defedavg": DeFedAvgIID(size=2),
    "adam": FedBuff(size=2, server=FedAdam(lr=0.01)),
}


@pytest.mark.parametrize("server", STALE.values(), ids=STALE)
def test_stale_updates_leave_variances_above_zero_and_evaluations_sane(server: Server[Any]) -> None:
    p, algorithm, history = digits(), Algorithm(server, SGD(lr=0.1, steps=5, batch=32)), History()
    rates = Exponential(rate=(20.0, 20.0, 5.0, 1.0, 1.0, 1.0, 1.0, 1.0))
    until = Until(updates=150)
    run = prepare(p, algorithm, Times(rates), until, executor="serial", evaluate=0.1, watchers=[history])
    for world in run.steps():
        assert not p.flat.overshot(run.server.models(world.server)[0].vector)
    assert run.world.tally.staleness_max > 4
    assert max(row.metrics["loss"] for row in history.measurements) < 5


@pytest.mark.parametrize("lazy", [False, True])
def test_the_way_of_statistics_begins_where_they_are_now_and_that_of_parameters_where_they_were(lazy: bool) -> None:
    p = problem()
    run = prepare(p, Algorithm(FedBuff(), LOCAL), Times(Exponential(1.0)), Until(updates=1), executor="serial")
    arenas, (first, last) = Arenas(), p.averaged or (0, 0)
    sent, now, reached = (torch.randn(p.dim, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    if lazy:
        exchange(run.world, arenas.adopt)
    delta, before, after = (arenas.adopt(v) if lazy else v for v in (sent - reached, sent, now))
    moved = run.world.spared[0] * (after - before)
    job = Job(0, 0, 0, 0, 1, 0.1, 0)
    found = materialise(run._rebased(Update(job, {"delta": delta}), moved)["delta"])
    assert torch.equal(found[first:last], ((sent - reached) + (now - sent))[first:last])
    torch.testing.assert_close(found[first:last], (now - reached)[first:last])
    assert torch.equal(found[:first], (sent - reached)[:first])


@dataclass(frozen=True)
class Given(FedBuff):
    """FedBuff that knows what it was given: staleness and delta."""

    given: list[tuple[int, Tensor]] = field(default_factory=list)

    def arrived(self, state: Any, update: Update, view: View) -> Commands:
        self.given.append((state.model.version - update.job.version, update["delta"]))
        yield from super().arrived(state, update, view)


@dataclass(frozen=True)
class Remembering(Given):
    rebases = False


def test_an_update_without_staleness_and_one_for_a_server_that_remembers_it_stay_as_they_are() -> None:
    servers = Given(size=2), Remembering(size=2)
    for server in servers:
        begun("average", server, "serial").run()
    pairs = [(staleness, a, b) for (staleness, a), (_, b) in zip(*(each.given for each in servers), strict=True)]
    first = next(at for at, (staleness, *_) in enumerate(pairs) if staleness)
    assert first
    assert all(torch.equal(a, b) for _, a, b in pairs[:first])
    _, changed, plain = pairs[first]
    assert (changed != plain).sum() == 2 * (4 + 8)  # two statistics of every channel and of every unit


def test_servers_that_remember_differences_or_add_them_to_the_start_are_given_them_unchanged() -> None:
    assert not any(server.rebases for server in (MIFA(), CA2FL(), Favano(), FedAST(aggregate=MIFA())))
    assert all(server.rebases for server in STALE.values())


def test_what_is_personal_is_neither_sent_nor_aggregated() -> None:
    run = begun("personal", FedBuff(size=2, lr=0.5), "batched")
    run.run()
    flat = run.problems[0].flat  # type: ignore[attr-defined]
    shared = 2 * 4 * 9 + 4 + 4 + 4 + 8 + 8  # the convolution and the affine parts of both normalisations
    assert run.problems[0].dim == shared == flat.dim
    assert run.locals[0].wire(shared) == (4 * shared, 4 * shared)
    kept = [run.world.memories[c, 0][1]["personal"] for c in range(len(SHARDS)) if (c, 0) in run.world.memories]
    assert len(kept) > 1
    for vector in kept:
        assert torch.as_tensor(vector).shape == flat.first.shape
        assert not torch.equal(torch.as_tensor(vector), flat.first)
    assert not torch.equal(torch.as_tensor(kept[0]), torch.as_tensor(kept[1]))


def test_no_number_of_a_quantised_upload_depends_on_what_is_personal() -> None:
    """QuAFL's levels span the largest change of what is sent: a large change of a personal number is not in it."""
    p = problem(conv(norm=False), personal="7.*")
    local: Any = Algorithm(QuAFL(sampled=2), LOCAL).trainers([p])[0]
    memory = {name: v.unsqueeze(0) for name, v in local.remember(p.initial()).items()}
    payload = {"model": p.initial().unsqueeze(0)}
    work = Work(payload, memory, 0.02, 1, p.oracle([0], [5], 1, 4, False), np.array([5]))
    carry = local.step(local.init(work), work)
    far = {**carry, "w": carry["w"] + torch.cat([torch.zeros(1, p.dim), torch.full((1, 27), 100.0)], 1)}
    assert torch.equal(local.final(carry, work)[0]["model"], local.final(far, work)[0]["model"])


@pytest.mark.parametrize("server", [FedAvg(sampled=2), AREA(size=2)], ids=["fedavg", "area"])
def test_statistics_are_averaged_like_parameters(server: Server[Any]) -> None:
    """AREA: after every event the mean of what clients reached is x + u, statistics included."""
    run = begun("average", server, "serial", updates=9)
    run.run()
    if isinstance(server, AREA):
        state, first = run.world.server, run.problems[0].initial()
        reached = [run.world.memories[c, 0][1]["y"] if (c, 0) in run.world.memories else first for c in range(4)]
        torch.testing.assert_close(torch.stack(reached).mean(0), state.model.vector + state.u, rtol=1e-4, atol=1e-5)
    flat = run.problems[0].flat  # type: ignore[attr-defined]
    model = run.server.models(run.world.server)[0].vector
    assert bool((model[flat.running] != run.problems[0].initial()[flat.running]).all())


class Spare(nn.Module):
    """What is shared has no effect on anything."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.spare, self.head = nn.Parameter(torch.ones(3)), nn.Linear(128, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1)) + 0.0 * self.spare


def test_scaffold_s_controls_leave_personal_parts_alone() -> None:
    runs = []
    for server, local in ((SCAFFOLD(), Scaffold(lr=0.02, steps=3, batch=4)), (FedAvg(), LOCAL)):
        p = problem(Spare(), personal="head.*")
        run = prepare(p, Algorithm(server, local), Times(Exponential(1.0)), Until(updates=12), executor="serial")
        run.run()
        runs.append(run)
    for (at, (_, kept)), (other, (_, their)) in zip(*(sorted(r.world.memories.items()) for r in runs), strict=True):
        assert at == other
        torch.testing.assert_close(kept["personal"], their["personal"])
