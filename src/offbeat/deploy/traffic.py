"""Jobs between the server and its clients: queues, held work, who is there. All that changes is in the ledger."""

from __future__ import annotations

from collections import OrderedDict

from offbeat.core.algorithm import cannot_hold
from offbeat.core.errors import SettingError
from offbeat.core.events import Job, Recall, Send
from offbeat.deploy.ledger import ClientRecord, Ledger, SentJob
from offbeat.deploy.plan import Plan
from offbeat.deploy.view import Census


class LoggedTraffic:
    """Moves jobs through a ledger.

    changed: the clients whose assignments have changed.   absent: the work for clients that are not there.
    leases: the jobs that are waited for and since when, the longest first.   These, like the census, follow from the
    ledger.
    """

    def __init__(self, ledger: Ledger, plan: Plan) -> None:
        self.ledger, self.plan, self.census = ledger, plan, Census(ledger)
        self.changed: set[int] = set()
        self.fewer: set[int] = set()  # cohorts that a member has dropped out of
        self.absent: list[SentJob] = []
        awaited = [number for record in ledger.clients for number in _awaited(record)]
        numbers = [number for number in awaited if number not in ledger.waiting]
        begun = sorted((ledger.flights[number].since, number) for number in numbers)
        self.leases: OrderedDict[int, float] = OrderedDict((number, since) for since, number in begun)

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
        steps = plan.steps(send.task, send.client) if send.steps is None else send.steps
        lr = local.lr if send.lr is None else send.lr
        if local.paced:
            lr *= local.pace(send.version, record.number)
        job = Job(ledger.jobs, send.client, send.task, send.version, steps, lr, record.number, send.hold)
        ledger.jobs += 1
        record.number += 1
        ledger.tally.sent[send.task] = ledger.tally.sent.get(send.task, 0) + 1
        if not record.present:
            self.absent.append(SentJob(job, None, ledger.now, ledger.now))
            return
        ledger.flights[job.id] = SentJob(job, dict(send.payload), ledger.now, ledger.now)
        if send.hold:
            if not local.stops:
                raise SettingError(f"the server {cannot_hold(local)}")
            self._hold(job)
        else:
            record.queue.append(job.id)
            if len(record.queue) == 1:
                self._wait(job.id)
        self.census.renew(send.client)
        self.touch(send.client)

    def recall(self, recall: Recall) -> None:
        """Ask for held work."""
        record = self.ledger.clients[recall.client]
        if not record.held.get(recall.task):
            raise ValueError(f"recall of client {recall.client}, which holds no work of task {recall.task}")
        record.recalls[recall.task] = recall.partial
        for number in record.held[recall.task]:
            self.ledger.flights[number].since = self.ledger.now  # its lease begins
        self._wait(record.held[recall.task][-1])
        self.touch(recall.client)

    def cancel(self, client: int, task: int) -> list[SentJob]:
        """A client's jobs of a task are off its assignment; gives their flights, of held work the newest.

        A result that the client has sent before it sees that is known by its job. Only the client's next message can be
        one: what it writes after the verdict on that, it writes with this in sight.
        """
        ledger = self.ledger
        if not 0 <= client < len(ledger.clients):
            raise ValueError(f"work of client {client} cancelled, but there are {len(ledger.clients)}, numbered from 0")
        record = ledger.clients[client]
        mine, held = self._queued(record, task), record.held.get(task, [])
        record.cancelled = [*record.cancelled, *mine, *held][-ledger.limits.held :]
        flights = [ledger.flights[number] for number in [*mine, *held[-1:]]]
        for flight in flights:
            self.land(flight.job)
        return flights

    def land(self, job: Job) -> None:
        """The job is no longer in flight; with held work, all that is older never was."""
        ledger, record = self.ledger, self.ledger.clients[job.client]
        if job.hold:
            mine = record.held[job.task]
            for number in mine[: mine.index(job.id) + 1]:
                self._forget(number)
            if mine[-1] != job.id:
                self.leases.pop(mine[-1], None)  # newer work is not waited for before the next recall
            record.held[job.task] = mine[mine.index(job.id) + 1 :]
            record.recalls.pop(job.task, None)
            if not record.held[job.task]:
                del record.held[job.task]
        else:
            first = record.queue[0] == job.id
            self._forget(job.id)
            record.queue.remove(job.id)
            if first and record.queue:
                ledger.flights[record.queue[0]].since = ledger.now
                self._wait(record.queue[0])
        self.census.renew(job.client)
        self.touch(job.client)

    def resume(self, client: int) -> None:
        """A client that was paused gets its work: what is waited for is waited for from now on."""
        record = self.ledger.clients[client]
        record.paused = False
        for number in _awaited(record):
            self.ledger.flights[number].since = self.ledger.now
            self._wait(number)
        self.touch(client)

    def join(self, client: int) -> None:
        """The client is there."""
        self.ledger.clients[client].present = True
        self.census.renew(client)

    def leave(self, client: int) -> list[SentJob]:
        """The client is gone; gives what is lost with it, of held work the newest."""
        record = self.ledger.clients[client]
        record.present = False
        lost = [*record.queue, *(held[-1] for held in record.held.values())]
        flights = [self.ledger.flights[number] for number in sorted(lost)]
        for flight in flights:
            self.land(flight.job)
        self.census.renew(client)
        self.touch(client)
        return flights

    def drop(self, task: int) -> None:
        """The jobs of a task are gone, wherever they are."""
        for record in self.ledger.clients:
            for number in [*self._queued(record, task), *record.held.get(task, ())[-1:]]:
                self.land(self.ledger.flights[number].job)

    def _queued(self, record: ClientRecord, task: int) -> list[int]:
        """A client's plain jobs of a task."""
        return [number for number in record.queue if self.ledger.flights[number].job.task == task]

    def _hold(self, job: Job) -> None:
        """Newer held work replaces the older in the assignment; the client may still be at that, so it is kept."""
        record = self.ledger.clients[job.client]
        mine = record.held.setdefault(job.task, [])
        if mine:
            self.ledger.flights[mine[-1]].payload = None
            self.leases.pop(mine[-1], None)
        mine.append(job.id)
        if job.task in record.recalls:
            self._wait(job.id)
        while len(mine) > self.ledger.limits.held:
            self._forget(mine.pop(0))

    def _wait(self, number: int) -> None:
        """This job is waited for from now on."""
        self.leases[number] = self.ledger.flights[number].since
        self.leases.move_to_end(number)

    def _forget(self, number: int) -> None:
        del self.ledger.flights[number]
        self.leases.pop(number, None)
        if number in self.ledger.waiting:
            self.unready(number)

    def rest(self, number: int) -> None:
        """The client has done this job, and waits for others: it is not what is waited for."""
        self.leases.pop(number, None)

    def unready(self, number: int) -> None:
        """The result of this job does not wait for others any more."""
        waiting = self.ledger.waiting.pop(number)
        if waiting.cohort:
            self.fewer.add(waiting.cohort)
        else:
            self.ledger.ready.remove(number)

    def put_off(self, number: int, task: int) -> None:
        """The result of this job is put off: its client has to do a job of this task first."""
        self.unready(number)
        client = self.ledger.flights[number].job.client
        queue = self.ledger.clients[client].queue
        queue.sort(key=lambda each: self.ledger.flights[each].job.task != task)
        self.ledger.flights[queue[0]].since = self.ledger.now
        self._wait(queue[0])
        self.touch(client)

    def renew(self, number: int) -> None:
        """Its client has to say again that it is ready: its lease begins anew."""
        self.unready(number)
        self.ledger.flights[number].since = self.ledger.now
        self._wait(number)


def _awaited(record: ClientRecord) -> list[int]:
    """The jobs of a client that are waited for: the head of its queue, and held work that was recalled."""
    return [*record.queue[:1], *(record.held[task][-1] for task in record.recalls)]
