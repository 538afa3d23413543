"""Methods that the five papers compare with, written anew in numpy, agree with the servers after every event.

Clients leave and come back, and settings are at their limits: one client, a round of all clients, a task that is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from anew import LR, STEPS, Clock, Times, Trail, agree, descend, model, moved, sent_by_fedast, trail
from quartics import DIM, Array, Quartics, gradient, start, whole_gradient

from offbeat.algorithms import CA2FL, MIFA, SCAFFOLD, AsFedAvg, Favano, FedAST, QuAFL, SyncST
from offbeat.algorithms.favano import Interrupting
from offbeat.algorithms.fedavg import Rounds
from offbeat.core.server import Server
from offbeat.local import SGD, Scaffold

Rule = Callable[[int, Array, Array], Array | None]  # (client, model received, model reached) -> new model, if it is one


def flow(times: Times, x: Array, rule: Rule) -> Iterator[tuple[float, list[Array]]]:
    """Clients that keep working: who has answered or comes back gets the model as it is; who leaves loses its job."""
    clock, there, jobs = Clock(), dict.fromkeys(range(times.clients), True), [0] * times.clients

    def begin(i: int) -> None:
        d = times.next(i)
        jobs[i] += 1
        clock.at(clock.now + d.download + d.compute + d.upload, i, jobs[i], x)

    for i, flips in times.flips.items():
        for when in flips:
            clock.at(when, i, None, x)
    for i in there:
        begin(i)
    yield 0.0, [x]
    while True:
        i, job, received = clock.pop()
        if job is None:
            there[i] = not there[i]
            jobs[i] += 1  # what it was at is gone
            if there[i]:
                begin(i)
        elif job == jobs[i]:
            new = rule(i, received, descend(received, i))
            x = x if new is None else new
            yield clock.now, [x]
            begin(i)


class AsFedAvgRule:
    """AREA, §5: "global updates are triggered by the reception of Δ client updates", which are model estimates."""

    def __init__(self, times: Times) -> None:
        self.models: list[Array] = []

    def __call__(self, i: int, received: Array, reached: Array) -> Array | None:
        self.models.append(reached)
        if len(self.models) < 3:
            return None
        mean, self.models = sum(self.models) / 3, []
        return np.asarray(mean)


class MifaRule:
    """MIFA: w ← w − (η/n) Σ_i G_i with the newest G_i of every client; 0 of one that has not spoken."""

    def __init__(self, times: Times) -> None:
        self.x, self.newest = start(), np.zeros((times.clients, DIM))

    def __call__(self, i: int, received: Array, reached: Array) -> Array:
        self.newest[i] = received - reached
        self.x = self.x - 0.7 * self.newest.mean(axis=0)
        return self.x


class Ca2flRule:
    """CA²FL: v = h + (1/K) Σ (Δ_i − h_i), w ← w + ηv; then h_i ← Δ_i for those in the buffer, h their mean over n."""

    def __init__(self, times: Times) -> None:
        self.x, self.cached, self.after = start(), np.zeros((times.clients, DIM)), np.zeros((times.clients, DIM))
        self.buffer: list[Array] = []

    def __call__(self, i: int, received: Array, reached: Array) -> Array | None:
        self.buffer.append(reached - received - self.cached[i])
        self.after[i] = reached - received
        if len(self.buffer) < 4:
            return None
        self.x = self.x + 0.6 * (self.cached.mean(axis=0) + sum(self.buffer) / 4)
        self.cached, self.buffer = self.after.copy(), []
        return self.x


FLOWS: dict[str, tuple[Server[Any], Callable[[Times], Rule]]] = {
    "AS-FedAvg": (AsFedAvg(size=3), AsFedAvgRule),
    "MIFA": (MIFA(lr=0.7), MifaRule),
    "CA2FL": (CA2FL(size=4, lr=0.6), Ca2flRule),
}
WORLDS = {
    "all there": Times(5),
    "two leave": Times(6, flips={1: [3.0, 9.5, 20.0, 21.0], 4: [0.05, 12.0]}),
    "one client": Times(7, clients=1),
    "one client leaves": Times(8, clients=1, flips={0: [2.0, 5.0]}),
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", FLOWS)
def test_flows(name: str, world: str) -> None:
    server, rule = FLOWS[name]
    given = WORLDS[world]
    found = moved(trail(server, SGD(LR, steps=STEPS), given, model))
    times = Times(given.seed, clients=given.clients, flips=given.flips)
    steps = flow(times, start(), rule(times))
    wanted: Trail = []
    while len(wanted) < len(found):
        wanted = moved([*wanted, next(steps)])
    agree(found, wanted, least=30)


# Rounds


def drawn(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The clients of each round, as the server draws them."""
    noted: list[list[int]] = []
    plain = Rounds.drawn

    def draw(self: Any, state: Any, count: int, view: Any) -> Sequence[int]:
        noted.append(list(plain(self, state, count, view)))
        return noted[-1]

    monkeypatch.setattr(Rounds, "drawn", draw)
    return noted


def corrected(y: Array, i: int, control: Array, own: Array) -> Array:
    """SCAFFOLD, line 10: "y_i ← y_i − η_l (g_i(y_i) − c_i + c)"."""
    for step in range(STEPS):
        y = y - LR * (gradient(0, i, y, step) - own + control)
    return y


def scaffold(times: Times, draws: Sequence[Sequence[int]], first: int | None, option: int, events: int) -> Trail:
    """SCAFFOLD's algorithm 1; of what comes too late for its round, only the controls count."""
    n = times.clients
    x, c, own, clock = start(), np.zeros(DIM), [np.zeros(DIM)] * n, Clock()
    rounds, changes, results, out, number = iter(draws), np.zeros(DIM), list[Array](), 0, 0
    busy = set[int]()

    def begin() -> None:
        nonlocal out
        clients = next(rounds)
        assert not busy & set(clients)
        out = len(clients)
        busy.update(clients)
        for i in clients:
            y, d = corrected(x, i, c, own[i]), times.next(i)
            renewed = whole_gradient(0, i, x) if option == 1 else own[i] - c + (x - y) / (STEPS * LR)  # line 12
            clock.at(clock.now + d.download + d.compute + d.upload, i, number, y - x, renewed - own[i])
            own[i] = renewed

    begin()
    found = [(0.0, [x, c])]
    while len(found) < events:
        i, of, moved_by, change = clock.pop()
        busy.remove(i)
        changes = changes + change
        if of == number:
            results.append(moved_by)
            if len(results) == (out if first is None else min(first, out)):
                x, c = x + 0.8 * sum(results) / len(results), c + changes / n  # lines 16 and 17
                changes, results, number = np.zeros(DIM), [], number + 1
                begin()
        found.append((clock.now, [x, c]))
    return found


@pytest.mark.parametrize("option", [1, 2])
@pytest.mark.parametrize(("sampled", "first", "clients"), [(3, None, 5), (5, None, 5), (1, None, 1), (4, 2, 7)])
def test_scaffold(option: Any, sampled: int, first: int | None, clients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draws, times = drawn(monkeypatch), Times(9, clients=clients)
    server, local = SCAFFOLD(sampled=sampled, first=first, lr=0.8), Scaffold(LR, steps=STEPS, option=option)
    found = trail(server, local, times, lambda world: [world.server.model.vector, world.server.control])
    agree(found, scaffold(times, draws, first, option, len(found)))


# Rounds by the clock


def rung(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The clients that each round interrupts."""
    noted: list[list[int]] = []
    plain = Interrupting.rang

    def rang(self: Any, state: Any, key: str, view: Any) -> Iterator[Any]:
        said = list(plain(self, state, key, view))
        noted.append(list(state.waiting))
        yield from said

    monkeypatch.setattr(Interrupting, "rang", rang)
    return noted


class Runner:
    """A client that makes one local step after the other until it is asked."""

    def __init__(self, times: Times, i: int, x: Array, now: float) -> None:
        d = times.next(i)
        self.i, self.base, self.begun, self.takes, self.upload = i, x, now + d.download, d.compute, d.upload

    def ask(self, now: float) -> tuple[int, Array]:
        """(q, the model after q local steps)."""
        q = max(0, min(STEPS, int(STEPS * (now - self.begun) / self.takes)))
        w = self.base
        for step in range(q):
            w = w - LR * gradient(0, self.i, w, step)
        return q, w


def favano(
    times: Times, draws: Sequence[Sequence[int]], s: int, period: float, normalise: str | None, events: int
) -> Trail:
    """FAVANO, and with normalise = None QuAFL without its quantisation.

    Of QuAFL, the sum of the server's and all clients' models changes by their steps alone, however many answer.
    """
    x, clock, asked = start(), Clock(), iter(draws)
    at_work = [Runner(times, i, x, 0.0) for i in range(times.clients)]
    own, models = [x] * times.clients, [x] * times.clients  # as asked for, and as they began
    counts: list[list[int]] = [[] for _ in range(times.clients)]
    clock.at(period, -1, None)
    waiting, given = list[int](), list[Array]()
    found = [(0.0, [x])]
    while len(found) < events:
        i, model = clock.pop()
        if i < 0:
            waiting, given = list(next(asked)), []
            sampled = list(waiting)
            whole, begins = x + sum(models), [models[j] for j in sampled]
            for j in waiting:
                q, w = at_work[j].ask(clock.now)
                counts[j].append(q)
                own[j] = w
                share = {"expected": np.mean(counts[j]), "stochastic": np.mean(np.array(counts[j]) > 0) * q}.get(
                    normalise or "", 1.0
                )
                unbiased = at_work[j].base + (w - at_work[j].base) / share if q else w
                clock.at(clock.now + at_work[j].upload, j, unbiased)
        else:
            waiting.remove(i)
            given.append(model)
            if not waiting:
                before, missing = x, 0 if normalise else s - len(given)
                x = ((1 + missing) * x + sum(given)) / (len(given) + missing + 1)
                for j in sampled:
                    mixed = (before + s * own[j]) / (s + 1)
                    models[j] = x if normalise else mixed
                    at_work[j] = Runner(times, j, x if normalise else mixed, clock.now)
                moved_by = sum(w - begun for w, begun in zip([own[j] for j in sampled], begins, strict=True))
                if not normalise:
                    assert x + sum(models) == pytest.approx(whole + moved_by, abs=1e-10)
                clock.at(clock.now + period, -1, None)
        found.append((clock.now, [x]))
    return found


CLOCKED = [(2, 1.3, 5), (5, 0.31, 5), (1, 0.7, 1), (1, 20.0, 4), (7, 0.6, 3)]  # sampled, period, clients


@pytest.mark.parametrize("normalise", ["expected", "stochastic", "none"])
@pytest.mark.parametrize(("sampled", "period", "clients"), CLOCKED)
def test_favano(normalise: Any, sampled: int, period: float, clients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draws, times = rung(monkeypatch), Times(11, clients=clients)
    server = Favano(sampled=sampled, period=period, normalise=normalise)
    found = trail(server, SGD(LR, steps=STEPS), times, model)
    agree(found, favano(times, draws, sampled, period, normalise, len(found)))


@pytest.mark.parametrize(("sampled", "period", "clients"), CLOCKED)
def test_quafl(sampled: int, period: float, clients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.algorithms.quafl.quantise", lambda sent, known, uniform, bits: sent)
    draws, times = rung(monkeypatch), Times(12, clients=clients)
    found = trail(QuAFL(sampled=sampled, period=period), SGD(LR, steps=STEPS), times, model)
    agree(found, favano(times, draws, sampled, period, None, len(found)))


# Several tasks in rounds


def sync_st(
    times: Times,
    parts: Sequence[Mapping[int, Sequence[int]]],
    sampled: int,
    first: int | None,
    stop: bool,
    events: int,
) -> Trail:
    """Sync-ST: all tasks step when each has its first results; who is late ends its job, which counts for nothing.

    stop: who is late is free at once.
    """
    x, clock, rounds, number = [start(m) for m in range(3)], Clock(), iter(parts), 0
    results: dict[int, list[Array]] = {}
    sizes: dict[int, int] = {}
    busy = set[int]()

    def begin() -> None:
        part = next(rounds)
        drawn = [i for clients in part.values() for i in clients]
        assert len(set(drawn) - busy) == len(drawn) == min(sampled, times.clients - len(busy))
        for m, clients in part.items():
            sizes[m], results[m] = len(clients), []
            for i in clients:
                d = times.next(i)
                busy.add(i)
                clock.at(clock.now + d.download + d.compute + d.upload, i, m, number, x[m] - descend(x[m], i, task=m))

    begin()
    found = [(0.0, list(x))]
    while len(found) < events:
        i, m, of, delta = clock.pop()
        if i < 0:  # a new round
            busy.clear()
            begin()
            found.append((clock.now, list(x)))
            continue
        wanted = {m: size if first is None else min(first, size) for m, size in sizes.items()}
        if stop and (of < number or len(results[m]) == wanted[m]):
            continue
        busy.remove(i)
        if of == number and len(results[m]) < wanted[m]:
            results[m].append(delta)
            if all(len(results[m]) == wanted[m] for m in sizes):
                for m in sizes:
                    x[m] = x[m] - 0.9 * sum(results[m]) / wanted[m]
                number += 1
                if stop:
                    clock.at(clock.now, -1, 0, number, None)
                else:
                    begin()
        found.append((clock.now, list(x)))
    return found


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize(
    ("sampled", "first", "shares"), [(9, None, ()), (9, 2, ()), (12, 1, (1.0, 2.0, 3.0)), (3, None, ())]
)
def test_sync_st(sampled: int, first: int | None, shares: Any, stop: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[Mapping[int, Sequence[int]]] = []
    plain = SyncST.assign

    def assign(*given: Any) -> Any:
        parts.append(plain(*given))
        return parts[-1]

    monkeypatch.setattr(SyncST, "assign", assign)
    times = Times(13, clients=12)
    server = SyncST(sampled=sampled, first=first, stop=stop, lr=0.9, shares=shares)
    found = trail(
        server, SGD(LR, steps=STEPS), times, lambda world: [t.model.vector for t in world.server.tasks], tasks=3
    )
    agree(found, sync_st(times, parts, sampled, first, stop, len(found)))


# FedAST as in its authors' demonstration


class Queues:
    """Clients that do one job after the other."""

    def __init__(self, times: Times) -> None:
        self.times, self.clock = times, Clock()
        self.jobs: dict[int, list[list[Any]]] = {i: [] for i in range(times.clients)}  # [task, start, end, update]

    def put(self, i: int, task: int, update: Array) -> None:
        begin = max([self.clock.now, *(job[2] for job in self.jobs[i])])
        job = [task, begin, begin + self.times.next(i).compute, update]
        self.jobs[i].append(job)
        self.clock.at(job[2], i, job)

    def pop(self) -> tuple[int, Array]:
        """(task, update) of the next job that is done."""
        while True:
            i, job = self.clock.pop()
            if job in self.jobs[i] and job[2] == self.clock.now:
                self.jobs[i].remove(job)
                return job[0], job[3]

    def drop(self, task: int) -> None:
        """All jobs of a task are gone, and what was queued behind them begins earlier."""
        for i, jobs in self.jobs.items():
            jobs[:] = [job for job in jobs if job[0] != task]
            free = self.clock.now
            for job in jobs:
                if job[1] > self.clock.now:
                    job[1:3] = [free, free + job[2] - job[1]]
                    self.clock.at(job[2], i, job)
                free = job[2]


def parts(total: int, weights: Mapping[int, float]) -> dict[int, int]:
    """In proportion, at least one each; what is left goes to the largest remainders."""
    above = {m: max(total * w / sum(weights.values()) - 1, 0) for m, w in weights.items()}
    above = {m: part * (total - len(above)) / sum(above.values()) for m, part in above.items()}
    found = {m: 1 + int(part) for m, part in above.items()}
    for m in sorted(above, key=lambda m: (int(above[m]) - above[m], m))[: total - sum(found.values())]:
        found[m] += 1
    return found


def packets(total: int, weights: Mapping[int, float], packet: int) -> dict[int, int]:
    """The demonstration's `redistributeActiveWorks`."""
    lacking = {m: int(total * w / sum(weights.values())) - packet for m, w in weights.items()}
    found = dict.fromkeys(weights, packet)
    for _ in range((total - sum(found.values())) // packet):
        most = max(lacking, key=lambda m: lacking[m])
        found[most], lacking[most] = found[most] + packet, lacking[most] - packet
    return found


def unevenness(deltas: Sequence[Array], rate: float) -> float:
    """The demonstration's `calculateUpdVariance`, without the last number, a bias."""
    rows = np.stack(deltas)[:, :-1]
    mean = rows.mean(axis=0)
    variance = LR * rate * ((rows - mean) ** 2).sum() / ((mean**2).sum() * len(rows)) / (LR * STEPS) ** 2
    return float(variance) ** 1 / 2  # as it stands there


def demonstration(times: Times, clients: Iterator[int], last: Mapping[int, int], events: int) -> tuple[Trail, int]:
    """Three tasks, 30 requests in packets of 5, windows of 4.   last: steps after which a task is over.

    Gives how often requests moved, too.
    """
    queues, rates, window, moves = Queues(times), (0.4, 0.2, 0.3), 4, 0
    x, wanted, flying, version = [start(m) for m in range(3)], {0: 10, 1: 5, 2: 15}, [0] * 3, [0] * 3
    size, later = {0: 2, 1: 1, 2: 3}, {0: 2, 1: 1, 2: 3}
    recent: list[list[Array]] = [[], [], []]
    spreads: list[list[float]] = [[], [], []]
    buffer: list[list[Array]] = [[], [], []]
    since = 0

    def send(m: int, number: int) -> None:
        for _ in range(number):
            i = next(clients)
            flying[m] += 1
            queues.put(i, m, x[m] - descend(x[m], i, task=m))

    def settle(requests: Mapping[int, int]) -> None:
        wanted.clear()
        wanted.update(requests)
        for m, number in wanted.items():
            later[m] = -(-number // 5)
            size[m] = size[m] if buffer[m] else later[m]

    for m in range(3):
        send(m, wanted[m])
    found = [(0.0, list(x))]
    while len(found) < events:
        m, delta = queues.pop()
        flying[m] -= 1
        since += 1
        recent[m].append(delta)
        if len(recent[m]) == window:
            del recent[m][0]
            spreads[m].append(unevenness(recent[m], rates[m]))
        buffer[m].append(delta)
        if len(buffer[m]) == size[m]:
            x[m] = x[m] - rates[m] * sum(buffer[m]) / size[m]
            buffer[m], size[m], version[m] = [], later[m], version[m] + 1
        due = since >= round(0.25 * len(wanted) * 30)
        if len(wanted) > 1 and due and min(version[k] for k in wanted) > window and all(spreads[k] for k in wanted):
            settle(packets(30, {k: float(np.mean(spreads[k])) for k in wanted}, 5))
            spreads, since, moves = [[], [], []], 0, moves + 1
        if version[m] == last.get(m):
            queues.drop(m)
            settle(parts(30, {k: float(r) for k, r in wanted.items() if k != m}))
            for k in wanted:
                send(k, wanted[k] - flying[k])
        else:
            under_way = flying[m] + 1
            send(m, 1 if under_way == wanted[m] else 0 if under_way > wanted[m] else 2)
        found.append((queues.clock.now, list(x)))
    return found, moves


@pytest.mark.parametrize("last", [{}, {0: 12}, {1: 9, 2: 14}])
def test_fedasts_demonstration(last: dict[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn_clients = sent_by_fedast(monkeypatch)
    monkeypatch.setattr(Quartics, "biases", ((DIM - 1, DIM),), raising=False)
    server = FedAST(
        requests=(10, 5, 15),
        ratio=5.0,
        lr=(0.4, 0.2, 0.3),
        versions=tuple(last.get(m, 10**9) for m in range(3)),
        allocation="demonstration",
        window=4,
        period=0.25,
    )
    times = Times(14, network=False)
    found = trail(
        server, SGD(LR, steps=STEPS), times, lambda world: [t.inner.model.vector for t in world.server.tasks], 3
    )
    wanted, moves = demonstration(times, iter(drawn_clients), last, len(found))
    agree(found, wanted)
    assert moves >= 3
