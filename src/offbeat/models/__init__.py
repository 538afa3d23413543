"""Networks, and modules seen as functions of one flat vector."""

from offbeat.models.build import NAMES, build
from offbeat.models.flat import Flat

__all__ = ["NAMES", "Flat", "build"]
