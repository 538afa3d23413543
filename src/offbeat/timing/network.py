"""How long a model travels, down to the client and back up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from offbeat.core.errors import Checked, Positive, SettingError, ordered
from offbeat.core.random import CLIENT, key
from offbeat.timing import laws
from offbeat.timing.parts import Delay, Part, Scaled

Parts = tuple[Part, Part]  # download, upload


class Network(Protocol):
    """A description of both ways."""

    def bind(self, clients: int, seed: int, tasks: Sequence[str]) -> Parts:
        """Draw what is fixed for a run."""


@dataclass(frozen=True)
class Bandwidth(Checked):
    """Bytes over bandwidth, the same for every client; times are in seconds.

    down: download bandwidth in Mbit/s (DeFedAvg, §4.1.3: 400).
    up: upload bandwidth in Mbit/s.
    """

    down: Positive
    up: Positive

    def bind(self, clients: int, seed: int, tasks: Sequence[str]) -> Parts:
        """Parts whose amount is bytes."""
        ones = [1.0] * clients
        down, up = ([8e-6 / mbit] * len(tasks) for mbit in (self.down, self.up))
        return Scaled(laws.point(), down, ones, per_unit=True), Scaled(laws.point(), up, ones, per_unit=True)


@dataclass(frozen=True)
class Delays(Checked):
    """Random delays each way, exponential for each job whatever the size of the model (PersA-FL, §5).

    download: mean download time; a number, or two bounds between which each client's is drawn.
    ratio: bounds of mean upload time over mean download time, between which each client's is drawn.

    Differs from the paper: it states the ratio, 4 to 6, and no distribution; this one is ours.
    """

    download: Positive | tuple[Positive, Positive] = 1.0
    ratio: tuple[Positive, Positive] = (4.0, 6.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("download", self.download), ("ratio", self.ratio)):
            if isinstance(value, tuple) and len(value) != 2:
                raise SettingError(f"{name} = {value!r}: must be two numbers, the lowest and the highest")
            if isinstance(value, tuple):
                ordered(**{f"{name}[0]": value[0], f"{name}[1]": value[1]})

    def bind(self, clients: int, seed: int, tasks: Sequence[str]) -> Parts:
        """Parts whose factors are the clients' mean times."""
        low, high = self.download if isinstance(self.download, tuple) else (self.download, self.download)
        down_seed, up_seed = _seeds(seed)
        down = laws.each(laws.uniform(low, high), clients, down_seed, laws.DELAYS)
        ratios = laws.each(laws.uniform(*self.ratio), clients, up_seed, laws.DELAYS)
        up = [ratio * mean for ratio, mean in zip(ratios, down, strict=True)]
        law, ones = laws.exponential(), [1.0] * len(tasks)
        return Scaled(law, ones, down, per_unit=False), Scaled(law, ones, up, per_unit=False)


@dataclass(frozen=True)
class Links:
    """Any delays each way, drawn for each job whatever the size of the model.

    download: time of a download.
    upload: time of an upload.
    """

    download: Delay
    upload: Delay

    def __post_init__(self) -> None:
        for name, delay in (("download", self.download), ("upload", self.upload)):
            if delay.per != "job":
                raise SettingError(f"{name} = {delay!r}: is drawn per step, but a transfer has none; use one per job")

    def bind(self, clients: int, seed: int, tasks: Sequence[str]) -> Parts:
        """Both ways, with what they draw for a client independent of each other and of its compute."""
        ones = [1.0] * clients
        down_seed, up_seed = _seeds(seed)
        return self.download.bind(clients, down_seed, tasks, ones), self.upload.bind(clients, up_seed, tasks, ones)


def _seeds(seed: int) -> tuple[int, int]:
    return key(seed, CLIENT, laws.DELAYS, 0), key(seed, CLIENT, laws.DELAYS, 1)
