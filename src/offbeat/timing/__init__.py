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
    RecordedTimes,
    ShiftedExponential,
    Uniform,
)
from offbeat.timing.network import Bandwidth, Delays, Links
from offbeat.timing.phones import PhoneNetwork, PhoneSpeeds, PhoneTraining
from offbeat.timing.presence import Diurnal, Intervals, OnOff
from offbeat.timing.speeds import Factors, SpeedClasses, Spread
from offbeat.timing.trace import Trace

__all__ = [
    "Bandwidth",
    "BoundTimes",
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
    "RecordedTimes",
    "ShiftedExponential",
    "SpeedClasses",
    "Spread",
    "Times",
    "Timing",
    "Trace",
    "Uniform",
]
