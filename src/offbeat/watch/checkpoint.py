"""Saving a world and restoring it, bit for bit.

A checkpoint is one safetensors file: the tensors, and in its header the JSON that says where they go. It is written to
a side file, forced to disk and renamed, and the one before is kept, so an interrupted or damaged write costs the time
since the older one and nothing else.

A state that is saved often (`Checkpoints`) writes only the tensors that are new, into a file of their own, a segment.
The checkpoint then names the segments that hold its tensors. The newest one and the older one share no segment.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from offbeat.core.errors import FolderError
from offbeat.core.state import State, Tensors, dump, load
from offbeat.watch.files import CHECKPOINT, OLDER_CHECKPOINT, SEGMENTS, segment_name

FORMAT = "offbeat checkpoint 1"
MOST = 16  # segments of a checkpoint, beyond which small ones are written anew as one
S = TypeVar("S", bound=State)
Places = dict[str, tuple[str, str, str]]  # tensor -> (segment, its name there, its digest)


def save(folder: Path, world: State, extra: Any = None) -> None:
    """Write the world (or another state) and `extra`, as JSON, as the folder's newest checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = Tensors()
    with _uncollected():
        text = json.dumps({"world": dump(world, tensors), "extra": extra})
    _write(folder, text, _apart(tensors.table), {})


class Snapshot(NamedTuple):
    """A state as it was: its plain values copied, its tensors as they are, for they are not written to."""

    plain: Any
    extra: str  # JSON
    tensors: dict[str, torch.Tensor]
    identities: dict[str, tuple[torch.Tensor, int]]  # tensor -> (the state's own, how often that was written to)


@dataclass
class _Side:
    """Where the tensors of one of the two checkpoints lie."""

    known: dict[int, tuple[weakref.ref[torch.Tensor], int, tuple[str, str, str]]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)  # segment -> its bytes


class Checkpoints:
    """The checkpoints of a state that is saved again and again: each writes only the tensors that are new.

    `save` does all at once. With `snapshot` in the thread that changes the state and `write` in another, the state may
    change meanwhile. A segment of which less than half is in use, or one of many small ones, is written anew.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sides = [_Side(), _Side()]  # of the checkpoint to be written next, and of the one after it
        self.needed = {name: _segments(folder / name) for name in (CHECKPOINT, OLDER_CHECKPOINT)}
        numbers = [int(path.stem.rsplit("-", 1)[1]) for path in folder.glob(SEGMENTS)]
        self.number = max(numbers, default=-1) + 1

    def save(self, state: State, extra: Any = None) -> int:
        """Write a checkpoint; gives the bytes of the tensors that were new."""
        return self.write(self.snapshot(state, extra)) or 0

    def snapshot(self, state: State, extra: Any = None) -> Snapshot:
        """What `write` needs: the state may change afterwards."""
        tensors = Tensors()
        with _uncollected():
            plain = dump(state, tensors)
        identities = {name: (tensor, _written(tensor)) for name, tensor in tensors.table.items()}
        # one that was written to will be again
        table = {name: tensor.clone() if count else tensor for name, (tensor, count) in identities.items()}
        return Snapshot(plain, json.dumps(extra), table, identities)

    def write(self, snapshot: Snapshot) -> int | None:
        """Write a checkpoint; gives the bytes of the tensors that were new.

        None: a tensor was written to meanwhile, so nothing was saved. The next snapshot copies that one.
        """
        side, segment = self.sides[0], segment_name(self.number)
        places = self._places(side, snapshot)
        new = _apart({name: tensor for name, tensor in snapshot.tensors.items() if name not in places})
        self.number += 1
        try:
            if new:
                places |= {name: (segment, name, _digest("", {"": tensor})) for name, tensor in new.items()}
                save_file(new, self.folder / segment)
                _force(self.folder / segment)
                _force(self.folder)
            whole = all(count or not _written(tensor) for tensor, count in snapshot.identities.values())
            if whole:
                text = f'{{"world": {_text(snapshot.plain)}, "extra": {snapshot.extra}}}'
                _write(self.folder, text, {}, places)
                self.needed[OLDER_CHECKPOINT] = self.needed[CHECKPOINT]
                self.needed[CHECKPOINT] = {place[0] for place in places.values()}
        finally:
            self._tidy()
        if not whole:
            return None
        size = sum(tensor.nbytes for tensor in new.values())
        side.sizes = {name: side.sizes.get(name, size) for name in self.needed[CHECKPOINT]}
        side.known = {
            id(tensor): (weakref.ref(tensor), count, places[name])
            for name, (tensor, count) in snapshot.identities.items()
        }
        self.sides.reverse()
        return size

    def _places(self, side: _Side, snapshot: Snapshot) -> Places:
        """The tensors that lie in segments already, without those that are to be written anew."""
        found, used = Places(), dict.fromkeys(side.sizes, 0)
        for name, (tensor, count) in snapshot.identities.items():
            reference, before, place = side.known.get(id(tensor), (None, 0, ("", "", "")))
            if reference is not None and reference() is tensor and before == count:
                found[name] = place
                used[place[0]] += tensor.nbytes
        anew = {name for name, size in used.items() if 2 * size < side.sizes[name]}
        kept = sorted(used.keys() - anew, key=lambda name: used[name])
        if len(kept) > MOST:
            anew |= set(kept[: len(kept) - MOST // 2])
        return {name: place for name, place in found.items() if place[0] not in anew}

    def _tidy(self) -> None:
        """Remove the segments that neither checkpoint needs."""
        needed = set[str]().union(*self.needed.values())
        for path in self.folder.glob(SEGMENTS):
            if path.name not in needed:
                path.unlink()


def restore(kind: type[S], folder: Path, device: str = "cpu") -> tuple[S, Any] | None:
    """The newest readable (state, extra), or None if there is none."""
    found = [folder / name for name in (CHECKPOINT, OLDER_CHECKPOINT) if (folder / name).exists()]
    problems = []
    for path in found:
        try:
            return _read(path, device, kind)
        except (SafetensorError, FolderError, OSError, ValueError, KeyError, TypeError) as error:
            problems.append(f"{path.name}: {error}")
    if problems:
        raise FolderError(
            f"no checkpoint in {folder} can be read ({'; '.join(problems)}); delete it to restart this run"
        )
    return None


def exists(folder: Path) -> bool:
    """Whether there is something to restore."""
    return any((folder / name).exists() for name in (CHECKPOINT, OLDER_CHECKPOINT))


def remove(folder: Path) -> None:
    """Remove the checkpoints of a finished run."""
    for path in list(folder.glob("checkpoint*.safetensors*")):
        path.unlink()


def _read(path: Path, device: str, kind: type[S]) -> tuple[S, Any]:
    with safe_open(path, framework="pt") as file:
        header = file.metadata() or {}
        if header.get("format") != FORMAT:
            raise FolderError(f"is not a checkpoint of this version ({header.get('format')!r})")
        table = {name: file.get_tensor(name) for name in list(file.keys())}
    if header.get("digest") != _digest(header["state"] + header.get("places", ""), table):
        raise FolderError("is damaged: its digest does not match")
    table |= _gathered(path.parent, json.loads(header.get("places", "{}")))
    with _uncollected():
        saved = json.loads(header["state"])
        world = load(saved["world"], {name: t.to(device) for name, t in table.items()})
    if not isinstance(world, kind):
        raise FolderError(f"does not hold a {kind.__name__.lower()}")
    return world, saved["extra"]


def _gathered(folder: Path, places: Places) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint that lie in segments."""
    table = dict[str, torch.Tensor]()
    wanted = dict[str, list[tuple[str, str, str]]]()
    for name, (segment, there, digest) in places.items():
        wanted.setdefault(segment, []).append((name, there, digest))
    for segment, names in wanted.items():
        with safe_open(folder / segment, framework="pt") as file:
            for name, there, digest in names:
                table[name] = file.get_tensor(there)
                if digest != _digest("", {"": table[name]}):
                    raise FolderError(f"needs {segment}, which is damaged")
    return table


def _segments(path: Path) -> set[str]:
    """The segments that a checkpoint needs."""
    with suppress(OSError, SafetensorError, ValueError), safe_open(path, framework="pt") as file:
        places: Places = json.loads((file.metadata() or {}).get("places", "{}"))
        return {place[0] for place in places.values()}
    return set()


def _write(folder: Path, text: str, table: dict[str, torch.Tensor], places: Places) -> None:
    """Make this the newest checkpoint, and the newest one the older."""
    where = json.dumps(places) if places else ""
    header = {"format": FORMAT, "state": text, "digest": _digest(text + where, table)}
    part = folder / f"{CHECKPOINT}.part"
    save_file(table, part, metadata=header | ({"places": where} if places else {}))
    _force(part)
    newest = folder / CHECKPOINT
    if newest.exists():
        newest.replace(folder / OLDER_CHECKPOINT)
    part.replace(newest)
    _force(folder)


def _text(data: Any, depth: int = 4) -> str:
    """As JSON, in pieces, so that other threads get a turn."""
    if depth and isinstance(data, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {_text(value, depth - 1)}" for key, value in data.items()) + "}"
    if depth and isinstance(data, list):
        return "[" + ", ".join(json.dumps(data[at : at + 100])[1:-1] for at in range(0, len(data), 100)) + "]"
    return json.dumps(data)


@contextmanager
def _uncollected() -> Iterator[None]:
    """No search for garbage while a large tree is built, none of which is: it takes twice as long as the rest."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _written(tensor: torch.Tensor) -> int:
    """How often a tensor was written to."""
    return 0 if tensor.is_inference() else tensor._version


def _digest(text: str, table: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(table):
        digest.update(f"{name} {table[name].dtype} {list(table[name].shape)}".encode())
        digest.update(table[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors, each in its own storage: safetensors refuses shared storage, as of a matrix and its row."""
    table, seen = {}, set[int]()
    for name, tensor in tensors.items():
        alone = tensor.detach().cpu().contiguous()
        storage = alone.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != alone.numel() * alone.element_size():
            alone = alone.clone()
        seen.add(alone.untyped_storage().data_ptr())
        table[name] = alone
    return table


def _force(path: Path) -> None:
    """Force a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
