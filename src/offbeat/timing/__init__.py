"""How long things take and who is there: `Times` puts the parts together, `bind` gives the simulator its clock."""

from offbeat.timing.base import Clock, Durations, Timing
from offbeat.timing.compose import BoundTimes, Times
from offbeat.timing.delays import (
    Constant,
    Exponential,
    Flops,
    LogNormal,
    Normal,
    Pareto,
    Replay,
    ShiftedExponential,
    Uniform,
)
from offbeat.timing.network import Bandwidth, Delays, Links
from offbeat.timing.phones import PhoneNetwork, PhoneSpeeds, PhoneTraining
from offbeat.timing.presence import Diurnal, Intervals, OnOff
from offbeat.timing.speeds import Classes, Factors, Spread
from offbeat.timing.trace import recorded

__all__ = [
    "Bandwidth",
    "BoundTimes",
    "Classes",
    "Clock",
    "Constant",
    "Delays",
    "Diurnal",
    "Durations",
    "Exponential",
    "Factors",
    "Flops",
    "Intervals",
    "Links",
    "LogNormal",
    "Normal",
    "OnOff",
    "Pareto",
    "PhoneNetwork",
    "PhoneSpeeds",
    "PhoneTraining",
    "Replay",
    "ShiftedExponential",
    "Spread",
    "Times",
    "Timing",
    "Uniform",
    "recorded",
]
