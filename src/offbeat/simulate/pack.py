"""Problems on their way to other processes: bytes, and their large arrays apart.

Arrays are told apart by where they lie in memory, so several problems on one data set carry it once. Classes that a
script defines itself travel by value, all others by name.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from offbeat.core.vectors import Payload, materialise

Bytes = npt.NDArray[np.uint8]
Arrays = Mapping[str, Any]  # vectors by name as arrays, and numbers

_LARGE = 1 << 16  # bytes from which on an array goes apart


def _apart(thing: Any, put: Callable[[Bytes], int]) -> tuple[int, str, tuple[int, ...], bool] | None:
    """Where a large array is found again; None: it goes with the rest."""
    array = thing
    if tensor := type(thing) is torch.Tensor:
        if thing.device.type != "cpu" or thing.requires_grad or not thing.is_contiguous():
            return None
        try:
            array = thing.numpy()
        except (RuntimeError, TypeError):  # a kind of tensor that numpy does not know
            return None
    elif type(thing) is not np.ndarray:
        return None
    if array.nbytes < _LARGE or array.dtype.hasobject or not array.flags.c_contiguous:
        return None
    return put(array.reshape(-1).view(np.uint8)), array.dtype.str, array.shape, tensor


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, get: Callable[[int], Bytes]) -> None:
        super().__init__(file)
        self.get = get

    def persistent_load(self, reference: tuple[int, str, tuple[int, ...], bool]) -> Any:
        number, kind, shape, tensor = reference
        array = self.get(number).view(kind).reshape(shape)
        return _tensor(array) if tensor else array


def pack(thing: Any, put: Callable[[Bytes], int]) -> bytes:
    """Anything as bytes; put: takes a large array and gives the number under which it is found again."""
    from cloudpickle import Pickler  # studies run without it

    class Packer(Pickler):  # type: ignore[misc]
        def persistent_id(self, thing: Any) -> Any:
            return _apart(thing, put)

    file = io.BytesIO()
    Packer(file, protocol=5).dump(thing)
    return file.getvalue()


def unpack(packed: bytes, get: Callable[[int], Bytes]) -> Any:
    """What was packed; get: the array of a number."""
    return _Unpacker(io.BytesIO(packed), get).load()


class Blobs:
    """Large arrays kept apart, each once. keep: takes an array and gives where it is kept."""

    def __init__(self, keep: Callable[[Bytes], Any]) -> None:
        self.keep = keep
        self.numbers: dict[tuple[int, int], int] = {}  # (address, bytes) -> number
        self.kept: list[tuple[Bytes, Any]] = []  # the array is kept, so that its address stays its own

    def put(self, array: Bytes) -> int:
        """The number of this array."""
        where = (array.ctypes.data, array.nbytes)
        if where not in self.numbers:
            self.numbers[where] = len(self.kept)
            self.kept.append((array, self.keep(array)))
        return self.numbers[where]


def arrays(vectors: Payload) -> Arrays:
    """Vectors as they travel."""
    return {name: v if isinstance(v, float) else materialise(v).detach().numpy() for name, v in vectors.items()}


def tensors(given: Arrays) -> Payload:
    """Vectors that have arrived."""
    found: dict[str, Any] = {name: v if isinstance(v, float) else _tensor(v) for name, v in given.items()}
    return found


def _tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    with warnings.catch_warnings():  # that nobody may write to it: nobody does
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)
