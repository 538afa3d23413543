"""What lies between the server and its clients: jobs on their way, queues, held results, who is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappush
from math import ulp

from offbeat.core.algorithm import cannot_hold
from offbeat.core.errors import SettingError
from offbeat.core.events import Job, Recall, Send
from offbeat.core.local import Local
from offbeat.core.server import SPENT
from offbeat.simulate.world import ARRIVE, FLIP, Flight, World, made
from offbeat.timing.base import Clock

_NEVER = float("inf")


class SimulatedTraffic:
    """Moves jobs through a world. All that changes is in the world.

    wires: bytes of a download and of an upload, by task.   chained: by task, whether clients have a memory, so that a
    client's next job builds on its last.   planned: by task, how many steps each client's jobs have, if they differ.
    allowed: by task, how many steps a client may make in all; None: any number.
    """

    def __init__(
        self,
        world: World,
        clock: Clock,
        locals_: Sequence[Local],
        wires: Sequence[tuple[int, int]],
        chained: Sequence[bool],
        planned: Sequence[Sequence[int] | None],
        allowed: Sequence[Callable[[int], int] | None],
    ) -> None:
        self.world, self.clock, self.locals = world, clock, locals_
        self.planned, self.paced = planned, [local.paced for local in locals_]
        self.wires, self.chained, self.allowed = wires, chained, allowed
        self.absent: list[Flight] = []  # work that nobody is there to do

    def push(self, time: float, kind: int, ref: int | str) -> None:
        """Something will happen at this time."""
        world = self.world
        world.counter += 1
        heappush(world.heap, (time, kind, world.counter, ref))

    def push_flip(self, client: int, after: float) -> None:
        """The client's next change of presence, if there is one."""
        when = self.clock.flip(client, after)
        if when is not None:
            self.push(when, FLIP, client)

    def send(self, send: Send) -> None:
        """Put a job on its way; its start, end and arrival times are fixed here."""
        world = self.world
        client, payload, version, steps, task, lr, hold = send
        if not 0 <= client < len(world.free):
            raise ValueError(f"work sent to client {client}, but there are {len(world.free)}, numbered from 0")
        local, number, now = self.locals[task], world.jobs, world.now
        if steps is None:
            steps = local.steps if (planned := self.planned[task]) is None else planned[client]
        lr = local.lr if lr is None else lr
        if self.paced[task]:
            lr *= local.pace(version, world.numbers[client])
        job = made(Job, (number, client, task, version, steps, lr, world.numbers[client], hold))
        world.jobs = number + 1
        world.numbers[client] += 1
        sent = world.tally.sent
        sent[task] = sent[task] + 1 if task in sent else 1
        if world.present.where[client] < 0:
            self.absent.append(Flight(job, None, now, now, now, now, now, now, 0.0))
            return
        down, up = self.wires[task]
        download, compute, upload, lost = self.clock.durations(job, down, up)
        if not (download >= 0.0 and compute >= 0.0 and upload >= 0.0):  # nor nan
            raise SettingError(f"the timing model gave client {client} times of {download}, {compute} and {upload}")
        ready = now + download
        if hold:
            if not local.stops:
                raise SettingError(f"the server {cannot_hold(local)}")
            self._replace(client, task, ready)
        free = world.free[client]
        start = ready if ready > free else free
        end = start + compute
        arrive = end + upload
        fate = "dropped" if lost else ""
        if self.allowed[task] is not None and self.refuses(client, task, steps):
            fate, lost = SPENT, True
        flight = Flight(job, payload, now, ready, free, start, end, arrive, upload, fate)
        world.free[client] = end
        if hold:
            flight.held, flight.arrive = True, _NEVER
            world.surplus += self._holds(client, task)
        elif not lost:
            if self.chained[task]:
                flight.after = self._previous(job)
            world.todo[number] = None
        world.flights[number] = flight
        flying = world.flying
        if client in flying:
            flying[client].append(number)
        else:
            flying[client] = [number]
            world.idle.remove(client)
        if not flight.held:
            world.counter = counter = world.counter + 1
            heappush(world.heap, (flight.arrive, ARRIVE, counter, number))

    def refuses(self, client: int, task: int, steps: int) -> bool:
        """Whether so many steps more would exceed a client's own budget, with those that it is at work on."""
        allowed = self.allowed[task]
        if allowed is None:
            return False
        coming = [f.job.steps for f in self._flights(client) if f.job.task == task and not f.lost]
        return self.world.tally.spent.get(task, {}).get(client, 0) + sum(coming) + steps > allowed(client)

    def exhausted(self) -> bool:
        """Whether every job is refused from now on, for want of budgets."""
        if None in self.allowed or any(not flight.lost for flight in self.world.flights.values()):
            return False
        return all(
            self.refuses(client, task, local.steps if (planned := self.planned[task]) is None else planned[client])
            for task, local in enumerate(self.locals)
            for client in range(len(self.world.free))
        )

    def land(self, job: Job) -> None:
        """The job is no longer in flight."""
        world, client = self.world, job.client
        del world.flights[job.id]
        world.todo.pop(job.id, None)
        mine = world.flying[client]
        if len(mine) > 1:
            mine.remove(job.id)
            if job.hold:
                world.surplus -= self._holds(client, job.task)
            return
        del world.flying[client]
        if world.present.where[client] >= 0:
            world.idle.add(client)

    def recall(self, recall: Recall) -> None:
        """Ask for held work: the newest finished result, else the running one; or what is done by now."""
        world, now = self.world, self.world.now
        held = self._held(recall.client, recall.task)
        if not held:
            raise ValueError(f"recall of client {recall.client}, which holds no work of task {recall.task}")
        finished = [f for f in held if f.end <= now]
        running = [f for f in held if f.end > now]
        if recall.partial and running:
            flight = running[0]
            if world.free[recall.client] == flight.end:
                world.free[recall.client] = max(now, flight.free)
            flight.job = flight.job._replace(steps=_steps_done(flight, now))
            flight.start, flight.end = min(flight.start, now), now
        else:
            flight = finished[-1] if finished else running[0]
        flight.held = False
        flight.arrive = max(now, flight.end) + flight.upload
        if not flight.lost:
            flight.after = self._previous(flight.job)
            world.todo[flight.job.id] = None
        for other in finished:
            if other is not flight:
                self.land(other.job)  # overwritten before anybody took it
        self.push(flight.arrive, ARRIVE, flight.job.id)

    def cancel(self, client: int, task: int) -> list[Flight]:
        """A client's jobs of a task are gone, wherever they are; gives their flights, of held work the newest."""
        world = self.world
        if not 0 <= client < len(world.free):
            raise ValueError(f"work of client {client} cancelled, but there are {len(world.free)}, numbered from 0")
        mine = [flight for flight in self._flights(client) if flight.job.task == task]
        self._remove(mine)
        for flight in mine:
            flight.start, flight.end = min(flight.start, world.now), min(flight.end, world.now)
        return _counted(mine)

    def drop(self, task: int) -> None:
        """The jobs of a task are gone, wherever they are."""
        self._remove([flight for flight in self.world.flights.values() if flight.job.task == task])

    def _remove(self, gone: Sequence[Flight]) -> None:
        """These jobs are not in flight any more; what their clients had queued behind them starts earlier."""
        world = self.world
        for flight in gone:
            self.land(flight.job)
        for client in dict.fromkeys(flight.job.client for flight in gone):
            world.free[client] = world.now
            for flight in self._flights(client):
                self._requeue(flight)

    def _requeue(self, flight: Flight) -> None:
        """Work out a flight's times again, after something before it in its client's queue has gone."""
        world, client = self.world, flight.job.client
        if flight.end <= world.now:
            return  # done with
        if flight.start > world.now:
            flight.free = world.free[client]
            length = flight.end - flight.start
            flight.start = max(flight.ready, flight.free)
            flight.end = flight.start + length
            if not flight.held:
                flight.arrive = flight.end + flight.upload
                self.push(flight.arrive, ARRIVE, flight.job.id)
        world.free[client] = flight.end

    def leave(self, client: int) -> list[Flight]:
        """The client is gone; gives the flights that are lost with it, of held work the newest of each task."""
        world = self.world
        world.present.remove(client)
        world.idle.remove(client)
        world.free[client] = world.now
        mine = self._flights(client)
        for flight in mine:
            self.land(flight.job)
        return _counted(mine)

    def join(self, client: int) -> None:
        """The client is there."""
        self.world.present.add(client)
        self.world.idle.add(client)

    def _previous(self, job: Job) -> int | None:
        """The client's job in flight whose memory this one builds on; None: the memory it has reported last."""
        if self.chained[job.task]:
            reported = self.world.memories.get((job.client, job.task))
            newest = -1 if reported is None else reported[0]  # uploads may overtake each other
            for number in reversed(self.world.flying.get(job.client, ())):
                flight = self.world.flights[number]
                before = flight.job.task == job.task and newest < flight.job.number < job.number
                if before and not flight.lost and not flight.held:
                    return number
        return None

    def _flights(self, client: int) -> list[Flight]:
        """A client's jobs in flight, in the order of sending."""
        return [self.world.flights[number] for number in self.world.flying.get(client, ())]

    def _holds(self, client: int, task: int) -> bool:
        """Whether jobs of this task that were sent with hold are in flight, recalled or not."""
        return any(f.job.hold and f.job.task == task for f in self._flights(client))

    def _held(self, client: int, task: int) -> list[Flight]:
        return [f for f in self._flights(client) if f.held and f.job.task == task]

    def _replace(self, client: int, task: int, ready: float) -> None:
        """Held work that is there at time `ready` replaces what will not have begun by then; of finished held work only
        the newest stays."""
        world, now = self.world, self.world.now
        held = self._held(client, task)
        finished = [f for f in held if f.end <= now]
        waiting = [f for f in held if f.start > ready and world.free[client] == f.end]
        for flight in waiting:
            world.free[client] = flight.free
        for flight in [*finished[:-1], *waiting]:
            self.land(flight.job)


def _counted(flights: Sequence[Flight]) -> list[Flight]:
    """Those that count when they end together: of held work the newest of each task, which has replaced the others."""
    newest = {flight.job.task: flight for flight in flights if flight.job.hold}
    return [flight for flight in flights if not flight.job.hold or newest[flight.job.task] is flight]


def _steps_done(flight: Flight, now: float) -> int:
    """Whole local steps done by now, if all of them take equally long; one that ends now is done."""
    if now <= flight.start:
        return 0
    elapsed = now - flight.start + 4.0 * ulp(flight.end)  # what three times may have been rounded by
    return min(flight.job.steps, int(flight.job.steps * elapsed / (flight.end - flight.start)))
