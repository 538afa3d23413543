"""Data sets and how they are split over clients."""

from offbeat.data.base import Dataset
from offbeat.data.fetch import fetch
from offbeat.data.folder import NAMES, DatasetStatus, status
from offbeat.data.load import load
from offbeat.data.splits import IID, Classes, Dirichlet, NearlyIID, Owners, Split

__all__ = [
    "IID",
    "NAMES",
    "Classes",
    "Dataset",
    "DatasetStatus",
    "Dirichlet",
    "NearlyIID",
    "Owners",
    "Split",
    "fetch",
    "load",
    "status",
]
