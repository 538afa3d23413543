"""What it costs that clients mask for each other: CPU and bytes of an update in a cohort, and of a plain one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from offbeat.algorithms import FedBuff
from offbeat.bench.secure import CLIENT, DIM, HELPER, fastest, table
from offbeat.core.algorithm import Algorithm
from offbeat.core.sums import Encoded, Secure, words
from offbeat.deploy import wire
from offbeat.deploy.envelope import Channel, Ours, Theirs, public_seal, public_sign
from offbeat.deploy.identity import Member, Roster
from offbeat.local import SGD
from offbeat.privacy.secure.calls import SEALED, Call, cut
from offbeat.privacy.secure.member import CohortMember, begin
from offbeat.privacy.secure.opening import left_masks
from offbeat.privacy.secure.streams import Words
from offbeat.privacy.secure.tickets import MaskContext

SMALL = 1000  # numbers of the sums that are checked


@dataclass(frozen=True)
class CohortRow:
    """CPU seconds, each the fastest of some turns, and bytes of one size of a cohort.

    plain: to write an update as a message, sign and seal it.   client: all steps of a member, its messages as well.
    server: for the masks of a sum.   dropped: the same if a tenth of the members have dropped out.
    up, down: bytes of a member's messages, and of what its assignments say about its cohort, over those of a plain run.
    """

    cohort: int
    plain: float
    client: float
    server: float
    dropped: float
    up: int
    down: int


class WholeCohort:
    """All members of a cohort, and what they say."""

    def __init__(self, count: int, dim: int) -> None:
        secrets = [CLIENT[:28] + n.to_bytes(4, "big") for n in range(count)]
        self.names = [f"c{n}" for n in range(count)]
        self.signers = {name: public_sign(secret) for name, secret in zip(self.names, secrets, strict=True)}
        self.context = MaskContext("fed", "run", 0, dim, max(2, count // 2), 20)
        ready = [begin(self.context, *each) for each in self._given(secrets)]
        self.call = Call(1, self.context, tuple(each.own for each in ready))
        self.members = [each.join(self.call, self.signers) for each in ready]
        self.sign = secrets[0]
        self.dealt = [cut(each.sealed_shares(), SEALED, count - 1) for each in self.members]

    def _given(self, secrets: Sequence[bytes]) -> list[tuple[str, tuple[int, int, int], bytes]]:
        return [(name, (1, 1, 0), secret) for name, secret in zip(self.names, secrets, strict=True)]

    def sealed(self, me: int) -> dict[int, bytes]:
        """What the others have sealed for this member."""
        return {other: each[me - (me > other)] for other, each in enumerate(self.dealt) if other != me}

    def heard(self, count: int) -> list[CohortMember]:
        """The first members, with their shares."""
        return [self.members[me].hear(self.sealed(me)) for me in range(count)]

    def part(self, numbers: Words) -> list[bytes]:
        """All that the first member does and says."""
        everybody = range(len(self.names))
        ready = begin(self.context, self.names[0], (1, 1, 0), self.sign)
        member = self.members[0]
        joined = CohortMember(self.context, member.own, member.seal, member.mask, member.seed, member.deal).join(
            self.call, self.signers
        )
        shares = joined.sealed_shares()
        heard = joined.hear(self.sealed(0))
        masked = heard.masked(numbers).astype("<u4").tobytes()
        header = wire.Trained("run", "c", 1, 1, 1, 1)
        return [
            wire.say(header, {"keys": ready.own.keys}),
            wire.say(wire.Dealt("run", "c", 1), {"shares": shares}),
            wire.say(wire.Masked("run", "c", 1), {"words": masked}),
            wire.say(wire.Revealed("run", "c", 1), {"shares": heard.answer(everybody, ())[1]}),
        ]

    @property
    def told(self) -> int:
        """Bytes that assignments say about the cohort to one member, in two phases, the roster included."""
        key = bytes(32)
        member = Member("A" * 56, "U" * 56, key, key)
        roster = Roster("fed", 1, key, member, dict.fromkeys(self.names, member), bytes(64)).to_json()
        return 2 * (len(self.call.to_bytes()) + len(roster)) + SEALED * (len(self.names) - 1)


def bench(cohorts: Sequence[int] = (10, 30, 100), dim: int = DIM) -> list[CohortRow]:
    """One row for each size; a sum of it is checked, with a tenth of the members dropped out."""
    return [_row(cohort, dim) for cohort in cohorts]


def _row(count: int, dim: int) -> CohortRow:
    _check(WholeCohort(count, SMALL))
    made, secure = WholeCohort(count, dim), Secure(cohort=2, mode="cohort")
    local = Algorithm(FedBuff(size=count), SGD(lr=0.1), secure=secure).local
    assert isinstance(local, Encoded)
    delta, uniform = torch.randn(1, dim) * 0.01, torch.rand(1, dim)

    def rounded() -> Words:
        return words(local.rounded(delta, uniform)[0], secure.unit).numpy().view(np.uint32)

    ours, theirs = Ours(CLIENT, CLIENT), Theirs(public_sign(HELPER), public_seal(HELPER))
    channel = Channel("fed", "run", "c", ours, theirs, server=False)
    header = wire.Trained("run", "c", 1, 1, 1, 1)
    plain, said = wire.say(header, {"delta": delta[0]}), made.part(rounded())
    whole = _answers(made, [])
    some = _answers(made, _tenth(count))
    return CohortRow(
        count,
        fastest(lambda: channel.seal("entry", wire.say(header, {"delta": delta[0]}))),
        fastest(lambda: [channel.seal("entry", each) for each in made.part(rounded())], 3),
        fastest(lambda: left_masks(made.call, range(count), [], whole), 2),
        fastest(lambda: left_masks(made.call, _others(count), _tenth(count), some), 1),
        sum(map(len, said)) - len(plain),
        made.told,
    )


def _tenth(count: int) -> list[int]:
    return list(range(count - count // 10, count))


def _others(count: int) -> list[int]:
    return list(range(count - count // 10))


def _answers(made: WholeCohort, dropped: list[int]) -> dict[int, bytes]:
    """Of as many members as it takes."""
    survivors = [place for place in range(len(made.names)) if place not in dropped]
    heard = made.heard(made.call.threshold)
    return {place: each.answer(survivors, dropped)[1] for place, each in enumerate(heard)}


def _check(made: WholeCohort) -> None:
    """The sum of the members that have not dropped out is exact."""
    count = len(made.names)
    survivors, dropped = _others(count), _tenth(count)
    total = np.zeros(SMALL, dtype=np.uint32)
    for place, member in enumerate(made.heard(len(survivors))):
        total += member.masked(np.full(SMALL, place, dtype=np.uint32))
    total -= left_masks(made.call, survivors, dropped, _answers(made, dropped))
    assert (total == sum(survivors)).all()


def text(rows: Sequence[CohortRow], dim: int = DIM) -> str:
    """The rows as a table, in Markdown."""
    named = ("client, ms", "over plain", "server, ms a sum", "with a tenth dropped out", "bytes up over plain", "down")
    cells = []
    for row in rows:
        client, server, dropped = (f"{1e3 * value:.0f}" for value in (row.client, row.server, row.dropped))
        over = f"{row.client / row.plain:.0f} times"
        cells.append((str(row.cohort), client, over, server, dropped, f"{row.up:+,}", f"{row.down:+,}"))
    return table((f"clients in a cohort, {dim:,} numbers", *named), cells)
