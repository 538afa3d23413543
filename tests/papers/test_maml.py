"""PersA-FL-MAML: option B of "PersA-FL: Personalized Asynchronous Federated Learning" (algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from worlds import run

from offbeat.algorithms import AREA, FedAsync, FedAvg, FedBuff
from offbeat.core.errors import SettingError
from offbeat.core.local import Work
from offbeat.core.server import Server
from offbeat.core.until import Until
from offbeat.core.vectors import Vector
from offbeat.data.readers import digits
from offbeat.data.splits import Classes
from offbeat.local import MAML, SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.problems.supervised import Supervised
from offbeat.timing import Exponential, Times

SMOOTH = Quadratic(5, dim=4, dtype=torch.float64)
NOISY = Quadratic(5, dim=4, noise=0.5)
TIMES = Times(Exponential(1.0))


def work(oracle: Any, rows: Vector, lr: float = 1.0) -> Work:
    """One job for every row."""
    return Work({"model": rows}, {}, lr, 1, oracle, torch.zeros(len(rows), 1, dtype=torch.int64))


def direction(local: MAML, oracle: Any, rows: Vector) -> Vector:
    """What one local step of size 1 goes against."""
    return rows - local.step({"w": rows}, work(oracle, rows))["w"]


def rows_of(problem: Quadratic) -> Vector:
    return problem.initial() + torch.arange(problem.clients).unsqueeze(1).to(problem.h.dtype)


def test_the_gradient_is_the_closed_form_on_a_quadratic() -> None:
    """(5): ∇F = (I − α∇²f(w)) ∇f(w − α∇f(w)), which for f = ½h(w − c)² is (1 − αh)²·h·(w − c)."""
    rows = rows_of(SMOOTH)
    found = direction(MAML(lr=1.0, alpha=0.3), SMOOTH.oracle(range(5), [0] * 5, 1, None, False), rows)
    exact = (1 - 0.3 * SMOOTH.h) ** 2 * SMOOTH.h * (rows - SMOOTH.c)
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-6)


def test_the_central_difference_divides_by_two_delta() -> None:
    """(D1) divides by δ where the difference spans 2δ. On a quadratic a difference is exact."""
    rows = rows_of(SMOOTH)
    oracle = SMOOTH.oracle(range(5), [0] * 5, 1, None, False)
    exact, difference = (
        direction(MAML(lr=1.0, alpha=0.3, hessian=how), oracle, rows) for how in ("exact", "difference")
    )
    torch.testing.assert_close(exact, difference, rtol=0, atol=1e-4)
    v = SMOOTH.h * (1 - 0.3 * SMOOTH.h) * (rows - SMOOTH.c)
    assert float((v - 2 * 0.3 * SMOOTH.h * v - exact).abs().max()) > 0.1  # what (D1) as printed would give


def test_first_order_maml_drops_the_hessian() -> None:
    rows = rows_of(SMOOTH)
    local = MAML(lr=1.0, alpha=0.3, hessian="none")
    found = direction(local, SMOOTH.oracle(range(5), [0] * 5, 1, None, False), rows)
    torch.testing.assert_close(found, SMOOTH.h * (1 - 0.3 * SMOOTH.h) * (rows - SMOOTH.c))


@dataclass(frozen=True)
class ThreeBatches:
    """f(w; D_s) = ½·h_s·(w − c_s)² with another h and c for every mini-batch s."""

    h: tuple[float, ...] = (2.0, 3.0, 5.0)
    c: tuple[float, ...] = (1.0, -2.0, 7.0)

    def gradient(self, w: Vector, step: int, sample: int = 0) -> Vector:
        return self.h[sample] * (w - self.c[sample])

    def hvp(self, w: Vector, v: Vector, step: int, sample: int = 0) -> Vector:
        return self.h[sample] * v


@pytest.mark.parametrize("hessian", ["exact", "difference"])
def test_the_three_mini_batches_by_hand(hessian: str) -> None:
    """Line 9 at w = 4, α = 1/10: D′ (s = 1) adapts to 4 − 18/10 = 11/5; D (s = 0) gives 2·(6/5) = 12/5; D″ (s = 2)
    gives (1 − 5/10)·12/5 = 6/5."""
    local = MAML(lr=1.0, alpha=0.1, hessian=hessian, delta=0.5)
    found = direction(local, ThreeBatches(), torch.tensor([[4.0]], dtype=torch.float64))
    assert found.item() == pytest.approx(6 / 5, abs=1e-12)


def small(model: str, **options: Any) -> Supervised:
    return Supervised.split(digits(), 10, Classes(5), model, options=options or None, l2=0.01)


def test_the_three_mini_batches_are_independent_draws() -> None:
    """Line 8: "sample two data batches D′, D″ from distribution p_i", besides D."""
    problem = small("softmax")
    oracle = problem.oracle([3], [17], 5, 8, False)
    w = problem.initial().unsqueeze(0)
    first, second, third = (oracle.gradient(w, 2, sample) for sample in range(3))
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)
    assert not torch.equal(first, third)
    assert torch.equal(first, oracle.gradient(w, 2, 0))  # and the same draw is the same mini-batch


@pytest.mark.parametrize(("model", "options"), [("softmax", {}), ("mlp", {"hidden": [3]})], ids=["softmax", "mlp"])
@pytest.mark.parametrize("clients", [[4], [0, 3, 9]], ids=["single", "batched"])
def test_the_hessian_vector_product_is_that_of_the_whole_hessian(model: str, options: Any, clients: list[int]) -> None:
    """Against torch.autograd.functional.hessian of the same mini-batch's loss, in single precision."""
    problem = small(model, **options)
    oracle = problem.oracle(clients, [7 + c for c in clients], 3, 6, False)
    generator = torch.Generator().manual_seed(0)
    w = problem.initial() + 0.1 * torch.randn(len(clients), problem.dim, generator=generator)
    v = torch.randn(len(clients), problem.dim, generator=generator)
    found = oracle.hvp(w, v, 1, 2)
    for i in range(len(clients)):
        alone = problem.oracle([clients[i]], [7 + clients[i]], 3, 6, False)
        hessian = torch.autograd.functional.hessian(lambda u, one=alone: one.loss(u[None], 1, 2)[0], w[i])
        torch.testing.assert_close(found[i], hessian @ v[i], rtol=1e-3, atol=1e-4)


def test_the_exact_product_and_the_difference_agree_on_digits() -> None:
    """To 1e-4 on a smooth loss. With ReLU they need not: the difference sees the kinks within δ, the product none."""
    problem = small("softmax")
    rows = problem.initial() + 0.1 * torch.randn(4, problem.dim, generator=torch.Generator().manual_seed(1))
    oracle = problem.oracle(range(4), range(4), 1, None, False)
    exact, difference = (
        direction(MAML(lr=1.0, alpha=0.1, hessian=how), oracle, rows) for how in ("exact", "difference")
    )
    torch.testing.assert_close(exact, difference, rtol=0, atol=1e-4)


SERVERS: list[Server] = [FedAsync(lr=0.3), FedBuff(size=3), AREA(size=3), FedAvg(sampled=3)]


@pytest.mark.parametrize("server", SERVERS, ids=lambda s: type(s).__name__)
def test_alpha_0_is_option_a_bit_for_bit(server: Server) -> None:
    """PersA-FL, §2: "α = 0 implies FL in Problem (1)"; under FedAsync, FedBuff, AREA and FedAvg (Per-FedAvg) alike."""
    plain, maml = (
        run(NOISY, server, half, TIMES, Until(updates=60)).model
        for half in (SGD(lr=0.05, steps=3), MAML(lr=0.05, steps=3, alpha=0.0))
    )
    assert torch.equal(plain, maml)


def test_it_rests_where_the_adapted_clients_balance() -> None:
    """Everybody's FedAvg with one step: Σ (1 − αh_i)²·h_i·(w − c_i) = 0, known in closed form and not x*."""
    local = MAML(lr=0.2, alpha=0.5)
    found = run(SMOOTH, FedAvg(), local, TIMES, Until(versions=1500)).model
    weight = (1 - 0.5 * SMOOTH.h) ** 2 * SMOOTH.h
    torch.testing.assert_close(found, (weight * SMOOTH.c).sum(dim=0) / weight.sum(dim=0), rtol=0, atol=1e-6)
    assert float((found - SMOOTH.optimum()).abs().max()) > 0.01


@pytest.mark.parametrize(
    "settings", [{"alpha": -0.1}, {"hessian": "some"}, {"delta": 0.0}], ids=["alpha", "hessian", "delta"]
)
def test_settings_that_cannot_work_are_refused(settings: dict) -> None:
    with pytest.raises(SettingError, match=next(iter(settings))):
        MAML(lr=0.1, **settings)
