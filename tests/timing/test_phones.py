"""The phone tables: small ones written here, and the real ones where OFFBEAT_DATA names their folder."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from offbeat.core.errors import DataError, SettingError
from offbeat.core.events import Job
from offbeat.timing import Constant, PhoneNetwork, PhoneSpeeds, PhoneTraining, Times, Trace

TRAINING = {
    "source": "here",
    "trace_population_count": [3, 1],
    "cnn": {"mean": [2000, 500], "std": [200, 0]},
}
USERS = {
    "a": {"down_u": 1000, "down_sigma": 300, "up_u": 500, "up_sigma": 0},
    "b": {"down_u": 4000, "down_sigma": 4000, "up_u": 2000, "up_sigma": 100},
}


def job(client, number, steps=10):
    return Job(id=0, client=client, task=0, version=0, steps=steps, lr=0.1, number=number)


@pytest.fixture
def traces(tmp_path, monkeypatch):
    folder = tmp_path / "traces"
    folder.mkdir()
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path))
    (folder / "mobilenet_v2_fp16_latency_by_phone.json").write_text(json.dumps({"a": 5.0, "b": 10.0, "c": 80.0}))
    (folder / "train_ms_per_batch.json").write_text(json.dumps(TRAINING))
    (folder / "speed_distri.json").write_text(json.dumps(USERS))
    return folder


@pytest.fixture
def real():
    folder = os.environ.get("OFFBEAT_DATA")
    if not folder or not (Path(folder) / "traces").is_dir():
        pytest.skip("OFFBEAT_DATA does not name a folder with traces/")
    return Path(folder) / "traces"


def test_a_phones_factor_is_its_latency_over_the_median(traces):
    factors = PhoneSpeeds().factors(3000, seed=0)
    assert set(factors) == {0.5, 1.0, 8.0}
    assert stats.chisquare([factors.count(f) for f in (0.5, 1.0, 8.0)]).pvalue > 0.01
    assert factors == PhoneSpeeds(folder=str(traces)).factors(3000, seed=0)


def test_training_times_are_seconds_for_each_batch_and_phones_have_exact_shares(traces):
    clock = Times(PhoneTraining("cnn")).bind(100, seed=0)
    means = [clock.compute.mean(c, 10) for c in range(100)]
    assert sorted(np.round(means, 6)) == [5.0] * 25 + [20.0] * 75
    slow = means.index(max(means))
    times = [clock.durations(job(slow, k), 0, 0).compute for k in range(2000)]
    assert stats.kstest(times, np.vectorize(lambda t: clock.compute.cdf(t, slow, 10))).pvalue > 0.01
    assert abs(np.mean(times) - 20) < 4 * 2 / math.sqrt(2000)


def test_transfers_take_bytes_over_kilobytes_per_second(traces):
    clock = Times(network=PhoneNetwork()).bind(40, seed=0)
    up = {round(clock.upload.mean(c, 500_000), 2) for c in range(40)}
    assert up == {1.0, 0.25}  # 500 kB at 500 and at 2000 kB/s
    wide = next(c for c in range(40) if clock.upload.mean(c, 500_000) < 0.5)
    times = np.array([clock.durations(job(wide, k), 4_000_000, 0).download for k in range(4000)])
    for t in (0.5, 1.0, 3.0, 9.99, 10.0):
        assert abs(np.mean(times <= t) - clock.download.cdf(t, wide, 4_000_000)) < 0.04
    assert abs(times.mean() - clock.download.mean(wide, 4_000_000)) < 4 * times.std() / math.sqrt(4000)
    assert times.max() <= 10 + 1e-9  # no slower than a tenth of the user's mean speed


def test_the_model_must_be_in_the_table(traces):
    with pytest.raises(SettingError, match="did you mean 'cnn'"):
        Times(PhoneTraining("cmn")).bind(2, 0)


def test_a_missing_table_says_where_it_was_sought(tmp_path, monkeypatch):
    monkeypatch.delenv("OFFBEAT_DATA", raising=False)
    with pytest.raises(DataError, match="set OFFBEAT_DATA"):
        PhoneSpeeds().factors(2, 0)
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"speed_distri\.json; set OFFBEAT_DATA to the folder"):
        Times(network=PhoneNetwork()).bind(2, 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not readable as JSON"),
        ("[]", "expected a table"),
        ('{"a": -1}', "must be a positive number"),
        ('{"a": "fast"}', "must be a"),
    ],
)
def test_a_broken_latency_table_is_named(tmp_path, text, says):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(DataError, match=rf"t\.json.*{says}"):
        PhoneSpeeds("t.json", str(tmp_path)).factors(2, 0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"trace_population_count": None}, "expected a list of numbers"),
        ({"trace_population_count": [1]}, "do not have as many classes"),
        ({"cnn": {"mean": [1, 2], "std": [1, -1]}}, "must be a number, 0 or above"),
        ({"cnn": {"mean": [1, 2]}}, "std = None"),
    ],
)
def test_a_broken_training_table_is_named(tmp_path, change, says):
    (tmp_path / "t.json").write_text(json.dumps({**TRAINING, **change}))
    with pytest.raises(DataError, match=says):
        Times(PhoneTraining("cnn", "t.json", str(tmp_path))).bind(2, 0)


@pytest.mark.parametrize("row", [3, {"down_u": 5}, {"down_u": 0, "down_sigma": 1, "up_u": 1, "up_sigma": 1}])
def test_a_broken_network_table_is_named(tmp_path, row):
    (tmp_path / "t.json").write_text(json.dumps({"a": row}))
    with pytest.raises(DataError, match=r"t\.json: a"):
        Times(network=PhoneNetwork("t.json", str(tmp_path))).bind(2, 0)


def test_real_phones_have_a_long_tail(real):
    factors = np.array(PhoneSpeeds(folder=str(real)).factors(5000, seed=0))
    assert len(set(factors)) > 100
    assert factors.min() < 0.3
    assert factors.max() / factors.min() > 50


def test_real_training_times_and_networks_have_their_published_means(real):
    times = Times(PhoneTraining("femnist_cnn", folder=str(real)), PhoneNetwork(folder=str(real)))
    clock = times.bind(35407, seed=0)
    means = np.round([clock.compute.mean(c) for c in range(35407)], 3)
    assert dict(zip(*np.unique(means, return_counts=True), strict=True)) == {0.179: 159, 0.588: 16428, 1.642: 18820}
    assert len({clock.download.mean(c, 1) for c in range(500)}) == 19
    assert 0.05 < clock.download.mean(0, 1_000_000) < 1.5


CSV = """client, compute, download, upload, on, off
a, 12.5, 0.5, 3, 0, 30
a, 11.5, 0.25, 2, 50, 60
b, 40, 1, 6, ,
"""


def write(folder, name, text):
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_recorded_trace_is_replayed_with_its_network_and_stays(tmp_path):
    clock = Times(trace=Trace(write(tmp_path, "t.csv", CSV))).bind(3, seed=0)
    assert [clock.durations(job(0, k), 9, 9)[:3] for k in range(3)] == [(0.5, 12.5, 3), (0.25, 11.5, 2), (0.5, 12.5, 3)]
    assert clock.durations(job(1, 7), 0, 0)[:3] == (1, 40, 6)
    assert [clock.flip(0, t) for t in (0.0, 30.0, 55.0)] == [30.0, 50.0, 90.0]
    assert (clock.flip(1, 0.0), clock.flip(2, 0.0)) == (None, 30.0)


def test_a_trace_in_json_is_the_same_and_may_carry_its_period(tmp_path):
    rows = [{"client": 1, "compute": 2}, {"client": 1, "on": 0, "off": 4}, {"client": 2, "compute": 3}]
    bare = Times(trace=Trace(write(tmp_path, "a.json", json.dumps(rows))))
    timed = Times(trace=Trace(write(tmp_path, "b.json", json.dumps({"rows": rows, "period": 10}))))
    assert bare.network is None
    assert bare.bind(1, 0).flip(0, 0.0) is None
    assert timed.bind(1, 0).flip(0, 0.0) == 4.0
    assert Times(trace=Trace(str(tmp_path / "b.json"), period=20.0)).bind(1, 0).flip(0, 4.0) == 20.0


def test_times_online_need_no_compute_times(tmp_path):
    stays = Trace(write(tmp_path, "outages.csv", "client,on,off\na,0,30\nb,,\na,50,60\n"))
    clock = Times(Constant(1.0), presence=stays).bind(2, seed=0)
    assert ([clock.flip(0, t) for t in (0.0, 30.0, 55.0)], clock.flip(1, 0.0)) == ([30.0, 50.0, 60.0 + 30.0], None)
    with pytest.raises(DataError, match=r"client 'a' has no compute time; .* use intervals"):
        stays.read()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("client,compute\n", "no rows"),
        ("client,compute\na,x\n", "could not convert string to float: 'x'"),
        ("compute\n3\n", "names its client"),
        ("client,compute,speed\na,1,2\n", "names its client, and may have"),
        ("client,compute\na,1\nb,\n", "client 'b' has no compute time"),
        ("client,compute\na,-1\n", "must be a number, 0 or above"),
        ("client,compute,on,off\na,1,5,\n", "both on and off"),
        ("client,compute,on,off\na,1,5,\na,1,,7\n", "both on and off"),
        ("client,compute,upload\na,1,\na,,2\n", "a transfer belongs to a job"),
        ("client,compute\na,1,2\n", "names its client"),
        ("client,compute\na,nan\n", "must be a"),
        ("client,compute\n\xe4,1\n", "is not readable as CSV"),
        ("client,compute,on,off\na,1,5,3\n", "stays are in order"),
        ("client,compute,upload\na,1,2\na,1,\n", "lack a download or an upload"),
    ],
)
def test_a_broken_trace_is_named(tmp_path, text, says):
    (tmp_path / "t.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=rf"(?s)t\.csv.* .*{says}"):
        Trace(str(tmp_path / "t.csv")).read()


def test_a_trace_is_found_in_the_users_folder(traces):
    write(traces, "mine.csv", "client,compute\na,1\n")
    assert Times(trace=Trace("mine.csv")).bind(1, 0).compute.mean(0) == 1.0
