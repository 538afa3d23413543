"""QuAFL (Zakerinia, Talaei, Nadiradze, Alistarh 2023): FAVANO's rounds with quantised messages and clients that mix."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from offbeat.algorithms.favano import InterruptedState, Interrupting
from offbeat.core.errors import Count, SettingError
from offbeat.core.events import Update
from offbeat.core.local import Carry, Local, Work, Wrapper
from offbeat.core.vectors import Payload, Vector
from offbeat.local.compress import quantise


@dataclass(frozen=True)
class Mixing(Wrapper):
    """Starts from (server's model + s · own)/(s + 1), keeps its own model, sends it quantised."""

    sampled: int = field(default=1, metadata={"setting": False})
    bits: int = field(default=8, metadata={"setting": False})

    @property
    def sends(self) -> tuple[str, ...]:
        return ("model", *self.notes)

    def wire(self, dim: int) -> tuple[int, int]:
        size = -(-dim * self.bits // 8) + 4  # the levels, and the span
        return size, size

    def remember(self, model: Vector) -> Payload:
        return {**self.inner.remember(model), "own": model}

    def init(self, work: Work) -> Carry:
        own, served = work.memory["own"], work.payload["model"]
        met = quantise(served, own, work.uniform(own, sample=0), self.bits)
        base = (met + self.sampled * own) * (1.0 / (self.sampled + 1))
        return {**self.inner.init(work.sent(base)), "base": base}

    def step(self, carry: Carry, work: Work) -> Carry:
        rest = {name: value for name, value in carry.items() if name != "base"}
        return {**self.inner.step(rest, work.sent(carry["base"])), "base": carry["base"]}

    def final(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        notes, memory = self.noted(carry, work)
        own = carry["w"]
        seen = own[:, : work.shared]  # the span is sent, too
        sent = quantise(seen, work.payload["model"][:, : work.shared], work.uniform(seen, sample=1), self.bits)
        return {"model": sent, **notes}, {**memory, "own": own}


@dataclass(frozen=True)
class QuAFL(Interrupting[InterruptedState]):
    """FAVANO's rounds with quantised messages and clients that mix the server's model with their own.

    The server's step is w ← (w + Σ Q(w_i))/(s + 1); a drawn client goes on from (Q(w) + s · w_i)/(s + 1), with the w
    of before the step. Where fewer than s clients answer, w counts for each of the others, so that the mean of all
    models still changes by local steps alone.

    bits: bits per number in either direction.

    Differs from the paper: its lattice code is replaced by random rounding of the difference from a vector that the
    receiver knows; it is unbiased and its error shrinks with that difference, as the lattice's does.
    """

    bits: Count = 8

    state = InterruptedState
    reads: ClassVar[tuple[str, ...]] = ("model",)
    restarts = False
    stands_in = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits > 16:
            raise SettingError(f"bits = {self.bits}: must be at most 16")

    def pair(self, local: Local) -> Local:
        wrapped = Mixing.around(local)
        return replace(wrapped, sampled=self.sampled, bits=self.bits)

    def remembered(self, state: InterruptedState, task: int, client: int) -> Payload:
        return {}  # its own model, with which no sum here has to agree

    def given(self, state: InterruptedState, update: Update) -> Vector:
        return update["model"]
