"""The one timing model: compute × speeds, network, presence, availability and dropouts, each chosen freely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from offbeat.core.errors import Checked, NotNegative, SettingError, Share
from offbeat.core.events import Job
from offbeat.core.random import DELAY, Stream, key, longer, uniform
from offbeat.timing.base import Durations
from offbeat.timing.delays import Exponential
from offbeat.timing.network import Network
from offbeat.timing.parts import Delay, Part, Scaled
from offbeat.timing.presence import Attendance, Presence
from offbeat.timing.speeds import Factors, Speeds
from offbeat.timing.trace import Trace

_only, _DURATIONS = tuple.__new__, Durations  # a named tuple from a tuple, without its constructor: for every job


@dataclass(frozen=True)
class Times(Checked):
    """How long jobs take, and which clients are online.

    compute: time of a job's local steps; by default none.
    network: time of downloads and uploads; by default none.
    speeds: how much slower each client computes, also as a list of factors; by default all compute at the same speed.
    presence: which clients are online when; by default all, always.
    available: share of the clients that take new work at any moment, drawn anew each time they are asked.
    dropout: probability that a job's result is lost on the way back.
    trace: recorded compute times, transfers and times online, replayed in place of the parts above.

    >>> from offbeat.core.events import Job
    >>> from offbeat.timing import Constant, Factors
    >>> clock = Times(Constant(0.5, per="step"), speeds=Factors((1.0, 3.0))).bind(clients=2, seed=0)
    >>> clock.durations(Job(id=0, client=1, task=0, version=0, steps=10, lr=0.1, number=0), down=0, up=0).compute
    15.0
    """

    compute: Delay | None = field(default=None, metadata={"flat": True})
    network: Network | None = field(default=None, metadata={"flat": True})
    speeds: Speeds | None = None
    presence: Attendance | None = field(default=None, metadata={"flat": True})
    available: Share = 1.0
    dropout: NotNegative = 0.0
    trace: Trace | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.speeds, Sequence):
            object.__setattr__(self, "speeds", Factors(tuple(self.speeds)))
        for name, method in (("compute", "bind"), ("network", "bind"), ("speeds", "factors"), ("presence", "bind")):
            if (part := getattr(self, name)) is not None and not hasattr(part, method):
                raise SettingError(f"{name} = {part!r}: is no part of a timing model; see offbeat.timing")
        if self.compute is None and self.network is None and self.trace is None:
            raise SettingError("nothing takes any time; set a compute time or a network")
        if self.speeds is not None and self.compute is None and self.trace is None:
            raise SettingError(f"speeds = {self.speeds!r}: no compute time to scale; set one")
        if self.dropout >= 1:
            raise SettingError(f"dropout = {self.dropout!r}: must be a probability below 1")

    def bind(self, clients: int, seed: int, tasks: Sequence[str] = ("",)) -> BoundTimes:
        """Draw what is fixed for a run. `tasks` are the tasks' names, in the order of their numbers."""
        if clients < 1:
            raise SettingError(f"clients = {clients!r}: give at least one")
        return BoundTimes(self.replayed(), clients, seed, tasks)

    def replayed(self) -> Times:
        """The same with what its trace records in place of the trace."""
        if self.trace is None:
            return self
        recorded = {name: part for name, part in self.trace.read()._asdict().items() if part is not None}
        for name in recorded:
            if getattr(self, name) is not None:
                raise SettingError(
                    f"{name} = {getattr(self, name)!r}: the trace {self.trace.file} defines it as well; remove one"
                )
        return replace(self, trace=None, **recorded)


class BoundTimes:
    """`Times` bound to its clients: a `Clock`.

    `compute`, `download` and `upload` are the parts of a job (None: takes no time); each knows its own
    `mean(client, amount, task)` and `cdf(t, client, amount, task)`, where the amount is steps or bytes.
    """

    compute: Part | None = None
    download: Part | None = None
    upload: Part | None = None
    presence: Presence | None = None

    def __init__(self, times: Times, clients: int, seed: int, tasks: Sequence[str]) -> None:
        self.times, self.seed = times, seed
        self._share, self._dropout = times.available, times.dropout
        self._factors = times.speeds.factors(clients, seed) if times.speeds else [1.0] * clients
        self._clients = clients
        if times.compute:
            self.compute = times.compute.bind(clients, seed, tasks, self._factors)
        if times.network:
            self.download, self.upload = times.network.bind(clients, seed, tasks)
        if times.presence:
            self.presence = times.presence.bind(clients, seed)
        self.always = self.presence is None and self._share == 1
        self._keys = [key(seed, DELAY, client) for client in range(clients)]
        # most runs: one number is drawn for a job, and nothing but its computing takes time
        only = isinstance(self.compute, Scaled) and self.download is None and not self._dropout
        self._simple = self.compute.at if isinstance(self.compute, Scaled) and only else None

    @property
    def rates(self) -> list[float]:
        """λ_i, the rate at which each client ends its jobs one after the other; only exponential times have one."""
        law = self.times.compute
        if not isinstance(law, Exponential) or self.download is not None:
            raise SettingError(
                "clients have message rates only when whole jobs take an exponential time, without a network; "
                "use `exponential`, or give the algorithm its own rate"
            )
        rates = law.rates(self._clients, self.seed)
        return [rate / factor for rate, factor in zip(rates, self._factors, strict=True)]

    def durations(self, job: Job, down: int, up: int) -> Durations:
        # Parts draw in a fixed order, one draw each: a part added to the model leaves those before it as they were.
        start = longer(self._keys[job.client], job.number)
        if self._simple is not None:
            return _only(_DURATIONS, (0.0, self._simple(job, job.steps, uniform(start)), 0.0, False))
        stream = Stream(start)
        compute = self.compute.draw(job, job.steps, stream) if self.compute else 0.0
        if self.download and self.upload:
            download, upload = self.download.draw(job, down, stream), self.upload.draw(job, up, stream)
        else:
            download = upload = 0.0
        return Durations(download, compute, upload, self._dropout > 0 and stream.uniform() < self._dropout)

    def available(self, client: int, now: float, stream: Stream) -> bool:
        willing = self._share == 1 or stream.uniform() < self._share
        return willing and self.present(client, now)

    def present(self, client: int, now: float) -> bool:
        return self.presence is None or self.presence.present(client, now)

    def flip(self, client: int, after: float) -> float | None:
        return None if self.presence is None else self.presence.flip(client, after)
