"""What clients do in an algorithm: pure functions of stacked clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch

from offbeat.core.errors import Checked, Count, Positive, SettingError
from offbeat.core.problem import Numbers, Oracle
from offbeat.core.random import bits, unit
from offbeat.core.vectors import Payload, Vector, descend

Carry = dict[str, Vector]  # what a client keeps from one local step to the next, by name, [n, d] each


@dataclass
class Work:
    """The jobs of n clients, as their local trainers see them: one row a client, rows never mix.

    lr: step size, a number or a column [n, 1].
    steps: local steps, a number or a column [n, 1].
    """

    payload: Payload
    memory: Payload
    lr: float | Vector
    steps: int | Vector
    oracle: Oracle
    keys: Numbers | Vector  # one random key a client, 64 bits each
    step: int = 0

    def gradient(self, w: Vector, sample: int = 0) -> Vector:
        """Stochastic gradients at w on this step's mini-batch; another `sample` is an independent mini-batch."""
        return self.oracle.gradient(w, self.step, sample)

    def descend(self, w: Vector) -> Vector:
        """w − lr · gradient(w), for those who want the gradient for nothing else: some problems have a quicker way."""
        there: Callable[[Vector, float | Vector, int], Vector] | None = getattr(self.oracle, "descend", None)
        return descend(w, self.lr, self.gradient(w)) if there is None else there(w, self.lr, self.step)

    def full_gradient(self, w: Vector) -> Vector:
        """Gradients at w over the clients' whole data."""
        return self.oracle.full(w)

    def hvp(self, w: Vector, v: Vector, sample: int = 0) -> Vector:
        """Stochastic Hessians at w times v."""
        return self.oracle.hvp(w, v, self.step, sample)

    def loss(self, w: Vector, sample: int = 0) -> torch.Tensor:
        """Stochastic losses at w, [n]."""
        return self.oracle.loss(w, self.step, sample)

    def sent(self, model: Vector) -> Work:
        """The same with this model in place of the one that was sent."""
        return replace(self, payload={**self.payload, "model": model})

    def uniform(self, like: Vector, sample: int) -> Vector:
        """Numbers in (0, 1) of this shape [n, d], the clients' own: for randomised rounding and the like."""
        counters = torch.arange(like.shape[-1], device=like.device) + ((1 << 62) + (sample << 40))
        given = self.keys if isinstance(self.keys, Vector) else torch.from_numpy(np.asarray(self.keys, dtype=np.int64))
        keys = given.to(like.device).view(-1, 1)
        return unit(bits(keys, counters), like.dtype)


@dataclass(frozen=True)
class Local(Checked):
    """Base of local trainers: `init`, then `step` a number of times, then `final`.

    A local trainer is written once, for rows: everything it gets is [n, d] (or a column [n, 1]), and it may combine
    values within a row but never across rows. One client is n = 1, a hundred are one call.

    lr: local step size, η.
    steps: local steps per job, Q (M in AREA).
    batch: mini-batch size; by default all of a client's data.
    shuffle: go through the data in a new random order every epoch instead of drawing with replacement.
    """

    lr: Positive
    steps: Count = 1
    batch: Count | None = None
    shuffle: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        """What it reads of the payload."""
        return ("model",)

    @property
    def sends(self) -> tuple[str, ...]:
        """What its upload holds."""
        return ("delta",)

    def remember(self, model: Vector) -> Payload:
        """A client's memory before its first job, given the initial model; empty for a client without memory."""
        return {}

    def init(self, work: Work) -> Carry:
        """What the first step starts from."""
        return {"w": work.payload["model"]}

    def step(self, carry: Carry, work: Work) -> Carry:
        """One local step."""
        raise NotImplementedError

    def final(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        """(upload, new memory) after the last step."""
        return {"delta": work.payload["model"] - carry["w"]}, work.memory

    @property
    def trains(self) -> bool:
        """Whether its steps reach a model, the carry's "w", that a wrapper may report in its own way."""
        return True

    @property
    def notes(self) -> tuple[str, ...]:
        """Names in the upload that are one number a client; the run's record keeps their mean and maximum."""
        return ()

    def personal(self, w: Vector, work: Work, steps: int) -> Vector:
        """Each client's own model, made from the server's w [n, d] with a budget of so many gradients."""
        for work.step in range(steps):
            w = work.descend(w)
        return w

    def wire(self, dim: int) -> tuple[int, int]:
        """Bytes of a download and of an upload, which the timing model turns into time."""
        return 4 * dim * len(self.needs), 4 * dim * (len(self.sends) - len(self.notes)) + 4 * len(self.notes)


@dataclass(frozen=True)
class Wrapper(Local):
    """A local trainer that trains as another one does and reports differently; `Residual.around(SGD(...))`."""

    inner: Local = field(kw_only=True, metadata={"setting": False})

    @classmethod
    def around(cls, inner: Local) -> Self:
        """This wrapper around a local trainer, unless it is one already."""
        if isinstance(inner, cls):
            return inner
        if not inner.trains:
            raise SettingError(f"{type(inner).__name__} reaches no model that could be reported; use one that trains")
        return cls(lr=inner.lr, steps=inner.steps, batch=inner.batch, shuffle=inner.shuffle, inner=inner)

    @property
    def needs(self) -> tuple[str, ...]:
        return self.inner.needs

    @property
    def notes(self) -> tuple[str, ...]:
        return self.inner.notes

    def noted(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        """(the notes, the new memory) of the inner trainer."""
        upload, memory = self.inner.final(carry, work)
        return {name: upload[name] for name in self.notes}, memory

    def remember(self, model: Vector) -> Payload:
        return self.inner.remember(model)

    def personal(self, w: Vector, work: Work, steps: int) -> Vector:
        return self.inner.personal(w, work, steps)

    def init(self, work: Work) -> Carry:
        return self.inner.init(work)

    def step(self, carry: Carry, work: Work) -> Carry:
        return self.inner.step(carry, work)
