"""Differential privacy for the sums that a server releases, with clients as its unit.

The rules, before the code:

1. Before it counts, a contribution (an update times its staleness weight, or AREA's residual) is shortened to the
   length `clip` and rounded towards zero to a grid whose spacing is a power of two. Sums over the grid are exact.
2. A sum is released once, with Gaussian noise of standard deviation multiplier · clip in every coordinate, rounded to
   the same grid: what is released is then a function of the exact sum plus real noise, whatever floating point does.
   It is divided by a fixed number, never by how many came.
3. A client contributes at most once to a sum, to `participations` sums in all, and skips `separation` − 1 sums between
   two. It is given no work that could break this. A contribution that does is an error, and never counts. Each of
   several tasks has such a ledger; a client's contributions to all of them compose.
4. The contribution is charged when it is collected: before the sum that it is part of can be released.
5. Under secure aggregation a client does rule 1 itself, and the helper that opens the sum adds the noise, or each
   client a share of it, in multiples of the unit of the sum (`core/sums.py`): the server is charged for what it has not
   seen, and sees released sums only. Without a helper, FedBuff divides by the number of clients in the sum, which
   varies and is public.
6. Who contributed when is public. That clients are drawn at random is not assumed, so nothing is gained from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import floor, log2
from typing import Any, ClassVar, Literal

import torch

from offbeat.algorithms.buffer import Buffer
from offbeat.core.errors import Checked, Count, Fraction, Positive, SettingError
from offbeat.core.guard import Contributions, Guard
from offbeat.core.local import Carry, Local, Work, Wrapper
from offbeat.core.server import Model, View
from offbeat.core.sums import Secure, SumBound, shortened
from offbeat.core.vectors import Payload, Vector, alike, materialise
from offbeat.privacy.accounting import column_norm, epsilon_of, mu_of, multiplier_for, toeplitz

_FINE = 20  # bits of the grid below the clipping length


@dataclass(frozen=True)
class Noise(Checked):
    """How much noise a released sum has.

    participations: sums that a client contributes to, at most.
    epsilon: what a client that has contributed to all of these may have spent; gives the multiplier.
    delta: probability with which ε may fail to hold.
    multiplier: instead of epsilon: standard deviation of the noise over the clipping length.
    correlated: noise that later noise partly cancels, in as many bands as [privacy] has separation.
    """

    participations: Count
    epsilon: Positive | None = None
    delta: Fraction = 1e-6
    multiplier: Positive | None = None
    correlated: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.epsilon is None) == (self.multiplier is None):
            raise SettingError("epsilon and multiplier: set exactly one; either determines the noise")
        if self.delta == 0:
            raise SettingError("delta = 0: Gaussian noise always fails with some probability; give 1e-6, say")


@dataclass(frozen=True)
class Privacy(Guard):
    """What anyone who sees the server's models may learn about a client.

    clip: largest length of a client's contribution to a sum, after its staleness weight.
    noise: how much, such as { epsilon = 8.0, delta = 1e-6, participations = 50 }.
    unit: whose data are hidden: all contributions of one client together.
    separation: sums from one contribution of a client to its next, at least; 1: to every sum.
    """

    clip: Positive
    noise: Noise
    unit: Literal["client"] = "client"
    separation: Count = 1
    secure: Secure | None = field(default=None, repr=False, metadata={"setting": False})  # with noise by its clients

    limits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1e-30 <= self.clip <= 1e30:
            raise SettingError(f"clip = {self.clip:g}: single precision keeps no such lengths; give 1e-30 to 1e30")
        if self.noise.correlated and self.separation == 1:
            raise SettingError("noise.correlated = true: it needs separation = 2 or more, which is the number of bands")

    @property
    def bands(self) -> int:
        """Of correlated noise; 1: it is independent."""
        return self.separation if self.noise.correlated else 1

    @cached_property
    def multiplier(self) -> float:
        """z: standard deviation of the noise over the clipping length."""
        n = self.noise
        if n.multiplier is not None:
            return n.multiplier
        assert n.epsilon is not None
        return multiplier_for(n.epsilon, n.delta, n.participations, column_norm(self.bands))

    def spent(self, contributions: int) -> float:
        """ε of a client that has contributed so many times."""
        return epsilon_of(self.noise.delta, mu_of(self.multiplier, contributions, column_norm(self.bands)))

    # Who may contribute

    def admits(self, model: Model, client: int) -> bool:
        past = model.contributions
        return past is None or (
            client not in past.refusing
            and past.count.get(client, 0) < self.noise.participations
            and past.releases >= past.last.get(client, -self.separation) + self.separation
        )

    def exhausted(self, model: Model, clients: int, wanted: int) -> bool:
        past = model.contributions
        barred = 0 if past is None else sum(not self.admits(model, n) for n in {*past.count, *past.refusing})
        return clients - barred < wanted

    # What counts

    def pair(self, local: Local) -> Local:
        if "residual" not in local.sends:
            return local
        if local.compress is not None:
            raise SettingError(
                "privacy: a compressed residual cannot be clipped with error feedback; leave compress out"
            )
        return replace(ClippedResidual.around(local), clip=self.clip)

    def collect(self, model: Model, buffer: Buffer, client: int, vector: Vector) -> None:
        self._spend(model, client)
        given = materialise(vector).double().unsqueeze(0)
        term = clipped(torch.nan_to_num(given, nan=0.0, posinf=0.0, neginf=0.0), self.clip)[0]
        buffer.sum = term if buffer.sum is None else materialise(buffer.sum) + term
        buffer.count += 1

    def _spend(self, model: Model, client: int) -> Contributions:
        if model.contributions is None:
            model.contributions = Contributions()
        past = model.contributions
        if not self.admits(model, client):
            raise SettingError(f"privacy: client {client} has contributed too often or too soon; this does not count")
        past.count[client] = past.count.get(client, 0) + 1
        past.last[client] = past.releases
        return past

    def refuse(self, model: Model, client: int) -> None:
        past = model.contributions = model.contributions or Contributions()
        past.refusing = sorted({*past.refusing, client})

    def within(self, secure: Secure) -> Privacy:
        return replace(self, secure=secure) if secure.share else self

    def charge(self, model: Model, buffer: Buffer, client: int, last: bool) -> None:
        past = self._spend(model, client)
        past.sealed = True
        buffer.count = 0 if last else buffer.count + 1
        past.releases += last
        past.closed += last

    def bound(self) -> SumBound:
        if self.bands > 1:
            raise SettingError(
                "secure and noise.correlated: whoever adds the noise of a secure sum keeps no earlier noise that later "
                "noise could take back; leave correlated out"
            )
        return SumBound(self.clip, self.multiplier * self.clip, self.noise.participations)

    def mean(self, model: Model, buffer: Buffer, size: int | None, view: View) -> Vector:
        past = model.contributions
        if size is None or past is None or buffer.sum is None:
            raise SettingError("privacy: a sum needs a fixed number to be divided by, and a contribution")
        total = materialise(buffer.sum)
        buffer.sum, buffer.count = None, 0
        spacing = grid(self.clip)
        released = total + torch.round(self._noise(past, total, view) / spacing) * spacing
        past.releases += 1
        return alike(model.vector, (released / size).to(materialise(model.vector).dtype))

    def _noise(self, past: Contributions, total: Vector, view: View) -> Vector:
        """That of the next sum; correlated, w_k = z_k − Σ c_j w_(k−j)."""
        fresh = (self.multiplier * self.clip) * view.normal(total, past.number)
        for weight, before in zip(toeplitz(self.bands)[1:], reversed(past.noise), strict=False):
            fresh = fresh - weight * materialise(before).to(fresh)
        if self.bands > 1:
            past.noise = [*past.noise, fresh][1 - self.bands :]
        return fresh

    # What is said of it

    def report(self, models: Sequence[Model]) -> Mapping[str, Any]:
        pasts = [model.contributions or Contributions() for model in models]
        tasks = [self._kept(past.count, past.releases, past.sealed) for past in pasts]
        total = sum((Counter(past.count) for past in pasts), Counter[int]())
        whole = self._kept(total, sum(past.releases for past in pasts), any(past.sealed for past in pasts))
        return {
            "privacy": {
                "clip": self.clip,
                "multiplier": self.multiplier,
                "delta": self.noise.delta,
                "participations": self.noise.participations,
                "separation": self.separation,
                "bands": self.bands,
                "limit": self.spent(len(models) * self.noise.participations),
                **self._by_clients(),
                **whole,
                **({"tasks": tasks} if len(models) > 1 else {}),
            }
        }

    def _by_clients(self) -> dict[str, Any]:
        """Where clients add the noise: to sums of how many, how many shares are claimed, and how large they are."""
        secure = self.secure
        return {} if secure is None else {"cohort": secure.cohort, "unknown": secure.unknown, "share": secure.share}

    def _kept(self, count: Mapping[int, int], releases: int, sealed: bool) -> dict[str, Any]:
        """What a ledger says."""
        return {
            "releases": releases,
            "sealed": sealed,
            "contributions": {str(client): count[client] for client in sorted(count)},
            "spent": max((self.spent(k) for k in set(count.values())), default=0.0),
        }


def grid(clip: float) -> float:
    """The spacing of what contributions are rounded to: a power of two, so that multiples of it add up exactly."""
    return 2.0 ** (floor(log2(clip)) - _FINE)


def clipped(rows: Vector, most: float) -> Vector:
    """Rows [n, d] shortened to at most this length and rounded towards zero to the grid; again, it changes nothing."""
    return shortened(rows, most, grid(most))


@dataclass(frozen=True)
class ClippedResidual(Wrapper):
    """Sends AREA's residual clipped, and remembers what it has sent: the rest is part of its next residual."""

    reports: ClassVar[bool] = False
    clip: float = field(default=1.0, metadata={"setting": False})

    def final(self, carry: Carry, work: Work) -> tuple[Payload, Payload]:
        upload, memory = map(dict, self.inner.final(carry, work))
        whole = upload["residual"]
        sent = whole.clone()
        sent[:, : work.shared] = clipped(whole[:, : work.shared], self.clip)
        finite = torch.isfinite(whole).all(dim=-1, keepdim=True)
        sent = torch.where(finite, sent, whole)  # nothing hides that a client has diverged
        return {**upload, "residual": sent}, {**memory, "y": memory["y"] - (whole - sent)}
