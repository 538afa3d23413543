"""Jobs between the server and its clients: queues, held work, who is there. All that changes is in the ledger."""

from __future__ import annotations

from offbeat.core.events import Job, Recall, Send
from offbeat.deploy.ledger import Ledger, SentJob
from offbeat.deploy.plan import Plan


class LoggedTraffic:
    """Moves jobs through a ledger. `changed` collects the clients whose assignments have changed, `absent` the work for
    clients that are not there."""

    def __init__(self, ledger: Ledger, plan: Plan) -> None:
        self.ledger, self.plan = ledger, plan
        self.changed: set[int] = set()
        self.absent: list[SentJob] = []

    def touch(self, client: int) -> None:
        """This client's assignment has changed."""
        self.ledger.clients[client].revision = self.ledger.position
        self.changed.add(client)

    def send(self, send: Send) -> None:
        """Add a job to its client's assignment."""
        ledger, plan = self.ledger, self.plan
        if not 0 <= send.client < len(ledger.clients):
            raise ValueError(f"work sent to client {send.client}, but there are {len(ledger.clients)}, numbered from 0")
        local, record = plan.locals[send.task], ledger.clients[send.client]
        steps = local.steps if send.steps is None else send.steps
        lr = local.lr if send.lr is None else send.lr
        job = Job(ledger.jobs, send.client, send.task, send.version, steps, lr, record.number, send.hold)
        ledger.jobs += 1
        record.number += 1
        ledger.tally.sent[send.task] = ledger.tally.sent.get(send.task, 0) + 1
        if not record.present:
            self.absent.append(SentJob(job, None, ledger.now, ledger.now))
            return
        ledger.flights[job.id] = SentJob(job, dict(send.payload), ledger.now, ledger.now)
        if send.hold:
            self._hold(job)
        else:
            record.queue.append(job.id)
        self.touch(send.client)

    def recall(self, recall: Recall) -> None:
        """Ask for held work."""
        record = self.ledger.clients[recall.client]
        if not record.held.get(recall.task):
            raise ValueError(f"recall of client {recall.client}, which holds no work of task {recall.task}")
        record.recalls[recall.task] = recall.partial
        for number in record.held[recall.task]:
            self.ledger.flights[number].since = self.ledger.now  # its lease begins
        self.touch(recall.client)

    def land(self, job: Job) -> None:
        """The job is no longer in flight; with held work, all that is older never was."""
        ledger, record = self.ledger, self.ledger.clients[job.client]
        if job.hold:
            mine = record.held[job.task]
            for number in mine[: mine.index(job.id) + 1]:
                del ledger.flights[number]
            record.held[job.task] = mine[mine.index(job.id) + 1 :]
            record.recalls.pop(job.task, None)
            if not record.held[job.task]:
                del record.held[job.task]
        else:
            del ledger.flights[job.id]
            record.queue.remove(job.id)
            if record.queue:
                ledger.flights[record.queue[0]].since = ledger.now
        self.touch(job.client)

    def join(self, client: int) -> None:
        """The client is there."""
        self.ledger.clients[client].present = True

    def leave(self, client: int) -> list[SentJob]:
        """The client is gone; gives what is lost with it, of held work the newest."""
        record = self.ledger.clients[client]
        record.present = False
        lost = [*record.queue, *(held[-1] for held in record.held.values())]
        flights = [self.ledger.flights[number] for number in sorted(lost)]
        for flight in flights:
            self.land(flight.job)
        self.touch(client)
        return flights

    def drop(self, task: int) -> None:
        """The jobs of a task are gone, wherever they are."""
        for record in self.ledger.clients:
            mine = [number for number in record.queue if self.ledger.flights[number].job.task == task]
            for number in [*mine, *record.held.get(task, ())[-1:]]:
                self.land(self.ledger.flights[number].job)

    def _hold(self, job: Job) -> None:
        """Newer held work replaces the older in the assignment; the client may still be at that, so it is kept."""
        mine = self.ledger.clients[job.client].held.setdefault(job.task, [])
        if mine:
            self.ledger.flights[mine[-1]].payload = None
        mine.append(job.id)
        while len(mine) > self.plan.limits.held:
            del self.ledger.flights[mine.pop(0)]
