"""Samples that are read when a mini-batch is drawn.

What is read is kept in tensors of a bounded size, which are then gathered from like samples in memory. Draws are
uniform: what was read first stays, since forgetting the oldest would gain nothing. The next mini-batch is known while
one is trained on, so a thread reads it meanwhile if that takes milliseconds. None of this changes what a sample is, and
so no run.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offbeat.core.errors import DataError, OffbeatError
from offbeat.data.columns import PIXEL, column as as_column, default_names, tensor
from offbeat.data.images import pixels
from offbeat.data.samples import Batch, Samples, converted

Ints = npt.NDArray[np.int64]
Collate: TypeAlias = "Callable[[list[Any]], Mapping[str, Any]]"

_CHUNK = 256  # samples at a time where all are gone through
_AHEAD = 4  # mini-batches read ahead at most
_WORTH = 2e-3  # seconds of reading from which on another thread is worth its switches


class ItemReader(ABC):
    """Where samples are read from. rows: of each column of numbers, the first sample's value.   text: other columns."""

    rows: Batch
    text: tuple[str, ...]

    @abstractmethod
    def __len__(self) -> int:
        """How many samples."""

    @abstractmethod
    def read(self, which: Ints) -> Batch:
        """The columns of numbers of these samples, as they are stored."""

    @abstractmethod
    def column(self, name: str) -> Any:
        """One column of all samples; None: all samples have to be read for it."""


class Items(ItemReader):
    """Items of anything with len() and [i]: each a pair, a tuple, a mapping, or one value."""

    def __init__(self, given: Any, names: Sequence[str] | None = None, collate: Collate | None = None) -> None:
        self.given, self.collate, self.named = given, collate, tuple(names or ())
        self.rows, self.text, self.keys = {}, (), None
        if not len(given):
            return
        first, again = (self._columns(np.zeros(1, np.int64)) for _ in range(2))
        self.text = tuple(name for name, values in first.items() if isinstance(values, list))
        self.rows = {name: values[0] for name, values in first.items() if isinstance(values, Tensor)}
        for name, value in self.rows.items():
            twice = again[name][0]
            if value.shape != twice.shape or not torch.equal(value.nan_to_num(), twice.nan_to_num()):
                raise DataError(
                    f"{name!r} of sample 0 differs when it is read twice, so no run could be repeated: "
                    f"draw nothing at random where samples are read"
                )

    def __len__(self) -> int:
        return len(self.given)

    def read(self, which: Ints) -> Batch:
        found = self._columns(which)
        for name, first in self.rows.items():
            values = found.get(name)
            if not isinstance(values, Tensor):
                raise DataError(f"{name!r} is missing or not a number in samples {which[0]} to {which[-1]}")
            if values.shape[1:] != first.shape:
                raise _unlike(name, which[0], values[0], first)
            if values.dtype != first.dtype:
                raise DataError(f"{name!r} is {_kind(values)} in sample {which[0]}, and {_kind(first)} in sample 0")
            if values.is_floating_point() and not bool(torch.isfinite(values).all()):
                bad = which[int((~torch.isfinite(values).reshape(len(values), -1).all(1)).int().argmax())]
                raise DataError(f"{name!r}: sample {bad} is not finite; fill it in or leave it out")
        return {name: found[name] for name in self.rows}

    def column(self, name: str) -> Any:
        if type(self.given).__module__.partition(".")[0] == "datasets":
            return list(self.given[name])
        known = getattr(self.given, "targets", None)  # as in torchvision
        if name not in TARGET or known is None or len(known) != len(self):
            return None
        some = np.unique(np.linspace(0, len(self) - 1, 3).astype(np.int64))
        found = torch.as_tensor(np.asarray(known)[some])
        return known if torch.equal(self.read(some)[name], found.to(self.rows[name].dtype)) else None

    def texts(self, name: str) -> list[str | None]:
        """A column of text, item by item."""
        return [value for at in range(len(self)) for value in self._columns(np.array([at]))[name]]

    def _columns(self, which: Ints) -> dict[str, Any]:
        items = self._items(which)
        try:
            if self.collate is not None:
                return {name: as_column(values, name).values for name, values in self.collate(items).items()}
            return self._stacked(items, which)
        except OffbeatError:
            raise
        except Exception as error:
            raise DataError(f"samples {which[0]} to {which[-1]} cannot be put together: {_said(error)}") from error

    def _items(self, which: Ints) -> list[Any]:
        numbers: list[int] = which.tolist()
        if hasattr(self.given, "__getitems__"):
            try:
                return list(self.given.__getitems__(numbers))
            except Exception as error:
                raise DataError(f"samples {numbers[0]} to {numbers[-1]} cannot be read: {_said(error)}") from error
        items = []
        for number in numbers:
            try:
                items.append(self.given[number])
            except Exception as error:
                raise DataError(f"sample {number} cannot be read: {_said(error)}") from error
        return items

    def _stacked(self, items: list[Any], which: Ints) -> dict[str, Any]:
        first = items[0]
        if isinstance(first, Mapping):
            by_name = {str(name): [item[name] for item in items] for name in first}
        elif isinstance(first, tuple | list):
            names = self.named or default_names(len(first))
            if len(names) != len(first):
                raise DataError(f"names = {list(names)}: sample {which[0]} has {len(first)} values")
            by_name = {name: [item[at] for item in items] for at, name in enumerate(names)}
        else:
            by_name = {(self.named or ("x",))[0]: items}
        return {name: _stack(name, list(values), which) for name, values in by_name.items()}


class JoinedItems(ItemReader):
    """Several one after the other."""

    def __init__(self, parts: Sequence[Samples]) -> None:
        self.parts = list(parts)
        self.ends = np.cumsum([len(part) for part in parts])
        self.text = tuple(parts[0].words)
        zero = np.zeros(1, np.int64)
        self.rows = {name: values[0] for name, values in raw(parts[0], zero).items()}

    def __len__(self) -> int:
        return int(self.ends[-1])

    def read(self, which: Ints) -> Batch:
        part = np.searchsorted(self.ends, which, side="right")
        made = {name: row.new_empty(len(which), *row.shape) for name, row in self.rows.items()}
        for number in np.unique(part):
            places = np.flatnonzero(part == number)
            start = 0 if number == 0 else int(self.ends[number - 1])
            found = raw(self.parts[number], which[places] - start)
            for name, values in made.items():
                values[torch.from_numpy(places)] = found[name].to(values.dtype)
        return made

    def column(self, name: str) -> Any:
        if name in self.text:
            return [word for part in self.parts for word in words(part, name)]
        return np.concatenate([part.column(name) for part in self.parts])


class Read(Samples):
    """Samples of a map-style data set, read when they are needed.

    given: anything with len() and [i], better also `__getitems__`, that gives the same for the same number: a pair, a
    tuple or a mapping of numbers, arrays, tensors and images.   names: of the columns of tuples.   keep: bytes of
    samples that are held.   collate: from a list of items to columns by name, always of the same shape.
    ahead: whether a thread may read; not where `given` belongs to the thread that made it.
    """

    def __init__(
        self,
        given: Any,
        *,
        names: Sequence[str] | None = None,
        keep: int = 1 << 30,
        collate: Collate | None = None,
        ahead: bool = True,
    ) -> None:
        self._begin(given if isinstance(given, ItemReader) else Items(given, names, collate), keep, ahead)

    def _begin(self, source: ItemReader, keep: int, ahead: bool) -> None:
        self.cache = Cache(source, keep, ahead)
        self.which: Ints | None = None  # None: all
        self.device = torch.device("cpu")
        self.names = (*source.rows, *source.text)
        self.words = dict.fromkeys(source.text, ())
        self.scales = {n: PIXEL for n, row in source.rows.items() if row.dtype == torch.uint8 and row.dim()}
        self.labels = ""  # the target, which is a whole number even if it is stored as bool

    @classmethod
    def joined(cls, parts: Sequence[Samples]) -> Read:
        """Several one after the other."""
        keeps = [part.cache for part in parts if isinstance(part, Read)]
        return cls(JoinedItems(parts), keep=max(c.keep for c in keeps), ahead=all(c.ahead for c in keeps))

    def __len__(self) -> int:
        return len(self.cache.source) if self.which is None else len(self.which)

    def __repr__(self) -> str:
        columns = ", ".join(f"{n} {_kind(row)} {list(row.shape)}" for n, row in self.cache.source.rows.items())
        return f"Read({len(self):,} samples: {columns})"

    def take(self, indices: Tensor, names: Sequence[str] | None = None) -> Batch:
        names = tuple(self.cache.source.rows) if names is None else names
        for name in names:
            if name in self.words:
                raise DataError(f"{name!r} is text, and samples are read when needed: give numbers instead")
        found = self.cache.take(self._numbers(indices))
        made = {}
        for name in names:
            values = found[name]
            ready = values.long() if name == self.labels and values.dtype == torch.bool else values
            made[name] = converted(ready.to(self.device), self.scales.get(name)).view(*indices.shape, *values.shape[1:])
        return made

    def ahead(self, indices: Tensor) -> None:
        """Have these read while something else is done: they are the next that will be taken."""
        self.cache.expect(self._numbers(indices))

    def _numbers(self, indices: Tensor) -> Ints:
        flat: Ints = indices.reshape(-1).cpu().numpy()
        return flat if self.which is None else self.which[flat]

    def __getitem__(self, name: str) -> Tensor:
        self.has(name)
        values = self.cache.column(name)
        if name in self.words:
            self.words[name] = self.cache.words[name]
        return values if self.which is None else values[torch.from_numpy(self.which)]

    def shape(self, name: str) -> tuple[int, ...]:
        self.has(name)
        return tuple(self.cache.source.rows[name].shape) if name not in self.words else ()

    def real(self, name: str) -> bool:
        return name in self.scales or (
            name in self.cache.source.rows and self.cache.source.rows[name].is_floating_point()
        )

    def part(self, which: Ints) -> Read:
        return self._like(which=which if self.which is None else self.which[which])

    def on(self, device: torch.device) -> Read:
        return self if device == self.device else self._like(device=device)

    def as_target(self, name: str) -> Read:
        """The same with this column as a loss takes it: bytes are whole numbers, no pixels."""
        return self._like(labels=name, scales={n: s for n, s in self.scales.items() if n != name})

    def _like(self, **changes: Any) -> Read:
        """Another view of the same cache."""
        made = object.__new__(Read)
        vars(made).update({**vars(self), **changes})
        return made

    @property
    def known(self) -> Mapping[str, Tensor]:
        """Columns of which all values have been read."""
        return self.cache.known


class Cache:
    """Samples of a source, as many of them kept as there is room for; safe to use from two threads."""

    def __init__(self, source: ItemReader, keep: int, ahead: bool) -> None:
        self.source, self.keep, self.ahead = source, keep, ahead
        self.known: dict[str, Tensor] = {}
        self.words: dict[str, tuple[str, ...]] = {}
        self._fresh()

    def _fresh(self) -> None:
        row = sum(each.numel() * each.element_size() for each in self.source.rows.values())
        self.room = min(len(self.source), self.keep // max(row, 1))
        self.kept = {name: each.new_empty(self.room, *each.shape) for name, each in self.source.rows.items()}
        self.place = np.full(len(self.source), -1, np.int64)
        self.used = 0
        self.pace = inf  # the fewest seconds that a sample took
        self.lock = threading.Lock()
        self.thread: ThreadPoolExecutor | None = None
        self.coming: dict[bytes, Future[Batch]] = {}

    def take(self, which: Ints) -> Batch:
        """These samples, kept or read."""
        coming = self.coming.pop(which.tobytes(), None) if self.coming else None
        return self._gathered(which) if coming is None or coming.cancel() else coming.result()

    def expect(self, which: Ints) -> None:
        """Start to read these in the thread if that takes long enough; of what nobody takes the oldest is forgotten."""
        absent = np.count_nonzero(self.place[which] < 0)
        if not self.ahead or not absent or self.pace * absent < _WORTH:
            return
        if self.thread is None:
            self.thread = ThreadPoolExecutor(1, "offbeat-read")
        while len(self.coming) >= _AHEAD:
            self.coming.pop(next(iter(self.coming))).cancel()
        self.coming[which.tobytes()] = self.thread.submit(self._gathered, which)

    def _gathered(self, which: Ints) -> Batch:
        with self.lock:
            places = self.place[which]
            absent = np.flatnonzero(places < 0)
            if not len(absent):
                chosen = torch.from_numpy(places)
                return {name: kept.index_select(0, chosen) for name, kept in self.kept.items()}
            found = self._read(which[absent])
            if len(absent) == len(which):
                return found
            present = np.flatnonzero(places >= 0)
            here, there, chosen = (torch.from_numpy(each) for each in (present, absent, places[present]))
            made = {}
            for name, values in found.items():
                rows = values.new_empty(len(which), *values.shape[1:])
                rows.index_copy_(0, here, self.kept[name].index_select(0, chosen))
                made[name] = rows.index_copy_(0, there, values)
            return made

    def _read(self, which: Ints) -> Batch:
        """These samples, each read once even if it comes several times."""
        numbers, back, begin = which, None, time.perf_counter()
        if len(set(which.tolist())) < len(which):
            numbers, back = np.unique(which, return_inverse=True)
        found = self.source.read(numbers)
        self.pace = min(self.pace, (time.perf_counter() - begin) / len(numbers))
        self._keep(numbers, found)
        if back is None:
            return found
        return {name: values.index_select(0, torch.from_numpy(back)) for name, values in found.items()}

    def _keep(self, numbers: Ints, found: Batch) -> None:
        """Keep as many of these as there is room for."""
        count = min(len(numbers), self.room - self.used)
        if count <= 0:
            return
        for name, values in found.items():
            self.kept[name][self.used : self.used + count] = values[:count]
        self.place[numbers[:count]] = np.arange(self.used, self.used + count)
        self.used += count

    def column(self, name: str) -> Tensor:
        """One column of all samples, read once."""
        if name not in self.known:
            given = self.source.column(name)
            if given is None and name in self.source.text:
                given = self.source.texts(name)  # type: ignore[attr-defined]
            if given is None:
                blocks = np.split(np.arange(len(self.source)), range(_CHUNK, len(self.source), _CHUNK))
                self.known[name] = torch.cat([self._gathered(block)[name] for block in blocks])
            else:
                made = as_column(given, name)
                self.known[name], self.words[name] = made.values, made.words or ()
        return self.known[name]

    def __getstate__(self) -> dict[str, Any]:
        """Without what has been read and without the thread: a worker process reads for itself."""
        return {name: vars(self)[name] for name in ("source", "keep", "ahead", "known", "words")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._fresh()


def raw(part: Samples, which: Ints) -> Batch:
    """The columns of numbers of some samples, as they are stored."""
    if isinstance(part, Read):
        return part.cache.source.read(which if part.which is None else part.which[which])
    chosen = torch.from_numpy(which)
    return {name: part[name].index_select(0, chosen) for name in part.names if name not in part.words}


def words(part: Samples, name: str) -> list[str | None]:
    """A column of text as text."""
    numbers = part.column(name).tolist()
    known = part.words[name]
    return [known[number] if number >= 0 else None for number in numbers]


TARGET = ("y", "label", "labels", "target")


def _stack(name: str, values: list[Any], which: Ints) -> Any:
    """One column of some items: a tensor, or a list of text."""
    first = values[0]
    if isinstance(first, str) or first is None:
        return values
    if isinstance(first, Tensor):
        tensors = values
    elif isinstance(first, bool | int | float):
        made = torch.tensor(values)
        return made.double() if made.is_floating_point() else made
    elif hasattr(first, "getbands"):  # a PIL image
        tensors = [pixels(each) for each in values]
    else:
        arrays = [np.asarray(each) for each in values]
        if arrays[0].dtype.kind not in "biuf":
            raise DataError(f"{name!r} of sample {which[0]} is a {type(first).__name__}, neither numbers nor text")
        tensors = [tensor(each) for each in arrays]
    try:
        return torch.stack(tensors).detach()
    except RuntimeError:
        for number, each in zip(which, tensors, strict=True):
            if each.shape != tensors[0].shape:
                raise _unlike(name, int(number), each, tensors[0]) from None
        raise


def _unlike(name: str, number: int, value: Tensor, other: Tensor) -> DataError:
    return DataError(
        f"{name!r} of sample {number} is {list(value.shape)}, and of others {list(other.shape)}; make them equal where "
        f"they are read, or pad them with `collate`"
    )


def _kind(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")


def _said(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
