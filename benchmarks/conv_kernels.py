"""Convolutional networks of many clients on a GPU: time of a gradient by their kernels, and how far it is off.

    PYTHONPATH=src python3 -m benchmarks.conv_kernels [--clients 16 128]

Errors are of random models, against torch.vmap in single precision. Needs PyTorch and Triton only.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from benchmarks.lstm_tuning import timed
from offbeat.models.conv import CNN, CifarCNN, LeNet5
from offbeat.models.flat import Flat

NETWORKS = {"cifar-cnn": (CifarCNN, 3, 32, 32), "cnn": (CNN, 3, 32, 10), "lenet5": (LeNet5, 1, 28, 32)}
WAYS = {"single": (False, False), "TF32": (True, False), "bf16": (True, True)}  # (TF32, half)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[16, 128])
    given = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; µs per client, and the error of the gradient")
    for name, (network, colours, side, batch) in NETWORKS.items():
        module = network((colours, side, side), 10)
        flat = Flat(module)
        for n in given.clients:
            w = flat.initial().cuda() + 0.02 * torch.randn(n, flat.dim, device="cuda")
            x = torch.randn(n, batch, colours, side, side, device="cuda")
            y = torch.randint(10, (n, batch), device="cuda")
            weights, keep = torch.full((n, batch), 1 / batch, device="cuda"), torch.zeros(n, device="cuda")
            exact = reference(flat, w, x, y) if n <= 16 else None
            row = f"{name:10} {n:4} clients"
            for way, (rounded, half) in WAYS.items():
                torch.backends.cuda.matmul.allow_tf32 = rounded
                to = torch.full_like(w, torch.nan)
                inputs = flat.named(w), keep, flat.named(to), x, y, weights
                micros = 1e3 * timed(partial(module.add_gradient, *inputs, half=half)) / n
                error = "" if exact is None else f" ({float((to - exact).norm() / exact.norm()):.1e})"
                row += f"   {way} {micros:6.1f}{error}"
            print(row, flush=True)


def reference(flat: Flat, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return vmap(grad(lambda v, inputs, labels: cross_entropy(flat(v, inputs), labels)))(w, x, y)


if __name__ == "__main__":
    main()
