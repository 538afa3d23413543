"""Whether a model is a function of its parameters, its inputs and the keys of its masks, tried on a few samples."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from offbeat.core.errors import ModelError

if TYPE_CHECKING:
    from offbeat.problems.supervised import Supervised

_REMEDY = "so no run could be repeated; dropout alone is drawn from the run's seed: turn other draws off"


def check(problem: Supervised, call: Callable[..., Any], batch: Sequence[Tensor], leaves: Sequence[Tensor]) -> None:
    """Raise if the model's loss depends on calls before it, or on a random state that other things move, too."""
    device, count = problem.device, len(problem.data.train)
    other = problem.samples(torch.tensor([count - 1, count // 2], device=device))

    def value(parts: Sequence[Tensor]) -> Tensor:
        """The losses of some samples, after their backward pass."""
        found = call(problem.objective.values, *parts)
        values: Tensor = found[0] if isinstance(found, tuple) else found
        torch.autograd.grad(values.sum(), list(leaves), allow_unused=True)
        return values.detach()

    before, counts = _states(device), _numbers(problem.flat.module)
    first, _, again = value(batch), value(other), value(batch)
    drawn = [kind for kind, state in _states(device).items() if state != before[kind]]
    if drawn and not (drawn == ["torch"] and _without_effect(lambda: value(batch), device)):
        raise ModelError(f"the model draws from the global random state of {drawn[0]}, {_REMEDY}")
    if not torch.allclose(first, again, rtol=1e-4, equal_nan=True):
        raise ModelError(
            "the model's loss on the same samples is another one after a call with others: something that it keeps "
            "counts in the next call; clients do not share that, so leave it out"
        )
    now = _numbers(problem.flat.module)
    changed = next((name for name, number in counts.items() if now.get(name) != number), None)
    if changed is not None:
        raise ModelError(
            f"the model changes its number {changed!r} at every call; how often it is called differs between "
            "executors and clients, so nothing may depend on it: count outside of the model"
        )


def _states(device: torch.device) -> dict[str, Any]:
    """The global random states, by what they belong to."""
    numpy = np.random.get_state(legacy=False)["state"]
    found: dict[str, Any] = {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": (numpy["key"].tobytes(), numpy["pos"]),
        "Python": random.getstate(),
    }
    if device.type == "cuda":
        found["torch on the GPU"] = torch.cuda.get_rng_state(device).numpy().tobytes()
    return found


def _numbers(module: nn.Module) -> dict[str, float]:
    """The plain numbers that its layers keep, by name."""
    return {
        f"{layer}.{name}" if layer else name: value
        for layer, owner in module.named_modules()
        for name, value in vars(owner).items()
        if isinstance(value, int | float) and name != "training"
    }


class _Forced(TorchFunctionMode):
    """Within, torch.rand draws nothing and gives one value."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.rand:
            return torch.zeros(*args, **(kwargs or {})).fill_(self.value)
        return func(*args, **(kwargs or {}))


def _without_effect(value: Callable[[], Tensor], device: torch.device) -> bool:
    """Whether all draws are of torch.rand and change nothing: layers that are dropped with probability 0."""
    before, found = _states(device), list[Tensor]()
    for forced in (0.0, 1.0 - 2.0**-24):
        with _Forced(forced):
            found.append(value())
    return _states(device) == before and torch.equal(*found)
