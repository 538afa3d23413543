"""Which metrics a problem is measured by: named, or anything that can be one."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from offbeat.core import names
from offbeat.core.errors import SettingError, nearest
from offbeat.data.tokens import Tokeniser
from offbeat.problems.metrics import (
    AUPRC,
    AUROC,
    ECE,
    F1,
    MAE,
    MSE,
    R2,
    RMSE,
    Accuracy,
    BitsPerCharacter,
    Dice,
    Hamming,
    NextToken,
    Perplexity,
    Score,
    TopK,
    Whole,
)

_TAKEN = ("loss", "personal", "personal_worst", "task", "time", "updates", "version", "versions", "run", "algorithm")

Given: TypeAlias = "str | Score | Callable[..., Any]"
Metrics: TypeAlias = "str | Sequence[Given] | Mapping[str, Given]"

NAMED: Mapping[str, Callable[[], Score]] = {
    "accuracy": Accuracy,
    "top5": TopK,
    "f1": F1,
    "auroc": AUROC,
    "auprc": AUPRC,
    "ece": ECE,
    "hamming": Hamming,
    "dice": Dice,
    "mse": MSE,
    "rmse": RMSE,
    "mae": MAE,
    "r2": R2,
    "perplexity": Perplexity,
    "bits_per_character": BitsPerCharacter,
}


def scores(given: Metrics | None, loss: str, tokens: Tokeniser | None = None) -> tuple[Score, ...]:
    """The metrics of a problem, the main one first.

    given: names, or one, `package.module:name`, scores, functions f(outputs, targets), torchmetrics; by name in a
    mapping. By default the perplexity and the bits per character of text, the accuracy of classes, else none: then the
    loss counts.   loss: its name.   tokens: of text.
    """
    if given is None and tokens is not None and loss == "cross-entropy":
        return Perplexity(), BitsPerCharacter(tokens)
    if given is None:
        return (Accuracy(),) if loss == "cross-entropy" else ()
    given = [given] if isinstance(given, str) else given
    pairs = given.items() if isinstance(given, Mapping) else [("", each) for each in given]
    found = tuple(_score(name, each) for name, each in pairs)
    found = tuple(BitsPerCharacter(tokens) if type(s) is BitsPerCharacter and tokens else s for s in found)
    taken = [score.name for score in found]
    for name in taken:
        if name in _TAKEN:
            raise SettingError(f"metrics: {name!r} is what something else is called; give it another name")
        if taken.count(name) > 1:
            raise SettingError(f"metrics: two are called {name!r}; name them, as in {{ mine = … }}")
    if loss == "next-token":
        return tuple(score if score.of_loss or score.whole else NextToken(score) for score in found)
    for score in found:
        if isinstance(score, Perplexity) and loss in ("mse", "mae", "huber", "bce"):
            raise SettingError(f"metrics: perplexity is of tokens, and the loss is {loss}")
    return found


def _score(name: str, given: Given) -> Score:
    found: Any = given
    if isinstance(found, str):
        if not names.imported(found) and found not in NAMED:
            said = nearest(found, NAMED)
            own = "" if said.startswith("did you") else ", or your own package.module:name"
            raise SettingError(f"metrics: there is no {found!r}; {said}{own}")
        found = NAMED[found]() if found in NAMED else names.import_name(found, "metrics")
    if isinstance(found, type):
        if found is Score or not issubclass(found, Score):
            raise SettingError(f"metrics: {found.__name__} is not derived from offbeat.problems.metrics.Score")
        found = found()
    if isinstance(found, Score):
        if not name or name == found.name:
            return found
        return _renamed(found, name)
    if any(kind.__module__.split(".")[0] == "torchmetrics" for kind in type(found).__mro__):
        from offbeat.problems.torchmetric import TorchMetric

        return TorchMetric(found, name)
    if not callable(found) or inspect.isclass(found):
        raise SettingError(f"metrics: {found!r} is none; give a name, a Score, a torchmetric or f(outputs, targets)")
    return Whole(found, name)


def _renamed(score: Score, name: str) -> Score:
    made = copy.copy(score)
    made._is(name=name)
    return made
