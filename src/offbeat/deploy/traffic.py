"""Jobs between the server and its clients: queues, held work, who is there. All that changes is in the ledger."""

from __future__ import annotations

from offbeat.core.events import Job, Recall, Send
from offbeat.deploy.ledger import Flight, Ledger
from offbeat.deploy.plan import Plan


class Traffic:
    """Moves jobs through a ledger. `changed` collects the clients whose desks are different now, `absent` the work
    that nobody is there to do."""

    def __init__(self, ledger: Ledger, plan: Plan) -> None:
        self.ledger, self.plan = ledger, plan
        self.changed: set[int] = set()
        self.absent: list[Flight] = []

    def touch(self, client: int) -> None:
        """This client's desk is different from now on."""
        self.ledger.seats[client].revision = self.ledger.position
        self.changed.add(client)

    def send(self, send: Send) -> None:
        """Put a job on its client's desk."""
        ledger, plan = self.ledger, self.plan
        if not 0 <= send.client < len(ledger.seats):
            raise ValueError(f"work sent to client {send.client}, but there are {len(ledger.seats)}, numbered from 0")
        local, seat = plan.locals[send.task], ledger.seats[send.client]
        steps = local.steps if send.steps is None else send.steps
        lr = local.lr if send.lr is None else send.lr
        job = Job(ledger.jobs, send.client, send.task, send.version, steps, lr, seat.number, send.hold)
        ledger.jobs += 1
        seat.number += 1
        ledger.tally.sent[send.task] = ledger.tally.sent.get(send.task, 0) + 1
        if not seat.present:
            self.absent.append(Flight(job, None, ledger.now, ledger.now))
            return
        ledger.flights[job.id] = Flight(job, dict(send.payload), ledger.now, ledger.now)
        if send.hold:
            self._hold(job)
        else:
            seat.queue.append(job.id)
        self.touch(send.client)

    def recall(self, recall: Recall) -> None:
        """Ask for held work."""
        seat = self.ledger.seats[recall.client]
        if not seat.held.get(recall.task):
            raise ValueError(f"recall of client {recall.client}, which holds no work of task {recall.task}")
        seat.recalls[recall.task] = recall.partial
        for number in seat.held[recall.task]:
            self.ledger.flights[number].since = self.ledger.now  # its lease begins
        self.touch(recall.client)

    def land(self, job: Job) -> None:
        """The job is no longer in flight; with held work, all that is older never was."""
        ledger, seat = self.ledger, self.ledger.seats[job.client]
        if job.hold:
            mine = seat.held[job.task]
            for number in mine[: mine.index(job.id) + 1]:
                del ledger.flights[number]
            seat.held[job.task] = mine[mine.index(job.id) + 1 :]
            seat.recalls.pop(job.task, None)
            if not seat.held[job.task]:
                del seat.held[job.task]
        else:
            del ledger.flights[job.id]
            seat.queue.remove(job.id)
            if seat.queue:
                ledger.flights[seat.queue[0]].since = ledger.now
        self.touch(job.client)

    def join(self, client: int) -> None:
        """The client is there."""
        self.ledger.seats[client].present = True

    def leave(self, client: int) -> list[Flight]:
        """The client is gone; gives what is lost with it, of held work the newest."""
        seat = self.ledger.seats[client]
        seat.present = False
        lost = [*seat.queue, *(held[-1] for held in seat.held.values())]
        flights = [self.ledger.flights[number] for number in sorted(lost)]
        for flight in flights:
            self.land(flight.job)
        self.touch(client)
        return flights

    def drop(self, task: int) -> None:
        """The jobs of a task are gone, wherever they are."""
        for client, seat in enumerate(self.ledger.seats):
            mine = [number for number in seat.queue if self.ledger.flights[number].job.task == task]
            for number in [*mine, *seat.held.get(task, ())[-1:]]:
                self.land(self.ledger.flights[number].job)
                self.touch(client)

    def _hold(self, job: Job) -> None:
        """Newer held work takes the desk; the client may still be at the older, so that is not forgotten yet."""
        mine = self.ledger.seats[job.client].held.setdefault(job.task, [])
        if mine:
            self.ledger.flights[mine[-1]].payload = None
        mine.append(job.id)
        while len(mine) > self.plan.limits.held:
            del self.ledger.flights[mine.pop(0)]
