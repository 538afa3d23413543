"""How long an update may be, learned from the run: one client cannot move the model much further than others do.

An update's vector may be as long as FACTOR times the usual length, and twice the way that the model has come besides: a
client that was away for long, or is new, has that much to catch up with. The usual length is the median over the last
CLIENTS clients that had an update applied, each with its last one, at the time when that median was largest, because
updates become shorter as a run goes on. Before SEEN updates, of FEW clients at least, are known, EARLY times the length
of the initial model, or 1 if that is shorter, takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median_low

from offbeat.core.state import State
from offbeat.core.vectors import Payload, Vector, norm
from offbeat.deploy.encoding import RefusedError

FACTOR, EARLY = 20.0, 100.0
CLIENTS, SEEN, FEW = 64, 8, 4


@dataclass
class UsualNorms(State):
    """What was seen of one task. last: by client, the newest last: the lengths of its last update, by name."""

    seen: int = 0  # updates
    last: dict[int, dict[str, float]] = field(default_factory=dict)
    usual: dict[str, float] = field(default_factory=dict)  # by name: the largest median so far

    def learn(self, client: int, lengths: Mapping[str, float], members: int) -> None:
        """An update of these lengths was applied."""
        self.seen += 1
        self.last.pop(client, None)
        self.last[client] = dict(lengths)
        while len(self.last) > CLIENTS:
            del self.last[next(iter(self.last))]
        if self.seen >= SEEN and len(self.last) >= min(FEW, members):
            for name in lengths:
                middle = median_low([each[name] for each in self.last.values() if name in each])
                self.usual[name] = max(self.usual.get(name, 0.0), middle)

    def check(self, lengths: Mapping[str, float], initial: Vector, model: Vector) -> None:
        """Refuse an update with a vector that is too long. initial, model: of its task, at first and now."""
        for name, length in lengths.items():
            usual = FACTOR * self.usual.get(name, 0.0) or EARLY * max(1.0, norm(initial))
            if length > usual:  # seldom; then it is worth to look how far the model has come
                most = usual + 2.0 * norm(model - initial)
                if not length <= most:
                    raise RefusedError("norm", f"{name} has the length {length:.4g}, and here {most:.4g} is the most")


def check_norms(
    bound: float | None, vectors: Payload, learned: Callable[[Mapping[str, float]], None]
) -> dict[str, float]:
    """The lengths of an update's vectors, none of which is too long.

    bound: a fixed one; None: `learned` checks them; 0: there is none.
    """
    if bound == 0:
        return {}
    lengths = {name: norm(vector) for name, vector in vectors.items()}
    if bound is None:
        learned(lengths)
    else:
        for name, length in lengths.items():
            if length > bound:
                raise RefusedError("norm", f"{name} has the length {length:.4g}, and {bound:g} is the most")
    return lengths
