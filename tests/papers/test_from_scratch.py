"""The papers' pseudo-code written anew in numpy, from the papers alone, agrees with the servers after every event.

All times of the clients' jobs are random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from anew import CLIENTS, EVENTS, LR, STEPS, Clock, Times, Trail, agree, descend, model, sent_by_fedast, trail
from quartics import DIM, Array, gradient, hessian, start

from offbeat.algorithms import AREA, Decay, DeFedAvg, DeFedAvgIID, FedAST, FedAsync, FedBuff, Period
from offbeat.core.events import Recall
from offbeat.core.local import Local
from offbeat.core.server import Server
from offbeat.local import MAML, SGD, Moreau


def area(times: Times, size: int | None, period: float, alpha: Callable[[int], float], events: int) -> Trail:
    """AREA's algorithms 1 and 2."""
    x, u, k, clock, messages = start(), np.zeros(DIM), 0, Clock(), 0
    y = [x] * CLIENTS

    def send(i: int, step_size: float) -> None:
        """The server's "send x_s and α to client i", and what that client makes of it."""
        reached, d = descend(x, i, step_size), times.next(i)
        m, y[i] = reached - y[i], reached
        clock.at(clock.now + d.download + d.compute + d.upload, i, m)

    for i in range(CLIENTS):
        send(i, alpha(0))
    for ring in range(1, EVENTS if size is None else 1):
        clock.at(ring * period, -1, None)
    found = [(0.0, [x, u])]
    while len(found) < events:
        i, m = clock.pop()
        if i >= 0:
            k, messages, u = k + 1, messages + 1, u + m / CLIENTS
            send(i, alpha(k))
        if i < 0 or messages == size:
            k, messages, x, u = k + 1, 0, x + u, np.zeros(DIM)
        found.append((clock.now, [x, u]))
    return found


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("size", [1, 3, Period(0.77)])
def test_area(seed: int, size: Any) -> None:
    """Algorithm 1: "send x_{s,k−1} and α_k to client i"; algorithm 2: "send m_i = x_i^M − y_i", "y_i ← x_i^M"."""
    schedule = Decay(c=4.0, d=120.0)
    server = AREA(size=size, schedule=schedule)
    found = trail(server, SGD(LR, steps=STEPS), Times(seed), lambda world: [world.server.model.vector, world.server.u])
    number, period = (size, 0.0) if isinstance(size, int) else (None, size.time)
    agree(found, area(Times(seed), number, period, lambda k: 4.0 / (k + 120.0), len(found)))


def buffered(times: Times, client: Callable[[int, Array], Array], size: int, beta: float, events: int) -> Trail:
    """FedBuff's algorithm 2; PersA-FL's algorithm 1 is the same with K = 1.   client: Δ_i of a model."""
    w, total, k, clock = start(), np.zeros(DIM), 0, Clock()

    def begin(i: int) -> None:
        d = times.next(i)
        clock.at(clock.now + d.download + d.compute + d.upload, i, client(i, w))

    for i in range(CLIENTS):
        begin(i)
    found = [(0.0, [w])]
    while len(found) < events:
        i, delta = clock.pop()
        total, k = total + delta, k + 1
        if k == size:
            w, total, k = w - beta * total, np.zeros(DIM), 0
        begin(i)
        found.append((clock.now, [w]))
    return found


def maml(i: int, w: Array) -> Array:
    """PersA-FL's algorithm 2, lines 8 and 9."""
    first = w
    for q in range(STEPS):
        personal = w - 0.11 * gradient(0, i, w, q, batch=1)
        w = w - LR * (np.eye(DIM) - 0.11 * hessian(0, i, w, q, batch=2)) @ gradient(0, i, personal, q)
    return first - w


def moreau(i: int, w: Array) -> Array:
    """PersA-FL's algorithm 2, lines 10 to 12; the inner problem by Newton's method."""
    first = w
    for q in range(STEPS):
        theta = w
        for _ in range(20):
            slope = gradient(0, i, theta, q) + 20.0 * (theta - w)
            theta = theta - np.linalg.solve(hessian(0, i, theta, q) + 20.0 * np.eye(DIM), slope)
        w = w - 0.02 * 20.0 * (w - theta)
    return first - w


OPTIONS: dict[str, tuple[Server[Any], Local, Callable[[int, Array], Array], int, float]] = {
    "FedBuff": (FedBuff(size=3, lr=0.7), SGD(LR, steps=STEPS), lambda i, w: w - descend(w, i), 3, 0.7 / 3),
    "PersA-FL, A": (FedAsync(lr=0.6), SGD(LR, steps=STEPS), lambda i, w: w - descend(w, i), 1, 0.6),
    "PersA-FL, B": (FedAsync(lr=0.6), MAML(LR, steps=STEPS, alpha=0.11), maml, 1, 0.6),
    "PersA-FL, C": (
        FedAsync(lr=0.6),
        Moreau(lr=0.02, steps=STEPS, penalty=20.0, accuracy=1e-14, inner=99, inner_lr=0.04),
        moreau,
        1,
        0.6,
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_fedbuff_and_persafl(name: str) -> None:
    """FedBuff, line 9: "w^{t+1} ← w^t − β Δ̄^t", the sum of K updates; PersA-FL, line 4: "w^{t+1} ← w^t − β Δ_{i_t}"."""
    server, local, client, size, beta = OPTIONS[name]
    found = trail(server, local, Times(1), model)
    agree(found, buffered(Times(1), client, size, beta, len(found)))


def iid(times: Times, size: int, events: int) -> Trail:
    """DeFedAvg's algorithm 2. A model is trained on once: "if the receive buffer is nonempty then retrieve w"."""
    w, clock, results = start(), Clock(), list[Array]()
    box: list[Array | None] = [None] * CLIENTS
    busy = [False] * CLIENTS

    def work(i: int) -> None:
        model = box[i]
        if not busy[i] and model is not None:
            busy[i], box[i] = True, None
            clock.at(clock.now + times.next(i).compute, "done", i, model - descend(model, i))

    def broadcast() -> None:
        for i in range(CLIENTS):
            box[i] = w
            work(i)

    broadcast()
    found = [(0.0, [w])]
    while len(found) < events:
        what, i, delta = clock.pop()
        if what == "done":
            busy[i] = False
            clock.at(clock.now + times.table()[i][0].upload, "message", i, delta)
            work(i)
            continue
        results.append(delta)
        if len(results) == size:
            w, results = w - 0.8 * sum(results) / size, []
            broadcast()
        found.append((clock.now, [w]))
    return found


@pytest.mark.parametrize("size", [1, 3, CLIENTS])
def test_defedavg_iid(size: int) -> None:
    times = Times(3, alike=True)
    found = trail(
        DeFedAvgIID(size=size, lr=0.8), SGD(LR, steps=STEPS), times, lambda world: [world.server.model.vector]
    )
    agree(found, iid(times, size, len(found)))


def niid(times: Times, draws: Sequence[Sequence[int]], everyone: bool, events: int) -> Trail:
    """DeFedAvg's algorithm 1; who has answered is sent the model as it is then.   everyone: so are all, in every round.

    draws: of each round.
    """
    w, clock, rounds, answers = start(), Clock(), iter(draws), dict[int, Array]()
    box: list[Array | None] = [w] * CLIENTS
    ready: list[Array | None] = [None] * CLIENTS  # send buffers
    busy, wanted, drawn = [False] * CLIENTS, set[int](), list[int]()

    def work(i: int) -> None:
        model = box[i]
        if not busy[i] and model is not None:
            busy[i], box[i] = True, None
            clock.at(clock.now + times.next(i).compute, "done", i, model - descend(model, i))

    def take(i: int) -> None:
        if i in wanted and ready[i] is not None:
            clock.at(clock.now + times.table()[i][0].upload, "message", i, ready[i])
            ready[i] = None
            wanted.remove(i)

    def draw() -> None:
        drawn[:] = next(rounds)
        wanted.update(drawn)
        for i in dict.fromkeys(drawn):
            take(i)

    for i in range(CLIENTS):
        work(i)
    draw()
    found = [(0.0, [w])]
    while len(found) < events:
        what, i, delta = clock.pop()
        if what == "done":
            busy[i], ready[i] = False, delta
            take(i)
            work(i)
            continue
        answers[i] = delta
        over = answers.keys() == set(drawn)
        if over:
            w = w - 0.8 * sum(answers[j] for j in drawn) / len(drawn)
            answers.clear()
        for j in range(CLIENTS) if over and everyone else (i,):
            box[j] = w
            work(j)
        found.append((clock.now, [w]))
        if over:
            draw()
    return found


@pytest.mark.parametrize("renew", ["always", "drawn"])
def test_defedavg_niid(renew: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Line 7: "Δ^t ← (1/n) Σ_{i ∈ I_t} Δ_i^t", over a multiset; line 8: "w^{t+1} ← w^t − η Δ^t"."""
    drawn: list[list[int]] = []
    plain = DeFedAvg._draw

    def draw(self: DeFedAvg, state: Any, number: int, view: Any) -> Iterator[Recall]:
        before = dict(state.drawn)
        yield from plain(self, state, number, view)  # type: ignore[misc]
        drawn.append([i for i, times in state.drawn.items() for _ in range(times - before.get(i, 0))])

    monkeypatch.setattr(DeFedAvg, "_draw", draw)
    times = Times(4, alike=True)
    server = DeFedAvg(sampled=3, lr=0.8, renew=renew)
    found = trail(server, SGD(LR, steps=STEPS), times, model)
    agree(found, niid(times, drawn, renew == "always", len(found)))


def whole(weights: Sequence[float], total: int) -> list[int]:
    """In proportion, at least one each: the paper does not say how it rounds."""
    exact = [max(total * weight / sum(weights) - 1, 0) for weight in weights]
    exact = [part * (total - len(exact)) / sum(exact) for part in exact]
    parts = [int(part) for part in exact]
    order = sorted(range(len(exact)), key=lambda m: (parts[m] - exact[m], m))
    for m in order[: total - len(exact) - sum(parts)]:
        parts[m] += 1
    return [1 + part for part in parts]


def fedast(times: Times, clients: Iterator[int], period: int | None, window: int, sent: bool, events: int) -> Trail:
    """FedAST's algorithms 1 to 4 for three tasks, R = (10, 10, 10) and b = (2, 2, 2) at first.

    clients: as drawn.   sent: remark 7, "weighting an update with 1/|A^(t−γ)| instead of taking average over buffer".
    """
    counts: dict[tuple[int, int], int] = {}  # (task, round), how many requests were sent in it
    weighted: list[list[tuple[int, int, Array]]] = [[], [], []]
    rounds = [0] * 3
    x, requests, size, later = [start(m) for m in range(3)], [10] * 3, [2] * 3, [2] * 3
    buffer: list[list[Array]] = [[], [], []]
    last: list[list[Array]] = [[], [], []]
    flying, arrived, clock, free = [0] * 3, 0, Clock(), [0.0] * CLIENTS

    def send(m: int, number: int) -> None:
        for _ in range(number):
            i = next(clients)
            free[i] = max(clock.now, free[i]) + times.next(i).compute  # "first-come, first-served"
            flying[m] += 1
            counts[m, rounds[m]] = counts.get((m, rounds[m]), 0) + 1
            clock.at(free[i], m, rounds[m], (x[m] - descend(x[m], i, task=m)) / (STEPS * LR))

    for m in range(3):
        send(m, requests[m])
    found = [(0.0, list(x))]
    while len(found) < events:
        m, began, delta = clock.pop()
        flying[m] -= 1
        buffer[m].append(delta)
        weighted[m].append((m, began, delta))
        last[m] = [*last[m], delta][-window:]
        arrived += 1
        if period is not None and arrived % period == 0 and all(len(each) == window for each in last):
            means = [sum(each) / window for each in last]
            spreads = [
                sum(((d - mean) ** 2).sum() for d in each) / window for each, mean in zip(last, means, strict=True)
            ]
            scaled = [LR * 0.4 * STEPS * s / (mean**2).sum() for s, mean in zip(spreads, means, strict=True)]
            requests = whole([math.sqrt(variance) for variance in scaled], 30)
            later = [max(1, -(-number * 2 // 10)) for number in requests]
            size = [b if held else new for b, held, new in zip(size, buffer, later, strict=True)]
        if len(buffer[m]) == size[m]:
            mean = sum(buffer[m]) / size[m]
            if sent:
                mean = sum(each / counts[task, of] for task, of, each in weighted[m])
            x[m] = x[m] - 0.4 * LR * STEPS * mean
            buffer[m], weighted[m], size[m], rounds[m] = [], [], later[m], rounds[m] + 1
        had = flying[m] + 1
        send(m, 1 if had == requests[m] else 0 if had > requests[m] else 2)
        found.append((clock.now, list(x)))
    return found


@pytest.mark.parametrize("weights", ["buffer", "sent"])
@pytest.mark.parametrize("allocation", ["static", "dynamic"])
def test_fedast(allocation: Any, weights: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Line 10: "x_m ← x_m − η_s η_c τ (1/b) Σ Δ"; algorithm 3: "c mod c_period = 0"; algorithm 4, lines 2 and 3."""
    drawn = sent_by_fedast(monkeypatch)
    server = FedAST(requests=30, ratio=5.0, lr=0.4, allocation=allocation, weights=weights, window=6, period=0.25)
    times, local = Times(2, network=False), SGD(LR, steps=STEPS)
    found = trail(server, local, times, lambda world: [t.inner.model.vector for t in world.server.tasks], tasks=3)
    period = None if allocation == "static" else round(0.25 * 3 * 30)
    agree(found, fedast(times, iter(drawn), period, 6, weights == "sent", len(found)))
