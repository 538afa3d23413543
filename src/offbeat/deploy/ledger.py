"""Everything that the server of a real run knows, as one value: what the log says, up to `position`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from offbeat.core import run_state
from offbeat.core.events import Job
from offbeat.core.run_state import RunState
from offbeat.core.state import State
from offbeat.core.vectors import Payload, Vector
from offbeat.deploy.admission import Limits
from offbeat.deploy.norms import UsualNorms


@dataclass
class SentJob(State):
    """A job between its sending and its end. `since`: when it came to the head of its client's queue."""

    job: Job
    payload: Payload | None  # None for held work that newer work has replaced on the assignment
    sent: float
    since: float
    base: Vector | None = None  # the model that was sent, if it is needed on arrival: also of held work

    def __post_init__(self) -> None:
        self.job = Job(*self.job)  # a saved job comes back as a plain tuple

    @property
    def start(self) -> float:
        return self.since

    @property
    def end(self) -> float:
        return float("inf")


@dataclass
class ClientRecord(State):
    """One client as the server knows it.

    account, sign, seal: its public keys, as the roster has them.
    epoch, nonce: which copy of the client counts; one that lost its disk comes back with a larger epoch, and the old
    one is fenced.
    seq, digest, verdict: the last message of this epoch that was settled, and how: "applied", or why it was refused.
    """

    name: str = ""
    account: str = ""
    sign: str = ""
    seal: str = ""
    epoch: int = 0
    nonce: str = ""
    seq: int = 0
    digest: str = ""
    verdict: str = ""
    present: bool = False
    since: int = 0  # the position in the log at which it last came or left
    removed: bool = False  # for good
    number: int = 0  # jobs it was sent so far: keys its random draws
    queue: list[int] = field(default_factory=list)  # its plain jobs in flight, in the order of sending
    held: dict[int, list[int]] = field(default_factory=dict)  # task -> its held jobs, the newest last
    recalls: dict[int, bool] = field(default_factory=dict)  # task -> whether what is done so far is wanted
    revision: int = 0  # of its assignment: the position in the log at which that last changed
    turned_away: tuple[str, str] = ("", "")  # (nonce, code) of the last greeting that was refused
    strikes: int = 0  # results refused and jobs failed since the last update that was applied
    paused: bool = False  # gets no work until an alarm
    applied: int = 0  # updates, in all epochs
    refused: int = 0  # results
    failed: int = 0  # jobs
    known: tuple[int, int] = (0, 0)  # (epoch, seq) of its last settled message before the run was restored
    known_nonce: str = ""  # which copy of the client that was
    resync: dict[int, Payload] | None = field(default_factory=dict)  # task -> the memory it is to begin with then
    slots: dict[int, int] = field(default_factory=dict)  # task -> model version at which its last update was applied
    exhausted: list[int] = field(default_factory=list)  # tasks for which its own privacy budget is spent
    cancelled: list[int] = field(default_factory=list)  # its jobs that were cancelled since its last settled message
    balks: int = 0  # cohorts in a row that it has kept from giving a sum, as far as that can be told
    left_out: bool = False  # for having done so too often: it may not come back
    attempt: int = 0  # where clients mask for each other, what its next result has to say at least: keys serve once

    @property
    def busy(self) -> bool:
        return bool(self.queue) or bool(self.held)


@dataclass
class LogTally(run_state.Tally):
    """Counts of a run so far, of messages as well."""

    refused: dict[str, int] = field(default_factory=dict)  # code -> messages
    repeated: int = 0  # that had been settled before
    bytes: int = 0  # of the log


@dataclass
class Judging(State):
    """An evaluation by the clients that is under way."""

    number: int
    task: int
    time: float
    updates: int
    version: int
    vector: Vector
    asked: int  # so many clients, the first ones
    scored: bool  # the server evaluates it, too
    claims: dict[int, tuple[int, float, dict[str, list[float]]]] = field(default_factory=dict)  # client -> `Claim`
    personal: dict[int, float] = field(default_factory=dict)  # client -> the own metric of its own model
    score: dict[str, float] | None = None  # the server's

    @property
    def unscored(self) -> bool:
        """Whether the server has still to evaluate it."""
        return self.scored and self.score is None


@dataclass
class Waiting(State):
    """A result whose client waits for others, to be summed with theirs. said: its header.   digest: of the message.

    keys: what its client has said of itself, in hexadecimal.   cohort: the number of the one that it is called to.
    """

    client: int
    said: dict[str, Any]
    keys: str
    digest: str
    cohort: int = 0


@dataclass
class Gathering(State):
    """A cohort from its call until its sum is open; its members count by their places.

    call: as bytes.   clients, jobs: by place.   sealed: by place, the shares that it has dealt.   sharers: those who
    had when masking began.   masked: by place, what it has sent, until the sum is closed.   survivors: those who are in
    that.   answers: by place, the shares that it has given away.   accused: by place, whose
    shares it could not open.
    """

    number: int
    task: int
    call: Vector
    clients: list[int]
    jobs: list[int]
    phase: str
    alarm: int = 0  # at the end of the phase
    sealed: dict[int, Vector] = field(default_factory=dict)
    sharers: list[int] = field(default_factory=list)
    masked: dict[int, Vector] = field(default_factory=dict)
    survivors: list[int] = field(default_factory=list)
    answers: dict[int, Vector] = field(default_factory=dict)
    accused: dict[int, list[int]] = field(default_factory=dict)

    @property
    def dropped(self) -> list[int]:
        """Those who have shared and are not in the sum."""
        return [place for place in self.sharers if place not in self.survivors]


@dataclass(kw_only=True)
class Ledger(RunState):
    """The state of a run. `seconds` is its time in the log's clock, of which steps backwards are left out."""

    clients: list[ClientRecord]  # by number; those that were removed keep theirs
    members: int = 0  # clients that were not removed
    limits: Limits = field(default_factory=Limits)  # in force
    version: int = 0  # of the protocol with which the log was opened
    roster: int = 0  # the serial number of the coordinator's roster that it goes by
    life: int = 0  # the epoch after which all clients began anew when the run was last restored from a backup
    term: int = 0  # of the server that leads
    leader: str = ""
    tally: LogTally = field(default_factory=LogTally)
    position: int = 0  # in the log
    begun: bool = False
    secret: str = ""  # of the noise of this run, if it has any
    stamp: float = 0.0  # of the last entry
    seconds: float = 0.0  # since the run began; `now` is the same in the experiment's unit of time
    flights: dict[int, SentJob] = field(default_factory=dict)
    counter: int = 0  # of alarms
    alarms: dict[int, tuple[float, str]] = field(default_factory=dict)  # number -> (when, key)
    turns: dict[int, tuple[float, int]] = field(default_factory=dict)  # number -> (when, task that opens or closes)
    asked: int = 0
    scores: bool = False  # whether the server evaluates besides the clients
    judging: dict[int, Judging] = field(default_factory=dict)  # by task
    diverged: str = ""  # the error, if it has
    orders: list[str] = field(default_factory=list)  # the last questions that had entries added, by their ids
    norms: dict[int, UsualNorms] = field(default_factory=dict)  # by task
    helper: tuple[str, str, str] = ("", "", "")  # (account, sign, seal), the helper's public keys
    unopened: int = 0  # sums that nobody could or would open, or whose masks did not fit
    unopened_why: str = ""  # the last of them
    waiting: dict[int, Waiting] = field(default_factory=dict)  # by job: results whose clients wait for others
    ready: list[int] = field(default_factory=list)  # of these, the jobs of those that are called to no cohort yet
    gatherings: dict[int, Gathering] = field(default_factory=dict)  # by number
    aborted: int = 0  # cohorts that too few took part in to the end; their members were called again
    left_out: int = 0  # clients that are, for having kept cohorts from giving a sum
    rekeyed: int = 0  # times that a client was given other keys
