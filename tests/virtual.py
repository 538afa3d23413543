"""Many processes in one event loop whose clock jumps: nothing waits, and nothing happens by chance.

A `Process` is what its tasks have in common. When it is killed, its tasks never go on, and whatever of them runs just
then ends with `KilledError`: no `finally` of theirs can reach the network or a disk any more. While it is paused, its
tasks wait and go on later, as after SIGSTOP and SIGCONT.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import selectors
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

MOST = 600_000  # steps of a simulation; with more, something is busy without end
EPOCH = 1_700_000_000.0  # seconds on the wall clocks when a simulation begins


class KilledError(BaseException):
    """The process is gone: nothing of it may catch this."""


class StuckError(Exception):
    """Everybody waits, and nothing will happen any more."""


@dataclass(eq=False)
class Process:
    """One simulated process. skew: seconds by which the clock of its machine is wrong."""

    name: str
    skew: float = 0.0
    dead: bool = False
    paused: bool = False
    waiting: list[tuple[Callable[..., Any], tuple[Any, ...], Context]] = field(default_factory=list)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    closing: list[Callable[[], None]] = field(default_factory=list)  # what the kernel closes when it dies

    def kill(self) -> None:
        """From now on, nothing of it happens."""
        if not self.dead:
            self.dead = True
            for close in self.closing:
                close()

    def check(self) -> None:
        """To be called by whatever stands for the network or a disk."""
        if self.dead:
            raise KilledError(self.name)


CURRENT: ContextVar[Process | None] = ContextVar("process", default=None)


def current() -> Process:
    """The process whose code this is."""
    found = CURRENT.get()
    assert found is not None, "outside of all processes"
    return found


class _Jumping(selectors.SelectSelector):
    """Never waits: time passes at once."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise StuckError
        self.loop.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, which knows whose callbacks it runs. Threads' work is done at once."""

    def __init__(self) -> None:
        selector = _Jumping()
        selector.loop = self
        self.now = 0.0
        self.steps = 0
        self.over = False
        self.failed: list[BaseException] = []  # in the background
        super().__init__(selector)
        self.set_exception_handler(self._note)
        self.dropped: list[tuple[Callable[..., Any], tuple[Any, ...], Context]] = []  # what the dead do no more
        self.everything: list[asyncio.Task[Any]] = []  # so that no task of a dead process is cleared away too early
        self.set_task_factory(self._make)

    def _make(self, _: Any, work: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=self, **options)
        self.everything.append(task)
        return task

    def _note(self, _: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, KilledError) and not self.over:
            self.failed.append(error)

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        return super().call_soon(self._guarded, callback, args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        return super().call_at(when, self._guarded, callback, args, context=context)

    call_soon_threadsafe = call_soon  # there are no threads

    def _guarded(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        process = CURRENT.get()
        self.steps += 1
        if self.steps == MOST:
            self.stop()  # `run_until_complete` raises an error
        if process is not None and not self.over:
            if process.dead:
                self.dropped.append((callback, args, copy_context()))
                return
            if process.paused:
                process.waiting.append((callback, args, copy_context()))
                return
        with contextlib.suppress(KilledError):
            callback(*args)

    def resume(self, process: Process) -> None:
        """A paused process goes on where it was; a dead one does not."""
        process.paused = False
        waiting, process.waiting = process.waiting, []
        for callback, args, context in waiting:
            self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        found = self.create_future()
        try:
            found.set_result(func(*args))
        except Exception as error:
            found.set_exception(error)
        return found

    def end(self) -> None:
        """End whatever is left."""
        self.over = True
        for callback, args, context in self.dropped:
            self.call_soon(callback, *args, context=context)
        for _ in range(20):
            tasks = [task for task in self.everything if not task.done()]
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            self.run_until_complete(self._wait(tasks))
        for task in self.everything:
            if task.done() and not task.cancelled():
                task.exception()

    async def _wait(self, tasks: list[asyncio.Task[Any]]) -> None:
        own = asyncio.current_task()
        self.everything.remove(own)  # type: ignore[arg-type]
        await asyncio.wait(tasks, timeout=10.0)

    def spawn(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin this in a process."""
        context = copy_context()
        context.run(CURRENT.set, process)
        task = context.run(self.create_task, work)
        process.tasks.add(task)
        return task


class Pool:
    """Stands for a `ThreadPoolExecutor` of one thread: what is submitted happens after a while, without a thread.

    lasting: gives the seconds that the next piece of work takes.
    """

    lasting: Callable[[], float] = staticmethod(lambda: 0.0)

    def __init__(self, *_: Any, **__: Any) -> None:
        self.free = 0.0

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        loop = asyncio.get_running_loop()
        halt = next((each for each in args if isinstance(each, Halt)), None)
        start = max(loop.time(), self.free)
        self.free = start + self.lasting()
        timer = loop.call_at(self.free, work, *args)
        if halt is not None:
            halt.begin(self, timer, start, self.free, work, args)
        return Future()

    def shutdown(self, *_: Any, **__: Any) -> None:
        pass


class Halt(threading.Event):
    """Stands for the event that interrupts a job: some of the job's steps are done by then.

    `is_set` is asked before every step; it says no as often as steps were done before the interruption.
    """

    def __init__(self) -> None:
        super().__init__()
        self.timer: asyncio.TimerHandle | None = None
        self.done = 0.0  # share of the job
        self.steps: int | None = None  # that it may still make

    def begin(self, pool: Pool, timer: asyncio.TimerHandle, start: float, end: float, work: Any, args: Any) -> None:
        self.pool, self.timer, self.start, self.end, self.work, self.args = pool, timer, start, end, work, args

    def set(self) -> None:
        super().set()
        if self.timer is not None and not self.timer.cancelled():
            loop = asyncio.get_running_loop()
            if loop.time() < self.end:
                self.done = min(1.0, max(0.0, (loop.time() - self.start) / max(self.end - self.start, 1e-9)))
                self.timer.cancel()
                self.pool.free = loop.time()
                loop.call_soon(self.work, *self.args)

    def wait(self, timeout: float | None = None) -> bool:
        return False

    def is_set(self) -> bool:
        if not super().is_set():
            return False
        if self.steps is None:
            steps = next((each.job.steps for each in self.args if hasattr(each, "job")), 0) if self.timer else 0
            self.steps = int(self.done * steps)
        self.steps -= 1
        return self.steps < 0


@contextlib.contextmanager
def simulated(seed: str) -> Iterator[tuple[VirtualLoop, random.Random]]:
    """Virtual time and numbers that follow from the seed, for all code within."""
    chance, loop = random.Random(seed), VirtualLoop()
    ours = random.Random(f"{seed} of the code itself")

    def wall() -> float:
        process = CURRENT.get()
        return EPOCH + loop.now + (process.skew if process else 0.0)

    asyncio.set_event_loop(loop)
    with (
        mock.patch.object(time, "monotonic", loop.time),
        mock.patch.object(time, "time", wall),
        mock.patch.object(os, "urandom", ours.randbytes),
        mock.patch.object(secrets, "token_hex", lambda count=16: ours.randbytes(count).hex()),
        mock.patch.object(random, "random", ours.random),
        mock.patch.object(random, "uniform", ours.uniform),
        mock.patch.object(os, "fsync"),
        mock.patch.object(os, "fdatasync"),
    ):
        try:
            yield loop, chance
        finally:
            loop.end()
            asyncio.set_event_loop(None)
            loop.close()
