"""One paper's algorithm a file; `parts` holds the verbs that they share."""

from offbeat.algorithms.alone import Alone
from offbeat.algorithms.area import AREA
from offbeat.algorithms.asfedavg import AsFedAvg
from offbeat.algorithms.asysg import AsySG
from offbeat.algorithms.ca2fl import CA2FL
from offbeat.algorithms.defedavg import DeFedAvg, DeFedAvgIID
from offbeat.algorithms.favano import Favano
from offbeat.algorithms.fedast import FedAST, OneByOne
from offbeat.algorithms.fedasync import FedAsync, FedAsyncMixing
from offbeat.algorithms.fedavg import FedAvg
from offbeat.algorithms.fedbuff import FedBuff
from offbeat.algorithms.mifa import MIFA
from offbeat.algorithms.parts import Decay, Every, Hinge, Period, Poisson, Polynomial, Steady, constant, optimal_rate
from offbeat.algorithms.quafl import QuAFL
from offbeat.algorithms.scaffold import SCAFFOLD
from offbeat.algorithms.syncst import SyncBayesST, SyncST, SyncUCBST

__all__ = [
    "AREA",
    "CA2FL",
    "MIFA",
    "SCAFFOLD",
    "Alone",
    "AsFedAvg",
    "AsySG",
    "DeFedAvg",
    "DeFedAvgIID",
    "Decay",
    "Every",
    "Favano",
    "FedAST",
    "FedAsync",
    "FedAsyncMixing",
    "FedAvg",
    "FedBuff",
    "Hinge",
    "OneByOne",
    "Period",
    "Poisson",
    "Polynomial",
    "QuAFL",
    "Steady",
    "SyncBayesST",
    "SyncST",
    "SyncUCBST",
    "constant",
    "optimal_rate",
]
