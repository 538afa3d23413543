"""Local DP-SGD (Abadi et al. 2016): what a client sends says little about any one of its samples.

The rules, before the code:

1. In every local step each of a client's samples is drawn with the same probability, batch over samples, independently
   of all others (a Poisson sample); without `batch`, all are.
2. The gradient of each drawn sample is shortened to `clip` and rounded towards zero to a grid; sums over it are exact.
   Gaussian noise of standard deviation multiplier · clip, rounded to the same grid, is added to their sum, which is
   divided by `batch`, however many were drawn. Decay, momentum and all else see the noised gradient only.
3. Draws and noise come from the job's key in a simulation, and from the operating system in a real run, where nobody
   else may know them: the server knows the keys.
4. A client counts its local steps over the whole run, for each task by itself. A job that would bring it beyond
   `epsilon` is refused. Steps count when their result is written down, before it is sent, whatever becomes of it
   (`deploy/client_core.py`). A job that fails counts in full. After a lost disk one job more counts: the old copy may
   live on and send it.
5. ε is about adding or removing one training sample at one client, whose number of samples is public. The server may be
   anybody, as long as the experiment has `dp-sgd` with this noise: that is the server's to write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from offbeat.core.errors import Checked, Fraction, Positive, SettingError
from offbeat.core.local import STEPS_SPENT, Carry, Local, Work, Wrapper, batch_size
from offbeat.core.problem import BySample, Countable, Problem
from offbeat.core.random import unit
from offbeat.core.vectors import Payload, Vector, materialise
from offbeat.local.sgd import SGD
from offbeat.privacy.accounting import sampled_epsilon, steps_within
from offbeat.privacy.differential import clipped, grid

_MOST = 1 << 24  # steps that single precision counts


@dataclass(frozen=True)
class LocalNoise(Checked):
    """How much noise a local step has, and what a client may spend in all.

    multiplier: standard deviation of the noise over the clipping length.
    epsilon: what a client may spend in a run; a job that would exceed it is refused.
    delta: probability with which ε may fail to hold; well below one over the number of a client's samples.
    """

    multiplier: Positive
    epsilon: Positive
    delta: Fraction = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta == 0:
            raise SettingError("delta = 0: Gaussian noise always fails with some probability; give 1e-5, say")


@dataclass(frozen=True)
class DPSGD(SGD):
    """SGD that hides every single sample from the server: clipped gradients of samples, Gaussian noise, a budget.

    batch: samples in a step on average: each is drawn independently of the others; by default all of a client's data.
    clip: largest length of a sample's gradient.
    noise: how much, and the budget, such as { multiplier = 1.0, epsilon = 8.0, delta = 1e-5 }.
    """

    clip: Positive = field(kw_only=True)
    noise: LocalNoise = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shuffle:
            raise SettingError("shuffle = true: dp-sgd draws each sample by itself, in no order; leave it out")
        if self.epochs is not None:
            raise SettingError(f"epochs = {self.epochs:g}: a budget counts local steps; give steps")
        if self.accumulate > 1:
            raise SettingError(f"accumulate = {self.accumulate}: one step has one sum and its noise; give a batch")
        if isinstance(self.batch, tuple | list):
            raise SettingError(
                "batch: a list has one size for each client, and jobs say whose; give one size, or a share"
            )
        if not 1e-30 <= self.clip <= 1e30:
            raise SettingError(f"clip = {self.clip:g}: single precision keeps no such lengths; give 1e-30 to 1e30")

    @property
    def label(self) -> str:
        return "dp-sgd"

    @property
    def by_sample(self) -> bool:
        return True

    def allowance(self, samples: int, batch: int | None) -> int:
        n = self.noise
        found = steps_within(rate(samples, batch), n.multiplier, n.epsilon, n.delta)
        if not found:
            raise SettingError(
                f"noise.epsilon = {n.epsilon:g}: a single step with multiplier = {n.multiplier:g} and "
                f"{samples} samples spends more; raise the multiplier or epsilon, or draw fewer samples"
            )
        return min(found, _MOST)

    def spent(self, samples: int, batch: int | None, steps: int) -> float:
        """ε of a client with so many samples after so many steps."""
        return sampled_epsilon(rate(samples, batch), self.noise.multiplier, steps, self.noise.delta)

    def remember(self, model: Vector) -> Payload:
        # steps so far, of the largest job, and with how many samples, of which how many in a step, most was spent
        return {**super().remember(model), STEPS_SPENT: materialise(model).new_tensor([0.0, self.steps, 0.0, 0.0])}

    def private(self, name: str) -> bool:
        return name == STEPS_SPENT or super().private(name)

    def step(self, carry: Carry, work: Work) -> Carry:
        return self.along(carry, self.noised(carry["w"], work), work)

    def noised(self, w: Vector, work: Work) -> Vector:
        """The gradients of a step: of clipped samples, with noise."""
        oracle = work.oracle
        if not isinstance(oracle, BySample):
            raise SettingError("dp-sgd: this problem has no samples whose gradients could be clipped one by one")
        sizes, expected = torch.tensor(oracle.sizes).unsqueeze(1), torch.tensor(oracle.expected).unsqueeze(1)
        places = torch.arange(int(sizes.max()))
        drawn = unit(work.random_bits(len(places), 0)) < expected.double() / sizes
        spacing = grid(self.clip)
        noise = torch.round(self.noise.multiplier * self.clip * work.normal(w.shape[1]) / spacing) * spacing
        return oracle.noised(w, work.step, drawn & (places < sizes), lambda rows: clipped(rows, self.clip), noise)

    @property
    def longest(self) -> None:
        return None  # samples' gradients are clipped, not their noised mean

    def final(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        upload, memory = super().final(carry, work)
        before, oracle = work.memory[STEPS_SPENT], work.oracle
        assert isinstance(oracle, BySample)
        total, largest, samples, drawn = (before[:, at : at + 1] for at in range(4))
        steps = 0.0 * total + work.steps
        now = before.new_tensor([*zip(oracle.sizes, oracle.expected, strict=True)])
        more = (samples == 0) | (now[:, 1:] * samples > drawn * now[:, :1])  # a larger share of the samples in a step
        kept = torch.where(more, now, torch.cat([samples, drawn], 1))
        return upload, {**memory, STEPS_SPENT: torch.cat([total + steps, torch.maximum(largest, steps), kept], 1)}


def inside(local: Local) -> DPSGD | None:
    """The trainer of this kind inside of a local trainer, if there is one."""
    while isinstance(local, Wrapper):
        local = local.inner
    return local if isinstance(local, DPSGD) else None


def local_ledger(local: Local, problem: Problem, steps: Mapping[int, int]) -> dict[str, Any] | None:
    """What the record of a run keeps of its clients' own budgets, by their steps; None: they have none.

    Of clients that bring their own data, how many samples they have is not known, nor is ε.
    """
    found = inside(local)
    if found is None:
        return None
    clients: dict[str, dict[str, int | None]] = {}
    for client in sorted(steps):
        clients[str(client)] = {"steps": steps[client]}
        if isinstance(problem, Countable):
            sizes = {"samples": problem.samples_of(client), "batch": batch_size(found, problem, client)}
            clients[str(client)] |= sizes
    noise = found.noise
    rests = {"clip": found.clip, "multiplier": noise.multiplier, "delta": noise.delta, "limit": noise.epsilon}
    return {**rests, "clients": clients}


def rate(samples: int, batch: int | None) -> float:
    """The probability with which a sample is in a step."""
    return 1.0 if batch is None else min(1.0, batch / samples)
