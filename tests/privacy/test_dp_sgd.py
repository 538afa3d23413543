"""Local DP-SGD: gradients of single samples, Poisson draws, noise, budgets, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import offbeat
from torch import nn

from offbeat.algorithms import AREA, FedBuff, SyncUCBST
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import SettingError, SpentError
from offbeat.core.events import Job
from offbeat.core.local import STEPS_SPENT, Work, allowed_steps
from offbeat.core.until import Until
from offbeat.data.base import Normalised
from offbeat.deploy.client_data import ClientProblem, dataset
from offbeat.deploy.train import Training
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.real import PartyMaker
from offbeat.local import SGD
from offbeat.privacy.dp_sgd import DPSGD, LocalNoise
from offbeat.problems.quadratic import Quadratic
from offbeat.problems.supervised import Supervised
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

RNG = np.random.default_rng(0)
DATA = {"x": RNG.normal(size=(75, 1, 6, 6)).astype(np.float32), "y": RNG.integers(0, 3, 75)}
FAINT = LocalNoise(multiplier=1e-9, epsilon=1e5)


class Net(nn.Module):
    """A small network, with dropout if asked for."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.out, self.drop = nn.Conv2d(1, 2, 3), nn.Linear(32, 3), nn.Dropout(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.drop(torch.relu(self.conv(x)).flatten(1)))


def problem(model: Any = None, **options: Any) -> Supervised:
    return Supervised.split(DATA, 3, model=model or Net(), target="y", **options)


def work(of: Supervised, rows: list[int], batch: int | None = None, step: int = 0, secret: bool = False) -> Work:
    keys = np.array([77 + row for row in rows], dtype=np.int64)
    jobs = [Job(row, row, 0, 0, 1, 1.0, 0) for row in rows]
    oracle = of.oracle(rows, keys, 1, batch, False)
    model = of.initial().expand(len(rows), -1)
    memory = {STEPS_SPENT: torch.zeros(len(rows), 4)}
    return Work({"model": model}, memory, 1.0, 1, oracle, keys, step, jobs=jobs, secret=secret)


# Gradients of single samples


@pytest.mark.parametrize("model", ["softmax", None], ids=["closed form", "network"])
def test_clipped_gradients_of_samples_equal_a_plain_loop(model: Any) -> None:
    made, clip = problem(model), 0.3
    found = DPSGD(lr=1.0, clip=clip, noise=FAINT).noised(made.initial().unsqueeze(0), work(made, [1]))[0]
    module, total = made.flat.module, torch.zeros(made.dim)
    for index in made.shards[1]:
        x, y = made.samples(torch.tensor([int(index)]))
        loss = nn.functional.cross_entropy(module(x), y)
        g = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(module.parameters()))])
        total += g * min(1.0, clip / float(g.norm()))
    assert torch.allclose(found, total / len(made.shards[1]), atol=2e-6)


def test_without_noise_and_clipping_it_is_the_gradient_with_the_regulariser_and_the_share() -> None:
    made = problem(l2=0.5, weighted=True)
    given = work(made, [0, 1, 2])
    w = made.initial().expand(3, -1) + torch.randn(3, 1, generator=torch.Generator().manual_seed(1))
    found = DPSGD(lr=1.0, clip=30.0, noise=FAINT).noised(w, given)
    assert torch.allclose(found, given.oracle.full(w), atol=1e-4)


def test_a_row_depends_on_its_own_client_alone_and_masks_on_their_sample() -> None:
    made, local = problem(Net(drop=0.5)), DPSGD(lr=1.0, clip=1.0, noise=LocalNoise(1.0, 8.0), batch=4)
    w = made.initial().expand(3, -1)
    together = local.noised(w, work(made, [0, 1, 2], 4))
    for row in range(3):
        assert torch.allclose(local.noised(w[:1], work(made, [row], 4))[0], together[row], atol=1e-6)
    assert not torch.allclose(local.noised(w[:1], work(made, [0], 4, step=1))[0], together[0], atol=1e-6)


# Draws and noise


def test_samples_are_drawn_independently_with_the_rate_that_is_accounted() -> None:
    made, local, counts, seen = problem(), DPSGD(lr=1.0, clip=1.0, noise=FAINT, batch=5), np.zeros(20), []

    class Counting:
        sizes, expected = [20], [5]

        def noised(self, w: Any, step: int, chosen: torch.Tensor, shorten: Any, noise: Any) -> torch.Tensor:
            counts[:] += chosen[0].numpy()
            seen.append(int(chosen.sum()))
            return w

    for step in range(4000):
        given = work(made, [0], 5, step)
        given.oracle = Counting()  # type: ignore[assignment]
        local.noised(made.initial().unsqueeze(0), given)
    assert np.abs(counts / 4000 - 0.25).max() < 4.5 * (0.25 * 0.75 / 4000) ** 0.5
    assert np.var(seen) == pytest.approx(20 * 0.25 * 0.75, rel=0.1)  # a binomial number: no fixed size


@pytest.mark.parametrize("secret", [False, True])
def test_the_noise_of_a_sum_is_as_strong_as_it_says(secret: bool) -> None:
    made = problem()
    local = DPSGD(lr=1.0, clip=0.5, noise=LocalNoise(3.0, 8.0))
    w, found = made.initial().unsqueeze(0), []
    for step in range(40):
        quiet = DPSGD(lr=1.0, clip=0.5, noise=FAINT).noised(w, work(made, [0], None, step))
        found.append((local.noised(w, work(made, [0], None, step, secret)) - quiet) * 20)
    assert float(torch.cat(found).std()) == pytest.approx(3.0 * 0.5, rel=0.05)


def test_a_simulation_draws_the_same_again_and_a_real_run_does_not() -> None:
    made, local = problem(), DPSGD(lr=0.1, clip=1.0, noise=LocalNoise(1.0, 8.0), batch=5)
    job, start = Job(0, 0, 0, 0, 1, 0.1, 0), {STEPS_SPENT: torch.zeros(4)}
    sent = []
    for _ in range(2):
        training = Training(made, local, job, {"model": made.initial()}, start, 0)
        training.step()
        sent.append(training.result()[0]["delta"])
    assert not torch.equal(sent[0], sent[1])
    w = made.initial().unsqueeze(0)
    assert torch.equal(local.noised(w, work(made, [0], 5)), local.noised(w, work(made, [0], 5)))


# Budgets


def test_a_client_makes_as_many_steps_as_its_budget_allows_and_the_run_ends() -> None:
    made = problem()
    local = DPSGD(lr=0.1, steps=3, clip=1.0, noise=LocalNoise(2.0, 3.0), batch=5)
    most = local.allowance(20, 5)
    for server in (FedBuff(size=2), AREA(size=2)):
        run = prepare(made, Algorithm(server, local), Times(Exponential(1.0)), Until(updates=10**6), seed=1)
        world = run.run()
        assert world.stopped == "privacy budget"
        assert {c: s // 3 for c, s in world.tally.spent[0].items()} == dict.fromkeys(range(3), most // 3)
        assert local.spent(20, 5, most) <= 3.0 < local.spent(20, 5, most + 1)


def test_serial_and_stacked_executors_agree() -> None:
    made = problem()
    local, models = DPSGD(lr=0.1, steps=2, clip=1.0, noise=LocalNoise(1.0, 50.0), batch=5, momentum=0.5), []
    for executor in ("serial", "batched"):
        algorithm = Algorithm(FedBuff(size=2), local)
        run = prepare(made, algorithm, Times(Exponential(1.0)), Until(updates=12), seed=2, executor=executor)
        models.append(run.run().server.model.vector)
    assert torch.allclose(models[0], models[1], atol=1e-5)


def test_a_job_beyond_the_budget_is_refused_before_it_begins() -> None:
    made, local = problem(), DPSGD(lr=0.1, steps=3, clip=1.0, noise=LocalNoise(2.0, 3.0), batch=5)
    job, most = Job(0, 0, 0, 0, 3, 0.1, 0), local.allowance(20, 5)
    Training(made, local, job, {"model": made.initial()}, {STEPS_SPENT: torch.tensor([most - 3.0, 3.0])}, 0)
    with pytest.raises(SpentError, match="this job would take 3"):
        Training(made, local, job, {"model": made.initial()}, {STEPS_SPENT: torch.tensor([most - 2.0, 3.0])}, 0)


# What is refused


def mean_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, target)


class Normed(nn.Sequential):
    def __init__(self, running: bool = True) -> None:
        torch.manual_seed(0)
        norm = nn.BatchNorm2d(1, track_running_stats=running)
        super().__init__(norm, nn.Flatten(), nn.Linear(36, 3))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": Normed()}, "mixes samples"),
        ({"model": Normed(False)}, "mixes samples"),
        ({"loss": mean_loss}, "a mean over a batch"),
    ],
    ids=["BatchNorm", "BatchNorm without statistics", "mean"],
)
def test_models_that_mix_samples_and_losses_over_batches_are_refused(options: Any, said: str) -> None:
    local = DPSGD(lr=0.1, clip=1.0, noise=LocalNoise(1.0, 8.0))
    with pytest.raises(SettingError, match=said):
        Algorithm(FedBuff(), local).trainers([problem(**options)])
    frozen = problem(Normed(), statistics="frozen")
    assert Algorithm(FedBuff(), local).trainers([frozen])


def test_a_client_that_brings_its_data_is_checked_and_has_a_budget_by_its_own_samples() -> None:
    own = dataset((torch.rand(25, 1, 6, 6), torch.arange(25) % 3), Net())
    local = DPSGD(lr=0.1, steps=2, clip=1.0, noise=LocalNoise(2.0, 3.0), batch=5)
    with pytest.raises(SettingError, match="mixes samples"):
        ClientProblem("own", Normed(), 9, own).pair(local)
    made, job = ClientProblem("own", Net(), 9, own), Job(0, 7, 0, 0, 2, 0.1, 0)
    allowed = allowed_steps(made.pair(local), made)
    assert allowed is not None
    assert allowed(7) == local.allowance(20, 5)
    training = Training(made, local, job, {"model": made.initial()}, {STEPS_SPENT: torch.zeros(4)}, 0)
    while training.step():
        pass
    assert training.result()[1][STEPS_SPENT].tolist()[:2] == [2.0, 2.0]


def test_inputs_that_are_scaled_by_all_samples_are_refused() -> None:
    local, made = DPSGD(lr=0.1, clip=1.0, noise=LocalNoise(1.0, 8.0)), problem()
    for way in ("standard", "signed", Normalised((0.5,), (0.5,))):
        scaled = Supervised(made.data.as_inputs(way), Net(), [np.arange(20)])
        if way == "standard":
            with pytest.raises(SettingError, match="by all the others, without noise"):
                scaled.pair(local)
        else:
            assert scaled.pair(local) is local


def test_a_server_to_which_clients_would_report_losses_without_noise_is_refused() -> None:
    local = DPSGD(lr=0.1, clip=1.0, noise=LocalNoise(1.0, 8.0))
    with pytest.raises(SettingError, match="to which no noise is added"):
        Algorithm(SyncUCBST(sampled=2), local).trainers([problem()])


def test_a_problem_without_samples_is_refused() -> None:
    local = DPSGD(lr=0.1, clip=1.0, noise=LocalNoise(1.0, 8.0))
    with pytest.raises(SettingError, match=r"dp-sgd: .* samples .* not known here"):
        prepare(Quadratic(3, dim=2), Algorithm(FedBuff(), local), Times(Exponential(1.0)), Until(updates=3)).run()


DP = {"lr": 0.5, "steps": 2, "batch": 16, "clip": 1.0, "noise": {"multiplier": 1.0, "epsilon": 8.0}}
FILE: dict[str, Any] = {
    "problem": {"data": "digits", "clients": 6},
    "timing": {"exponential": {"rate": 1.0}},
    "algorithm": {"fedbuff": {"size": 3, "local": {"dp-sgd": DP}}},
    "until": {"updates": 12},
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shuffle": True}, "in no order"),
        ({"accumulate": 2}, "one step has one sum"),
        ({"epochs": 2.0, "steps": 1}, "a budget counts local steps"),
        ({"batch": [1, 2, 3, 4, 5, 600]}, "give one size, or a share"),
        ({"clip": 1e300}, "give 1e-30 to 1e30"),
        ({"noise": {"multiplier": 1.0}}, "epsilon missing"),
        ({"noise": {"epsilon": 8.0}}, "multiplier missing"),
        ({"noise": {"multiplier": 0.0, "epsilon": 8.0}}, "multiplier = 0"),
        ({"noise": {"multiplier": 1.0, "epsilon": 8.0, "delta": 0.0}}, "always fails"),
    ],
)
def test_settings_that_would_break_the_claim_are_refused(changes: Any, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        Experiment.parse({**FILE, "algorithm": {"fedbuff": {"local": {"dp-sgd": {**DP, **changes}}}}})


def test_clients_report_nothing_that_they_have_learned_without_noise() -> None:
    told = {
        "run": "run",
        "roster": [*"abcdef"],
        "label": "fedbuff",
        "seed": 0,
        "paced": False,
        "unit": 1.0,
        "dtype": "",
    }
    asked = {**FILE, "evaluate": {"personal": {"steps": 2}}}
    with pytest.raises(SettingError, match="its steps have no noise"):
        PartyMaker().party({**told, "experiment": asked}, "a")
    asked["evaluate"] = {"personal": {"steps": 0}}
    assert PartyMaker().party({**told, "experiment": asked}, "a").client == "a"


@pytest.mark.parametrize("multiplier", [0.1, 0.02, 0.001])
def test_noise_that_allows_not_one_step_is_refused(multiplier: float) -> None:
    with pytest.raises(SettingError, match="a single step"):
        DPSGD(lr=0.1, clip=1.0, noise=LocalNoise(multiplier, 0.5)).allowance(20, 5)


def test_plain_sgd_has_no_budget() -> None:
    assert SGD(lr=0.1).allowance(20, 5) is None


REAL = """
until = { time = 60.0 }
problem = { data = "digits", clients = 2 }

[algorithm.fedbuff]
size = 2
local = { dp-sgd = { lr = 0.5, steps = 5, batch = 32, clip = 1.0, noise = { multiplier = 1.0, epsilon = 3.0 } } }
"""


def test_a_real_run_ends_when_its_clients_refuse_and_says_what_they_have_spent(tmp_path: Path) -> None:
    file, out = tmp_path / "e.toml", tmp_path / "out"
    file.write_text(REAL)
    outcome = offbeat("up", file, "--processes", "1", "--out", out, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.runs[0]["time"] < 50.0
    assert json.loads((out / "fedbuff-0" / "result.json").read_text())["stopped"] == "privacy budget"
    (told,) = json.loads(offbeat("privacy", out, "--json").out)["runs"]
    assert all(2.5 < own["epsilon"] <= 3.0 and own["steps"] % 5 == 0 for own in told["clients"].values())
    assert "the same state" in offbeat("replay", out / "fedbuff-0").out


def owned(samples: int) -> ClientProblem:
    """A client's own data, of which a fifth is held out."""
    return ClientProblem("own", Net(), 9, dataset((torch.rand(samples, 1, 6, 6), torch.arange(samples) % 3), Net()))


def test_a_client_whose_data_have_changed_is_charged_for_the_largest_share_that_it_has_ever_drawn() -> None:
    """Its steps are not counted as if its data had always been those of today."""
    local = DPSGD(lr=0.1, steps=1, batch=4, clip=1.0, noise=LocalNoise(1.0, 20.0))
    job, payload = Job(0, 0, 0, 0, 1, 0.1, 0), {"model": problem().initial()}
    memory = local.remember(payload["model"])
    for samples, kept in ((25, [20.0, 4.0]), (50, [20.0, 4.0]), (15, [12.0, 4.0])):
        training = Training(owned(samples), local, job, payload, memory, 0)
        while training.step():
            pass
        memory = training.result()[1]
        assert memory[STEPS_SPENT].tolist()[2:] == kept
    most = local.allowance(12, 4)
    assert most < local.allowance(40, 4)
    spent = {STEPS_SPENT: torch.tensor([float(most), 1.0, 12.0, 4.0])}
    with pytest.raises(SpentError, match=f"{most} of {most} local steps"):
        Training(owned(50), local, job, payload, spent, 0)
