"""The world that breaks, with secure aggregation: masked updates, a helper that crashes too, and a curious server.

The witness knows what every mask hides. A sum must be that of its clients' numbers, each message must be in one sum,
and a helper must open no message twice, whatever it is asked: now and then it is asked for a sum less one client.
In "cohort" worlds there is no helper: clients mask for each other, and are now and then asked for other survivors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from faults import ALGORITHMS, CLIENTS, Broken, Bugs, CrashError, Jump, Node
from witness import Fold

from offbeat.algorithms import AREA, FedAST, FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.sums import Secure
from offbeat.core.vectors import Payload
from offbeat.deploy import effects as client_side, encoding, server_core as server_side, wire
from offbeat.deploy.envelope import public_seal, public_sign
from offbeat.deploy.helper_core import HelperCore, HelperMemory
from offbeat.deploy.helping import HelpingHeader, read_helping, write_helping
from offbeat.deploy.identity import HELPER
from offbeat.deploy.masking import Masking, PairMasking
from offbeat.deploy.membership import openings
from offbeat.deploy.taking_part import TakingPart
from offbeat.privacy.secure.member import CohortMember
from offbeat.privacy.secure.tickets import SumRequest

SECRETS = {name: bytes([1 + n]) * 32 for n, name in enumerate([*(f"c{n}" for n in range(CLIENTS)), HELPER])}
SEALS = {name: public_seal(secret) for name, secret in SECRETS.items()}
SIGNS = {name: public_sign(secret) for name, secret in SECRETS.items()}
SECURED: dict[str, Callable[[], Algorithm]] = {
    "secure": lambda: Algorithm(FedBuff(size=3), Jump(lr=1.0, steps=2), secure=Secure(cohort=2)),
    "secure area": lambda: Algorithm(AREA(size=3), Jump(lr=1.0, steps=3), secure=Secure(cohort=2)),
    "cohort": lambda: Algorithm(FedBuff(size=4), Jump(lr=1.0, steps=2), secure=PAIRWISE),
    "cohort of three": lambda: Algorithm(FedBuff(size=3), Jump(lr=1.0, steps=2), secure=PAIRWISE),
    "cohort fedast": lambda: Algorithm(FedAST(requests=8, size=3), Jump(lr=1.0, steps=2), secure=PAIRWISE),
    "cohort fedast area": lambda: Algorithm(
        FedAST(requests=8, size=4, aggregate=AREA(size=4)), Jump(lr=1.0, steps=2), secure=THREE
    ),
    "cohort area": lambda: Algorithm(AREA(size=4), Jump(lr=1.0, steps=3), secure=PAIRWISE),
}
PAIRWISE, THREE = (Secure(cohort=least, mode="cohort") for least in (2, 3))


class Secured(Broken):
    """One schedule."""

    worlds: Mapping[str, Callable[[], Algorithm]] = SECURED

    def __init__(self, seed: int, algorithm: str = "secure", bugs: Bugs | None = None, rate: float = 1.0) -> None:
        ALGORITHMS.update(self.worlds)
        try:
            super().__init__(seed, algorithm, bugs, rate)
        finally:
            for name in self.worlds:
                del ALGORITHMS[name]
        self.helper: HelperCore | None = None
        self.helper_disk: bytes | None = None
        self.question = b""
        self.opened: dict[str, frozenset[str]] = {}  # a message's key -> the sum it was opened in
        self.sent: dict[str, bytes] = {}  # a message's key -> what it has masked
        if self.plan.pairwise:
            self.witness.late = 60.0  # a result waits for others, who may be away
        self.uploads: dict[bytes, Payload] = {}  # by the words that are masked
        self.answers: dict[tuple[str, int], bytes] = {}  # (client, number of a sum) -> what it has given away
        keys = {name: ("", SIGNS[name].hex(), seal.hex()) for name, seal in SEALS.items()}
        for entry in openings(self.plan, keys):
            self.store("", entry)
        if not self.plan.pairwise:
            self.later(0.0, self.boot_helper)

    def keys_of(self, sender: str) -> tuple[str, str, str]:
        return ("", SIGNS[sender].hex(), SEALS[sender].hex()) if sender and sender != HELPER else ("", "", "")

    # Clients that mask for each other

    def taking_part(self, node: Node) -> TakingPart | None:
        if not self.plan.pairwise:
            return None
        return self.bugs.part(self.pairing(node.name))

    def pairing(self, name: str) -> PairMasking:
        world = self

        class Watched(self.bugs.pairing):  # type: ignore[name-defined, misc]
            def words(self, upload: Payload) -> bytes:
                words: bytes = super().words(upload)
                world.uploads[words] = upload
                return words

            def begin(self, header: wire.Trained, task: int, words: bytes) -> CohortMember:
                member: CohortMember = super().begin(header, task, words)
                once = member.own.mask.hex()
                if world.sent.setdefault(once, words) != words:
                    world.violations.append(f"{name} has used a mask for two messages")
                world.witness.plain[once] = world.uploads[words]
                return member

            def signers(self, roster: bytes, serial: int = 0) -> dict[str, bytes]:
                return SIGNS

        assert self.plan.secure is not None
        return Watched("fed", "run", self.plan.secure, SECRETS[name], b"", self.random.randbytes)

    def obey_client(self, node: Node, effect: client_side.Effect) -> None:
        if isinstance(effect, client_side.Tell) and self.plan.pairwise:
            self.note_revealed(node.name, effect.data)
            if node.core is not None and node.core.part is not None and node.core.part.refused:
                self.violations.append(f"{node.name} has refused: {node.core.part.refused}")
            if self.chance("curious call", 0.2):
                self.ask_again(node)
        super().obey_client(node, effect)

    def contradict(self, name: str, data: bytes) -> None:
        """As elsewhere, under a number that is settled: a message that waits for others is not, though it is stored."""
        message = encoding.unpack(data)
        record = None if self.core is None else self.core.ledger.clients[self.core.reducer.index[name]]
        waits = self.plan.pairwise and message.kind == "trained"
        if not waits or (
            record is not None and (record.epoch, record.seq) >= (message.header["epoch"], message.header["seq"])
        ):
            super().contradict(name, data)

    def note_revealed(self, name: str, data: bytes) -> None:
        """Nobody may give away two things for one sum."""
        message = encoding.unpack(data)
        if message.kind == "revealed":
            number, shares = message.header["number"], bytes(message.parts["shares"][1])
            if self.answers.setdefault((name, number), shares) != shares:
                self.violations.append(f"{name} has answered twice for sum {number}")

    def ask_again(self, node: Node) -> None:
        """Ask a copy of the client for its shares as if another client had dropped out, too."""
        core = node.core
        if core is None or core.state is None or core.assignment is None:
            return
        if not core.state.named_by(core.assignment) or core.state.settled != core.assignment.last:
            return  # it would not take part: it has not been let in yet
        part = self.bugs.part(self.pairing(node.name))
        for number, survivors, dropped in core.assignment.reveal:
            for other in survivors:
                fewer = (number, tuple(place for place in survivors if place != other), (*dropped, other))
                lie = replace(core.assignment, reveal=(fewer,))
                self.fired["lies"] += 1
                for effect in part.tell(part.after(core.state, lie), lie):
                    self.note_revealed(node.name, effect.data)  # type: ignore[union-attr]

    # The helper's clients

    def masking(self, node: Node) -> Masking | None:
        assert self.plan.secure is not None
        if self.plan.pairwise:
            return None
        made = self.bugs.mask("fed", "run", self.plan.secure, SECRETS[node.name], SEALS[HELPER])

        def mask(header: wire.Trained, task: int, upload: Payload) -> Any:
            parts = made(header, task, upload)
            once, (words, *_) = parts["once"].hex(), parts.values()  # type: ignore[union-attr]
            if self.sent.setdefault(once, words) != words:  # type: ignore[arg-type]
                self.violations.append(f"{node.name} has used a mask for two messages")
            self.witness.plain[once] = upload
            return parts

        return mask  # type: ignore[return-value]

    def chance(self, what: str, probability: float) -> bool:
        return what != "rubbish" and super().chance(what, probability)

    # The helper

    def boot_helper(self) -> None:
        self.helper = self.bugs.helper("fed", "run", SECRETS[HELPER], b"", retry=0.7)
        if self.helper_disk is None:
            self.helper.kept = HelperMemory(seals={name: [seal.hex()] for name, seal in SEALS.items()})
        self.helper.start(self.helper_disk)
        if self.question:
            self.help(lambda helper: helper.hear(self.question, self.now))
        self.later(0.3, lambda helper=self.helper: self.tick_helper(helper))

    def tick_helper(self, helper: HelperCore) -> None:
        if helper is not self.helper:
            return
        self.help(lambda core: core.tick(self.now))
        self.later(0.3, lambda: self.tick_helper(helper))

    def help(self, step: Callable[[HelperCore], list[client_side.Effect]]) -> None:
        if self.helper is None:
            return
        try:
            for effect in step(self.helper):
                self.perhaps_crash("helper", "before", type(effect).__name__, 0.01)
                if isinstance(effect, client_side.Save):
                    self.helper_disk = effect.data
                elif isinstance(effect, client_side.Tell):
                    self.note_opened(self.question, effect.data)
                    self.carry("unmasked", lambda data=effect.data: self.store(HELPER, data))
                self.perhaps_crash("helper", "after", type(effect).__name__, 0.01)
        except CrashError:
            self.helper = None
            self.later(self.random.uniform(0.1, 5.0), self.boot_helper)

    def note_opened(self, question: bytes, answer: bytes) -> None:
        """No message may be opened in two sums."""
        header = wire.heard(encoding.unpack(answer))
        if header.error:
            self.fired["refused by the helper"] += 1
            return
        request = read_helping(question).requests.get(header.number)
        if request is None:
            return  # an answer to what was asked before, again
        sum_ = frozenset(ticket.once.hex() for ticket in request.tickets)
        for once in sum_:
            if self.opened.setdefault(once, sum_) != sum_:
                self.violations.append("a message was opened in two sums")

    def obey_server(self, effect: server_side.Effect) -> None:
        if not isinstance(effect, server_side.Consult):
            super().obey_server(effect)
            return
        assert self.core is not None
        question = write_helping(self.plan, self.core.ledger, b"")
        self.carry("question", lambda: self.ask(question))

    def ask(self, question: bytes) -> None:
        self.question = question
        self.help(lambda helper: helper.hear(question, self.now))
        if self.chance("curious question", 0.5):
            self.later(self.random.uniform(0.1, 2.0), lambda: self.be_curious(question))

    def be_curious(self, question: bytes) -> None:
        """Ask a copy of the helper for the same sums without one client each, under the same number and the next."""
        if self.helper is None:
            return
        for request in read_helping(question).requests.values():
            if request.number > self.helper.kept.opened.last:
                continue  # a copy that is the first to be asked knows of no other sum
            for number in (request.number, request.number + 1):
                fewer = replace(request, number=number, tickets=request.tickets[1:])
                copy = type(self.helper)("fed", "run", SECRETS[HELPER], b"")
                copy.kept = self.helper.kept
                lied = curious(fewer)
                for effect in copy.hear(lied, self.now):
                    if isinstance(effect, client_side.Tell):
                        self.note_opened(lied, effect.data)

    # What must hold

    def gives_way(self, node: Node, error: str) -> bool:
        """Or whether the server has left it out: the network can fail a client in five cohorts in a row."""
        if "left out of the run" not in error:
            return super().gives_way(node, error)
        self.retired.add(node.index)
        self.fired["left out"] += 1
        return True

    def judge_progress(self, fold: Fold) -> None:
        """A sum whose members are removed before they have answered is lost; if nobody else is left, so is the run."""
        ends = ("a sum is lost, and all clients", "cannot be opened, and its clients have moved on")
        if not (self.retired and fold.ledger.unopened and any(end in fold.ledger.stopped for end in ends)):
            super().judge_progress(fold)
            return
        self.fired["ended by a removal"] += 1
        for node in self.nodes:
            if node.error is None:
                self.violations.append(f"{node.name} has not come to rest")

    def judge_memory(self, fold: Fold) -> None:
        super().judge_memory(fold)
        self.fired["sums"] += len(fold.opened)
        self.fired["aborted"] += fold.ledger.aborted
        self.fired["unopened"] += fold.ledger.unopened
        if fold.ledger.unopened and not self.plan.pairwise:
            self.violations.append(f"{fold.ledger.unopened} sums were not opened")
        if self.kind in ("secure area", "cohort area") and not self.fired["ended by a removal"]:
            waiting = [*fold.ledger.cohorts.values(), *fold.ledger.closed.values()]
            sent = [self.witness.plain[t[-1]]["residual"] for each in waiting for t in each.tickets]
            y = sum(fold.remembered(client, 0)[0][1][0] for client in range(CLIENTS))
            now = CLIENTS * float(fold.ledger.server.model.vector + fold.ledger.server.u) + sum(map(float, sent))
            if y != now:
                self.violations.append(f"the sum of y is {y}, and the server has {now}")


def curious(request: SumRequest) -> bytes:
    """A question for one sum."""
    header = HelpingHeader("run", 1 << 40)
    return encoding.pack("helping", vars(header), {"roster": b"", str(request.number): request.to_bytes()})
