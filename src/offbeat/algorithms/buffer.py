"""What a server collects between two steps, and the memory that it may take."""

from __future__ import annotations

from dataclasses import dataclass, field

from offbeat.core.errors import SettingError
from offbeat.core.state import State
from offbeat.core.vectors import Vector


@dataclass
class Buffer(State):
    """A weighted sum of vectors and how many went into it.

    rows, clients: the vectors and whose they are, where a rule needs them one by one; then there is no sum.
    """

    sum: Vector | None = None
    count: int = 0
    rows: list[Vector] = field(default_factory=list)
    clients: list[int] = field(default_factory=list)

    def add(self, weight: float, vector: Vector) -> None:
        term = vector if weight == 1.0 else weight * vector
        self.sum = term if self.sum is None else self.sum + term
        self.count += 1

    def take_mean(self) -> Vector:
        """The sum over the number of vectors (not over the sum of weights), and the buffer is empty again."""
        if self.sum is None:
            raise ValueError("the mean of an empty buffer")
        mean = self.sum * (1.0 / self.count)
        self.sum, self.count = None, 0
        return mean


MEMORY = 4e9  # bytes that a server may take to follow its clients one by one, where it need not


def fits(model: Vector, clients: int, most: float | None = None) -> bool:
    """Whether a table of one vector a client has room."""
    return clients * model.numel() * model.element_size() <= (MEMORY if most is None else most)


def check_memory(name: str, model: Vector, clients: int, most: float) -> None:
    """Refuse a table of one vector a client that does not fit."""
    wanted = clients * model.numel() * model.element_size()
    if not fits(model, clients, most):
        raise SettingError(
            f"memory = {most:g}: {name} keeps a vector for each of {clients} clients, {wanted:.3g} bytes; raise it, or "
            "use AREA, whose clients keep their own"
        )
