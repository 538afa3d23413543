"""A training loop of the user's own as a local trainer: a function `train(model, data, job)` in plain PyTorch.

The rules, before the code:

1. The function is called once per job, for one client at a time. It gets a copy of the model with the client's starting
   parameters, in training mode, and trains it in place, or returns another module with the same parameters. Running
   statistics are taken out like parameters, if they are part of what is averaged or kept.
2. `data` holds the client's own training samples: len(data), data[i] and data[:] are (x, y), or a dict of columns.
3. Everything random is a function of the job: `job.generator`, and torch's, numpy's and Python's global generators,
   which are seeded before the call and put back afterwards, with torch's settings (threads, default type).
4. `job.step()` is called after an optimisation step; it says whether there is another one. A function that obeys it can
   be stopped in the middle and declares `stops`; servers that hold and recall work are refused without.
5. What a client keeps from one job to the next stands in `job.memory`. It moves on if the job's result is applied, and
   is saved and resumed like any client's memory. Whatever else the function keeps may be lost, or be there twice.

>>> def train(model, data, job):
...     optimiser = torch.optim.AdamW(model.parameters(), lr=job.lr)
...     for x, y in job.batches():
...         optimiser.zero_grad()
...         nn.functional.cross_entropy(model(x), y).backward()
...         optimiser.step()
>>> Loop(train, lr=0.01, steps=5, batch=32).steps
5
"""

from __future__ import annotations

import inspect
import logging
import random
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import nn

from offbeat.core.errors import Count, OffbeatError, Positive, SettingError, TrainingError
from offbeat.core.events import Job
from offbeat.core.local import Carry, Local, Work
from offbeat.core.problem import ByClientOracle, ClientTask
from offbeat.core.random import TURN, longer
from offbeat.core.vectors import Payload, Vector, materialise

Train: TypeAlias = "Callable[[nn.Module, Any, LoopJob], nn.Module | None]"

log = logging.getLogger("offbeat.local")
_OWN = 1 << 40  # keys the draws of loops: no mini-batch or other draw has this part
_KEPT = "kept."  # before the names of what a loop keeps, which are the user's
_MASK = (1 << 64) - 1


@dataclass(frozen=True, init=False, repr=False)
class Loop(Local):
    """Your own training loop: a function train(model, data, job), called for one client at a time.

    Keywords that are no settings are the function's own: it finds them in `job.options`, and as attributes of the job.
    Sends delta = received − reached.

    lr: step size, for the function to use.
    stops: the function calls job.step() after every step, or loops over job.batches(), and returns when there is no
        other step, so that a server may interrupt it.
    memory: what each client keeps from one job to the next, by name: a number of values, or "model" for as many as the
        model has; zeros at first.
    """

    lr: Positive = 0.01
    function: Train = field(kw_only=True, metadata={"setting": False})
    stops: bool = field(default=False, kw_only=True)
    memory: Mapping[str, Count | Literal["model"]] = field(default_factory=dict, hash=False, kw_only=True)
    options: Mapping[str, Any] = field(default_factory=dict, hash=False, kw_only=True, metadata={"setting": False})

    def __init__(self, function: Train, **given: Any) -> None:
        if not callable(function):
            raise SettingError(f"Loop: {function!r} is a {type(function).__name__}, not a function(model, data, job)")
        given["function"] = function
        for each in fields(self):
            default = each.default if each.default_factory is MISSING else each.default_factory()
            object.__setattr__(self, each.name, given.pop(each.name, default))
        object.__setattr__(self, "options", {**self.options, **given})
        self.__post_init__()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.accumulate != 1:
            raise SettingError(f"accumulate = {self.accumulate}: a loop adds gradients up itself; give it another name")
        for name in self.options:
            if not name.isidentifier() or hasattr(LoopJob, name) or name in LoopJob.__annotations__:
                raise SettingError(f"{name}: the job has that already, or it is no name; call this option otherwise")

    def __repr__(self) -> str:
        settings = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "function"}
        shown = {**{name: value for name, value in settings.items() if name != "options"}, **self.options}
        return f"Loop({self.label}, {', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @property
    def label(self) -> str:
        return f"{self.function.__module__}:{getattr(self.function, '__qualname__', type(self.function).__name__)}"

    @property
    def alone(self) -> str:
        return f"{self.label} trains one client at a time"

    def remember(self, model: Vector) -> Payload:
        zero = materialise(model)
        sizes = {name: zero.numel() if size == "model" else int(size) for name, size in self.memory.items()}
        return {f"{_KEPT}{name}": zero.new_zeros(size) for name, size in sizes.items()}

    def private(self, name: str) -> bool:
        return name.startswith(_KEPT)

    def init(self, work: Work) -> Carry:
        return {"w": work.payload["model"], **{name: rows for name, rows in work.memory.items() if name in self._kept}}

    def step(self, carry: Carry, work: Work) -> Carry:
        """All steps of the jobs, in the first of them."""
        return carry if work.step else self._trained(carry, work)

    def final(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        moved = {name: rows for name, rows in carry.items() if name in self._kept}
        return {"delta": work.payload["model"] - carry["w"]}, {**work.memory, **moved}

    def personal(self, w: Vector, work: Work, steps: int) -> Vector:
        if steps == 0:
            return w
        jobs = [job._replace(steps=steps) for job in _jobs(work, len(w))]
        return self._trained({**self.init(work), "w": w}, replace(work, jobs=jobs))["w"]

    @property
    def _kept(self) -> set[str]:
        return {f"{_KEPT}{name}" for name in self.memory}

    def _trained(self, carry: Carry, work: Work) -> Carry:
        if not isinstance(work.oracle, ByClientOracle):
            raise SettingError(f"{self.label} trains a module on samples, and this problem has neither")
        rows, jobs = [], _jobs(work, len(carry["w"]))
        for row, job in enumerate(jobs):
            mine = {name: values[row] for name, values in carry.items()}
            if job.steps:
                key = int(np.asarray(work.keys, dtype=np.int64)[row]) & _MASK
                mine = self._one(mine, job, work.oracle.client(row), longer(key, _OWN), work.between)
            rows.append(mine)
        return {name: torch.stack([mine[name] for mine in rows]) for name in carry}

    def _one(self, carry: Carry, job: Job, task: ClientTask, seed: int, between: Callable[[int], bool] | None) -> Carry:
        """What one client's job makes of its row."""
        w = carry["w"].detach()
        kept = {name.removeprefix(_KEPT): rows.clone() for name, rows in carry.items() if name in self._kept}
        module = task.module(w)
        before = _to_train(module) if job.number == 0 else {}
        said = f"{self.label}, client {job.client}, job {job.id}"
        with _Turn(seed, task.device) as turn, torch.enable_grad(), task.precise():
            own = LoopJob(self, job, task, seed, kept, between, turn)
            try:
                given = self.function(module, task.data, own)
            except (Exception, SystemExit) as error:
                raise TrainingError(f"{said}: {_told(error)} ({_place(error, self.function)})") from error
        if given is not None and not isinstance(given, nn.Module):
            raise TrainingError(
                f"{said}: returned a {type(given).__name__}; train the model in place, or return a module"
            )
        if self.stops and own.made != own.wanted:
            counted = f"job.step() was called {own.made} times for {own.wanted} steps"
            raise TrainingError(
                f"{said}: {counted}; with stops, call it after every step and return when it gives False"
            )
        after = module if given is None else given
        try:
            reached = task.vector(after, w)
        except OffbeatError as error:
            raise TrainingError(f"{said}: {error}") from None
        if before and _unchanged(before, after):
            _warn_once(self.label, f"{said}: no parameter has changed; does it step an optimiser of this model?")
        return {"w": reached, **{f"{_KEPT}{name}": own.returned(name, said) for name in self.memory}}


class LoopJob:
    """What a training loop is told about its job.

    steps: local steps that are wanted.   epochs: as the local trainer says, or None.   lr: step size.
    batch: mini-batch size; all of the client's samples where none was set.   client, task: their numbers.
    id: of the job in the run.   number: how many jobs this client was given before.   version: of the model that it
    starts from.   device: of the model and the samples.   seed: of all that is random in this job.
    generator: a torch.Generator with that seed.   memory: what the client keeps between jobs, a vector by name; change
    it in place or put others in.   options: the settings that are the function's own; each is an attribute, too.
    made: steps counted so far.   wanted: `steps`, or fewer once the job has been stopped.
    """

    steps: int
    epochs: float | None
    lr: float
    batch: int
    client: int
    task: int
    id: int
    number: int
    version: int
    device: torch.device
    seed: int
    generator: torch.Generator
    memory: dict[str, torch.Tensor]
    options: Mapping[str, Any]
    made: int
    wanted: int

    def __init__(
        self,
        loop: Loop,
        job: Job,
        task: ClientTask,
        seed: int,
        memory: dict[str, torch.Tensor],
        between: Callable[[int], bool] | None,
        turn: _Turn,
    ) -> None:
        self.steps, self.lr, self.client, self.task = job.steps, job.lr, job.client, job.task
        self.id, self.number, self.version = job.id, job.number, job.version
        self.epochs, self.options, self.batch = loop.epochs, MappingProxyType(loop.options), task.batch
        self.device, self.seed, self.memory = task.device, seed, memory
        self.generator = torch.Generator().manual_seed(seed)
        self.made, self.wanted = 0, job.steps  # `wanted` falls if the job is stopped before its end
        self._task, self._between, self._turn = task, between, turn
        self._shapes = {name: rows.shape for name, rows in memory.items()}

    def __getattr__(self, name: str) -> Any:
        options = self.__dict__.get("options", {})
        if name not in options:
            known = ", ".join(options) or "none"
            raise AttributeError(f"the job has no {name!r}, and the loop's own options are: {known}")
        return options[name]

    def step(self) -> bool:
        """Count an optimisation step; whether there is another one to make."""
        self.made += 1
        if self._between is None:
            return self.made < self.wanted
        with self._turn.paused():
            on = self._between(self.made)
        if not on and self.made < self.wanted:
            self.wanted = self.made
        return on and self.made < self.wanted

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """The experiment's loss of a model on a batch, as `data` and `batches` give them, with its l2 and weights."""
        return self._task.loss(model, batch)

    def batches(self) -> Iterator[Any]:
        """The job's mini-batches, the ones that offbeat's own trainers would draw; counts steps, and ends with them."""
        more = self.made < self.wanted
        while more:
            yield self._task.minibatch(self.made)
            more = self.step()

    def returned(self, name: str, said: str) -> Vector:
        """What the function left in its memory under this name, checked."""
        found = self.memory.get(name)
        if not isinstance(found, torch.Tensor) or found.shape != self._shapes[name]:
            shape = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
            raise TrainingError(
                f"{said}: memory[{name!r}] is {shape}, and was {list(self._shapes[name])}; keep its shape"
            )
        return found.detach().to(self.device, torch.float32)


def loop_or_factory(found: Any, name: str) -> Any:
    """What a function of the user's own stands for: a training loop, or something that makes a local trainer.

    A loop has three parameters without a default, none of which is called like a setting of local trainers.
    """
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return found
    needed = [
        p.name for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    settings = {each.name for each in fields(Loop)}
    return LoopMaker(found) if len(needed) == 3 and settings.isdisjoint(needed) else found


@dataclass(frozen=True)
class LoopMaker:
    """Makes a `Loop` of a function from its settings. makes: the class that they are settings of."""

    function: Train
    makes: ClassVar[type[Loop]] = Loop

    def __call__(self, **settings: Any) -> Loop:
        return Loop(self.function, **settings)


def _jobs(work: Work, rows: int) -> list[Job]:
    """The job of each row; of work that came without, one that says what the work says."""
    if work.jobs:
        return list(work.jobs[:rows])
    steps, lr = (torch.as_tensor(each).expand(rows, 1).flatten().tolist() for each in (work.steps, work.lr))
    return [Job(row, row, 0, 0, int(steps[row]), float(lr[row]), 0) for row in range(rows)]


# Random numbers, and one loop at a time: the global generators are everybody's


class Globals(NamedTuple):
    """What is everybody's in a process: the states of random generators, and torch's settings."""

    cpu: torch.Tensor
    cuda: torch.Tensor | None
    numpy: Any
    python: Any
    threads: int
    dtype: torch.dtype
    deterministic: tuple[bool, bool]

    @classmethod
    def now(cls, device: torch.device) -> Globals:
        there = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        strict = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        drawn = torch.get_rng_state(), there, np.random.get_state(), random.getstate()
        return cls(*drawn, torch.get_num_threads(), torch.get_default_dtype(), strict)

    def put_back(self, device: torch.device) -> None:
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, device)
        np.random.set_state(self.numpy)
        random.setstate(self.python)
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        torch.set_default_dtype(self.dtype)
        torch.use_deterministic_algorithms(self.deterministic[0], warn_only=self.deterministic[1])


class _Turn:
    """Within, no other loop of this process is at work, and the global generators are seeded."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.seed, self.device = seed, device

    def __enter__(self) -> _Turn:
        TURN.acquire()
        self.before = Globals.now(self.device)
        torch.default_generator.manual_seed(self.seed)  # torch.manual_seed would reseed all GPUs
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                torch.cuda.manual_seed(self.seed)
        np.random.seed(self.seed & 0xFFFFFFFF)
        random.seed(self.seed)
        return self

    def __exit__(self, *error: object) -> None:
        self.before.put_back(self.device)
        TURN.release()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within, in the middle of a loop, everything is as it was before, and others may be at work."""
        mine = Globals.now(self.device)
        self.before.put_back(self.device)
        TURN.release()
        try:
            yield
        finally:
            TURN.acquire()
            self.before = Globals.now(self.device)
            mine.put_back(self.device)


# What went wrong


def _to_train(module: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of the parameters to train, by name."""
    return {name: p.detach().clone() for name, p in module.named_parameters() if p.requires_grad}


def _unchanged(before: Mapping[str, torch.Tensor], module: nn.Module) -> bool:
    now = dict(module.named_parameters())
    return all(name in now and torch.equal(value, now[name].detach().to(value)) for name, value in before.items())


_warned: set[str] = set()


def _warn_once(label: str, text: str) -> None:
    """A loop may leave a model as it is; more often it was forgotten to train it, so it is said once per loop."""
    if label not in _warned:
        _warned.add(label)
        log.warning("%s", text)


def _told(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _place(error: BaseException, function: Any) -> str:
    """Where it happened: the last line of the function's own file that was at work."""
    frames = traceback.extract_tb(error.__traceback__)
    own = getattr(getattr(function, "__code__", None), "co_filename", "")
    at = next((frame for frame in reversed(frames) if frame.filename == own), frames[-1])
    return f"{Path(at.filename).name}, line {at.lineno}"
