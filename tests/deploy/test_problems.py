"""The examples of docs/problems.md for real: each `offbeat up` of the page, cut down to a few updates."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from command import ended, sets, started

from studies.pooled import CASES, PAGE, save_page

COMMANDS = [shlex.split(line) for line in re.findall(r"^offbeat (up .*)$", PAGE.read_text(encoding="utf-8"), re.M)]
QUICK = ("clinics-own.toml",)  # it has a loss and a metric of its own
FEW = sets("until.updates=60", "until.time=100.0", "evaluate.every=0.5")
# By file: the page's metric, and the least that it comes to after 60 updates; of perplexity the most.
REACHED = {
    "patients.toml": ("r2", 0.1),
    "scans.toml": ("accuracy", 0.4),
    "questions.toml": ("f1", 0.5),
    "manual.toml": ("perplexity", 20.0),
    "clinics-own.toml": ("auroc", 0.85),
}


def test_the_page_has_a_command_for_each_example_and_the_study_runs_the_same() -> None:
    assert [words[1] for words in COMMANDS] == list(REACHED)
    assert [words[1:] for words in COMMANDS] == [[*case.up, "--processes", "2"] for case in CASES.values()]


@pytest.mark.parametrize(
    "words",
    [pytest.param(w, id=w[1], marks=() if w[1] in QUICK else pytest.mark.slow) for w in COMMANDS],
)
def test_an_example_runs_for_real(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_page(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    outcome = ended(started(*words[:-1], "1", *FEW, "--out", tmp_path / "out", "--json"))
    assert outcome.code == 0, outcome.err
    assert [run["algorithm"] for run in outcome.runs] == ["fedbuff", "area"]
    metric, value = REACHED[words[1]]
    for run in outcome.runs:
        assert run["updates"] == 60
        found = run["metrics"][metric]
        assert 1.0 <= found < value if metric == "perplexity" else value < found <= 1.0, run["metrics"]
        if words[1] == "clinics-own.toml":
            assert 0.5 < run["metrics"]["sensitivity"] <= 1.0
