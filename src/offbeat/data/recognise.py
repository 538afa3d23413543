"""One data set, whatever it comes as, as samples: arrays, columns, tables, files, or anything with len() and [i]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.core.errors import DataError, SettingError
from offbeat.data.columns import arrow, default_names, stored
from offbeat.data.images import Images
from offbeat.data.lazy import Collate, Read
from offbeat.data.samples import Samples, Stored

KEEP = 1 << 30  # bytes of samples that are read when needed


def samples(
    given: Any, *, names: Sequence[str] | None = None, keep: int = KEEP, collate: Collate | None = None
) -> Samples:
    """One data set as samples.

    names: of the columns, where they come without.   keep: bytes of samples held that are read when needed.
    collate: from a list of items to columns by name, for items that cannot be stacked as they are.
    """
    if isinstance(given, Samples):
        return given
    if isinstance(given, str | Path):
        given = _file(Path(given))
    if hasattr(given, "toarray"):  # a sparse matrix
        given = given.toarray()
    table = _table(given, keep) if collate is None else None
    if table is not None:
        return _of_table(table)
    if is_array(given):
        return _named({"x": given}, names)
    two = isinstance(given, tuple | list) and len(given) == 2 and not _is_item(given[0])
    if two and (is_array(given[1]) or is_listed(given)):
        x, y = given
        first = _table(x, keep)
        return _named({"x": x if first is None else matrix(_of_table(first)), "y": y}, names)
    if isinstance(given, tuple) and given and all(is_array(each) for each in given):
        raise DataError(
            f"{len(given)} arrays; give (x, y), ((x, y), (x, y)) to train and to test on, or name the columns"
        )
    tensors = _tensors(given) if collate is None else None
    if tensors is not None:
        return _named(dict(zip(names or default_names(len(tensors)), tensors, strict=False)), names)
    if isinstance(given, Mapping) and is_columns(given):
        return stored(given)
    if not hasattr(given, "__getitem__") or not hasattr(given, "__len__") or isinstance(given, Mapping):
        raise _not_samples(given)
    try:
        len(given)
    except (TypeError, NotImplementedError):
        raise _not_samples(given) from None
    return Read(given, names=names, keep=keep, collate=collate)


def is_array(given: Any) -> bool:
    """Whether it is one column: a tensor, an array, or a series."""
    return isinstance(given, Tensor | np.ndarray) or type(given).__name__ in ("Series", "ChunkedArray")


def is_listed(given: Sequence[Any]) -> bool:
    """Whether two things are samples and a list of their targets, which are numbers."""
    listed = isinstance(given, tuple) and isinstance(given[1], list) and bool(given[1])
    return listed and all(isinstance(each, int | float | np.number) for each in given[1])


def _is_item(given: Any) -> bool:
    """Whether it is a value of one sample, such as a number."""
    return isinstance(given, int | float | str | np.generic) or (isinstance(given, Tensor) and given.dim() == 0)


def is_columns(given: Mapping[Any, Any]) -> bool:
    """Whether the values of a mapping are columns, rather than data sets."""

    def is_one(value: Any) -> bool:
        if isinstance(value, list | tuple):
            return len(value) > 0 and not isinstance(value[0], tuple | Mapping) and not _is_pair(value)
        return is_array(value)

    if any(isinstance(value, Tensor | np.ndarray) for value in given.values()):
        return not any(_is_pair(value) or _is_table(value) for value in given.values())
    return bool(given) and all(is_one(value) for value in given.values())


def _is_pair(value: Sequence[Any]) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and is_array(value[1])


def _is_table(given: Any) -> bool:
    """Whether it is a data frame, an Arrow table or a HuggingFace data set."""
    module, kind = type(given).__module__.partition(".")[0], type(given).__name__
    return (module, kind) in {
        ("pandas", "DataFrame"),
        ("polars", "DataFrame"),
        ("polars", "LazyFrame"),
        ("pyarrow", "Table"),
        ("pyarrow", "RecordBatch"),
        ("datasets", "Dataset"),
    }


def _table(given: Any, keep: int) -> Any:
    """The same as an Arrow table, if it is a table that can be in memory."""
    if not _is_table(given):
        return None
    import pyarrow as pa

    module, kind = type(given).__module__.partition(".")[0], type(given).__name__
    if module == "pyarrow":
        return pa.Table.from_batches([given]) if kind == "RecordBatch" else given
    if module == "polars":
        return (given.collect() if kind == "LazyFrame" else given).to_arrow()
    if module == "datasets":
        decoded = any(type(feature).__name__ in ("Image", "Audio", "Video") for feature in given.features.values())
        if decoded or given.data.nbytes > keep:
            return None
        return given.with_format("arrow")[:]
    try:
        return pa.Table.from_pandas(given, preserve_index=False)
    except (pa.ArrowException, ValueError, TypeError) as error:
        said = " ".join(str(part) for part in error.args).splitlines()[0]
        raise DataError(f"the table cannot be read: {said}; convert the column, or leave it out") from error


def _of_table(table: Any) -> Stored:
    """Columns that are neither numbers nor text are left out."""
    if len(set(table.column_names)) < table.num_columns:
        twice = next(name for name in table.column_names if table.column_names.count(name) > 1)
        raise DataError(f"the table has two columns {twice!r}; rename one")
    columns, left = {}, {}
    for name in table.column_names:
        try:
            arrow(table.column(name).slice(0, 1), name)
        except DataError as error:
            left[name] = str(error)
        else:
            columns[name] = table.column(name)
    if not columns:
        raise DataError(next(iter(left.values())) if left else "there is no column")
    found = stored(columns)
    found.left = left
    return found


def _named(columns: Mapping[str, Any], names: Sequence[str] | None) -> Stored:
    if names is not None and len(names) != len(columns):
        raise SettingError(f"names = {list(names)}: there are {len(columns)} columns")
    return stored(dict(zip(names or columns, columns.values(), strict=True)))


def _tensors(given: Any) -> Sequence[Tensor] | None:
    """The tensors of a TensorDataset, or of a part of one."""
    kind = type(given)
    if kind is torch.utils.data.TensorDataset:
        found: Sequence[Tensor] = given.tensors
        return found
    if kind is torch.utils.data.Subset:
        inner = _tensors(given.dataset)
        return None if inner is None else [each[torch.as_tensor(given.indices)] for each in inner]
    return None


def _file(path: Path) -> Any:
    """A table, or a folder of images."""
    if path.is_dir():
        return Images(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file or folder")
    name = path.name.lower()
    try:
        if name.endswith((".parquet", ".pq")):
            import pyarrow.parquet

            return _rows(pyarrow.parquet.read_table(path), path)
        if name.endswith((".csv", ".csv.gz")):
            import pyarrow.csv

            return _rows(_separated(pyarrow.csv.read_csv(path), path), path)
    except (OSError, ValueError) as error:  # what Arrow raises is one of them
        remedy = "; are its columns separated by commas?" if "Expected 1 columns" in str(error) else ""
        raise DataError(f"{path} cannot be read: {str(error).splitlines()[0]}{remedy}") from error
    raise DataError(f"{path}: expected a .parquet or .csv file, or a folder with a folder of images for each class")


def _separated(table: Any, path: Path) -> Any:
    (first, *others) = table.column_names
    if not others and (found := next((mark for mark in (";", "\t", "|") if mark in first), "")):
        raise DataError(f"{path} has one column, {first!r}: columns are separated by commas, not by {found!r}")
    return table


def _rows(table: Any, path: Path) -> Any:
    if not table.num_rows:
        raise DataError(f"{path} has no rows")
    return table


def _not_samples(given: Any) -> DataError:
    kind = type(given).__name__
    if isinstance(given, torch.utils.data.DataLoader):
        return DataError("a DataLoader can only be gone through; give its data set, .dataset")
    if hasattr(given, "__iter__") and not isinstance(given, Mapping | str | bytes):
        return DataError(
            f"a {kind} can only be gone through; give a map-style data set, with len() and [i], or list(…) of it"
        )
    return DataError(
        f"a {kind} is not a data set; pass arrays, (x, y), columns by name, a table, or anything with len() and [i]"
    )


def matrix(part: Stored, names: Sequence[str] | None = None) -> Tensor:
    """Columns of single numbers side by side, [n, columns]."""
    names = names or [name for name in part.names if not part.shape(name) and name not in part.words]
    return torch.stack([part.columns[name].float() for name in names], 1)
