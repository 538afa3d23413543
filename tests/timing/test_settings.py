"""Settings that cannot work are refused with the value and the remedy."""

import pytest

import offbeat.timing
from offbeat.core.errors import SettingError
from offbeat.timing import (
    Bandwidth,
    Constant,
    Delays,
    Diurnal,
    Exponential,
    Factors,
    Flops,
    Intervals,
    Links,
    LogNormal,
    Normal,
    OnOff,
    Pareto,
    RecordedTimes,
    ShiftedExponential,
    SpeedClasses,
    Spread,
    Times,
    Uniform,
)

ONE = Constant(1.0)
REFUSED = [
    (lambda: Exponential(-1.0), "rate = -1.0: must be a positive number"),
    (lambda: Exponential((1.0, 0.0)), r"rate\[1\] = 0.0: must be a positive number"),
    (lambda: Exponential("fast"), "rate = 'fast': must be a positive number"),
    (lambda: Normal(10, 5, 0), "min = 0: must be a positive number"),
    (lambda: Normal(10, -5, 1), "std = -5: must be a number, 0 or above"),
    (lambda: Normal(-10, 5, 1), "mean = -10: must be a positive number"),
    (lambda: ShiftedExponential(0.0), "per_step = 0.0: must be a positive number"),
    (lambda: ShiftedExponential({}), "per_step = {}"),
    (lambda: ShiftedExponential({"mnist": -1}), "per_step.mnist = -1"),
    (lambda: Constant(float("nan")), "time = nan: must be a positive number"),
    (lambda: Constant(1.0, per="epoch"), "per = 'epoch'"),
    (lambda: Flops(1.0, 0.0), "speed = 0.0"),
    (lambda: Uniform(3.0, 1.0), "low = 3.0: must not exceed high = 1.0"),
    (lambda: Uniform(-1.0, 1.0), "low = -1.0"),
    (lambda: LogNormal(1.0), "give exactly one of the two"),
    (lambda: LogNormal(1.0, median=1.0, mean=1.0), "give exactly one of the two"),
    (lambda: LogNormal(-1.0, median=1.0), "sigma = -1.0"),
    (lambda: Pareto(1.0, 0.0), "shape = 0.0"),
    (lambda: RecordedTimes(()), "at least one time"),
    (lambda: RecordedTimes(((),)), "at least one time"),
    (lambda: SpeedClasses({}), "of = {}"),
    (lambda: SpeedClasses({"a": (0.5, 1.0), "b": (0.4, 1.0)}), "the shares of a, b must sum to 1, not 0.9"),
    (lambda: SpeedClasses({"a": (1.5, 1.0)}), r"of.a\[0\] = 1.5: must be a share"),
    (lambda: SpeedClasses({"a": (1.0, 0.0)}), r"of.a\[1\] = 0.0: must be a positive number"),
    (lambda: SpeedClasses({"a": 1.0}), "its share and its factor"),
    (lambda: Spread(0.0, 5.0), "low = 0.0"),
    (lambda: Spread(5.0, 1.0), "low = 5.0: must not exceed high = 1.0"),
    (lambda: Factors((1.0, -2.0)), r"values\[1\] = -2.0"),
    (lambda: Bandwidth(400, 0), "up = 0: must be a positive number"),
    (lambda: Delays(0.0), "download = 0.0"),
    (lambda: Delays(ratio=(4.0,)), "ratio = .* must be two numbers"),
    (lambda: Links(ShiftedExponential(1.0), ONE), "download = .* is drawn per step"),
    (lambda: Diurnal(0.0), "period = 0.0"),
    (lambda: Diurnal(24.0, on=0.0), "on = 0.0: must be a share"),
    (lambda: Diurnal(24.0, spread=2.0), "spread = 2.0"),
    (lambda: OnOff(1.0, 0.0), "off = 0.0"),
    (lambda: Intervals((), 1.0), "no client is recorded"),
    (lambda: Intervals((((0.0, 5.0), (4.0, 6.0)),), 10.0), "do not overlap"),
    (lambda: Intervals((((0.0, 11.0),),), 10.0), "end by the period, 10.0"),
    (lambda: Times(), "nothing takes any time"),
    (lambda: Times(network=Delays(), speeds=Spread(1, 5)), "no compute time to scale"),
    (lambda: Times(ONE, available=0.0), "available = 0.0: must be a share"),
    (lambda: Times(ONE, dropout=1.0), "dropout = 1.0"),
    (lambda: Times(ONE).bind(0, 0), "clients = 0: give at least one"),
    (lambda: Times(Exponential((1.0,))).bind(3, 0), "rate has 1 numbers for 3 clients; give one for each"),
    (lambda: Times(ONE, speeds=Factors((1.0,))).bind(3, 0), "speeds has 1 numbers for 3 clients"),
    (lambda: Times(ONE, speeds=[1.0, 0.0]), r"values\[1\] = 0.0: must be a positive number"),
    (lambda: Times(ONE, speeds=2.0), "speeds = 2.0: is no part of a timing model"),
    (lambda: Times("exponential"), "compute = 'exponential': is no part of a timing model"),
]


@pytest.mark.parametrize(("make", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_a_setting_that_cannot_work_is_refused_with_its_value(make, says):
    with pytest.raises(SettingError, match=says):
        make()


def test_lists_stand_for_tuples():
    listed = Times(Exponential([1.0, 2.0]), speeds=[1.0, 20.0])
    assert listed == Times(Exponential((1.0, 2.0)), speeds=Factors((1.0, 20.0)))
    assert hash(listed)


def test_the_public_names_are_there_and_sorted():
    assert offbeat.timing.__all__ == sorted(offbeat.timing.__all__)
    assert all(hasattr(offbeat.timing, name) for name in offbeat.timing.__all__)
