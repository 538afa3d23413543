"""Adam and AdamW as local trainers; to other trainers they are an `optimiser`."""

from __future__ import annotations

from dataclasses import dataclass, field

from offbeat.core.errors import NotNegative
from offbeat.core.optimiser import Optimiser
from offbeat.local.descent import Descent
from offbeat.local.optimisers import AdamRule, AdamWRule


@dataclass(frozen=True)
class Adam(AdamRule, Descent):
    """SGD whose steps Adam makes, with the rule and the defaults of torch.optim.Adam."""

    optimiser: None = field(default=None, init=False)

    @property
    def rule(self) -> Optimiser:
        return self


@dataclass(frozen=True)
class AdamW(AdamWRule, Descent):
    """SGD whose steps AdamW makes, with the rule and the defaults of torch.optim.AdamW.

    decay: weight decay: shrinks w by lr · decay.
    """

    decay: NotNegative = field(default=0.01, kw_only=True)
    optimiser: None = field(default=None, init=False)

    @property
    def rule(self) -> Optimiser:
        return self
