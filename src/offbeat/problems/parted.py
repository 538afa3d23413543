"""A local trainer for models of which not everything is stepped along gradients, or not everything is sent."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from offbeat.core.errors import SettingError
from offbeat.core.local import Carry, Local, Work, Wrapper
from offbeat.core.vectors import Payload, Vector, materialise
from offbeat.models.flat import Flat


@dataclass(frozen=True)
class Parted(Wrapper):
    """Trains as the one inside does, on vectors whose first `shared` numbers are the server's.

    The others, `own`, are the client's: they are not sent, and kept in its memory. The local trainer inside sees whole
    vectors. Running statistics are set to their new values after every step, whatever the step made of them.
    """

    shared: int = field(default=0, metadata={"setting": False})
    statistics: bool = field(default=False, metadata={"setting": False})
    averaged: tuple[int, int] | None = field(default=None, metadata={"setting": False})
    own: Vector | None = field(default=None, repr=False, compare=False, metadata={"setting": False})  # at first

    @property
    def sends(self) -> tuple[str, ...]:
        return self.inner.sends

    def wire(self, dim: int) -> tuple[int, int]:
        return self.inner.wire(dim)

    def remember(self, model: Vector) -> Payload:
        if self.own is None:
            return self.inner.remember(model)
        there = materialise(model)
        own = self.own.to(there.device)
        return {**self.inner.remember(torch.cat([there, own])), "personal": own}

    def private(self, name: str) -> bool:
        return name == "personal" or self.inner.private(name)

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """How long the vectors of a client's memory are, by name."""
        assert self.own is not None
        kept = self.inner.remember(torch.cat([self.own.new_zeros(self.shared), self.own]))
        return {name: vector.numel() for name, vector in kept.items()}

    def init(self, work: Work) -> Carry:
        return self.inner.init(self._whole(work))

    def step(self, carry: Carry, work: Work) -> Carry:
        after = self.inner.step(carry, self._whole(work))
        return {**after, "w": work.renewed(after["w"])} if self.statistics else after

    def final(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        upload, memory = self.inner.final(carry, self._whole(work))
        if self.own is None:
            return upload, memory
        cut = {name for name, v in upload.items() if name not in self.notes and v.is_floating_point()}  # no packed ones
        sent = {name: v[:, : self.shared].contiguous() if name in cut else v for name, v in upload.items()}
        return sent, {**memory, "personal": carry["w"][:, self.shared :].contiguous()}

    def personal(self, w: Vector, work: Work, steps: int) -> Vector:
        if self.own is not None:
            w = torch.cat([w, work.memory["personal"]], 1)
        return self.inner.personal(w, self._whole(work), steps)

    def _whole(self, work: Work) -> Work:
        """The same with whole vectors. What goes with a client's memory of the same name ends as that does."""
        if self.own is None:
            return work
        own, shared = work.memory["personal"], self.shared
        memory = {
            name: torch.cat([v, own], 1) if v.shape[1] < self._sizes[name] else v  # from a server that was put back
            for name, v in work.memory.items()
            if name != "personal"
        }
        ends = {name: v[:, shared:] for name, v in memory.items()}
        payload = {
            name: torch.cat([v, own if name == "model" else ends.get(name, torch.zeros_like(own))], 1)
            for name, v in work.payload.items()
        }
        return replace(work, payload=payload, memory=memory, shared=shared)


class OfModule:
    """What a problem says about the vector of its PyTorch module."""

    flat: Flat

    @property
    def blocks(self) -> tuple[int, ...]:
        """The sizes of the tensors in the server's vector."""
        return self.flat.blocks

    @property
    def averaged(self) -> tuple[int, int] | None:
        """From where to where running statistics stand in the server's vector."""
        return self.flat.averaged

    @property
    def biases(self) -> tuple[tuple[int, int], ...]:
        """From where to where biases stand in the server's vector."""
        return self.flat.biases

    @property
    def owned(self) -> bool:
        """Whether clients keep a part of the model to themselves."""
        return self.flat.dim < self.flat.size


def parted(local: Local, flat: Flat, name: str) -> Local:
    """The local trainer for this model: itself, if it steps along gradients in everything and sends everything."""
    if flat.running is None and flat.dim == flat.size:
        return local
    if not local.trains:
        raise SettingError(
            f"{name}: {type(local).__name__} reaches no model whose running statistics or personal parameters could be "
            'kept; use a local trainer that takes steps, or statistics = "frozen"'
        )
    own = None if flat.dim == flat.size else flat.first
    within = replace(Parted.around(local), shared=flat.dim, own=own)
    return replace(within, statistics=flat.running is not None, averaged=flat.averaged)
