"""A robust rule in the place of the mean: over the updates in a buffer, or over a table of one vector a client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from offbeat.algorithms.buffer import Buffer
from offbeat.core.errors import SettingError
from offbeat.core.guard import Guard
from offbeat.core.server import Model, View
from offbeat.core.vectors import Vector, alike, stacked
from offbeat.privacy.rules import Rule


@dataclass(frozen=True)
class Robust(Guard):
    """What takes the place of the mean of the clients' updates.

    rule: robust rule, such as { trimmed-mean = { share = 0.2 } }; by default the mean, with one_slot.
    one_slot: a client counts once in a buffer, with the mean of its updates in it, however many there are; a table of
        one vector a client, such as AREA's, always works like that.
    """

    rule: Rule | None = None
    one_slot: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rule is None and not self.one_slot:
            raise SettingError("rule missing; give one, such as { trimmed-mean = { share = 0.2 } }, or one_slot = true")

    def collect(self, model: Model, buffer: Buffer, client: int, vector: Vector) -> None:
        buffer.rows.append(vector)
        buffer.clients.append(client)
        buffer.count += 1

    def mean(self, model: Model, buffer: Buffer, size: int | None, view: View) -> Vector:
        rows = by_client(buffer.clients, buffer.rows) if self.one_slot else buffer.rows
        buffer.rows, buffer.clients, buffer.count = [], [], 0
        return self.combine(rows)

    def combine(self, rows: Sequence[Vector]) -> Vector:
        together = stacked(rows).nan_to_num()  # sums of updates can be inf, which no rule could shorten
        return alike(rows[0], together.mean(dim=0) if self.rule is None else self.rule(together))


def by_client(clients: Sequence[int], rows: Sequence[Vector]) -> list[Vector]:
    """One row for every client: the mean of its rows, in the order in which clients came first."""
    sums: dict[int, Vector] = {}
    for client, row in zip(clients, rows, strict=True):
        sums[client] = sums[client] + row if client in sums else row
    return [(1.0 / clients.count(client)) * total for client, total in sums.items()]
