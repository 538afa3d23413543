"""FedAvg: synchronous rounds (McMahan et al. 2017; S-FedAvg in AREA, §5), with over-selection (FedAST, D.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from offbeat.algorithms.buffer import Buffer
from offbeat.algorithms.flow import OneModel
from offbeat.core.errors import Count, Positive, SettingError
from offbeat.core.events import Job, Send, Stop, Update
from offbeat.core.server import SPENT, Combines, Commands, Stepping, View
from offbeat.core.vectors import Payload


@dataclass
class RoundState(OneModel):
    buffer: Buffer = field(default_factory=Buffer)
    out: int = 0  # jobs of this round on their way
    asked: list[int] = field(default_factory=list)  # clients of this round
    times: dict[int, int] = field(default_factory=dict)  # how often each was drawn, if with replacement


S = TypeVar("S", bound=RoundState)


@dataclass(frozen=True)
class Rounds(Stepping[S]):
    """Synchronous rounds: send the model to some clients, wait for them, step along the mean of their updates.

    A client whose job is lost is asked again; one that has left is replaced by an idle one that was not asked in this
    round, and if there is none the round goes on without it.

    sampled: clients drawn per round, uniformly without replacement, s; by default all.
    lr: server step size; 1 makes the new model the mean of the clients' models.
    first: over-selection: use this many first results of a round and ignore the rest; by default wait for all.
    """

    sampled: Count | None = None
    lr: Positive = 1.0
    first: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first is not None and self.sampled is not None and self.first > self.sampled:
            raise SettingError(f"first = {self.first}: must not exceed sampled = {self.sampled}")

    def at_once(self) -> Mapping[str, int | None]:
        return {"sampled": self.sampled, "first": self.first}

    def payload(self, state: S) -> Payload:
        """What this round's clients are sent."""
        return {"model": state.model.vector}

    def absorb(self, state: S, update: Update) -> None:
        """One result of this round."""
        self.collect(state, update.job.client, 1.0, update["delta"])

    def aggregate(self, state: S, view: View) -> None:
        """The step at the end of a round."""
        self.step(state.model, -self.lr, self.mean(state, view, self.first or self.sampled or view.clients))

    def started(self, state: S, view: View) -> Commands:
        yield from self._round(state, view)

    def arrived(self, state: S, update: Update, view: View) -> Commands:
        if update.job.version == state.model.version:  # otherwise it comes too late for its round
            state.out -= 1
            self.absorb(state, update)
        if state.out == 0 or state.buffer.count == self.first:
            yield from self._round(state, view)

    def lost(self, state: S, job: Job, reason: str, view: View) -> Commands:
        if job.version == state.model.version:
            state.out -= 1
            yield from self._send(state, self._instead(state, job.client, view))
        if state.out == 0:
            yield from self._round(state, view)

    def joined(self, state: S, client: int, view: View) -> Commands:
        if state.out == 0:  # nobody was there when the round should have begun
            yield from self._round(state, view)

    def _round(self, state: S, view: View) -> Commands:
        if state.buffer.count:
            self.aggregate(state, view)
            state.out, state.asked = 0, []
        drawn = self.drawn(state, view.clients if self.sampled is None else self.sampled, view)
        yield from self._send(state, drawn)
        if not drawn and self.spent(state, view, 1):
            yield Stop(reason=SPENT)

    def drawn(self, state: S, count: int, view: View) -> Sequence[int]:
        """The clients of a new round."""
        return self.idle(state, count, view)

    def _instead(self, state: S, client: int, view: View) -> Sequence[int]:
        if view.present(client):
            return (client,)
        idle = self.idle(state, len(state.asked) + 1, view)
        other = [c for c in idle if c not in state.asked][:1]
        if other and client in state.times:
            state.times[other[0]] = state.times.pop(client)
        return other

    def _send(self, state: S, clients: Sequence[int]) -> Commands:
        state.out += len(clients)
        state.asked += clients
        payload = self.payload(state)
        for client in clients:
            yield Send(client, payload, state.model.version)


@dataclass(frozen=True)
class FedAvg(Rounds[RoundState]):
    """Synchronous rounds; with `first`, over-selection.

    w ← w − lr · mean of the deltas of the round's clients.

    replacement: draw clients with replacement, as DeFedAvg's paper has it in (2): one drawn twice trains once and
        counts twice. By default without, as McMahan et al. and AREA.
    """

    replacement: bool = False

    state = RoundState
    combines: ClassVar[Combines] = "buffer"
    releases: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replacement and self.first is not None:
            raise SettingError(f"first = {self.first}: results that count several times cannot be the first so many")

    def at_once(self) -> Mapping[str, int | None]:
        return {} if self.replacement else super().at_once()

    def drawn(self, state: RoundState, count: int, view: View) -> Sequence[int]:
        if not self.replacement:
            return self.idle(state, count, view)
        draws = view.available(count)
        state.times = {client: draws.count(client) for client in draws}
        return list(state.times)

    def absorb(self, state: RoundState, update: Update) -> None:
        for _ in range(state.times.get(update.job.client, 1)):
            super().absorb(state, update)


@dataclass(frozen=True)
class MSync(FedAvg):
    """m-synchronous SGD: rounds of all clients that end with the first m results.

    w ← w − lr · mean of the first m deltas that arrive; the rest of the round is ignored. It is `fedavg` with `first`.

    first: results that make a round, m.

    Differs from the paper: a client that comes too late finishes its old job before it is asked again.
    """

    first: Count = field(kw_only=True)
    replacement: bool = field(default=False, kw_only=True, metadata={"setting": False})
