"""The runs of a sweep, as one program in each of several processes."""

from __future__ import annotations

import gc
import logging
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch

from offbeat.core.errors import DivergedError, OffbeatError
from offbeat.core.vectors import norm
from offbeat.core.watcher import Measurement, Watcher
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.grid import Point
from offbeat.experiment.session import Problems, Session
from offbeat.models.gpu import room, share
from offbeat.simulate.abreast import Abreast, abreast
from offbeat.simulate.arena import Arenas
from offbeat.simulate.execute import Executor
from offbeat.simulate.loop import Simulation
from offbeat.simulate.program import Program
from offbeat.simulate.run import Evaluate
from offbeat.simulate.threads import computing, use
from offbeat.simulate.world import World
from offbeat.watch import checkpoint
from offbeat.watch.files import pack_folder, place_of, unpack_folder
from offbeat.watch.history import History
from offbeat.watch.measures import Measures, measure
from offbeat.watch.progress import fraction
from offbeat.watch.record import Recorder
from offbeat.watch.results import Result
from offbeat.watch.session import summary

log = logging.getLogger("offbeat.experiment")

# ("done", Result) | ("so far", Results under way) | ("share", (worker, runs' worth of work done, updates))
# and for the dispatcher ("next", None) | ("files", (number, files)) | ("left", "" or why it has failed)
Message = tuple[str, Any]

STOP = "stop"

_CACHE = 8e6  # bytes of vectors that runs on a CPU work on together
_SECONDS = 0.5  # between two reports of progress
_NOTE = 15.0  # seconds between two notes of how far runs have come
SAVE = 300.0  # seconds between saves of all running runs: on a GPU that may be gigabytes


@dataclass(frozen=True)
class Orders:
    """What every worker is told."""

    folder: str
    device: str
    events: bool  # keep the event log of every run, in a folder of its own
    workers: int
    runs: int  # or bundles of them
    gpus: int = 1  # that the workers share
    apart: bool = False  # workers do not see the folder: files travel both ways
    save: float = SAVE
    sweeps: int = 1  # that share the GPUs

    @property
    def sharers(self) -> int:
        """Processes at work on one GPU."""
        return -(-self.workers * self.sweeps // self.gpus)


class Pipe(Protocol):
    """A worker's connection to the dispatcher."""

    def send(self, what: Any, /) -> None:
        """Say something."""

    def recv(self) -> Any:
        """Wait for what the other one says; EOFError or OSError: it is gone."""

    def poll(self) -> bool:
        """Whether there is something to receive."""


class SweepWorker:
    """One worker: its runs are one program."""

    keep_events = False  # in memory

    def __init__(
        self,
        orders: Orders,
        worker: int,
        bundles: Iterator[Sequence[Point]],
        tell: Callable[[Message], None],
        stop: Callable[[], bool],
    ) -> None:
        self.orders, self.worker, self.tell, self.stop = orders, worker, tell, stop
        share(orders.device, orders.sharers)
        self.folder = Path(orders.folder)
        self.bundles = bundles
        self.begun: list[Sequence[Point]] = []  # bundles, of which some may be over
        self.finished: set[int] = set()
        self.ended = self.updates = 0
        self.most, self.together = self._fair_share, True  # runs at work at once, and whether several are done as one
        self._clear()

    def _clear(self) -> None:
        self.problems, self.arenas = Problems(), Arenas()
        self.executors: dict[bool, Executor] = {}
        # by number: the point, how it is evaluated, who watches, when it began
        self.at_work: dict[int, tuple[Point, Evaluate, History | Recorder, float]] = {}
        self.largest = 0.0  # of the runs so far, in bytes of vectors
        self.program = Program(self._makers(), self._over, self.most)

    def steps(self) -> Iterator[None]:
        """Until there is nothing left to do, or the dispatcher says stop: then what is unfinished is saved.

        Where a GPU's memory was not enough, half as many runs go on, from where they were saved last.
        """
        while True:
            try:
                yield from self._steps()
                return
            except (OffbeatError, RuntimeError) as error:
                if not no_memory(error) or not (self.most > 1 or self.together):
                    raise
            self._fewer()

    def _fewer(self) -> None:
        """Begin again with what is not over: half as many at once, in the end one by one."""
        runs = len(self.at_work)
        if self.most > 1:
            self.most = max(1, min(self.most, len(self.program.active)) // 2)
        else:
            self.most, self.together = max(1, runs // 2), False
        log.warning("no GPU memory for %d runs at once; fewer are", runs)
        left = [[point for point in bundle if point.number not in self.finished] for bundle in self.begun]
        self.bundles, self.begun = chain([bundle for bundle in left if bundle], self.bundles), []
        self._clear()
        gc.collect()  # what is left of the runs refers to itself
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _steps(self) -> Iterator[None]:
        told = noted = saved = time.perf_counter()
        for active in self.program.rounds():
            if self.stop():
                self._save(active)
                return
            if time.perf_counter() - told > _SECONDS:
                told = time.perf_counter()
                self._share(active)
            if time.perf_counter() - noted > _NOTE:
                noted = time.perf_counter()
                self._note(active)
            if time.perf_counter() - saved > self.orders.save:
                self._save(active)
                saved = time.perf_counter()
            yield

    def _share(self, active: Mapping[int, Simulation]) -> None:
        at_work = [run for _, run in singly(active)]
        done = self.ended + sum(fraction(run) for run in at_work)
        updates = self.updates + sum(run.world.tally.updates for run in at_work)
        self.tell(("share", (self.worker, done, updates)))

    @property
    def _fair_share(self) -> int:
        """How many runs this worker may take at once, so that the others have work, too."""
        return max(1, -(-self.orders.runs // self.orders.workers))

    def _width(self, size: float) -> int:
        """How many runs of this size, in bytes of vectors, are at work at once: on a CPU those that its cache holds,
        on a GPU as many as fit."""
        return max(1, min(self._fit(size), self.most))

    def _fit(self, size: float) -> int:
        if not self.orders.device.startswith("cuda"):
            return int(_CACHE / size)
        free, _ = torch.cuda.mem_get_info()
        return int(0.25 * min(free, room(self.orders.device)) / size)  # an arena doubles when it is full

    def _room_for(self, size: float) -> None:
        """There is a run of this size."""
        if size > self.largest:
            self.largest, self.program.width = size, self._width(size)

    def _makers(self) -> Iterator[tuple[int, Callable[[], Simulation]]]:
        for bundle in self.bundles:
            self.begun.append(bundle)
            if len(bundle) > 1 and self.together and (together := self._abreast(bundle)) is not None:
                yield bundle[0].number, lambda run=together: run  # type: ignore[misc]
            else:
                for point in bundle:
                    yield point.number, lambda point=point: self._make(point)  # type: ignore[misc]

    def _abreast(self, bundle: Sequence[Point]) -> Simulation | None:
        """Several runs as one, if that can be and there is room."""
        if any(checkpoint.exists(place_of(self.folder, point.number)) for point in bundle):
            return None
        made = self._make(bundle[0])
        size = len(bundle) * _size(made)
        if self._fit(size) < 1:
            return None

        def all_made() -> dict[int, Simulation]:
            return {point.number: self._make(point) for point in bundle}

        found = abreast(all_made(), self.arenas, all_made)
        if found is not None:
            self._room_for(size)
        return found

    def _make(self, point: Point) -> Simulation:
        experiment = Experiment.parse(point.table)
        session = Session(experiment, self.problems)
        place = place_of(self.folder, point.number)
        saved = checkpoint.restore(World, place, self.orders.device)
        world, extra = saved if saved else (None, {})
        watcher: History | Recorder
        if self.orders.events:
            watcher = Recorder(place, extra.get("record"))
        else:
            watcher = History(self.keep_events)
            watcher.measurements.extend(Measurement(*m) for m in extra.get("measurements", ()))
        began = time.perf_counter() - extra.get("worked", 0.0)
        self.at_work[point.number] = point, experiment.evaluate, watcher, began
        watchers: list[Watcher] = [watcher]
        run = session.shared(experiment.runs[0], watchers, world, self._executor, self.arenas)
        if isinstance(watcher, Recorder):
            watcher.metrics = run.metrics
        self._room_for(_size(run))
        use(run.problems, experiment.threads, experiment.precision, self.orders.workers)
        return run

    def _executor(self, made: Executor) -> Executor:
        """One of each kind serves all runs."""
        return self.executors.setdefault(made.stacked, made)

    def _over(self, number: int, run: Simulation, error: DivergedError | None) -> None:
        point, evaluate, watcher, _ = self.at_work.pop(number)
        self.ended += 1
        self.updates += run.world.tally.updates
        place = place_of(self.folder, number)
        if isinstance(watcher, Recorder):
            watcher.flush()
        measures = self._measures(place, watcher, run) if error is None else None
        checkpoint.remove(place)
        self._ship(number)
        with suppress(OSError):  # unless something is kept there
            place.rmdir()
        result = replace(
            summary(run, watcher, None, evaluate, algorithm=point.label, seed=point.seed),
            number=point.number,
            settings=dict(point.settings),
            error=None if error is None else str(error),
            measures=measures,
            curve=tuple(watcher.measurements),
            vectors={} if error else _digest(run),
        )
        self.tell(("done", result))

    def _measures(self, place: Path, watcher: History | Recorder, run: Simulation) -> Measures | None:
        """How the clients worked, if its event log was kept."""
        return measure(place, run) if isinstance(watcher, Recorder) else None

    def _note(self, active: Mapping[int, Simulation]) -> None:
        so_far = []
        for number, run in singly(active):
            point, _, watcher, _ = self.at_work[number]
            so_far.append(
                Result(
                    point.label,
                    point.seed,
                    number=point.number,
                    settings=dict(point.settings),
                    measured=tuple(dict.fromkeys(metric for metrics in run.metrics for metric in metrics)),
                    updates=run.world.tally.updates,
                    curve=tuple(watcher.measurements),
                    unfinished=True,
                )
            )
        self.tell(("so far", so_far))

    def _save(self, active: Mapping[int, Simulation]) -> None:
        for number, run in singly(active):
            _, _, watcher, began = self.at_work[number]
            extra: dict[str, Any] = {"worked": time.perf_counter() - began}
            if isinstance(watcher, Recorder):
                watcher.flush()
                extra["record"] = watcher.state
            else:
                extra["measurements"] = [list(m) for m in watcher.measurements]
            world = run.saved(number) if isinstance(run, Abreast) else run.world
            checkpoint.save(place_of(self.folder, number), world, extra)
            self._ship(number)
        self._note(active)

    def _ship(self, number: int) -> None:
        """The files of a run to where the sweep's folder is."""
        if self.orders.apart:
            self.tell(("files", (number, pack_folder(place_of(self.folder, number)))))


def no_memory(error: BaseException | None) -> bool:
    """Whether a GPU's memory was not enough, behind whatever it came to."""
    return error is not None and (isinstance(error, torch.OutOfMemoryError) or no_memory(error.__cause__))


def singly(active: Mapping[int, Simulation]) -> Iterator[tuple[int, Simulation]]:
    """By number, the run that each run at work is done in: alone, or abreast with others."""
    for number, run in active.items():
        if isinstance(run, Abreast):
            yield from ((each, run) for each in run.going.values())
        else:
            yield number, run


def _size(run: Simulation) -> float:
    """Bytes of vectors."""
    return sum(4.0 * p.dim * (3 * p.clients + 64) for p in run.problems)


def _digest(run: Simulation) -> dict[str, float]:
    """The length of every final model: enough to see whether two sweeps ended alike."""
    models = run.server.models(run.world.server)
    return {p.name: norm(m.vector) for p, m in zip(run.problems, models, strict=True)}


def alone(orders: Orders, bundles: Sequence[Sequence[Point]], stop: Callable[[], bool]) -> Iterator[Message]:
    """All in this process."""
    messages: list[Message] = []
    worker = SweepWorker(orders, 0, iter(bundles), messages.append, stop)
    with computing(()):  # each run sets what it needs
        for _ in worker.steps():
            yield from messages
            messages.clear()
    yield from messages


def serve(pipe: Pipe, given: Mapping[str, Any], worker: int) -> None:
    """Do the runs that the dispatcher at the other end hands out."""
    orders, stopped = Orders(**given), False
    home = Path(tempfile.mkdtemp(prefix="offbeat-")) if orders.apart else Path(orders.folder)

    def stop() -> bool:
        nonlocal stopped
        stopped = stopped or pipe.poll()  # it says nothing else that it was not asked for, or it is gone
        return stopped

    def bundles() -> Iterator[Sequence[Point]]:
        nonlocal stopped
        while not stop():
            _send(pipe, ("next", None))
            try:
                answer = pipe.recv()
            except (EOFError, OSError):
                answer = STOP
            stopped = stopped or answer == STOP
            if stopped or not answer:
                return
            for point, files in answer if orders.apart else ():
                unpack_folder(place_of(home, point.number), files)
            yield [point for point, _ in answer]

    failure = ""
    try:
        mine = replace(orders, folder=str(home))
        with computing(()):  # each run sets what it needs
            for _ in SweepWorker(mine, worker, bundles(), lambda message: _send(pipe, message), stop).steps():
                pass
    except OffbeatError as error:
        failure = str(error)
    except Exception as error:
        failure = f"a worker process failed: {type(error).__name__}: {error}"
    _send(pipe, ("left", failure))
    if orders.apart:
        shutil.rmtree(home, ignore_errors=True)


def child(pipe: Connection, given: Mapping[str, Any], worker: int) -> None:
    """The same in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    serve(pipe, given, worker)


def _send(pipe: Pipe, what: Any) -> None:
    with suppress(OSError):  # the other one is gone, which reading will show
        pipe.send(what)
