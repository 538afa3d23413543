"""An algorithm: a server and a local trainer, checked against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from offbeat.core.compressed import Compressed, compressed
from offbeat.core.errors import SettingError
from offbeat.core.guard import Guard
from offbeat.core.local import Local
from offbeat.core.optimiser import Sparing
from offbeat.core.problem import Pairing, Problem
from offbeat.core.server import Server, Stepping, releasing
from offbeat.core.sums import Encoded, Secure, SumBound, encoded


@dataclass(frozen=True)
class Algorithm:
    """A server and the local trainer that it is paired with; for several tasks, a tuple with the trainer of each.

    The two are checked against each other: a server that reads what the local trainer does not send, or a local trainer
    that needs what the server does not send, is refused here and not in the middle of a run.

    secure: the server sees only sums of updates, if it can work with them.
    """

    server: Server[Any]
    local: Local | tuple[Local, ...]
    name: str = ""
    secure: Secure | None = None

    def __post_init__(self) -> None:
        self._check_guard()
        several = isinstance(self.local, tuple)
        trainers = self.local if isinstance(self.local, tuple) else (self.local,)
        for given, kind in ((self.server, Server), *((trainer, Local) for trainer in trainers)):
            if not isinstance(given, kind):
                what = f"the class {given.__name__}" if isinstance(given, type) else f"{given!r}"
                raise SettingError(
                    f"{what} is no {kind.__name__}; write Algorithm(server, local), as in "
                    "Algorithm(FedBuff(size=4), SGD(lr=0.1))"
                )
        sizes = getattr(self.server, "size", None)
        tasks = max(len(trainers), len(sizes) if isinstance(sizes, tuple) else 1)  # one trainer may be for all of them
        size = 0 if self.secure is None else max(map(self._added, range(tasks)))
        if self.secure is not None and self._bound is not None:
            object.__setattr__(self, "secure", self.secure.bounded(self._bound, size))
        paired = tuple(self._paired(trainer, size) for trainer in trainers)
        object.__setattr__(self, "local", paired if several else paired[0])
        if self._guard is not None and self.secure is not None:
            object.__setattr__(self, "server", replace(self.server, guard=self._guard.within(self.secure)))  # type: ignore[call-arg]
        object.__setattr__(self, "name", self.name or type(self.server).__name__.lower())

    def _check_guard(self) -> None:
        """Raise for a guard that the server would not ask: nothing would be noised, or combined."""
        guard, server = self._guard, self.server
        if guard is None:
            return
        stands = isinstance(server, Stepping) and (releasing(server) if guard.limits else bool(server.combines))
        if not stands and (guard.limits or not server.several):
            raise SettingError(
                f"guard: {type(server).__name__} does not make its steps of sums or tables that "
                f"{type(guard).__name__} could stand in for; use fedbuff, fadas, fedavg or area"
            )

    def locals(self, tasks: int) -> tuple[Local, ...]:
        """The local trainer of each of so many tasks."""
        if not isinstance(self.local, tuple):
            return (self.local,) * tasks
        if len(self.local) != tasks:
            raise SettingError(f"{self.name} has {len(self.local)} local trainers for {tasks} tasks; give one for each")
        return self.local

    def trainers(self, problems: Sequence[Problem]) -> tuple[Local, ...]:
        """The local trainers for these problems, as each of them needs it."""
        locals_ = self.locals(len(problems))
        return tuple(p.pair(t) if isinstance(p, Pairing) else t for p, t in zip(problems, locals_, strict=True))

    def server_for(self, problems: Sequence[Problem]) -> Server[Any]:
        """The server for these problems, its settings in their order.

        Its optimiser knows the tensors of a model and steps no running statistics.
        """
        for problem in problems if self._guard is not None and self._guard.limits else ():
            if getattr(problem, "scaled_by_all", False):
                raise SettingError(
                    f'privacy: inputs = "standard" scales the samples of {problem.name} by those of all clients, '
                    "without noise; give a mean and a standard deviation that are public"
                )
        server = self.server.for_problems(problems)
        optimiser = server.optimiser if isinstance(server, Stepping) else None
        spared: list[Any] = [getattr(problem, "averaged", None) for problem in problems]
        if optimiser is None:
            return server
        if len(problems) == 1:
            optimiser = optimiser.over(getattr(problems[0], "blocks", ()))
        if not any(spared):
            return server if optimiser is server.optimiser else server.optimised(optimiser)  # type: ignore[attr-defined]
        if len(problems) > 1:
            named = next(p.name for p, which in zip(problems, spared, strict=True) if which)
            raise SettingError(
                f"{named}: an optimiser at the server of several tasks would step running statistics as if they were "
                'parameters; leave it out, or keep them with the clients, statistics = "local", or "frozen"'
            )
        first, last = spared[0]
        return server.optimised(Sparing(inner=optimiser, first=first, last=last))  # type: ignore[attr-defined, no-any-return]

    def _paired(self, trainer: Local, size: int) -> Local:
        trainer = trainer.inner if isinstance(trainer, Compressed | Encoded) else trainer
        if self.secure is None:
            paired = compressed(self.server.pair(trainer))
        else:
            plain = self.server if self._guard is None else replace(self.server, guard=None)  # type: ignore[call-arg]
            paired = encoded(plain.pair(trainer), self.secure, size)
        server, local = type(self.server).__name__, trainer.label
        if self.server.holds and not paired.stops:
            raise SettingError(f"{server} {cannot_hold(trainer)}")
        _check(f"{server} reads", self.server.reads, f"{local} sends", paired.sends)
        _check(f"{local} needs", paired.needs, f"{server} sends", self.server.sends)
        return paired

    @property
    def _guard(self) -> Guard | None:
        found: Guard | None = getattr(self.server, "guard", None)
        return found

    @property
    def _bound(self) -> SumBound | None:
        return None if self._guard is None else self._guard.bound()

    def _added(self, task: int) -> int:
        """How many updates the server takes for a step, given that it may see their sum only."""
        assert self.secure is not None
        if self._guard is not None and not self._guard.limits:
            raise SettingError(
                "secure and robust: a robust rule compares single updates, which no server is shown; keep one of them"
            )
        name, order = type(self.server).__name__, type(self.server).__mro__

        def depth(what: str) -> int:
            return next((n for n, each in enumerate(order) if what in vars(each)), len(order))

        # what a class makes of updates it must make of sums, too
        changed = min(map(depth, ("arrived", "counts", "aggregate"))) < depth("summed")
        size = None if changed else self.server.adds(task)
        if size is None:
            raise SettingError(
                f"secure: {name} makes more of single updates than their sum, and no single one is shown; use FedBuff, "
                "FedAsync with size, AREA, or FedAST with one of these"
            )
        if size < self.secure.cohort:
            raise SettingError(
                f"size = {size}: [secure] opens no sum of fewer than cohort = {self.secure.cohort} clients; give "
                f"size = {self.secure.cohort} or more"
            )
        return size


def cannot_hold(trainer: Local) -> str:
    """What is wrong with work that is held, for a local trainer that cannot be stopped."""
    return (
        f"recalls work that is under way, and {trainer.label} cannot be stopped: let it call job.step() after every "
        "step, return when that gives False, and say stops = true"
    )


def _check(wanter: str, wanted: Sequence[str], giver: str, given: Sequence[str]) -> None:
    lacking = [name for name in wanted if name not in given]
    if lacking:
        raise SettingError(
            f"{wanter} {', '.join(map(repr, lacking))} but {giver} only {', '.join(map(repr, given))}: "
            f"they cannot be combined"
        )
