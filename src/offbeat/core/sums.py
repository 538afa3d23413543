"""Sums that are all a server sees of its clients: whole numbers in fixed point, and who is in a sum.

The rules, before the code:

1. A client rounds each number of its message at random to a multiple of 2^-bits, on average to itself: q · 2^-bits with
   a whole number q. |q| stays below 2^24, so that single precision holds it exactly, and below 2^31 over all updates
   that a sum has room for, so that no sum can wrap around 2^32.
2. What a client remembers that moves by its message (AREA's y) moves by what was sent. What does not fit or was rounded
   away is then part of its next message: nothing is lost, and the server's sums agree with the clients' memories.
3. Sums are taken in whole numbers modulo 2^32, which no order changes. They become floating point once, when open.
4. A sum is open when it has as many updates as the server takes for a step, of `cohort` different clients at least.
5. With differential privacy (`SumBound`) a client shortens its message and rounds it towards zero, so that no number is
   cut, and noise in whole units is added to the sum before anybody sees it. A client is in a sum once.
6. Where clients mask for each other, nobody else could add that noise. So each client adds its share to its message,
   and counts the messages that it has made (`SUMS_SPENT`). The shares of the `honest` ones among `cohort` clients are
   the noise that is claimed; in larger sums, and with more honest clients, there is more. A share is `GRAINS` units or
   more, which makes a sum of rounded shares as good as rounded Gaussian noise (docs/privacy.md). What a client
   remembers moves without the noise: its next message must not take back a part of it.

Initial models are rounded to multiples of 2^-bits as well: y then stays one, and exact, below 2^(24 - bits).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, sqrt
from typing import ClassVar, Literal

import torch

from offbeat.core.errors import Checked, Count, SettingError, Share
from offbeat.core.local import SUMS_SPENT, Carry, Local, Work, Wrapper
from offbeat.core.state import State
from offbeat.core.vectors import Payload, Vector, materialise

EXACT = 1 << 24  # whole numbers below it are exact in single precision
RING = 1 << 32
ROOM = 4  # times the updates of a server step: what a sum has room for, if few clients send most of them
TAIL = 13  # standard deviations beyond which no noise goes: it is made of 104 random bits
BITS = 20  # fractional bits, if nothing else is asked for
GRAINS = 5  # units that the standard deviation of a client's share of the noise has at least
_SAMPLE = 24  # the draw of random numbers that is for rounding
_NOISE = 2  # the purpose of random numbers that are a client's share of the noise


@dataclass(frozen=True)
class SumBound:
    """What differential privacy asks of a sum that is all a server sees.

    clip: largest length of a message.   deviation: of the noise in every number of a sum.   participations: sums that
    a client is in, at most.
    """

    clip: float
    deviation: float
    participations: int


@dataclass(frozen=True)
class Secure(Checked):
    """Secure aggregation: the server sees sums of its clients' updates, and no single one.

    cohort: different clients, at least, whose updates are in every sum; a sum of fewer is never opened.
    mode: "helper": a second party, `offbeat helper`, takes the masks off a sum; "cohort": the clients in it do.
    bits: fractional bits of a number that is sent: multiples of 2^-bits, up to 2^(24-bits); by default 20, or as many
        as the noise of [privacy] leaves room for.
    honest: with [privacy] and mode = "cohort", the share of the clients in a sum, at least, who tell nobody which noise
        they have added; the others may work with the server; 0.5 at least.
    """

    cohort: Count = 30
    mode: Literal["helper", "cohort"] = "helper"
    bits: int | None = None
    honest: Share = 0.5
    bound: SumBound | None = field(default=None, repr=False, metadata={"setting": False})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cohort < 2:
            raise SettingError(
                f"cohort = {self.cohort}: the sum of one client is its update; give 2 at least, better 30"
            )
        if not 1 <= self.places <= 30:
            raise SettingError(f"bits = {self.bits}: must be between 1 and 30")

    @property
    def places(self) -> int:
        """`bits`, or what is used without them."""
        return BITS if self.bits is None else self.bits

    @property
    def unit(self) -> float:
        """What the last bit of a number stands for."""
        return 2.0**-self.places

    def round(self, vector: Vector) -> Vector:
        """The nearest multiples of the unit, for an initial model."""
        return (torch.round(vector.double() / self.unit) * self.unit).to(vector.dtype)

    def largest(self, size: int) -> int:
        """The largest q, where a server step takes so many updates."""
        return min(EXACT - 1, (RING // 2 - 1) // (ROOM * size))

    @property
    def unknown(self) -> int:
        """Clients whose share of the noise nobody else knows, at least, in the smallest sum that is opened."""
        return ceil(self.honest * self.cohort - 1e-9)  # 0.55 · 100 is a little more than 55 in floating point

    @property
    def share(self) -> float:
        """Standard deviation of the noise that a client adds to each number of a message; 0: it adds none."""
        return 0.0 if self.bound is None or self.mode == "helper" else self.bound.deviation / sqrt(self.unknown)

    def bounded(self, bound: SumBound, size: int) -> Secure:
        """The same with noise in its sums, where a server step takes so many updates; raises `SettingError`."""
        made = replace(self, bound=bound)
        fit = [bits for bits in range(1, 31) if made._has_room(bound, size, bits)]
        fine = [bits for bits in fit if not made.share or made.share >= GRAINS * 2.0**-bits]
        if made.share and self.honest < 0.5:  # of a sum of `threshold` members, half and all drop-outs are fewer
            raise SettingError(
                f"secure.honest = {self.honest:g}: the other members of a cohort could be enough to open its single "
                "messages, with one client's share of the noise in each; give 0.5 at least"
            )
        if self.bits is None and (chosen := [bits for bits in fine if bits <= BITS]):
            return replace(made, bits=chosen[-1])
        if self.places in fine:
            return made
        said, least = f"secure.bits = {self.places}: ", f"{GRAINS} times 2^-{self.places}"
        if self.places not in fit:
            said += f"messages of length clip = {bound.clip:g} and their noise would not fit into sums of {size}; "
        else:
            said += f"a client's share of the noise, {made.share:g}, would be less than {least}; "
        remedy = "give more noise, or a larger clip" if fit else "give a smaller clip, or less noise"
        raise SettingError(said + (f"give bits = {fine[-1]}" if fine else remedy))

    def _has_room(self, bound: SumBound, size: int, bits: int) -> bool:
        """Whether nothing is cut and no sum wraps around: of messages with their shares of the noise, or before it."""
        if self.mode == "cohort":
            return bound.clip + TAIL * self.share <= self.largest(size) * 2.0**-bits
        return bound.clip <= self.largest(size) * 2.0**-bits and TAIL * bound.deviation <= RING // 4 * 2.0**-bits

    def noise(self, normal: Vector) -> Vector:
        """Standard normal numbers as the noise of a sum, in whole units."""
        assert self.bound is not None
        return torch.round(normal.double() * (self.bound.deviation / self.unit)).to(torch.int32)

    def check_clients(self, clients: int) -> None:
        """Raise `SettingError` if there are too few clients for a sum."""
        if clients < self.cohort:
            raise SettingError(
                f"secure.cohort = {self.cohort}: only {clients} clients take part, so no sum could ever be opened; "
                "have more clients, or a smaller cohort"
            )

    def check_size(self, size: int, clients: int) -> None:
        """Raise `SettingError` if clients mask for each other and there are too few for a server step."""
        if self.mode == "cohort" and size > clients:
            raise SettingError(
                f'size = {size}: with secure.mode = "cohort" each of the {clients} clients is in a sum once; give a '
                'size of at most that, or mode = "helper"'
            )


@dataclass(frozen=True)
class Encoded(Wrapper):
    """Trains as the one inside does and sends its difference in fixed point.

    secure: the table.   size: updates of a server step.
    """

    secure: Secure = field(kw_only=True, default_factory=Secure, metadata={"setting": False})
    size: int = field(kw_only=True, default=1, metadata={"setting": False})

    reports: ClassVar[bool] = False

    @property
    def moves(self) -> Mapping[str, str | None]:
        return self.inner.moves

    @property
    def largest(self) -> int:
        """The largest whole number that is sent."""
        return self.secure.largest(self.size)

    def remember(self, model: Vector) -> Payload:
        kept = self.inner.remember(self.secure.round(model))
        return {**kept, SUMS_SPENT: materialise(model).new_zeros(1)} if self.secure.share else kept

    def private(self, name: str) -> bool:
        return name == SUMS_SPENT or self.inner.private(name)

    def exhausted(self, memory: Payload) -> str:
        """Why a client that remembers this takes part in no further sum; empty if it does."""
        bound = self.secure.bound
        if bound is None or SUMS_SPENT not in memory or memory[SUMS_SPENT][0] < bound.participations:
            return ""
        return f"it has made {int(memory[SUMS_SPENT][0]):,} messages for sums, and {bound.participations:,} are allowed"

    def final(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        upload, memory = map(dict, self.inner.final(carry, work))
        (name,) = self.sends
        whole, moved = upload[name], self.moves[name]
        meant = whole[:, : work.shared]
        sent = self.rounded(meant, work.uniform(meant, _SAMPLE))
        if moved is not None:
            dim = meant.shape[1]
            memory[moved] = torch.cat([work.memory[moved][:, :dim] + sent, memory[moved][:, dim:]], 1)
        upload[name] = sent
        if self.secure.share:
            upload[name] = self.noised(sent, work)
            memory[SUMS_SPENT] = work.memory[SUMS_SPENT] + 1
        return upload, memory

    def noised(self, sent: Vector, work: Work) -> Vector:
        """These rows with a client's share of the noise in each number, in whole units."""
        unit = self.secure.unit
        normal = replace(work, step=0).normal(sent.shape[1], _NOISE).to(sent.device)
        return (sent.double() + torch.round(normal * (self.secure.share / unit)) * unit).to(sent.dtype)

    def rounded(self, meant: Vector, uniform: Vector) -> Vector:
        """What is sent of these rows; a row that is not finite stays so: nothing hides that a client has diverged.

        With a bound, it is nothing at all that such a row sends.
        """
        most, unit, bound = self.largest, self.secure.unit, self.secure.bound
        if bound is not None:
            return shortened(meant, bound.clip, unit)
        q = torch.floor(meant.double() / unit + uniform.double()).clamp(-most, most)  # `lost` counts what is cut
        finite = torch.isfinite(meant).all(dim=-1, keepdim=True)
        return torch.where(finite, (q * unit).to(meant.dtype), meant)

    def lost(self, sent: Vector) -> int:
        """Numbers of a message that were too large, so that a part of them is lost: nothing remembers it."""
        (name,) = self.sends
        if self.moves[name] is not None or self.secure.bound is not None:
            return 0
        return int((sent.abs() >= self.largest * self.secure.unit).sum())


def encoder(local: Local) -> Encoded | None:
    """What puts the messages of this local trainer into fixed point, if something does."""
    while not isinstance(local, Encoded):
        if not isinstance(local, Wrapper):
            return None
        local = local.inner
    return local


def shortened(rows: Vector, most: float, spacing: float) -> Vector:
    """Rows [n, d] at most so long, rounded towards zero to multiples of the spacing; what is not finite is zero."""
    exact = torch.where(torch.isfinite(rows).all(dim=-1, keepdim=True), rows.double(), 0.0)
    length = torch.linalg.vector_norm(exact, dim=-1, keepdim=True)
    shorter = torch.where(length > most, (1.0 - 1e-9) * most / torch.clamp(length, min=most), torch.ones_like(length))
    return (torch.trunc(exact * shorter / spacing) * spacing).to(rows.dtype)


def encoded(local: Local, secure: Secure, size: int) -> Local:
    """The local trainer with its message in fixed point, where a server step takes so many."""
    if local.compress is not None:
        raise SettingError("compress: [secure] sends every number of an update, in fixed point; leave compress out")
    named = [name for name in local.sends if name not in local.notes]
    if local.notes or len(named) != 1 or named[0] not in local.moves:
        raise SettingError(
            f"secure: what {local.label} sends here is more than one difference, {', '.join(local.sends)}; use a local "
            "trainer that sends one"
        )
    made = Encoded.around(local)
    object.__setattr__(made, "secure", secure)
    object.__setattr__(made, "size", size)
    return made


def words(vector: Vector, unit: float) -> Vector:
    """The whole numbers of a message, modulo 2^32."""
    largest = RING // 2 - 1  # only a client that does not encode at all goes beyond it
    return torch.round(materialise(vector).double() / unit).clamp(-largest, largest).to(torch.int32)


@dataclass
class Cohort(State):
    """A sum that is being made, of one task. total: modulo 2^32, [d] of int32.

    clients: those in it, each once.   moved: what running statistics have to be corrected by.
    tickets: in a real run, what the helper needs for the mask of each update; the order of `update`s.
    """

    total: Vector | None = None
    count: int = 0
    clients: list[int] = field(default_factory=list)
    moved: Vector | None = None
    task: int = 0
    tickets: list[tuple[str, int, int, str, str]] = field(default_factory=list)

    def add(self, client: int, words: Vector) -> None:
        """One more update; int32 wraps around, as it should."""
        self.total = words if self.total is None else materialise(self.total) + words
        self.count += 1
        if client not in self.clients:
            self.clients.append(client)

    def full(self, size: int, secure: Secure) -> bool:
        """Whether it can be opened, where a server step takes so many updates."""
        return self.count >= size and len(self.clients) >= secure.cohort

    def has_room(self, client: int, size: int, secure: Secure) -> bool:
        """Whether there is room for an update of this client, so that those who are still missing have some, too."""
        missing = max(0, secure.cohort - len(self.clients)) if client in self.clients else 0
        return self.count + missing < ROOM * size

    def value(self, unit: float, dtype: torch.dtype, masks: Vector | None = None) -> Vector:
        """The sum in numbers of this type. masks: the sum of the masks."""
        assert self.total is not None
        total = materialise(self.total) if masks is None else materialise(self.total) - masks
        return (total.double() * unit).to(dtype)

    def fits(self, masks: Vector, size: int, secure: Secure) -> bool:
        """Whether these masks leave a sum that so many updates can have, where a server step takes so many."""
        assert self.total is not None
        noise = 0.0 if secure.bound is None or secure.share else TAIL * secure.bound.deviation / secure.unit
        left = (materialise(self.total) - masks).long().abs()
        return bool((left <= self.count * secure.largest(size) + noise + 1).all())
