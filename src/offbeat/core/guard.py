"""What stands between the clients' updates and a server's step, where something does: a robust rule, or clipping and
noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from offbeat.core.errors import Checked
from offbeat.core.state import State
from offbeat.core.vectors import Vector

if TYPE_CHECKING:
    from offbeat.core.local import Local
    from offbeat.core.server import Model, View
    from offbeat.core.sums import Secure, SumBound


@dataclass
class Contributions(State):
    """How often clients have contributed to the sums that a server has released, for one task.

    count: contributions by client.   last: by client, the number of the sum that its last contribution went into.
    releases: sums released so far.   refilled: releases when idle clients were last looked at.
    noise: the last noise vectors, where noise is correlated.
    closed: under secure aggregation, sums that are complete and counted as released, but not open yet.
    sealed: whether the server has seen sums only.   refusing: clients that say that they have spent their budget.
    task: of several, the number of this one: noise is drawn for a release of a task.
    """

    releases: int = 0
    count: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    refilled: int = 0
    noise: list[Vector] = field(default_factory=list)
    closed: int = 0
    sealed: bool = False
    refusing: list[int] = field(default_factory=list)
    task: int = 0

    @property
    def number(self) -> int:
        """That of the next release; no release of another task has the same."""
        return (self.task << 40) + self.releases


@dataclass(frozen=True)
class Guard(Checked):
    """Decides what counts of an update and how several become one direction."""

    limits: ClassVar[bool] = False  # whether it limits how often clients contribute, and so who is given work

    def admits(self, model: Model, client: int) -> bool:
        """Whether this client may be given work."""
        return True

    def exhausted(self, model: Model, clients: int, wanted: int) -> bool:
        """Whether fewer than `wanted` of so many clients can still contribute to the next sum."""
        return False

    def pair(self, local: Local) -> Local:
        """The local trainer as clients need it."""
        return local

    def refuse(self, model: Model, client: int) -> None:
        """A client says that it contributes no more."""

    def within(self, secure: Secure) -> Guard:
        """The same where the server sees such sums only."""
        return self

    def bound(self) -> SumBound | None:
        """What it asks of sums that are all the server sees; None: nothing. Raises `SettingError` if it needs more."""
        return None

    def charge(self, model: Model, buffer: Any, client: int, last: bool) -> None:
        """A client is in a sum, of which the server sees nothing else. last: no other comes into it."""
        raise NotImplementedError

    def report(self, models: Sequence[Model]) -> Mapping[str, Any]:
        """What the record of a run should keep."""
        return {}

    def collect(self, model: Model, buffer: Any, client: int, vector: Vector) -> None:
        """A weighted update goes into a buffer."""
        raise NotImplementedError

    def mean(self, model: Model, buffer: Any, size: int | None, view: View) -> Vector:
        """What a buffer comes to; it is empty afterwards. size: the number that a sum is divided by, if it is fixed."""
        raise NotImplementedError

    def combine(self, rows: Sequence[Vector]) -> Vector:
        """What a table of one vector a client comes to."""
        raise NotImplementedError
