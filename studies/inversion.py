"""What a server can reconstruct from updates and from sums of them: `python -m studies.inversion [--seeds N]`.

Each of K clients has one image of the digits (8 x 8) and takes one local step of SGD from the same model, so that its
update is a gradient. The attacker is the server: it knows the model, the step size, the labels and how many clients are
in a sum, and looks for K images whose updates add up to what it has, by L-BFGS from several starts. Scores: PSNR of
each image after the best assignment, against attackers who see no update and say the mean image, or knowing the labels
the mean image of each. `--trained` attacks a model that was trained on other images before. With `--noise`, the update
of one client has the noise of dp-sgd with clip 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import torch
from scipy import stats
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional

from offbeat.data.readers import load
from offbeat.problems.supervised import Supervised
from studies.records import Records

STARTS, STEPS, RECOGNISED = 2, 300, 20.0  # L-BFGS from so many starts, of so many steps; PSNR of a recognisable image
SIZES = (1, 2, 5, 10, 30)
NOISES = (1e-4, 1e-3, 1e-2, 1e-1)


class Small(nn.Sequential):
    """1,954 parameters: two convolutions and a layer, smooth so that gradients say much."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.Sigmoid(),
            nn.Conv2d(8, 8, 3, stride=2, padding=1),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Linear(128, 10),
        )


@dataclass(frozen=True)
class Setting:
    """One sum to be attacked: its clients' images and labels, the model, and the sum of their updates."""

    images: Tensor  # [K, 1, 8, 8] in [0, 1]
    labels: Tensor
    model: nn.Module
    total: Tensor
    average: Tensor  # the mean image of the others' data
    averages: Tensor  # and of each class, [10, 1, 8, 8]
    clipped: bool  # whether updates were clipped to length 1, which the attacker knows


def setting(clients: int, seed: int, trained: bool, noise: float) -> Setting:
    """Clients drawn by the seed, their updates as offbeat computes them."""
    data = load("digits")
    x, y = (data.train.take(torch.arange(len(data.train)))[name] for name in (data.inputs[0], data.target))
    x = (x / x.max()).reshape(-1, 1, 8, 8).float()
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x)))
    torch.manual_seed(seed)
    model = Small()
    for module in model:
        if isinstance(module, nn.Conv2d | nn.Linear):
            for parameter in module.parameters():
                nn.init.uniform_(parameter, -0.5, 0.5)
    mine, others = order[:clients], order[clients:]
    if trained:
        _train(model, x[others], y[others])
    columns = {"x": x[mine].numpy(), "y": y[mine].numpy()}
    problem = Supervised.of_clients(
        {str(c): {k: v[c : c + 1] for k, v in columns.items()} for c in range(clients)},
        model,
        target="y",
        test={k: v[:1] for k, v in columns.items()},
    )
    averages = torch.stack([x[others][y[others] == label].mean(0) for label in range(10)])
    w = problem.initial().expand(clients, -1)
    updates = problem.oracle(range(clients), range(clients), 1, None, False).gradient(w, 0)
    if noise:
        updates = updates / updates.norm(dim=1, keepdim=True).clamp(min=1.0) + noise * torch.randn_like(updates)
    return Setting(x[mine], y[mine], model, updates.sum(0), x[others].mean(0), averages, noise > 0)


def _train(model: nn.Module, x: Tensor, y: Tensor) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(300):
        chosen = torch.randint(len(x), (64,))
        optimiser.zero_grad()
        torch.autograd.backward(functional.cross_entropy(model(x[chosen]), y[chosen]))
        optimiser.step()


def attacked(given: Setting) -> Tensor:
    """Images whose updates add up to the sum, the best of several starts."""
    parameters, scale = list(given.model.parameters()), float(given.total.square().sum())

    def gap(pixels: Tensor) -> Tensor:
        losses = functional.cross_entropy(given.model(torch.sigmoid(pixels)), given.labels, reduction="sum")
        found = torch.cat([g.flatten() for g in torch.autograd.grad(losses, parameters, create_graph=True)])
        if given.clipped:
            found = found / found.norm().clamp(min=1.0)
        return (found - given.total).square().sum() / scale

    found = [_minimised(gap, torch.randn_like(given.images).requires_grad_()) for _ in range(STARTS)]
    return torch.sigmoid(min(found, key=lambda pair: pair[0])[1]).detach()


def _minimised(gap: Callable[[Tensor], Tensor], pixels: Tensor) -> tuple[float, Tensor]:
    limits = {"max_iter": STEPS, "history_size": 50, "tolerance_grad": 1e-12, "tolerance_change": 1e-15}
    optimiser = torch.optim.LBFGS([pixels], line_search_fn="strong_wolfe", **limits)  # type: ignore[arg-type]

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = gap(pixels)
        (pixels.grad,) = torch.autograd.grad(value, [pixels])
        return value

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return float(gap(pixels).detach()), pixels


def psnr(guess: Tensor, images: Tensor) -> list[float]:
    """Of every image with the guess that it is assigned to, in dB."""
    errors = (guess[:, None] - images[None]).square().mean(dim=(2, 3, 4))
    rows, columns = linear_sum_assignment(errors.numpy())
    return [-10 * float(np.log10(max(float(errors[i, j]), 1e-12))) for i, j in zip(rows, columns, strict=True)]


@cache
def reconstructed(clients: int, seed: int, trained: bool, noise: float) -> list[float]:
    """PSNR of the attack, image by image."""
    given = setting(clients, seed, trained, noise)
    return psnr(attacked(given), given.images)


def attack(clients: int, what: str, trained: bool, noise: float, seed: int) -> float:
    """One number of one seed: mean PSNR of the attack or of a guess, or the share of recognisable images."""
    if what in ("psnr", "share"):
        found = reconstructed(clients, seed, trained, noise)
        return mean(found) if what == "psnr" else mean(each > RECOGNISED for each in found)
    given = setting(clients, seed, trained, noise)
    guess = given.average.expand_as(given.images) if what == "blind" else given.averages[given.labels]
    return mean(psnr(guess, given.images))


def interval(values: list[float], digits: int = 1) -> str:
    """Mean and 95 % interval over seeds."""
    if len(values) < 2:
        return f"{mean(values):.{digits}f}"
    half = float(stats.t.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return f"{mean(values):.{digits}f} ± {half:.{digits}f}"


def row(records: Records, seeds: range, clients: int, trained: bool, noise: float) -> str:
    """A line of the table."""
    names = {"clients": clients, "trained": trained, "noise": noise}
    found = {
        what: records.over(seeds, {**names, "what": what}, attack) for what in ("psnr", "blind", "labelled", "share")
    }
    share = interval([100 * each for each in found["share"]])
    said = f"{clients}, noise {noise:g}" if noise else str(clients)
    return (
        f"| {said} | {interval(found['psnr'])} | {interval(found['blind'])} | {interval(found['labelled'])} | {share} |"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--trained", action="store_true", help="attack a model that has been trained on other images")
    options.add_argument("--noise", action="store_true", help="one client, with the noise of dp-sgd")
    options.add_argument("--records", type=Path, help="keep the numbers of single runs in this file")
    given = options.parse_args()
    records, seeds = Records(given.records), range(given.seeds)
    print("| clients in the sum | PSNR, dB | mean image | mean image of the label | images above 20 dB, % |")
    print("|---|---|---|---|---|")
    cells = [(1, noise) for noise in NOISES] if given.noise else [(clients, 0.0) for clients in SIZES]
    for clients, noise in cells:
        print(row(records, seeds, clients, given.trained, noise), flush=True)


if __name__ == "__main__":
    main()
