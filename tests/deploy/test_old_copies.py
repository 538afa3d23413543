"""A server that hands a client an older copy of its state than the client has on its disk."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from logs import Log, plan
from rounds import SIGN, called

from offbeat.algorithms import FedAsync
from offbeat.core.local import STEPS_SPENT
from offbeat.core.sums import Secure
from offbeat.core.vectors import Payload
from offbeat.deploy import effects, encoding
from offbeat.deploy.assignment import Models, write_assignment
from offbeat.deploy.client_core import ClientCore
from offbeat.deploy.client_state import ClientState, PendingResult, write_client_state
from offbeat.deploy.masking import PairMasking
from offbeat.deploy.taking_part import TakingPart

# local steps so far, of the largest job, and with how many samples, of which how many in a step
ZERO = {STEPS_SPENT: torch.tensor([0.0, 3.0, 1000.0, 10.0])}
SPENT = {STEPS_SPENT: torch.tensor([90.0, 3.0, 100.0, 10.0])}
ONE, OTHER = [7, [0, 1, 2, 3], [4]], [7, [0, 1, 2, 4], [3]]  # (sum, survivors, drop-outs)


class Liar:
    """A server that says to a client what it likes, and the client."""

    def __init__(self, first: Payload, state: ClientState, part: TakingPart | None = None) -> None:
        ledger = Log(plan(FedAsync())).begin().reducer.ledger
        honest = encoding.unpack(write_assignment("run", ledger, 0, Models(), lambda *_: None, roster=b""))
        kept = {name: value for name, value in honest.header.items() if name not in ("kind", "parts")}
        self.header = {**kept, "jobs": [], "nonce": "a"}
        self.told = list[bytes]()  # what the client has said
        self.client = ClientCore("run", "c0", [first], lambda: "next", 0.0, 1e9, part=part)
        self.client.state = state

    def say(self, **lies: Any) -> None:
        self.header = {**self.header, "revision": self.header["revision"] + 1, **lies}
        self.do(self.client.hear(encoding.pack("assignment", self.header), 0.0))

    def do(self, wants: list[effects.Effect]) -> None:
        for each in wants:
            if isinstance(each, effects.Tell):
                self.told.append(each.data)
            if isinstance(each, effects.Mirror):
                self.do(self.client.mirrored(each.data, 0.0))

    def roll_back(self, old: ClientState, **lies: Any) -> None:
        """Have the client ask for its copy, and give it this one as if it were the newest."""
        self.say(seq=99)
        assert self.client.recovering
        pending = old.pending
        self.say(seq=old.seq, **({} if pending is None else {"digest_last": pending.digest, "verdict": "applied"}))
        self.do(self.client.recovered(write_client_state(old), 0.0))
        self.say(epoch=2, nonce="next", seq=0, **lies)


def test_an_older_copy_gives_a_client_that_has_its_disk_nothing_back_of_its_budget() -> None:
    old = ClientState("run", "c0", 1, "a", True, 1, settled=(1, 1), memory={0: ZERO})
    liar = Liar(ZERO, ClientState("run", "c0", 1, "a", True, 8, settled=(1, 8), memory={0: SPENT}))
    liar.roll_back(old)
    assert liar.client.state is not None
    assert liar.client.state.accepted
    assert liar.client.state.memory[0][STEPS_SPENT].tolist() == [93.0, 3.0, 100.0, 10.0]  # one job more


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("first", [{}, {"own": torch.zeros(2)}])
def test_an_older_copy_has_no_client_with_a_disk_answer_twice_for_a_sum(first: Payload, restored: bool) -> None:
    member = called(5).hear(0, range(5)).to_bytes()
    pending = PendingResult(1, 1, 1, 0, b"m", None, member=member, cohort=7, heard=True)
    memory = {0: first} if first else {}
    old = ClientState("run", "c0", 1, "a", True, 1, settled=(1, 0), memory=memory, pending=pending, cohort=7)
    part = TakingPart(PairMasking("fed", "run", Secure(cohort=2, mode="cohort"), SIGN["c0"], b""))
    liar = Liar(first, old, part)
    liar.say(seq=1, digest_last=pending.digest, verdict="applied", reveal=[ONE])
    liar.say(reveal=[])
    if restored:
        liar.say(nonce="", memory=[])
        liar.say(nonce="a", memory=None)
    liar.roll_back(old, reveal=[OTHER])
    assert len({each for each in liar.told if encoding.unpack(each).kind == "revealed"}) == 1
