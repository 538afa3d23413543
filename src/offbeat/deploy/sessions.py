"""Clients in the fold: they come and go, copies are fenced (rule 5 of `reducer`), members are added and removed."""

from __future__ import annotations

from offbeat.core.vectors import Payload
from offbeat.deploy import wire
from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.ledger import ClientRecord
from offbeat.deploy.part import FoldPart
from offbeat.privacy.secure.tickets import LIFE


class Sessions(FoldPart):
    """Who is a member, who is present, and which copy of it counts."""

    def enrol(self, new: wire.Enrolled) -> None:
        ledger = self.ledger
        ledger.clients.append(ClientRecord(new.name, new.account, new.sign, new.seal))
        ledger.members += 1
        self.fold.index[new.name] = new.client
        self.fold.traffic.census.renew(new.client)
        self.fold.traffic.touch(new.client)
        self.fold.admitted(new.client, self.plan.initial)

    def remove(self, client: int) -> None:
        record = self.ledger.clients[client]
        if record.removed:
            return
        self.leave(client)
        record.removed = True
        self.ledger.members -= 1
        for norms in self.ledger.norms.values():
            norms.last.pop(client, None)
        self.fold.traffic.touch(client)
        self.fold.dismissed(client)
        if self.fold.cohorts is not None:
            self.fold.cohorts.removed()

    def restore(self, restored: wire.Restored) -> None:
        """The clients may be ahead of this log: from here on each counts again once it has taken over our state."""
        ledger = self.ledger
        ledger.life = max(restored.epoch, 1 + max(record.epoch for record in ledger.clients))
        # what was under way may have been opened since, with other updates: it cannot be once more
        ledger.cohorts, ledger.closed, ledger.spoken, ledger.rested = {}, {}, {}, {}
        if self.fold.cohorts is not None:
            self.fold.cohorts.clear()
        ledger.sums = LIFE * ledger.life
        for client, record in enumerate(ledger.clients):
            if record.removed:
                continue
            self.leave(client)
            if record.nonce:  # otherwise it has not come back since the run was restored before
                record.known, record.known_nonce = (record.epoch, record.seq), record.nonce
            record.epoch, record.nonce, record.resync = ledger.life, "", self._memory(client)
            record.seq, record.digest, record.verdict, record.attempt = 0, "", "", 0
            self.fold.traffic.touch(client)

    def _memory(self, client: int) -> dict[int, Payload] | None:
        """A client's memory by task, as far as the server's state depends on it; None: it is not known."""
        found: dict[int, Payload] = {}
        for task, agrees in enumerate(self.plan.agrees):
            memory = self.fold.server.remembered(self.ledger.server, task, client) if agrees else {}
            if memory is None:
                return None
            if memory:
                found[task] = memory
        return found

    def hello(self, client: int, hello: wire.Hello) -> str:
        record = self.ledger.clients[client]
        try:
            self._admit(record, hello)
        except RefusedError as error:
            record.turned_away = (hello.nonce, error.code)
            self.fold.traffic.touch(client)
            raise
        if hello.epoch > record.epoch:
            self.leave(client)
            record.epoch, record.nonce = hello.epoch, hello.nonce
            record.seq, record.digest, record.verdict, record.resync = 0, "", "", {}
            record.cancelled, record.attempt = [], 0
        self.fold.traffic.touch(client)
        if not record.present and not self.ledger.stopped:
            record.since = self.ledger.position
            self.fold.joined(client)
        return ""

    def _admit(self, record: ClientRecord, hello: wire.Hello) -> None:
        if record.removed:
            raise RefusedError("removed", "this client was removed")
        if record.left_out:
            raise RefusedError("balks", "this client is left out")
        if hello.epoch < record.epoch or (hello.epoch == record.epoch and hello.nonce != record.nonce):
            raise RefusedError("fenced", "another copy of this client has taken over")
        if hello.epoch > record.epoch + 1:
            raise RefusedError("epoch", f"epoch {hello.epoch} after {record.epoch}")
        if hello.epoch > record.epoch and (hello.after_epoch, hello.after_seq) != (record.epoch, record.seq):
            raise RefusedError("behind", "the client's state is older than its last message with a verdict")
        if not record.present:
            self._check_seen(record, hello.seen)

    def bye(self, client: int, bye: wire.Bye) -> str:
        record = self.ledger.clients[client]
        self.check_epoch(record, bye.epoch)
        if record.present:
            self._check_seen(record, bye.seen)
        self.leave(client)
        return ""

    def _check_seen(self, record: ClientRecord, seen: int) -> None:
        """A greeting knows that the client was gone, a farewell that it was there: not so if they are said again."""
        if seen <= record.since and record.since:
            raise RefusedError("replay", "from before the client last joined or left")

    def leave(self, client: int) -> None:
        record = self.ledger.clients[client]
        if record.present:
            record.since = self.ledger.position
            self.fold.traffic.touch(client)
            self.fold.left(client)

    def leave_out(self, client: int) -> None:
        """A client is sent nothing any more, and sums do not wait for it."""
        for waiting in self.ledger.rested.values():
            waiting.pop(client, None)
        self.leave(client)
        if self.fold.cohorts is not None:
            self.fold.cohorts.removed()

    def check_epoch(self, record: ClientRecord, epoch: int) -> None:
        if epoch < record.epoch:
            raise RefusedError("fenced", "from before another copy of this client took over")
        if epoch > record.epoch:
            raise RefusedError("epoch", "from an epoch that no greeting has opened")
