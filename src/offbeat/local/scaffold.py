"""SCAFFOLD's local half (Karimireddy et al. 2020, algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass

from offbeat.core.errors import SettingError
from offbeat.core.local import Carry, Work
from offbeat.core.vectors import Payload, Vector
from offbeat.local.sgd import SGD


@dataclass(frozen=True)
class Scaffold(SGD):
    """y ← y − lr · (g(y) − c_i + c): steps corrected by the difference of the client's and everybody's drift.

    option: how the client's control c_i is renewed after K steps from x to y:
        1: c_i ← gradient of all its data at x (another pass; steadier)
        2: c_i ← c_i − c + (x − y)/(K·lr) (free)
    Sends the delta x − y and what changed in c_i; keeps c_i. The rest as for SGD.
    """

    option: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.option not in (1, 2):
            raise SettingError(f"option = {self.option}: SCAFFOLD has the options 1 and 2")

    @property
    def needs(self) -> tuple[str, ...]:
        return ("model", "control")

    @property
    def sends(self) -> tuple[str, ...]:
        return ("delta", "control")

    def remember(self, model: Vector) -> Payload:
        return {"control": model * 0.0}

    def pull(self, w: Vector, work: Work) -> Vector:
        return work.payload["control"] - work.memory["control"]

    def final(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        x, mine = work.payload["model"], work.memory["control"]
        delta = x - carry["w"]
        if self.option == 1:
            renewed = work.full_gradient(x)
        else:
            renewed = mine - work.payload["control"] + delta / (work.steps * work.lr)
        return {"delta": delta, "control": renewed - mine}, {"control": renewed}
