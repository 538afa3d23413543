"""One local step along a gradient, in stages: clip, decay, pull, and the step itself by an optimiser."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from offbeat.core.errors import NotNegative, Positive, SettingError
from offbeat.core.local import Carry, Local, Work
from offbeat.core.optimiser import Optimiser
from offbeat.core.vectors import Payload, Vector, descend, lengths
from offbeat.local.schedules import LocalSchedule

_COUNT = "opt.count"  # steps that a kept optimiser has made, a column


@dataclass(frozen=True)
class Descent(Local):
    """Base of local trainers that step along a gradient; `step` computes it, and `along` makes the step.

    decay: weight decay: adds decay · w to the gradient; with adamw, shrinks w by lr · decay instead.
    clip: bound on the length of the gradient, decay not included; by default none.
    clip_value: bound on each number of the gradient, decay not included; by default none.
    optimiser: what makes a step of the gradient, such as "adam"; by default w ← w − lr · gradient.
    keep: keep the optimiser's state at the client from one job to the next; by default every job begins anew.
    schedule: factor of the step size, such as { cosine = { over = "version", length = 1000 } }; by default none.
    """

    decay: NotNegative = field(default=0.0, kw_only=True)
    clip: Positive | None = field(default=None, kw_only=True)
    clip_value: Positive | None = field(default=None, kw_only=True)
    optimiser: Optimiser | None = field(default=None, kw_only=True)
    keep: bool = field(default=False, kw_only=True)
    schedule: LocalSchedule | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip is not None and self.clip_value is not None:
            raise SettingError(f"clip_value = {self.clip_value:g}: clip bounds the gradient already; keep one")
        if self.keep and self.rule is None:
            raise SettingError(
                "keep = true: there is no optimiser whose state could be kept; set optimiser or momentum"
            )

    @property
    def rule(self) -> Optimiser | None:
        """What makes a step of a gradient; None: plain descent."""
        return self.optimiser

    @property
    def longest(self) -> float | None:
        """How long the gradient of a step may be."""
        return self.clip

    @cached_property
    def plain(self) -> bool:
        """Whether a step is w ← w − lr · gradient and nothing else."""
        bare = self.clip is None and self.clip_value is None and not self.decay
        return bare and self.rule is None and not self._by_step

    @property
    def _by_step(self) -> bool:
        return self.schedule is not None and self.schedule.over == "step"

    @property
    def paced(self) -> bool:
        return self.schedule is not None and self.schedule.over != "step"

    def pace(self, version: int, number: int) -> float:
        if self.schedule is None or self._by_step:
            return 1.0
        return self.schedule(version if self.schedule.over == "version" else number)

    # A job

    def remember(self, model: Vector) -> Payload:
        if self.rule is None or not self.keep:
            return {}
        kept = {f"opt.{name}": moment for name, moment in self.rule.begin(model).items()}
        return {**kept, _COUNT: (model * 0.0)[:1]} if self.rule.counts else kept

    def private(self, name: str) -> bool:
        return name.startswith("opt.")

    def init(self, work: Work) -> Carry:
        return {"w": work.payload["model"], **self.moments(work.payload["model"], work)}

    def moments(self, w: Vector, work: Work) -> Carry:
        """What the optimiser begins a job with."""
        if self.rule is None:
            return {}
        names = {f"opt.{name}": moment for name, moment in self.rule.begin(w).items()}
        return {name: work.memory[name] for name in names} if self.keep else names

    def step(self, carry: Carry, work: Work) -> Carry:
        w, pull = carry["w"], self.pull(carry["w"], work)
        if self.plain and pull is None:
            return {"w": work.descend(w)}
        return self.along(carry, work.gradient(w), work, pull)

    def all_steps(self, carry: Carry, work: Work, steps: int) -> Carry | None:
        mine = type(self)
        if not self.plain or mine.step is not Descent.step or mine.pull is not Descent.pull:
            return None
        w = work.descend_often(carry["w"], steps)
        return None if w is None else {"w": w}

    def pull(self, w: Vector, work: Work) -> Vector | None:
        """What a step descends besides the gradient and the decay; None: nothing."""
        return None

    def along(self, carry: Carry, gradient: Vector, work: Work, pull: Vector | None = None) -> Carry:
        """A step along a gradient, through all stages."""
        w, rule = carry["w"], self.rule
        g = self.shaped(w, gradient)
        g = g if pull is None else g + pull
        lr = work.lr * self.schedule(work.step) if self.schedule is not None and self._by_step else work.lr
        if rule is None:
            return {**carry, "w": descend(w, lr, g)}
        if self.decay and rule.decoupled:
            w = w * (1.0 - lr * self.decay)
        before = {name[4:]: moment for name, moment in carry.items() if name.startswith("opt.")}
        t = work.step + 1 if not (self.keep and rule.counts) else work.memory[_COUNT] + (work.step + 1)
        w, moments = rule.move(w, g, before, lr, t)
        return {**carry, "w": w, **{f"opt.{name}": moment for name, moment in moments.items()}}

    def shaped(self, w: Vector, gradient: Vector) -> Vector:
        """A gradient clipped and, unless the optimiser decouples it, with the decay."""
        g = gradient
        if (longest := self.longest) is not None:
            g = g * (longest / torch.clamp(lengths(g), min=longest))
        if self.clip_value is not None:
            g = torch.clamp(g, -self.clip_value, self.clip_value)
        if self.decay and not (self.rule is not None and self.rule.decoupled):
            g = g + self.decay * w
        return g

    def final(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        upload, memory = super().final(carry, work)
        return upload, {**memory, **self.kept(carry, work)} if self.keep else memory

    def kept(self, carry: Carry, work: Work) -> Payload:
        """What the client keeps of the optimiser."""
        if not self.keep:
            return {}
        moments = {name: moment for name, moment in carry.items() if name.startswith("opt.")}
        return {**moments, _COUNT: work.memory[_COUNT] + work.steps} if _COUNT in work.memory else moments

    def personal(self, w: Vector, work: Work, steps: int) -> Vector:
        """So many steps as in a job, without a pull and with an optimiser that begins anew."""
        fresh = replace(self, keep=False) if self.keep else self
        carry = {"w": w, **fresh.moments(w, work)}
        for work.step in range(steps):
            w = carry["w"]
            carry = {"w": work.descend(w)} if self.plain else fresh.along(carry, work.gradient(w), work)
            carry["w"] = work.renewed(carry["w"])
        return carry["w"]
