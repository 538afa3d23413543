"""The workloads: what is trained, by how many clients, for how many updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# The contenders: a single run, and other ways in which offbeat does the same work.
OFFBEAT, SERIAL = "offbeat", "offbeat, one by one"
BOTH, SWEEP = "offbeat, both cores", "offbeat, 8 runs at once"
RUNS = {BOTH: 2, SWEEP: 8}  # runs per turn, if not one
AGAINST = {BOTH: OFFBEAT, SWEEP: SERIAL}  # what they are compared with; offbeat is compared with every other contender


@dataclass(frozen=True)
class BenchTask:
    """What one model is trained on.

    time: mean time of a local step on a normal client, β in FedAST, C.6; only where there are several tasks.
    """

    data: str
    model: str
    steps: int
    batch: int
    lr: float
    time: float = 1.0


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

    tasks: none for the quadratic.   size: updates per server step, K.   lr: server step size.
    updates: of one turn.   quick: the same with --quick.   cuda: the same on a GPU.   turns: of every contender.
    requests: ΣR where several tasks share the clients; then `updates` are those of each task.
    contenders, on_cuda: who does the work, on a CPU and on a GPU.   against: see AGAINST.
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
    turns: int = 5
    contenders: tuple[str, ...] = (OFFBEAT,)
    on_cuda: tuple[str, ...] = (OFFBEAT, SWEEP, SERIAL)
    against: Mapping[str, str] = field(default_factory=lambda: AGAINST)
    aims: Mapping[str, float] = field(default_factory=dict)
    cuda_aims: Mapping[str, float] = field(default_factory=dict)
    rate: float | None = None

    @property
    def dim(self) -> int:
        """The dimension of the quadratic."""
        return 10

    def total(self, updates: int) -> int:
        """Updates of all tasks."""
        return updates * max(1, len(self.tasks))


WORKLOADS = {
    w.name: w
    for w in (
        Workload(
            "W1",
            "softmax regression 784→10, 128 clients, batch 32, 1 step",
            clients=128,
            tasks=(BenchTask("mnist", "softmax", steps=1, batch=32, lr=0.2),),
            updates=10_000,
            quick=3_000,
            check=Check("accuracy", 0.01),
        ),
        Workload(
            "W2",
            "the same with 50 steps",
            clients=128,
            tasks=(BenchTask("mnist", "softmax", steps=50, batch=32, lr=0.02),),
            updates=1_000,
            quick=400,
            check=Check("accuracy", 0.01),
        ),
        Workload(
            "W3",
            "CNN of DeFedAvg on 28×28, 100 clients, batch 10, 50 steps",
            clients=100,
            tasks=(BenchTask("fashion-mnist", "cnn", steps=50, batch=10, lr=0.05),),
            updates=20,
            quick=10,
            check=Check("accuracy", 0.1),
            contenders=(OFFBEAT, BOTH),
            turns=3,
            cuda=300,
            cuda_aims={SERIAL: 8.0, SWEEP: 8.0},
        ),
        Workload(
            "W4",
            "FedAST's tasks (MLP, LeNet-5, CNN), 1,000 clients, 315 requests, batch 32, 27 steps",
            clients=1000,
            tasks=(
                BenchTask("mnist", "mlp", steps=27, batch=32, lr=0.1, time=0.148),
                BenchTask("fashion-mnist", "lenet5", steps=27, batch=32, lr=0.06, time=0.240),
                BenchTask("cifar10", "cifar-cnn", steps=27, batch=32, lr=0.1, time=0.228),
            ),
            size=3,
            lr=0.1,
            requests=315,
            updates=6,
            quick=3,
            cuda=300,
            check=Check("loss", 0.1),
            turns=3,
        ),
        Workload(
            "W5",
            "events only: a quadratic in 10 dimensions, 100 clients",
            clients=100,
            updates=30_000,
            quick=10_000,
            check=Check("distance", 0.3),
            rate=50_000.0,
        ),
    )
}
