"""Every algorithm, for the checks that all of them have to pass. A new algorithm is one more row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from offbeat.algorithms import (
    ACE,
    ACED,
    AFACD,
    AFACS,
    AREA,
    CA2FL,
    FADAS,
    MIFA,
    SCAFFOLD,
    AsFedAvg,
    AsGrad,
    AsyncCommSGD,
    AsyncDiLoCo,
    AsySG,
    Decay,
    DecoupledDiLoCo,
    DeFedAvg,
    DeFedAvgIID,
    DelayAdaptive,
    Favano,
    FedAST,
    FedAsync,
    FedAsyncMixing,
    FedAvg,
    FedBuff,
    FedCompass,
    FedFa,
    FedFix,
    Hinge,
    LocalOnly,
    Malenia,
    MindFlayer,
    MSync,
    OneByOne,
    Period,
    Poisson,
    Polynomial,
    Port,
    QuAFL,
    Rennala,
    Ringleader,
    Ringmaster,
    SyncBayesST,
    SyncST,
    SyncUCBST,
)
from offbeat.algorithms.optimisers import DelayedNesterov, FedNesterov, HeLoCo, LookAhead
from offbeat.core.local import Local
from offbeat.core.server import Server
from offbeat.local import MAML, SGD, Gradient, Moreau, Prox, Scaffold
from offbeat.local.compress import QSGD, LargestK, Quantise, RandomK, Signs
from offbeat.privacy.robust import Robust
from offbeat.privacy.rules import NormBound

N = 8  # clients
SMALL = SGD(lr=0.02)  # one local step: the fixed point is the optimum itself
META = MAML(lr=0.02, alpha=0.02)
ENVELOPE = Moreau(lr=0.02, penalty=50.0, inner=3)
LOCAL = SGD(lr=0.01, steps=3)  # several: client i pulls with 1 − (1 − lr·h_i)^steps instead of lr·h_i


@dataclass(frozen=True)
class Row:
    """One algorithm, and how near to the optimum it has to come, as a share of the way there.

    AREA and everyone's FedAvg come to rest. The others keep a constant step size and move by single clients'
    results, so they jitter around the optimum by about step · heterogeneity, here up to 1 % of the way; where
    there are local steps, the point they jitter around is itself off by about lr · steps. MAML's and Moreau's losses
    have optima of their own, off by about 2·alpha and 1/penalty of the heterogeneity.
    own: what it trains are the clients' own models, each with an optimum of its own; the server's does not move.
    """

    name: str
    server: Server[Any]
    local: Local = SMALL
    within: float = 0.01
    own: bool = False


TABLE = [
    Row("area every message", AREA(size=1), SGD(lr=0.1), within=0.003),
    Row("area every n messages", AREA(size=N), SGD(lr=0.1), within=0.003),
    Row("area by period", AREA(size=Period(1.0)), SGD(lr=0.1), within=0.003),
    Row("area by poisson", AREA(size=Poisson(1.0)), SGD(lr=0.1), within=0.003),
    Row("area local steps", AREA(size=4), SGD(lr=0.03, steps=3), within=0.003),
    Row("area decay", AREA(size=4, schedule=Decay(c=300.0, d=1000.0)), SMALL, within=0.003),
    Row("area sampled", AREA(size=4, concurrency=4), SGD(lr=0.1), within=0.003),
    Row("area robust", AREA(size=4, guard=Robust(NormBound(1e3))), SGD(lr=0.1), within=0.003),
    Row("fedbuff client-driven", FedBuff(size=4)),
    Row("fedbuff robust", FedBuff(size=4, guard=Robust(NormBound(1e3), one_slot=True))),
    Row("fedbuff local steps", FedBuff(size=4), LOCAL),
    Row("fedbuff sampled", FedBuff(size=4, concurrency=5)),
    Row("fedbuff polynomial", FedBuff(size=4, weight=Polynomial(0.5))),
    Row("fedbuff by period", FedBuff(size=Period(0.5))),
    Row("fedbuff by poisson", FedBuff(size=Poisson(2.0))),
    Row("fedasync", FedAsync(lr=0.3)),
    Row("fedasync sampled", FedAsync(lr=0.3, concurrency=5)),
    Row("fedasync polynomial", FedAsync(weight=Polynomial(0.5))),
    Row("fedasync hinge", FedAsync(lr=0.5, weight=Hinge(slope=1.0, after=4.0))),
    Row("fedasync local steps", FedAsync(lr=0.3), LOCAL),
    Row("fedasync mixing", FedAsyncMixing(mixing=0.1), SGD(lr=0.1)),
    Row("fedasync mixing polynomial", FedAsyncMixing(mixing=0.3, weight=Polynomial(0.5)), SGD(lr=0.1)),
    Row("asfedavg", AsFedAvg(size=N), SGD(lr=0.1)),
    Row("asfedavg by period", AsFedAvg(size=Period(2.0)), SGD(lr=0.1)),
    Row("fedavg everyone", FedAvg(), SGD(lr=0.1), within=1e-6),
    Row("fedavg sampled", FedAvg(sampled=4)),
    Row("fedavg first", FedAvg(sampled=5, first=3)),
    Row("fedprox", FedAvg(), Prox(lr=0.1, steps=2)),
    Row("scaffold", SCAFFOLD(sampled=4), Scaffold(lr=0.05, steps=2)),
    Row("scaffold option 1", SCAFFOLD(sampled=4), Scaffold(lr=0.05, steps=2, option=1)),
    Row("scaffold first", SCAFFOLD(sampled=5, first=3), Scaffold(lr=0.05, steps=2)),
    Row("asysg", AsySG(size=4, lr=0.02), Gradient()),
    Row("ringmaster", Ringmaster(threshold=8, lr=0.005), Gradient()),
    Row("ringmaster with stops", Ringmaster(threshold=4, lr=0.005, stop=True), Gradient()),
    Row("ringmaster sampled", Ringmaster(threshold=4, lr=0.005, stop=True, concurrency=5), Gradient()),
    Row("rennala", Rennala(size=4, lr=0.05), Gradient()),
    Row("rennala with stops", Rennala(size=4, lr=0.05, stop=True), Gradient()),
    Row("malenia", Malenia(lr=0.5), Gradient(), within=1e-6),
    Row("malenia larger batches", Malenia(size=3 * N, lr=0.8), Gradient(), within=1e-6),
    Row("malenia with stops", Malenia(lr=0.5, stop=True), Gradient(), within=1e-6),
    Row("ringleader", Ringleader(lr=0.05), Gradient(), within=1e-6),
    Row("mindflayer", MindFlayer(limit=1.0, trials=2, lr=0.1), Gradient()),
    Row("mindflayer expected", MindFlayer(limit=1.0, trials=2, lr=0.1, expected=10.0), Gradient()),
    Row("defedavg", DeFedAvg(sampled=4)),
    Row("defedavg drawn", DeFedAvg(sampled=4, renew="drawn")),
    Row("defedavg-iid", DeFedAvgIID(size=4)),
    Row("favano", Favano(sampled=3, period=1.0), SGD(lr=0.05, steps=4)),
    Row("quafl", QuAFL(sampled=3, period=1.0), SGD(lr=0.05, steps=4)),
    Row("mifa", MIFA(size=4)),
    Row("ca2fl", CA2FL(size=4)),
    Row("ace", ACE(lr=0.3)),
    Row("ace sampled", ACE(lr=0.3, concurrency=4)),
    Row("aced", ACED(lr=0.3)),
    Row("aced bound", ACED(lr=0.3, bound=16)),
    Row("afa-cd", AFACD(size=4, lr=0.02)),
    Row("afa-cd local steps", AFACD(size=4, lr=0.03), LOCAL),
    Row("afa-cs", AFACS(size=4, lr=0.02)),
    Row("fadas", FADAS(size=4, lr=0.03)),
    Row("fadas delay-adaptive", FADAS(size=N, lr=0.05, threshold=1)),
    Row("delay-adaptive", DelayAdaptive(lr=0.01), Gradient()),
    Row("delay-adaptive smoothness", DelayAdaptive(lr=0.01, threshold=2.0, smoothness=5.0), Gradient()),
    Row("asgrad pure", AsGrad(order="pure", lr=0.01), Gradient()),
    Row("asgrad pure waiting", AsGrad(order="pure", size=4, lr=0.02), Gradient()),
    Row("asgrad random", AsGrad(order="random", lr=0.01), Gradient()),
    Row("asgrad random waiting", AsGrad(order="random", size=4, lr=0.02), Gradient()),
    Row("asgrad shuffled", AsGrad(order="shuffled", lr=0.01), Gradient()),
    Row("asgrad shuffled waiting", AsGrad(order="shuffled", size=4, lr=0.02), Gradient()),
    Row("fedfix", FedFix(period=0.5), SGD(lr=0.02)),
    Row("fedfa", FedFa(size=N), SGD(lr=0.1)),
    Row("fedcompass", FedCompass(least=1, most=2), SGD(lr=0.1)),
    Row("fedcompass groups", FedCompass(least=2, most=6, lateness=3.0), SGD(lr=0.025)),
    Row("m-sync", MSync(first=5), SGD(lr=0.02)),
    Row("asysg capped", AsySG(size=4, lr=0.02, cap=2.0), Gradient()),
    Row("favano stochastic", Favano(sampled=3, period=1.0, normalise="stochastic"), SGD(lr=0.05, steps=4)),
    Row("persafl-maml", FedAsync(lr=0.3), META),
    Row("persafl-maml by differences", FedAsync(lr=0.3), replace(META, hessian="difference")),
    Row("persafl-maml under fedbuff", FedBuff(size=4), META),
    Row("persafl-maml under area", AREA(size=4), replace(META, lr=0.1), within=0.003),
    Row("persafl-me", FedAsync(lr=0.3), ENVELOPE),
    Row("persafl-me with momentum", FedAsync(lr=0.3), replace(ENVELOPE, momentum=0.5)),
    Row("persafl-me under fedbuff", FedBuff(size=4), ENVELOPE),
    Row("persafl-me under area", AREA(size=4), replace(ENVELOPE, lr=0.1), within=0.003),
    Row("per-fedavg", FedAvg(sampled=4), META),
    Row("pfedme", FedAvg(sampled=4), ENVELOPE),
    Row("async diloco", AsyncDiLoCo(server=FedNesterov(0.5, lr=0.1))),
    Row("delayed nesterov", AsyncDiLoCo(server=DelayedNesterov(0.5, size=4, activation=0.1))),
    Row("dn-dylu", AsyncDiLoCo(server=DelayedNesterov(0.5, size=4), dynamic=True), LOCAL, within=0.02),
    Row("delayed nesterov grace", AsyncDiLoCo(server=DelayedNesterov(0.5, size=4), grace=0.1), LOCAL),
    Row("async diloco grace sampled", AsyncDiLoCo(server=FedNesterov(0.5, lr=0.1), grace=0.1, concurrency=4)),
    Row("momentum look-ahead", AsyncDiLoCo(server=LookAhead(0.5, lr=0.3))),
    Row("heloco", AsyncDiLoCo(server=HeLoCo(0.5, lr=0.2), ahead=True), within=0.02),
    Row("decoupled diloco", DecoupledDiLoCo(server=FedNesterov(0.5, lr=0.5), quorum=4, grace=0.2)),
    Row("decoupled diloco sampled", DecoupledDiLoCo(quorum=2, grace=0.1, concurrency=4)),
    Row("decoupled diloco radial", DecoupledDiLoCo(quorum=4, grace=0.2, radial=True), within=0.02),
    Row("port", Port(size=3, bound=2, similarity=0.5), SMALL),
    Row("async-comm-sgd", AsyncCommSGD(least=1, most=3), SGD(lr=0.02), within=0.02),
    Row("async-comm-sgd sampled", AsyncCommSGD(most=1, concurrency=4), SGD(lr=0.05)),
    Row("fedbuff top-k", FedBuff(size=4), replace(SMALL, compress=LargestK(0.4, feedback=True)), within=0.02),
    Row("fedbuff random-k", FedBuff(size=4), replace(SMALL, compress=RandomK(0.8)), within=0.03),
    Row("fedasync signs", FedAsync(lr=0.3), replace(SMALL, compress=Signs(feedback=True)), within=0.02),
    Row("area qsgd", AREA(size=4), SGD(lr=0.1, compress=QSGD(4)), within=0.003),
    Row("area top-k", AREA(size=4), SGD(lr=0.1, compress=LargestK(0.4)), within=0.003),
    Row("mifa quantise", MIFA(size=4), replace(SMALL, compress=Quantise(4, feedback=True)), within=0.02),
    Row("scaffold top-k", SCAFFOLD(sampled=4), Scaffold(0.05, steps=2, compress=LargestK(0.4, feedback=True))),
    Row("local-only", LocalOnly(), SGD(lr=0.1), own=True),
    Row("local-only moreau", LocalOnly(), replace(ENVELOPE, lr=0.1), own=True),
]


@dataclass(frozen=True)
class SeveralRow:
    """One algorithm; how near to the optimum of every task `updates` results bring it, as a share of the way there."""

    name: str
    server: Server[Any]
    within: float = 0.02
    updates: int = 4000
    lr: float = 0.1


DYNAMIC: dict[str, Any] = {"allocation": "dynamic", "window": 3, "period": 0.3}
SEVERAL = [
    SeveralRow("fedast", FedAST(requests=9, ratio=1.5, lr=1.0)),
    SeveralRow("fedast dynamic", FedAST(requests=12, ratio=2.0, lr=1.0, **DYNAMIC)),
    SeveralRow(
        "fedast demonstration", FedAST(requests=12, ratio=2.0, lr=1.0, **{**DYNAMIC, "allocation": "demonstration"})
    ),
    SeveralRow("fedast weighed by rounds", FedAST(requests=9, ratio=1.5, lr=1.0, weights="sent", **DYNAMIC)),
    SeveralRow("fedast no buffer", FedAST(requests=9, size=1, lr=0.3)),
    SeveralRow("fedast area", FedAST(requests=9, aggregate=AREA(size=3), **DYNAMIC), within=0.01, lr=0.4),
    SeveralRow("fedast fedbuff weights", FedAST(requests=9, ratio=1.5, aggregate=FedBuff(weight=Polynomial(0.5)))),
    SeveralRow("fedast fedbuff by period", FedAST(requests=9, aggregate=FedBuff(size=Period(1.0)))),
    SeveralRow("fedast fedasync", FedAST(requests=9, aggregate=FedAsync(lr=0.3), **DYNAMIC)),
    SeveralRow("one by one", OneByOne(requests=6, size=3, lr=1.0)),
    SeveralRow("sync-st", SyncST(sampled=8)),
    SeveralRow("sync-st first", SyncST(sampled=8, first=1)),
    SeveralRow("sync-st stop", SyncST(sampled=8, first=1, stop=True)),
    SeveralRow("sync-ucb-st", SyncUCBST(sampled=8, explore=1.0)),
    SeveralRow("sync-ucb-st first", SyncUCBST(sampled=8, first=1)),
    SeveralRow("sync-bayes-st", SyncBayesST(sampled=8, candidates=4, memory=16), within=0.1, updates=1200),
    SeveralRow(
        "sync-bayes-st first", SyncBayesST(sampled=8, first=1, candidates=4, memory=16), within=0.1, updates=1200
    ),
]
