"""When results are computed: not before somebody needs one, and then all at once.

A job's inputs are fixed when it is sent, so its result may be computed at any time up to its arrival. When an arrival
needs a result, a stacking executor computes with it every job that is sure to arrive; jobs that are held, lost or
replaced are not among them and are never computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from offbeat.core.local import Local
from offbeat.core.problem import Problem
from offbeat.core.vectors import Payload
from offbeat.simulate.execute import Executor, Ready, Result, group_by_task
from offbeat.simulate.world import Flight, World


class Computing:
    """Fills in the results of a world's flights. `firsts` are the clients' memories before their first job, by task."""

    def __init__(
        self,
        world: World,
        problems: Sequence[Problem],
        locals_: Sequence[Local],
        firsts: Sequence[Payload],
        executor: Executor,
        seed: int,
    ) -> None:
        self.world, self.problems, self.locals = world, problems, locals_
        self.firsts, self.executor, self.seed = firsts, executor, seed

    def result(self, flight: Flight) -> Result:
        """(upload, memory) of this flight; the memory is the client's from now on."""
        if flight.result is None:
            self._compute(list(self.world.todo) if self.executor.stacked else self._chain(flight.job.id))
        assert flight.result is not None
        memory, job = flight.result[1], flight.job
        if memory:
            committed = self.world.memories.get((job.client, job.task))
            if committed is None or committed[0] < job.number:  # uploads may overtake each other
                self.world.memories[job.client, job.task] = (job.number, memory)
        return flight.result

    def _compute(self, waiting: list[int]) -> None:
        """Compute these jobs, in as many rounds as a client has jobs that build on each other."""
        world = self.world
        while waiting:
            possible = [number for number in waiting if self._before(number) is None]
            ready = [self._ready(world.flights[number]) for number in possible]
            for task, group in group_by_task(ready):
                results = self.executor.compute(self.problems[task], self.locals[task], group, self.seed)
                for item, result in zip(group, results, strict=True):
                    flight = world.flights[item.job.id]
                    flight.result, flight.payload = result, None
                    del world.todo[item.job.id]
            world.tally.computed += len(possible)
            done = set(possible)
            waiting = [number for number in waiting if number not in done]

    def _chain(self, needed: int) -> list[int]:
        """This job and the uncomputed jobs in flight whose memory it builds on."""
        chain = [needed]
        while (before := self._before(chain[-1])) is not None:
            chain.append(before)
        return chain

    def _before(self, number: int) -> int | None:
        """The job that has to be computed before this one, if any."""
        after = self.world.flights[number].after
        flight = None if after is None else self.world.flights.get(after)
        return None if flight is None or flight.result is not None else after

    def _ready(self, flight: Flight) -> Ready:
        job = flight.job
        memory: Payload = self.firsts[job.task]
        if memory:
            before = None if flight.after is None else self.world.flights.get(flight.after)
            if before is not None and before.result is not None:
                memory = before.result[1]
            elif (committed := self.world.memories.get((job.client, job.task))) is not None:
                memory = committed[1]
        assert flight.payload is not None
        return Ready(job, flight.payload, memory)
