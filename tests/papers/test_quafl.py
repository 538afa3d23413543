"""QuAFL (Zakerinia, Talaei, Nadiradze, Alistarh 2023), cited by DeFedAvg and FedAST: quantised messages both ways."""

from __future__ import annotations

import pytest
import torch
from worlds import Line, Scripted, run

from offbeat.algorithms.quafl import QuAFL
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError
from offbeat.core.random import bits as random_bits, unit
from offbeat.core.until import Until
from offbeat.local.compress import quantise
from offbeat.local.sgd import SGD
from offbeat.simulate.run import prepare

HALF = SGD(lr=0.5, steps=2)
THREE = Line([6.0, 12.0, -6.0])
CLOCK = Scripted([[2.0], [4.0], [8.0]])
SEED = 16  # draws clients {0, 1}, {1, 2} and {0, 2} in the first three rounds
BITS = pytest.mark.parametrize("bits", [1, 2, 4, 8])
X = torch.tensor([[0.3, -1.0, 0.77, 0.0, 0.5]], dtype=torch.float64)
REFERENCE = torch.tensor([[0.1, -0.2, 0.5, 0.0, 1.0]], dtype=torch.float64)
SPAN = 0.8  # the largest |x − reference|


def uniforms(rows: int) -> torch.Tensor:
    return unit(random_bits(torch.arange(rows).unsqueeze(1) * 7919, torch.arange(X.shape[1])))


def test_six_answers_in_three_rounds_by_hand() -> None:
    """s = 2, Δt = 2, 16 bits: exact to the width of a level, 2·span/65535 < 4e-4 for these numbers.

    Round 1: client 0 does 2 steps from 0 to 9/2, client 1 one to 6: w = (0 + 9/2 + 6)/3 = 7/2. They go on from
        (0 + 2·9/2)/3 = 3 and (0 + 2·6)/3 = 4: the server's model of *before* the step.
    Round 2: client 1 from 4 to 8, client 2 from 0 to −3: w = (7/2 + 8 − 3)/3 = 17/6. Client 2 goes on from
        (7/2 − 6)/3 = −5/6.
    Round 3: client 0 does 2 steps from 3 to 21/4, client 2 none: w = (17/6 + 21/4 − 5/6)/3 = 29/12.
    """
    algorithm = Algorithm(QuAFL(sampled=2, period=2.0, bits=16), HALF)
    steps = prepare(THREE, algorithm, CLOCK, Until(versions=3), seed=SEED).steps()
    models = {world.server.model.version: world.server.model.vector.item() for world in steps}
    assert models == pytest.approx({0: 0, 1: 7 / 2, 2: 17 / 6, 3: 29 / 12}, abs=1e-3)


def test_a_client_mixes_with_the_server_s_model_of_before_the_step() -> None:
    """One client, s = 1, at 6 after a step from 0 with lr 1: w = 3, and it goes on from (0 + 6)/2, not (3 + 6)/2."""
    algorithm = Algorithm(QuAFL(sampled=1, period=1.0, bits=16), SGD(lr=1.0))
    steps = prepare(Line([6.0]), algorithm, Scripted([[1.0]]), Until(versions=2)).steps()
    world = next(w for w in steps if w.server.model.version == 1)
    (flight,) = world.flights.values()
    assert world.server.model.vector.item() == pytest.approx(3.0, abs=1e-3)
    assert flight.payload is not None
    assert (flight.payload["model"].item(), flight.job.version) == (0.0, 0)


def test_an_interrupted_client_keeps_what_it_mixed() -> None:
    """q = 0 in round 2: its own model is the mixture (0 + 6)/2 = 3, and that is what the server is given."""
    algorithm = Algorithm(QuAFL(sampled=1, period=1.0, bits=16), SGD(lr=1.0))
    simulation = prepare(Line([6.0]), algorithm, Scripted([[1.0, 100.0]]), Until(versions=2))
    world = simulation.run()
    assert world.memories[0, 0][1]["own"].item() == pytest.approx(3.0, abs=1e-3)
    assert world.server.model.vector.item() == pytest.approx((3.0 + 3.0) / 2, abs=1e-3)


@BITS
def test_rounding_is_right_on_average(bits: int) -> None:
    """Over 20,000 draws the mean is x, to five standard errors of a level's width."""
    rows = 20_000
    found = quantise(X.expand(rows, -1), REFERENCE.expand(rows, -1), uniforms(rows), bits).mean(dim=0)
    level = 2 * SPAN / (2**bits - 1)
    assert float((found - X[0]).abs().max()) < 5 * (level / 2) / rows**0.5


@BITS
def test_the_error_is_less_than_one_level(bits: int) -> None:
    found = quantise(X.expand(1000, -1), REFERENCE.expand(1000, -1), uniforms(1000), bits)
    assert float((found - X).abs().max()) <= 2 * SPAN / (2**bits - 1) * (1 + 1e-12)


@BITS
def test_there_are_only_two_to_the_bits_levels(bits: int) -> None:
    found = quantise(X.expand(1000, -1), REFERENCE.expand(1000, -1), uniforms(1000), bits) - REFERENCE
    levels = (found + SPAN) / (2 * SPAN / (2**bits - 1))
    torch.testing.assert_close(levels, levels.round())
    assert 0 <= int(levels.round().min()) <= int(levels.round().max()) <= 2**bits - 1


@BITS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_vector_at_the_reference_is_exact(bits: int, dtype: torch.dtype) -> None:
    x = X.to(dtype)
    assert torch.equal(quantise(x, x, uniforms(1).to(dtype), bits), x)


def test_rows_do_not_share_a_span() -> None:
    x = torch.stack([X[0], X[0] * 100])
    together = quantise(x, torch.zeros_like(x), uniforms(2), 4)
    apart = [quantise(x[i : i + 1], torch.zeros(1, 5), uniforms(2)[i : i + 1], 4)[0] for i in range(2)]
    assert torch.equal(together, torch.stack(apart))


@pytest.mark.parametrize(("bits", "dim", "bytes_"), [(8, 1000, 1004), (1, 9, 6), (12, 3, 9), (16, 10, 24)])
def test_a_message_takes_its_bits_and_four_bytes_for_the_span(bits: int, dim: int, bytes_: int) -> None:
    assert Algorithm(QuAFL(bits=bits), HALF).local.wire(dim) == (bytes_, bytes_)


def test_few_bits_still_reach_the_optimum_of_equal_clients() -> None:
    """The levels lie closer together as the models agree: the error goes to 0 with 4 bits too."""
    server = QuAFL(sampled=3, period=2.0, bits=4)
    result = run(Line([5.0, 5.0, 5.0]), server, HALF, CLOCK, Until(versions=200))
    assert result.model.item() == pytest.approx(5.0, abs=1e-6)


@pytest.mark.parametrize("bits", [0, 17])
def test_bits_out_of_range_are_refused(bits: int) -> None:
    with pytest.raises(SettingError, match=f"bits = {bits}"):
        QuAFL(bits=bits)
