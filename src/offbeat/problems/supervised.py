"""Any objective over clients' shards of a data set."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from offbeat.core.errors import DataError, SettingError, at_least, one_line, positive, unknown
from offbeat.core.local import Local
from offbeat.core.problem import Numbers
from offbeat.core.random import MODEL, SPLIT, key
from offbeat.core.vectors import Vector
from offbeat.data.adapters import ByClient
from offbeat.data.base import Dataset
from offbeat.data.samples import Samples, Stored
from offbeat.data.sharding import owner_column, shards
from offbeat.data.splits import Owners, Split
from offbeat.models.dropout import PROBE
from offbeat.models.flat import Flat, ModelParts
from offbeat.models.huggingface import HuggingFace
from offbeat.models.linear import ClosedForm
from offbeat.models.lora import LoRA, adapted
from offbeat.problems.check import check, check_scores
from offbeat.problems.compiled import Compiled
from offbeat.problems.evaluation import Evaluation, Measured
from offbeat.problems.given import given
from offbeat.problems.metrics import Score
from offbeat.problems.objective import LOSSES, Loss, Objective, cross_entropy, total
from offbeat.problems.parted import OfModule, parted
from offbeat.problems.replay import Replay
from offbeat.problems.rows import Rows
from offbeat.problems.scoring import Metrics, scores
from offbeat.problems.shards import Shards
from offbeat.problems.shares import Weighted, owners, test_shares, weights

_NAMED, _LENGTH = 12, 80  # clients, at most, whose names are shown; characters of these
log = logging.getLogger("offbeat.problems")
noted = logging.getLogger("offbeat.problems.data")
_NOTED: set[tuple[str, str]] = set()  # what has been said in this process


class Supervised(OfModule):
    """f̂_i(w) = mean loss over client i's samples + l2/2·|w|² (AREA eq. 4).

    shards: sample indices of each client.   loss: what is minimised, see `offbeat.problems.objective`; None:
    cross-entropy where the target is a class, else the squared error.   metrics: what is measured on the test samples;
    the first is the main one.   weight: a column with the weights of samples.   l2: ν.   weighted: client i's
    function is (s_i/S)·f̂_i, and the global objective Σ (s_i/S) f̂_i; "relative": it is (n·s_i/S)·f̂_i, the objective
    is the same, and step sizes do not depend on n; otherwise it is f̂_i, and the objective (1/n) Σ f̂_i.
    measured: what `measure` uses, see `Evaluation`.   parts: `statistics`, `train`, `personal` and `precision`,
    see `Flat`.
    """

    def __init__(
        self,
        data: Dataset,
        model: nn.Module,
        shards: Sequence[np.ndarray],
        l2: float = 0.0,
        weighted: Weighted = False,
        device: str = "cpu",
        measured: Measured = None,
        name: str = "",
        *,
        loss: Loss | None = None,
        metrics: Metrics | None = None,
        weight: str | None = None,
        **parts: Unpack[ModelParts],
    ) -> None:
        if measured != "all":
            positive(measured=measured)
        if l2 < 0:
            raise SettingError(f"l2 = {l2}: must not be negative")
        if not shards:
            raise SettingError("clients = 0: a problem needs at least one client")
        for client, shard in enumerate(shards):
            if len(shard) == 0:
                raise DataError(f"client {client} has no data; use fewer clients or a less uneven split")
        self.name, self.data, self.l2, self.device = name or data.name, data, l2, torch.device(device)
        self.measured, self.weighted = measured, weighted
        self.flat, self.parts_given = Flat(model, **parts), parts
        self.clients, self.dim = len(shards), self.flat.dim
        sizes = np.array([len(s) for s in shards], dtype=np.int64)
        order = np.concatenate(list(shards)).astype(np.int64)
        self.shards = Shards(order, sizes, weights(sizes, weighted), self.device)
        self.train, self.test = data.train.on(self.device), data.test.on(self.device)
        self.loss_given = loss or ("mse" if data.classes is None else "cross-entropy")
        self.objective = Objective.of(self.loss_given, data.inputs, data.target, weight)
        self.objective = self.objective.formed(check(self))
        self.scores = scores(metrics, self.objective.name, data.tokens)
        check_scores(self)
        _note(self.name, data)
        self.usual = self.objective.function is cross_entropy and self.objective.form == "each"
        # closed forms and kernels are for the cross-entropy of one input in memory, closed forms for real numbers only
        one = self.usual and len(data.inputs) == 1
        real = one and isinstance(self.train, Stored) and self.train.real(data.inputs[0])
        self.closed = model if isinstance(model, ClosedForm) and real and self.flat.plain else None
        self.scale = self.train.scales.get(data.inputs[0], 1.0) if isinstance(self.train, Stored) else 1.0
        self.adds = one and isinstance(self.train, Stored) and self.flat.adds(self.device)
        self.replay: Replay | Compiled | None = None
        self.replay_step: Replay | Compiled | None = Replay(self.stepped) if self.adds else None
        if self.device.type == "cuda" and self.stacks:
            self.replay = Replay(self.slopes)
        self._buffers: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._measuring: dict[Measured, Supervised] = {}  # those that `measuring` has made

    def __repr__(self) -> str:
        sizes = self.shards.sizes
        each = f"{sizes.min():,}" if sizes.min() == sizes.max() else f"{sizes.min():,} to {sizes.max():,}"
        measured = ", ".join(score.name for score in self.scores)
        names = f" ({', '.join(self.client_names)})" if self.clients <= _NAMED and self.client_names else ""
        names = names if len(names) <= _LENGTH else ""
        return (
            f"Supervised({self.name}: {self.clients} clients{names} with {each} samples each; "
            f"{_columns(self.data)}; {self.dim:,} parameters; "
            f"loss {self.objective.name}{f'; metrics {measured}' if measured else ''})"
        )

    @classmethod
    def split(
        cls,
        data: Any,
        clients: int | None = None,
        split: Split | None = None,
        model: str | nn.Module | Callable[..., nn.Module] = "softmax",
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
        *,
        target: str | None = None,
        inputs: str | Sequence[str] | None = None,
        test: Any = None,
        holdout: float | None = None,
        client: str | None = None,
        loss: Loss | None = None,
        metrics: Metrics | None = None,
        weight: str | None = None,
        l2: float = 0.0,
        weighted: Weighted = False,
        device: str = "cpu",
        measured: Measured = None,
        name: str = "",
        lora: LoRA | None = None,
        **parts: Unpack[ModelParts],
    ) -> Supervised:
        """The problem of a data set split over clients (IID by default) and a model, both drawn from the seed.

        data: a `Dataset`, or what one can be made of, see `offbeat.data.adapters`: arrays, columns, tables, files,
        anything with len() and [i], data sets by client.   clients: how many; None: as many as there are owners.
        target, inputs: its columns.   test: samples to test on;
        None: a share `holdout` of the data, 0.2.   client: the column with the samples' owners.
        model: by name, as in an experiment file, a factory, or a module, which keeps its parameters.   options: of the
        model.   loss, metrics, weight: see `Supervised`.   l2: weight of l2/2·|w|².   weighted: a client's loss counts
        by its share of the samples; "relative": n times that.   measured: what is evaluated on, see `Evaluation`.
        lora: adapters over the model, which is frozen.   parts: see `Supervised`.
        """
        at_least(1, clients=1 if clients is None else clients)
        _known("split", parts)
        at_least(-(1 << 63), seed=seed)
        if split is not None and not callable(split):
            raise SettingError(f"split = {split!r}: expected one from offbeat.data, such as Dirichlet(0.1)")
        client = owner_column(client, split)
        found, module = given(
            data,
            model,
            loss,
            weight,
            options,
            seed,
            target=target,
            inputs=inputs,
            test=test,
            holdout=holdout,
            client=client,
        )
        used = (client, getattr(split, "by", None))
        if not found.left.keys().isdisjoint(used):
            found = replace(found, left={name: why for name, why in found.left.items() if name not in used})
        rng = np.random.default_rng(key(seed, SPLIT))
        split_ = shards(split, found, clients, rng)
        module = adapted(module, lora, key(seed, MODEL, 1))
        chosen: Any = {"loss": loss, "metrics": metrics, "weight": weight, **parts}
        return cls(found, module, split_, l2, weighted, device, measured, name, **chosen)

    @classmethod
    def of_clients(
        cls,
        data: Mapping[str, Any],
        model: str | nn.Module | Callable[..., nn.Module] = "softmax",
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
        *,
        target: str | None = None,
        inputs: str | Sequence[str] | None = None,
        test: Any = None,
        holdout: float | None = None,
        loss: Loss | None = None,
        metrics: Metrics | None = None,
        weight: str | None = None,
        l2: float = 0.0,
        weighted: Weighted = False,
        device: str = "cpu",
        measured: Measured = None,
        name: str = "",
        lora: LoRA | None = None,
        **parts: Unpack[ModelParts],
    ) -> Supervised:
        """The problem of one data set for each client, by name and in this order.

        test: samples to test on, for all clients or by client; None: a share `holdout` of every client's, 0.2.
        Everything else as in `split`.
        """
        _known("of_clients", parts)
        at_least(-(1 << 63), seed=seed)
        if not isinstance(data, Mapping):
            raise SettingError(f"a {type(data).__name__} has no clients; give one data set for each, by name")
        found, module = given(
            ByClient(data), model, loss, weight, options, seed, target=target, inputs=inputs, test=test, holdout=holdout
        )
        owned = shards(Owners(), found, len(data), np.random.default_rng(0))
        module = adapted(module, lora, key(seed, MODEL, 1))
        chosen: Any = {"loss": loss, "metrics": metrics, "weight": weight, **parts}
        return cls(found, module, owned, l2, weighted, device, measured, name, **chosen)

    def pooled(self) -> Supervised:
        """The same data as one client's: what training without federation would see."""
        everything = [np.unique(self.shards.order)]
        return Supervised(
            self.data,
            self.flat.module,
            everything,
            self.l2,
            False,
            str(self.device),
            self.measured,
            self.name,
            loss=self.loss_given,
            metrics=self.scores,
            weight=self.objective.weight,
            **self.parts_given,
        )

    @cached_property
    def client_names(self) -> list[str]:
        """The name of each client's natural owner; none where clients are no natural owners with names."""
        found = owners(self.data, [self.shards[client] for client in range(self.clients)]) if self.data.owners else []
        return [self.data.owners[each] for each in found]

    @property
    def metrics(self) -> Sequence[Score]:
        return self.scores

    def compile(self, backend: str = "inductor") -> None:
        """From now on, stacked clients' gradients and plain steps are compiled, see `Compiled`."""
        if self.has_own_form:
            return
        if self.unstackable:
            log.warning("%s is not compiled, because its clients cannot be stacked: %s", self.name, self.unstackable)
            return
        self._measuring = {}  # they are not compiled
        noted = self.fingerprint if backend == "inductor" else ""
        self.replay = Compiled(self.slopes, backend, noted)
        if isinstance(self.train, Stored) and self.flat.running is None:
            self.replay_step = Compiled(self.advanced, backend, noted)

    @property
    def has_own_form(self) -> bool:
        """Whether many clients have a closed form or kernels of their own, which are faster than what is compiled."""
        return self.closed is not None or self.adds or self.own

    @cached_property
    def compiled_form(self) -> Supervised:
        """The same problem, compiled: for some of the runs that share it."""
        other = copy.copy(self)
        other.compile()
        return other

    @property
    def fingerprint(self) -> str:
        """The same for problems that are probably compiled to the same, in this process and in others."""
        what = (type(self.flat.module).__qualname__, self.dim, self.flat.size, self.flat.autocast, self.device.type)
        return "-".join(map(str, (*what, torch.__version__)))

    @property
    def compiled(self) -> str:
        """What was compiled and how long it took, or why nothing was; empty: nothing was to be."""
        made = [each for each in (self.replay, self.replay_step) if isinstance(each, Compiled)]
        seconds = [(size, took) for each in made for size, took in each.seconds.items()]
        reasons = [f"not compiled: {each.reason}" for each in made if each.reason]
        if seconds:
            sizes = ", ".join(str(size) for size in sorted({size for size, _ in seconds}))
            reasons.append(f"compiled for {sizes} clients in {sum(took for _, took in seconds):.1f} s")
        return "; ".join(reasons)

    @property
    def stacks(self) -> bool:
        if isinstance(getattr(self, "replay", None), Compiled):
            return True
        if self.device.type == "cuda":
            return self.own or not self.unstackable
        return not self.flat.convolutional and not self.unstackable

    @cached_property
    def unstackable(self) -> str:
        """Why torch.vmap cannot compute many clients at once; empty if it can."""
        if not self.flat.vmappable:
            return "torch.vmap has no rule for recurrent layers"
        module = self.flat.module
        ours = type(module).__module__.startswith("offbeat.") and not isinstance(module, HuggingFace)
        if ours and self.objective.function in LOSSES.values():
            return ""
        parts = self.samples(torch.zeros(2, 2, dtype=torch.int64, device=self.device))
        weights, shares = torch.full((2, 2), 0.5, device=self.device), torch.ones(2, device=self.device)
        keys = (torch.arange(2, device=self.device),) if self.flat.random else ()
        try:
            self.stacked_slopes(self.flat.whole(self.initial()).repeat(2, 1), *parts, weights, shares, *keys)
        except Exception as error:  # whatever a model or a loss does there, one client at a time has been tried before
            return one_line(error)
        return ""

    @cached_property
    def _alone_fails(self) -> str:
        """Why the model cannot be trained on a single sample; empty if it can."""
        parts = self.samples(torch.zeros(1, dtype=torch.int64, device=self.device))
        pieces = self.flat.pieces(self.flat.whole(self.initial()))
        try:
            self.flat.alone(pieces, self.objective.mean, *parts, key=PROBE.to(self.device))
        except ValueError as error:
            return one_line(error)
        return ""

    def enough(self, clients: np.ndarray, batch: int | None) -> None:
        """Raise if a mini-batch of these clients is a single sample and the model normalises by its batch."""
        if batch == 1 and self._alone_fails:
            raise SettingError(f"batch = 1: {self.name} normalises by its batch and needs two samples; use 2 or more")
        if batch is None and self.shards.sizes[clients].min() == 1 and self._alone_fails:
            client = int(clients[self.shards.sizes[clients].argmin()])
            raise SettingError(
                f"client {client} has one sample, and {self.name} normalises by its batch, which needs two; set "
                'batch = 2 or more, or statistics = "frozen"'
            )

    def initial(self) -> Vector:
        return self.flat.initial().to(self.device)

    def samples_of(self, client: int) -> int:
        """How many training samples a client has."""
        return int(self.shards.sizes[client])

    def oracle(self, clients: Numbers, keys: Numbers, steps: int, batch: int | None, shuffle: bool) -> Rows:
        return Rows(self, clients, keys, steps, batch, shuffle)

    def pair(self, local: Local) -> Local:
        """The local trainer as this model needs it, see `offbeat.problems.parted`."""
        if local.by_sample:
            self.check_by_sample(local.label)
        return parted(local, self.flat, self.name)

    @property
    def kin(self) -> Hashable:
        """Problems of equal kin differ in their shards and starting points alone: their clients can be stacked."""
        if self.flat.constants:
            return id(self)
        parts = repr(self.parts_given)
        compiled = isinstance(self.replay, Compiled)
        function = _function(self.flat.module)
        return (type(self), id(self.data), function, parts, self.objective, self.l2, self.device, compiled)

    def union(self, problems: Sequence[Supervised]) -> Supervised:
        """One problem with the clients of all these, which are of equal kin; for oracles, not for measuring."""
        joint = copy.copy(self)
        joint.shards = Shards.union([p.shards for p in problems])
        joint.clients = sum(p.clients for p in problems)
        return joint

    def stored(self, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs of these samples [b, inputs] as stored numbers in single precision, in a buffer, and their labels."""
        if len(which) not in self._buffers:
            shape = (len(which), self._inputs.shape[1])
            self._buffers[len(which)] = np.empty(shape, self._inputs.dtype), np.empty(shape, np.float32)
        raw, x = self._buffers[len(which)]
        self._inputs.take(which, 0, raw, "clip")
        np.copyto(x, raw)
        return x, self._labels[which]

    @cached_property
    def _inputs(self) -> np.ndarray:
        return self.train[self.data.inputs[0]].flatten(1).numpy()

    @cached_property
    def _labels(self) -> np.ndarray:
        return self.train[self.data.target].numpy()

    def samples(self, indices: Tensor) -> tuple[Tensor, ...]:
        """The objective's columns of training samples, in the shape of their indices."""
        return self.parts(self.train, indices)

    def parts(self, samples: Samples, indices: Tensor) -> tuple[Tensor, ...]:
        found = samples.take(indices, self.objective.columns)
        return tuple(found[name] for name in self.objective.columns)

    def loss(self, w: Vector, *given: Tensor) -> Tensor:
        """One client's stochastic function, share · (Σ weight · loss + l2/2·|w|²).

        given: the objective's columns, then the weights of the samples, the client's share and, for models that drop,
        the key of their masks.
        """
        return self._value(self.objective.values, w, *given)[0]

    def loss_apart(self, w: Vector, *given: Tensor) -> Tensor:
        """The same where some of the samples may be padding, which weighs nothing."""
        return self._value(self.objective.apart, w, *given)[0]

    def _noted(self, w: Vector, *given: Tensor) -> tuple[Tensor, Tensor]:
        return self._value(self.objective.values, w, *given)

    def _value(self, values: Callable[..., Any], w: Vector, *given: Tensor) -> tuple[Tensor, Tensor]:
        """(the function, the model's statistics after it)."""
        key = None
        if self.flat.random:
            *given, key = given  # type: ignore[assignment]
        *parts, weights, share = given
        found, statistics = self.flat.noted(w, values, *parts, key=key)
        value = total(found, weights)
        if self.l2:
            parameters = self.flat.parameters(w)
            value = value + (0.5 * self.l2) * (parameters * parameters).sum()
        return value * share, statistics

    def stacked_slopes(self, w: Vector, *given: Tensor) -> Vector:
        """Those by torch.vmap. Statistics stand in them with their new values."""
        with self.flat.together():
            if self.flat.running is None:
                rows: Vector = vmap(grad(self.loss))(w, *given)
                return rows
            rows, statistics = vmap(grad(self._noted, has_aux=True))(w, *given)
        rows[:, self.flat.running] = statistics
        return rows

    def slopes(self, w: Vector, *given: Tensor) -> Vector:
        """The gradients [n, d] of n clients' stochastic functions, stacked."""
        if not (self.adds or self.own):
            return self.stacked_slopes(w, *given)
        if self.adds:
            x, y, weights, shares, *masks = given
            return self._added(w, self.l2 * shares, x, y, weights * shares.unsqueeze(1), *masks)
        *parts, weights, shares = given
        w = w.detach().requires_grad_()
        outputs = self.flat.stacked(w, parts[0]).flatten(0, 1)
        found = self.objective.compare(outputs, *(part.flatten(0, 1) for part in parts))
        if isinstance(found, tuple):
            found = found[0].view_as(weights), found[1].view_as(weights)
        else:
            found = found.view_as(weights)
        values = total(found, weights)
        g = torch.autograd.grad((values * shares).sum(), w)[0]  # no client's value depends on another's vector
        return g.add_(w.detach() * shares.unsqueeze(1), alpha=self.l2) if self.l2 else g

    def sample_slopes(self, w: Vector, *given: Tensor) -> Vector:
        """The gradients [k, d] of single samples' losses, each at its own w: columns [k, 1, ...], and masks' keys."""
        if self.closed is not None:
            x, y = given
            return self.closed.gradient(w, x, y, torch.ones(len(w), 1, device=w.device))
        with self.flat.together():
            rows: Vector = vmap(grad(self._one))(w, *given)
        return rows

    def _one(self, w: Vector, *given: Tensor) -> Tensor:
        """A sample's loss."""
        key = None
        if self.flat.random:
            *given, key = given  # type: ignore[assignment]
        found: Tensor = self.flat.apply(w, self.objective.values, *given, key=key)
        return found.sum()

    @property
    def scaled_by_all(self) -> bool:
        """Whether a client's inputs follow from other clients' samples, too."""
        return self.data.fitted

    def check_by_sample(self, label: str) -> None:
        """Raise `SettingError` where a sample has no gradient of its own."""
        if self.data.fitted:
            raise SettingError(
                f'{label}: inputs = "standard" scales each sample of {self.name} by all the others, without noise; '
                "give a mean and a standard deviation that are public"
            )
        layers = zip(self.flat.module.named_modules(), self.flat.modes, strict=True)
        mixing = [name for (name, layer), training in layers if training and isinstance(layer, _BatchNorm)]
        if self.flat.running is not None or mixing:
            raise SettingError(
                f"{label}: a layer of {self.name} ({', '.join(mixing) or 'with running statistics'}) mixes samples, so "
                'that none has a gradient of its own; use GroupNorm or LayerNorm, or statistics = "frozen"'
            )
        if self.objective.form != "each":
            raise SettingError(
                f"{label}: the loss {self.objective.name} of {self.name} gives a mean over a batch or counts samples "
                "unlike; use a loss that gives one value a sample, without weights"
            )
        if self.unstackable:
            raise SettingError(f"{label}: {self.name} cannot compute gradients of single samples: {self.unstackable}")

    @property
    def own(self) -> bool:
        """Whether the model's own form for many vectors serves this objective."""
        objective = self.objective
        return self.flat.own and not objective.whole and objective.form in ("each", "counted")

    def stepped(self, w: Vector, pace: Tensor, indices: Tensor, *masks: Tensor) -> Vector:
        """w − pace · the gradients at mini-batches of these training samples, indices [n, b]; pace [n].

        Without a place for the gradients; the samples are fetched here, so that a graph of it has all of a step.
        """
        x, y = self.samples(indices)
        weights = (-pace / indices.shape[1]).unsqueeze(1).expand_as(y)
        return self._added(w, 1 - self.l2 * pace, x, y, weights, *masks)

    def advanced(self, w: Vector, pace: Tensor, indices: Tensor, *masks: Tensor) -> Vector:
        """The same by the gradients of `slopes`, for any model without running statistics."""
        weights = torch.full(indices.shape, 1.0 / indices.shape[1], device=w.device)
        shares = torch.ones(len(w), device=w.device)
        return w - pace.unsqueeze(1) * self.slopes(w, *self.samples(indices), weights, shares, *masks)

    def _added(self, w: Vector, keep: Tensor, x: Tensor, y: Tensor, weights: Tensor, *masks: Tensor) -> Vector:
        """keep · w + the gradients by the model's own kernels; masks: for a model that drops, what its masks are drawn
        from, [n]."""
        module: Any = self.flat.module
        to = torch.empty_like(w)
        half = {"half": True} if self.flat.autocast else {}
        module.add_gradient(self.flat.named(w), keep, self.flat.named(to), x, y, weights, *masks, **half)
        return to

    # Measuring

    @cached_property
    def evaluation(self) -> Evaluation:
        """How models are measured; made when one is."""
        return Evaluation(self)

    def measure(self, models: Vector) -> list[Mapping[str, float]]:
        """The metrics on the test samples, and the global objective on a sample of the training samples."""
        return self.evaluation.measure(models)

    @property
    def sample(self) -> int | None:
        """How many training samples the objective is measured on; None: all."""
        return self.evaluation.sample

    def measuring(self, samples: Measured) -> Supervised:
        """The same problem, measured on at most so many training and test samples: one for all runs that ask for it."""
        if samples == self.measured:
            return self
        if samples not in self._measuring:
            other = copy.copy(self)
            for made in ("evaluation", "compiled_form"):  # as this one is measured
                other.__dict__.pop(made, None)
            other.measured, other._measuring = samples, {}
            self._measuring[samples] = other
        return self._measuring[samples]

    @property
    def sampled_to_end(self) -> bool:
        """Whether a finished run's objective is that of these samples, too: so many were asked for."""
        return self.sample is not None and self.measured is not None

    def exact(self, model: Vector) -> float:
        """The global objective on all training samples."""
        return self.evaluation.exact(model)

    def judge(self, models: Vector, clients: Sequence[int]) -> list[float]:
        """The task's main metric of row i on the test share of client i."""
        return [self.evaluation.own(w, self.test_shares[c]) for w, c in zip(models, clients, strict=True)]

    @cached_property
    def test_shares(self) -> list[Tensor]:
        """Test samples of each client, see `offbeat.problems.shares`."""
        shards = [self.shards[client] for client in range(self.clients)]
        return [torch.from_numpy(share).to(self.device) for share in test_shares(self.data, shards)]


def _known(name: str, parts: Mapping[str, Any]) -> None:
    """Refuse keywords that neither a function of the class nor its model has."""
    known = {*inspect.signature(getattr(Supervised, name)).parameters, *ModelParts.__annotations__} - {"parts"}
    for each in parts:
        if each not in known:
            raise unknown(f"argument of Supervised.{name}:", each, known)


def _columns(data: Dataset) -> str:
    """What a model gets and what it is compared with."""
    grouped = [name or "''" for name in data.grouped]
    shown = grouped if len(grouped) <= 8 else [*grouped[:6], "…", grouped[-1]]
    inputs = f"{', '.join(data.inputs)} ({', '.join(shown)})" if shown else ", ".join(data.inputs)
    classes = f" ({data.classes} classes)" if data.classes and data.target not in data.inputs else ""
    left = f"; without {', '.join(data.left)}" if data.left else ""
    return f"{inputs} -> {data.target}{classes}{left}"


def _note(name: str, data: Dataset) -> None:
    """Say how the data were understood where that may not be what was meant, once in a process."""
    for remark in data.remarks:
        if (name, remark) not in _NOTED:
            _NOTED.add((name, remark))
            noted.warning("%s: %s", name, remark)


def _function(module: nn.Module) -> Hashable:
    """Equal for modules that differ in the values of their parameters alone."""
    own = ("_parameters", "_buffers", "_modules")
    layers = [
        (name, type(layer), *((k, _plain(v)) for k, v in sorted(vars(layer).items()) if k not in own))
        for name, layer in module.named_modules()
    ]
    return (*layers, *((name, p.shape) for name, p in module.named_parameters(remove_duplicate=False)))


def _plain(value: Any) -> Hashable:
    """Equal for equal numbers and strings, and collections of them; anything else is equal to itself alone."""
    if value is None or isinstance(value, bool | int | float | str):
        return (type(value), value)
    if isinstance(value, Mapping):
        return tuple((k, _plain(v)) for k, v in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return tuple(_plain(v) for v in value)
    return id(value)
