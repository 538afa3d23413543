"""What a server takes from a client, and the code under which it refuses the rest.

| code | what is wrong |
|---|---|
| malformed, damaged, oversized | not a message, not the bytes that were sent, more of them than allowed |
| run, identity | meant for another run; sent under another client's name |
| fenced, epoch | from a client's former life, from one that was never greeted |
| replay, order | the number of a settled message with another content, a number left out |
| late, uncalled, steps | of a job that is lost by now; of held work nobody asked for; an impossible number of steps |
| names, dtype, length | not the vectors that this algorithm's clients send |
| nonfinite, norm | holds a number that is not finite; longer than the bound |
| stale | made from a model more versions ago than the window allows |
| slot | the client's second update since the last server step, where one slot each is asked for |
| over, retired, behind | the run is over; the client was retired; its memory is not the one the server knows of |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from offbeat.core.errors import SettingError, positive
from offbeat.core.vectors import Payload, norm
from offbeat.deploy.wire import DTYPES, Message, RefusedError

APPLIED = "applied"


@dataclass(frozen=True)
class Limits:
    """What is admitted.

    size: bytes of a message.   norm: Euclidean length of a vector.   window: versions that an update may be old.
    slot: only one update a client between two server steps.   held: jobs a client may hold without answering.
    lease: seconds for a job, from when its client could begin it.   patience: seconds without a sign of life.
    """

    size: int = 1 << 30
    norm: float | None = None
    window: int | None = None
    slot: bool = False
    held: int = 1000
    lease: float = 600.0
    patience: float = 15.0

    def __post_init__(self) -> None:
        positive(size=self.size, norm=self.norm, window=self.window, lease=self.lease, patience=self.patience)
        if self.held < 2:
            raise SettingError(f"held = {self.held}: must be at least 2")


def admit(message: Message, expected: Mapping[str, int], dtype: str, limits: Limits) -> Payload:
    """The update's vectors. expected: name and length of each; nothing is copied before they agree."""
    if set(message.parts) != set(expected):
        raise RefusedError("names", f"holds {', '.join(message.parts) or 'nothing'}, expected {', '.join(expected)}")
    for name, length in expected.items():
        if message.parts[name][0] not in (dtype, "bfloat16"):
            raise RefusedError("dtype", f"{name} is {message.parts[name][0]}, expected {dtype}")
        if message.length(name) != length:
            raise RefusedError("length", f"{name} has {message.length(name)} numbers, expected {length}")
    vectors = {name: message.vector(name).to(DTYPES[dtype]) for name in expected}
    for name, vector in vectors.items():
        if not bool(torch.isfinite(vector.sum())) and not bool(torch.isfinite(vector).all()):
            raise RefusedError("nonfinite", f"{name} holds a number that is not finite")
        if limits.norm is not None and norm(vector) > limits.norm:
            raise RefusedError("norm", f"{name} is longer than {limits.norm:g}")
    return vectors
