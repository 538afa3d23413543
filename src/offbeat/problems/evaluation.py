"""How models are measured: metrics on the test samples, the objective on a sample of the training samples."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, wraps
from math import prod
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import vmap

from offbeat.core.vectors import Vector
from offbeat.problems.metrics import Score, Whole
from offbeat.problems.replay import fit

if TYPE_CHECKING:
    from offbeat.problems.supervised import Supervised

log = logging.getLogger("offbeat.problems")

Measured: TypeAlias = int | Literal["all"] | None
Ints = npt.NDArray[np.int64]

OBJECTIVE = 2000  # training samples that the objective is measured on unless more are asked for
# Samples evaluated at a time, on a CPU and on a GPU. A network keeps much of each: few of them stay in a CPU's cache.
_CLOSED, _NETWORK = (8192, 65536), (256, 8192)
_SCORES = 1 << 24, 1 << 27  # numbers among the outputs at a time, at most
_TRIED = 256  # samples that show on a GPU how much memory they take


Method = TypeVar("Method", bound=Callable[..., Any])


def _evaluating(method: Method) -> Method:
    """A method of an evaluation that differentiates nothing and in which models are not in training."""

    @wraps(method)
    def evaluated(self: Evaluation, *arguments: Any) -> Any:
        with torch.no_grad(), self.problem.flat.evaluating():
            return method(self, *arguments)

    return cast("Method", evaluated)


class Evaluation:
    """The samples that a problem is evaluated on, always the same ones.

    By default, all test samples and OBJECTIVE training samples, equally many of each client; `problem.measured` is
    "all" for all training samples, or a number of training and of test samples.
    """

    def __init__(self, problem: Supervised) -> None:
        self.problem, device = problem, problem.device
        most = problem.measured
        owner = problem.data.test_owner
        tested = np.arange(len(problem.data.test)) if owner is None else np.flatnonzero(owner.numpy() >= 0)
        if isinstance(most, int) and most < len(tested):
            tested = np.sort(np.random.default_rng(0).choice(tested, most, replace=False))
        self.tested = torch.from_numpy(tested).to(device)  # first: on a GPU, parts of it are measured for their memory
        self.used, self.weights = self._weighed(OBJECTIVE if most is None else most)
        self.warned = False

    @_evaluating
    def measure(self, models: Vector) -> list[Mapping[str, float]]:
        """The metrics on the test samples, and the global objective on the training samples."""
        models = self.problem.flat.whole(models)
        self._warn(models)
        tested = self.states(models, self.tested)
        found = torch.cat(
            [self._objective(models, self.used, self.weights).double().unsqueeze(1), *tested], dim=1
        ).cpu()  # in one piece
        sizes = [1, *(state.shape[1] for state in tested)]
        return [
            {**self._named(w, states), "loss": float(loss)}
            for w, (loss, *states) in zip(models, (row.split(sizes) for row in found), strict=True)
        ]

    def _warn(self, models: Vector) -> None:
        """Say once that a server has moved a variance below zero."""
        if self.problem.flat.running is None or self.warned:
            return
        name = next(filter(None, map(self.problem.flat.overshot, models)), "")
        if name:
            self.warned = True
            log.warning(
                "%s: the server has moved %s below zero, where it counts as zero, so evaluations may be far off; mifa "
                "and ca2fl, which apply old updates again, favano, and server step sizes above 1 do that; use another, "
                'statistics = "local" or "frozen", or group normalisation',
                self.problem.name,
                name,
            )

    def _named(self, w: Vector, states: Sequence[Tensor]) -> dict[str, float]:
        sums = iter(states)
        all_ = self._all_outputs(w, self.tested) if any(score.whole for score in self.problem.scores) else None
        return {
            s.name: s.of(*all_) if all_ and isinstance(s, Whole) else s.value(next(sums)) for s in self.problem.scores
        }

    @_evaluating
    def own(self, w: Vector, tested: Tensor) -> float:
        """The task's main metric of one model on these test samples; without metrics, the mean loss."""
        if not self.problem.scores:
            total, count = self.loss_sums(w, tested)
            return total / max(count, 1)
        score = self.problem.scores[0]
        if isinstance(score, Whole):
            return score.of(*self._all_outputs(w, tested))
        return score.value(self.states(w.unsqueeze(0), tested)[0][0].cpu())

    @_evaluating
    def loss_sums(self, w: Vector, tested: Tensor) -> tuple[float, float]:
        """(the loss of one model on these test samples, added up; what they count together)."""
        p = self.problem
        w, total, count = p.flat.whole(w), 0.0, 0.0
        for which in torch.split(tested, self._chunk):
            parts = p.parts(p.test, which)
            total += float(self.losses(w.unsqueeze(0), parts).sum())
            counts = self._alone(w, p.objective.apart, parts)[1].sum() if p.objective.form == "counted" else len(which)
            count += float(counts)
        return total, count

    def _all_outputs(self, w: Vector, tested: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs of one model for these test samples, and their targets."""
        batches = [self.problem.parts(self.problem.test, which) for which in torch.split(tested, self._chunk)]
        outputs = [self._outputs(w.unsqueeze(0), parts)[0] for parts in batches]
        return torch.cat(outputs), torch.cat([parts[self.problem.objective.target] for parts in batches])

    @_evaluating
    def states(self, models: Vector, tested: Tensor) -> list[Tensor]:
        """By metric that is a function of sums, what these test samples add up to for each model, [v, size]."""
        models = self.problem.flat.whole(models)
        scores = [score for score in self.problem.scores if not score.whole]
        states: list[Any] = [0.0 for _ in scores]
        for which in torch.split(tested, self._chunk) if scores else ():
            parts = self.problem.parts(self.problem.test, which)
            outputs = self._outputs(models, parts)
            for at, score in enumerate(scores):
                states[at] = states[at] + torch.stack([self._state(score, output, parts) for output in outputs])
        return states

    def _state(self, score: Score, output: Any, parts: Sequence[Tensor]) -> Tensor:
        if score.of_loss:
            found = self.problem.objective.compare(output, *parts)
            sums, counts = found if isinstance(found, tuple) else (found, torch.ones_like(found))
            return torch.stack([sums.sum(), counts.sum()]).double()
        return score.state(output, parts[self.problem.objective.target])

    @_evaluating
    def exact(self, model: Vector) -> float:
        """The global objective on all training samples."""
        return float(self._objective(self.problem.flat.whole(model).unsqueeze(0), *self._weighed("all")))

    @property
    def sample(self) -> int | None:
        """How many training samples the objective is measured on; None: all."""
        most = OBJECTIVE if self.problem.measured is None else self.problem.measured
        return None if most == "all" or most >= len(self.problem.shards.order) else most

    def _objective(self, models: Vector, used: Tensor, weights: Tensor) -> Tensor:
        """The global objective [v] on these samples."""
        p = self.problem
        parameters = p.flat.parameters(models) if p.l2 else models
        found = 0.5 * p.l2 * (parameters * parameters).sum(dim=1) if p.l2 else torch.zeros_like(models[:, 0])
        if p.objective.form == "coupled":
            for client, share in enumerate(self._shares):
                parts = p.samples(torch.from_numpy(p.shards[client]).to(p.device))
                values = [self._alone(w, p.objective.values, parts) for w in models]
                found = found + float(share) * torch.stack(values)
            return found
        for which, each in zip(torch.split(used, self._chunk), torch.split(weights, self._chunk), strict=True):
            found = found + self.losses(models, p.samples(which)) @ each
        return found

    @property
    def _shares(self) -> npt.NDArray[np.float64]:
        """What each client counts in the global objective."""
        sizes = self.problem.shards.sizes if self.problem.weighted else np.ones(self.problem.clients)
        return np.asarray(sizes / sizes.sum())

    def losses(self, models: Vector, parts: Sequence[Tensor]) -> Tensor:
        """The summed loss of each sample, [v, m]."""
        objective = self.problem.objective
        if objective.whole or objective.form == "mean":
            found = [self._alone(w, objective.apart, parts) for w in models]
        else:
            outputs = self._outputs(models, parts)
            if self.problem.usual:
                chosen = parts[objective.target].expand(len(models), -1).unsqueeze(2)
                losses: Tensor = torch.logsumexp(outputs, dim=2) - outputs.gather(2, chosen).squeeze(2)
                return losses
            found = [objective.compare(output, *parts) for output in outputs]
        return torch.stack([each[0] if isinstance(each, tuple) else each for each in found])

    def _weighed(self, most: int | Literal["all"]) -> tuple[Tensor, Tensor]:
        """(training samples, what the loss of each counts in the global objective), of so many."""
        p = self.problem
        order, sizes = p.shards.order, p.shards.sizes
        owner = np.repeat(np.arange(p.clients), sizes)
        if most != "all" and most < len(order):
            chosen = _anywhere(len(order), most) if p.weighted else _equally(p.shards.starts, sizes, most)
            order, owner = order[chosen], owner[chosen]
        counts = self._counts(order) if p.objective.form == "counted" else np.ones(len(order))
        totals = np.bincount(owner, counts, minlength=p.clients)
        each = self._shares / np.where(totals > 0, totals, np.inf)
        weights = np.zeros(len(p.data.train))
        np.add.at(weights, order, each[owner])
        used = np.flatnonzero(weights)
        present = float(self._shares[totals > 0].sum()) if p.objective.form == "counted" else float(weights[used].sum())
        weights = weights[used] / present
        return torch.from_numpy(used).to(p.device), torch.from_numpy(weights).to(p.device, torch.float32)

    @_evaluating
    def _counts(self, order: Ints) -> npt.NDArray[np.float64]:
        """What samples count in their client's part, such as texts by their tokens, whatever the model."""
        p = self.problem
        model, found = p.flat.whole(p.initial()), []
        for which in torch.split(torch.from_numpy(order).to(p.device), self._chunk):
            counts = self._alone(model, p.objective.apart, p.samples(which))[1]
            found.append(counts.double().cpu().numpy())
        return np.concatenate(found)

    @property
    def _chunk(self) -> int:
        """Samples evaluated at a time."""
        at = 0 if self.problem.device.type == "cpu" else 1
        most = (_NETWORK if self.problem.closed is None else _CLOSED)[at]
        data = self.problem.data
        scores = (data.classes or 1) * prod(data.train.shape(data.target))  # of one sample: many, for texts
        most = max(1, min(most, _SCORES[at] // scores))
        return most if at == 0 or self.problem.closed is not None else min(most, self._fitting)

    @cached_property
    def _fitting(self) -> int:
        """Samples that a part of a GPU's memory is enough for: a recurrent layer needs much for each."""
        p = self.problem
        model = p.flat.whole(p.initial())
        return fit(
            lambda which: self._alone(model, p.objective.output, p.parts(p.test, which)), [self.tested], tried=_TRIED
        )

    def _outputs(self, models: Vector, parts: Sequence[Tensor]) -> Any:
        """Of every model for all samples [v, m, ...]: of several at once only where samples are few. Those of a model
        that does not give a tensor are in a list."""
        p = self.problem
        if p.closed is not None:
            return p.closed.outputs(models, parts[0])
        looped = p.own or (p.flat.attends and p.device.type == "cpu")  # fused attention has no rule for many there
        together = max(1, self._chunk // len(parts[0])) if p.stacks and not looped else 1
        found = [self._by_network(group, parts) for group in torch.split(models, together)]
        return torch.cat(found) if isinstance(found[0], Tensor) else [output for group in found for output in group]

    def _by_network(self, models: Vector, parts: Sequence[Tensor]) -> Any:
        if len(models) == 1:
            found = self._alone(models[0], self.problem.objective.output, parts)
            return found.unsqueeze(0) if isinstance(found, Tensor) else [found]
        return vmap(lambda w: self.problem.flat.apply(w, self.problem.objective.output, *parts))(models)

    def _alone(self, w: Vector, function: Callable[..., Any], parts: Sequence[Tensor]) -> Any:
        return self.problem.flat.alone(self.problem.flat.pieces(w), function, *parts)


def _anywhere(size: int, most: int) -> Ints:
    return np.sort(np.random.default_rng(0).choice(size, most, replace=False))


def _equally(starts: Ints, sizes: Ints, most: int) -> Ints:
    """Positions of so many samples at most, equally many of every client that has enough."""
    rng = np.random.default_rng(0)
    clients = np.arange(len(sizes))
    if most < len(sizes):
        clients = np.sort(rng.choice(clients, most, replace=False))
    ordered = np.sort(sizes[clients])
    taken = np.cumsum(ordered) + ordered * np.arange(len(ordered) - 1, -1, -1)  # if everybody gives as many as this one
    full = int(np.searchsorted(taken, most, side="right"))  # clients that give all that they have
    rest = most - int(ordered[:full].sum())
    each = rest // (len(ordered) - full) if full < len(ordered) else int(ordered[-1])
    chosen = [starts[c] + np.sort(rng.permutation(int(sizes[c]))[:each]) for c in clients]
    return np.concatenate(chosen)
