"""One column of a data set from whatever holds it: numbers as they are, text as numbers, lists padded to one length."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from offbeat.core.errors import DataError
from offbeat.data.samples import Stored

Array = npt.NDArray[Any]
PIXEL = 1 / 255  # the scale of bytes that are pixels


class Column(NamedTuple):
    """Values of all samples [n, …]. words: what the numbers of a column of text stand for; −1 is a missing one.
    inside: which places of lists that were padded are their own, [n, places]."""

    values: Tensor
    words: tuple[str, ...] | None = None
    inside: Tensor | None = None


def stored(columns: Mapping[str, Any]) -> Stored:
    """Samples in memory. Bytes of two or more dimensions are pixels, from 0 to 1."""
    made = {name: column(values, name) for name, values in columns.items()}
    values = {name: each.values for name, each in made.items()}
    scales = {n: PIXEL for n, each in values.items() if each.dtype == torch.uint8 and each.dim() > 1}
    words = {name: each.words for name, each in made.items() if each.words is not None}
    masks: dict[str, str] = {}
    inside = {name: each.inside for name, each in made.items() if each.inside is not None}
    for name, places in inside.items():
        same = [other for other, mask in masks.items() if torch.equal(values[mask], places)]
        masks[name] = masks[same[0]] if same else "mask" if "mask" not in values else f"{name}_mask"
        values[masks[name]] = places
    return Stored(values, scales, words, masks)


def default_names(count: int) -> tuple[str, ...]:
    """Of the columns of tuples: x; x, y; x1, x2, y; …"""
    inputs = ("x",) if count <= 2 else tuple(f"x{at + 1}" for at in range(count - 1))
    return inputs if count == 1 else (*inputs, "y")


def column(given: Any, name: str) -> Column:
    """A tensor, an array, a series of pandas, polars or Arrow, or a list."""
    if isinstance(given, Tensor):
        return Column(_tensor(given, name))
    module = type(given).__module__.partition(".")[0]
    if module in ("pandas", "polars", "pyarrow"):
        return arrow(_as_arrow(given, name), name)
    if isinstance(given, list | tuple):
        if given and isinstance(given[0], Tensor) and given[0].dim() == 0:
            return Column(_tensor(torch.stack(list(given)), name))
        given = _listed(given)
    return array(np.asarray(given), name)


def array(values: Array, name: str) -> Column:
    """A column of an array; one of objects holds text or lists."""
    if values.ndim == 0:
        raise DataError(f"{name!r} is {values[()]!r}; a column has a value for each sample")
    if values.dtype.kind in "US":
        return text(values.astype(str).tolist())
    if values.dtype.kind == "O":
        return _objects(list(values), name)
    if values.dtype.kind not in "biuf":
        raise DataError(f"{name!r} is {values.dtype}, which a model cannot take; convert it to numbers")
    return Column(tensor(values))


def tensor(values: Array) -> Tensor:
    """The same numbers, without a copy where torch knows their type."""
    if values.dtype.kind == "u" and values.dtype.itemsize > 1:
        values = values.astype(np.int64)
    elif values.dtype == np.longdouble:
        values = values.astype(np.float64)
    values = np.asarray(values, values.dtype.newbyteorder("="), order="C")  # a number stays one
    with warnings.catch_warnings():  # torch would warn of arrays that cannot be written to: nobody writes
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(values)


def text(values: list[str | None]) -> Column:
    """Text as numbers, in sorted order."""
    words = sorted({value for value in values if value is not None})
    numbers = {word: number for number, word in enumerate(words)}
    coded = np.fromiter((-1 if v is None else numbers[v] for v in values), np.int64, len(values))
    return Column(torch.from_numpy(coded), tuple(words))


def arrow(given: Any, name: str) -> Column:
    """A column of an Arrow table."""
    import pyarrow as pa

    types = pa.types
    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
        given = pa.concat_arrays(given.chunks) if isinstance(given, pa.ChunkedArray) else given
    if isinstance(given, pa.ExtensionArray):
        given = given.storage
    if types.is_dictionary(given.type):
        given = given.dictionary_decode()
    kind = given.type
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return text(given.to_pylist())
    if types.is_boolean(kind) and given.null_count:
        given = given.cast(pa.int8())
    if types.is_decimal(kind):
        given = given.cast(pa.float64())
    if types.is_boolean(kind) or types.is_integer(given.type) or types.is_floating(given.type):
        return Column(tensor(given.to_numpy(zero_copy_only=False)))  # what is missing is nan
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _lists(given, name)
    if types.is_date(kind) or types.is_timestamp(kind):
        raise DataError(f"{name!r} is a date; make numbers of it, or leave it out")
    raise DataError(f"{name!r} is {kind}, neither numbers nor text; convert it, or leave it out")


def _lists(given: Any, name: str) -> Column:
    """Lists of lists, and so on, of numbers."""
    import pyarrow.compute as pc

    if given.null_count:
        missing = int(np.flatnonzero(given.is_null().to_numpy(zero_copy_only=False))[0])
        raise DataError(f"{name!r}: sample {missing} is missing; fill it in or leave it out")
    lengths = pc.list_value_length(given).to_numpy(zero_copy_only=False)
    inner = arrow(given.flatten(), name)
    if inner.words is not None or inner.inside is not None:
        raise DataError(f"{name!r} holds {given.type}; make numbers of one shape of it")
    return _padded(inner.values, lengths)


def _padded(values: Tensor, lengths: Array) -> Column:
    """Values [all places, …], one list after the other, as [n, the most places, …]."""
    most = int(lengths.max(initial=0))
    if (lengths == most).all():
        return Column(values.view(len(lengths), most, *values.shape[1:]))
    inside = torch.from_numpy(np.arange(most) < lengths[:, None])
    padded = values.new_zeros(len(lengths), most, *values.shape[1:])
    padded[inside] = values
    return Column(padded, None, inside)


def _listed(given: Any) -> Array:
    """A list as an array; of lists that differ in length, one of objects."""
    try:
        return np.asarray(given)
    except ValueError:
        found = np.empty(len(given), dtype=object)
        found[:] = [np.asarray(each) for each in given]
        return found


def _objects(values: list[Any], name: str) -> Column:
    if all(value is None or isinstance(value, str) for value in values):
        return text(values)
    if all(isinstance(value, list | tuple | np.ndarray | Tensor) for value in values):
        inner = [np.asarray(value) for value in values]
        empty = next((at for at, each in enumerate(inner) if each.size == 0), None)
        if empty is not None:
            raise DataError(f"{name!r}: sample {empty} is an empty list; leave it out")
        if all(each.ndim and each.dtype.kind in "biuf" and each.shape[1:] == inner[0].shape[1:] for each in inner):
            return _padded(tensor(np.concatenate(inner)), np.array([len(each) for each in inner]))
    kinds = ", ".join(sorted({type(value).__name__ for value in values}))
    raise DataError(f"{name!r} holds objects ({kinds}), neither numbers nor text; convert it, or leave it out")


def _tensor(given: Tensor, name: str) -> Tensor:
    if given.dim() == 0:
        raise DataError(f"{name!r} is {given.item()!r}; a column has a value for each sample")
    if given.is_complex():
        raise DataError(f"{name!r} is {str(given.dtype).removeprefix('torch.')}; give its parts as two columns")
    unsigned = given.dtype in (torch.uint16, torch.uint32, torch.uint64)
    return given.detach().cpu().long() if unsigned else given.detach().cpu()


def _as_arrow(given: Any, name: str) -> Any:
    import pyarrow as pa

    if hasattr(given, "to_arrow"):  # polars
        return given.to_arrow()
    if isinstance(given, pa.Array | pa.ChunkedArray):
        return given
    try:
        return pa.Array.from_pandas(given)
    except pa.ArrowException as error:
        raise DataError(f"{name!r} cannot be converted: {str(error).splitlines()[0]}") from error
