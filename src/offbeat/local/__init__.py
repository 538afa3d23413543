"""What clients do with their data."""

from offbeat.local.adam import Adam, AdamW
from offbeat.local.gradient import Gradient
from offbeat.local.loop import Loop
from offbeat.local.maml import MAML
from offbeat.local.moreau import Moreau
from offbeat.local.prox import Prox
from offbeat.local.scaffold import Scaffold
from offbeat.local.sgd import SGD

__all__ = ["MAML", "SGD", "Adam", "AdamW", "Gradient", "Loop", "Moreau", "Prox", "Scaffold"]
