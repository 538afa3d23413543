"""Local trainers are functions of rows: a client's result does not depend on who is computed with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from worlds import Line, Scripted, run

from offbeat.algorithms import AREA, Favano, FedAsync, FedAsyncMixing, FedAvg, LocalOnly, QuAFL
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.local import Local, Work
from offbeat.core.server import Server
from offbeat.core.until import Until
from offbeat.core.vectors import Payload
from offbeat.local import MAML, SGD, Gradient, Moreau, Prox, Scaffold
from offbeat.problems.quadratic import Quadratic
from offbeat.timing import Exponential, Times

PROBLEM = Quadratic(6, dim=4, noise=0.3, dtype=torch.float64)
HALVES: dict[str, Local] = {
    "sgd": SGD(lr=0.1, steps=3),
    "sgd clipped": SGD(lr=0.1, steps=3, clip=0.5, decay=0.01),
    "prox": Prox(lr=0.1, steps=3, mu=0.2),
    "gradient": Gradient(),
    "scaffold 1": Scaffold(lr=0.1, steps=3, option=1),
    "scaffold 2": Scaffold(lr=0.1, steps=3, option=2),
    "maml": MAML(lr=0.1, steps=3, alpha=0.2),
    "maml by differences": MAML(lr=0.1, steps=3, alpha=0.2, hessian="difference"),
    "maml first order": MAML(lr=0.1, steps=3, alpha=0.2, hessian="none"),
    "moreau": Moreau(lr=0.1, steps=3, penalty=2.0, accuracy=0.3),
    "moreau momentum": Moreau(lr=0.1, steps=3, penalty=2.0, accuracy=0.3, momentum=0.5),
    "residual": AREA().pair(Moreau(lr=0.1, steps=3, penalty=2.0)),
    "reached": FedAsyncMixing().pair(SGD(lr=0.1, steps=3)),
    "progress": Favano().pair(SGD(lr=0.1, steps=3)),
    "mixing": QuAFL(sampled=2).pair(Moreau(lr=0.1, steps=3, penalty=2.0)),
    "own": LocalOnly().pair(SGD(lr=0.1, steps=3)),
}
EVERY_HALF = pytest.mark.parametrize("half", HALVES.values(), ids=list(HALVES))


def results(half: Local, clients: list[int]) -> tuple[Payload, Payload]:
    """(upload, memory) of these clients in one call; each has received another model and remembers another one."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(3, 6, 4, generator=generator, dtype=torch.float64)[:, clients]
    keys = [100 + c for c in clients]
    work = Work(
        payload={"model": drawn[0], "control": drawn[1]},
        memory=dict.fromkeys(half.remember(PROBLEM.initial()), drawn[2]),
        lr=half.lr,
        steps=half.steps,
        oracle=PROBLEM.oracle(clients, keys, half.steps, None, False),
        keys=torch.tensor(keys).unsqueeze(1),
    )
    carry = half.init(work)
    for work.step in range(half.steps):
        carry = half.step(carry, work)
    return half.final(carry, work)


@EVERY_HALF
def test_rows_do_not_mix(half: Local) -> None:
    together = results(half, [0, 1, 2, 3, 4, 5])
    for client in range(6):
        for one, all_ in zip(results(half, [client]), together, strict=True):
            for name in all_:
                torch.testing.assert_close(one[name][0], all_[name][client], rtol=0, atol=1e-12)


@EVERY_HALF
def test_it_sends_what_it_says_and_remembers_what_it_remembered(half: Local) -> None:
    upload, memory = results(half, [0, 1])
    assert set(upload) == set(half.sends)
    assert set(memory) == set(half.remember(PROBLEM.initial()))
    assert all(upload[name].shape == (2, 1) for name in half.notes)


@EVERY_HALF
def test_a_call_writes_nothing_it_was_given(half: Local) -> None:
    first, second = results(half, [0, 1, 2]), results(half, [0, 1, 2])
    for a, b in zip(first, second, strict=True):
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_the_gradient_is_clipped_and_the_decay_is_not() -> None:
    """From 10 towards 0: the gradient 10 is cut to 2, decay adds 0.1·10, and half of 3 is stepped."""
    result = run(
        Line([0.0], start=10.0), FedAvg(), SGD(lr=0.5, clip=2.0, decay=0.1), Scripted([[1.0]]), Until(versions=1)
    )
    assert result.model.item() == 8.5


def test_a_short_gradient_is_not_stretched() -> None:
    result = run(Line([0.0], start=1.0), FedAvg(), SGD(lr=0.5, clip=2.0), Scripted([[1.0]]), Until(versions=1))
    assert result.model.item() == 0.5


@pytest.mark.parametrize("half", [SGD(lr=0.1), MAML(lr=0.1, alpha=0.2), Moreau(lr=0.1)], ids=["sgd", "maml", "me"])
def test_a_number_of_steps_is_that_many_single_steps(half: Local) -> None:
    """Without noise and with one client, two jobs of one step are one job of two."""
    quiet, times = Quadratic(1, dim=3, dtype=torch.float64), Times(Exponential(1.0))
    once = run(quiet, FedAsync(), half, times, Until(updates=4)).model
    twice = run(quiet, FedAsync(), replace(half, steps=2), times, Until(updates=2)).model
    torch.testing.assert_close(once, twice, rtol=0, atol=1e-12)


def test_a_wrapper_keeps_the_inner_half_s_notes() -> None:
    """PersA-FL-ME under AREA: the accuracy reached is noted there too."""
    result = run(PROBLEM, AREA(size=3), Moreau(lr=0.1, penalty=2.0), Times(Exponential(1.0)), Until(updates=30))
    assert set(result.world.tally.notes) == {"nu"}


def test_a_wrapper_around_itself_is_itself() -> None:
    local = Algorithm(AREA(), SGD(lr=0.1)).local
    assert AREA().pair(local) is local


WIRES: list[tuple[str, Server, Local, tuple[int, int]]] = [
    ("sgd", FedAsync(), SGD(lr=0.1), (400, 400)),
    ("moreau", FedAsync(), Moreau(lr=0.1), (400, 404)),
    ("progress", Favano(), SGD(lr=0.1), (400, 400)),
    ("area", AREA(), SGD(lr=0.1), (400, 400)),
    ("mixing", FedAsyncMixing(), SGD(lr=0.1), (400, 400)),
]


@pytest.mark.parametrize(("server", "local", "bytes_"), [w[1:] for w in WIRES], ids=[w[0] for w in WIRES])
def test_a_vector_takes_four_bytes_a_number_and_a_note_four_in_all(
    server: Server, local: Local, bytes_: tuple[int, int]
) -> None:
    assert Algorithm(server, local).local.wire(100) == bytes_


@pytest.mark.parametrize("server", [AREA(), FedAsyncMixing(), LocalOnly()], ids=["area", "mixing", "alone"])
def test_a_wrapped_half_s_note_takes_four_bytes(server: Server) -> None:
    local = Algorithm(server, Moreau(lr=0.1)).local
    vectors = len(local.sends) - len(local.notes)
    assert local.wire(100)[1] == 400 * vectors + 4


@pytest.mark.parametrize(
    "settings", [{"lr": 0.0}, {"steps": 0}, {"batch": 0}, {"clip": 0.0}, {"decay": -1.0}], ids=lambda s: next(iter(s))
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(settings))):
        SGD(**{"lr": 0.1, **settings})


def test_a_gradient_has_no_step_of_its_own_and_can_be_copied_like_any_other_half() -> None:
    assert replace(Gradient(batch=8), lr=1.0, steps=1) == Gradient(batch=8)
    for setting in ({"lr": 0.5}, {"steps": 2}):
        with pytest.raises(SettingError, match="makes no local steps"):
            Gradient(**setting)
