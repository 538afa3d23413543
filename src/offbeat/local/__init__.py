"""What clients do with their data."""

from offbeat.local.gradient import Gradient
from offbeat.local.maml import MAML
from offbeat.local.moreau import Moreau
from offbeat.local.prox import Prox
from offbeat.local.scaffold import Scaffold
from offbeat.local.sgd import SGD

__all__ = ["MAML", "SGD", "Gradient", "Moreau", "Prox", "Scaffold"]
