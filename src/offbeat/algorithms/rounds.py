"""Updates of a round, weighed by how many requests were sent in the round in which theirs was (FedAST, remark 7)."""

from __future__ import annotations

from dataclasses import dataclass, field

from offbeat.core.state import State
from offbeat.core.vectors import Vector


@dataclass
class SentRounds(State):
    """For each version, |A^(t)| and how many of these requests are back; and the sums of what came in this round."""

    sent: dict[int, tuple[int, int]] = field(default_factory=dict)
    sums: dict[int, Vector] = field(default_factory=dict)

    def send(self, version: int) -> None:
        """One more request carries this version."""
        sent, back = self.sent.get(version, (0, 0))
        self.sent[version] = sent + 1, back

    def lose(self, version: int) -> None:
        """One of them was lost: it counts no longer."""
        sent, back = self.sent[version]
        self.sent[version] = sent - 1, back

    def add(self, version: int, update: Vector) -> None:
        """One of them is back."""
        sent, back = self.sent[version]
        self.sent[version] = sent, back + 1
        self.sums[version] = self.sums[version] + update if version in self.sums else update

    def take(self) -> Vector:
        """Σ Δ_i/|A^(t−γ_i)| over the round, which is over; versions that are all back are forgotten.

        |A^(t)| is known by then even for the round's own version: requests that follow carry a new one.
        """
        first, *others = [(1.0 / self.sent[version][0]) * total for version, total in self.sums.items()]
        self.sums = {}
        self.sent = {version: (sent, back) for version, (sent, back) in self.sent.items() if back < sent}
        return sum(others, first)
