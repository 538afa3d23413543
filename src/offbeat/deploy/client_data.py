"""Data that clients bring: the server has only the model, a client only its own samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from offbeat.core.errors import DataError, SettingError
from offbeat.core.local import Local
from offbeat.core.metric import Metric
from offbeat.core.problem import Oracle
from offbeat.core.vectors import Vector
from offbeat.data.adapters import TARGETS, parts
from offbeat.data.base import Dataset
from offbeat.data.samples import Samples, Stored
from offbeat.models.flat import Flat, ModelParts
from offbeat.problems.given import given
from offbeat.problems.objective import Loss
from offbeat.problems.parted import OfModule, parted
from offbeat.problems.scoring import Metrics, scores
from offbeat.problems.supervised import Supervised

Rows = Sequence[int] | npt.NDArray[np.int64]


class ModelOnly(OfModule):
    """A task of which only the model is known: what a server without data has."""

    stacks = False

    def __init__(
        self,
        name: str,
        model: nn.Module,
        clients: int,
        metrics: Metrics | None = None,
        loss: Loss = "cross-entropy",
        **parts: Unpack[ModelParts],
    ) -> None:
        self.name, self.clients, self.flat = name, clients, Flat(model, **parts)
        self.dim = self.flat.dim
        self.scores = scores(metrics, loss if isinstance(loss, str) else "")
        for score in self.scores:
            if score.whole:
                raise SettingError(f"metrics: {score.name} needs the outputs of all samples, which stay with clients")

    @property
    def metrics(self) -> Sequence[Metric]:
        return self.scores

    def initial(self) -> Vector:
        return self.flat.initial()

    def pair(self, local: Local) -> Local:
        return parted(local, self.flat, self.name)

    def oracle(self, clients: Rows, keys: Rows, steps: int, batch: int | None, shuffle: bool) -> Oracle:
        raise SettingError(f"{self.name}: the data are the clients' own; use `offbeat serve` and `offbeat join`")

    def measure(self, models: Vector) -> list[Mapping[str, float]]:
        raise SettingError(f"{self.name}: the server has no data to evaluate on")


class ClientProblem(ModelOnly):
    """One client's own task: its samples, under whatever number it has in the federation."""

    def __init__(
        self,
        name: str,
        model: nn.Module,
        clients: int,
        data: Dataset,
        l2: float = 0.0,
        device: str = "cpu",
        metrics: Metrics | None = None,
        loss: Loss = "cross-entropy",
        weight: str | None = None,
        **parts: Unpack[ModelParts],
    ) -> None:
        super().__init__(name, model, clients, metrics, loss, **parts)
        self.held = len(data.test)  # samples to evaluate on; without any, the client takes part and reports none
        data = data if self.held else replace(data, test=data.train)
        everything = [np.arange(len(data.train))]
        chosen: Any = {"loss": loss, "metrics": self.scores, "weight": weight, **parts}
        self.inner = Supervised(data, model, everything, l2=l2, device=device, name=name, **chosen)

    def initial(self) -> Vector:
        return self.inner.initial()

    def pair(self, local: Local) -> Local:
        return self.inner.pair(local)

    def samples_of(self, client: int) -> int:
        """How many training samples this client has, under whatever number."""
        return self.inner.samples_of(0)

    def oracle(self, clients: Rows, keys: Rows, steps: int, batch: int | None, shuffle: bool) -> Oracle:
        return self.inner.oracle([0] * len(clients), keys, steps, batch, shuffle)

    def measure(self, models: Vector) -> list[Mapping[str, float]]:
        return self.inner.measure(models)

    def judge(self, models: Vector, clients: Sequence[int]) -> list[float]:
        """The task's main metric of each model on the held-out samples."""
        return [self.inner.evaluation.own(w, self.inner.evaluation.tested) for w in models]

    def claim(self, vector: Vector) -> tuple[int, float, dict[str, list[float]]]:
        """(samples, their mean loss times their number, sums by metric) of a model on the held-out samples."""
        if not self.held:
            return 0, 0.0, {}
        evaluation, w = self.inner.evaluation, vector.to(self.inner.device)
        with torch.no_grad():
            states = evaluation.states(w.unsqueeze(0), evaluation.tested)
        sums = {score.name: state[0].tolist() for score, state in zip(self.scores, states, strict=True)}
        total, count = evaluation.loss_sums(w, evaluation.tested)
        held = len(evaluation.tested) if count else 0  # without a label, there is nothing to report
        return held, held * total / (count or 1.0), sums if held else {}


def dataset(
    loaded: Any,
    module: nn.Module,
    loss: Loss = "cross-entropy",
    *,
    shape: tuple[int, ...] | None = None,
    holdout: float = 0.2,
    weight: str | None = None,
    **columns: Any,
) -> Dataset:
    """Samples as a client's loader gives them: whatever `offbeat.data.adapters` takes.

    shape: of one input, as the experiment says.   holdout: the share that is kept for evaluation, the last ones, unless
    the loader gives test samples.   columns: target and inputs, by name.
    """
    if not 0 <= holdout < 1:
        raise SettingError(f"holdout = {holdout}: is a share in [0, 1)")
    train, tested, owners = parts(loaded, None)
    if owners:
        raise DataError("the loader returned one data set per client; return only this client's samples")
    if not len(train):
        raise DataError("the loader returned no samples")
    cut = len(train) if tested is not None else max(1, len(train) - round(holdout * len(train)))
    places = np.arange(len(train))
    held = tested if tested is not None else train.part(places[cut:]) if cut < len(train) else train
    found, _ = given(_whole(train.part(places[:cut]), loss), module, loss, weight, test=_whole(held, loss), **columns)
    if shape is not None and found.shape != tuple(shape):
        raise DataError(f"the loader's inputs have the shape {list(found.shape)}, the experiment says {list(shape)}")
    if tested is None and cut == len(train):
        found = replace(found, test=found.train.part(places[:0]))
    return replace(found, name="own")


def _whole(samples: Samples, loss: Loss) -> Samples:
    """The same with classes as whole numbers, however they were stored."""
    if loss != "cross-entropy" or not isinstance(samples, Stored):
        return samples
    real = {n: samples[n] for n in TARGETS if n in samples.names and samples[n].is_floating_point()}
    return samples.with_columns(
        {**samples.columns, **{n: c.long() for n, c in real.items() if torch.equal(c, c.round())}}
    )
