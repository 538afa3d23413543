"""Data sets and how they are split over clients."""

from offbeat.data.adapters import dataset
from offbeat.data.base import Dataset
from offbeat.data.fetch import fetch
from offbeat.data.folder import NAMES, DatasetStatus, status
from offbeat.data.lazy import Read
from offbeat.data.padding import Padded
from offbeat.data.readers import load
from offbeat.data.recognise import samples
from offbeat.data.samples import Samples, Stored
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
    "Padded",
    "Read",
    "Samples",
    "Split",
    "Stored",
    "dataset",
    "fetch",
    "load",
    "samples",
    "status",
]
