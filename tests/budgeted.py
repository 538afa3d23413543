"""The world that breaks, with differential privacy: what is charged must be what the log and the messages say.

The ledger of a server with [privacy] is recomputed from the log at the end, noise included, and looked at whenever
something of a server is shown to anybody: by then every update that it has taken must be charged. A client that keeps a
budget of its own must never have forgotten a step behind a message that has left it, nor sent any beyond its budget.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from faults import ALGORITHMS, CLIENTS, PROBLEM, Broken, Bugs, Jump, Node
from plants import overrides
from witness import Fold

from offbeat.algorithms import AREA, FedAST, FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SpentError
from offbeat.core.guard import Contributions
from offbeat.core.local import STEPS_SPENT, Carry, Work
from offbeat.core.server import SPENT
from offbeat.core.vectors import Payload, Vector
from offbeat.deploy import effects as client_side, encoding, server_core as server_side
from offbeat.deploy.admission import APPLIED
from offbeat.deploy.client_state import read_client_state
from offbeat.deploy.noise import secret_normal
from offbeat.privacy.differential import Noise, Privacy, clipped, grid

CLIP, Z, ALLOWED = 16.0, 2.0, 30
PRIVACY = Privacy(CLIP, Noise(10**6, multiplier=Z))
CAPPED = Privacy(CLIP, Noise(5, multiplier=Z))


@dataclass(frozen=True)
class Counting(Jump):
    """Counts its steps, as a trainer with a budget does."""

    most: int = 10**6

    @property
    def by_sample(self) -> bool:
        return True

    def allowance(self, samples: int, batch: int | None) -> int:
        return self.most

    def remember(self, model: Vector) -> Payload:
        return {STEPS_SPENT: torch.tensor([0.0, self.steps])}

    def final(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        upload, memory = super().final(carry, work)
        before = work.memory[STEPS_SPENT]
        return upload, {
            **memory,
            STEPS_SPENT: torch.cat([before[:, :1] + work.steps, before[:, 1:] * 0 + work.steps], 1),
        }


@dataclass(frozen=True)
class Sampled:
    """The line, whose clients have samples: as many as nobody asks for."""

    inner: Any = PROBLEM

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def samples_of(self, client: int) -> int:
        return 10


BUDGETED: dict[str, Callable[[Any], Algorithm]] = {
    "private": lambda guard: Algorithm(FedBuff(size=2, guard=guard or PRIVACY), Jump(lr=1.0, steps=2)),
    "private area": lambda guard: Algorithm(AREA(size=2, guard=guard or PRIVACY), Jump(lr=1.0, steps=2)),
    "private fedast": lambda guard: Algorithm(
        FedAST(requests=4, size=2, guard=guard or PRIVACY), Jump(lr=1.0, steps=2)
    ),
    "capped": lambda guard: Algorithm(FedBuff(size=2, guard=guard or CAPPED), Jump(lr=1.0, steps=2)),
    "own": lambda _: Algorithm(FedBuff(size=2), Counting(lr=1.0, steps=2)),
    "own capped": lambda _: Algorithm(FedBuff(size=2), Counting(lr=1.0, steps=2, most=ALLOWED)),
}
ENDING = ("capped", "own capped")  # runs that end because budgets are spent


class Budgeted(Broken):
    """One schedule. guard: what stands in the place of [privacy], with a mistake perhaps."""

    problem = Sampled()

    def __init__(
        self, seed: int, algorithm: str, bugs: Bugs | None = None, rate: float = 1.0, guard: Any = None
    ) -> None:
        if guard is not None:
            overrides(type(guard), Privacy)
        ALGORITHMS[algorithm] = lambda: BUDGETED[algorithm](guard)
        try:
            super().__init__(seed, algorithm, bugs, rate)
        finally:
            del ALGORITHMS[algorithm]
        if algorithm in ENDING:
            self.witness.late = 1e9  # jobs that are in flight when a run ends stay so until the log does
        self.left: dict[int, dict[str, int]] = defaultdict(dict)  # client -> message that has left it -> its steps
        self.kept: dict[int, float] = defaultdict(float)  # client -> the most that it has had written down as spent

    # What is seen

    def obey_server(self, effect: server_side.Effect) -> None:
        if isinstance(effect, server_side.Post | server_side.Put) and self.core is not None:
            self.look_at_ledger()
        super().obey_server(effect)

    def look_at_ledger(self) -> None:
        """Before anything of it is shown, a server has charged every update that it has taken."""
        assert self.core is not None
        ledger = self.core.ledger
        for task, model in enumerate(self.plan.server.models(ledger.server) if self.kind.startswith("private") else ()):
            charged = sum((model.contributions or Contributions()).count.values())
            if charged != ledger.tally.tasks.get(task, [0])[0]:
                self.violations.append(
                    f"{charged} updates of task {task} are charged, {ledger.tally.tasks[task][0]} taken"
                )

    def obey_client(self, node: Node, effect: client_side.Effect) -> None:
        if isinstance(effect, client_side.Save):
            spent = read_client_state(effect.data).memory.get(0, {}).get(STEPS_SPENT)
            self.kept[node.index] = max(self.kept[node.index], 0.0 if spent is None else float(spent[0]))
        if isinstance(effect, client_side.Tell):
            message = encoding.unpack(effect.data)
            if message.kind == "trained" and not message.header["error"].startswith(SPENT):
                failed = self.plan.locals[0].steps if message.header["error"] else 0  # that says something, too
                self.left[node.index][encoding.digest(effect.data)] = message.header["steps"] + failed
                if self.kind.startswith("own") and sum(self.left[node.index].values()) > self.kept[node.index]:
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

    def judge_progress(self, fold: Fold) -> None:
        if self.kind not in ENDING:
            super().judge_progress(fold)
        elif fold.ledger.stopped not in ("privacy budget", "end"):
            self.violations.append(f"the run is not over: {fold.ledger.stopped!r}")
        else:
            self.fired[fold.ledger.stopped] += 1

    def judge_memory(self, fold: Fold) -> None:
        super().judge_memory(fold)
        if self.kind.startswith("own"):
            self.judge_own(fold)
        else:
            self.judge_ledger(fold)
        if self.kind in ("private", "capped"):
            self.judge_noise(fold)

    def judge_ledger(self, fold: Fold) -> None:
        """The ledger of each task says what its events do: no client twice in a sum, none beyond the cap."""
        guard: Any = self.plan.server.guard  # type: ignore[attr-defined]
        for task, model in enumerate(self.plan.server.models(fold.ledger.server)):
            rows = [row.client for row in fold.rows if row.event == "Arrived" and row.task == task]
            past = model.contributions or Contributions()
            sums = [rows[at : at + 2] for at in range(0, len(rows), 2)]
            last = {client: number for number, sum_ in enumerate(sums) for client in sum_}
            said = (past.count, past.last, past.releases)
            if said != (dict(Counter(rows)), last, len(rows) // 2):
                self.violations.append(f"the ledger of task {task} says {said}, its events {Counter(rows)}, {last}")
            if any(len(set(sum_)) < len(sum_) for sum_ in sums):
                self.violations.append("a client is in a sum twice")
            if max(Counter(rows).values(), default=0) > guard.noise.participations:
                self.violations.append("a client has contributed too often")

    def judge_noise(self, fold: Fold) -> None:
        """Each model is the one before less the mean of clipped updates and of noise that the log's secret gives."""
        applied = {digest for (_, digest), verdict in fold.verdicts.items() if verdict == APPLIED}
        deltas = list[Vector]()
        for entry in self.log:
            if (digest := encoding.digest(entry.data)) in applied:
                applied.remove(digest)
                message = encoding.unpack(entry.data)
                deltas += [message.vector(name).double() for name in message.parts]  # none if the job has failed
        models, spacing = fold.history[0], grid(CLIP)
        for number in range(len(deltas) // 2):
            total = sum(clipped(delta.unsqueeze(0), CLIP)[0] for delta in deltas[2 * number : 2 * number + 2])
            noise = torch.round(Z * CLIP * secret_normal(fold.ledger.secret, total, number) / spacing) * spacing
            step = (torch.tensor(models[number + 1]) - torch.tensor(models[number])).double()
            if not torch.allclose(step, -(total + noise) / 2, atol=1e-3):
                self.violations.append(f"release {number} moved the model by {step}, not by {-(total + noise) / 2}")

    def judge_own(self, fold: Fold) -> None:
        """Clients have counted every step behind what has left them, and none has sent more than it may."""
        most = self.plan.locals[0].allowance(10, None) or 0
        for client in range(CLIENTS):
            left, told = sum(self.left[client].values()), fold.ledger.tally.spent.get(0, {}).get(client, 0)
            if told > left or left > most:
                self.violations.append(f"c{client} sent {left} steps of {most}; the server has counted {told}")
            state = self.nodes[client].core.state if self.nodes[client].core else None  # type: ignore[union-attr]
            if state is not None and client not in self.retired and float(state.memory[0][STEPS_SPENT][0]) < left:
                self.violations.append(f"c{client} sent {left} steps and has counted {state.memory[0][STEPS_SPENT]}")
