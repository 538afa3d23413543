"""Compression of messages: each rule by hand, its bytes, error feedback, and what it must leave as it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from worlds import Line, Scripted, run

from offbeat.algorithms import (
    AREA,
    MIFA,
    SCAFFOLD,
    AsFedAvg,
    AsyncDiLoCo,
    AsySG,
    Favano,
    FedAsync,
    FedAsyncMixing,
    FedAvg,
    FedBuff,
    LocalOnly,
    QuAFL,
)
from offbeat.core.algorithm import Algorithm
from offbeat.core.compressor import Compressor
from offbeat.core.errors import SettingError
from offbeat.core.local import Carry, Local, Work
from offbeat.core.random import bits as random_bits, unit
from offbeat.core.server import Server
from offbeat.core.until import Until
from offbeat.core.vectors import materialise
from offbeat.experiment.experiment import Experiment
from offbeat.local import MAML, SGD, Adam, Gradient, Moreau, Prox, Scaffold
from offbeat.local.compress import QSGD, LargestK, Quantise, RandomK, Signs, quantise
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Bandwidth, Constant, Exponential, Times

X = torch.tensor([[3.0, -1.0, 0.5, -4.0]], dtype=torch.float64)
ALL = [
    LargestK(0.3),
    RandomK(0.3),
    Signs(),
    QSGD(4),
    Quantise(3),
    LargestK(1.0),
    LargestK(0.01),
    QSGD(100),
    Quantise(8),
]
EVERY = pytest.mark.parametrize("coder", ALL, ids=repr)
FEEDBACK = pytest.mark.parametrize("feedback", [False, True], ids=["plain", "feedback"])
NOISY = Quadratic(6, dim=10, noise=0.5, dtype=torch.float64)
UNEVEN = Times(Exponential(tuple(0.3 * 1.5**i for i in range(6))))
HALF = SGD(lr=0.5)  # on the line: reached = (received + centre) / 2, in both of its coordinates
PLANE = Line([6.0, 12.0, -6.0], dim=2)
ORDER = Scripted([[1.0], [2.5, 100.0], [4.5]])  # reports of clients 0, 0, 1, 0, 0, 2 at 1, 2, 2.5, 3, 4, 4.5


def uniforms(rows: int, dim: int) -> torch.Tensor:
    return unit(random_bits(torch.arange(rows).unsqueeze(1) * 7919, torch.arange(dim)))


def out(coder: Compressor, x: torch.Tensor) -> torch.Tensor:
    """What comes out of these rows."""
    return coder.value(coder.code(x, lambda: uniforms(*x.shape).to(x.dtype)))


# The rules


def test_the_largest_are_kept_and_of_equal_ones_the_first() -> None:
    assert out(LargestK(0.5), X).tolist() == [[3.0, 0.0, 0.0, -4.0]]
    assert out(LargestK(0.5), torch.tensor([[1.0, -2.0, 2.0, -2.0]])).tolist() == [[0.0, -2.0, 2.0, 0.0]]


@FEEDBACK
def test_random_numbers_are_kept_and_right_on_average_without_feedback(feedback: bool) -> None:
    """k = 2 of 4: each with chance 1/2, times 2 or as it is."""
    found = out(RandomK(0.5, feedback=feedback), X.expand(20_000, -1))
    assert {*(found != 0).sum(1).tolist()} == {2}
    torch.testing.assert_close(found.mean(0), X[0] * (0.5 if feedback else 1.0), rtol=0, atol=0.1)


def test_signs_times_the_mean_of_the_absolute_values() -> None:
    assert out(Signs(), X).tolist() == [[2.125, -2.125, 2.125, -2.125]]


def test_qsgd_rounds_to_multiples_of_the_length_over_s_and_is_right_on_average() -> None:
    rows = 20_000
    found = out(QSGD(4), X.expand(rows, -1)) / (torch.linalg.vector_norm(X) / 4)
    torch.testing.assert_close(found, found.round())
    width = float(torch.linalg.vector_norm(X)) / 4
    assert float((found.mean(0) * width - X[0]).abs().max()) < 5 * (width / 2) / rows**0.5


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_quantise_is_quafl_s_around_zero_bit_for_bit(bits: int) -> None:
    rows = torch.randn(50, 7, generator=torch.Generator().manual_seed(0))
    expected = quantise(rows, torch.zeros_like(rows), uniforms(50, 7).to(rows.dtype), bits)
    assert torch.equal(out(Quantise(bits), rows), expected)


@EVERY
@FEEDBACK
def test_rows_do_not_depend_on_each_other(coder: Compressor, feedback: bool) -> None:
    coder, x = replace(coder, feedback=feedback), torch.randn(9, 23, generator=torch.Generator().manual_seed(0))
    together, u = coder.value(coder.code(x, lambda: uniforms(9, 23).float())), uniforms(9, 23).float()
    for row in range(9):
        alone = coder.value(coder.code(x[row : row + 1], lambda row=row: u[row : row + 1]))
        torch.testing.assert_close(together[row : row + 1], alone)


@EVERY
def test_with_feedback_no_row_is_farther_from_what_was_meant_than_nothing_would_be(coder: Compressor) -> None:
    x = torch.randn(200, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 3
    left = x - out(replace(coder, feedback=True), x)
    assert bool((left.norm(dim=1) <= x.norm(dim=1) * (1 + 1e-12)).all())


# Bytes


@EVERY
@FEEDBACK
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [1, 7, 8, 33, 1000])
def test_what_is_unpacked_is_what_was_packed_bit_for_bit(
    coder: Compressor, feedback: bool, dtype: torch.dtype, dim: int
) -> None:
    coder, x = replace(coder, feedback=feedback), torch.randn(2, dim, generator=torch.Generator().manual_seed(0))
    code = coder.code(x.to(dtype), lambda: uniforms(2, dim).to(dtype))
    packed = coder.pack(code)
    assert packed.shape == (2, coder.size(dim, dtype.itemsize))
    assert torch.equal(coder.value(coder.unpack(packed, x.to(dtype))), coder.value(code))


@EVERY
@given(data=st.data())
def test_any_bytes_are_unpacked_or_refused(coder: Compressor, data: Any) -> None:
    size = coder.size(20)
    raw = data.draw(st.binary(min_size=size, max_size=size))
    try:
        code = coder.unpack(torch.tensor([[*raw]], dtype=torch.uint8), torch.zeros(1, 20))
    except ValueError:
        return
    assert coder.value(code).shape == (1, 20)


SIZES = [
    (LargestK(0.01), 1000, 10 * 8),  # a number and its place
    (LargestK(0.1), 1000, 100 * 4 + 125),  # a bit for each place is shorter
    (RandomK(0.1), 1000, 525),
    (LargestK(1.0), 1000, 4000),
    (Signs(), 1000, 129),
    (QSGD(7), 1000, 504),  # 15 levels, 4 bits
    (Quantise(8), 1000, 1004),
]


@pytest.mark.parametrize(("coder", "dim", "size"), SIZES, ids=lambda it: repr(it))
def test_bytes_of_a_message(coder: Compressor, dim: int, size: int) -> None:
    assert Algorithm(FedAsync(), SGD(0.1, compress=coder)).local.wire(dim) == (4 * dim, size)
    assert Algorithm(AREA(), Moreau(0.1, compress=coder)).local.wire(dim) == (4 * dim, size + 4)
    assert Algorithm(SCAFFOLD(), Scaffold(0.1, compress=coder)).local.wire(dim) == (8 * dim, 2 * size)


def test_bytes_are_what_the_timing_and_the_record_count() -> None:
    """10 numbers down, 40 bytes at 40 per unit of time; one of them up at 2."""
    clock = Times(Constant(1.0), network=Bandwidth(down=40 * 8e-6, up=2 * 8e-6))
    local = SGD(0.1, compress=LargestK(0.1))
    steps = prepare(NOISY, Algorithm(FedAsync(lr=0.1), local), clock, Until(updates=6)).steps()
    arrivals = [world.now for world in steps if world.tally.updates == 1]
    assert arrivals[0] == pytest.approx(1.0 + 1.0 + (4 + 2) / 2.0)  # a bit for each of ten places: two bytes


# What is left as it is, and what is not


WHOLE: list[tuple[Server[Any], Local]] = [
    (FedAsync(lr=0.3), SGD(0.05, steps=2)),
    (FedBuff(size=3), Adam(0.05, steps=2, keep=True)),
    (AREA(size=3), SGD(0.05, steps=2)),
    (MIFA(size=2), Prox(0.05, steps=2)),
    (FedAvg(sampled=3), MAML(0.05, steps=2)),
    (SCAFFOLD(sampled=3), Scaffold(0.05, steps=2)),
    (AsySG(size=2, lr=0.05), Gradient()),
    (AREA(size=2), Moreau(0.05, penalty=20.0)),
    (AsyncDiLoCo(lr=0.3, dynamic=True), SGD(0.05, steps=4)),
]


@FEEDBACK
@pytest.mark.parametrize(("server", "local"), WHOLE, ids=lambda it: type(it).__name__)
def test_with_everything_kept_nothing_changes_bit_for_bit(server: Any, local: Local, feedback: bool) -> None:
    kept = replace(local, compress=LargestK(1.0, feedback=feedback))
    plain, through = (run(NOISY, server, each, UNEVEN, Until(updates=80)) for each in (local, kept))
    assert torch.equal(plain.model, through.model)
    for place, (_, memory) in plain.world.memories.items():
        assert all(torch.equal(through.world.memories[place][1][name], v) for name, v in memory.items())


REFUSED = [AsFedAvg(), FedAsyncMixing(), Favano(), QuAFL(), LocalOnly()]


@pytest.mark.parametrize("server", REFUSED, ids=lambda it: type(it).__name__)
def test_servers_that_read_models_are_refused(server: Any) -> None:
    with pytest.raises(SettingError, match="compress: it compresses differences, and what SGD sends here is none"):
        Algorithm(server, SGD(0.1, compress=Signs()))


def test_an_algorithm_made_of_the_trainer_of_another_is_compressed_once() -> None:
    once = Algorithm(AREA(), SGD(0.1, compress=Signs()))
    assert Algorithm(AREA(), once.local).local == once.local


@EVERY
def test_a_client_that_has_diverged_is_not_hidden(coder: Compressor) -> None:
    with pytest.raises(Exception, match="not finite"):
        run(NOISY, FedAsync(), SGD(1e200, steps=3, compress=coder), UNEVEN, Until(updates=30))


# Error feedback


@dataclass(frozen=True)
class Meant(Local):
    """Client i means to send i + 1 times the same delta in every job."""

    def step(self, carry: Carry, work: Work) -> Carry:
        mine = torch.tensor([[job.client + 1.0] for job in work.jobs], dtype=torch.float64)
        return {"w": carry["w"] - mine * X}


@EVERY
def test_what_was_sent_and_what_is_kept_is_what_was_meant(coder: Compressor) -> None:
    """Over all results that arrived; what was lost was not sent, and its client is as it was before."""
    problem, local = Quadratic(2, dim=4, dtype=torch.float64), Meant(lr=1.0, compress=replace(coder, feedback=True))
    result = run(problem, FedAsync(lr=1.0), local, Times(Exponential(1.0), dropout=0.3), Until(updates=40))
    assert result.world.tally.lost > 5
    sent = problem.initial() - result.model
    kept = sum(memory["error.delta"] for _, memory in result.world.memories.values())
    meant = sum((event.client + 1.0) * X[0] for event in result.events if event.event == "Arrived")
    torch.testing.assert_close(sent + kept, meant, rtol=1e-12, atol=1e-9)


def lengths_of_what_is_kept(coder: Compressor, e: torch.Tensor, rounds: int) -> torch.Tensor:
    """‖e‖ of each row [rounds, n], while clients mean to send nothing but e: e ← e − what is sent of it."""
    found = []
    for at in range(rounds):
        draws = unit(random_bits(torch.arange(len(e)).unsqueeze(1) + at * 7919, torch.arange(e.shape[1]))).to(e.dtype)
        found.append(e.norm(dim=1))
        e = e - coder.value(coder.code(e, lambda u=draws: u))
    return torch.stack(found)


@EVERY
def test_what_is_kept_never_grows_while_nothing_new_is_meant(coder: Compressor) -> None:
    e = torch.randn(20, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64) ** 3
    kept = lengths_of_what_is_kept(replace(coder, feedback=True), e, 40)
    assert bool((kept[1:] <= kept[:-1] * (1 + 1e-12)).all())
    without = lengths_of_what_is_kept(RandomK(0.1), e, 40)  # times d/k, as it is sent without feedback, it would
    assert float((without[-1] / without[0]).min()) > 1000


def test_six_messages_of_three_clients_by_hand() -> None:
    """FedAsync, lr = 1, in two coordinates, one of which is sent; Δ is delta + error."""
    expected = [
        (Fraction(3), Fraction(0)),  # client 0 from (0, 0): Δ = (−3, −3), the first is sent, error (0, −3)
        (Fraction(3), Fraction(6)),  # from (3, 0): delta (−3/2, −3), Δ = (−3/2, −6), error (−3/2, 0)
        (Fraction(9), Fraction(6)),  # client 1 from (0, 0): Δ = (−6, −6)
        (Fraction(12), Fraction(6)),  # client 0 from (3, 6): delta (−3/2, 0), Δ = (−3, 0), no error
        (Fraction(9), Fraction(6)),  # client 0 from (12, 6): Δ = (3, 0)
        (Fraction(6), Fraction(6)),  # client 2 from (0, 0): Δ = (3, 3)
    ]
    assert _models(FedAsync(), LargestK(0.5, feedback=True)) == [(float(a), float(b)) for a, b in expected]


def test_six_messages_of_area_by_hand_y_follows_what_was_sent() -> None:
    """Δ = 1: x ← x + m/3 after every message; m is one coordinate of w_i − y_i, and y_i ← y_i + m."""
    expected = [
        (Fraction(1), Fraction(0)),  # client 0 from (0, 0) reaches (3, 3): m = (3, 0), y = (3, 0)
        (Fraction(1), Fraction(1)),  # from (0, 0) again: (3, 3) − y = (0, 3)
        (Fraction(3), Fraction(1)),  # client 1 from (0, 0) reaches (6, 6): m = (6, 0)
        (Fraction(19, 6), Fraction(1)),  # client 0 from (1, 0) reaches (7/2, 3): m = (1/2, 0)
        (Fraction(7, 2), Fraction(1)),  # client 0 from (3, 1) reaches (9/2, 7/2): m = (1, 0) of (1, 1/2)
        (Fraction(5, 2), Fraction(1)),  # client 2 from (0, 0) reaches (−3, −3): m = (−3, 0)
    ]
    for feedback in (False, True):
        found = torch.tensor(_models(AREA(size=1), LargestK(0.5, feedback=feedback)))
        torch.testing.assert_close(found, torch.tensor([(float(a), float(b)) for a, b in expected]))


def _models(server: Server[Any], coder: Compressor) -> list[tuple[float, float]]:
    steps = prepare(PLANE, Algorithm(server, replace(HALF, compress=coder)), ORDER, Until(updates=6)).steps()
    next(steps)  # Started
    return [tuple(world.server.model.vector.tolist()) for world in steps][:6]


@EVERY
@FEEDBACK
def test_area_s_invariant_holds_after_every_event(coder: Compressor, feedback: bool) -> None:
    """mean(y_i) = x + u: the server has added up what was sent, and y_i is what was sent."""
    local = SGD(0.05, steps=2, compress=replace(coder, feedback=feedback))
    running = prepare(NOISY, Algorithm(AREA(size=3), local), UNEVEN, Until(updates=120))
    for world in running.steps():
        memories = [world.memories.get((client, 0)) for client in range(NOISY.clients)]
        ys = torch.stack([NOISY.initial() if m is None else materialise(m[1]["y"]) for m in memories])
        expected = materialise(world.server.model.vector + world.server.u)
        torch.testing.assert_close(ys.mean(0), expected, rtol=1e-9, atol=1e-9)
        assert all(m is None or set(m[1]) == {"y"} for m in memories)


@EVERY
def test_scaffold_s_control_stays_the_mean_of_the_clients(coder: Compressor) -> None:
    local = Scaffold(0.05, steps=2, compress=replace(coder, feedback=True))
    running = prepare(NOISY, Algorithm(SCAFFOLD(), local), UNEVEN, Until(updates=60))
    world = running.run()
    controls = torch.stack([world.memories[client, 0][1]["control"] for client in range(NOISY.clients)])
    assert world.server.buffer.count == 0
    torch.testing.assert_close(controls.mean(0), world.server.control, rtol=1e-9, atol=1e-9)


def test_feedback_reaches_the_optimum_that_the_largest_numbers_alone_miss() -> None:
    """Clients pull in opposite directions in the first coordinate, much more strongly than together in the second."""
    quiet = Quadratic(6, dim=10, heterogeneity=3.0, dtype=torch.float64)
    found = {}
    for feedback in (False, True):
        local = SGD(0.02, compress=LargestK(0.1, feedback=feedback))
        model = run(quiet, FedAvg(), local, UNEVEN, Until(updates=12_000)).model
        found[feedback] = float((model - quiet.optimum()).norm()) / quiet.distance
    assert found[True] < 0.01 < 3 * found[True] < found[False]


# In files


def test_it_is_a_key_of_every_local_trainer_or_beside_its_name() -> None:
    base = {"problem": {"data": "quadratic", "clients": 4}, "timing": {"constant": 1.0}}
    tables = [
        {"sgd": {"lr": 0.1}, "compress": {"top-k": {"share": 0.01, "feedback": True}}},
        {"sgd": {"lr": 0.1, "compress": {"top-k": 0.01, "feedback": True}}},
    ]
    made = [Experiment.parse({**base, "algorithm": {"area": {"local": t}}}).algorithms["area"].local for t in tables]
    assert made[0] == made[1]
    assert made[0].compress == LargestK(0.01, feedback=True)  # type: ignore[union-attr]
    for name, kind in {"sign": Signs(), "qsgd": QSGD(), "quantise": Quantise()}.items():
        local = {"prox": {"lr": 0.1}, "compress": name}
        parsed = Experiment.parse({**base, "algorithm": {"fedavg": {"local": local}}}).algorithms["fedavg"].local
        assert parsed.compress == kind  # type: ignore[union-attr]


def test_the_refusal_of_too_many_levels_names_the_most() -> None:
    most = 2**15 - 1
    assert QSGD(most).levels == most
    with pytest.raises(SettingError, match=f"levels = {most + 1}: must be at most {most}$"):
        QSGD(most + 1)
