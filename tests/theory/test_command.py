"""`offbeat theory …` and `offbeat run … --theory`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import DIGITS, QUADRATIC, offbeat, run, sets

from offbeat.theory import area

ISSUE = ["area", "--clients", "128", "--rates", "10", "--mu", "0.1", "--smoothness", "4", "--steps", "5"]
COMMANDS = [
    ISSUE,
    ["area", "--lipschitz", "1", "--steps", "3"],
    ["fedbuff", "--smoothness", "0.1", "--rates", "1,2,3", "--clients", "3", "--size", "2"],
    ["fedbuff", "--concurrency", "4", "--staleness", "3"],
    ["fedast", "--requests", "20"],
    ["fedast", "--weights", "1,2,3"],
    ["persafl"],
    ["persafl", "--option", "maml", "--alpha", "0.001"],
    ["persafl", "--option", "me"],
    ["defedavg"],
    ["defedavg", "--delay", "2"],
    ["ringmaster"],
    ["ringmaster", "--rates", "1,2,3", "--clients", "3", "--sigma", "0"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_theorem_answers_in_text_and_in_json(command: list[str]) -> None:
    text, data = offbeat("theory", *command), offbeat("theory", *command, "--json")
    assert (text.code, text.err) == (0, "")
    found = json.loads(data.out)
    assert found["theorem"] in text.out
    if "--weights" not in command:
        assert "to halve the time" in text.out
        assert found["halve"]


def test_the_issues_example_says_what_the_functions_say() -> None:
    found = json.loads(offbeat("theory", *ISSUE, "--json").out)
    problem, rates = area.Smooth(0.1, 4.0, 5), [10.0] * 128
    events = area.Events.from_rates(rates, area.optimal_rate(rates))
    K = found["iterations K for ε"]
    assert found["best for theorem 8, λ_s*"] == pytest.approx(80.0)
    assert area.leading(problem, events, K).total <= 0.01 < area.leading(problem, events, K - 1).total
    assert found["server steps"] == pytest.approx(K * events.server)
    assert found["time"] == pytest.approx(K / events.total)
    assert found["which is"] == area.TERMS[2]


def test_a_change_that_is_said_to_halve_the_time_halves_it() -> None:
    found = json.loads(offbeat("theory", *ISSUE, "--json").out)
    mu = next(c["to"] for c in found["halve"] if c["name"] == "mu")
    turned = [str(mu) if before == "--mu" else word for before, word in zip(["", *ISSUE], ISSUE, strict=False)]
    faster = json.loads(offbeat("theory", *turned, "--json").out)
    assert faster["time"] == pytest.approx(found["time"] / 2, rel=1e-3)


def test_the_server_rate_that_minimises_theorem_7s_time_is_that_of_the_slowest_client() -> None:
    """Its noise term is p_s/p_min²: least where the server is as rare as the rarest client."""
    found = json.loads(offbeat("theory", *ISSUE, "--json").out)
    assert found["best for this bound"] == pytest.approx(10.0, rel=1e-3)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("area --mu -1", "mu = -1"),
        ("area --mu 5 --smoothness 4", "μ ≤ L"),
        ("area --mu nan", "mu = nan"),
        ("area --rates 1,2 --clients 3", "rates holds 2 numbers for 3 clients"),
        ("area --rates ten", "rates = 'ten'"),
        ("area --rates 0", "rates holds 0"),
        ("area --clients 0", "clients = 0"),
        ("area --steps 0", "steps = 0"),
        ("area --epsilon 0", "epsilon = 0"),
        ("area --server-rate -3", "server_rate = -3"),
        ("fedbuff --size 0", "size = 0"),
        ("fedbuff --concurrency 999", "concurrency = 999"),
        ("fedbuff --staleness -1", "staleness = -1"),
        ("fedast --weights 0,0", "weights"),
        ("fedast --weights a", "weights = 'a'"),
        ("persafl --option mamo", "did you mean 'maml'"),
        ("persafl --option me --penalty 1", "7·L"),
        ("defedavg --delay 0.5", "delay = 0.5"),
        ("defedavg --failure 1", "failure = 1"),
        ("defedavg --gap 0", "gap = 0"),
    ],
)
def test_bad_numbers_are_one_line_and_exit_code_1(command: str, said: str) -> None:
    outcome = offbeat("theory", *command.split())
    assert outcome.code == 1
    assert outcome.out == ""
    assert outcome.err.startswith("offbeat: ")
    assert said in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_run_with_theory_says_it_on_standard_error_and_json_stays_json(tmp_path: Path) -> None:
    outcome = run(tmp_path, QUADRATIC, "--theory", "--json")
    assert outcome.code == 0
    assert len(outcome.runs) == 2
    assert "theory: area: AREA, theorem 7" in outcome.err
    assert "theory: fedasync: PersA-FL, theorem 1" in outcome.err
    assert "chosen 0.1" in outcome.err
    assert "L = 1" in outcome.err
    assert "σ² = 0.2" in outcome.err  # 0.25


@pytest.mark.parametrize(
    ("size", "said"),
    [
        ("4", "no bound: theorem 7 needs server steps at random times"),
        ("{ period = 0.1 }", "no bound: theorem 7 needs server steps at random times"),
        ("{ poisson = { rate = 20.0 } }", "with that schedule, and not with the step sizes chosen"),
    ],
)
def test_areas_bound_is_printed_for_the_schedule_and_the_criterion_that_it_holds_for(
    tmp_path: Path, size: str, said: str
) -> None:
    outcome = run(tmp_path, QUADRATIC, "--theory", "--json", "--set", f"algorithm.area.size={size}")
    assert said in outcome.err
    assert ("E|x − x*|² ≤" in outcome.err) == ("poisson" in size)


EVERYTHING = """
theory = true
until = { updates = 40 }

[problem]
data = "digits"
clients = 5
l2 = 1e-2

[timing]
exponential = { rate = 10.0 }
"""
NAMES = [
    "area",
    "fedbuff",
    "fedasync",
    "persafl-maml",
    "persafl-me",
    "defedavg-niid",
    "defedavg-iid",
    "fedast",
    "fedavg",
]


def test_a_file_with_theory_speaks_about_every_algorithm(tmp_path: Path) -> None:
    """`theory = true`; an algorithm without a theorem is said to have none."""
    tables = []
    for name in NAMES:
        extra = {"defedavg-niid": "sampled = 2", "fedavg": "sampled = 2", "defedavg-iid": "size = 4"}.get(name, "")
        local = {"persafl-maml": "maml", "persafl-me": "moreau"}.get(name, "sgd")
        tables.append(f'[[algorithm]]\nname = "{name}"\n{extra}\nlocal = {{ {local} = {{ lr = 0.01, batch = 8 }} }}\n')
    outcome = run(tmp_path, EVERYTHING + "\n".join(tables))
    assert outcome.code == 0, outcome.err
    for name in NAMES:
        assert f"theory: {name}: " in outcome.err
    assert "theory: fedavg: none of the five papers" in outcome.err
    assert outcome.err.count("theorem asks for at least") == 7


def test_a_run_without_theory_does_not_mention_it(tmp_path: Path) -> None:
    outcome = run(tmp_path, DIGITS, *sets("until.time=0.1"))
    assert "theory:" not in outcome.err + outcome.out
