"""Robust rules against attackers: `python -m studies.attacks [--seeds N] [--full] [--records FILE]`.

Digits, softmax, 20 clients with Dirichlet(1) classes, 4 attackers, until time 30, a job takes 1 on average; the final
accuracy, mean over seeds. Of the backdoor also how many of the test samples that have the trigger, and are not of the
attackers' class, are taken for it. Prints a table in Markdown for each server. With a file of records, runs that it has
are not made again.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from statistics import stdev
from typing import Any

import torch

from offbeat.core.vectors import Vector
from offbeat.data.samples import converted
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.session import Session
from offbeat.privacy.attack import Backdoor
from studies.records import Records

LOCAL = {"sgd": {"lr": 0.5, "batch": 32, "steps": 5}}
SERVERS: dict[str, tuple[dict[str, Any], bool]] = {
    "FedBuff, K = 5": ({"fedbuff": {"size": 5, "local": LOCAL}}, False),
    "FedBuff, K = 20": ({"fedbuff": {"size": 20, "local": LOCAL}}, False),
    "the same, one slot": ({"fedbuff": {"size": 20, "local": LOCAL}}, True),
    "AREA, 5": ({"area": {"size": 5, "local": LOCAL}}, False),
    "MIFA, 5": ({"mifa": {"size": 5, "local": LOCAL}}, False),
}
RULES: dict[str, Any] = {
    "none": None,
    "norm-bound": {"norm-bound": 1.0},
    "trimmed-mean": {"trimmed-mean": 0.3},
    "median": "median",
    "krum": {"krum": 0.3},
    "multi-krum": {"multi-krum": 0.3},
    "geometric-median": "geometric-median",
    "centered-clipping": {"centered-clipping": 0.5},
}
ATTACKS: dict[str, dict[str, Any]] = {
    "nobody": {},
    "sign-flip x5": {"kind": {"sign-flip": 5.0}},
    "the same, 10 times as fast": {"kind": {"sign-flip": 5.0}, "speed": 10.0},
    "a little is enough": {"kind": {"a-little-is-enough": 1.5}},
    "label-flip": {"kind": "label-flip"},
    "gaussian-noise": {"kind": "gaussian-noise"},
    "scaled x10": {"kind": {"scaled": 10.0}},
    "inner-product": {"kind": "inner-product"},
    "backdoor": {"kind": "backdoor"},
}
UNLIKE = "nobody, Dirichlet(0.1)"  # no attack, but clients whose classes differ more
TRIGGERED = "backdoor: taken for its class"
FEW = ("none", "trimmed-mean", "median"), tuple(ATTACKS)[:4]


def final(table: Mapping[str, Any]) -> tuple[Any, Vector]:
    """The problem, and the server's model at the end of this experiment's only run."""
    experiment = Experiment.parse(table)
    simulation = Session(experiment).simulation(experiment.runs[0])
    world = simulation.run()
    return simulation.problems[0], simulation.server.models(world.server)[0].vector


def final_accuracy(table: Mapping[str, Any]) -> float:
    """Of the server's model at the end of this experiment's only run."""
    problem, model = final(table)
    return float(problem.measure(model.unsqueeze(0))[0]["accuracy"])


def triggered(table: Mapping[str, Any]) -> float:
    """The share of test samples of other classes that are taken for the backdoor's, if they have its trigger."""
    (problem, model), kind = final(table), Backdoor()
    samples = problem.data.test.columns
    inputs, labels = samples[problem.data.inputs[0]], samples[problem.data.target]
    with torch.no_grad():
        said = problem.flat(model, converted(kind.triggered(inputs), problem.scale)).argmax(1)
    return float((said == kind.target)[labels != kind.target].float().mean())


def outcome(server: str, rule: str, attack: str, seed: int, time: float = 30.0) -> float:
    """Of one run at its end: accuracy, or how often a backdoor opens."""
    algorithm, slot = SERVERS[server]
    table: dict[str, Any] = {
        "problem": {"data": "digits", "clients": 20, "split": {"dirichlet": 0.1 if attack == UNLIKE else 1.0}},
        "timing": {"exponential": {"rate": 1.0}},
        "algorithm": algorithm,
        "until": {"time": time},
        "evaluate": {"every": time},
        "seed": seed,
    }
    robust = {"one_slot": slot} | ({} if RULES[rule] is None else {"rule": RULES[rule]})
    if slot or RULES[rule] is not None:
        table["robust"] = robust
    given = ATTACKS["backdoor" if attack == TRIGGERED else attack] if attack != UNLIKE else {}
    if given:
        table["attack"] = [{"clients": 4, **given}]
    return triggered(table) if attack == TRIGGERED else final_accuracy(table)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--full", action="store_true", help="all rules and attacks")
    parser.add_argument("--records", type=Path)
    chosen = parser.parse_args()
    records, widest = Records(chosen.records), 0.0
    rules, attacks = (tuple(RULES), (*ATTACKS, TRIGGERED, UNLIKE)) if chosen.full else FEW
    for server in SERVERS:
        print(f"\n{server}:\n\n| | {' | '.join(rules)} |\n|---|{'---|' * len(rules)}", flush=True)
        for attack in attacks:
            cells = []
            for rule in rules:
                names = {"server": server, "rule": rule, "attack": attack}
                found = records.over(range(chosen.seeds), names, outcome)
                cells.append(f"{100 * sum(found) / len(found):.1f}")
                widest = max(widest, stdev(found) if len(found) > 1 else 0.0)
            print(f"| {attack} | {' | '.join(cells)} |", flush=True)
    print(f"\nlargest standard deviation over seeds: {100 * widest:.1f}")


if __name__ == "__main__":
    main()
