"""Jobs spread over workers that have the data already: vectors go out, vectors come back.

A worker trains one client at a time, as the serial executor does. Workers are kept busy by being told early: of the
jobs that are sure to arrive, the nearest ones are handed out before anybody needs them, and the run waits only for
the result that is due. What a job computes depends on nothing but the job, so it makes no difference which worker had
it, in which order, how many workers there are, or how often one of them died; results that nobody takes are dropped.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container, Iterable
from functools import cache
from typing import Any

from offbeat.core.errors import SettingError, WorkerError, at_least
from offbeat.core.local import Local
from offbeat.core.problem import Problem
from offbeat.core.vectors import Payload
from offbeat.simulate.arena import Arena
from offbeat.simulate.execute import Errors, Executor, Group, Ready, Result, faults, train
from offbeat.simulate.pack import Arrays, arrays, tensors

Wire = tuple[Ready, bytes, Arrays, Arrays]  # a job without its vectors, its local trainer, its payload, its memory
Answer = tuple[Arrays, Arrays]  # upload, memory

_DEPTH = 2  # jobs that a worker has at once: one at work, one at hand
_PROBLEMS = 8  # problems that workers have got from earlier runs until new workers take over
_STARTS = 3  # workers in a row that die before they are ready, until that is an error


class Ticket:
    """A job that was handed out or will be."""

    def __init__(self, problem: int, trainer: bytes, ready: Ready) -> None:
        self.problem, self.trainer, self.ready = problem, trainer, ready
        self.deaths = 0
        self.dropped = False  # nobody wants it any more
        self.result: Result | None = None
        self.error: BaseException | None = None

    @property
    def over(self) -> bool:
        return self.result is not None or self.error is not None

    def wire(self) -> Wire:
        """What travels."""
        job, payload, memory, key, client, _ = self.ready
        return Ready(job, {}, {}, key, client), self.trainer, arrays(payload), arrays(memory)


class Worker:
    """A process somewhere. `up`: it has reported for work.   known: the problems that it has."""

    def __init__(self) -> None:
        self.up = False
        self.tickets: list[Ticket] = []
        self.known: set[int] = set()

    @abstractmethod
    def learn(self, number: int, problem: Problem) -> None:
        """Give it a problem."""

    @abstractmethod
    def give(self, ticket: Ticket) -> None:
        """Give it a job."""

    @abstractmethod
    def close(self) -> str:
        """End it; tells how it ended if it was no longer there."""


class DeadError(Exception):
    """A worker that is no longer there was given something."""


class Workers(Executor):
    """An executor whose jobs are done elsewhere.

    workers: how many.   attempts: how often a job may cost a worker its life.
    """

    def __init__(self, workers: int, attempts: int = 3, reason: str = "") -> None:
        super().__init__(stacked=False, reason=reason)
        at_least(1, workers=workers)
        self.attempts = attempts
        self.resize(workers)
        self.started: list[Worker] = []
        self.tickets: dict[tuple[Any, int], Ticket] = {}
        self.queue: list[Ticket] = []  # not handed out yet
        self.problems: list[Problem] = []
        self.trainers: dict[int, tuple[Local, bytes]] = {}  # by id
        self.run: Any = None  # the last one
        self.failed = 0  # workers in a row

    def resize(self, workers: int) -> None:
        """Have so many from now on."""
        self.workers = workers
        self.ahead = (_DEPTH + 1) * workers

    # What a kind of worker has to say

    @abstractmethod
    def start_worker(self) -> Worker:
        """Start one."""

    @abstractmethod
    def receive(self) -> Iterable[tuple[Worker, Answer | BaseException | None]]:
        """Wait until there is news: (worker, the answer or the error of its first job, None: it is up).

        A `DeadError` is a worker that is no longer there."""

    # The executor

    def expect(self, run: Any, todo: Container[int], jobs: Iterable[tuple[Problem, Local, Ready]]) -> None:
        if run is not self.run:
            self.run = run
            if len(self.problems) >= _PROBLEMS:
                self.close()
        for which in [w for w in self.tickets if w[0] is not run or w[1] not in todo]:
            self._drop(which)
        queue = [self._ticket(run, problem, local, ready) for problem, local, ready in jobs]
        given = {id(ticket) for worker in self.started for ticket in worker.tickets}
        nearest = [ticket for ticket in queue if not ticket.over and id(ticket) not in given]
        there = {id(ticket) for ticket in nearest}
        self.queue = nearest + [ticket for ticket in self.queue if id(ticket) not in there]

    def compute(self, problem: Problem, local: Local, arena: Arena | None, group: Group) -> tuple[list[Result], Errors]:
        results: list[Result] = []
        errors: Errors = []
        due = [self._ticket(run, problem, local, ready) for run, ready in group]
        given = {id(ticket) for worker in self.started for ticket in worker.tickets}
        known = {id(ticket) for ticket in self.queue} | given
        self.queue[:0] = [ticket for ticket in due if not ticket.over and id(ticket) not in known]
        for (run, ready), ticket in zip(group, due, strict=True):
            result = self._await(ticket)
            del self.tickets[run, ready.job.id]
            results.append(result)
            errors += faults(problem, [(run, ready)], _rows(result))
        self._feed()
        return results, errors

    def close(self) -> None:
        """End all workers; the next job starts new ones."""
        for worker in self.started:
            worker.close()
        self.started.clear()
        self.tickets.clear()
        self.queue.clear()
        self.problems.clear()
        self.trainers.clear()
        self.failed = 0

    def _ticket(self, run: Any, problem: Problem, local: Local, ready: Ready) -> Ticket:
        which = (run, ready.job.id)
        if which not in self.tickets:
            self.tickets[which] = Ticket(self._number(problem), self._trainer(local), ready)
        return self.tickets[which]

    def _trainer(self, local: Local) -> bytes:
        from cloudpickle import dumps  # studies run without it

        if id(local) not in self.trainers:
            self.trainers[id(local)] = local, dumps(local)
        return self.trainers[id(local)][1]

    def _number(self, problem: Problem) -> int:
        for number, known in enumerate(self.problems):
            if known is problem:
                return number
        device = problem.initial().device
        if device.type != "cpu":
            raise SettingError(f"executor = {self.name!r} works on CPUs; with device = {device.type!r} use 'batched'")
        self.problems.append(problem)
        return len(self.problems) - 1

    def _drop(self, which: tuple[Any, int]) -> None:
        ticket = self.tickets.pop(which)
        ticket.dropped = True
        if ticket in self.queue:
            self.queue.remove(ticket)

    def _await(self, ticket: Ticket) -> Result:
        while not ticket.over:
            self._feed()
            for worker, news in self.receive():
                self._take(worker, news)
        if ticket.error is not None:
            raise ticket.error
        assert ticket.result is not None
        return ticket.result

    def _feed(self) -> None:
        """Hand out what is waiting, first to those who have nothing."""
        while len(self.started) < self.workers:
            self.started.append(self.start_worker())
        for depth in range(_DEPTH):
            for worker in list(self.started):
                if self.queue and worker.up and len(worker.tickets) == depth:
                    ticket = self.queue.pop(0)
                    worker.tickets.append(ticket)
                    try:
                        if ticket.problem not in worker.known:
                            worker.learn(ticket.problem, self.problems[ticket.problem])
                            worker.known.add(ticket.problem)
                        worker.give(ticket)
                    except DeadError as error:
                        self._worker_died(worker, error)

    def _take(self, worker: Worker, news: Answer | BaseException | None) -> None:
        if news is None:
            worker.up, self.failed = True, 0
        elif isinstance(news, DeadError):
            self._worker_died(worker, news)
        else:
            ticket = worker.tickets.pop(0)
            if isinstance(news, BaseException):
                ticket.error = news
            else:
                upload, memory = news
                ticket.result = tensors(upload), tensors(memory)

    def _worker_died(self, worker: Worker, error: DeadError) -> None:
        """A worker has died: its jobs are handed out again, unless the one at work has cost too many lives."""
        if worker not in self.started:
            return
        self.started.remove(worker)
        how = worker.close() or str(error)
        if not worker.up:
            self.failed += 1
            if self.failed >= _STARTS:
                raise WorkerError(f"{self.name}: {self.failed} workers in a row ended before they were ready ({how})")
        tickets = [ticket for ticket in worker.tickets if not ticket.dropped]
        if worker.tickets and worker.tickets[0] in tickets:
            first = tickets[0]
            first.deaths += 1
            if first.deaths >= self.attempts:
                job = first.ready.job
                raise WorkerError(
                    f"{self.name}: job {job.id} of client {job.client} was given to {first.deaths} workers and all of "
                    f"them died ({how}); if memory ran out, use fewer workers or executor = 'serial'"
                )
        self.queue[:0] = tickets


def work(problem: Problem, wire: Wire) -> Answer:
    """At a worker: do a job."""
    (job, _, _, key, client, _), trainer, payload, memory = wire
    ready = Ready(job, tensors(payload), tensors(memory), key, client)
    ((upload, kept),), _ = train(problem, _local(trainer), None, [ready])
    return arrays(upload), arrays(kept)


@cache
def _local(trainer: bytes) -> Local:
    from cloudpickle import loads

    local: Local = loads(trainer)
    return local


def _rows(result: Result) -> Payload:
    """All vectors of a result, as rows."""
    upload, memory = result
    return {name: v.unsqueeze(0) for name, v in {**memory, **upload}.items() if not isinstance(v, float)}
