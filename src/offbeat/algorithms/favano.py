"""FAVANO, also FAVAS (Leconte, Nguyen, Moulines 2023): rounds by the clock, clients interrupted where they are."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, TypeVar

from offbeat.algorithms.flow import OneModel, hand_out
from offbeat.core.errors import Count, Positive
from offbeat.core.events import Alarm, Job, Recall, Update
from offbeat.core.local import Carry, Local, Work, Wrapper
from offbeat.core.periods import multiple
from offbeat.core.server import Commands, Stepping, View
from offbeat.core.vectors import Payload, Vector

Normalise = Literal["expected", "stochastic", "none"]
_ROUND = "round"


@dataclass(frozen=True)
class Progress(Wrapper):
    """Sends where the client started and how far it has come; on the wire that is one vector, its unbiased model."""

    @property
    def sends(self) -> tuple[str, ...]:
        return ("start", "delta", *self.notes)

    def wire(self, dim: int) -> tuple[int, int]:
        return self.inner.wire(dim)

    def final(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        notes, memory = self.noted(carry, work)
        start = work.payload["model"]
        return {"start": start, "delta": start - carry["w"], **notes}, memory


@dataclass
class InterruptedState(OneModel):
    sum: Vector | None = None  # of what this round's clients gave
    waiting: list[int] = field(default_factory=list)  # drawn clients that have not answered
    answered: list[int] = field(default_factory=list)
    since: float = 0.0  # rounds that take no time follow each other in whole periods from here
    periods: int = 0


S = TypeVar("S", bound=InterruptedState)


@dataclass(frozen=True)
class Interrupting(Stepping[S]):
    """Rounds by the clock: draw s clients, interrupt them, w ← (w + Σ what they give)/(s + 1), let them go on.

    Subclasses say what a client gives and what it goes on from.

    sampled: clients drawn per round, s.
    period: time from the end of a round to the next draw, Δt; a round ends with the last upload of its clients, so that
        if uploads take no time it is the time between rounds.
    """

    sampled: Count = 10
    period: Positive = 1.0

    holds: ClassVar[bool] = True
    restarts: ClassVar[bool] = True  # from the new model; otherwise from the one that clients met this round
    stands_in: ClassVar[bool] = False  # the server's model counts for each of the s clients that have not answered

    def given(self, state: S, update: Update) -> Vector:
        """The model that this answer stands for."""
        raise NotImplementedError

    def started(self, state: S, view: View) -> Commands:
        yield from hand_out(state.model, view.everyone(), hold=True)
        yield self._next(state, view)

    def rang(self, state: S, key: str, view: View) -> Commands:
        state.waiting, state.answered = view.rng.sample(view.everyone(), self.sampled), []
        for client in state.waiting:
            yield Recall(client, partial=True)
        if not state.waiting:  # nobody is there
            yield self._next(state, view)

    def arrived(self, state: S, update: Update, view: View) -> Commands:
        state.model.received(update.job)
        given = self.given(state, update)
        state.sum = given if state.sum is None else state.sum + given
        state.answered.append(update.job.client)
        yield from self._answered(state, update.job.client, view)

    def lost(self, state: S, job: Job, reason: str, view: View) -> Commands:
        if view.present(job.client):
            yield from hand_out(state.model, (job.client,), hold=True)
        if job.client in state.waiting:
            yield from self._answered(state, job.client, view)

    def joined(self, state: S, client: int, view: View) -> Commands:
        yield from hand_out(state.model, (client,), hold=True)

    def _answered(self, state: S, client: int, view: View) -> Commands:
        """When the last one has answered: average, and let those that answered go on."""
        state.waiting.remove(client)
        if state.waiting:
            return
        before = replace(state.model)
        if state.sum is not None:
            missing = self.sampled - len(state.answered) if self.stands_in else 0
            own = (1.0 + missing) * before.vector if missing else before.vector
            self.move(state.model, (own + state.sum) * (1.0 / (len(state.answered) + missing + 1)))
            state.sum = None
        clients = [c for c in state.answered if view.present(c)]
        yield from hand_out(state.model if self.restarts else before, clients, hold=True)
        yield self._next(state, view)

    def _next(self, state: S, view: View) -> Alarm:
        """The next round, a period from now."""
        if view.now != state.since + multiple(self.period, state.periods):  # the last one has taken time
            state.since, state.periods = view.now, 0
        state.periods += 1
        return Alarm(state.since + multiple(self.period, state.periods) - view.now, _ROUND)


@dataclass
class FavanoState(InterruptedState):
    taken: dict[int, list[int]] = field(default_factory=dict)  # client -> [answers, answers with q > 0, sum of q]


@dataclass(frozen=True)
class Favano(Interrupting[FavanoState]):
    """Rounds by the clock: the server takes what the drawn clients have at that moment.

    w ← (w + Σ unbiased models)/(s + 1). A drawn client that has done q ≤ K local steps from w_i reports
    w_i − (progress)/a: divided by a, slow clients are not under-weighted. It then starts anew from w; the others go on
    where they are. K is the local trainer's `steps`.

    normalise: what a client's progress is divided by, a. "expected": E[q], the mean number of steps this client has
        been seen to do; "stochastic": P(q > 0)·q, the steps it did this time and how often it was seen to have done
        any; "none": 1, so that fast clients weigh more; that is not the paper's, but what others compare with.

    Differs from the paper: E[q] and P(q > 0) are estimated from the answers so far, this one included; the paper takes
    them as known.
    """

    normalise: Normalise = "expected"

    state = FavanoState
    reads: ClassVar[tuple[str, ...]] = ("start", "delta")
    rebases: ClassVar[bool] = False  # it adds "delta" to "start"

    def pair(self, local: Local) -> Local:
        return Progress.around(local)

    def given(self, state: FavanoState, update: Update) -> Vector:
        q, a = update.job.steps, 1.0
        if self.normalise != "none":
            answers, moved, steps = state.taken.get(update.job.client, (0, 0, 0))
            answers, moved, steps = answers + 1, moved + (q > 0), steps + q
            state.taken[update.job.client] = [answers, moved, steps]
            a = steps / answers if self.normalise == "expected" else moved / answers * q
        return update["start"] - (1.0 / a) * update["delta"] if q > 0 else update["start"]

    def dismissed(self, state: FavanoState, client: int, view: View) -> Commands:
        state.taken.pop(client, None)
        yield from ()
