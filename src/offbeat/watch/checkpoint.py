"""Saving a world and restoring it, bit for bit.

A checkpoint is one safetensors file: the tensors, and in its header the JSON that says where they go. It is written to
a side file, forced to disk and renamed, and the one before is kept, so an interrupted or damaged write costs the time
since the older one and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from offbeat.core.errors import FolderError
from offbeat.core.state import State, Tensors, dump, load
from offbeat.watch.files import CHECKPOINT, OLDER_CHECKPOINT

FORMAT = "offbeat checkpoint 1"
S = TypeVar("S", bound=State)


def save(folder: Path, world: State, extra: Any = None) -> None:
    """Write the world (or another state) and `extra`, as JSON, as the folder's newest checkpoint."""
    tensors = Tensors()
    text = json.dumps({"world": dump(world, tensors), "extra": extra})
    table = _apart(tensors.table)
    header = {"format": FORMAT, "state": text, "digest": _digest(text, table)}
    part = folder / f"{CHECKPOINT}.part"
    save_file(table, part, metadata=header)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    newest = folder / CHECKPOINT
    if newest.exists():
        newest.replace(folder / OLDER_CHECKPOINT)
    part.replace(newest)
    _sync(folder)


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
            f"no checkpoint in {folder} can be read ({'; '.join(problems)}); delete it to start this run anew"
        )
    return None


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
    if header.get("digest") != _digest(header["state"], table):
        raise FolderError("is damaged: its digest does not match")
    saved = json.loads(header["state"])
    world = load(saved["world"], {name: t.to(device) for name, t in table.items()})
    if not isinstance(world, kind):
        raise FolderError(f"does not hold a {kind.__name__.lower()}")
    return world, saved["extra"]


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


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
