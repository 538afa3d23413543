"""Attackers of a simulated run: what they send, what they train on, and how fast they are.

An attacker computes its honest update first. What it sends instead is decided when the message arrives, in the order of
events, so a run has the same attackers and the same messages on every executor. Attacks are on the update, delta =
received − reached; where clients send something else, such as AREA's residuals, the message is the one that a client
would send which had reached this other model, and which remembers what it has sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from offbeat.core.errors import Checked, Count, Positive, SettingError, Share
from offbeat.core.events import Job, Update
from offbeat.core.local import Local
from offbeat.core.random import ATTACK, Stream, key, normal_numbers
from offbeat.core.state import State
from offbeat.core.vectors import Vector, alike, materialise

_READ = ("delta", "gradient", "residual", "model")  # what messages can be forged of


@dataclass(frozen=True)
class Kind(Checked):
    """What attackers do."""


@dataclass(frozen=True)
class Forgery(Kind):
    """What an attacker sends in the place of its update. watches: whether it goes by the updates of honest clients."""

    watches: ClassVar[bool] = False

    def forge(self, delta: Vector, others: Sequence[Vector], rng: Stream, /) -> Vector:
        """In place of its honest update. others: the last updates of all honest clients that have sent any."""
        raise NotImplementedError


@dataclass(frozen=True)
class Poison(Kind):
    """What an attacker makes of the samples that it trains on. part: the share of them that it changes."""

    @property
    def part(self) -> float:
        return 1.0

    def poison(self, inputs: Vector, labels: Vector, classes: int) -> tuple[Vector, Vector]:
        """Samples as the attacker has them."""
        raise NotImplementedError


@dataclass(frozen=True)
class GaussianNoise(Forgery):
    """Random numbers instead of the update.

    factor: how long they are, in lengths of the honest update.
    """

    factor: Positive = 10.0

    def forge(self, delta: Vector, others: Sequence[Vector], rng: Stream, /) -> Vector:
        noise = normal_numbers(rng.bits(), delta.numel()).to(delta)
        found: Vector = (self.factor * torch.linalg.vector_norm(delta) / torch.linalg.vector_norm(noise)) * noise
        return found


@dataclass(frozen=True)
class SignFlip(Forgery):
    """The update with its sign flipped.

    factor: how much longer than the honest one.
    """

    factor: Positive = 1.0

    def forge(self, delta: Vector, others: Sequence[Vector], rng: Stream, /) -> Vector:
        return -self.factor * delta


@dataclass(frozen=True)
class ManyTimes(Forgery):
    """The update, scaled up.

    factor: how much longer.
    """

    factor: Positive = 10.0

    def forge(self, delta: Vector, others: Sequence[Vector], rng: Stream, /) -> Vector:
        return self.factor * delta


@dataclass(frozen=True)
class ALittleIsEnough(Forgery):
    """The mean of the honest updates, less a few standard deviations of each coordinate (Baruch et al. 2019).

    z: how many; what defences do not notice is about 0.3 to 1.5.
    """

    z: Positive = 1.0
    watches: ClassVar[bool] = True

    def forge(self, delta: Vector, others: Sequence[Vector], rng: Stream, /) -> Vector:
        if len(others) < 2:
            return delta
        rows = torch.stack(list(others))
        return rows.mean(dim=0) - self.z * rows.std(dim=0)


@dataclass(frozen=True)
class InnerProduct(Forgery):
    """The mean of the honest updates with its sign flipped (Xie et al. 2020).

    factor: in lengths of that mean; a small one hides among honest updates.
    """

    factor: Positive = 1.0
    watches: ClassVar[bool] = True

    def forge(self, delta: Vector, others: Sequence[Vector], rng: Stream, /) -> Vector:
        return -self.factor * torch.stack(list(others)).mean(dim=0) if others else -self.factor * delta


@dataclass(frozen=True)
class Fast(Kind):
    """Honest updates, and more of them than others send.

    factor: how many times as often; `speed` is the same for attackers of another kind.
    """

    factor: Positive = 10.0


@dataclass(frozen=True)
class OwnForgery(Forgery):
    """A function of the user's own: (delta, others, rng) to a vector."""

    function: Callable[[Vector, Sequence[Vector], Stream], Vector]
    watches: ClassVar[bool] = True

    def forge(self, delta: Vector, others: Sequence[Vector], rng: Stream, /) -> Vector:
        found = self.function(delta, others, rng)
        if not isinstance(found, torch.Tensor) or found.shape != delta.shape:
            raise SettingError(f"attack.kind: {self.function.__name__} must return a vector of {delta.numel()} numbers")
        return found.to(delta)


@dataclass(frozen=True)
class LabelFlip(Poison):
    """Trains on flipped labels: of c classes, y becomes c − 1 − y."""

    def poison(self, inputs: Vector, labels: Vector, classes: int) -> tuple[Vector, Vector]:
        return inputs, classes - 1 - labels


@dataclass(frozen=True)
class Backdoor(Poison):
    """Trains on samples with a trigger, its own label on all of them: the first few inputs at their largest value.

    target: the label.
    share: part of the attacker's samples that have the trigger.
    size: how many inputs are the trigger.
    """

    target: int = 0
    share: Share = 0.5
    size: Count = 4

    @property
    def part(self) -> float:
        return self.share

    def poison(self, inputs: Vector, labels: Vector, classes: int) -> tuple[Vector, Vector]:
        if not 0 <= self.target < classes:
            raise SettingError(f"attack.kind.target = {self.target}: there are {classes} classes, numbered from 0")
        return self.triggered(inputs), torch.full_like(labels, self.target)

    def triggered(self, inputs: Vector) -> Vector:
        """The same inputs with the trigger."""
        flat = inputs.flatten(1).clone()
        flat[:, : self.size] = inputs.max()
        return flat.view_as(inputs)


@dataclass(frozen=True)
class Attack(Checked):
    """Some clients of a simulated run attack it.

    clients: how many, drawn by the seed; or their numbers, in a list.
    kind: what they do, such as "sign-flip" or { scaled = 10.0 }; by default they are honest, which goes with speed.
    speed: how many times as fast as others they compute, so that they report as much more often.
    """

    clients: Count | tuple[int, ...]
    kind: Kind | None = None
    speed: Positive = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind is None and self.speed == 1.0:
            raise SettingError(
                'kind missing; say what they do, such as kind = "sign-flip", or how fast they are, speed'
            )

    @property
    def pace(self) -> float:
        """How many times as fast as others they compute."""
        return self.speed * (self.kind.factor if isinstance(self.kind, Fast) else 1.0)


def attackers(attacks: Sequence[Attack], clients: int, seed: int) -> dict[int, Attack]:
    """Who attacks: those that are named, and then so many others drawn by the seed; nobody twice."""
    found: dict[int, Attack] = {}
    for attack in sorted(attacks, key=lambda each: isinstance(each.clients, int)):
        free = [client for client in range(clients) if client not in found]
        if isinstance(attack.clients, int):
            chosen = Stream(key(seed, ATTACK, len(found))).sample(free, attack.clients)
        else:
            chosen = [client for client in attack.clients if client in free]
        if len(chosen) < (attack.clients if isinstance(attack.clients, int) else len(attack.clients)):
            raise SettingError(f"attack.clients = {attack.clients}: there are {clients} clients, and each attacks once")
        found |= dict.fromkeys(chosen, attack)
    if len(found) == clients:
        raise SettingError(f"attack: all {clients} clients would attack; leave some honest")
    return found


@dataclass
class Plot(State):
    """What attackers know and have done, of one task.

    seen: by honest client, its last update.   base: by job, the model that was sent.   honest, told: by client, AREA's
    y as it would be and as the server has it.
    """

    seen: dict[int, Vector] = field(default_factory=dict)
    base: dict[int, Vector] = field(default_factory=dict)
    honest: dict[int, Vector] = field(default_factory=dict)
    told: dict[int, Vector] = field(default_factory=dict)


class Adversary:
    """All attackers of a run that forge messages. reads: what the server reads of an update."""

    def __init__(self, who: dict[int, Attack], reads: Sequence[str], seed: int, initial: Sequence[Vector]) -> None:
        self.who = {client: a.kind for client, a in who.items() if isinstance(a.kind, Forgery)}
        self.name, self.seed, self.initial = reads[0] if reads else "", seed, initial
        if self.who and (self.name not in _READ or len(reads) > 1):
            known = ", ".join(_READ)
            raise SettingError(f"attack: this server reads {', '.join(reads)}, and only one of {known} can be forged")
        self.watches = any(kind.watches for kind in self.who.values())
        self.based = self.name in ("residual", "model")

    def sent(self, plot: Plot, job: Job, model: Vector) -> None:
        """A job is on its way."""
        if self.based and (self.watches or job.client in self.who):
            plot.base[job.id] = model

    def forged(self, plot: Plot, update: Update) -> Update:
        """A message as it arrives."""
        job, client = update.job, update.job.client
        if not self.watches and client not in self.who:
            return update
        message, base = materialise(update[self.name]), plot.base.pop(job.id, None)
        delta = self._delta(plot, job, message, None if base is None else materialise(base))
        if client not in self.who:
            plot.seen[client] = delta
            return update
        rng = Stream(key(self.seed, ATTACK, client, job.id))
        forged = self.who[client].forge(delta, list(plot.seen.values()), rng)
        new = self._message(plot, job, forged, None if base is None else materialise(base))
        return Update(job, {**update.vectors, self.name: alike(update[self.name], new)})

    def _delta(self, plot: Plot, job: Job, message: Vector, base: Vector | None) -> Vector:
        if self.name == "model":
            assert base is not None
            return base - message
        if self.name == "residual":
            assert base is not None
            reached = plot.honest.get(job.client, self._first(job)) + message
            plot.honest[job.client] = reached
            return base - reached
        return message

    def _message(self, plot: Plot, job: Job, delta: Vector, base: Vector | None) -> Vector:
        if self.name == "model":
            assert base is not None
            return base - delta
        if self.name == "residual":
            assert base is not None
            before = plot.told.get(job.client, self._first(job))
            plot.told[job.client] = base - delta
            return base - delta - before
        return delta

    def _first(self, job: Job) -> Vector:
        return materialise(self.initial[job.task])


def forgeable(locals_: Sequence[Local]) -> None:
    """Refuse attacks on messages that are compressed: what is forged would not be."""
    if any(local.coders for local in locals_):
        raise SettingError("attack: forged messages are not compressed; leave compress out")


def own_attack(function: Any, name: str) -> Any:
    """What a function of the user's own stands for."""
    return lambda: OwnForgery(function)
