"""The [timing] table: every form becomes its object, every slip is named."""

import tomllib

import pytest

from offbeat.core.errors import DataError, SettingError
from offbeat.experiment.timing import TIMINGS, timing_from
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
    assert timing_from(tomllib.loads(text)) == FORMS[text]


WRONG = {
    "": "does not say how long a job takes; give one of exponential, shifted_exponential, constant",
    "expnential = { rate = 1.0 }": "unknown key in timing: 'expnential'; did you mean 'exponential'",
    "exponential = { rat = 1.0 }": "unknown key in timing.exponential: 'rat'; did you mean 'rate'",
    "exponential = {}": "timing.exponential lacks 'rate'",
    "exponential = 10.0": "timing.exponential = 10.0: expected a table of settings",
    "exponential = { rate = -1.0 }": "timing.exponential: rate = -1.0: must be a positive number",
    'exponential = { rate = "10" }': "timing.exponential.rate = '10': expected a number",
    "exponential = { rate = { normal = [10], min = 1 } }": "rate.normal = .* expected .mean, standard deviation",
    "exponential = { rate = { normal = [10, 5], min = 0 } }": "exponential.rate: min = 0.* must be a positive number",
    "exponential = { rate = { normal = [10, 5] } }": "timing.exponential.rate lacks 'min'",
    "constant = { time = 1.0 }\npareto = { scale = 1, shape = 2 }": "timing has constant and pareto, .* keep one",
    "bandwidth = { down = 1, up = 1 }\ndelays = {}": "timing has bandwidth and delays",
    "download = { constant = { time = 1.0 } }": "timing has download alone; give both",
    "bandwidth = { down = 1, up = 1 }\ndownload = { constant = { time = 1.0 } }": "two networks; keep one",
    "download = { constnt = { time = 1.0 } }\nupload = {}": "unknown name in timing.download: 'constnt'",
    "constant = { time = 1.0 }\ndiurnal = { period = 1 }\non_off = { on = 1, off = 1 }": "diurnal and on_off",
    "constant = { time = 1.0 }\nspeeds = { slow = [0.5, 1.3] }": "timing.speeds: .* must sum to 1, not 0.5",
    "constant = { time = 1.0 }\nspeeds = { slow = 2 }": "timing.speeds: of.slow = 2: must be two numbers",
    "constant = { time = 1.0 }\nspeeds = { uniform = 5 }": "timing.speeds.uniform = 5: expected two numbers",
    "constant = { time = 1.0 }\nspeeds = 3": "timing.speeds = 3: expected",
    f"shifted_exponential = {{ per_step = 1.0, {SPEEDS} }}\n{SPEEDS}": "both say how fast clients are; keep one",
    "trace = {}": "^timing.trace lacks 'file'",
    "available = 0.3": "timing: nothing takes any time",
    "constant = { time = 1.0 }\navailable = 1.5": "timing: available = 1.5: must be a share",
    'constant = { time = 1.0 }\ndropout = "no"': "timing.dropout = 'no': expected a number",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_slip_is_named(text):
    with pytest.raises(SettingError, match=WRONG[text]):
        timing_from(tomllib.loads(text))


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("client,compute,upload,on,off\na,2,1,0,5\na,3,1,7,9\n")
    return str(path)


def test_a_trace_is_read_and_composed_with_the_other_parts(trace):
    times = timing_from({"trace": {"file": trace, "period": 20}, "dropout": 0.1, "speeds": [2.0]})
    clock = times.bind(1, 0)
    assert (clock.compute.mean(0), clock.download.mean(0), clock.upload.mean(0)) == (5.0, 0.0, 1.0)
    assert (clock.flip(0, 9.0), times.dropout) == (20.0, 0.1)


def test_stays_alone_come_from_a_trace(trace):
    times = timing_from({"constant": {"time": 1.0}, "intervals": {"file": trace}})
    assert times.compute == Constant(1.0)
    assert times.bind(1, 0).flip(0, 0.0) == 5.0


@pytest.mark.parametrize("part", [{"constant": {"time": 1.0}}, {"delays": {}}, {"diurnal": {"period": 1.0}}])
def test_a_trace_and_another_source_of_the_same_part_are_refused(trace, part):
    with pytest.raises(SettingError, match=r"^(compute|network|presence) = .*: the trace .* gives it; keep one"):
        timing_from({"trace": {"file": trace}, **part}).bind(1, 0)


def test_a_trace_without_stays_cannot_give_intervals(tmp_path):
    (tmp_path / "t.csv").write_text("client,compute\na,2\n")
    with pytest.raises(SettingError, match="records no stays; it needs the columns on and off"):
        timing_from({"constant": {"time": 1.0}, "intervals": {"file": str(tmp_path / "t.csv")}}).bind(1, 0)


def test_a_missing_trace_is_a_data_error():
    with pytest.raises(DataError, match=r"no file nowhere\.csv"):
        timing_from({"trace": {"file": "nowhere.csv"}}).bind(1, 0)


def test_every_key_is_explained_in_one_line():
    named = {line.split(" = ")[0] for text in FORMS for line in text.splitlines()}
    assert named | {"trace", "intervals"} == set(TIMINGS)
    assert all(text and "\n" not in text for text in TIMINGS.values())
