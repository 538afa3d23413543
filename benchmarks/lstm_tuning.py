"""FedAST's LSTM of many clients on a GPU: half precision beside TF32, and how its kernels are best divided.

    PYTHONPATH=src python3 -m benchmarks.lstm_tuning [--hidden 256] [--layers 2] [--clients 8 24 64]

First errors: gradients of two clients against torch.nn.LSTM in double precision, and whether calls have the same bits
when repeated, and nearly those of a launch for every step. Then microseconds per client of each kernel for some ways to
divide it, and of forward and backward with cross entropy as a CUDA graph. Needs PyTorch and Triton only.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional

from offbeat.models import lstm_gpu
from offbeat.models.flat import Flat
from offbeat.models.lstm import LSTM
from offbeat.models.lstm_gpu import Division

TOKENS, LENGTH, BATCH = 80, 80, 64
PLANS = (Division(16, 4), Division(16, 4, 2), Division(32, 8), Division(32, 4, 2), Division(64, 8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--clients", type=int, nargs="+", default=[8, 24, 64])
    given = parser.parse_args()
    began = time.perf_counter()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    flat = Flat(LSTM((LENGTH,), TOKENS, hidden=given.hidden, layers=given.layers))
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; hidden {given.hidden}, layers {given.layers}")
    errors(flat)
    print(f"  {time.perf_counter() - began:.0f} s\n", flush=True)
    best = parts(given.hidden, given.clients)
    print(f"  {time.perf_counter() - began:.0f} s\n", flush=True)
    whole(flat, given.clients, best)
    print(f"  {time.perf_counter() - began:.0f} s", flush=True)


def work(flat: Flat, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Models [n, d], windows [n, batch, length] and their next characters [n, batch]."""
    g = torch.Generator().manual_seed(n)
    w = flat.initial() + 0.05 * torch.randn(n, flat.dim, generator=g)
    x = torch.randint(TOKENS, (n, BATCH, LENGTH), generator=g)
    return w.cuda(), x.cuda(), torch.randint(TOKENS, (n, BATCH), generator=g).cuda()


def gradient(flat: Flat, w: Tensor, x: Tensor, y: Tensor, half: bool) -> Tensor:
    w = w.detach().requires_grad_()
    logits = flat.module.stacked(flat.named(w), x, half)
    loss = functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / BATCH
    return torch.autograd.grad(loss, w)[0]


def reference(flat: Flat, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The same in double precision, by PyTorch's own layers."""
    module = LSTM((LENGTH,), TOKENS, hidden=flat.module.lstm.hidden_size, layers=flat.module.lstm.num_layers)
    module = module.cuda().double()
    found = []
    with torch.backends.cudnn.flags(enabled=False):
        for row, inputs, labels in zip(w, x, y, strict=True):
            pieces = {name: piece.double().requires_grad_() for name, piece in flat.views(row).items()}
            logits = torch.func.functional_call(module, pieces, (inputs,))
            slopes = torch.autograd.grad(functional.cross_entropy(logits, labels), list(pieces.values()))
            found.append(torch.cat([slope.flatten() for slope in slopes]))
    return torch.stack(found)


def errors(flat: Flat) -> None:
    """How far gradients are from those in double precision, and whether there are races."""
    w, x, y = work(flat, 2)
    exact = reference(flat, w, x, y)

    def report(name: str, found: Tensor) -> None:
        apart, whole = flat.named(found - exact), flat.named(exact)
        worst = max(apart, key=lambda name: float(apart[name].norm() / whole[name].norm()))
        error, most = (found - exact).norm() / exact.norm(), apart[worst].norm() / whole[worst].norm()
        print(f"{name:44} error {error:.1e}, at most {most:.1e} ({worst})", flush=True)

    report("single precision with TF32", gradient(flat, w, x, y, False))
    for plan in PLANS:
        lstm_gpu.FORWARD = lstm_gpu.BACKWARD = (plan,)
        report(f"half, {plan.units} units, {plan.warps} warps, {plan.each} at once", gradient(flat, w, x, y, True))
    lstm_gpu.PARTIAL = torch.float32
    report("half, the last, partial slopes in float32", gradient(flat, w, x, y, True))
    lstm_gpu.PARTIAL = torch.bfloat16
    for n, plan in product((5, 40), (PLANS[1], PLANS[-1])):
        lstm_gpu.FORWARD = lstm_gpu.BACKWARD = (plan,)
        arguments = work(flat, n)
        found = gradient(flat, *arguments, True)
        same = all(torch.equal(found, gradient(flat, *arguments, True)) for _ in range(10))
        lstm_gpu.TOGETHER = False
        apart = float((gradient(flat, *arguments, True) - found).norm() / found.norm())
        lstm_gpu.TOGETHER = True
        print(f"{n} clients, {plan.units} units: {'the same bits' if same else 'OTHER BITS'} ten times,", end=" ")
        print(f"{apart:.0e} from a launch for every step", flush=True)


def parts(h: int, sizes: list[int]) -> dict[int, tuple[Division, Division]]:
    """Print times of the kernels; (the best plan forward, and backward) by the number of clients."""
    best = {}
    names = ("forward, tokens", "forward, gates", "backward", "backward of the last output")
    print("µs per client" + "".join(f"{name:>29}" for name in names))
    for n in sizes:
        taken = {}
        for plan in PLANS:
            lstm_gpu.FORWARD = lstm_gpu.BACKWARD = (plan,)
            calls = kernels(n, h)
            taken[plan] = [1e3 * timed(call) / n for call in calls]
            row = "".join(f"{micros:29.1f}" for micros in taken[plan])
            print(f"{n:3} {plan.units}/{plan.warps}/{plan.each}  {row}", flush=True)
        passes = [{plan: sum(micros[half]) for plan, micros in taken.items()} for half in (slice(2), slice(2, 4))]
        best[n] = tuple(min(each, key=each.__getitem__) for each in passes)
    return best


def kernels(n: int, h: int) -> list[Callable[[], object]]:
    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda").mul_(0.1).bfloat16()

    rows, recurrent, gates = draw(n, TOKENS, 4 * h), draw(n, 4 * h, h), draw(n, LENGTH, BATCH, 4 * h)
    tokens = torch.randint(TOKENS, (n, LENGTH, BATCH), device="cuda", dtype=torch.int32)
    bias, slope, last = torch.randn(n, 4 * h, device="cuda"), draw(n, LENGTH, BATCH, h), draw(n, BATCH, h).float()
    _, cells, active = lstm_gpu.half_forward(gates, recurrent, bias, None, LENGTH, BATCH)
    return [
        partial(lstm_gpu.half_forward, rows, recurrent, None, tokens, LENGTH, BATCH),
        partial(lstm_gpu.half_forward, gates, recurrent, bias, None, LENGTH, BATCH),
        partial(lstm_gpu.half_backward, slope, recurrent, cells, active),
        partial(lstm_gpu.half_backward, last, recurrent, cells, active),
    ]


def whole(flat: Flat, sizes: list[int], best: dict[int, tuple[Division, Division]]) -> None:
    print("forward and backward, a CUDA graph: µs per client (GB at most)")
    for n in sizes:
        arguments, row = work(flat, n), f"{n:3}"
        lstm_gpu.FORWARD, lstm_gpu.BACKWARD = ((plan,) for plan in best[n])
        before = gradient(flat, *arguments, True)
        times = []
        for half in (False, True):
            call = partial(gradient, flat, *arguments, half)
            try:
                graph, found, used = captured(call)
            except RuntimeError as error:
                print(f"no graph of cooperative launches: {error}")
                lstm_gpu.COOPERATIVE = False
                graph, found, used = captured(call)
            times.append(1e3 * timed(graph.replay) / n)
            row += f"   {'half' if half else 'TF32'} {times[-1]:6.1f} ({used:.1f})"
        same = "" if torch.equal(found, before) else "; the graph's gradients are OTHERS"
        once = 1e3 * timed(partial(gradient, flat, *arguments, True)) / n
        plans = ", ".join("/".join(map(str, plan)) for plan in best[n])
        print(
            f"{row}   {times[0] / times[1]:.2f} times as fast; without a graph {once:.1f}; plans {plans}{same}",
            flush=True,
        )


def captured(call: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor, float]:
    """(the call as a graph, its result, GB that it takes)."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result, (torch.cuda.max_memory_allocated() - before) / 1e9


def timed(call: Callable[[], object], seconds: float = 0.15) -> float:
    """Milliseconds on the GPU, the median."""
    for _ in range(2):
        call()
    taken, until = [], time.perf_counter() + seconds
    while len(taken) < 5 or time.perf_counter() < until:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end))
    return median(taken)


if __name__ == "__main__":
    main()
