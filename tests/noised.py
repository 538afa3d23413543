"""The world that breaks, with noise that the members of a cohort add themselves, and budgets that they keep.

The witness knows what every message was before its noise. What is opened must be the sum of messages that were noised
by enough members, with noise that nobody can draw who knows the run's seed; a client must have counted every message
whose masked numbers have left it; and the server's ledger must say what the log does, before anything is released.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from faults import Bugs, Jump, Node
from secured import Secured
from witness import Fold

from offbeat.algorithms import AREA, FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SpentError
from offbeat.core.guard import Contributions
from offbeat.core.local import SUMS_SPENT, Work
from offbeat.core.server import SPENT
from offbeat.core.sums import Encoded, Secure
from offbeat.core.vectors import Payload, Vector
from offbeat.deploy import effects as client_side, encoding, server_core as server_side
from offbeat.deploy.client_state import read_client_state
from offbeat.privacy.differential import Noise, Privacy

CLIP, CAP = 16.0, 5
SECURE = Secure(cohort=3, mode="cohort", bits=10)
PRIVACY, CAPPED = (Privacy(CLIP, Noise(most, multiplier=2.0)) for most in (10**6, CAP))
NOISED: dict[str, Callable[[], Algorithm]] = {
    "noised": lambda: Algorithm(FedBuff(size=4, guard=PRIVACY), Jump(lr=1.0, steps=2), secure=SECURE),
    "noised area": lambda: Algorithm(AREA(size=4, guard=PRIVACY), Jump(lr=1.0, steps=2), secure=SECURE),
    "noised capped": lambda: Algorithm(FedBuff(size=3, guard=CAPPED), Jump(lr=1.0, steps=2), secure=SECURE),
}


class Noised(Secured):
    """One schedule. guard: what stands in the place of [privacy], with a mistake perhaps."""

    worlds: Mapping[str, Callable[[], Algorithm]] = NOISED

    def __init__(self, seed: int, algorithm: str = "noised", bugs: Bugs | None = None, rate: float = 1.0) -> None:
        super().__init__(seed, algorithm, bugs, rate)
        self.guard: Privacy = self.plan.server.guard  # type: ignore[attr-defined]
        self.noise: dict[float, float] = {}  # by what is sent: the noise in it
        self.left: dict[int, set[bytes]] = defaultdict(set)  # client -> what it has masked and sent
        self.kept: dict[int, float] = defaultdict(float)  # client -> the most messages that it has had written down

    def run(self) -> Any:
        plain = Encoded.noised

        def watched(encoded: Encoded, sent: Vector, work: Work) -> Vector:
            found = self.draw(lambda: plain(encoded, sent, work), encoded, sent, work)
            self.noise[float(found)] = float(found - sent)
            if found != sent and torch.equal(found, plain(encoded, sent, replace(work, secret=False))):
                self.fired["noise of the seed"] += 1
                if self.fired["noise of the seed"] == 3:  # one number may be the same by chance
                    self.violations.append("messages have noise that everybody can draw who knows the run's seed")
            return found

        with (
            mock.patch("offbeat.core.local.system_bits", self.system_bits),
            mock.patch.object(Encoded, "noised", watched),
        ):
            return super().run()

    def draw(self, noised: Callable[[], Vector], encoded: Encoded, sent: Vector, work: Work) -> Vector:
        """A message with its noise."""
        return noised()

    def system_bits(self, count: int) -> torch.Tensor:
        """From this schedule's seed, so that it can be run again."""
        return torch.from_numpy(np.frombuffer(self.random.randbytes(8 * count), dtype=np.int64).copy())

    # What is seen

    def obey_client(self, node: Node, effect: client_side.Effect) -> None:
        if isinstance(effect, client_side.Save):
            spent = read_client_state(effect.data).memory[0][SUMS_SPENT]
            self.kept[node.index] = max(self.kept[node.index], float(spent[0]))
        if isinstance(effect, client_side.Tell) and encoding.unpack(effect.data).kind == "masked":
            assert node.core is not None
            assert node.core.state is not None
            assert node.core.state.pending is not None
            self.left[node.index].add(node.core.state.pending.words)
            if len(self.left[node.index]) > self.kept[node.index]:
                self.violations.append(f"{node.name} sends more than it has counted")
        super().obey_client(node, effect)

    def train(self, node: Node, what: client_side.Train) -> None:
        try:
            super().train(node, what)
        except SpentError as error:
            self.fired["refused for the budget"] += 1
            reason = str(error)
            self.later(0.1, lambda: self.act(node, lambda core: core.failed(what.job, reason, self.now)))

    def obey_server(self, effect: server_side.Effect) -> None:
        if isinstance(effect, server_side.Post | server_side.Put) and self.core is not None:
            ledger = self.core.ledger
            past = ledger.server.model.contributions or Contributions()
            if sum(past.count.values()) != ledger.tally.updates:
                self.violations.append(f"{past.count} are charged, and {ledger.tally.updates} updates are in sums")
        super().obey_server(effect)

    # What must hold

    def judge_progress(self, fold: Fold) -> None:
        if self.kind != "noised capped":
            if self.retired and fold.ledger.stopped == SPENT:  # fewer than `size` are left
                self.fired["ended by a removal"] += 1
                return
            super().judge_progress(fold)
        elif fold.ledger.stopped not in (SPENT, "end") and not fold.ledger.unopened:
            self.violations.append(f"the run is not over: {fold.ledger.stopped!r}")
        else:
            self.fired[fold.ledger.stopped] += 1

    def judge_memory(self, fold: Fold) -> None:
        super().judge_memory(fold)
        past = fold.ledger.server.model.contributions or Contributions()
        arrived = Counter(row.client for row in fold.rows if row.event == "Arrived")
        if past.count != dict(arrived):
            self.violations.append(f"the ledger says {past.count}, its events {arrived}")
        for client, count in arrived.items():
            left, most = len(self.left[client]), self.guard.noise.participations
            if not count <= left <= min(self.kept[client], most):
                self.violations.append(
                    f"client {client} was in {count} sums, has masked {left} messages and counted {self.kept[client]}"
                )

        for sum_ in fold.opened:
            self.judge_sum([self.witness.plain[once] for once in sum_])

    def judge_sum(self, uploads: list[Payload]) -> None:
        """Enough members have noised what is in a sum, each for itself; one may have drawn a 0."""
        noise = [self.noise.get(float(vector), 0.0) for upload in uploads for vector in upload.values()]
        if len(noise) < SECURE.cohort or noise.count(0.0) > 1:
            self.violations.append(f"a sum of {len(uploads)} has noise {noise}")
