"""The five examples of docs/problems.md: federated training against plain PyTorch on the pooled data.

python -m studies.pooled                # the page's table without `offbeat up`: means over 3 seeds; a few minutes
python -m studies.pooled --up           # with `offbeat up`, one run of each
python -m studies.pooled patients       # one example

Modules and experiment files are those of the page.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor
from torch.nn import functional

import offbeat as ob

PAGE = Path(__file__).parent.parent / "docs" / "problems.md"
Batch = Mapping[str, Tensor]


@dataclass(frozen=True)
class Case:
    """An example of the page.

    loss: of a mini-batch, in plain PyTorch.   score: of the outputs for all test samples, without offbeat.
    up: the file and the further words of `offbeat up`.
    """

    metric: str
    loss: Callable[[Tensor, Batch], Tensor]
    score: Callable[[Tensor, Batch], float]
    epochs: int
    lr: float
    up: tuple[str, ...]


def next_token(output: Tensor, batch: Batch) -> Tensor:
    return functional.cross_entropy(output[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


def careful(output: Tensor, batch: Batch) -> Tensor:
    return functional.binary_cross_entropy_with_logits(
        output.squeeze(1), batch["y"].float(), pos_weight=torch.tensor(3.0)
    )


def r2(output: Tensor, batch: Batch) -> float:
    from sklearn.metrics import r2_score

    return float(r2_score(batch["progression"], output.squeeze(1)))


def f1(output: Tensor, batch: Batch) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(batch["answers"], output > 0, average="macro"))


def auroc(output: Tensor, batch: Batch) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(batch["y"], output.squeeze(1)))


CASES: Mapping[str, Case] = {
    "patients": Case(
        "r2", lambda o, b: functional.mse_loss(o.squeeze(1), b["progression"]), r2, 30, 0.003, ("patients.toml",)
    ),
    "scans": Case(
        "accuracy",
        lambda o, b: functional.cross_entropy(o, b["y"]),
        lambda o, b: float((o.argmax(1) == b["y"]).float().mean()),
        40,
        0.003,
        ("scans.toml",),
    ),
    "questions": Case(
        "f1",
        lambda o, b: functional.binary_cross_entropy_with_logits(o, b["answers"].float()),
        f1,
        40,
        0.01,
        ("questions.toml",),
    ),
    "manual": Case(
        "perplexity",
        next_token,
        lambda o, b: float(next_token(o, b).exp()),
        20,
        0.01,
        ("manual.toml", "--set", "until.time=60"),
    ),
    "clinics": Case("auroc", careful, auroc, 20, 0.01, ("clinics-own.toml", "--data", "clinics:load")),
}


def save_page(folder: Path) -> None:
    """The page's files, as a reader would save them."""
    for name, text in re.findall(r"^```\w+ (\S+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.S | re.M):
        (folder / name).write_text(text, encoding="utf-8")


@contextlib.contextmanager
def page_folder() -> Iterator[Path]:
    """A folder with the page's files, to be in and to import from."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        save_page(Path(name))
        sys.path.insert(0, name)
        os.chdir(name)
        try:
            yield Path(name)
        finally:
            os.chdir(before)
            sys.path.remove(name)


def problem_of(name: str, seed: int) -> ob.Supervised:
    found = ob.load(f"{name}.toml").tasks[0].problem.build(seed, "cpu")
    assert isinstance(found, ob.Supervised)
    return found


def pooled(name: str, seed: int = 0) -> float:
    """What the page's model reaches on the same samples without federation: mini-batches of 32, Adam."""
    case, problem = CASES[name], problem_of(name, seed)
    train, test = (part.take(torch.arange(len(part))) for part in (problem.data.train, problem.data.test))
    model, inputs = copy.deepcopy(problem.flat.module), problem.data.inputs[0]
    model.load_state_dict(problem.flat.views(problem.initial()))
    optimiser = torch.optim.Adam(model.parameters(), lr=case.lr)
    draws = torch.Generator().manual_seed(seed)
    for _ in range(case.epochs):
        for which in torch.split(torch.randperm(len(problem.data.train), generator=draws), 32):
            batch = {column: values[which] for column, values in train.items()}
            optimiser.zero_grad()
            torch.autograd.backward(case.loss(model(batch[inputs]), batch))
            optimiser.step()
    with torch.no_grad():
        return case.score(model(test[inputs]), test)


def simulated(name: str, trials: int = 3) -> dict[str, float]:
    """By algorithm, what `offbeat run` reaches: the mean over seeds."""
    results = ob.load(f"{name}.toml", {"trials": trials}).run(f"runs/{name}", progress=False)
    labels = dict.fromkeys(result.algorithm for result in results)
    metric = CASES[name].metric
    return {label: mean(r.metrics[metric] for r in results if r.algorithm == label) for label in labels}


def up(name: str) -> dict[str, float]:
    """By algorithm, what `offbeat up` reaches."""
    words = [sys.executable, "-m", "offbeat", "up", *CASES[name].up, "--processes", "2", "--json"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return {run["algorithm"]: run["metrics"][CASES[name].metric] for run in json.loads(done.stdout)["runs"]}


def main() -> None:
    torch.set_num_threads(1)
    words = sys.argv[1:]
    live = "--up" in words
    print("| example | metric | FedBuff, simulated | AREA, simulated | FedBuff, `up` | AREA, `up` | plain PyTorch |")
    print("|---|---|---|---|---|---|---|")
    with page_folder():
        for name in [word for word in words if word != "--up"] or CASES:
            virtual = simulated(name)
            real = up(name) if live else {}
            found = [*(virtual[label] for label in ("fedbuff", "area")), *(real.get(x) for x in ("fedbuff", "area"))]
            found.append(mean(pooled(name, seed) for seed in range(3)))
            shown = ["" if value is None else f"{value:.3f}" for value in found]
            print(f"| {' | '.join([f'`{name}`', CASES[name].metric, *shown])} |", flush=True)


if __name__ == "__main__":
    main()
