"""Tables that contradict each other are refused by name, from a file: what docs/privacy.md and docs/secure.md list."""

from __future__ import annotations

from typing import Any

import pytest

from offbeat.core.errors import SettingError
from offbeat.experiment.experiment import Experiment

LOCAL = {"sgd": {"lr": 0.5, "batch": 16}}
PRIVACY = {"clip": 1.0, "noise": {"epsilon": 8.0, "participations": 10}}
SECURE = {"cohort": 4}
ROBUST = {"rule": "median"}
FILE: dict[str, Any] = {
    "problem": {"data": "digits", "clients": 12},
    "timing": {"exponential": {"rate": 1.0}},
    "algorithm": {"fedbuff": {"size": 4, "local": LOCAL}},
    "until": {"updates": 12},
}
TASKS: dict[str, Any] = {
    "clients": {"count": 12},
    "task": {name: {"data": "digits", "local": LOCAL} for name in ("one", "two")},
    "timing": {"exponential": {"rate": 1.0}},
    "algorithm": {"fedast": {"requests": 8, "size": 4}},
    "until": {"updates": 12},
}
DP_SGD = {"dp-sgd": {"lr": 0.5, "clip": 1.0, "noise": {"multiplier": 1.0, "epsilon": 8.0}}}


def one(**changes: Any) -> dict[str, Any]:
    return {**FILE, **changes}


def server(name: str, **settings: Any) -> dict[str, Any]:
    return {"algorithm": {name: {"local": LOCAL, **settings}}}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    # a rule that needs single updates, where only sums are seen
    "robust and secure": (one(secure=SECURE, robust=ROBUST), "secure and robust"),
    "one slot and secure": (one(secure=SECURE, robust={"one_slot": True}), "secure and robust"),
    "robust and privacy": (one(privacy=PRIVACY, robust=ROBUST), "keep one of the two"),
    # participation without a bound
    "no participations": (one(privacy={"clip": 1.0, "noise": {"epsilon": 8.0}}), "participations missing"),
    "no participations, multiplier": (one(privacy={"clip": 1.0, "noise": {"multiplier": 1.0}}), "participations miss"),
    "own budget without a bound": (
        one(**server("fedbuff", local={"dp-sgd": {"lr": 0.5, "clip": 1.0, "noise": {"multiplier": 1.0}}})),
        "epsilon missing",
    ),
    # sums that no federation of this size fills
    "cohort beyond the clients": (
        one(secure={"cohort": 13}, **server("fedbuff", size=13)),
        "only 12 clients take part",
    ),
    "cohort beyond a buffer": (one(secure={"cohort": 5}), "opens no sum of fewer than cohort = 5"),
    "a step for every update": (
        one(secure=SECURE, **server("fedasync")),
        "size = 1: .* fewer than cohort = 4",
    ),
    "cohort of one": (one(secure={"cohort": 1}), "the sum of one client is its update"),
    "sums beyond the clients": (one(privacy=PRIVACY, **server("fedbuff", size=13)), "need 13 clients"),
    "separation beyond the clients": (one(privacy={**PRIVACY, "separation": 4}), "need 16 clients"),
    # servers that make more of an update than one sum
    "quafl and secure": (one(secure=SECURE, **server("quafl")), "QuAFL makes more of single updates"),
    "quafl and privacy": (one(privacy=PRIVACY, **server("quafl")), "QuAFL uses it otherwise"),
    **{
        f"{name} and {table}": (one(**server(name), **{table: given}), said)
        for name in ("mifa", "ace", "fedasync-mixing", "ca2fl", "favano")
        for table, given, said in (("secure", SECURE, "secure: "), ("privacy", PRIVACY, "must count in one sum"))
    },
    "weights and secure": (
        one(secure=SECURE, **server("fedbuff", size=4, weight={"polynomial": 0.5})),
        "leave weight out",
    ),
    "pooled and secure": (one(secure=SECURE, **server("centralised")), "no single one is shown"),
    "pooled and privacy": (one(privacy=PRIVACY, **server("centralised")), "could not be hidden"),
    "by the clock and privacy": (one(privacy=PRIVACY, **server("fedbuff", size={"period": 1.0})), "by the clock"),
    "drawn twice and privacy": (one(privacy=PRIVACY, **server("fedavg", sampled=3, replacement=True)), "counts twice"),
    # noise that somebody would have to remember, and messages that cannot be cut to size
    "correlated and secure": (
        one(secure=SECURE, privacy={**PRIVACY, "noise": {**PRIVACY["noise"], "correlated": True}, "separation": 3}),
        "secure and noise.correlated",
    ),
    "compressed and secure": (
        one(secure=SECURE, **server("fedbuff", size=4, local={"sgd": {"lr": 0.1, "compress": "sign"}})),
        "leave compress out",
    ),
    "compressed residuals and privacy": (
        one(privacy=PRIVACY, **server("area", local={"sgd": {"lr": 0.1, "compress": "sign"}})),
        "leave compress out",
    ),
    # several tasks
    "dynamic allocation and privacy": (
        {**TASKS, "privacy": PRIVACY, "algorithm": {"fedast": {"size": 4, "allocation": "dynamic"}}},
        "variance of updates without noise",
    ),
    "dynamic allocation and secure": (
        {**TASKS, "secure": SECURE, "algorithm": {"fedast": {"size": 4, "allocation": "dynamic"}}},
        "needs single updates",
    ),
    "a buffer of a task beyond the clients": (
        {**TASKS, "secure": {**SECURE, "mode": "cohort"}, "algorithm": {"fedast": {"requests": 26, "size": 13}}},
        "each of the 12 clients is in a sum once",
    ),
    "sync-st and privacy": ({**TASKS, "privacy": PRIVACY, "algorithm": {"sync-st": {}}}, "use fedast"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_contradicts_itself_is_refused_by_name(name: str) -> None:
    table, said = REFUSED[name]
    with pytest.raises(SettingError, match=said):
        Experiment.parse(table).algorithms  # noqa: B018


ALLOWED: dict[str, dict[str, Any]] = {
    "privacy and secure": one(privacy=PRIVACY, secure=SECURE),
    "privacy and secure without a helper": one(privacy=PRIVACY, secure={**SECURE, "mode": "cohort"}),
    "privacy and secure, FedAsync": one(privacy=PRIVACY, secure=SECURE, **server("fedasync", size=4)),
    "privacy and FedAsync": one(privacy=PRIVACY, **server("fedasync")),
    "robust and FedAsync": one(robust=ROBUST, **server("fedasync", size=4)),
    "privacy and secure, AREA": one(privacy=PRIVACY, secure=SECURE, **server("area", size=4)),
    "tasks and privacy": {**TASKS, "privacy": PRIVACY},
    "tasks and secure": {**TASKS, "secure": SECURE},
    "tasks and secure without a helper": {**TASKS, "secure": {**SECURE, "mode": "cohort"}},
    "tasks, privacy and secure": {**TASKS, "privacy": PRIVACY, "secure": SECURE},
    "tasks, privacy and secure without a helper": {
        **TASKS,
        "privacy": PRIVACY,
        "secure": {**SECURE, "mode": "cohort"},
    },
    "dp-sgd and privacy": one(privacy=PRIVACY, **server("fedbuff", size=4, local=DP_SGD)),
    "dp-sgd and secure": one(secure=SECURE, **server("fedbuff", size=4, local=DP_SGD)),
    "dp-sgd and robust": one(robust=ROBUST, **server("fedbuff", size=4, local=DP_SGD)),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_goes_together_is_taken(name: str) -> None:
    assert Experiment.parse(ALLOWED[name]).algorithms
