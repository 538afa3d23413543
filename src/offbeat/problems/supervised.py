"""Classification over clients' shards of a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from offbeat.core.errors import DataError, SettingError, positive
from offbeat.core.problem import Numbers
from offbeat.core.random import MODEL, SHARE, SPLIT, below, bits, key
from offbeat.core.vectors import Vector
from offbeat.data.base import Dataset
from offbeat.data.splits import IID, Split
from offbeat.models.build import build
from offbeat.models.flat import Flat
from offbeat.models.linear import ClosedForm

_CHUNK = 8192  # samples evaluated at a time
_AHEAD = 1 << 20  # draws made ahead at most


class Supervised:
    """f̂_i(w) = mean loss over client i's samples + l2/2·|w|² (AREA eq. 4).

    shards: sample indices of each client.   l2: ν.   weighted: client i's function is (s_i/S)·f̂_i, and the global
    objective Σ (s_i/S) f̂_i; otherwise it is f̂_i, and the objective (1/n) Σ f̂_i.
    measured: at most so many training and test samples, always the same ones, go into `measure`; None: all.
    """

    def __init__(
        self,
        data: Dataset,
        model: nn.Module,
        shards: Sequence[np.ndarray],
        l2: float = 0.0,
        weighted: bool = False,
        device: str = "cpu",
        measured: int | None = None,
        name: str = "",
    ) -> None:
        positive(measured=measured)
        if l2 < 0:
            raise SettingError(f"l2 = {l2}: must not be negative")
        if not shards:
            raise SettingError("clients = 0: a problem needs at least one client")
        for client, shard in enumerate(shards):
            if len(shard) == 0:
                raise DataError(f"client {client} has no data; use fewer clients or a less uneven split")
        self.name, self.data, self.l2, self.device = name or data.name, data, l2, torch.device(device)
        self.measured = measured
        if self.device.type == "cuda":  # convolutions in full single precision, as on a CPU
            torch.backends.cudnn.allow_tf32 = False
        self.flat = Flat(model)
        self.clients, self.dim = len(shards), self.flat.dim
        self.sizes = np.array([len(s) for s in shards], dtype=np.int64)
        self.starts = np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)
        self.order = np.concatenate(list(shards)).astype(np.int64)
        total = int(self.sizes.sum())
        self.shares = self.sizes / total if weighted else np.ones(self.clients)
        self.train_x, self.train_y = data.train_x.to(device), data.train_y.to(device)
        self.test_x, self.test_y = data.test_x.to(device), data.test_y.to(device)
        # what each training sample counts in the global objective
        each = self.sizes / total if weighted else np.full(self.clients, 1.0 / self.clients)
        counts = np.zeros(len(data.train_y))
        np.add.at(counts, self.order, np.repeat(each / self.sizes, self.sizes))
        used = _some(np.flatnonzero(counts), measured)
        self.used = torch.from_numpy(used).to(device)
        self.counts = torch.from_numpy(counts[used] / counts[used].sum()).to(device, torch.float32)
        owner = data.test_owner
        tested = np.arange(len(data.test_y)) if owner is None else np.flatnonzero(owner.numpy() >= 0)
        self.tested = torch.from_numpy(_some(tested, measured)).to(device)

    @classmethod
    def split(
        cls,
        data: Dataset,
        clients: int,
        split: Split | None = None,
        model: str = "softmax",
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Supervised:
        """The problem of a data set split over clients (IID by default) and a model by name, both drawn from the seed.

        options: of the model.   settings: l2, weighted, device, measured, name.
        """
        if clients < 1:
            raise SettingError(f"clients = {clients}: must be at least 1")
        owner = None if data.owner is None else data.owner.numpy()
        rng = np.random.default_rng(key(seed, SPLIT))
        shards = (split or IID())(data.train_y.numpy(), clients, rng, owner)
        module = build(model, data.shape, data.classes, key(seed, MODEL), **(options or {}))
        return cls(data, module, shards, **settings)

    def pooled(self) -> Supervised:
        """The same data as one client's: what training without federation would see."""
        everything = [np.unique(self.order)]
        return Supervised(
            self.data, self.flat.module, everything, self.l2, False, str(self.device), self.measured, self.name
        )

    @property
    def stacks(self) -> bool:
        return self.flat.vmappable and (self.device.type == "cuda" or not self.flat.convolutional)

    def initial(self) -> Vector:
        return self.flat.initial().to(self.device)

    def oracle(self, clients: Numbers, keys: Numbers, steps: int, batch: int | None, shuffle: bool) -> _Rows:
        return _Rows(self, clients, keys, steps, batch, shuffle)

    def inputs(self, stored: Tensor) -> Tensor:
        """Stored samples as the model wants them."""
        return stored.long() if self.data.scale is None else stored.float() * self.data.scale

    def loss(self, w: Vector, x: Tensor, y: Tensor, weight: Tensor | float, share: Tensor | float) -> Tensor:
        """One client's stochastic function: share · (Σ weight · loss + l2/2·|w|²)."""
        losses = cross_entropy(self.flat(w, x), y, reduction="none")
        value = (losses * weight).sum()
        if self.l2:
            value = value + (0.5 * self.l2) * (w * w).sum()
        return value * share

    @torch.no_grad()
    def measure(self, models: Vector) -> list[Mapping[str, float]]:
        """Accuracy on the test set and the global objective on all training data."""
        right = torch.zeros(len(models), device=self.device)
        for which in torch.split(self.tested, _CHUNK):
            outputs = self._outputs(models, self.inputs(self.test_x[which]))
            right += (outputs.argmax(dim=-1) == self.test_y[which]).sum(dim=-1)
        loss = 0.5 * self.l2 * (models * models).sum(dim=1) if self.l2 else torch.zeros_like(right)
        for which, counts in zip(torch.split(self.used, _CHUNK), torch.split(self.counts, _CHUNK), strict=True):
            outputs = self._outputs(models, self.inputs(self.train_x[which]))  # [v, m, classes]
            y = self.train_y[which].expand(len(models), -1)
            losses = cross_entropy(outputs.flatten(0, 1), y.flatten(), reduction="none").view(len(models), -1)
            loss = loss + losses @ counts
        accuracy = right / len(self.tested)
        return [{"accuracy": float(a), "loss": float(f)} for a, f in zip(accuracy, loss, strict=True)]

    @torch.no_grad()
    def judge(self, models: Vector, clients: Sequence[int]) -> list[float]:
        """Accuracy of row i on the test share of client i."""
        found = []
        for w, client in zip(models, clients, strict=True):
            share, right = self.test_shares[client], 0.0
            for which in torch.split(share, _CHUNK):
                outputs = self.flat(w, self.inputs(self.test_x[which]))
                right += float((outputs.argmax(dim=-1) == self.test_y[which]).sum())
            found.append(right / len(share))
        return found

    @cached_property
    def test_shares(self) -> list[Tensor]:
        """Test samples of each client: its owner's if every client is one natural owner, else a part of each class as
        large as its part of the training samples of that class. A client too small for any gets one sample, of the
        commonest of its classes that are tested at all."""
        shards = [self.order[s : s + n] for s, n in zip(self.starts, self.sizes, strict=True)]
        shares = self._owned(shards) or self._by_class(shards)
        return [torch.from_numpy(share).to(self.device) for share in shares]

    def _owned(self, shards: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The test samples of each client's owner; nothing where a client is not one owner."""
        if self.data.owner is None or self.data.test_owner is None:
            return []
        owner, tested = self.data.owner.numpy(), self.data.test_owner.numpy()
        owners = [np.unique(owner[shard]) for shard in shards]
        if any(len(names) > 1 for names in owners):
            return []
        order = np.argsort(tested, kind="stable")
        edges = [np.searchsorted(tested, [names[0], names[0] + 1], sorter=order) for names in owners]
        return [order[first:last] for first, last in edges]

    def _by_class(self, shards: Sequence[np.ndarray]) -> list[np.ndarray]:
        train, test, owner = self.data.train_y.numpy(), self.data.test_y.numpy(), self.data.test_owner
        counts = np.stack([np.bincount(train[s], minlength=self.data.classes) for s in shards])  # [n, classes]
        rng = np.random.default_rng(key(0, SHARE))
        real = True if owner is None else owner.numpy() >= 0
        members = [rng.permutation(np.flatnonzero((test == c) & real)) for c in range(self.data.classes)]
        parts: list[list[np.ndarray]] = [[] for _ in shards]
        for c, samples in enumerate(members):
            total = counts[:, c].sum()
            cuts = np.rint(np.cumsum(counts[:, c]) / max(total, 1) * len(samples)).astype(np.int64)
            for client, piece in enumerate(np.split(samples, cuts[:-1])):
                if total:
                    parts[client].append(piece)
        shares = [np.concatenate(p) for p in parts]
        commonest = (counts * [len(m) > 0 for m in members]).argmax(axis=1)
        return [share if len(share) else members[c][:1] for share, c in zip(shares, commonest, strict=True)]

    def _outputs(self, models: Vector, x: Tensor) -> Tensor:
        if len(models) > 1 and self.stacks:
            outputs: Tensor = vmap(self.flat, (0, None))(models, x)
            return outputs
        return torch.stack([self.flat(w, x) for w in models])


def _some(which: np.ndarray, most: int | None) -> np.ndarray:
    """All of them, or a fixed random choice."""
    if most is None or most >= len(which):
        return which
    return np.sort(np.random.default_rng(0).choice(which, most, replace=False))


class _Rows:
    """The oracle of some of the clients: draws their mini-batches and differentiates."""

    def __init__(
        self,
        problem: Supervised,
        clients: Numbers,
        keys: Numbers,
        steps: int,
        batch: int | None,
        shuffle: bool,
    ) -> None:
        self.problem, self.batch, self.shuffle, self.steps = problem, batch, shuffle, max(steps, 1)
        which = np.asarray(clients)
        self.keys = np.asarray(keys, dtype=np.int64)[:, None]
        self.starts, self.sizes = problem.starts[which][:, None], problem.sizes[which][:, None]
        self.shares = torch.from_numpy(problem.shares[which]).to(problem.device, torch.float32)
        self.batches: tuple[tuple[int, int], tuple[Tensor, Tensor, Tensor]] | None = None
        self.drawn: dict[int, tuple[int, Tensor]] = {}  # sample -> (first step, indices [n, steps, batch])

    # Drawing

    def _indices(self, step: int, sample: int) -> Tensor:
        """Sample numbers [n, batch] of one local step; several steps are drawn at once."""
        assert self.batch is not None
        first, block = self.drawn.get(sample, (0, None))
        if block is None or not first <= step < first + block.shape[1]:
            ahead = max(1, min(self.steps - step, _AHEAD // (len(self.keys) * self.batch)))
            first, block = step, self._draw(step, ahead, sample)
            self.drawn[sample] = first, block
        return block[:, step - first]

    def _draw(self, step: int, count: int, sample: int) -> Tensor:
        assert self.batch is not None
        counters = np.arange(step * self.batch, (step + count) * self.batch, dtype=np.int64)[None, :]
        if self.shuffle:
            places = np.stack([self._shuffled(row, counters[0], sample) for row in range(len(self.keys))])
        else:
            places = below(bits(self.keys, counters + (sample << 40)), self.sizes)
        drawn = self.problem.order[self.starts + places].reshape(len(self.keys), count, self.batch)
        return torch.from_numpy(drawn).to(self.problem.device)

    def _shuffled(self, row: int, counters: np.ndarray, sample: int) -> np.ndarray:
        """Draw number c is place c mod size of epoch c div size, each epoch in an order of its own."""
        size = int(self.sizes[row, 0])
        first, last = int(counters[0]) // size, int(counters[-1]) // size
        order: np.ndarray = np.concatenate([self._epoch(row, e, sample, size) for e in range(first, last + 1)])
        places: np.ndarray = order[counters - first * size]
        return places

    def _epoch(self, row: int, epoch: int, sample: int, size: int) -> np.ndarray:
        counters = np.arange(size, dtype=np.int64) + (sample << 40) + (1 << 39) + epoch * size
        order: np.ndarray = np.argsort(bits(self.keys[row], counters), kind="stable")
        return order

    def _gather(self, step: int, sample: int) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs [n, b, ...], labels [n, b] and sample weights [n, b]."""
        wanted = (0, 0) if self.batch is None else (step, sample)
        if self.batches is None or self.batches[0] != wanted:  # inner loops ask for the same one again and again
            self.batches = wanted, self._fetch(*self._chosen(*wanted))
        return self.batches[1]

    def _chosen(self, step: int, sample: int) -> tuple[Tensor, Tensor]:
        if self.batch is None:
            return self._everything()
        indices = self._indices(step, sample)
        return indices, torch.full(indices.shape, 1.0 / self.batch, device=self.problem.device)

    def _fetch(self, indices: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        p = self.problem
        flat = indices.reshape(-1)
        x = p.inputs(p.train_x.index_select(0, flat))
        x = x.view(*indices.shape, *x.shape[1:])
        return x, p.train_y[flat].view(indices.shape), weights

    def _everything(self) -> tuple[Tensor, Tensor]:
        """All of every client's samples; rows shorter than the longest are padded with weight 0."""
        places = np.minimum(np.arange(int(self.sizes.max()))[None, :], self.sizes - 1)
        inside = np.arange(int(self.sizes.max()))[None, :] < self.sizes
        indices = torch.from_numpy(self.problem.order[self.starts + places]).to(self.problem.device)
        return indices, torch.from_numpy(inside / self.sizes).to(self.problem.device, torch.float32)

    # Differentiating

    def gradient(self, w: Vector, step: int, sample: int = 0) -> Vector:
        return self._slope(w, self._gather(step, sample))

    def full(self, w: Vector) -> Vector:
        return self._slope(w, self._fetch(*self._everything()))

    def _slope(self, w: Vector, batch: tuple[Tensor, Tensor, Tensor]) -> Vector:
        p = self.problem
        if not isinstance(p.flat.module, ClosedForm):
            return self._each(w, batch, self._gradient, grad(p.loss))
        g = p.flat.module.gradient(w, *batch)
        return (g + p.l2 * w if p.l2 else g) * self.shares.unsqueeze(1)

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

    def _gradient(self, w: Vector, *batch: Tensor) -> Vector:
        """Plain autograd: for one client it is much cheaper than torch.func."""
        w = w.detach().requires_grad_(True)
        (g,) = torch.autograd.grad(self.problem.loss(w, *batch), w)
        return g

    def _each(self, w: Vector, batch: tuple[Tensor, Tensor, Tensor], one, stacked) -> Tensor:  # type: ignore[no-untyped-def]
        if len(w) > 1 and self.problem.flat.vmappable:
            rows: Tensor = vmap(stacked)(w, *batch, self.shares)
            return rows
        return torch.stack([one(w[i], *(part[i] for part in batch), self.shares[i]) for i in range(len(w))])
