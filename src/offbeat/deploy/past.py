"""What it takes to undo an entry: the ledger as it was a while ago, and the entries since."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from offbeat.core.state import copied
from offbeat.deploy.ledger import Ledger

How: TypeAlias = Literal["taken", "lost", "told"]
TAKEN: How = "taken"
LOST: How = "lost"  # quarantined: its job is lost
TOLD: How = "told"  # quarantined: its client is told, and nothing else

ENTRIES, BYTES = 1000, 1 << 26


class Past:
    """The ledger before the last few entries, and these with how they were folded.

    Folding never fails as a rule, so nothing is done for it but this: from time to time the ledger's structure is
    copied, without its vectors. To undo an entry, those since the copy are folded again. A copy is made after so many
    entries that it costs each of them little, and before they and the models of their time hold much memory.
    """

    def __init__(self) -> None:
        self.before: Ledger | None = None
        self.entries: list[tuple[Any, How]] = []
        self.size = 0  # bytes of the entries

    def keep(self, ledger: Ledger) -> None:
        """To be called before each entry."""
        most = max(ENTRIES, len(ledger.clients))
        if self.before is None or len(self.entries) >= most or self.size >= BYTES:
            self.before, self.entries, self.size = copied(ledger), [], 0
