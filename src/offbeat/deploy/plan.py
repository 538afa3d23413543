"""A real run as settled before it begins: who may take part, the algorithm, where it starts and when it ends."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from offbeat.core.course import Until
from offbeat.core.errors import SettingError, positive
from offbeat.core.local import Local
from offbeat.core.server import Server
from offbeat.core.vectors import Vector
from offbeat.deploy.admission import Limits

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]{0,63}")


def check_name(what: str, name: str) -> str:
    """A name that may stand in a subject of the broker and in a path: letters, digits, - _ + and nothing else."""
    if not _NAME.fullmatch(name):
        raise SettingError(f"{what} {name!r}: use up to 64 letters, digits, - _ + and begin with a letter or digit")
    return name


@dataclass(frozen=True)
class Plan:
    """What is fixed for a run.

    roster: the clients' names; nobody else is let in.   initial: every task's first model.   unit: seconds in one unit
    of the experiment's time.   terms: by task, the times from which and until which it is there.
    dtype: "bfloat16" halves what clients send, for algorithms whose clients have no memory; "": as the model.
    """

    run: str
    roster: Sequence[str]
    server: Server[Any]
    locals: Sequence[Local]
    initial: Sequence[Vector]
    until: Until
    seed: int = 0
    unit: float = 1.0
    terms: Sequence[tuple[float, float]] = ()
    limits: Limits = field(default_factory=Limits)
    dtype: str = ""

    def __post_init__(self) -> None:
        check_name("run", self.run)
        positive(unit=self.unit)
        for name in self.roster:
            check_name("client", name)
        if len(set(self.roster)) != len(self.roster) or not self.roster:
            raise SettingError(f"roster = {list(self.roster)}: at least one client, and each once")
        if self.dtype not in ("", "bfloat16"):
            raise SettingError(f"dtype = {self.dtype!r}: must be bfloat16 or left out")
        if self.dtype and any(self.remembers):
            raise SettingError(
                "dtype = bfloat16: these clients have a memory, which rounding would part from the server"
            )

        for task in range(len(self.locals)):
            size, most = self.update_bytes(task) / 2**20, self.limits.size / 2**20
            if size > most:
                raise SettingError(
                    f"an update of this model is {size:,.0f} MB, and at most {most:,.0f} are taken; raise "
                    f"--max-size, halve it with --bfloat16, or train a smaller model"
                )

    def update_bytes(self, task: int) -> int:
        """Bytes of an update, with some for its header."""
        half = self.dtype == "bfloat16" and self.initial[task].dtype == torch.float32
        each = 2 if half else self.initial[task].element_size()
        return 1024 + each * sum(self.expected(task).values())

    @property
    def remembers(self) -> list[bool]:
        """By task, whether clients have a memory."""
        return [bool(local.remember(x)) for local, x in zip(self.locals, self.initial, strict=True)]

    def expected(self, task: int) -> dict[str, int]:
        """Name and length of the vectors that an update of this task holds."""
        local, dim = self.locals[task], self.initial[task].numel()
        return {name: 1 if name in local.notes else dim for name in local.sends}
