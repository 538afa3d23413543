"""When a run ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from offbeat.core.errors import SettingError, finite, positive
from offbeat.core.metric import Goal, Metric, goal

_MANY = 1_000_000  # updates in which a run reaches a metric's value, or never


@dataclass(frozen=True, init=False)
class Until:
    """When a run ends: at whichever of these comes first.

    time: virtual time.   updates: arrived results.   versions: server steps.
    iterations: arrived results and server steps together, of all tasks: AREA's k, whose theorems bound a run after K of
        them. A result that makes the server step counts twice, so a run may end one past the number.
    metrics: values to reach, each by its metric's name: `Until(updates=1000, rmse=0.5)`. A task is finished when an
        evaluation shows such a value or a better one. With a metric alone, `updates` is a million.
    """

    time: float | None = None
    updates: int | None = None
    versions: int | None = None
    iterations: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False, metadata={"setting": False})

    def __init__(
        self,
        time: float | None = None,
        updates: int | None = None,
        versions: int | None = None,
        iterations: int | None = None,
        **metrics: float | None,
    ) -> None:
        given = {name: value for name, value in metrics.items() if value is not None}
        counts = {"time": time, "updates": updates, "versions": versions, "iterations": iterations}
        positive(**counts)
        finite(**given)
        if all(value is None for value in counts.values()):
            if not given:
                raise SettingError(f"until needs at least one of {', '.join(counts)}, or a run might never end")
            counts["updates"] = _MANY
        for name, value in {**counts, "metrics": given}.items():
            object.__setattr__(self, name, value)

    @property
    def limits(self) -> dict[str, float | None]:
        """All but the metrics, by name."""
        return {"time": self.time, "updates": self.updates, "versions": self.versions, "iterations": self.iterations}

    def goals(self, metrics: Sequence[Sequence[Metric]]) -> list[tuple[Goal, ...]]:
        """By task, the goals at which it is finished; a metric that no task measures is refused.

        metrics: of each task, all that its evaluations give.
        """
        everything = [metric for each in metrics for metric in each]
        for name, value in self.metrics.items():
            goal(name, value, everything, "until", tuple(self.limits))
        return [tuple(Goal(m, self.metrics[m.name]) for m in each if m.name in self.metrics) for each in metrics]
