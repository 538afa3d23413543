"""Attackers that train on other samples than they should."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from offbeat.core.errors import SettingError
from offbeat.core.problem import Problem
from offbeat.core.random import ATTACK, Stream, key
from offbeat.core.vectors import Vector
from offbeat.data.samples import Stored
from offbeat.models.modules import trained
from offbeat.privacy.attack import Attack, Backdoor, Poison
from offbeat.problems.supervised import Supervised


def poisoned(problem: Problem, who: dict[int, Attack], seed: int) -> Problem:
    """The same problem with what attackers have made of their own samples; the test samples stay."""
    bad = {client: a.kind for client, a in who.items() if isinstance(a.kind, Poison)}
    if not bad:
        return problem
    data = problem.data if isinstance(problem, Supervised) else None
    if (
        not isinstance(problem, Supervised)
        or data is None
        or data.classes is None
        or not isinstance(data.train, Stored)
    ):
        raise SettingError(f"attack: {problem.name} has no samples in memory with classes; forge messages instead")
    inputs, target = data.inputs[0], data.target
    columns = {name: column.clone() for name, column in data.train.columns.items()}
    for client, kind in bad.items():
        mine = problem.shards[client]
        count = max(1, round(kind.part * len(mine)))
        chosen = torch.from_numpy(np.sort(Stream(key(seed, ATTACK, client)).sample(mine.tolist(), count)))
        given = kind.poison(columns[inputs][chosen], columns[target][chosen], data.classes)
        columns[inputs][chosen], columns[target][chosen] = given
    found = replace(data, train=data.train.with_columns(columns), _made={})
    options: Any = {"loss": problem.loss_given, "metrics": problem.scores, "weight": problem.objective.weight}
    return Supervised(
        found,
        problem.flat.module,
        [problem.shards[client] for client in range(problem.clients)],
        problem.l2,
        problem.weighted,
        str(problem.device),
        problem.measured,
        problem.name,
        **options,
        **problem.parts_given,
    )


def success(problem: Problem, backdoor: Backdoor, model: Vector) -> float:
    """The share of the test samples of other classes that a model takes for the backdoor's label, with its trigger."""
    if not isinstance(problem, Supervised) or not isinstance(problem.test, Stored):
        raise SettingError(f"{problem.name} has no test samples in memory")
    labels = problem.test[problem.data.target]
    others = (labels != backdoor.target).nonzero().flatten()
    name = problem.data.inputs[0]
    stored = problem.test.with_columns({name: backdoor.triggered(problem.test[name][others])})
    inputs = stored.take(torch.arange(len(others), device=labels.device))[name]
    with torch.no_grad():
        found = trained(problem, model)(inputs).argmax(dim=1)
    return float((found == backdoor.target).float().mean())
