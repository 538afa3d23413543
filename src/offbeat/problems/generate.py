"""Text that a trained language model goes on with: what it has learnt, for people to read."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from offbeat.core.errors import ModelError, at_least, not_negative
from offbeat.core.vectors import Vector
from offbeat.problems.supervised import Supervised

_LENGTH, _TEMPERATURE = 200, 0.8


@dataclass(frozen=True)
class Continuation:
    """prompt: the start of a test text.   text: what the model continues it with."""

    prompt: str
    text: str


def speaks(problem: object) -> bool:
    """Whether the problem's model predicts the next token of text at every place."""
    if not isinstance(problem, Supervised) or problem.data.tokens is None:
        return False
    shapes = [problem.data.train.shape(name) for name in (problem.data.inputs[0], problem.data.target)]
    return shapes[0] == shapes[1] and problem.objective.name == "cross-entropy"


@torch.no_grad()
def generate(
    problem: Supervised,
    model: Vector,
    prompt: str = "",
    length: int = _LENGTH,
    temperature: float = _TEMPERATURE,
    seed: int = 0,
) -> Continuation:
    """A text that a model [dim] continues token by token, each drawn from its scores; the same for the same seed.

    prompt: what it begins with; empty: the first half of the first test window.   length: tokens.   temperature: below
    1, likely tokens are drawn more often than the model says; 0: the likeliest is.
    """
    at_least(0, length=length)
    not_negative(temperature=temperature)
    tokens, data = problem.data.tokens, problem.data
    if tokens is None or not speaks(problem):
        raise ModelError(f"{problem.name} does not predict the next token of text; its data are not texts")
    window = data.train.shape(data.inputs[0])[0]
    given = tokens.encode(prompt) if prompt else data.test[data.inputs[0]][0, : max(1, window // 2)].tolist()
    found, drawn = list(given), torch.Generator().manual_seed(seed)
    flat, w = problem.flat, problem.flat.whole(model.to(problem.device))
    with flat.evaluating():
        for _ in range(length):
            seen = torch.tensor([found[-window:]], device=problem.device)
            scores = flat.apply(w, problem.objective.output, seen)[0, -1].float().cpu()
            if temperature > 0:
                shares = torch.softmax(scores / temperature, -1)
                found.append(int(torch.multinomial(shares, 1, generator=drawn)))
            else:
                found.append(int(scores.argmax()))
    return Continuation(tokens.decode(given), tokens.decode(found[len(given) :]))
