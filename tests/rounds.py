"""A cohort of clients that mask for each other, all of whose messages are delivered."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from offbeat.deploy.envelope import public_sign
from offbeat.privacy.secure.calls import SEALED, Call, cut
from offbeat.privacy.secure.member import CohortMember, begin
from offbeat.privacy.secure.streams import Words
from offbeat.privacy.secure.tickets import MaskContext

SIGN = {f"c{n}": bytes([n + 1]) * 32 for n in range(40)}
SIGNERS = {name: public_sign(secret) for name, secret in SIGN.items()}


def own_mask(call: Call, seed: bytes) -> Words:
    total = np.zeros(call.context.dim, dtype=np.uint32)
    call.add_own(total, seed)
    return total


def pair_mask(call: Call, shared: bytes, one: int, other: int) -> Words:
    total = np.zeros(call.context.dim, dtype=np.uint32)
    call.add_pair(total, shared, one, other)
    return total


def assert_uniform(words: Words, hidden: Words) -> None:
    """Each byte of the words is distributed uniformly, and they are not correlated with what they hide."""
    dim = len(words)
    for shift in (0, 8, 16, 24):
        counts = np.bincount((words >> shift) & 255, minlength=256)
        chi = float(((counts - dim / 256) ** 2 / (dim / 256)).sum())
        assert chi < 379  # of 255 degrees of freedom: p > 1e-6
    assert abs(np.corrcoef(words, hidden)[0, 1]) < 5 / dim**0.5


def drawing(seed: int) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


@dataclass
class Round:
    """A cohort whose messages are all delivered."""

    members: list[CohortMember]
    call: Call
    dealt: list[list[bytes]]  # by place, sealed for each other member

    def hear(self, me: int, sharers: Sequence[int]) -> CohortMember:
        """With the shares of these."""
        sealed = {other: self.dealt[other][me - (me > other)] for other in sharers if other != me}
        return self.members[me].hear(sealed)


def called(count: int, dim: int = 5, cohort: int = 2, seed: int = 0) -> Round:
    context, draw = MaskContext("fed", "run", 0, dim, cohort, 20), drawing(seed)
    members = [begin(context, f"c{n}", (1, 1, 0), SIGN[f"c{n}"], draw) for n in range(count)]
    call = Call(7, context, tuple(each.own for each in members))
    members = [each.join(call, SIGNERS) for each in members]
    return Round(members, call, [cut(each.sealed_shares(), SEALED, count - 1) for each in members])
