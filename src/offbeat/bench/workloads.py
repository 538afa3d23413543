"""The workloads: what is trained, by how many clients, for how many updates; `workloads.toml` lists them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files

from offbeat.experiment import schema
from offbeat.models.lora import LoRA

# The contenders: a single run, and other ways in which offbeat does the same work.
OFFBEAT, SERIAL = "offbeat", "offbeat, one by one"
BOTH, SWEEP = "offbeat, both cores", "offbeat, 8 runs at once"
LOADER = "plain DataLoader loop"  # on the pooled samples, as many mini-batches
EAGER, HALF = "offbeat, not compiled", "offbeat, bf16"
VMAP = "vmap(grad), 16 clients"  # as PyTorch's documentation shows it
LOOP = "PyTorch loop"  # client by client
RUNS = {BOTH: 2, SWEEP: 8}  # runs per turn, if not one
AGAINST = {BOTH: OFFBEAT, SWEEP: SERIAL}  # what they are compared with; offbeat is compared with every other contender


@dataclass(frozen=True)
class BenchTask:
    """What one model is trained on.

    time: mean time of a local step on a normal client, β in FedAST, C.6; only where there are several tasks.
    packed: so many of the training samples, unpacked when they are read; a tenth of them may be kept.
    lora: adapters over the model.
    """

    data: str
    model: str
    steps: int
    batch: int
    lr: float
    time: float = 1.0
    packed: int | None = None
    lora: LoRA | None = None


@dataclass(frozen=True)
class Check:
    """Contenders did the same work if a metric of their final models agrees.

    metric: its name.   within: the largest difference between two contenders' means.
    """

    metric: str
    within: float


@dataclass(frozen=True)
class Workload:
    """Buffered asynchronous training by clients with exponential times of different rates.

    tasks: none for the quadratic.   dim: of the quadratic.   size: updates per server step, K.   lr: server step size.
    updates: of one turn.   quick: the same with --quick.   cuda: the same on a GPU.   turns: of every contender.
    requests: ΣR where several tasks share the clients; then `updates` are those of each task.
    compile: offbeat compiles local steps on a GPU.   equal: jobs of all clients take the same time.
    contenders, on_cuda: who does the work, on a CPU and on a GPU; none: not there.   against: see AGAINST.
    aims, cuda_aims: the least that a contender's ratio should be.   rate: the updates per second to reach.
    """

    name: str
    title: str
    clients: int
    updates: int
    quick: int
    check: Check
    tasks: tuple[BenchTask, ...] = ()
    size: int = 10
    lr: float = 1.0
    cuda: int = 2000
    requests: int = 0
    compile: bool = False
    equal: bool = False
    turns: int = 5
    contenders: tuple[str, ...] = (OFFBEAT,)
    on_cuda: tuple[str, ...] = (OFFBEAT, SWEEP, SERIAL)
    against: Mapping[str, str] = field(default_factory=lambda: AGAINST)
    aims: Mapping[str, float] = field(default_factory=dict)
    cuda_aims: Mapping[str, float] = field(default_factory=dict)
    rate: float | None = None
    dim: int = 10

    def total(self, updates: int) -> int:
        """Updates of all tasks."""
        return updates * max(1, len(self.tasks))


def _read() -> dict[str, Workload]:
    tables = tomllib.loads(files("offbeat.bench").joinpath("workloads.toml").read_text("utf-8"))
    return {name: schema.build(Workload, {"name": name, **table}, name) for name, table in tables.items()}


WORKLOADS = _read()
