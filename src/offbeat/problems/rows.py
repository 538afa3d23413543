"""The oracle of some clients of a classification problem: gathers their mini-batches and differentiates."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from offbeat.core.problem import Numbers
from offbeat.core.vectors import Vector, descend
from offbeat.problems.shards import Draws

if TYPE_CHECKING:
    from offbeat.problems.supervised import Supervised

Batch = tuple[Tensor, Tensor, Tensor]  # inputs [n, b, ...], labels [n, b], weights of the samples [n, b]


class Rows:
    """Row i of everything belongs to client i of those given and to nobody else."""

    def __init__(
        self,
        problem: Supervised,
        clients: Numbers,
        keys: Numbers,
        steps: int,
        batch: int | None,
        shuffle: bool,
    ) -> None:
        self.problem, self.shards = problem, problem.shards
        self.which = np.asarray(clients, dtype=np.int64)
        self.draws = None if batch is None else Draws(self.shards, clients, keys, steps, batch, shuffle)
        self.alike = bool((self.shards.shares[self.which] == 1.0).all())
        self.kept: tuple[tuple[int, int], Batch] | None = None
        self.pace: tuple[float | Vector, Tensor] | None = None  # a step size, and what it makes of the shares

    @cached_property
    def shares(self) -> Tensor:
        """What each client's own function is multiplied with, [n]."""
        return torch.from_numpy(self.shards.shares[self.which]).to(self.problem.device, torch.float32)

    def gradient(self, w: Vector, step: int, sample: int = 0) -> Vector:
        if self._in_cache:
            return self._each_in_cache(w, step, sample, whole=self.draws is None)
        return self._slope(w, self._gather(step, sample))

    def descend(self, w: Vector, lr: float | Vector, step: int) -> Vector:
        p = self.problem
        if p.replay_step is None or self.draws is None or len(w) == 1:
            return descend(w, lr, self.gradient(w, step))
        if self.pace is None or self.pace[0] is not lr:  # the same for all steps of a job
            column = lr if isinstance(lr, Tensor) else torch.full((len(w), 1), lr, device=w.device)
            self.pace = lr, column.squeeze(1) * self.shares
        return p.replay_step(w, self.draws.indices(step, 0), self.pace[1])

    def full(self, w: Vector) -> Vector:
        if self._in_cache:
            return self._each_in_cache(w, 0, 0, whole=True)
        return self._slope(w, self._fetch(*self._everything()))

    def loss(self, w: Vector, step: int, sample: int = 0) -> Tensor:
        return self._each(w, self._gather(step, sample), self.problem.loss, self.problem.loss)

    def hvp(self, w: Vector, v: Vector, step: int, sample: int = 0) -> Vector:
        def product(w: Vector, v: Vector, *batch: Tensor) -> Vector:
            # twice backwards: torch's forward mode would compile its formulas with the deprecated torch.jit first
            out: Vector = grad(lambda u: torch.dot(grad(self.problem.loss)(u, *batch), v))(w)
            return out

        batch = (*self._gather(step, sample), self.shares)
        if len(w) > 1 and self.problem.flat.vmappable:
            stacked: Vector = vmap(product)(w, v, *batch)
            return stacked
        return torch.stack([product(w[i], v[i], *(part[i] for part in batch)) for i in range(len(w))])

    # Gathering

    def _gather(self, step: int, sample: int) -> Batch:
        wanted = (0, 0) if self.draws is None else (step, sample)
        if self.kept is None or self.kept[0] != wanted:  # inner loops ask for the same one again and again
            self.kept = wanted, self._fetch(*self._chosen(*wanted))
        return self.kept[1]

    def _chosen(self, step: int, sample: int) -> tuple[Tensor, Tensor]:
        if self.draws is None:
            return self._everything()
        indices = self.draws.indices(step, sample)
        return indices, torch.full(indices.shape, 1.0 / self.draws.batch, device=self.problem.device)

    def _fetch(self, indices: Tensor, weights: Tensor) -> Batch:
        return *self.problem.samples(indices), weights

    def _everything(self) -> tuple[Tensor, Tensor]:
        """All of every client's samples; rows shorter than the longest are padded with weight 0."""
        shards, device = self.shards, self.problem.device
        sizes, starts = shards.sizes[self.which][:, None], shards.starts[self.which][:, None]
        places = np.minimum(np.arange(int(sizes.max()))[None, :], sizes - 1)
        inside = np.arange(int(sizes.max()))[None, :] < sizes
        indices = torch.from_numpy(shards.order[starts + places]).to(device)
        return indices, torch.from_numpy(inside / sizes).to(device, torch.float32)

    # Differentiating

    @property
    def _in_cache(self) -> bool:
        return self.problem.closed is not None and self.problem.device.type == "cpu"

    def _each_in_cache(self, w: Vector, step: int, sample: int, whole: bool) -> Vector:
        """Clients one after the other, each within a CPU's cache, where numpy is quicker at small products."""
        p, shards = self.problem, self.shards
        assert p.closed is not None
        at, out = w.detach().contiguous().numpy(), np.empty(tuple(w.shape), dtype=np.float32)
        drawn = None if whole or self.draws is None else self.draws.indices(step, sample).numpy()
        for row, client in enumerate(self.which):
            x, y = p.stored(shards[client] if drawn is None else drawn[row])
            slope = out[row]
            p.closed.one(at[row], x, y, p.scale, slope)
            if p.l2:
                slope += p.l2 * at[row]
            if shards.shares[client] != 1.0:
                slope *= shards.shares[client]
        return torch.from_numpy(out)

    def _slope(self, w: Vector, batch: Batch) -> Vector:
        p = self.problem
        if p.closed is None:
            if p.replay is not None and len(w) > 1:
                return p.replay(w, *batch, self.shares)
            if len(w) > 1 and p.stacks:
                return p.slopes(w, *batch, self.shares)
            return self._each(w, batch, self._gradient, grad(p.loss))
        g = p.closed.gradient(w, *batch)
        return (g + p.l2 * w if p.l2 else g) * self.shares.unsqueeze(1)

    def _gradient(self, w: Vector, x: Tensor, y: Tensor, weights: Tensor, share: Tensor) -> Vector:
        """Plain autograd, by the parameters one by one: for one client it is much cheaper than torch.func."""
        p = self.problem
        pieces = [piece.requires_grad_() for piece in p.flat.pieces(w)]
        outputs = p.flat.alone(pieces, x)
        if self.draws is None:
            value = (cross_entropy(outputs, y, reduction="none") * weights).sum()
        else:
            value = cross_entropy(outputs, y)  # samples of a mini-batch weigh the same
        slopes = torch.autograd.grad(value, pieces, materialize_grads=True)
        g = torch.cat([slope.reshape(-1) for slope in slopes])
        if p.l2:
            g.add_(w, alpha=p.l2)
        return g if self.alike else g.mul_(share)

    def _each(self, w: Vector, batch: Batch, one: Callable[..., Any], stacked: Callable[..., Any]) -> Tensor:
        if len(w) > 1 and self.problem.flat.vmappable:
            rows: Tensor = vmap(stacked)(w, *batch, self.shares)
            return rows
        shares = self.shares
        if len(w) == 1:
            only: Tensor = one(w[0], *(part[0] for part in batch), shares[0])
            return only.unsqueeze(0)
        return torch.stack([one(w[i], *(part[i] for part in batch), shares[i]) for i in range(len(w))])
