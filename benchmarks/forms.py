"""Forms of stacked networks on a GPU: the gradients of many clients' models, each at its own mini-batch.

    PYTHONPATH=src python benchmarks/forms.py [--compile] [NETWORK ...]

For each network and number of clients: milliseconds for one gradient of every client, captured as a CUDA graph, in
single precision and with TF32, and how far the gradients are from those of plain PyTorch in single precision.
"kernels" is what offbeat does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional

from offbeat.models import lstm
from offbeat.models.conv import CNN, CifarCNN, LeNet5
from offbeat.models.flat import Flat, forward
from offbeat.models.lstm import LSTM

Gradient = Callable[[Tensor, Tensor, Tensor], Tensor]  # vectors [n, d], inputs [n, b, ...], labels [n, b] to [n, d]

# network: (inputs, mini-batch, numbers of clients)
WORK = {CNN: ((1, 28, 28), 10, (16, 128, 512)), CifarCNN: ((3, 32, 32), 32, (16, 64)),
        LeNet5: ((1, 28, 28), 32, (16, 64)), LSTM: ((80,), 64, (2, 16, 64))}  # fmt: skip


class Patches(torch.autograd.Function):
    """[n, h, w, c] to its k × k patches [n, h', w', k, k, c]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: int) -> Tensor:
        ctx.k, ctx.shape = k, x.shape
        n, h, w, c = x.shape
        a, b, d, e = x.stride()
        return x.as_strided((n, h - k + 1, w - k + 1, k, k, c), (a, b, d, b, d, e)).contiguous()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        (g,), k = slopes, ctx.k
        pads = ((i, j, (0, 0, j, k - 1 - j, i, k - 1 - i)) for i in range(k) for j in range(k))
        return torch.stack([functional.pad(g[:, :, :, i, j], pad) for i, j, pad in pads]).sum(0), None


def unfolded(module: Any, p: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The two-convolution networks of n clients, as matrix products with the channels last."""
    n, b = x.shape[:2]
    pad = module.conv1.padding[0]
    x = functional.pad(x.flatten(0, 1).permute(0, 2, 3, 1), (0, 0, pad, pad, pad, pad))
    for name in ("conv1", "conv2"):
        weight, bias = p[f"{name}.weight"], p[f"{name}.bias"]
        _, out, colours, k, _ = weight.shape
        patches: Tensor = Patches.apply(x.contiguous(), k)
        h, w = patches.shape[1:3]
        rows = patches.view(n, b * h * w, k * k * colours)
        y = torch.baddbmm(bias[:, None], rows, weight.permute(0, 3, 4, 2, 1).reshape(n, k * k * colours, out))
        x = torch.relu(y).view(n * b, h, w, out)[:, : h // 2 * 2, : w // 2 * 2]
        x = x.reshape(n * b, h // 2, 2, w // 2, 2, out).amax((2, 4))
    x = x.reshape(n, b, x.shape[1] * x.shape[2], -1).transpose(2, 3).reshape(n, b, -1)
    for i in range(len(module.full)):
        x = torch.baddbmm(p[f"full.{i}.bias"][:, None], torch.relu(x) if i else x, p[f"full.{i}.weight"].mT)
    return x


def by_autograd(flat: Flat, outputs: Callable[[Mapping[str, Tensor], Tensor], Tensor]) -> Gradient:
    def gradient(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        w = w.detach().requires_grad_()
        logits = outputs(flat.named(w), x)
        loss = functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / y.shape[1]
        return torch.autograd.grad(loss, w)[0]

    return gradient


def forms(flat: Flat, compiled: bool) -> dict[str, Gradient]:
    module: Any = flat.module
    if isinstance(module, LSTM):
        return {"written out": with_kernels(False, by_autograd(flat, module.stacked)),
                "kernels": with_kernels(True, by_autograd(flat, module.stacked))}  # fmt: skip
    found: dict[str, Gradient] = {
        "grouped": vmap(grad(lambda w, x, y: functional.cross_entropy(flat(w, x), y))),
        "unfolded": by_autograd(flat, lambda p, x: unfolded(module, p, x)),
        "kernels": lambda w, x, y: added(flat, w, x, y),
    }
    if compiled:
        fused = torch.compile(lambda p, x: unfolded(module, p, x), dynamic=False)
        found["unfolded, compiled"] = by_autograd(flat, fused)
    return found


def with_kernels(used: bool, gradient: Gradient) -> Gradient:
    def called(*arguments: Tensor) -> Tensor:
        lstm.kernels = lambda _: used
        return gradient(*arguments)

    return called


def added(flat: Flat, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    to, keep, weights = torch.empty_like(w), w.new_zeros(len(w)), w.new_full(y.shape, 1 / y.shape[1])
    flat.module.add_gradient(flat.named(w), keep, flat.named(to), x, y, weights)
    return to


def alone(flat: Flat, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    pieces = [piece.requires_grad_() for piece in flat.pieces(w)]
    slopes = torch.autograd.grad(functional.cross_entropy(flat.alone(pieces, forward, x), y), pieces)
    return torch.cat([slope.reshape(-1) for slope in slopes])


def captured(gradient: Gradient, *arguments: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            gradient(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = gradient(*arguments)
    return graph, result


def median(call: Callable[[], Any]) -> float:
    """Milliseconds, by the GPU's own clock."""
    call()
    times = []
    end = time.perf_counter() + 0.3
    while len(times) < 3 or time.perf_counter() < end:
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record()
        call()
        b.record()
        torch.cuda.synchronize()
        times.append(a.elapsed_time(b))
    return sorted(times)[len(times) // 2]


def main() -> None:
    wanted = [name for name in sys.argv[1:] if not name.startswith("-")]
    for network, (shape, batch, sizes) in WORK.items():
        if wanted and network.__name__ not in wanted:
            continue
        for n in sizes:
            torch.manual_seed(0)
            flat = Flat(network(shape, 80 if network is LSTM else 10))
            draw = torch.randint(80, (n, batch, *shape)) if network is LSTM else torch.rand(n, batch, *shape)
            x, y = draw.cuda(), torch.randint(10, (n, batch)).cuda()
            w = (flat.initial() + 0.01 * torch.randn(n, flat.dim)).cuda()
            for tf32 in (False, True):
                torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
                how = f"{network.__name__:9}{'tf32' if tf32 else 'single':7}"
                if not tf32:
                    reference = torch.stack([alone(flat, w[i], x[i], y[i]) for i in range(2)])
                if n == sizes[0]:
                    took = median(lambda: alone(flat, w[0], x[0], y[0]))  # noqa: B023
                    print(f"{how} one client, no graph: {took:.2f} ms", flush=True)
                for name, gradient in forms(flat, "--compile" in sys.argv).items():
                    began = time.perf_counter()
                    graph, found = captured(gradient, w, x, y)
                    ready, took = time.perf_counter() - began, median(graph.replay)
                    error = float((found[:2] - reference).norm() / reference.norm())
                    print(
                        f"{how} {n} clients, {name}: {took:.2f} ms, error {error:.0e}, ready in {ready:.1f} s",
                        flush=True,
                    )
                    del graph, found
                    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
