# ruff: noqa: E501
"""The [timing] table: every form becomes its object, every slip is named."""

import tomllib

import pytest

from offbeat.core.errors import DataError, SettingError
from offbeat.experiment.catalogue import catalogue
from offbeat.experiment.timing import read_timing
from offbeat.timing import (
    Bandwidth,
    Constant,
    Delays,
    Diurnal,
    Exponential,
    Factors,
    Flops,
    Links,
    LogNormal,
    Normal,
    OnOff,
    Pareto,
    PhoneNetwork,
    PhoneSpeeds,
    PhoneTraining,
    ShiftedExponential,
    SpeedClasses,
    Spread,
    Times,
    Uniform,
)

CLASSES = SpeedClasses({"slow": (0.25, 1.3), "normal": (0.5, 1.0), "fast": (0.25, 0.7)})
SPEEDS = "speeds = { slow = [0.25, 1.3], normal = [0.5, 1.0], fast = [0.25, 0.7] }"
SIZES = "per_step = { mnist = 0.148, fashion = 0.240 }"
FORMS = {
    "exponential = { rate = 10.0 }": Times(Exponential(10.0)),
    "exponential = { rate = { normal = [10, 5], min = 0.5 } }": Times(Exponential(Normal(10, 5, 0.5))),
    "exponential = { rate = [1.0, 2] }": Times(Exponential((1.0, 2.0))),
    f"shifted_exponential = {{ {SIZES}, {SPEEDS} }}": Times(
        ShiftedExponential({"mnist": 0.148, "fashion": 0.240}), speeds=CLASSES
    ),
    f"shifted_exponential = {{ per_step = 0.148 }}\n{SPEEDS}": Times(ShiftedExponential(0.148), speeds=CLASSES),
    "constant = { time = 1 }": Times(Constant(1.0)),
    'constant = { time = { mnist = 1.0 }, per = "step" }': Times(Constant({"mnist": 1.0}, "step")),
    "uniform = { low = 1.0, high = 3 }\nspeeds = [1.0, 2.0]": Times(Uniform(1.0, 3.0), speeds=Factors((1.0, 2.0))),
    "lognormal = { median = 1.0, sigma = 0.5 }": Times(LogNormal(0.5, median=1.0)),
    'lognormal = { mean = 1.0, sigma = 0.5, per = "step" }': Times(LogNormal(0.5, mean=1.0, per="step")),
    "pareto = { scale = 1.0, shape = 1.5 }\ndropout = 0.05": Times(Pareto(1.0, 1.5), dropout=0.05),
    "flops = { per_step = 17e6, speed = 1e10 }\nspeeds = { uniform = [1, 5] }\nbandwidth = { down = 9, up = 4 }": Times(
        Flops(17e6, 10e9), Bandwidth(9, 4), Spread(1, 5)
    ),
    "delays = { download = 1.0, ratio = [4, 6] }": Times(network=Delays(1.0, (4, 6))),
    "delays = { download = [0.5, 2] }\navailable = 0.3": Times(network=Delays((0.5, 2)), available=0.3),
    "download = { constant = { time = 1.0 } }\nupload = { pareto = { scale = 1.0, shape = 2.0 } }": Times(
        network=Links(Constant(1.0), Pareto(1.0, 2.0))
    ),
    'phone_training = { model = "femnist_cnn" }\nphone_network = {}\nspeeds = "phones"': Times(
        PhoneTraining("femnist_cnn"), PhoneNetwork(), PhoneSpeeds()
    ),
    'constant = { time = 1.0 }\nspeeds = { phones = { table = "mine.json" } }': Times(
        Constant(1.0), speeds=PhoneSpeeds("mine.json")
    ),
    "exponential = { rate = 1.0 }\navailable = 0.3\ndropout = 0.05\ndiurnal = { period = 24, on = 0.3 }": Times(
        Exponential(1.0), presence=Diurnal(24.0, 0.3), available=0.3, dropout=0.05
    ),
    "constant = { time = 1.0 }\non_off = { on = 600, off = 1800 }": Times(Constant(1.0), presence=OnOff(600, 1800)),
}


@pytest.mark.parametrize("text", FORMS)
def test_a_table_becomes_its_object(text):
    assert read_timing(tomllib.loads(text), "timing") == FORMS[text]


WRONG = {
    "": "expected a table that says how long a job takes, such as exponential",
    "expnential = { rate = 1.0 }": "timing.expnential: unknown; did you mean 'exponential'",
    "exponential = { rat = 1.0 }": "timing.exponential.rat: unknown; did you mean 'rate'",
    "exponential = {}": "timing.exponential: rate missing; rate: jobs per unit of time",
    'exponential = "fast"': 'timing.exponential = "fast": expected a number or one of normal or a list',
    "exponential = { rate = -1.0 }": "timing.exponential.rate = -1.0: must be a positive number",
    'exponential = { rate = "10" }': 'timing.exponential.rate = "10": expected a number or one of normal or a list',
    "exponential = { rate = { normal = [10], min = 1 } }": "timing.exponential.rate.normal: std missing; std: standard deviation",
    "exponential = { rate = { normal = [10, 5], min = 0 } }": "exponential.rate.normal.min = 0.* must be a positive number",
    "exponential = { rate = { normal = [10, 5] } }": "timing.exponential.rate.normal: min missing; min: smallest value",
    "constant = { time = 1.0 }\npareto = { scale = 1, shape = 2 }": "timing has constant and pareto, which both give compute; keep one",
    "bandwidth = { down = 1, up = 1 }\ndelays = {}": "timing has bandwidth and delays, which both give network; keep one",
    "download = { constant = { time = 1.0 } }": "timing.download: give both download and upload",
    "bandwidth = { down = 1, up = 1 }\ndownload = 'x'\nupload = 'x'": "timing.download = .x.: unknown; known",
    "download = { constnt = { time = 1.0 } }\nupload = {}": "timing.download.constnt: unknown; did you mean 'constant'",
    "constant = { time = 1.0 }\ndiurnal = { period = 1 }\non_off = { on = 1, off = 1 }": "timing has diurnal and on_off, which both give presence; keep one",
    "constant = { time = 1.0 }\nspeeds = { slow = [0.5, 1.3] }": "timing.speeds = .* must sum to 1, not 0.5",
    "constant = { time = 1.0 }\nspeeds = { slow = 2 }": "timing.speeds.slow = 2: expected a list",
    "constant = { time = 1.0 }\nspeeds = { uniform = 5 }": "timing.speeds.uniform: high missing; high: largest factor",
    "constant = { time = 1.0 }\nspeeds = 3": "timing.speeds = 3: expected",
    f"shifted_exponential = {{ per_step = 1.0, {SPEEDS} }}\n{SPEEDS}": "timing has speeds and shifted_exponential.speeds; keep one",
    "trace = {}": "^timing.trace: file missing; file: CSV or JSON file",
    "available = 0.3": "timing: nothing takes any time",
    "constant = { time = 1.0 }\navailable = 1.5": "timing.available = 1.5: must be a share",
    'constant = { time = 1.0 }\ndropout = "no"': 'timing.dropout = "no": expected a number',
}


@pytest.mark.parametrize("text", WRONG)
def test_a_slip_is_named(text):
    with pytest.raises(SettingError, match=WRONG[text]):
        read_timing(tomllib.loads(text), "timing")


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("client,compute,upload,on,off\na,2,1,0,5\na,3,1,7,9\n")
    return str(path)


def test_a_trace_is_read_and_composed_with_the_other_parts(trace):
    times = read_timing({"trace": {"file": trace, "period": 20}, "dropout": 0.1, "speeds": [2.0]}, "timing")
    clock = times.bind(1, 0)
    assert (clock.compute.mean(0), clock.download.mean(0), clock.upload.mean(0)) == (5.0, 0.0, 1.0)
    assert (clock.flip(0, 9.0), times.dropout) == (20.0, 0.1)


def test_stays_alone_come_from_a_trace(trace):
    times = read_timing({"constant": {"time": 1.0}, "intervals": {"file": trace}}, "timing")
    assert times.compute == Constant(1.0)
    assert times.bind(1, 0).flip(0, 0.0) == 5.0


@pytest.mark.parametrize("part", [{"constant": {"time": 1.0}}, {"delays": {}}, {"diurnal": {"period": 1.0}}])
def test_a_trace_and_another_source_of_the_same_part_are_refused(trace, part):
    with pytest.raises(
        SettingError, match=r"^(compute|network|presence) = .*: the trace .* defines it as well; remove one"
    ):
        read_timing({"trace": {"file": trace}, **part}, "timing").bind(1, 0)


def test_a_trace_without_stays_cannot_give_intervals(tmp_path):
    (tmp_path / "t.csv").write_text("client,compute\na,2\n")
    with pytest.raises(SettingError, match="records no stays; it needs the columns on and off"):
        read_timing({"constant": {"time": 1.0}, "intervals": {"file": str(tmp_path / "t.csv")}}, "timing").bind(1, 0)


def test_a_missing_trace_is_a_data_error():
    with pytest.raises(DataError, match=r"no file nowhere\.csv"):
        read_timing({"trace": {"file": "nowhere.csv"}}, "timing").bind(1, 0)


def test_every_key_is_explained_in_one_line():
    named = {line.split(" = ")[0] for text in FORMS for line in text.splitlines()}
    listed = catalogue()["timing"]
    assert (named - {"download", "upload"}) | {"trace", "intervals", "links"} == {n for n in listed if ":" not in n}
    assert all(text and "\n" not in text for text in listed.values())
