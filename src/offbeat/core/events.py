"""What a server hears and what it may say. Both sets are closed.

The rules, before the code:

1. A `Send` to a client that is busy waits in that client's queue; a client works through its queue in the order in
   which the work was sent, one job at a time. A job is *in flight* from its `Send` until its `Update` or its `Lost`.
2. Every job ends in exactly one `Update` or one `Lost`, with two exceptions. A job that was sent with `hold` and
   replaced by a newer held job of the same client and task never existed, because its result is never taken. And a job
   that the server has cancelled ends there and then.
3. A held job reports nothing when it is done. `Recall` asks for the newest finished one, and waits for the running
   one if none is finished; `Recall(partial=True)` interrupts the running one and takes the steps done so far.
4. A lost job leaves its client's memory as it was.
5. `Joined` and `Left` speak of presence, not of membership: a client that left keeps its memory and may come back.
   What it had in flight is `Lost` before it is `Left`. `Admitted` and `Dismissed` speak of membership, which changes in
   real runs only: who is dismissed has left before and never joins again.
6. Held and plain work of one task are not mixed at one client that has a memory; nor does a client with a memory that
   may leave have several jobs of one task in flight: which memory a job builds on would not be settled.
7. Commands take effect after the handler that yielded them has finished, in the order in which it yielded them.
8. `Cancel` ends all jobs of a client and task that are in flight: at work, queued, on their way or held. Their results
   will not arrive, no `Lost` is reported for them, and the client's memory is as if they had not been. The client goes
   on with what was queued behind them; without that, it is idle.
9. Under secure aggregation a result is `Sealed` where it would be an `Update`, and `Summed` follows for several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from offbeat.core.vectors import Payload, Vector


class Job(NamedTuple):
    """One piece of work for one client."""

    id: int  # unique in the run, in the order of sending
    client: int
    task: int
    version: int  # of the model that the client starts from
    steps: int
    lr: float  # local step size: what the server gave, or else the local trainer's own
    number: int  # how many jobs this client was sent before: keys its random draws
    hold: bool = False


# Events: participles, but for the update, whose event is that it has arrived.


@dataclass(slots=True)
class Update:
    """A client's result has arrived: `update["delta"]` is what its local trainer called "delta"."""

    job: Job
    vectors: Payload

    def __getitem__(self, name: str) -> Vector:
        return self.vectors[name]


@dataclass(frozen=True, slots=True)
class Sealed:
    """A client's result has arrived that the server does not see: it counts in a sum, and `Summed` will tell that."""

    job: Job


@dataclass(frozen=True, slots=True)
class Summed:
    """A sum of updates is open. total: of what the clients have sent.   count: of its updates; 0: it is lost."""

    task: int
    total: Vector
    count: int


@dataclass(frozen=True, slots=True)
class Started:
    """The run begins; every client that is present may be sent work."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A job will never arrive; its client's memory is as if the job had not been."""

    job: Job
    reason: str


@dataclass(frozen=True, slots=True)
class Rang:
    """An alarm set earlier has gone off."""

    key: str


@dataclass(frozen=True, slots=True)
class Joined:
    """A client is there and takes work."""

    client: int


@dataclass(frozen=True, slots=True)
class Left:
    """A client is gone; what it was doing is lost."""

    client: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """The roster has one client more; it is there when it has joined.

    models: every task's initial model, where its memory begins.
    """

    client: int
    models: Sequence[Vector]


@dataclass(frozen=True, slots=True)
class Dismissed:
    """The roster has one client less; it will not come back."""

    client: int


@dataclass(frozen=True, slots=True)
class Measured:
    """A task's model was evaluated."""

    task: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Opened:
    """A task is there to be trained from now on. Tasks that are there from the beginning are not announced."""

    task: int


@dataclass(frozen=True, slots=True)
class Closed:
    """A task is to be trained no longer; its jobs are gone."""

    task: int


Event: TypeAlias = (
    Started | Update | Sealed | Summed | Lost | Rang | Joined | Left | Admitted | Dismissed | Measured | Opened | Closed
)

# Commands: verbs.


class Send(NamedTuple):
    """Send work to a client. With `steps` or `lr` of None, the local trainer decides."""

    client: int
    payload: Payload
    version: int
    steps: int | None = None
    task: int = 0
    lr: float | None = None
    hold: bool = False


class Recall(NamedTuple):
    """Ask a client for held work: the newest finished result, or with `partial` what it has done so far."""

    client: int
    task: int = 0
    partial: bool = False


class Cancel(NamedTuple):
    """Stop what a client has in flight of a task. If that is nothing, nothing happens."""

    client: int
    task: int = 0


class Alarm(NamedTuple):
    """Wake the server after a while with `Rang(key)`."""

    after: float
    key: str


class Stop(NamedTuple):
    """Finish a task, whose jobs are dropped at once wherever they are, or with None the whole run."""

    task: int | None = None
    reason: str = "stopped by the algorithm"


Command: TypeAlias = Send | Recall | Cancel | Alarm | Stop
