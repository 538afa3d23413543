"""Secure aggregation in real runs: the simulated arithmetic, sums opened once, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ideal import Ideal

from offbeat.algorithms import AREA, FedAsync, FedBuff
from offbeat.algorithms.optimisers import FedAdam
from offbeat.core.algorithm import Algorithm
from offbeat.core.sums import Secure
from offbeat.core.until import Until
from offbeat.deploy import effects, encoding, wire
from offbeat.deploy.admission import admit_masked
from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.envelope import public_seal
from offbeat.deploy.helper_core import HelperCore, HelperMemory
from offbeat.deploy.helping import HelpingHeader
from offbeat.local import SGD
from offbeat.privacy.secure.tickets import LIFE, MaskContext, MaskTicket, SumRequest
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times
from offbeat.watch.history import History

SECURE, TIMES = Secure(cohort=3), Times(compute=Exponential(1.0))
SERVERS = {
    "fedbuff": FedBuff(size=4),
    "fedasync": FedAsync(size=4, lr=0.5),
    "an optimiser": FedBuff(size=3, server=FedAdam(0.1)),
    "area": AREA(size=4),
}


@pytest.mark.parametrize("name", SERVERS)
def test_on_an_ideal_network_the_run_is_the_simulated_one_bit_for_bit(name: str) -> None:
    problem, local, until = Quadratic(dim=5, clients=6, noise=0.1), SGD(lr=0.1, steps=2), Until(updates=80)
    ideal = Ideal(problem, SERVERS[name], local, TIMES, until, seed=3, secure=SECURE)
    real = ideal.run().ledger
    history = History(keep_events=True)
    algorithm = Algorithm(SERVERS[name], local, secure=SECURE)
    run = prepare(problem, algorithm, TIMES, until, seed=3, executor="serial", watchers=[history]).run()
    assert torch.equal(real.server.model.vector, run.server.model.vector)
    assert real.server.model.version == run.server.model.version >= 10
    rows: Any = [
        [(row.time, row.event, row.client, row.version, row.staleness) for row in each.events if row.event != "Joined"]
        for each in (ideal.history, history)
    ]
    assert rows[0] == rows[1]
    assert real.unopened == 0
    assert not real.tally.refused


def question(position: int, number: int, epoch: int, life: int = 0) -> bytes:
    """What a helper is asked about two clients."""
    seals = [public_seal(bytes([n]) * 32) for n in (1, 2)]
    tickets = tuple(MaskTicket(name, epoch, 1, seal, seal) for name, seal in zip("ab", seals, strict=True))
    request = SumRequest(number, MaskContext("fed", "run", 0, 3, 2, 20), tickets)
    parts = {"roster": b"", str(number): request.to_bytes()}
    return encoding.pack("helping", vars(HelpingHeader("run", position, "", life)), parts)


def test_a_helper_that_was_there_before_answers_after_a_restored_backup() -> None:
    """Whose log is shorter than the one that it was asked about before."""
    helper = HelperCore("fed", "run", bytes([3]) * 32, b"")
    helper.kept = HelperMemory(seals={name: [public_seal(bytes([n]) * 32).hex()] for n, name in enumerate("ab", 1)})

    def told(question: bytes) -> list[str]:
        said = [each for each in helper.hear(question, 0.0) if isinstance(each, effects.Tell)]
        return [wire.heard(encoding.unpack(each.data)).error for each in said]  # type: ignore[attr-defined]

    assert told(question(100, 1, 1)) == [""]
    assert told(question(90, 1, 1)) == []  # overtaken on its way
    assert told(question(50, 7 * LIFE + 1, 7, life=7)) == [""]


def test_a_masked_update_with_a_key_that_fits_no_helper_is_refused() -> None:
    """It would spoil the sum that it is in."""
    message = encoding.unpack(encoding.pack("trained", {}, {"delta": bytes(12), "once": bytes(32)}))
    with pytest.raises(RefusedError, match="no helper"):
        admit_masked(message, "delta", 3)
