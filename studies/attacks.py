"""Robust rules against attackers: `python -m studies.attacks [--seeds N] [--full] [--records FILE]`.

Digits, softmax, 20 clients with Dirichlet(1) classes, 4 attackers, until time 30, a job takes 1 on average; the final
accuracy, mean over seeds. Prints a table in Markdown. With a file of records, runs that it has are not made again.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from statistics import stdev
from typing import Any

from offbeat.experiment.experiment import Experiment
from offbeat.experiment.session import Session
from studies.records import Records

LOCAL = {"sgd": {"lr": 0.5, "batch": 32, "steps": 5}}
SERVERS: dict[str, tuple[dict[str, Any], bool]] = {
    "FedBuff, K = 5": ({"fedbuff": {"size": 5, "local": LOCAL}}, False),
    "FedBuff, K = 20": ({"fedbuff": {"size": 20, "local": LOCAL}}, False),
    "the same, one slot": ({"fedbuff": {"size": 20, "local": LOCAL}}, True),
    "AREA, 5": ({"area": {"size": 5, "local": LOCAL}}, False),
}
RULES: dict[str, Any] = {
    "none": None,
    "norm-bound": {"norm-bound": 1.0},
    "trimmed-mean": {"trimmed-mean": 0.3},
    "median": "median",
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
}
FEW = ("none", "trimmed-mean", "median"), tuple(ATTACKS)[:4]


def final_accuracy(table: Mapping[str, Any]) -> float:
    """Of the server's model at the end of this experiment's only run."""
    experiment = Experiment.parse(table)
    simulation = Session(experiment).simulation(experiment.runs[0])
    world = simulation.run()
    model = simulation.server.models(world.server)[0].vector
    return float(simulation.problems[0].measure(model.unsqueeze(0))[0]["accuracy"])


def accuracy(server: str, rule: str, attack: str, seed: int, time: float = 30.0) -> float:
    """Of one run at its end."""
    algorithm, slot = SERVERS[server]
    table: dict[str, Any] = {
        "problem": {"data": "digits", "clients": 20, "split": {"dirichlet": 1.0}},
        "timing": {"exponential": {"rate": 1.0}},
        "algorithm": algorithm,
        "until": {"time": time},
        "evaluate": {"every": time},
        "seed": seed,
    }
    robust = {"one_slot": slot} | ({} if RULES[rule] is None else {"rule": RULES[rule]})
    if slot or RULES[rule] is not None:
        table["robust"] = robust
    if ATTACKS[attack]:
        table["attack"] = [{"clients": 4, **ATTACKS[attack]}]
    return final_accuracy(table)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--full", action="store_true", help="all rules and attacks")
    parser.add_argument("--records", type=Path)
    chosen = parser.parse_args()
    records, widest = Records(chosen.records), 0.0
    rules, attacks = (tuple(RULES), tuple(ATTACKS)) if chosen.full else FEW
    print(f"| attack | rule | {' | '.join(SERVERS)} |\n|---|---|{'---|' * len(SERVERS)}", flush=True)
    for attack in attacks:
        for rule in rules:
            cells = []
            for server in SERVERS:
                names = {"server": server, "rule": rule, "attack": attack}
                found = records.over(range(chosen.seeds), names, accuracy)
                cells.append(f"{100 * sum(found) / len(found):.1f}")
                widest = max(widest, stdev(found) if len(found) > 1 else 0.0)
            print(f"| {attack} | {rule} | {' | '.join(cells)} |", flush=True)
    print(f"\nlargest standard deviation over seeds: {100 * widest:.1f}")


if __name__ == "__main__":
    main()
