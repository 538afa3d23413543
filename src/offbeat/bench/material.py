"""What every contender starts from: the same data, shards, rates and initial models."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from offbeat.bench.workloads import BenchTask, Workload
from offbeat.core.errors import DataError
from offbeat.core.problem import Problem
from offbeat.core.vectors import Vector
from offbeat.data import load
from offbeat.data.base import Dataset
from offbeat.data.lazy import Read
from offbeat.data.splits import IID, Dirichlet
from offbeat.data.texts import topics
from offbeat.models.build import build
from offbeat.models.lora import adapted
from offbeat.problems.quadratic import Quadratic
from offbeat.problems.supervised import Supervised

SHAPES = {"mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
JUDGED = 2000  # test samples for networks: evaluation must not take longer than training
_TRAIN, _TEST, _CLASSES = 60_000, 10_000, 10


@dataclass(frozen=True)
class Material:
    """A workload with all of its random parts drawn.

    means: mean time of a job, by client (for several tasks: slowness, a factor of the tasks' times).
    sources: the data set of each task, or the synthetic one in its place.
    """

    workload: Workload
    problems: Sequence[Problem]
    datasets: Sequence[Dataset]
    modules: Sequence[nn.Module]
    shards: Sequence[Sequence[np.ndarray]]
    means: Sequence[float]
    sources: Sequence[str]

    def judge(self, models: Sequence[Vector]) -> Mapping[str, float]:
        """Metrics of the final models, averaged over the tasks; the same code for all contenders."""
        found = [p.measure(m.to(p.initial().device)[None])[0] for p, m in zip(self.problems, models, strict=True)]
        return {name: sum(each[name] for each in found) / len(found) for name in found[0]}


def prepare(workload: Workload, device: str = "cpu") -> Material:
    """The material of a workload, from a fixed seed."""
    rng = np.random.default_rng(7)
    n = workload.clients
    if not workload.tasks:
        quadratic = Quadratic(n, workload.dim, device=device)
        return Material(workload, [quadratic], [], [], [], _means(n, rng), ["quadratic"])
    datasets = [dataset(task) for task in workload.tasks]
    modules = [
        adapted(build(t.model, d.shape, d.outputs, seed=1), t.lora, 1)
        for t, d in zip(workload.tasks, datasets, strict=True)
    ]
    split = Dirichlet(0.1, per_client=300) if workload.requests else IID()  # FedAST, appendix C.4
    shards = [split(d.train.column("y"), n, rng) for d in datasets]
    problems: list[Problem] = [
        Supervised(d, m, s, device=device, name=f"{t.data}-{i}", measured=judged(t))
        for i, (t, d, m, s) in enumerate(zip(workload.tasks, datasets, modules, shards, strict=True))
    ]
    # with requests a quarter of the clients slow, a quarter fast (FedAST, appendix C.6)
    slowness = rng.choice([1.3, 1.0, 0.7], n, p=[0.25, 0.5, 0.25]).tolist() if workload.requests else []
    means = slowness or _means(n, rng)
    return Material(workload, problems, datasets, modules, shards, means, [d.name for d in datasets])


def judged(task: BenchTask) -> int | None:
    """Samples that a model is judged on; None: all that evaluations use."""
    if task.lora is not None:
        return JUDGED // 10
    return None if task.model == "softmax" else JUDGED


def dataset(task: BenchTask) -> Dataset:
    """The task's data set if it is installed, else a synthetic one of the same shape."""
    if task.data == "topics":
        return topics(window=64, stride=16)
    try:
        found = load(task.data)
    except DataError:
        found = synthetic(task.data)
    if task.packed is None:
        return found
    items = Packed(found.train["x"][: task.packed], found.train["y"][: task.packed])
    return replace(found, train=Read(items, keep=items.size // 10), _made={})


class Packed:
    """Images that are unpacked when they are read. size: of all of them and of their labels, in bytes."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images = [zlib.compress(image.numpy().tobytes(), 1) for image in images]
        self.targets: list[int] = labels.tolist()
        self.shape, self.size = images.shape[1:], images.numel() + 8 * len(labels)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        pixels = torch.frombuffer(bytearray(zlib.decompress(self.images[at])), dtype=torch.uint8)
        return pixels.view(self.shape), self.targets[at]


def synthetic(name: str, train: int = _TRAIN, test: int = _TEST) -> Dataset:
    """As many images of the same size: noise that is denser in some blocks of 4 × 4 pixels, by class."""
    colours, side, _ = shape = SHAPES[name]
    rng = np.random.default_rng(3)
    blocks = rng.random((_CLASSES, colours, side // 4, side // 4)) < 0.25
    density = np.where(blocks.repeat(4, axis=2).repeat(4, axis=3), 0.25, 0.15).astype(np.float32)
    labels = rng.integers(_CLASSES, size=train + test)
    x = np.empty((train + test, *shape), dtype=np.uint8)
    for at in range(0, len(x), 5000):
        some = labels[at : at + 5000]
        x[at : at + 5000] = (rng.random((len(some), *shape), dtype=np.float32) < density[some]) * np.uint8(200)
    images, y = torch.from_numpy(x), torch.from_numpy(labels)
    made = f"made data of {name}'s shape"
    return Dataset.pairs(made, images[:train], y[:train], images[train:], y[train:], _CLASSES, 1 / 255)


def _means(clients: int, rng: np.random.Generator) -> list[float]:
    """Mean times 1/λ_i with λ_i ~ N(10, 5) cut at 0.5 (AREA, §5)."""
    rates = np.maximum(rng.normal(10.0, 5.0, clients), 0.5)
    return [float(1.0 / rate) for rate in rates]
