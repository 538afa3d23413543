"""The local trainer whose messages are compressed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch

from offbeat.core.compressor import Compressor
from offbeat.core.errors import SettingError
from offbeat.core.local import Carry, Local, Work, Wrapper
from offbeat.core.vectors import Payload, Vector

_ERROR = "error."  # what was not sent of a message, in a client's memory
_SAMPLE = 16  # the first draw of random numbers that is for compression


@dataclass(frozen=True)
class Compressed(Wrapper):
    """Trains as the one inside does and sends its differences compressed.

    Where a client remembers something that moves by its message, such as AREA's y, it moves by what was really sent, so
    that the server's sums agree with it. What was not sent is then part of the next difference, which is error feedback
    whether it was asked for or not. Of other messages, `feedback` keeps what was not sent.
    """

    reports: ClassVar[bool] = False

    @property
    def moves(self) -> Mapping[str, str | None]:
        return {name: kept for name, kept in self.inner.moves.items() if name in self.inner.sends}

    @property
    def coders(self) -> Mapping[str, Compressor]:
        plain = self.compress
        assert plain is not None
        near = replace(plain, feedback=True)
        return {name: plain if kept is None else near for name, kept in self.moves.items()}

    def wire(self, dim: int) -> tuple[int, int]:
        down, up = self.inner.wire(dim)
        return down, up + sum(coder.size(dim) - 4 * dim for coder in self.coders.values())

    def remember(self, model: Vector) -> Payload:
        errors = {f"{_ERROR}{name}": model * 0.0 for name in self._fed_back}
        return {**self.inner.remember(model), **errors}

    def private(self, name: str) -> bool:
        return name.startswith(_ERROR) or self.inner.private(name)

    @property
    def _fed_back(self) -> list[str]:
        fed = self.compress is not None and self.compress.feedback
        return [name for name, kept in self.moves.items() if fed and kept is None]

    def final(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        upload, memory = map(dict, self.inner.final(carry, work))
        for number, (name, coder) in enumerate(self.coders.items()):
            whole, error, moved = upload[name], work.memory.get(f"{_ERROR}{name}"), self.moves[name]
            x = meant = whole[:, : work.shared]
            if name in self._fed_back and error is not None:
                x = meant + error[:, : work.shared]
            code = coder.code(x, partial(work.uniform, x, _SAMPLE + number))
            finite = torch.isfinite(x).all(dim=-1, keepdim=True)
            sent = torch.where(finite, coder.value(code), x)  # nothing hides that a client has diverged
            if name in self._fed_back:
                memory[f"{_ERROR}{name}"] = _as_long(x - sent, whole)
            elif moved is not None:
                memory[moved] = memory[moved] - _as_long(meant - sent, whole)
            upload[name] = coder.pack(code) if work.packed and bool(finite.all()) else sent
        return upload, memory


def _as_long(rows: Vector, like: Vector) -> Vector:
    """With zeros for what clients keep to themselves."""
    missing = like.shape[1] - rows.shape[1]
    return torch.cat([rows, rows.new_zeros(len(rows), missing)], 1) if missing else rows


def compressed(local: Local) -> Local:
    """The local trainer with its messages compressed, if it says so."""
    if local.compress is None or isinstance(local, Compressed):
        return local
    made = Compressed.around(local)
    if not made.moves:
        raise SettingError(
            f"compress: it compresses differences, and what {local.label} sends here is none: "
            f"{', '.join(local.sends) or 'nothing'}; leave compress out, or use another server"
        )
    return made
