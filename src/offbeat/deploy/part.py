"""What the parts of the fold have in common. A part keeps nothing: all that changes is in the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offbeat.deploy.ledger import Ledger
from offbeat.deploy.plan import Plan

if TYPE_CHECKING:
    from offbeat.deploy.reducer import Reducer


class FoldPart:
    """What the fold does with one kind of entries."""

    def __init__(self, fold: Reducer) -> None:
        self.fold = fold

    @property
    def ledger(self) -> Ledger:
        return self.fold.ledger

    @property
    def plan(self) -> Plan:
        return self.fold.plan
