"""One paper's algorithm a file, and what they share: buffers, criteria, flow, schedules, staleness weights."""

from offbeat.algorithms.ace import ACE, ACED
from offbeat.algorithms.anarchic import AFACD, AFACS
from offbeat.algorithms.area import AREA
from offbeat.algorithms.asfedavg import AsFedAvg
from offbeat.algorithms.asgrad import AsGrad
from offbeat.algorithms.async_comm import AsyncCommSGD
from offbeat.algorithms.asysg import AsySG
from offbeat.algorithms.ca2fl import CA2FL
from offbeat.algorithms.criteria import Criterion, MessageCount, Period, Poisson, optimal_rate
from offbeat.algorithms.decoupled import DecoupledDiLoCo
from offbeat.algorithms.defedavg import DeFedAvg, DeFedAvgIID
from offbeat.algorithms.delay_adaptive import DelayAdaptive
from offbeat.algorithms.diloco import AsyncDiLoCo
from offbeat.algorithms.fadas import FADAS
from offbeat.algorithms.favano import Favano
from offbeat.algorithms.fedast import FedAST, OneByOne
from offbeat.algorithms.fedasync import FedAsync, FedAsyncMixing
from offbeat.algorithms.fedavg import FedAvg, MSync
from offbeat.algorithms.fedbuff import FedBuff
from offbeat.algorithms.fedcompass import FedCompass
from offbeat.algorithms.fedfa import FedFa
from offbeat.algorithms.fedfix import FedFix
from offbeat.algorithms.local_only import LocalOnly
from offbeat.algorithms.malenia import Malenia
from offbeat.algorithms.mifa import MIFA
from offbeat.algorithms.mindflayer import MindFlayer
from offbeat.algorithms.port import Port
from offbeat.algorithms.quafl import QuAFL
from offbeat.algorithms.rennala import Rennala
from offbeat.algorithms.ringleader import Ringleader
from offbeat.algorithms.ringmaster import Ringmaster
from offbeat.algorithms.scaffold import SCAFFOLD
from offbeat.algorithms.schedules import Decay, Schedule, Steady
from offbeat.algorithms.staleness import Equal, Hinge, Polynomial, Staleness
from offbeat.algorithms.syncst import SyncBayesST, SyncST, SyncUCBST

__all__ = [
    "ACE",
    "ACED",
    "AFACD",
    "AFACS",
    "AREA",
    "CA2FL",
    "FADAS",
    "MIFA",
    "SCAFFOLD",
    "AsFedAvg",
    "AsGrad",
    "AsySG",
    "AsyncCommSGD",
    "AsyncDiLoCo",
    "Criterion",
    "DeFedAvg",
    "DeFedAvgIID",
    "Decay",
    "DecoupledDiLoCo",
    "DelayAdaptive",
    "Equal",
    "Favano",
    "FedAST",
    "FedAsync",
    "FedAsyncMixing",
    "FedAvg",
    "FedBuff",
    "FedCompass",
    "FedFa",
    "FedFix",
    "Hinge",
    "LocalOnly",
    "MSync",
    "Malenia",
    "MessageCount",
    "MindFlayer",
    "OneByOne",
    "Period",
    "Poisson",
    "Polynomial",
    "Port",
    "QuAFL",
    "Rennala",
    "Ringleader",
    "Ringmaster",
    "Schedule",
    "Staleness",
    "Steady",
    "SyncBayesST",
    "SyncST",
    "SyncUCBST",
    "optimal_rate",
]
