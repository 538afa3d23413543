"""The messages of a run: what clients, the helper and the server say, each kind a dataclass that is its header.

`encoding` makes bytes of them; `read` checks every field against its type here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, get_args

from offbeat.deploy.encoding import Count, Loss, Message, Name, RefusedError, Seconds, Text, pack, read

if TYPE_CHECKING:
    from offbeat.deploy.encoding import Parts


class LogEntry(NamedTuple):
    """One entry of the log. sender: a client's name, "" for the server.

    keys: (account, sign, seal), the client's public keys with which the entry was verified.
    """

    seq: int
    stamp: float  # seconds
    sender: str
    data: bytes
    keys: tuple[str, str, str] = ("", "", "")


@dataclass(frozen=True)
class RunHeader:
    """What every message says."""

    run: Name


@dataclass(frozen=True)
class ClientHeader(RunHeader):
    """What every message of a client says."""

    client: Name


@dataclass(frozen=True)
class Hello(ClientHeader):
    """A client is there. after_*: the last of its messages that it knows to be settled, if its epoch is new.

    seen: one more than the revision of the newest assignment it knows, so that it counts once.
    """

    epoch: Count
    nonce: Name
    after_epoch: Count = 0
    after_seq: Count = 0
    seen: Count = 0


@dataclass(frozen=True)
class Trained(ClientHeader):
    """A job is done, or cannot be done (`error`). Times are seconds, measured by the client.

    others: job -> what it took to compute, of held results since the last message that nobody asked for.
    attempt: where clients mask for each other, the body is the keys of this attempt (`ReadyKeys.keys`), and what was
    computed follows once a cohort is called (`Dealt`, `Masked`).
    cut: a part of it was lost, because numbers were too large for `secure.bits`.
    """

    epoch: Count
    seq: Count
    job: Count
    steps: Count
    download: Seconds = 0.0
    wait: Seconds = 0.0
    compute: Seconds = 0.0
    error: Text = ""
    others: dict[Name, Seconds] = field(default_factory=dict)
    attempt: Count = 0
    cut: bool = False


@dataclass(frozen=True)
class Dealt(ClientHeader):
    """A member of a cohort has dealt shares of its secrets: in its body `shares`, sealed for each of the others."""

    number: Count


@dataclass(frozen=True)
class Masked(ClientHeader):
    """A member of a cohort sends its update: in its body `words`, masked."""

    number: Count


@dataclass(frozen=True)
class Accused(ClientHeader):
    """A member cannot open shares that others have dealt: in its body `accused`, 1 for each of these, by place."""

    number: Count


@dataclass(frozen=True)
class Revealed(ClientHeader):
    """A member gives away its shares for a sum that is closed: in its body `shares`, one for each that has dealt."""

    number: Count


@dataclass(frozen=True)
class Bye(ClientHeader):
    """A client leaves. seen: as in its greeting."""

    epoch: Count
    seen: Count = 0


@dataclass(frozen=True)
class Judged(ClientHeader):
    """What a model comes to on a client's own held-out data, for the evaluation of this number.

    total: samples.   loss: summed over them; `diverged` if it is nan, which JSON has no word for.   sums: by metric.
    personal: the task's main metric, by its name, of the client's own model, made from this one.
    """

    epoch: Count
    number: Count
    total: Count
    loss: Loss = 0.0
    diverged: bool = False
    sums: dict[Name, list[Loss]] = field(default_factory=dict)
    personal: dict[Name, Loss] = field(default_factory=dict)


@dataclass(frozen=True)
class Unmasked(ClientHeader):
    """The helper has taken the masks off a sum: in its body `masks`, their sum. error: why it will not."""

    number: Count
    error: Text = ""


@dataclass(frozen=True)
class Helped(RunHeader):
    """The helper of this run has these public keys from now on."""

    account: Name
    sign: Name
    seal: Name


@dataclass(frozen=True)
class Opening(RunHeader):
    """The first entry of a log: the version of its messages, the limits, and in its body `roster` who may take part.

    limits: `Limits.plain`.   The roster is JSON: [name, account, sign, seal] of each client, in the order of their
    numbers, beginning with `first`; a large roster comes in several entries.
    """

    version: Count
    limits: dict[Name, float]
    first: Count = 0


@dataclass(frozen=True)
class Limited(RunHeader):
    """Other limits are in force from here on."""

    limits: dict[Name, float]


@dataclass(frozen=True)
class Rostered(RunHeader):
    """What follows about clients is from the coordinator's roster of this serial number; older ones count no more."""

    serial: Count


@dataclass(frozen=True)
class Enrolled(RunHeader):
    """A client may take part from now on. client: its number, the next one."""

    client: Count
    name: Name
    account: Name = ""
    sign: Name = ""
    seal: Name = ""


@dataclass(frozen=True)
class Removed(RunHeader):
    """A client is taken out for good."""

    client: Count


@dataclass(frozen=True)
class Rekeyed(RunHeader):
    """A client's public keys are others from now on."""

    client: Count
    account: Name
    sign: Name
    seal: Name


@dataclass(frozen=True)
class Led(RunHeader):
    """A server leads."""

    term: Count
    server: Name


@dataclass(frozen=True)
class Restored(RunHeader):
    """The log was put back from a backup: all clients begin a new epoch after this one, with the server's state.

    epoch: larger than any that a client can have had since the backup.
    """

    epoch: Count


@dataclass(frozen=True)
class Begun(RunHeader):
    """The run begins. secret: what its noise is drawn from, in hexadecimal, if it has any; the entry is sealed."""

    secret: Name = ""


@dataclass(frozen=True)
class Rung(RunHeader):
    """An alarm is due."""

    alarm: Count


@dataclass(frozen=True)
class Expired(RunHeader):
    """A job's lease is over."""

    job: Count


@dataclass(frozen=True)
class Gone(RunHeader):
    """Nothing was heard of a client for too long."""

    client: Count
    epoch: Count


@dataclass(frozen=True)
class Scored(RunHeader):
    """A model was evaluated by the server."""

    task: Count
    time: float
    updates: Count
    version: Count
    metrics: dict[Name, float]
    diverged: bool = False  # the loss is nan


@dataclass(frozen=True)
class Asked(RunHeader):
    """The clients are to evaluate a task's model on their own held-out data.

    scored: the server evaluates it, too; of the clients only their personalised models are wanted.
    """

    task: Count
    scored: bool = False


@dataclass(frozen=True)
class Counted(RunHeader):
    """An evaluation by the clients is over, with the answers that came."""

    task: Count


@dataclass(frozen=True)
class Halted(RunHeader):
    """The run is ended from outside: its time is over, or an operator stopped it."""

    reason: Text


@dataclass(frozen=True)
class Ordered(RunHeader):
    """What a holder of the server's keys has asked for, in its body `entry`: a message of the server's, to count once.

    id: of the question.
    """

    id: Name


@dataclass(frozen=True)
class Beat(ClientHeader):
    """A client's heartbeat; not part of the log. seen: one more than the revision of the newest assignment it knows.

    term, pulse: of the newest pulse of the leading server that it has heard, and so is younger than.
    """

    epoch: Count
    seen: Count
    job: Count = 0
    done: Count = 0  # local steps of it
    working: bool = False
    term: Count = 0
    pulse: Count = 0


FromClient: TypeAlias = Hello | Trained | Dealt | Masked | Accused | Revealed | Bye | Judged | Unmasked
FromServer: TypeAlias = (
    Opening
    | Limited
    | Rostered
    | Enrolled
    | Removed
    | Rekeyed
    | Helped
    | Led
    | Restored
    | Begun
    | Rung
    | Expired
    | Gone
    | Scored
    | Asked
    | Counted
    | Halted
    | Ordered
)
Header: TypeAlias = FromClient | FromServer | Beat

HEADERS: dict[str, type[Any]] = {each.__name__.lower(): each for each in get_args(Header)}  # by kind
BODIES = ("trained", "dealt", "masked", "accused", "revealed", "opening", "ordered", "unmasked")  # vectors or bytes


def say(header: Header, parts: Parts | None = None, dtype: str = "") -> bytes:
    """The message with this header."""
    return pack(type(header).__name__.lower(), vars(header), parts, dtype)


def heard(message: Message) -> Any:
    """The header of a message, as the class of its kind."""
    if message.kind not in HEADERS:
        raise RefusedError("malformed", f"of an unknown kind, {message.kind[:40]!r}")
    if message.parts and message.kind not in BODIES:
        raise RefusedError("malformed", f"{message.kind} has no body")
    return read(HEADERS[message.kind], message.header)
