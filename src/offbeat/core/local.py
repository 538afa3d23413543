"""What clients do in an algorithm: pure functions of stacked clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil
from typing import ClassVar, Self

import numpy as np
import torch

from offbeat.core.compressor import Compressor
from offbeat.core.errors import Checked, Count, Positive, SettingError, Share, TrainingError
from offbeat.core.events import Job
from offbeat.core.problem import Countable, Numbers, Oracle, Problem
from offbeat.core.random import bits, box_muller, draw, finer, system_bits, unit
from offbeat.core.vectors import Payload, Vector, descend

# in the memory of a client with a budget: its local steps so far, and those of its largest job
STEPS_SPENT = "spent"
SUMS_SPENT = "sums"  # and of one that adds noise to sums: the messages that it has made for them
BUDGETS = (STEPS_SPENT, SUMS_SPENT)
Carry = dict[str, Vector]  # what a client keeps from one local step to the next, by name, [n, d] each


@dataclass
class Work:
    """The jobs of n clients, as their local trainers see them: one row a client, rows never mix.

    lr: step size, a number or a column [n, 1].
    steps: local steps, a number or a column [n, 1].
    accumulate: mini-batches of which every gradient, product and loss is the mean.
    jobs: what the server asked for, a job a client.
    shared: how many numbers of a vector, the first ones, are the server's to see; None: all of them.
    packed: whether compressed vectors are wanted as bytes, as they travel, instead of as what comes out of them.
    secret: whether what has to be secret is drawn from the operating system, as in real runs, instead of from the keys.
    between: told by a trainer that makes all steps of a job in one call how many it has made so far; says whether to go
        on. None: to the end.
    """

    payload: Payload
    memory: Payload
    lr: float | Vector
    steps: int | Vector
    oracle: Oracle
    keys: Numbers | Vector  # one random key a client, 64 bits each
    step: int = 0
    accumulate: int = 1
    jobs: Sequence[Job] = ()
    shared: int | None = None
    packed: bool = False
    secret: bool = False
    between: Callable[[int], bool] | None = None

    def gradient(self, w: Vector, sample: int = 0) -> Vector:
        """Stochastic gradients at w on this step's mini-batch; another `sample` is an independent mini-batch."""
        return self._mean(lambda step: self.oracle.gradient(w, step, sample))

    def descend(self, w: Vector) -> Vector:
        """w − lr · gradient(w), where the gradient is needed for nothing else: some problems have a quicker way."""
        shortcut: Callable[[Vector, float | Vector, int], Vector] | None = getattr(self.oracle, "descend", None)
        if shortcut is None or self.accumulate > 1:
            return descend(w, self.lr, self.gradient(w))
        return shortcut(w, self.lr, self.step)

    def descend_often(self, w: Vector, steps: int) -> Vector | None:
        """What so many calls of `descend` come to, from the first step on; None: the problem has no quicker way."""
        shortcut: Callable[[Vector, float | Vector, int], Vector | None] | None
        shortcut = getattr(self.oracle, "descend_often", None)
        return None if shortcut is None or self.accumulate > 1 else shortcut(w, self.lr, steps)

    def renewed(self, w: Vector) -> Vector:
        """The same vectors with the running statistics after this step's mini-batch, if the model has any in them.

        They are set, not stepped: a gradient is 0 there, and what a step made of them is overwritten.
        """
        shortcut: Callable[[Vector], Vector] | None = getattr(self.oracle, "renewed", None)
        return w if shortcut is None else shortcut(w)

    def full_gradient(self, w: Vector) -> Vector:
        """Gradients at w over the clients' whole data."""
        return self.oracle.full(w)

    def hvp(self, w: Vector, v: Vector, sample: int = 0) -> Vector:
        """Stochastic Hessians at w times v."""
        return self._mean(lambda step: self.oracle.hvp(w, v, step, sample))

    def loss(self, w: Vector, sample: int = 0) -> torch.Tensor:
        """Stochastic losses at w, [n]."""
        return self._mean(lambda step: self.oracle.loss(w, step, sample))

    def _mean(self, of: Callable[[int], Vector]) -> Vector:
        """Over this step's mini-batches: a job's are numbered one after the other."""
        if self.accumulate == 1:
            return of(self.step)
        first = self.step * self.accumulate
        found = of(first)
        for at in range(first + 1, first + self.accumulate):
            found = found + of(at)
        return found * (1.0 / self.accumulate)

    def sent(self, model: Vector) -> Work:
        """The same with this model in place of the one that was sent."""
        return replace(self, payload={**self.payload, "model": model})

    def uniform(self, like: Vector, sample: int) -> Vector:
        """Numbers in (0, 1) of this shape [n, d], the clients' own: for randomised rounding and the like."""
        counters = torch.arange(like.shape[-1], device=like.device) + ((1 << 62) + (sample << 40))
        return unit(bits(self._keys(like.device), counters), like.dtype)

    def random_bits(self, count: int, purpose: int) -> torch.Tensor:
        """So many whole numbers of 64 random bits for each client in this step, [n, count]; secret in real runs."""
        if self.secret:
            return system_bits(len(self.jobs) * count).view(len(self.jobs), count)
        own = draw(self._keys(), (3 << 61) + (purpose << 40) + self.step)
        return bits(own, torch.arange(count))

    def normal(self, count: int, purpose: int = 1) -> Vector:
        """So many standard normal numbers for each client in this step, [n, count], in double precision."""
        half = -(-count // 2)
        high, low, angle = self.random_bits(3 * half, purpose).view(-1, 3, half).unbind(1)
        pairs = box_muller(finer(high, low).T, unit(angle).T).T  # by columns: the clients' numbers stay apart
        return pairs[:, :count]

    def _keys(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """The clients' keys as a column."""
        given = self.keys if isinstance(self.keys, Vector) else torch.from_numpy(np.asarray(self.keys, dtype=np.int64))
        return given.to(device).view(-1, 1)


@dataclass(frozen=True)
class BatchShare(Checked):
    """A mini-batch size in proportion to a client's data, at least 1.

    share: part of the client's samples.
    """

    share: Share


@dataclass(frozen=True)
class Local(Checked):
    """Base of local trainers: `init`, then `step` a number of times, then `final`.

    A local trainer is written once, for rows: everything it gets is [n, d] (or a column [n, 1]), and it may combine
    values within a row but never across rows. One client is n = 1, a hundred are one call.

    lr: local step size, η.
    steps: local steps per job, Q (M in AREA).
    batch: mini-batch size; or one for each client, in a list; or a share of each client's data, { share = 0.1 }; by
        default all of a client's data.
    shuffle: go through the data in a new random order every epoch instead of drawing with replacement.
    epochs: instead of steps: as many as it takes to draw so many times the number of the client's samples.
    accumulate: mini-batches per local step, of whose gradients the mean is taken.
    compress: what is sent instead of all numbers, such as { top-k = 0.01 }; by default all.
    """

    lr: Positive
    steps: Count = 1
    batch: Count | tuple[Count, ...] | BatchShare | None = None
    shuffle: bool = False
    epochs: Positive | None = field(default=None, kw_only=True)
    accumulate: Count = field(default=1, kw_only=True)
    compress: Compressor | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs is not None and self.steps != 1:
            raise SettingError(f"steps = {self.steps}: epochs = {self.epochs:g} already sets the number; keep one")
        if self.accumulate > 1 and self.batch is None:
            raise SettingError(f"accumulate = {self.accumulate}: without batch, one gradient sees all data; give batch")

    @property
    def needs(self) -> tuple[str, ...]:
        """What it reads of the payload."""
        return ("model",)

    @property
    def sends(self) -> tuple[str, ...]:
        """What its upload holds."""
        return ("delta",)

    @property
    def moves(self) -> Mapping[str, str | None]:
        """What it sends that is a difference, and so may be compressed: by name, what a client remembers that moves by
        this difference, or None."""
        return {"delta": None}

    @property
    def coders(self) -> Mapping[str, Compressor]:
        """How what it sends is compressed, by name."""
        return {}

    def remember(self, model: Vector) -> Payload:
        """A client's memory before its first job, given the initial model; empty for a client without memory."""
        return {}

    def private(self, name: str) -> bool:
        """Whether what a client remembers under this name is its own affair: no server's state has to agree with it."""
        return False

    @property
    def by_sample(self) -> bool:
        """Whether it needs the gradients of single samples."""
        return False

    def allowance(self, samples: int, batch: int | None) -> int | None:
        """How many local steps a client with so many samples may make in all; None: as many as it likes.

        What it has made is in its memory, under the name `STEPS_SPENT`. A job that would exceed it is refused.
        """
        return None

    def init(self, work: Work) -> Carry:
        """What the first step starts from."""
        return {"w": work.payload["model"]}

    def step(self, carry: Carry, work: Work) -> Carry:
        """One local step."""
        raise NotImplementedError

    def all_steps(self, carry: Carry, work: Work, steps: int) -> Carry | None:
        """All steps of jobs that have equally many; None: there is no quicker way than one after the other."""
        return None

    def final(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        """(upload, new memory) after the last step."""
        return {"delta": work.payload["model"] - carry["w"]}, work.memory

    @property
    def trains(self) -> bool:
        """Whether its steps reach a model, the carry's "w", that a wrapper may report in its own way."""
        return True

    @property
    def stops(self) -> bool:
        """Whether a job can be stopped between two of its steps, which servers that hold and recall work need."""
        return True

    @property
    def alone(self) -> str:
        """Why clients are trained one at a time; empty if stacked clients are trained together."""
        return ""

    @property
    def label(self) -> str:
        """What errors call it."""
        return type(self).__name__

    @property
    def notes(self) -> tuple[str, ...]:
        """Names in the upload that are one number a client; the run's record keeps their mean and maximum."""
        return ()

    @property
    def averaged(self) -> tuple[int, int] | None:
        """From where to where what it sends are running statistics, which are set and not stepped."""
        return None

    @property
    def paced(self) -> bool:
        """Whether `pace` may be other than 1."""
        return False

    def pace(self, version: int, number: int) -> float:
        """What the step size of a job is multiplied with, by the server's version and the client's number of jobs."""
        return 1.0

    def personal(self, w: Vector, work: Work, steps: int) -> Vector:
        """Each client's own model, made from the server's w [n, d] with a budget of so many gradients."""
        for work.step in range(steps):
            w = work.renewed(work.descend(w))
        return w

    def wire(self, dim: int) -> tuple[int, int]:
        """Bytes of a download and of an upload, which the timing model turns into time."""
        return 4 * dim * len(self.needs), 4 * dim * (len(self.sends) - len(self.notes)) + 4 * len(self.notes)


def check_upload(local: Local, upload: Payload) -> None:
    """Raise unless a local trainer sends what it says: messages are timed and counted by that."""
    if upload.keys() != set(local.sends):
        raise TrainingError(
            f"{local.label} sends {', '.join(map(repr, upload)) or 'nothing'}, and its class says "
            f"{', '.join(map(repr, local.sends)) or 'nothing'}; declare it there, sends = {(*upload,)}"
        )


def needed(local: Local, payload: Payload) -> Payload:
    """What a client is given of a payload: what its local trainer says that it needs."""
    return payload if len(payload) == 1 else {name: payload[name] for name in payload if name in local.needs}


@dataclass(frozen=True)
class Wrapper(Local):
    """A local trainer that trains as another one does and reports differently; `Residual.around(SGD(...))`."""

    inner: Local = field(kw_only=True, metadata={"setting": False})

    reports: ClassVar[bool] = True  # whether what it sends is made of the model that the inner one reaches

    @classmethod
    def around(cls, inner: Local) -> Self:
        """This wrapper around a local trainer, unless it is one already."""
        if isinstance(inner, cls):
            return inner
        if cls.reports and not inner.trains:
            raise SettingError(f"{type(inner).__name__} reaches no model that could be reported; use one that trains")
        return cls(
            lr=inner.lr,
            steps=inner.steps,
            batch=inner.batch,
            shuffle=inner.shuffle,
            epochs=inner.epochs,
            accumulate=inner.accumulate,
            compress=inner.compress,
            inner=inner,
        )

    @property
    def needs(self) -> tuple[str, ...]:
        return self.inner.needs

    @property
    def sends(self) -> tuple[str, ...]:
        return self.inner.sends

    @property
    def trains(self) -> bool:
        return self.inner.trains

    @property
    def stops(self) -> bool:
        return self.inner.stops

    @property
    def alone(self) -> str:
        return self.inner.alone

    @property
    def label(self) -> str:
        return self.inner.label

    @property
    def notes(self) -> tuple[str, ...]:
        return self.inner.notes

    @property
    def paced(self) -> bool:
        return self.inner.paced

    @property
    def moves(self) -> Mapping[str, str | None]:
        return {}  # for each wrapper to say

    @property
    def coders(self) -> Mapping[str, Compressor]:
        return self.inner.coders

    def pace(self, version: int, number: int) -> float:
        return self.inner.pace(version, number)

    def noted(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        """(the notes, the new memory) of the inner trainer."""
        upload, memory = self.inner.final(carry, work)
        return {name: upload[name] for name in self.notes}, memory

    def remember(self, model: Vector) -> Payload:
        return self.inner.remember(model)

    def private(self, name: str) -> bool:
        return self.inner.private(name)

    @property
    def by_sample(self) -> bool:
        return self.inner.by_sample

    def allowance(self, samples: int, batch: int | None) -> int | None:
        return self.inner.allowance(samples, batch)

    def personal(self, w: Vector, work: Work, steps: int) -> Vector:
        return self.inner.personal(w, work, steps)

    def init(self, work: Work) -> Carry:
        return self.inner.init(work)

    def step(self, carry: Carry, work: Work) -> Carry:
        return self.inner.step(carry, work)

    def all_steps(self, carry: Carry, work: Work, steps: int) -> Carry | None:
        return self.inner.all_steps(carry, work, steps) if type(self).step is Wrapper.step else None


def batch_size(local: Local, problem: Problem, client: int, place: int | None = None) -> int | None:
    """A client's mini-batch size; None: all of its data. place: its number in the problem, if that is another."""
    given = local.batch
    if isinstance(given, BatchShare):
        return max(1, round(given.share * _samples(problem, client if place is None else place, "batch.share")))
    if isinstance(given, tuple | list):
        if client >= len(given):
            raise SettingError(f"batch has {len(given)} sizes, and client {client} none; give one for each client")
        return int(given[client])
    return given


def allowed_steps(local: Local, problem: Problem) -> Callable[[int], int] | None:
    """How many local steps a client may make in all, by its number; None: as many as it likes."""
    if not local.by_sample:
        return None

    def allowed(client: int) -> int:
        found = local.allowance(_samples(problem, client, local.label), batch_size(local, problem, client))
        return 1 << 62 if found is None else found

    return cache(allowed)


def planned_steps(local: Local, problem: Problem) -> Sequence[int] | None:
    """How many local steps a job of each client takes; None: as many as `local.steps` says for all."""
    if isinstance(local.batch, tuple | list) and len(local.batch) != problem.clients:
        raise SettingError(f"batch has {len(local.batch)} sizes for {problem.clients} clients; give one for each")
    if local.epochs is None:
        return None
    return [_epochs(local, problem, client) for client in range(problem.clients)]


def _epochs(local: Local, problem: Problem, client: int) -> int:
    assert local.epochs is not None
    samples, batch = _samples(problem, client, "epochs"), batch_size(local, problem, client)
    return max(1, ceil(local.epochs * samples / ((batch or samples) * local.accumulate) - 1e-9))


def _samples(problem: Problem, client: int, setting: str) -> int:
    if not isinstance(problem, Countable):
        raise SettingError(f"{setting}: the clients' numbers of samples in {problem.name} are not known here")
    return problem.samples_of(client)
