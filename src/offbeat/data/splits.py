"""Who gets which training samples.

A split is a frozen description; called with the labels, a number of clients and a random generator it gives
one array of sample indices per client. Positions whose owner is −1 are no samples and go to nobody. No client is
ever left without data: that is an error which names the client. Labels are the target, or the column that a split
names with `by`; numbers that are no classes are cut at their quantiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from offbeat.core.errors import Checked, Count, Positive, SettingError

Indices = npt.NDArray[np.int64]
Labels = npt.NDArray[Any]
Rng = np.random.Generator


class Split(Protocol):
    """What every split is called with."""

    def __call__(self, labels: Labels, clients: int, rng: Rng, owner: Labels | None = None) -> list[Indices]:
        """The sample indices of each client."""


@dataclass(frozen=True)
class IID:
    """Equal parts of the shuffled samples; sizes differ by at most one."""

    def __call__(self, labels: Labels, clients: int, rng: Rng, owner: Labels | None = None) -> list[Indices]:
        return np.array_split(rng.permutation(_samples(labels, clients, owner)), clients)


@dataclass(frozen=True)
class NearlyIID(Checked):
    """All clients but the last have the same number of samples of every class; the last has the rest (AREA, E.1).

    by: the column with the classes; default: the target.
    bins: parts of equal size into which a column of real numbers is cut.
    """

    by: str | None = None
    bins: Count = 10

    def __call__(self, labels: Labels, clients: int, rng: Rng, owner: Labels | None = None) -> list[Indices]:
        parts: list[list[Indices]] = [[] for _ in range(clients)]
        for members in _by_class(labels, _samples(labels, clients, owner), rng):
            share = len(members) // clients
            for i, part in enumerate(parts):
                part.append(members[i * share : (i + 1) * share if i < clients - 1 else None])
        return joined(parts, "every class has fewer samples than there are clients: use fewer, or the split iid")


@dataclass(frozen=True)
class Dirichlet(Checked):
    """Class proportions drawn from a Dirichlet distribution.

    alpha: concentration; the smaller it is, the more the clients' data differ.
    per_client: samples of each client, whose proportions run over the classes; a class that is used up is gone through
        again (FedAST, C.4). By default the proportions of a class run over the clients, and every sample is given
        once (AREA, §5).
    min_size: without per_client, clients with fewer samples than this take some from the largest clients.
    by: the column with the classes; default: the target.
    bins: parts of equal size into which a column of real numbers is cut.
    """

    alpha: Positive
    per_client: Count | None = None
    min_size: Count = 1
    by: str | None = None
    bins: Count = 10

    def __call__(self, labels: Labels, clients: int, rng: Rng, owner: Labels | None = None) -> list[Indices]:
        samples = _samples(labels, clients, owner, repeated=self.per_client is not None)
        classes = _by_class(labels, samples, rng)
        if self.per_client is not None:
            return _cycled(classes, self.per_client, clients, self.alpha, rng)
        if clients * self.min_size > len(samples):
            raise SettingError(
                f"{clients} clients of at least min_size = {self.min_size} samples, but only {len(samples)} "
                "samples; lower one of the two"
            )
        parts: list[list[Indices]] = [[] for _ in range(clients)]
        for members in classes:
            shares = rng.dirichlet(np.full(clients, self.alpha))
            cuts = np.floor(np.cumsum(shares)[:-1] * len(members) + 0.5).astype(np.int64)
            for part, piece in zip(parts, np.split(members, cuts), strict=True):
                part.append(piece)
        return _topped_up([np.concatenate(part) for part in parts], self.min_size, rng)


@dataclass(frozen=True)
class Classes(Checked):
    """Every client has samples of a few classes only (PersA-FL, §5; DeFedAvg, §4.1).

    The classes are dealt at random and evenly: each is held by the same number of clients, give or take one,
    and cut into equal parts for them. With fewer than (classes / per_client) clients some are nobody's.

    per_client: classes of each client.
    even: whether every class is held by equally many clients; if not, every client draws its classes for itself.
    equal: whether a class is cut into equal parts for its clients; if not, it is cut at random places.
    by: the column with the classes; default: the target.
    bins: parts of equal size into which a column of real numbers is cut.
    """

    per_client: Count
    even: bool = True
    equal: bool = True
    by: str | None = None
    bins: Count = 10

    def __call__(self, labels: Labels, clients: int, rng: Rng, owner: Labels | None = None) -> list[Indices]:
        classes = _by_class(labels, _samples(labels, clients, owner), rng)
        if self.per_client > len(classes):
            raise SettingError(
                f"per_client = {self.per_client}: the data have only {len(classes)} classes; ask for fewer"
            )
        holders: list[list[int]] = [[] for _ in classes]
        for client in range(clients):
            order = rng.random(len(classes))
            if self.even:
                order += [len(h) for h in holders]  # the least held, ties at random
            for label in np.argsort(order)[: self.per_client]:
                holders[label].append(client)
        parts: list[list[Indices]] = [[] for _ in range(clients)]
        for members, who in zip(classes, holders, strict=True):
            for client, piece in zip(who, self._cut(members, max(len(who), 1), rng), strict=False):
                parts[client].append(piece)
        return joined(parts, "its classes have fewer samples than clients that hold them: use fewer clients")

    def _cut(self, members: Indices, count: int, rng: Rng) -> list[Indices]:
        if self.equal or len(members) < count:
            return np.array_split(members, count)
        places = 1 + np.sort(rng.choice(len(members) - 1, count - 1, replace=False))
        return np.split(members, places)


@dataclass(frozen=True)
class Owners:
    """Every client is one natural owner of samples; with fewer clients than owners, those with the most samples.

    They come in the owners' order and do not depend on the seed, so that all runs have the same clients.

    column: the column that says whose each sample is, by name or number; default: what the data set says itself.
    """

    column: str | None = None

    def __call__(self, labels: Labels, clients: int, rng: Rng, owner: Labels | None = None) -> list[Indices]:
        samples = _samples(labels, clients, owner)
        if owner is None:
            raise SettingError(
                "the split owners needs data with natural owners, such as shakespeare or randhie; or name "
                "their column, such as Owners('speaker')"
            )
        order = samples[np.argsort(owner[samples], kind="stable")]
        names, starts, sizes = np.unique(owner[order], return_index=True, return_counts=True)
        if len(names) < clients:
            raise SettingError(
                f"{clients} clients, but the data have only {len(names)} owners; use as many or fewer, or leave it out"
            )
        largest = np.sort(np.argsort(-sizes, kind="stable")[:clients])
        return [order[starts[i] : starts[i] + sizes[i]] for i in largest]


def _samples(labels: Labels, clients: int, owner: Labels | None, repeated: bool = False) -> Indices:
    """The positions that are samples, after the checks that every split makes."""
    if clients < 1:
        raise SettingError(f"{clients} clients: a split needs at least one")
    samples = np.arange(len(labels)) if owner is None else np.flatnonzero(owner >= 0)
    if not len(samples):
        raise SettingError("cannot split an empty data set")
    if clients > len(samples) and not repeated:
        raise SettingError(f"{clients} clients, but only {len(samples)} samples; use as many clients or fewer")
    return samples


def _by_class(labels: Labels, samples: Indices, rng: Rng) -> list[Indices]:
    """The samples of each class that occurs, shuffled."""
    shuffled = rng.permutation(samples)
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    _, starts = np.unique(labels[order], return_index=True)
    return np.split(order, starts[1:])


def joined(parts: Sequence[Sequence[Indices]], remedy: str) -> list[Indices]:
    """The pieces of each client together; a client without any is refused."""
    found = [np.concatenate(part) for part in parts]
    for client, part in enumerate(found):
        if not len(part):
            raise SettingError(f"client {client} of {len(found)} is left without data; {remedy}")
    return found


def _cycled(classes: list[Indices], size: int, clients: int, alpha: float, rng: Rng) -> list[Indices]:
    """Equal-sized clients, each with its own Dirichlet mix of the classes, taken from each class in turn."""
    taken = np.zeros(len(classes), np.int64)
    parts = []
    for _ in range(clients):
        counts = rng.multinomial(size, rng.dirichlet(np.full(len(classes), alpha)))
        pieces = [
            members.take(np.arange(start, start + count), mode="wrap")
            for members, start, count in zip(classes, taken, counts, strict=True)
        ]
        taken += counts
        parts.append(np.concatenate(pieces))
    return parts


def _topped_up(parts: list[Indices], least: int, rng: Rng) -> list[Indices]:
    """The same clients, after those with too few samples took some, one by one, from the largest."""
    sizes = np.array([len(part) for part in parts])
    for client in np.flatnonzero(sizes < least):
        taken = []
        while sizes[client] < least:
            giver = int(np.argmax(sizes))
            place = rng.integers(sizes[giver])
            taken.append(parts[giver][place])
            parts[giver] = np.delete(parts[giver], place)
            sizes[giver] -= 1
            sizes[client] += 1
        parts[client] = np.append(parts[client], np.array(taken, np.int64))
    return parts
