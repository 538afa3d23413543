"""Every formula of theory/ at numbers that are neither round nor equal, kept in formulas.txt.

That a number is right, other tests say; this one notices that it has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import golden
import numpy as np
import pytest
import torch
from worlds import Line

import offbeat as ob
from offbeat.algorithms.criteria import MessageCount, Period, Poisson
from offbeat.algorithms.defedavg import DeFedAvg, DeFedAvgIID
from offbeat.algorithms.fedast import FedAST
from offbeat.core.errors import SettingError
from offbeat.core.until import Until
from offbeat.local import MAML, Moreau
from offbeat.problems.absolute import Absolute
from offbeat.theory import (
    advice,
    area,
    bound,
    compare,
    defedavg,
    estimate,
    fedast,
    fedbuff,
    limits,
    persafl,
    ringmaster,
    schedules,
    times,
)

FILE = Path(__file__).with_name("formulas.txt")
RATES = [1.7, 0.6, 2.9]
SGD = ob.SGD(lr=0.07, steps=3)
BASE = persafl.FedAsyncProblem(0.83, 3, 2.0, 0.7, 0.9, 1.6)
TASK = fedast.FedASTTask(0.83, 3, 4, 9, 2.0, 0.7, 0.9, 1.6)
GIVEN: dict[str, Any] = {
    **{module.__name__.rpartition(".")[2]: module for module in (advice, area, bound, compare, defedavg, estimate)},
    **{module.__name__.rpartition(".")[2]: module for module in (fedast, fedbuff, limits, persafl, ringmaster)},
    "schedules": schedules,
    "times": times,
    "ob": ob,
    "RATES": RATES,
    "smooth": area.Smooth(0.37, 2.3, 3, 0.7, 1.3, 1.9),
    "single": area.Smooth(0.37, 2.3, 1, 0.7, 1.3, 1.9),
    "flat": area.Nonsmooth(1.3, 3, 0.7, 1.9),
    "events": area.Events.from_rates(RATES, 0.8),
    "buff": fedbuff.FedBuffProblem(0.83, 3, 2.0, 7, 0.7, 0.9, 1.6),
    "same": fedbuff.FedBuffProblem(0.83, 3, 2.0, 7, 0.7, 0.9, 1.6, uniform=True),
    "base": BASE,
    "unit": persafl.FedAsyncProblem(1.0),
    "maml": persafl.MamlProblem(BASE, 0.13, 1.7, 2.1, 0.6, 0.8, 1.1),
    "moreau": persafl.MoreauProblem(BASE, 7.1, 0.05, 2.1, 3.3),
    "alike": persafl.MoreauProblem(BASE, 7.1, 0.05, 2.1, None, True),
    "task": TASK,
    "prompt": fedast.FedASTTask(0.83, 3, 4, 9, 0.0, 0.7, 0.9, 1.6),
    "decoupled": defedavg.DeFedAvgProblem(0.83, 3, 4, 2.5, 0.7, 0.9, 1.2, 1.6),
    "fixed": ringmaster.FixedTimes(0.83, 0.7, 1.6),
    "quiet": ringmaster.FixedTimes(0.83, 0.0, 1.6),
    "arrivals": advice.Arrivals(RATES, 2),
    "some": advice.Arrivals(RATES, 2, 2),
    "queued": advice.Arrivals(RATES, 2, 7),
    "even": advice.Arrivals([1.3, 1.3, 1.3], 2),
    "H": [[1.0, 2.5], [3.0, 0.5], [2.0, 1.2]],
    "C": [[0.3, -1.0], [2.0, 1.5], [-0.7, 0.9]],
    "problem": ob.Quadratic(5, dim=3, convexity=0.3, noise=0.4, dtype=torch.float64),
    "many": ob.Quadratic(9, dim=3, convexity=0.3, noise=0.4, dtype=torch.float64),
    "absolute": Absolute(5, dtype=torch.float64),
    "line": Line([0.3, 1.7, -0.9]),
    "clock": ob.timing.Times(ob.timing.Exponential((1.7, 0.6, 2.9, 1.1, 0.8))),
    "delayed": ob.timing.Times(
        ob.timing.Exponential((1.7, 0.6, 2.9, 1.1, 0.8)),
        network=ob.timing.Delays(download=(0.1, 0.2), ratio=(4.0, 6.0)),
    ),
    "until": Until(updates=137),
    "SGD": SGD,
    "algorithms": {"a": ob.Algorithm(ob.FedBuff(4), SGD), "b": ob.Algorithm(ob.AREA(2), SGD)},
    **{each.__name__: each for each in (FedAST, DeFedAvg, DeFedAvgIID, MAML, Moreau, Until)},
    **{each.__name__: each for each in (MessageCount, Period, Poisson)},
    "bowl": lambda x: (x - 3.7) ** 2 + 0.1,
}
EXPRESSIONS: dict[str, Sequence[str]] = {
    "area": [
        "area.Events.from_rates(RATES, 0.8)",
        "area.Events.from_rates([], 0.8)",
        "(events.least, events.mean_inverse)",
        "area.Smooth(2.4, 2.3)",
        "area.Smooth(2.3, 2.3).gamma",
        "(smooth.gamma, single.gamma)",
        "area.largest_steps(smooth)",
        "area.largest_steps(single)",
        "(area.largest_step(smooth), area.largest_step(single))",
        "(area.schedule(smooth, events), area.schedule(single, events))",
        "[area.contraction(a, smooth, events) for a in (0.0, 0.013, 0.31)]",
        "area.contraction(-0.1, smooth, events)",
        "area.contraction(9.0, smooth, events)",
        "area.rate_terms(smooth, events, 731)",
        "area.leading(smooth, events, 731)",
        "area.leading(single, events, 53)",
        "area._constants(smooth)",
        "area.trajectory(smooth, events, 7)",
        "area.trajectory(single, events, 3)",
        "(flat.spread(True), flat.spread(False), area.delay(events))",
        "(area.rate_within(RATES), area.rate_within(RATES, 0.17), area.optimal_rate(RATES))",
        "area.nonsmooth_step(flat, events, 731)",
        "area.nonsmooth_step(flat, events, 731, printed=False)",
        "area.nonsmooth_bound(flat, events, 731)",
        "area.nonsmooth_bound(flat, events, 731, printed=False)",
        "round(area._lowest(bowl, 0.5, 20.0), 5)",
        "area.advise(flat, RATES, epsilon=0.3)",
        "area.advise(area.Nonsmooth(1.3, 1, 0.7, 1.9), RATES, 0.4, epsilon=0.3)",
    ],
    "area's advice": ["area.advise(smooth, RATES, epsilon=0.3)"],
    "bound": [
        "(bound.Bound({'a': 1.3, 'b': 2.4}).total, bound.Bound({'a': 1.3, 'b': 2.4}).largest)",
        "[bound.Condition('c', v, 2.0).holds for v in (1.9, 2.0, 2.0 + 1e-12, 2.1)]",
        "[bound.horizon(lambda T: 10.3 / T, e, least) for e in (0.5, 5.15, 20.0) for least in (1.0, 3.2, 17.0, 40.0)]",
        "[bound.horizon(lambda T: 10.0 / T, e) for e in (10.0, 5.0, 2.5, 2.6, 2.0)]",
        "bound.horizon(lambda T: 1.0 + 1.0 / T, 0.9)",
        "[bound.horizon(lambda T: 70.0 / T, 1.0, most=m) for m in (63.0, 64.0, 65.0, 127.0, 128.0)]",
        "bound.halve(lambda v: v['a'] ** 2 / v['b'] + v['c'] * 0, {'a': 1.3, 'b': 7.0, 'c': 2.1}, ('b',))",
        "bound.halve(lambda v: max(v['a'], 3 - v['a']), {'a': 5.0}, reach=4.0)",
        "bound.halve(lambda v: max(v['a'], 1.0), {'a': 2.0}, reach=2.0)",
        "bound.halve(lambda v: float('inf'), {'a': 5.0})",
        "bound.halve(lambda v: v['a'], {'a': 0.0})",
        "bound.halve(lambda v: 1.0 / v['a'], {'a': 1.0}, ('a',))",
        "bound.halve(lambda v: v['a'], {'a': 7.0}, ('a',))",
    ],
    "advice": [
        "[advice._text(v) for v in (0.5, 1.0, 1.5, 12345.0, 1e15, 2e16, float('inf'), 'x', -3.0)]",
        "advice.largest_term(bound.Bound({'a': 1.3, 'b': 2.4}))",
        "advice.largest_term(bound.Bound({'a': 0.0}))",
        "advice.Advice('t', {'a': 1.5, 'bcd': float('inf')}, bound.halve(lambda v: v['a'], {'a': 7.0}), ['n']).lines()",
        "advice.Advice('t', {'a': 1.5, 'bcd': float('inf')}, bound.halve(lambda v: v['a'], {'a': 7.0}), ['n']).plain()",
        "advice.Advice('t', {'a': 1.5}, [bound.Halving('b', 2.0, None)]).lines()",
        "[(a.concurrency, a.step_time, a.mean_staleness, a.imbalance) for a in (arrivals, some, queued, even)]",
        "[(a.worst_staleness(31.0), a.warnings()) for a in (arrivals, some, queued, even)]",
        "advice.Arrivals(RATES, 2, 3).concurrency",
        "advice.Arrivals([1.0, 1.1], 2).warnings()",
    ],
    "fedbuff": [
        "(fedbuff.local_step(buff, 731), fedbuff.least_steps(buff))",
        "(fedbuff.bound(buff, 731), fedbuff.bound(same, 731))",
        "fedbuff.advise(buff, arrivals, epsilon=0.3)",
        "fedbuff.advise(buff, even, staleness=3.0, epsilon=0.3)",
    ],
    "persafl": [
        "(persafl.local_step(0.83, 3, 731), persafl.least_steps(base), persafl.bound(base, 731))",
        "[(p.smoothness, p.bias, p.variance, p.diversity) for p in (maml, moreau, alike)]",
        "(maml.slope, persafl.maml_least_steps(maml), persafl.maml_bound(maml, 731))",
        "[persafl.maml_batch(maml, e) for e in (0.01, 0.3, 50.0)]",
        "[persafl.moreau_least_steps(moreau, p) for p in (True, False)]",
        "[persafl.moreau_bound(p, 731, q) for p in (moreau, alike) for q in (True, False)]",
        "(persafl.moreau_accuracy(moreau, 0.3), persafl._personal_steps(maml, 731))",
        "persafl.MoreauProblem(base, 5.8, 0.05, 2.1)",
        "[persafl.MoreauProblem(unit, 7.0, 0.05, 2.1, k).smoothness for k in (None, 1.01, 7.0)]",
        "persafl.MoreauProblem(unit, 7.0, 0.05, 2.1, 1.0)",
        "persafl.MoreauProblem(unit, 7.0, 0.05, 2.1, 7.1)",
        "persafl.advise(base, arrivals, epsilon=0.3)",
        "persafl.advise(maml, arrivals, staleness=2.0, epsilon=900.0)",
        "persafl.advise(maml, arrivals, staleness=2.0, epsilon=0.3)",
        "persafl.advise(alike, arrivals, staleness=2.0, epsilon=0.3)",
    ],
    "fedast": [
        "(fedast.server_step(task), fedast.client_step(task, 731), fedast.least_steps(task))",
        "(fedast.largest_client_step(task), fedast.largest_client_step(prompt), fedast.least_steps(prompt))",
        "fedast.conditions(task, 1.3, 0.02)",
        "fedast.rate_terms(task, 1.3, 0.02, 731)",
        "fedast.corollary_terms(task, 731)",
        "(fedast.bound(task, 1.3, 0.02, 731), fedast.corollary_bound(task, 731))",
        "fedast.bound(task, 1.3, 0.6, 731)",
        "(fedast.dynamic_conditions(task, 1.7, 1.3, 0.02), fedast.dynamic_conditions(prompt, 1.7, 1.3, 0.02))",
        "(fedast.dynamic_bound(task, 1.7, 1.3, 0.02, 731), fedast.dynamic_bound(task, 1.0, 1.3, 0.02, 731))",
        "fedast.dynamic_bound(task, 1.7, 1.3, 0.6, 731)",
        "fedast.dynamic_bound(task, 0.9, 1.3, 0.02, 731)",
        "fedast.objective([3.0, 4.0], [1.3, 0.7])",
        "(fedast.allocation(17, [1.3, 0.7, 0.0]), fedast.whole_allocation(17, [1.3, 0.7, 0.2]))",
        "fedast.allocation(17, [])",
        "fedast.allocation(17, [1.3, -0.7])",
        "fedast.allocation(17, [0.0, 0.0])",
        "fedast.allocation(0, [1.0])",
        "fedast.advise(task, arrivals, epsilon=0.3)",
        "fedast.advise_allocation(17, [1.3, 0.7, 0.2])",
    ],
    "defedavg": [
        "(decoupled.spread, defedavg.global_step(decoupled), defedavg.local_step(decoupled, 731))",
        "defedavg.DeFedAvgProblem(1.0, delay=0.9)",
        "defedavg.DeFedAvgProblem(1.0, sigma=0.0, gradient=0.0).spread",
        "(defedavg.conditions(decoupled, 731), defedavg.least_rounds(decoupled))",
        "(defedavg.bound(decoupled, 731), defedavg.bound(decoupled, 731, tight=True))",
        "(defedavg.iid_global_step(decoupled), defedavg.iid_local_step(decoupled, 731))",
        "(defedavg.iid_conditions(decoupled, 731), defedavg.iid_least_rounds(decoupled))",
        "(defedavg.iid_bound(decoupled, 731), defedavg.iid_bound(decoupled, 731, printed=True))",
        "defedavg.least_rounds(defedavg.DeFedAvgProblem(1e-9, gap=1e-9))",
        "[defedavg.drawn(n, k) for n, k in ((1, 1), (2, 1), (7, 3), (7, 7))]",
        "[defedavg.delay_bound(n, k, 731, 0.03) for n, k in ((1, 1), (2, 1), (7, 3), (7, 500))]",
        "defedavg.delay_bound(7, 3, 731, 1.0)",
        "defedavg.delay_bound(7, 3, 731, 0.0)",
        "defedavg.advise(decoupled, 7, 1.3, epsilon=3.0)",
        "defedavg.advise(decoupled, 7, 1.3, delay=1.0, epsilon=0.3, failure=0.03)",
        "defedavg.advise(decoupled, 7, delay=1.5, epsilon=40.0)",
    ],
    "ringmaster": [
        "[ringmaster.threshold(fixed, e) for e in (0.01, 0.245, 0.49, 3.0)]",
        "[ringmaster.ringmaster_step(p, 0.03, d) for p in (fixed, quiet) for d in (None, 1, 40)]",
        "[ringmaster.ringmaster_steps(p, 0.03) for p in (fixed, quiet)]",
        "[ringmaster.rennala_step(p, e) for p in (fixed, quiet) for e in (0.03, 3.0)]",
        "[ringmaster.rennala_steps(p, 0.03) for p in (fixed, quiet)]",
        "[ringmaster.fastest([1.7, 0.6, 2.9, 50.0], c) for c in (0, 1, 7.5, 400)]",
        "ringmaster.window_time([1.7, 0.6, 2.9], 7)",
        "[f(fixed, [1.7, 0.6, 2.9], 0.03) for f in (ringmaster.ringmaster_time, ringmaster.rennala_time)]",
        "[f(fixed, [1.7, 0.6], 0.03) for f in (ringmaster.optimal_order, ringmaster.asynchronous_order)]",
        "ringmaster.unlike_order(fixed, [1.7, 0.6, 2.9], 0.03)",
        "ringmaster.fastest([], 1)",
        "ringmaster.fastest([1.0, 0.0], 1)",
        "ringmaster.advise(fixed, RATES, 0.03)",
        "[ringmaster.advise(fixed, [10.0, 5.0, 1.0, 0.01], e).facts['clients that it needs'] for e in (0.1, 0.4)]",
    ],
    "times": [
        "[times.shares(RATES, c) for c in (None, 1, 2, 3)]",
        "[times.arrival_rate(RATES, c) for c in (None, 1, 2, 3)]",
        "times.shares(RATES, 4)",
        "times.arrival_rate(RATES, 0)",
        "times.shares([])",
        "times.shares([1.0, -1.0])",
        "[times.staleness(c, k) for c, k in ((7, 3), (1, 2), (0.5, 2))]",
        "[times.worst_staleness(RATES, 2, a, 0.01, c) for a in (0.5, 1, 700) for c in (None, 1, 2, 3)]",
        "[times.worst_staleness(RATES, 2, a, 0.2, c) for a in (0.5, 1, 700) for c in (None, 1, 2, 3)]",
        "(times.worst_staleness([1.3], 2, 700), times.worst_staleness([1.3, 1.3], 1, 700))",
        "(times.area_staleness(RATES, 0.8), times.buffer_time(RATES, 4), times.buffer_time(RATES, 4, 2))",
        "[times.synchronous_time(1.3, 5, f) for f in (None, 1, 3, 5)]",
        "times.synchronous_time(1.3, 5, 6)",
        "times.synchronous_time(1.3, 5, 0)",
        "(times.slowest_time(RATES, 40), times.slowest_time([1.3, 1.3, 2.0], 30))",
        "[times._symmetric([1.5, 2.0, 3.5], k) for k in (0, 1, 2, 3)]",
    ],
    "limits": [
        "limits.pull(H, 0.13, 3)",
        "limits.limit_point(H, C)",
        "limits.limit_point(H, C, [3.0, 0.0, 1.5], 0.13, 3)",
        "limits.limit_point(H, C, [3.0, 1.5])",
        "limits.limit_point(H, C, [3.0, -1.0, 1.0])",
        "limits.limit_point(H, C, [0.0, 0.0, 0.0])",
        "limits.limit_point(H, C[:2])",
        "limits.limit_point([1.0, 2.0], [1.0, 2.0])",
        "(limits.bias(H, C, [3.0, 1.0, 1.5]), limits.bias(H, C, [3.0, 1.0, 1.5], 0.13, 3))",
    ],
    "estimate": [
        "estimate.constants(problem, 2, draws=5, iterations=9, seed=3)",
        "estimate.constants(many, 2, most=4, draws=5, iterations=9, seed=3)",
        "estimate.constants(many, 2, most=4, draws=5, iterations=9, seed=3).lines()",
        "estimate.constants(line, None, draws=3).lines()",
        "[estimate._some(many, m, 1) for m in (1, 2, 3, 8, 9, 10)]",
        "estimate.rates(clock.bind(5, 0), 5, 3)",
        "estimate.rates(delayed.bind(5, 0), 5, 3, 1000, 2000)",
        "estimate.rates(None, 5)",
        "(str(estimate.Estimate(1.23456, 0.0)), str(estimate.Estimate(1.23456, 0.0321)))",
    ],
    "schedules": [
        "schedules.Theorem7(2.3, 0.37).settled(3, events, until)",
        "schedules.Theorem8(1.3, 0.7, 1.9).settled(3, events, Until(iterations=731))",
        "schedules.Theorem8(1.3, 0.7, 1.9).settled(3, events, until)",
        "schedules.Theorem8(1.3)(4)",
        "schedules.Theorem7().of(problem)",
        "schedules.Theorem8(distance=1.0).of(problem)",
        "[schedules.server_rate(w, 5.2) for w in (MessageCount(4), Period(1.3), Poisson(0.7))]",
        "schedules.server_rate(Poisson('optimal'), 5.2)",
        "schedules.settle(ob.Algorithm(ob.AREA(4, schedules.Theorem7()), SGD), [problem], clock, until, 0).server",
        "schedules.covered(ob.Algorithm(ob.AREA(4), SGD), ob.SGD(lr=0.1, accumulate=2))",
        "schedules.covered(ob.Algorithm(ob.AREA(4), SGD), ob.SGD(lr=0.1, batch=3))",
    ],
    "compare": [
        "compare.advise(problem, ob.Algorithm(ob.AREA(4), SGD), clock, until)",
        "compare.advise(problem, ob.Algorithm(ob.AREA(Poisson(0.7)), SGD), delayed, Until(time=41.0))",
        "compare.advise(absolute, ob.Algorithm(ob.AREA(Period(1.3)), SGD), clock, Until(iterations=731))",
        "compare.advise(problem, ob.Algorithm(ob.FedBuff(4, concurrency=3), SGD), clock, Until(versions=29))",
        "compare.advise(problem, ob.Algorithm(ob.FedBuff(Period(1.3)), SGD), clock, until)",
        "compare.advise(problem, ob.Algorithm(ob.FedAsync(0.3), SGD), clock, Until(iterations=731))",
        "compare.advise(problem, ob.Algorithm(ob.FedAsync(0.3), MAML(lr=0.07, alpha=0.02)), clock, until)",
        "compare.advise(problem, ob.Algorithm(ob.FedAsync(0.3), Moreau(lr=0.07, penalty=90.0)), clock, until)",
        "compare.advise(problem, ob.Algorithm(DeFedAvg(3), SGD), clock, until)",
        "compare.advise(problem, ob.Algorithm(DeFedAvgIID(3), SGD), clock, until)",
        "compare.advise([problem, problem], ob.Algorithm(FedAST(9, size=4), SGD), clock, until)",
        "compare.advise([problem, problem], ob.Algorithm(FedAST(9, ratio=4.0), SGD), clock, until)",
        "compare.advise(problem, ob.Algorithm(ob.FedAvg(), SGD), clock, until)",
        "compare.report([problem], algorithms, clock, until)",
        "compare.report([problem, many], algorithms, clock, until)",
        "[compare._count(u, 1.3, 0.7, 2.1) for u in (Until(time=9.0), Until(updates=31), Until(versions=31))]",
        "[compare._count(u, 1.3, 0.7, 2.1) for u in (Until(iterations=31), Until(time=0.1), Until(9.0, updates=5))]",
    ],
}


def lines(name: str, value: Any) -> Iterator[str]:
    """A value as lines: one for each number or text that it is made of, under its name."""
    if isinstance(value, advice.Advice):
        yield from lines(name, [*value.lines(), *(f"{change.name} = {change.to!r}" for change in value.changes)])
    elif isinstance(value, compare.Comparison):
        yield from lines(name, [value.theorem, *value.lines()])
    elif is_dataclass(value) and not isinstance(value, type):
        yield from (line for f in fields(value) for line in lines(f"{name}.{f.name}", getattr(value, f.name)))
    elif isinstance(value, Mapping):
        yield from (line for key, each in value.items() for line in lines(f"{name}.{key}", each))
    elif isinstance(value, list | tuple | np.ndarray):
        yield from (line for i, each in enumerate(value) for line in lines(f"{name}.{i}", each))
    else:
        yield f"{name} = {float(value)!r}" if isinstance(value, float) else f"{name} = {value}"


def found(expression: str) -> Iterator[str]:
    yield f">>> {expression}"
    try:
        yield from lines("", eval(expression, GIVEN))
    except (SettingError, ValueError) as error:
        yield f" {type(error).__name__}: {error}"


@pytest.mark.parametrize("module", EXPRESSIONS)
def test_no_formula_gives_another_number(module: str) -> None:
    golden.check(FILE, module, [line for expression in EXPRESSIONS[module] for line in found(expression)])
