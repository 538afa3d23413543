"""Classification over clients' shards of a data set."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from offbeat.core.errors import DataError, SettingError, positive
from offbeat.core.problem import Numbers
from offbeat.core.random import MODEL, SHARE, SPLIT, key
from offbeat.core.vectors import Vector
from offbeat.data.base import Dataset
from offbeat.data.splits import IID, Split
from offbeat.models.build import build
from offbeat.models.flat import Flat
from offbeat.models.linear import ClosedForm
from offbeat.problems.replay import Replay
from offbeat.problems.rows import Rows
from offbeat.problems.shards import Shards

# Samples evaluated at a time, on a CPU and on a GPU. A network keeps much of each: few of them stay in a CPU's cache.
_CLOSED, _NETWORK = (8192, 65536), (256, 8192)


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
        self.flat = Flat(model)
        self.clients, self.dim = len(shards), self.flat.dim
        sizes = np.array([len(s) for s in shards], dtype=np.int64)
        order, total = np.concatenate(list(shards)).astype(np.int64), int(sizes.sum())
        self.shards = Shards(order, sizes, sizes / total if weighted else np.ones(self.clients), self.device)
        there = data.on(self.device)
        self.train_x, self.train_y, self.test_x, self.test_y = there.train_x, there.train_y, there.test_x, there.test_y
        # a gradient in closed form needs numbers for inputs
        self.closed = model if isinstance(model, ClosedForm) and data.scale is not None else None
        self.scale = 1.0 if data.scale is None else data.scale
        self.adds = self.flat.adds(self.device)
        self.replay = Replay(self.slopes) if self.device.type == "cuda" and self.stacks else None
        self.replay_step = Replay(self.stepped) if self.adds else None
        self._buffers: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        # what each training sample counts in the global objective
        each = sizes / total if weighted else np.full(self.clients, 1.0 / self.clients)
        counts = np.zeros(len(data.train_y))
        np.add.at(counts, order, np.repeat(each / sizes, sizes))
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
        model: str | Callable[..., nn.Module] = "softmax",
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
        *,
        l2: float = 0.0,
        weighted: bool = False,
        device: str = "cpu",
        measured: int | None = None,
        name: str = "",
    ) -> Supervised:
        """The problem of a data set split over clients (IID by default) and a model, both drawn from the seed.

        model: by name, as in an experiment file, or a factory.   options: of the model.   l2: weight of l2/2·|w|².
        weighted: a client's loss counts by its share of the samples.   measured: evaluate on at most so many samples.
        """
        if clients < 1:
            raise SettingError(f"clients = {clients}: must be at least 1")
        owner = None if data.owner is None else data.owner.numpy()
        rng = np.random.default_rng(key(seed, SPLIT))
        shards = (split or IID())(data.train_y.numpy(), clients, rng, owner)
        module = build(model, data.shape, data.classes, key(seed, MODEL), **(options or {}))
        return cls(data, module, shards, l2, weighted, device, measured, name)

    def pooled(self) -> Supervised:
        """The same data as one client's: what training without federation would see."""
        everything = [np.unique(self.shards.order)]
        return Supervised(
            self.data, self.flat.module, everything, self.l2, False, str(self.device), self.measured, self.name
        )

    @property
    def stacks(self) -> bool:
        if self.device.type == "cuda":
            return self.flat.vmappable or self.flat.own
        return self.flat.vmappable and not self.flat.convolutional

    def initial(self) -> Vector:
        return self.flat.initial().to(self.device)

    def oracle(self, clients: Numbers, keys: Numbers, steps: int, batch: int | None, shuffle: bool) -> Rows:
        return Rows(self, clients, keys, steps, batch, shuffle)

    @property
    def kin(self) -> Hashable:
        """Problems of equal kin differ in their shards and starting points alone: their clients can be stacked."""
        if self.flat.constants:
            return id(self)
        return (type(self), id(self.data), _function(self.flat.module), self.l2, self.device)

    def union(self, problems: Sequence[Supervised]) -> Supervised:
        """One problem with the clients of all these, which are of equal kin; for oracles, not for measuring."""
        joint = copy.copy(self)
        joint.shards = Shards.union([p.shards for p in problems])
        joint.clients = sum(p.clients for p in problems)
        return joint

    def stored(self, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs of these samples [b, inputs] as stored numbers in single precision, in a buffer, and their labels."""
        if len(which) not in self._buffers:
            shape = (len(which), self._inputs.shape[1])
            self._buffers[len(which)] = np.empty(shape, self._inputs.dtype), np.empty(shape, np.float32)
        raw, x = self._buffers[len(which)]
        self._inputs.take(which, 0, raw, "clip")
        np.copyto(x, raw)
        return x, self._labels[which]

    @cached_property
    def _inputs(self) -> np.ndarray:
        return self.train_x.flatten(1).numpy()

    @cached_property
    def _labels(self) -> np.ndarray:
        return self.train_y.numpy()

    def samples(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels of training samples, in the shape of their indices."""
        flat = indices.reshape(-1)
        x = self.inputs(self.train_x.index_select(0, flat))
        return x.view(*indices.shape, *x.shape[1:]), self.train_y.index_select(0, flat).view(indices.shape)

    def inputs(self, stored: Tensor) -> Tensor:
        """Stored samples as the model wants them."""
        return stored.long() if self.data.scale is None else stored.float().mul_(self.scale)

    def loss(self, w: Vector, x: Tensor, y: Tensor, weight: Tensor | float, share: Tensor | float) -> Tensor:
        """One client's stochastic function: share · (Σ weight · loss + l2/2·|w|²)."""
        losses = cross_entropy(self.flat(w, x), y, reduction="none")
        value = (losses * weight).sum()
        if self.l2:
            value = value + (0.5 * self.l2) * (w * w).sum()
        return value * share

    def slopes(self, w: Vector, x: Tensor, y: Tensor, weights: Tensor, shares: Tensor) -> Vector:
        """The gradients [n, d] of n clients' stochastic functions, stacked."""
        if self.adds:
            return self._added(w, self.l2 * shares, x, y, weights * shares.unsqueeze(1))
        if not self.flat.own:
            rows: Vector = vmap(grad(self.loss))(w, x, y, weights, shares)
            return rows
        w = w.detach().requires_grad_()
        losses = cross_entropy(self.flat.stacked(w, x).flatten(0, 1), y.flatten(), reduction="none").view_as(y)
        values = (losses * weights).sum(1)
        g = torch.autograd.grad((values * shares).sum(), w)[0]  # no client's value depends on another's vector
        return g.add_(w.detach() * shares.unsqueeze(1), alpha=self.l2) if self.l2 else g

    def stepped(self, w: Vector, indices: Tensor, pace: Tensor) -> Vector:
        """w − pace · the gradients at mini-batches of these training samples, indices [n, b]; pace [n].

        Without a place for the gradients; the samples are fetched here, so that a graph of it has all of a step.
        """
        x, y = self.samples(indices)
        weights = (-pace / indices.shape[1]).unsqueeze(1).expand_as(y)
        return self._added(w, 1 - self.l2 * pace, x, y, weights)

    def _added(self, w: Vector, keep: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Vector:
        """keep · w + the gradients by the model's own kernels."""
        module: Any = self.flat.module
        to = torch.empty_like(w)
        module.add_gradient(self.flat.named(w), keep, self.flat.named(to), x, y, weights)
        return to

    @torch.no_grad()
    def measure(self, models: Vector) -> list[Mapping[str, float]]:
        """Accuracy on the test set and the global objective on all training data."""
        right = torch.zeros(len(models), device=self.device)
        for which in torch.split(self.tested, self._chunk):
            outputs = self._outputs(models, self.inputs(self.test_x[which]))
            right += (outputs.argmax(dim=-1) == self.test_y[which]).sum(dim=-1)
        loss = 0.5 * self.l2 * (models * models).sum(dim=1) if self.l2 else torch.zeros_like(right)
        for which, counts in zip(
            torch.split(self.used, self._chunk), torch.split(self.counts, self._chunk), strict=True
        ):
            outputs = self._outputs(models, self.inputs(self.train_x[which]))  # [v, m, classes]
            chosen = self.train_y[which].expand(len(models), -1).unsqueeze(2)
            losses = torch.logsumexp(outputs, dim=2) - outputs.gather(2, chosen).squeeze(2)
            loss = loss + losses @ counts
        both = zip(right.tolist(), loss.tolist(), strict=True)  # to the CPU in one piece
        return [{"accuracy": hits / len(self.tested), "loss": f} for hits, f in both]

    @property
    def _chunk(self) -> int:
        """Samples evaluated at a time."""
        on_cpu, on_gpu = _NETWORK if self.closed is None else _CLOSED
        return on_cpu if self.device.type == "cpu" else on_gpu

    @torch.no_grad()
    def judge(self, models: Vector, clients: Sequence[int]) -> list[float]:
        """Accuracy of row i on the test share of client i."""
        found = []
        for w, client in zip(models, clients, strict=True):
            share, right = self.test_shares[client], 0.0
            for which in torch.split(share, self._chunk):
                outputs = self.flat.alone(self.flat.pieces(w), self.inputs(self.test_x[which]))
                right += float((outputs.argmax(dim=-1) == self.test_y[which]).sum())
            found.append(right / len(share))
        return found

    @cached_property
    def test_shares(self) -> list[Tensor]:
        """Test samples of each client: its owner's if every client is one natural owner, else a part of each class as
        large as its part of the training samples of that class. A client too small for any gets one sample, of the
        commonest of its classes that are tested at all."""
        shards = [self.shards[client] for client in range(self.clients)]
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
        """Of every model for all samples: of several at once only where samples are few."""
        if self.closed is not None:
            return self.closed.outputs(models, x)
        together = max(1, self._chunk // len(x)) if self.stacks and not self.flat.own else 1
        return torch.cat([self._by_network(group, x) for group in torch.split(models, together)])

    def _by_network(self, models: Vector, x: Tensor) -> Tensor:
        if len(models) == 1:
            return self.flat.alone(self.flat.pieces(models[0]), x).unsqueeze(0)
        outputs: Tensor = vmap(self.flat, (0, None))(models, x)
        return outputs


def _function(module: nn.Module) -> Hashable:
    """Equal for modules that differ in the values of their parameters alone."""
    own = ("_parameters", "_buffers", "_modules")
    layers = [
        (name, type(layer), *((k, _plain(v)) for k, v in sorted(vars(layer).items()) if k not in own))
        for name, layer in module.named_modules()
    ]
    return (*layers, *((name, p.shape) for name, p in module.named_parameters(remove_duplicate=False)))


def _plain(value: Any) -> Hashable:
    """Equal for equal numbers and strings, and collections of them; anything else is equal to itself alone."""
    if value is None or isinstance(value, bool | int | float | str):
        return (type(value), value)
    if isinstance(value, Mapping):
        return tuple((k, _plain(v)) for k, v in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return tuple(_plain(v) for v in value)
    return id(value)


def _some(which: np.ndarray, most: int | None) -> np.ndarray:
    """All of them, or a fixed random choice."""
    if most is None or most >= len(which):
        return which
    return np.sort(np.random.default_rng(0).choice(which, most, replace=False))
