"""A data set, samples to train on and to test on, from anything that users may have.

What is what:

    an array or tensor              the column x
    (x, y)                          two arrays or lists of numbers; or a table and an array or series
    columns by name                 a mapping of arrays, a table of pandas, polars or Arrow, a HuggingFace data set,
                                    a Parquet or CSV file
    anything with len() and [i]     read when needed: each item a pair, a tuple or a mapping
    (train, test)                   two of anything else, or a mapping with the keys train and test
    one data set for each client    any other mapping of data sets
    a folder                        images, one sub-folder for each class

The target is the column that is named, else y, label, labels or target. Inputs are those named, else those that the
model's `forward` names, else all other columns of numbers; single numbers are put together as x [n, columns].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offbeat.core.errors import DataError, OffbeatError, SettingError
from offbeat.core.random import SHARE, key
from offbeat.data import readers
from offbeat.data.base import Dataset
from offbeat.data.folder import NAMES
from offbeat.data.images import split_folder
from offbeat.data.lazy import Read
from offbeat.data.recognise import is_array, is_columns, is_listed, matrix, samples
from offbeat.data.samples import Samples, Stored, missing

TARGETS = ("y", "label", "labels", "target")
_TESTS = ("test", "validation", "valid", "val", "dev")
_HOLDOUT = 0.2
_IGNORED = -100  # a class that does not count, as in torch and HuggingFace's models


class ByClient(dict[str, Any]):
    """One data set for each client, even where it could be taken for the columns of one, or for train and test."""


def dataset(
    given: Any,
    *,
    test: Any = None,
    target: str | None = None,
    inputs: str | Sequence[str] | None = None,
    client: str | None = None,
    classes: int | None = None,
    name: str = "data",
    holdout: float | None = None,
    forward: Sequence[str] = (),
    aside: Sequence[str] = (),
    free: bool = False,
    whole: bool = True,
) -> Dataset:
    """Samples to train on and to test on.

    test: samples to test on; None: a share `holdout` of the given ones, by default 0.2, always the same, and of
    every client.
    target, inputs: columns; see above.   client: a column that says whose each sample is.   classes: how many, if the
    target is one; None: one more than the largest.
    forward: the names of what the model takes.   aside: columns that are for something else.   free: there need not be
    a target.   whole: whether a target of whole numbers is a class.
    """
    if isinstance(given, str) and given in NAMES:
        given = readers.load(given)
    if isinstance(given, Dataset):
        _none_held_out(holdout)
        return _changed(given, test, target, inputs, client, classes)
    train, tested, owners = parts(given, test)
    owner, test_owner = (_numbers(each) for each in owners) if owners else (None, None)
    if not len(train):
        raise DataError("the training set is empty")
    if isinstance(train, Stored) and isinstance(tested, Stored):
        train, tested = _same_words(train, tested)
    target = _target(train, target, inputs, free)
    chosen = _inputs(train, inputs, target, {*aside, *([client] if client else [])}, forward)
    if target is None:
        target = chosen[0]
    clients, sizes = (given, owners) if owners else ((), [[], []])
    left: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    grouped: tuple[str, ...] = ()
    if inputs is None:
        left = _left(train, {*chosen, target, client, *aside}, clients, sizes[0])
        notes = _counts(train, chosen, max(1, len(sizes[0])))
    train, tested = _targeted(train, target, chosen), tested and _targeted(tested, target, chosen)
    if isinstance(train, Stored) and target in train.masks and target in chosen:
        target = "labels"
    if isinstance(train, Stored) and _together(train, chosen, forward):
        said = ("training ", "test ") if tested else ("", "")
        _finite(train, chosen, said[0], clients, sizes[0])  # while the columns still have the user's names
        _finite(tested, chosen, said[1], clients, sizes[1])
        train, tested = _grouped(train, chosen), tested and _grouped(tested, chosen)
        chosen, grouped = ("x",), chosen
    if tested is not None:
        _none_held_out(holdout)
    else:
        # Here a sample still has the number that the user knows.
        _finite(train, (*chosen, target), "", clients, sizes[0], target)
        whose = _codes(train, client) if owner is None and client else owner
        kept, held = _held_out(len(train), whose, _HOLDOUT if holdout is None else holdout)
        train, tested = train.part(kept), train.part(held)
        owner, test_owner = (None, None) if owner is None else (owner[kept], owner[held])
    if not len(tested):
        raise DataError("the test set is empty; give samples to test on, or leave `test` out and give a `holdout`")
    if classes is None and whole and not train.real(target):
        classes = _classes(train, tested, target)
    found = Dataset(name, train, tested, classes, _ints(owner), _ints(test_owner), chosen, target)
    found = replace(found, grouped=grouped, left=left, notes=notes)
    if owners:
        found = replace(found, owners=tuple(given))
    return found.owned(client) if client else found


# Training and test samples, and clients


def parts(given: Any, test: Any) -> tuple[Samples, Samples | None, list[list[int]]]:
    """(training samples, test samples, [sizes of the clients, sizes of their test samples])."""
    if isinstance(given, Mapping):
        other = _is_split(given) or is_columns(given) or _is_bunch(given)
        if isinstance(given, ByClient) or not other:
            return _clients(given, test)
    train, tested = _pair(given)
    if test is not None:
        tested = samples(test)
    return train, tested, []


def _is_split(given: Any) -> bool:
    return isinstance(given, Mapping) and "train" in given and not is_columns(given)


def _is_bunch(given: Mapping[Any, Any]) -> bool:
    """scikit-learn's data sets."""
    return {"data", "target", "DESCR"} <= set(given)


def _pair(given: Any) -> tuple[Samples, Samples | None]:
    if isinstance(given, str | Path) and (found := split_folder(Path(given))):
        return samples(found[0]), samples(found[1])
    if _is_split(given):
        tests = [given[key] for key in _TESTS if key in given]
        return samples(given["train"]), samples(tests[0]) if tests else None
    if isinstance(given, Mapping) and _is_bunch(given):
        return samples((given["data"], given["target"])), None
    if isinstance(given, tuple) and len(given) == 2 and not (is_array(given[1]) or is_listed(given)):
        return samples(given[0]), samples(given[1])
    return samples(given), None


def _clients(given: Mapping[Any, Any], test: Any) -> tuple[Samples, Samples | None, list[list[int]]]:
    if not given:
        raise DataError("no clients: the mapping of data sets is empty")
    parts: dict[Any, tuple[Samples, Samples | None]] = {}
    for client, each in given.items():
        try:
            parts[client] = _pair(each)
        except OffbeatError as error:
            raise DataError(f"client {client!r}: {error}") from error
        if not len(parts[client][0]):
            raise DataError(f"client {client!r} has no samples; leave it out")
    if isinstance(test, Mapping) and set(test) == set(given):
        tests = [samples(test[client]) for client in given]
    elif test is None and all(tested is not None for _, tested in parts.values()):
        tests = [tested for _, tested in parts.values() if tested is not None]
    elif any(tested is not None for _, tested in parts.values()):
        raise DataError("some clients have test samples of their own and others do not; give them for all, or none")
    else:
        tests = []
    train = _joined([train for train, _ in parts.values()], list(given))
    sizes = [[len(each) for each, _ in parts.values()], [len(each) for each in tests]]
    if tests:
        return train, _joined(tests, list(given)), sizes
    return train, None if test is None else samples(test), sizes


def _joined(parts: Sequence[Samples], clients: Sequence[Any]) -> Samples:
    """One client's samples after the other's."""
    parts = _widened(parts)
    names = parts[0].names
    for part, client in zip(parts, clients, strict=True):
        if set(part.names) != set(names):
            raise DataError(
                f"client {client!r} has the columns {', '.join(part.names)}, and {clients[0]!r} has "
                f"{', '.join(names)}; give all clients the same"
            )
        for name in names:
            if part.shape(name) != parts[0].shape(name):
                raise DataError(
                    f"{name!r} is {list(part.shape(name))} a sample for client {client!r}, and "
                    f"{list(parts[0].shape(name))} for {clients[0]!r}; give all clients the same"
                )
    if not all(isinstance(part, Stored) for part in parts):
        return Read.joined(parts)
    kept = [part for part in parts if isinstance(part, Stored)]
    words = {name: tuple(sorted({w for p in kept for w in p.words.get(name, ())})) for name in kept[0].words}
    kept = [_recoded(part, words) for part in kept]
    columns = {name: torch.cat([part.columns[name] for part in kept]) for name in names}
    return kept[0].with_columns(columns)


def _widened(parts: Sequence[Samples]) -> list[Samples]:
    """The same with lists that were padded, each client's to its own longest, padded to the longest of all."""
    kept = [part for part in parts if isinstance(part, Stored)]
    masks = {name: mask for part in kept for name, mask in part.masks.items()}
    if not masks or len(kept) < len(parts):
        return list(parts)
    made: list[Samples] = []
    for part in kept:
        columns = dict(part.columns)
        for name, mask in masks.items():
            part.has(name)
            most = max(each.shape(name)[0] for each in kept if name in each.names)
            own = columns[name].shape[1]
            columns[mask] = _wider(columns.get(mask, torch.ones(len(part), own, dtype=torch.bool)), most)
            columns[name] = _wider(columns[name], most)
        wide = part.with_columns(columns)
        wide.masks = masks
        made.append(wide)
    return made


def _wider(values: Tensor, most: int) -> Tensor:
    return torch.cat([values, values.new_zeros(len(values), most - values.shape[1], *values.shape[2:])], 1)


def _same_words(train: Stored, test: Stored) -> tuple[Stored, Stored]:
    """Both with the same numbers for the same words."""
    both = {name: {*train.words[name], *test.words[name]} for name in train.words if name in test.words}
    words = {name: tuple(sorted(each)) for name, each in both.items()}
    return _recoded(train, words), _recoded(test, words)


def _recoded(part: Stored, words: Mapping[str, tuple[str, ...]]) -> Stored:
    changed = {name: each for name, each in words.items() if part.words[name] != each}
    columns = dict(part.columns)
    for name, each in changed.items():
        numbers = torch.tensor([*(each.index(word) for word in part.words[name]), -1])
        columns[name] = numbers[part.columns[name]]  # −1, a missing one, is the last
    found = part.with_columns(columns)
    found.words |= changed
    return found


def _none_held_out(share: float | None) -> None:
    """Refuse a share to be held out where it would have no effect."""
    if share is not None:
        raise SettingError(f"holdout = {share}: the data have test samples of their own; leave it out")


def _held_out(count: int, owner: npt.NDArray[np.int64] | None, share: float) -> tuple[Any, Any]:
    """(samples to train on, samples to test on), which differ from run to run in nothing."""
    if not 0 < share < 1:
        raise SettingError(f"holdout = {share}: must be a share in (0, 1), unless there are samples to test on")
    if count < 2:
        raise DataError("one sample cannot be trained on and tested on; give more, or samples to test on")
    order = np.random.default_rng(key(0, SHARE)).permutation(count)
    held = np.zeros(count, bool)
    for members in [order] if owner is None else [order[owner[order] == each] for each in np.unique(owner)]:
        held[members[: min(round(share * len(members)), len(members) - 1)]] = True
    if not held.any():
        held[order[0]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def _finite(
    given: Samples | None,
    names: Iterable[str],
    said: str,
    clients: Iterable[Any],
    sizes: Sequence[int],
    target: str = "",
) -> None:
    """clients, sizes: whose samples they are, one client's after the other's; no sizes: one owner's."""
    if not isinstance(given, Stored):
        return
    for name in names:
        if (found := given.not_finite(name)) is None:
            continue
        place, count = found
        unknown = ', or write -100 for a label that is unknown (loss "bce")' if name == target else ""
        raise missing(name, f"{said}{_sample(place, clients, sizes)}", count, unknown)


def _sample(place: int, clients: Iterable[Any], sizes: Sequence[int]) -> str:
    """A sample as the user knows it."""
    for client, size in zip(clients, sizes, strict=False):
        if place < size:
            return f"sample {place} of client {client!r}"
        place -= size
    return f"sample {place}"


def _codes(train: Samples, name: str) -> npt.NDArray[np.int64]:
    train.has(name)
    return np.unique(train.column(name), return_inverse=True)[1]


def _numbers(sizes: Sequence[int]) -> npt.NDArray[np.int64] | None:
    return np.repeat(np.arange(len(sizes)), sizes) if sizes else None


def _ints(owner: npt.NDArray[np.int64] | None) -> Tensor | None:
    return None if owner is None else torch.from_numpy(owner)


# Which column is what


def _target(train: Samples, target: str | None, inputs: Any, free: bool) -> str | None:
    if target is not None:
        train.has(target)
        return target
    named = [inputs] if isinstance(inputs, str) else list(inputs or ())
    for name in TARGETS:
        if name in train.names and name not in named:
            return name
    if free:
        return None
    raise DataError(f"which column is the target? name it, target=…; there are {', '.join(train.names)}")


def _inputs(
    train: Samples, inputs: str | Sequence[str] | None, target: str | None, aside: set[str], forward: Sequence[str]
) -> tuple[str, ...]:
    if inputs is not None:
        named = (inputs,) if isinstance(inputs, str) else tuple(inputs)
        train.has(*named)
        for name in named:
            if name == target and not train.shape(name):
                raise DataError(f"{name!r} is the target; take it out of the inputs")
            if name in train.words:
                raise DataError(f"{name!r} is text; make numbers of it before, or leave it out of the inputs")
        if not named:
            raise SettingError("inputs = []: a model needs at least one column")
        return named
    masks = set(train.masks.values()) if isinstance(train, Stored) else set()
    both = target in forward and target not in TARGETS  # such as the tokens of a text, each the target of those before
    left = [n for n in train.names if (n != target or both) and n not in aside and n not in train.words]
    by_name = [name for name in forward if name in left]
    if by_name and (len(by_name) > 1 or train.shape(by_name[0]) or not train.real(by_name[0])):
        return tuple(by_name)
    left = [name for name in left if name not in masks]
    if not left and target is not None and train.shape(target):
        return (target,)
    if not left:
        said = ", ".join(train.words) or "none"
        raise DataError(f"no numeric column to use as input; columns of text: {said}; convert them to numbers first")
    return tuple(left)


def _left(train: Samples, used: set[str | None], clients: Iterable[Any], sizes: Sequence[int]) -> dict[str, str]:
    """Columns that nothing uses because they are no numbers: name -> what they are."""
    found = {name: why.partition(";")[0] for name, why in train.left.items() if name not in used}
    for name, words in train.words.items():
        if name in used:
            continue
        found[name] = f"{name!r} is text"
        some = words[:: 1 + len(words) // 1000]
        if 2 * sum(map(_is_number, some)) > len(some):
            wrong = [number for number, word in enumerate(words) if not _is_number(word)]
            place = int(np.isin(train.column(name), wrong).argmax())
            word = words[int(train.column(name)[place])]
            found[name] += f", because of values such as {word!r} in {_sample(place, clients, sizes)}"
    return found


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _counts(train: Samples, chosen: Sequence[str], files: int) -> tuple[str, ...]:
    """What to say of columns without a name that number the samples of each file, as pandas writes them."""
    found = []
    for name in chosen if isinstance(train, Stored) else ():
        values = train[name]
        unnamed = not name or name.startswith("Unnamed: ") or name == "__index_level_0__"
        if unnamed and values.dtype == torch.int64 and values.dim() == 1 and int((values.diff() != 1).sum()) < files:
            found.append(f"the column {name!r} only counts the samples, and is an input; leave it out of the data")
    return tuple(found)


def _together(train: Stored, chosen: Sequence[str], forward: Sequence[str]) -> bool:
    """Whether inputs are single numbers that the model does not name."""
    if any(train.shape(name) for name in chosen):
        return False
    if len(chosen) == 1:
        return train.real(chosen[0]) or chosen[0] not in forward
    return not set(chosen) <= set(forward)


def _grouped(part: Samples, chosen: Sequence[str]) -> Samples:
    if not isinstance(part, Stored):
        raise DataError(f"{', '.join(chosen)} are columns of a table, and the other samples are read when needed")
    part.has(*chosen)
    others = {name: column for name, column in part.columns.items() if name not in chosen}
    if "x" in others:
        raise DataError("a column 'x' is no input: the inputs put together are called x; rename it")
    return part.with_columns({"x": matrix(part, chosen), **others})


def _targeted(part: Samples, target: str, chosen: Sequence[str]) -> Samples:
    """The same with a target as losses take it: bytes are whole numbers, and padding does not count."""
    part.has(target)
    if isinstance(part, Read):
        return part.as_target(target)
    if not isinstance(part, Stored):
        return part
    values = part.columns[target]
    columns = dict(part.columns)
    if values.dtype == torch.bool:
        columns[target] = values.long()
    mask = part.masks.get(target)
    if mask is not None and not values.is_floating_point():
        columns["labels" if target in chosen else target] = torch.where(part.columns[mask], values.long(), _IGNORED)
    found = part.with_columns(columns)
    if target not in chosen:
        found.scales.pop(target, None)
    return found


def _classes(train: Samples, test: Samples, target: str) -> int | None:
    values = [each.column(target) for each in (train, test)]
    return max(int(each.max()) for each in values) + 1


def _changed(
    data: Dataset, test: Any, target: str | None, inputs: Any, client: str | None, classes: int | None
) -> Dataset:
    """A data set with some of it said anew."""
    new: dict[str, Any] = {}
    if test is not None:
        new |= {"test": samples(test), "test_owner": None}
    if target is not None:
        new["target"] = target
    if inputs is not None:
        new["inputs"] = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    if classes is not None:
        new["classes"] = classes
    found = replace(data, **new, _made={}) if new else data
    return found.owned(client) if client else found
