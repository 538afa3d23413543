"""What comes with offbeat, by the names that experiment files use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from offbeat import algorithms as servers, local as trainers, timing
from offbeat.algorithms.criteria import Criterion, MessageCount, Period, Poisson
from offbeat.algorithms.flow import Flow
from offbeat.algorithms.optimisers import (
    DelayedNesterov,
    FedAdagrad,
    FedAdam,
    FedAMSGrad,
    FedAvgM,
    FedNesterov,
    FedYogi,
    HeLoCo,
    LookAhead,
)
from offbeat.algorithms.schedules import Decay, Schedule, Steady
from offbeat.algorithms.staleness import Equal, Hinge, Polynomial, Staleness
from offbeat.core import names
from offbeat.core.compressor import Compressor
from offbeat.core.local import Local
from offbeat.core.names import register
from offbeat.core.optimiser import Optimiser, ServerOptimiser
from offbeat.core.server import Server
from offbeat.data.base import Dataset
from offbeat.data.facts import FACTS
from offbeat.data.readers import load
from offbeat.data.splits import IID, Classes, Dirichlet, NearlyIID, Owners, Split
from offbeat.data.texts import plays, texts, topics
from offbeat.experiment import schema
from offbeat.local import compress, optimisers as local_optimisers, schedules as local_schedules
from offbeat.local.loop import loop_or_factory
from offbeat.local.schedules import LocalSchedule
from offbeat.models import build as _models  # noqa: F401  registers the models
from offbeat.privacy import attack, rules
from offbeat.privacy.attack import Kind, own_attack
from offbeat.privacy.dp_sgd import DPSGD
from offbeat.privacy.rules import Rule
from offbeat.problems.metrics import Score
from offbeat.problems.objective import LOSSES, Objective
from offbeat.problems.scoring import NAMED
from offbeat.theory.schedules import Theorem7, Theorem8
from offbeat.timing.network import Network
from offbeat.timing.parts import Delay
from offbeat.timing.presence import Attendance
from offbeat.timing.speeds import Speeds


@dataclass(frozen=True)
class Recipe:
    """A name for a server together with what makes it this algorithm.

    local: the local trainer that it needs; None: any that fits.   preset: settings, unless they are given.
    pooled: trained on everybody's data as one client's.   text: its line, if that is not the server's own.
    """

    server: type[Server[Any]]
    local: type[Local] | None = None
    preset: Mapping[str, Any] = field(default_factory=dict)
    pooled: bool = False
    text: str = ""

    @property
    def line(self) -> str:
        """What it is, in a line, and its settings."""
        own = ", ".join(setting.name for setting in schema.settings(self.server))
        return f"{self.text or schema.line(self.server)}: {own}"


@dataclass(frozen=True)
class BuiltIn:
    """A data set that offbeat can read."""

    name: str
    line: str

    def __call__(self) -> Dataset:
        return load(self.name)


register(
    Server,
    {
        "area": Recipe(servers.AREA),
        "fedbuff": Recipe(servers.FedBuff),
        "fedasync": Recipe(servers.FedAsync),
        "fedasync-mixing": Recipe(servers.FedAsyncMixing),
        "as-fedavg": Recipe(servers.AsFedAvg),
        "asysg": Recipe(servers.AsySG),
        "ringmaster": Recipe(servers.Ringmaster),
        "ringleader": Recipe(servers.Ringleader),
        "rennala": Recipe(servers.Rennala),
        "malenia": Recipe(servers.Malenia),
        "mindflayer": Recipe(servers.MindFlayer),
        "defedavg-niid": Recipe(servers.DeFedAvg),
        "defedavg-iid": Recipe(servers.DeFedAvgIID),
        "favano": Recipe(servers.Favano),
        "quafl": Recipe(servers.QuAFL),
        "mifa": Recipe(servers.MIFA),
        "ca2fl": Recipe(servers.CA2FL),
        "ace": Recipe(servers.ACE),
        "aced": Recipe(servers.ACED),
        "afa-cd": Recipe(servers.AFACD),
        "afa-cs": Recipe(servers.AFACS),
        "fadas": Recipe(servers.FADAS),
        "delay-adaptive": Recipe(servers.DelayAdaptive),
        "asgrad": Recipe(servers.AsGrad),
        "fedfix": Recipe(servers.FedFix),
        "fedfa": Recipe(servers.FedFa),
        "fedcompass": Recipe(servers.FedCompass),
        "port": Recipe(servers.Port),
        "async-comm-sgd": Recipe(servers.AsyncCommSGD),
        "persafl-maml": Recipe(servers.FedAsync, trainers.MAML, text="PersA-FL on the MAML loss: FedAsync with maml"),
        "persafl-me": Recipe(
            servers.FedAsync, trainers.Moreau, text="PersA-FL on the Moreau envelope: FedAsync with moreau"
        ),
        "async-diloco": Recipe(
            servers.AsyncDiLoCo,
            preset={"server": {"nesterov": {"beta": 0.9, "lr": 0.07}}},
            text="an outer Nesterov step for every update",
        ),
        "dn-dylu": Recipe(
            servers.AsyncDiLoCo,
            preset={"server": {"delayed-nesterov": {"beta": 0.9, "lr": 0.7, "size": 4}}, "dynamic": True},
            text="asynchronous DiLoCo with delayed Nesterov and dynamic local updates",
        ),
        "mla": Recipe(
            servers.AsyncDiLoCo,
            preset={"server": {"look-ahead": {"beta": 0.9, "lr": 0.1}}},
            text="asynchronous DiLoCo with momentum look-ahead",
        ),
        "heloco": Recipe(
            servers.AsyncDiLoCo,
            preset={"server": {"heloco": {"beta": 0.9, "lr": 0.1}}, "ahead": True},
            text="asynchronous DiLoCo whose updates are corrected by the momentum",
        ),
        "decoupled-diloco": Recipe(
            servers.DecoupledDiLoCo,
            preset={"server": {"nesterov": {"beta": 0.9, "lr": 0.7}}},
            text="an outer Nesterov step for a quorum of clients and those that report soon after",
        ),
        "fedavg": Recipe(servers.FedAvg),
        "m-sync": Recipe(servers.MSync),
        "fedprox": Recipe(servers.FedAvg, trainers.Prox, text="FedAvg whose clients stay near what they were sent"),
        "scaffold": Recipe(servers.SCAFFOLD, trainers.Scaffold),
        "per-fedavg": Recipe(servers.FedAvg, trainers.MAML, text="FedAvg on the MAML loss"),
        "pfedme": Recipe(servers.FedAvg, trainers.Moreau, text="FedAvg on the Moreau envelope; lr is its β"),
        "diloco": Recipe(
            servers.FedAvg,
            trainers.AdamW,
            preset={"server": {"nesterov": {"beta": 0.9, "lr": 0.7}}},
            text="FedAvg with local AdamW and outer Nesterov",
        ),
        "local-only": Recipe(servers.LocalOnly),
        "centralised": Recipe(servers.FedAvg, pooled=True, text="one client with all data, for reference"),
        "fedast": Recipe(servers.FedAST),
        "fedast-nobuffer": Recipe(
            servers.FedAST, preset={"size": 1, "lr": 0.038}, text="FedAST with a server step for every update"
        ),
        "one-by-one": Recipe(servers.OneByOne),
        "sync-st": Recipe(servers.SyncST),
        "sync-ucb-st": Recipe(servers.SyncUCBST),
        "sync-bayes-st": Recipe(servers.SyncBayesST),
    },
    "offbeat.algorithms",
)
register(
    Flow,  # servers that can serve one of many tasks
    {
        "fedbuff": servers.FedBuff,
        "area": servers.AREA,
        "fedasync": servers.FedAsync,
        "fedasync-mixing": servers.FedAsyncMixing,
        "as-fedavg": servers.AsFedAvg,
        "asysg": servers.AsySG,
    },
)
register(
    Local,
    {
        "sgd": trainers.SGD,
        "adam": trainers.Adam,
        "adamw": trainers.AdamW,
        "prox": trainers.Prox,
        "gradient": trainers.Gradient,
        "scaffold": trainers.Scaffold,
        "maml": trainers.MAML,
        "moreau": trainers.Moreau,
        "dp-sgd": DPSGD,
    },
    "offbeat.locals",
    functions=loop_or_factory,
)
register(
    Optimiser,
    {"momentum": local_optimisers.Momentum, "adam": local_optimisers.AdamRule, "adamw": local_optimisers.AdamWRule},
    "offbeat.optimisers",
)
register(
    Compressor,
    {
        "top-k": compress.LargestK,
        "random-k": compress.RandomK,
        "sign": compress.Signs,
        "qsgd": compress.QSGD,
        "quantise": compress.Quantise,
    },
    "offbeat.compressors",
)
register(
    LocalSchedule,
    {
        "cosine": local_schedules.CosineDecay,
        "linear": local_schedules.LinearDecay,
        "step": local_schedules.StepDecay,
        "warmup": local_schedules.Warmup,
    },
)
register(
    ServerOptimiser,
    {
        "momentum": FedAvgM,
        "nesterov": FedNesterov,
        "delayed-nesterov": DelayedNesterov,
        "look-ahead": LookAhead,
        "heloco": HeLoCo,
        "adagrad": FedAdagrad,
        "adam": FedAdam,
        "yogi": FedYogi,
        "amsgrad": FedAMSGrad,
    },
    "offbeat.server_optimisers",
)
register(
    Rule,
    {
        "median": rules.Median,
        "trimmed-mean": rules.TrimmedMean,
        "krum": rules.Krum,
        "multi-krum": rules.MultiKrum,
        "geometric-median": rules.GeometricMedian,
        "centered-clipping": rules.CenteredClipping,
        "norm-bound": rules.NormBound,
    },
    "offbeat.rules",
)
register(
    Kind,
    {
        "gaussian-noise": attack.GaussianNoise,
        "sign-flip": attack.SignFlip,
        "scaled": attack.ManyTimes,
        "a-little-is-enough": attack.ALittleIsEnough,
        "inner-product": attack.InnerProduct,
        "label-flip": attack.LabelFlip,
        "backdoor": attack.Backdoor,
        "fast": attack.Fast,
    },
    "offbeat.attacks",
    functions=own_attack,
)
register(Criterion, {"messages": MessageCount, "period": Period, "poisson": Poisson})
register(Staleness, {"constant": Equal, "polynomial": Polynomial, "hinge": Hinge})
register(Schedule, {"constant": Steady, "decay": Decay, "theorem7": Theorem7, "theorem8": Theorem8})
register(
    Split,
    {"dirichlet": Dirichlet, "classes": Classes, "iid": IID, "nearly-iid": NearlyIID, "owners": Owners},
    "offbeat.splits",
)
register(
    Delay,
    {
        "exponential": timing.Exponential,
        "shifted_exponential": timing.ShiftedExponential,
        "constant": timing.Constant,
        "uniform": timing.Uniform,
        "lognormal": timing.LogNormal,
        "pareto": timing.Pareto,
        "flops": timing.Flops,
        "phone_training": timing.PhoneTraining,
    },
    "offbeat.timing",
)
register(
    Network,
    {
        "bandwidth": timing.Bandwidth,
        "delays": timing.Delays,
        "links": timing.Links,
        "phone_network": timing.PhoneNetwork,
    },
)
register(
    Speeds,
    {
        "classes": timing.SpeedClasses,
        "uniform": timing.Spread,
        "factors": timing.Factors,
        "phones": timing.PhoneSpeeds,
    },
)
register(Attendance, {"diurnal": timing.Diurnal, "on_off": timing.OnOff, "intervals": timing.Trace})
register(timing.Normal, {"normal": timing.Normal})
register(timing.Timing, {"times": timing.Times})


def file(path: str) -> Path:
    """A Parquet or CSV file, or a folder of images by class; also looked up next to the experiment file."""
    return names.placed(path)


register(Dataset, {"file": file, "texts": texts, "plays": plays, "topics": topics})
register(
    Dataset,
    {name: BuiltIn(name, facts.line) for name, facts in FACTS.items()},
    "offbeat.data",
)


register(Objective, LOSSES, "offbeat.losses")
register(Score, NAMED, "offbeat.metrics")


def catalogue() -> dict[str, dict[str, str]]:
    """All that a file can name: shelf -> name -> what it is, in a line."""
    own = {"package.module:Class": "your own: a frozen dataclass, whose fields are its settings"}
    parts = {
        "available": "share of the clients that take new work at any moment: 0.3",
        "dropout": "probability that a job's result is lost: 0.05",
        "trace": 'recorded jobs and presence, replayed: { file = "trace.csv", period = 86400 }',
        "speeds": "how much slower clients compute: one of " + ", ".join(names.members(Speeds)),
    }
    times = {name: line for base in (Delay, Network, Attendance) for name, line in _lines(base).items()}
    problems = {
        "quadratic": "n quadratics with a known optimum",
        "absolute": "n sums of absolute values with a known optimum: convex, not smooth",
        "own": "data that the clients of a real run bring",
    }
    return {
        "algorithms": {**_lines(Server), **own},
        "server-optimisers": {**_lines(ServerOptimiser), **own},
        "locals": {
            **_lines(Local),
            **own,
            "package.module:function": "your own training loop: a function train(model, data, job) in plain PyTorch",
        },
        "optimisers": {**_lines(Optimiser), **own},
        "schedules": {**_lines(LocalSchedule), **own},
        "compressors": {**_lines(Compressor), **own},
        "models": {
            **_lines(nn.Module),
            "package.module:factory": "your own: any callable that returns a torch.nn.Module",
        },
        "data": {**_lines(Dataset), **problems},
        "losses": {
            **_lines(Objective),
            "package.module:function": "your own: (output, target) or (model, batch)",
        },
        "metrics": {**_lines(Score), "package.module:name": "your own: a Score, a torchmetric or f(outputs, targets)"},
        "rules": {**_lines(Rule), **own},
        "attacks": {
            **_lines(Kind),
            "package.module:function": "your own: takes (delta, others, rng), returns the update to send",
        },
        "splits": {**_lines(Split), **own},
        "timing": {**times, **parts, **own},
    }


def _lines(base: Any) -> dict[str, str]:
    found = {}
    for name, kind in names.members(base).items():
        plain = isinstance(kind, Recipe | names.Announced) or base in (Objective, Score)
        keys = "" if plain else ", ".join(s.name for s in schema.settings(kind))
        found[name] = f"{schema.line(kind)}: {keys}" if keys else schema.line(kind)
    return found
