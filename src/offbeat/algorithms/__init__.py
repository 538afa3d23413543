"""One paper's algorithm a file; `parts` holds the verbs that they share."""

from offbeat.algorithms.area import AREA
from offbeat.algorithms.asfedavg import AsFedAvg
from offbeat.algorithms.fedasync import FedAsync, FedAsyncMixing
from offbeat.algorithms.fedavg import FedAvg
from offbeat.algorithms.fedbuff import FedBuff
from offbeat.algorithms.parts import Decay, Every, Hinge, Period, Poisson, Polynomial, Steady, constant, optimal_rate

__all__ = [
    "AREA",
    "AsFedAvg",
    "Decay",
    "Every",
    "FedAsync",
    "FedAsyncMixing",
    "FedAvg",
    "FedBuff",
    "Hinge",
    "Period",
    "Poisson",
    "Polynomial",
    "Steady",
    "constant",
    "optimal_rate",
]
