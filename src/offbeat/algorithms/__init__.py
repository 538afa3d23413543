"""One paper's algorithm a file, and what they share: buffers, criteria, flow, schedules, staleness weights."""

from offbeat.algorithms.area import AREA
from offbeat.algorithms.asfedavg import AsFedAvg
from offbeat.algorithms.asysg import AsySG
from offbeat.algorithms.ca2fl import CA2FL
from offbeat.algorithms.criteria import Criterion, MessageCount, Period, Poisson, optimal_rate
from offbeat.algorithms.defedavg import DeFedAvg, DeFedAvgIID
from offbeat.algorithms.diloco import AsyncDiLoCo
from offbeat.algorithms.favano import Favano
from offbeat.algorithms.fedast import FedAST, OneByOne
from offbeat.algorithms.fedasync import FedAsync, FedAsyncMixing
from offbeat.algorithms.fedavg import FedAvg
from offbeat.algorithms.fedbuff import FedBuff
from offbeat.algorithms.local_only import LocalOnly
from offbeat.algorithms.mifa import MIFA
from offbeat.algorithms.quafl import QuAFL
from offbeat.algorithms.scaffold import SCAFFOLD
from offbeat.algorithms.schedules import Decay, Schedule, Steady
from offbeat.algorithms.staleness import Equal, Hinge, Polynomial, Staleness
from offbeat.algorithms.syncst import SyncBayesST, SyncST, SyncUCBST

__all__ = [
    "AREA",
    "CA2FL",
    "MIFA",
    "SCAFFOLD",
    "AsFedAvg",
    "AsySG",
    "AsyncDiLoCo",
    "Criterion",
    "DeFedAvg",
    "DeFedAvgIID",
    "Decay",
    "Equal",
    "Favano",
    "FedAST",
    "FedAsync",
    "FedAsyncMixing",
    "FedAvg",
    "FedBuff",
    "Hinge",
    "LocalOnly",
    "MessageCount",
    "OneByOne",
    "Period",
    "Poisson",
    "Polynomial",
    "QuAFL",
    "Schedule",
    "Staleness",
    "Steady",
    "SyncBayesST",
    "SyncST",
    "SyncUCBST",
    "optimal_rate",
]
