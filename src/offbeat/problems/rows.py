"""The oracle of some clients of a supervised problem: gathers their mini-batches and differentiates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from offbeat.core.problem import Numbers
from offbeat.core.random import bits, draw
from offbeat.core.vectors import Vector, descend
from offbeat.data.lazy import Read
from offbeat.problems.apart import ClientAlone
from offbeat.problems.compiled import Compiled
from offbeat.problems.objective import total
from offbeat.problems.shards import Draws

if TYPE_CHECKING:
    from offbeat.problems.supervised import Supervised

_TOGETHER = 1 << 23  # numbers in the gradients of single samples that are computed at once
_FULL = 1 << 20  # numbers the masks of gradients over whole data, like an independent mini-batch

Batch = tuple[Tensor, ...]  # the objective's columns [n, b, ...], and last the weights of the samples [n, b]


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
        self.problem, self.shards, self.keys = problem, problem.shards, keys
        self.which = np.asarray(clients, dtype=np.int64)
        if problem.flat.running is not None:
            problem.enough(self.which, batch)
        self.draws = None if batch is None else Draws(self.shards, clients, keys, steps, batch, shuffle)
        self.reader = problem.train if isinstance(problem.train, Read) else None
        self.alike = bool((self.shards.shares[self.which] == 1.0).all())
        self.kept: tuple[tuple[int, int], Batch] | None = None
        self.pace: tuple[float | Vector, Tensor] | None = None  # a step size, and what it makes of the shares
        self.running = problem.flat.running
        self.statistics: Tensor | None = None  # after the last gradient on a step's own mini-batch, [n, s]
        # masks and statistics depend on the whole batch: there is no padding among these
        self.unpadded = batch is None and (problem.objective.form == "coupled" or problem.flat.moded)

    @cached_property
    def shares(self) -> Tensor:
        """What each client's own function is multiplied with, [n]."""
        shares = torch.from_numpy(self.shards.shares[self.which]).to(torch.float32)
        return shares.to(self.problem.device, non_blocking=True)  # a copy that waits would wait for the last batch

    def gradient(self, w: Vector, step: int, sample: int = 0) -> Vector:
        if self._in_cache:
            return self._each_in_cache(w, step, sample, whole=self.draws is None)
        if self.unpadded:
            return self._parted(self._whole(w, step, sample), sample)
        return self._parted(self._slope(w, self._gather(step, sample), self._masks(step, sample)), sample)

    def descend(self, w: Vector, lr: float | Vector, step: int) -> Vector:
        p = self.problem
        if p.replay_step is None or self.draws is None or len(w) == 1:
            return self.renewed(descend(w, lr, self.gradient(w, step)))
        return p.replay_step(w, self._paces(w, lr), self.draws.indices(step, 0), *self._masks(step, 0))

    def descend_often(self, w: Vector, lr: float | Vector, steps: int) -> Vector | None:
        """All steps of a job, where they are compiled."""
        compiled = self.problem.replay_step
        if not isinstance(compiled, Compiled) or self.draws is None:
            return None
        indices = self.draws.several(steps)
        if indices is None:
            return None
        return compiled.repeated(w, self._paces(w, lr), indices, *self._masks(range(steps), 0))

    def _paces(self, w: Vector, lr: float | Vector) -> Tensor:
        """Step sizes times the clients' shares, [n]: the same for all steps of a job."""
        if self.pace is None or self.pace[0] is not lr:
            column = lr if isinstance(lr, Tensor) else torch.full((len(w), 1), lr, device=w.device)
            self.pace = lr, column.squeeze(1) * self.shares
        return self.pace[1]

    def renewed(self, w: Vector) -> Vector:
        """The same vectors with the statistics that the last gradient on a step's own mini-batch gave."""
        if self.running is None or self.statistics is None:
            return w
        return torch.cat([w[:, : self.running.start], self.statistics, w[:, self.running.stop :]], 1)

    def full(self, w: Vector) -> Vector:
        if self._in_cache:
            return self._each_in_cache(w, 0, 0, whole=True)
        if self.problem.objective.form == "coupled" or self.problem.flat.moded:
            return self._parted(self._whole(w, 0, _FULL), _FULL)
        return self._slope(w, self._fetch(*self._everything()), (), whole=True)

    def loss(self, w: Vector, step: int, sample: int = 0) -> Tensor:
        masks = self._masks(step, sample)
        if self.unpadded:
            return torch.stack([self.problem.loss(w[i], *self._all_of(i, masks)) for i in range(len(w))])
        loss = self._loss(self.draws is None)
        return self._each(w, self._gather(step, sample), masks, loss, loss)

    def hvp(self, w: Vector, v: Vector, step: int, sample: int = 0) -> Vector:
        def product(w: Vector, v: Vector, *batch: Tensor) -> Vector:
            # twice backwards: torch's forward mode would compile its formulas with the deprecated torch.jit first
            out: Vector = grad(lambda u: torch.dot(grad(loss)(u, *batch), v))(w)
            return out

        loss = self.problem.loss if self.unpadded else self._loss(self.draws is None)
        masks = self._masks(step, sample)
        if self.unpadded:
            return torch.stack([product(w[i], v[i], *self._all_of(i, masks)) for i in range(len(w))])
        batch = (*self._gather(step, sample), self.shares, *masks)
        if len(w) > 1 and not self.problem.unstackable:
            stacked: Vector = vmap(product)(w, v, *batch)
            return stacked
        return torch.stack([product(w[i], v[i], *(part[i] for part in batch)) for i in range(len(w))])

    def client(self, row: int) -> ClientAlone:
        """The model and the samples of one client, for a training loop of the user's own."""
        return ClientAlone(self, row)

    # Sample by sample

    @property
    def sizes(self) -> Sequence[int]:
        return [int(size) for size in self.shards.sizes[self.which]]

    @property
    def expected(self) -> Sequence[int]:
        return self.sizes if self.draws is None else [min(self.draws.batch, size) for size in self.sizes]

    def noised(
        self, w: Vector, step: int, chosen: Tensor, shorten: Callable[[Vector], Vector], noise: Vector
    ) -> Vector:
        p, total = self.problem, noise.to(w.device, torch.float64)
        rows, places = (part.numpy() for part in chosen.nonzero(as_tuple=True))
        indices = torch.from_numpy(self.shards.order[self.shards.starts[self.which[rows]] + places]).to(p.device)
        at = torch.from_numpy(rows).to(p.device)
        masks = self._sample_masks(step, rows, places)
        most = max(1, _TOGETHER // w.shape[1])
        for first in range(0, len(rows), most):
            part = slice(first, first + most)
            slopes = p.sample_slopes(w[at[part]], *p.samples(indices[part, None]), *(mask[part] for mask in masks))
            total = total.index_add(0, at[part], shorten(slopes).double())
        over = torch.tensor(self.expected, device=w.device, dtype=torch.float64).unsqueeze(1)
        g = (total / over).to(w.dtype)
        return (g + p.l2 * w if p.l2 else g) * self.shares.unsqueeze(1)

    def _sample_masks(self, step: int, rows: np.ndarray, places: np.ndarray) -> tuple[Tensor, ...]:
        """What the masks of single samples are drawn from, for a model that drops."""
        if not self.problem.flat.random:
            return ()
        own = draw(np.asarray(self.keys, dtype=np.int64), (5 << 60) + step)
        return (torch.from_numpy(bits(own[rows], places.astype(np.int64))).to(self.problem.device),)

    # Gathering

    def _gather(self, step: int, sample: int) -> Batch:
        wanted = (0, 0) if self.draws is None else (step, sample)
        if self.kept is None or self.kept[0] != wanted:  # inner loops ask for the same one again and again
            self.kept = wanted, self._fetch(*self._chosen(*wanted))
            if self.reader is not None and self.draws is not None and step + 1 < self.draws.steps:
                self.reader.ahead(self.draws.indices(step + 1, sample))
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

    def _loss(self, whole: bool) -> Callable[..., Tensor]:
        """One client's function. Whole data may be padded: there a loss that is a mean is taken sample by sample."""
        return self.problem.loss_apart if whole else self.problem.loss

    def _masks(self, step: int | range, sample: int) -> tuple[Tensor, ...]:
        """What each client's masks are drawn from in this step, [n], or in these, [n, steps]; nothing for a model that
        drops nothing."""
        if not self.problem.flat.random:
            return ()
        keys, first = np.asarray(self.keys, dtype=np.int64), (1 << 61) + (sample << 40)
        steps = range(step, step + 1) if isinstance(step, int) else step
        found = np.stack([draw(keys, first + each) for each in steps], 1)
        keys_here = torch.from_numpy(found[:, 0] if isinstance(step, int) else found)
        return (keys_here.to(self.problem.device, non_blocking=True),)

    def _parted(self, g: Vector, sample: int) -> Vector:
        """Gradients without the statistics that came with them, which are kept."""
        if self.running is not None:
            if sample == 0:
                self.statistics = g[:, self.running].clone()
            g[:, self.running] = 0.0
        return g

    def _whole(self, w: Vector, step: int, sample: int) -> Vector:
        """Gradients over whole data, client by client, because there must be no padding."""
        masks = self._masks(step, sample)
        return torch.stack([self._gradient(w[i], *self._all_of(i, masks)) for i in range(len(w))])

    def _all_of(self, row: int, masks: Batch) -> tuple[Tensor, ...]:
        indices = torch.from_numpy(self.shards[int(self.which[row])]).to(self.problem.device)
        weights = torch.full(indices.shape, 1.0 / len(indices), device=self.problem.device)
        return (*self.problem.samples(indices), weights, self.shares[row], *(mask[row] for mask in masks))

    def _slope(self, w: Vector, batch: Batch, masks: Batch, whole: bool | None = None) -> Vector:
        p = self.problem
        whole = self.draws is None if whole is None else whole
        if p.closed is None:
            apart = whole and p.objective.form == "mean"
            if p.replay is not None and len(w) > 1 and not apart:
                return p.replay(w, *batch, self.shares, *masks)
            if len(w) > 1 and p.stacks and not apart:
                return p.slopes(w, *batch, self.shares, *masks)
            stacked = p.stacked_slopes if p.flat.running is not None else None
            return self._each(w, batch, masks, partial(self._gradient, whole=whole), grad(self._loss(whole)), stacked)
        g = p.closed.gradient(w, *batch)
        return (g + p.l2 * w if p.l2 else g) * self.shares.unsqueeze(1)

    def _gradient(self, w: Vector, *given: Tensor, whole: bool = False) -> Vector:
        """Plain autograd, by the parameters one by one: for one client it is much cheaper than torch.func."""
        p, key = self.problem, None
        if p.flat.random:
            *given, key = given  # type: ignore[assignment]
        *parts, weights, share = given
        pieces = p.flat.pieces(w)
        leaves = p.flat.leaves(pieces)

        def differentiated(found: Any) -> Sequence[Tensor]:
            value = total(found, weights) if whole else found
            return torch.autograd.grad(value, leaves, materialize_grads=True)

        function = p.objective.apart if whole else p.objective.mean  # samples of a mini-batch weigh the same
        slopes = p.flat.alone(pieces, function, *parts, key=key, then=differentiated)
        g = p.flat.gathered(slopes, pieces)
        statistics = None if self.running is None else g[self.running].clone()
        if p.l2:
            g.add_(w, alpha=p.l2)
        if not self.alike:
            g.mul_(share)
        if statistics is not None:
            g[self.running] = statistics
        return g

    def _each(
        self,
        w: Vector,
        batch: Batch,
        masks: Batch,
        one: Callable[..., Any],
        stacked: Callable[..., Any],
        rows: Callable[..., Tensor] | None = None,
    ) -> Tensor:
        """One by one, or by torch.vmap where that works; rows: what does the same for stacked rows."""
        shares = self.shares
        if len(w) > 1 and not self.problem.unstackable:
            found: Tensor = (rows or vmap(stacked))(w, *batch, shares, *masks)
            return found
        given = (*batch, shares, *masks)
        if len(w) == 1:
            only: Tensor = one(w[0], *(part[0] for part in given))
            return only.unsqueeze(0)
        return torch.stack([one(w[i], *(part[i] for part in given)) for i in range(len(w))])
