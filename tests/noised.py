"""The world that breaks, with noise in secure sums: added by the members of a cohort themselves, or by a helper.

The witness knows what every message was before its noise. Of a cohort's sums, what is opened must be the sum of
messages that were noised by enough members, with noise that nobody can draw who knows the run's seed; a client must
have counted every message whose masked numbers have left it. A helper's sums must be those of the messages and of its
noise, and it must have counted every client of every sum. The server's ledger of each task must say what the log does,
before anything is released.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from faults import Bugs, Jump, Node
from secured import SECRETS, Secured
from witness import Fold, Ticket

from offbeat.algorithms import AREA, FedAST, FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SpentError
from offbeat.core.guard import Contributions
from offbeat.core.local import SUMS_SPENT, Work
from offbeat.core.server import SPENT, Server
from offbeat.core.sums import Encoded, Secure
from offbeat.core.vectors import Payload, Vector
from offbeat.deploy import effects as client_side, encoding, server_core as server_side
from offbeat.deploy.client_state import read_client_state
from offbeat.deploy.helping import context_of
from offbeat.deploy.keys import HELPER
from offbeat.privacy.differential import Noise, Privacy
from offbeat.privacy.secure.masks import Unmasker
from offbeat.privacy.secure.tickets import MaskTicket, SumRequest

CLIP, CAP = 16.0, 5
SECURE = Secure(cohort=3, mode="cohort", bits=10)
HELPED = replace(SECURE, mode="helper")
PRIVACY, CAPPED = (Privacy(CLIP, Noise(most, multiplier=2.0)) for most in (10**6, CAP))
TASKS = partial(FedAST, requests=8, size=3)
Place = tuple[int, int]  # (client, task)


def made(server: Server[Any], secure: Secure) -> Callable[[], Algorithm]:
    return lambda: Algorithm(server, Jump(lr=1.0, steps=2), secure=secure)


NOISED: dict[str, Callable[[], Algorithm]] = {
    "noised": made(FedBuff(size=4, guard=PRIVACY), SECURE),
    "noised area": made(AREA(size=4, guard=PRIVACY), SECURE),
    "noised capped": made(FedBuff(size=3, guard=CAPPED), SECURE),
    "noised fedast": made(TASKS(guard=PRIVACY), SECURE),
    "noised fedast area": made(TASKS(aggregate=AREA(size=3), guard=PRIVACY), SECURE),
    "noised fedast capped": made(TASKS(guard=CAPPED), SECURE),
}
HELPERS: dict[str, Callable[[], Algorithm]] = {
    "helped": made(FedBuff(size=3, guard=PRIVACY), HELPED),
    "helped area": made(AREA(size=3, guard=PRIVACY), HELPED),
    "helped capped": made(FedBuff(size=3, guard=CAPPED), HELPED),
    "helped fedast": made(TASKS(guard=PRIVACY), HELPED),
    "helped fedast area": made(TASKS(aggregate=AREA(size=3), guard=PRIVACY), HELPED),
    "helped fedast capped": made(TASKS(guard=CAPPED), HELPED),
}


class Charged(Secured):
    """One schedule of a run with [privacy] and [secure]."""

    def __init__(self, seed: int, algorithm: str, bugs: Bugs | None = None, rate: float = 1.0) -> None:
        super().__init__(seed, algorithm, bugs, rate)
        self.guard: Privacy = self.plan.server.guard  # type: ignore[attr-defined]
        if "capped" in algorithm:
            self.witness.late = 1e9  # jobs that are in flight when a run ends stay so until the log does

    def obey_server(self, effect: server_side.Effect) -> None:
        if isinstance(effect, server_side.Post | server_side.Put) and self.core is not None:
            ledger = self.core.ledger
            for task, past in enumerate(self.pasts(ledger)):
                updates = ledger.tally.tasks.get(task, [0])[0]
                if sum(past.count.values()) != updates:
                    self.violations.append(f"{past.count} are charged, and {updates} updates are in sums")
        super().obey_server(effect)

    def pasts(self, ledger: Any) -> list[Contributions]:
        """By task, what the server's ledger says."""
        return [each.contributions or Contributions() for each in self.plan.server.models(ledger.server)]

    def judge_progress(self, fold: Fold) -> None:
        if "capped" not in self.kind:
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
        for task, past in enumerate(self.pasts(fold.ledger)):
            arrived = Counter(row.client for row in fold.rows if row.event == "Arrived" and row.task == task)
            if past.count != dict(arrived):
                self.violations.append(f"the ledger of task {task} says {past.count}, its events {arrived}")
            for client, count in arrived.items():
                self.judge_client((client, task), count)

    def judge_client(self, place: Place, count: int) -> None:
        """A client was in so many sums of a task."""
        if count > self.guard.noise.participations:
            self.violations.append(f"client {place[0]} was in {count} sums of task {place[1]}")


class Noised(Charged):
    """One schedule in which the members add the noise."""

    worlds: Mapping[str, Callable[[], Algorithm]] = NOISED

    def __init__(self, seed: int, algorithm: str = "noised", bugs: Bugs | None = None, rate: float = 1.0) -> None:
        super().__init__(seed, algorithm, bugs, rate)
        self.noise: dict[float, float] = {}  # by what is sent: the noise in it
        # what a client has masked and sent for a task, and for which job: two messages can be the same number by chance
        self.left: dict[Place, set[tuple[int, bytes]]] = defaultdict(set)
        self.kept: dict[Place, float] = defaultdict(float)  # the most messages for it that it has had written down

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
            for task, memory in read_client_state(effect.data).memory.items():
                place = node.index, task
                self.kept[place] = max(self.kept[place], float(memory[SUMS_SPENT][0]))
        if isinstance(effect, client_side.Tell) and encoding.unpack(effect.data).kind == "masked":
            assert node.core is not None
            assert node.core.state is not None
            assert node.core.state.pending is not None
            pending = node.core.state.pending
            place = node.index, pending.task
            self.left[place].add((pending.job, pending.words))
            if len(self.left[place]) > self.kept[place]:
                self.violations.append(f"{node.name} sends more than it has counted")
        super().obey_client(node, effect)

    def train(self, node: Node, what: client_side.Train) -> None:
        try:
            super().train(node, what)
        except SpentError as error:
            self.fired["refused for the budget"] += 1
            reason = str(error)
            self.later(0.1, lambda: self.act(node, lambda core: core.failed(what.job, reason, self.now)))

    # What must hold

    def judge_memory(self, fold: Fold) -> None:
        super().judge_memory(fold)
        for sum_ in fold.opened:
            self.judge_sum([self.witness.plain[once] for once in sum_])

    def judge_client(self, place: Place, count: int) -> None:
        left, kept, most = len(self.left[place]), self.kept[place], self.guard.noise.participations
        if not count <= left <= min(kept, most):
            self.violations.append(
                f"client {place[0]} was in {count} sums, has masked {left} messages and counted {kept}"
            )

    def judge_sum(self, uploads: list[Payload]) -> None:
        """Enough members have noised what is in a sum, each for itself; one may have drawn a 0."""
        noise = [self.noise.get(float(vector), 0.0) for upload in uploads for vector in upload.values()]
        if len(noise) < SECURE.cohort or noise.count(0.0) > 1:
            self.violations.append(f"a sum of {len(uploads)} has noise {noise}")


class Helped(Charged):
    """One schedule in which a helper adds the noise."""

    worlds: Mapping[str, Callable[[], Algorithm]] = HELPERS

    def __init__(self, seed: int, algorithm: str = "helped", bugs: Bugs | None = None, rate: float = 1.0) -> None:
        super().__init__(seed, algorithm, bugs, rate)
        self.witness.noise = self.noise_of
        self.silent: set[int] = set()  # sums whose noise is 0: of numbers as large as these, one in 75,000

    def noise_of(self, number: int, task: int, tickets: Sequence[Ticket]) -> Vector:
        """What the helper must have added to a sum."""
        found = tuple(MaskTicket(*ticket[:3], *map(bytes.fromhex, ticket[3:])) for ticket in tickets)
        request = SumRequest(number, context_of(self.plan, task), found)
        noise = Unmasker(SECRETS[HELPER]).noise(request).view(np.int32)
        if not noise.any():
            self.silent.add(number)
        if len(self.silent) > 1:
            self.violations.append(f"sums {sorted(self.silent)} have no noise")
        return torch.from_numpy(noise.astype(np.float64)) * HELPED.unit

    def judge_memory(self, fold: Fold) -> None:
        super().judge_memory(fold)
        assert self.helper is not None
        spent = self.helper.kept.opened.spent
        opened = Counter(fold.owners[once] for sum_ in fold.opened for once in sum_)
        for place, count in opened.items():
            if not count <= spent.get(place, 0) <= self.guard.noise.participations:
                self.violations.append(f"{place} was in {count} sums, and the helper has counted {spent.get(place, 0)}")
        if any(len({fold.owners[once] for once in sum_}) < len(sum_) for sum_ in fold.opened):
            self.violations.append("a client is in a sum with noise twice")
