"""Bad input: one line on standard error that names the value and the remedy, exit code 1, nothing written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from command import DIGITS, Outcome, offbeat, run, sets

from offbeat.core.errors import SettingError
from offbeat.experiment.describe import ClientDataTable, NamedFactory

UNKNOWN = {
    "untl=3": "untl: unknown; did you mean 'until'?",
    "until.tim=3": "until.tim: unknown; did you mean 'time'?",
    "evaluate.evry=3": "evaluate.evry: unknown; did you mean 'every'?",
    "problem.cliens=3": "problem.cliens: unknown; did you mean 'clients'?",
    "timing.exponental=1": "timing.exponental: unknown; did you mean 'exponential'?",
    "timing.exponential.rat=2": "timing.exponential.rat: unknown; did you mean 'rate'?",
    "algorithm.fedbuff.sise=3": "algorithm.fedbuff.sise: unknown; did you mean 'size'?",
    "algorithm.area.local.sgd.stps=2": "algorithm.area.local.sgd.stps: unknown; did you mean 'steps'?",
    "algorithm.1.name=fedbuf": "algorithm.fedbuf: there is no algorithm 'fedbuf'; did you mean 'fedbuff'?",
    "algorithm.1.local={ sdg = { lr = 1 } }": "algorithm.fedbuff.local.sdg: unknown; did you mean 'sgd'?",
    "problem.model={ mlp = { hiden = [3] } }": "problem.model.mlp.hiden: unknown; did you mean 'hidden'?",
    "problem.data={ topics = { widow = 3 } }": "problem.data.topics.widow: unknown; did you mean 'window'?",
    "problem.model=softmx": "problem.model = \"softmx\": unknown; did you mean 'softmax'?",
    "problem.model={ name = 'mlp', hiden = [3] }": "problem.model.hiden: unknown; did you mean 'hidden'?",
    "problem.data=digit": "problem.data = \"digit\": unknown; did you mean 'digits'?",
    "problem.split=dirichle": "problem.split = \"dirichle\": unknown; did you mean 'dirichlet'?",
    "problem.split={ clases = 2 }": "problem.split.clases: unknown; did you mean 'classes'?",
}

IMPOSSIBLE = {
    "timing.exponential.rate=-1": "timing.exponential.rate = -1.0: must be a positive number",
    "timing.exponential.rate=[1.0, 2.0]": "timing.exponential.rate has 2 numbers for 5 clients; give one for each",
    "timing.speeds=[1, 2]": "timing.speeds has 2 numbers for 5 clients; give one for each",
    "timing.speeds=[1, 2, 3, 4, -5]": "timing.speeds[4] = -5.0: must be a positive number",
    "timing.speeds={ slow = [0.5, -1] }": "timing.speeds.slow[1] = -1.0: must be a positive number",
    "problem.data={ topics = { window = 0 } }": "problem.data.topics.window = 0: must be at least 2",
    "problem.data={ name = 'topics', window = 0 }": "problem.data.window = 0: must be at least 2",
    "problem.data={ topics = { vocabulary = 600 } }": "problem.data.topics.vocabulary = 600: characters are as many as",
    "problem.holdout=0.3": "problem.holdout = 0.3: the data have test samples of their own; leave it out",
    "until={ steps = 5 }": "until.steps: unknown; the task measures accuracy, loss; otherwise time, updates",
    "problem={ data = 'own', clients = 5, shape = [64] }": 'problem.classes missing; with data = "own"',
    "problem.clients=0": "problem.clients = 0: must be at least 1",
    "problem.clients=5000": "problem: 5000 clients, but only 1442 samples; use as many clients or fewer",
    "problem.split={ classes = 11 }": "per_client = 11: the data have only 10 classes",
    "problem.split=owners": "the split owners needs data with natural owners, such as shakespeare",
    "problem.l2=-1": "l2 = -1.0: must not be negative",
    "problem={ data = 'quadratic', clients = 0 }": "problem.clients = 0: must be at least 1",
    "until={}": "until needs at least one of time, updates, versions, iterations",
    "until={ accuracy = 1.5 }": "until.accuracy = 1.5: must be a share in (0, 1]",
    "until={ time = 9.0, rmse = 0.5 }": "until.rmse: unknown; the task measures accuracy, loss",
    "until={ time = -1 }": "until.time = -1.0: must be a positive number",
    "evaluate.every=0": "every = 0.0: must be a positive number",
    "evaluate.targets=[80]": "evaluate.targets = 80.0: must be a share in (0, 1]",
    "trials=0": "trials = 0: must be at least 1",
    "executor=fast": 'executor = "fast": expected one of "auto", "serial", "batched", "processes", "ray"',
    "device=gpu": "device = 'gpu': must be cpu, cuda or cuda:N",
    "device=mps": "device = 'mps': must be cpu, cuda or cuda:N",
    "algorithm.*.local.sgd.lr=-1": "algorithm.area.local.sgd.lr = -1.0: must be a positive number",
    "algorithm.*.local.sgd.steps=0": "steps = 0: must be at least 1",
    "algorithm.*.local.sgd.batch=0": "batch = 0: must be at least 1",
    "algorithm.fedbuff.size=0": "algorithm.fedbuff.size = 0: must be at least 1",
    "algorithm.fedbuff.concurrency=0": "concurrency = 0: must be at least 1",
    "algorithm.area.label='../x'": "label = '../x': it names a folder; use letters, digits and - _ . + only",
    "algorithm=[]": "the experiment needs at least one [algorithm.LABEL] or [[algorithm]] table",
    "problem.model=lenet5": "lenet5 needs images of at least 12 pixels a side, not 8; use mlp or softmax",
    "problem.model=nowhere:make": "problem.model: no module 'nowhere'; it was not found next to the experiment file",
}

WRONG_TYPES = {
    "seed=x": 'seed = "x": expected a whole number',
    "seed=1.5": "seed = 1.5: expected a whole number",
    "until=3": "until = 3: expected a table",
    "until={ time = 9.0, accuracy = 'high' }": 'until.accuracy = "high": expected a number',
    "problem.data={ topics = { window = 32.5 } }": "problem.data.topics.window = 32.5: expected a whole number",
    "timing.speeds=[1, 'x']": 'timing.speeds[1] = "x": expected a number',
    "evaluate.targets=0.8": "evaluate.targets = 0.8: expected a list",
    "evaluate.targets=['high']": 'evaluate.targets[0] = "high": expected a number',
    "problem=3": "problem: data missing; data: one of quadratic, absolute, own, file,",
    "problem.clients=many": 'problem.clients = "many": expected a whole number',
    "problem.clients=true": "problem.clients = true: expected a whole number",
    "problem.weighted=1": "problem.weighted = 1: expected true or false",
    "problem.model=3": "problem.model = 3: expected a model, as a name or as a table with options",
    "problem.split=3": "problem.split = 3: expected one of dirichlet, classes, iid, nearly-iid, owners",
    "timing=3": "timing = 3: expected a table that says how long a job takes, such as exponential = { rate",
    "timing.exponential.rate=['fast']": 'timing.exponential.rate[0] = "fast": expected a number',
    "algorithm=3": "the experiment needs at least one [algorithm.LABEL] or [[algorithm]] table",
    "algorithm=[3]": "algorithm[0]: name missing; name: one of area, fedbuff, fedasync, fedasync-mixing,",
    "algorithm.area.local=3": "algorithm.area.local = 3: expected one of sgd, adam, adamw, prox, gradient, scaffold, ",
    "algorithm.fedbuff.lr=fast": 'algorithm.fedbuff.lr = "fast": expected a number',
    "algorithm.*.local.sgd.batch=8.5": "algorithm.area.local.sgd.batch = 8.5: expected a whole number",
}


def refused(outcome: Outcome) -> str:
    """The one line of an outcome that is a refusal."""
    assert outcome.code == 1
    assert outcome.out == ""
    assert outcome.err.startswith("offbeat: ")
    assert outcome.err.count("\n") == 1, outcome.err
    return outcome.err


@pytest.mark.parametrize(("override", "says"), [*UNKNOWN.items(), *IMPOSSIBLE.items(), *WRONG_TYPES.items()])
def test_a_setting_that_cannot_work_is_named_and_nothing_is_written(override: str, says: str, tmp_path: Path) -> None:
    assert says in refused(run(tmp_path, DIGITS, *sets(override)))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("table", ["problem", "timing", "algorithm"])
def test_a_missing_table_is_named(table: str, tmp_path: Path) -> None:
    text = DIGITS.replace(f"[[{table}]]", "[[other]]").replace(f"[{table}]", "[other]")
    assert "other: unknown" in refused(run(tmp_path, text))
    says = refused(run(tmp_path, "\n".join(_without(DIGITS, table))))
    assert f"lacks its [{table}] table" in says or f"{table} missing; {table}: " in says


def _without(text: str, table: str) -> list[str]:
    """The lines of an experiment that do not belong to this table."""
    kept, inside = [], False
    for line in text.splitlines():
        if line.startswith("["):
            inside = line.strip("[]") == table
        if not inside:
            kept.append(line)
    return kept


def test_an_algorithm_without_a_local_trainer_is_told_how_to_write_one(tmp_path: Path) -> None:
    text = DIGITS.replace("local = { sgd = { lr = 0.5, batch = 16 } }", "")
    assert "algorithm.fedbuff: local missing; give a local trainer, such as local = { sgd" in refused(
        run(tmp_path, text)
    )


def test_a_client_with_no_data_is_named(tmp_path: Path) -> None:
    says = refused(run(tmp_path, DIGITS, *sets("problem.split=nearly-iid", "problem.clients=300")))
    assert "client 0 of 300 is left without data" in says
    assert "use fewer" in says


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_is_refused_where_there_is_none(tmp_path: Path) -> None:
    says = "device = 'cuda': PyTorch finds 0 CUDA devices on this machine; use cpu"
    assert says in refused(run(tmp_path, DIGITS, *sets("device=cuda")))


MODELS = """
from torch import nn

def normed(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, classes))

def grouped(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.GroupNorm(1, 64), nn.Linear(64, classes))

def nothing():
    return 3
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of a user's own models that can be imported."""
    (tmp_path / "own_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_models", raising=False)
    return tmp_path


def test_running_statistics_are_refused_and_group_normalisation_is_not(models: Path) -> None:
    normed = ("problem.model=own_models:normed", 'problem.statistics="refuse"')
    says = refused(run(models, DIGITS, *sets(*normed)))
    assert "the layer '1' (BatchNorm1d) keeps running statistics" in says
    assert "use GroupNorm or LayerNorm" in says
    assert run(models, DIGITS, *sets("problem.model=own_models:grouped")).code == 0


def test_a_factory_that_is_not_there_or_gives_no_module_is_named(models: Path) -> None:
    assert "has no 'absent'" in refused(run(models, DIGITS, *sets("problem.model=own_models:absent")))
    assert "gave a int, not a torch.nn.Module" in refused(
        run(models, DIGITS, *sets("problem.model=own_models:nothing"))
    )


@pytest.mark.parametrize("missing", ["shape", "classes"])
def test_without_data_a_model_that_asks_for_its_shape_has_to_be_told(models: Path, missing: str) -> None:
    given = {"shape": (8, 8), "classes": 3}
    table = ClientDataTable(3, model=NamedFactory("own_models:grouped"), **(given | {missing: None}))
    with pytest.raises(SettingError, match=f"{missing} missing; the model own_models:grouped asks for it"):
        table.module(seed=0)
    ClientDataTable(3, model=NamedFactory("own_models:grouped"), **given).module(seed=0)


def test_a_file_that_is_not_there_not_text_or_not_toml_is_named(tmp_path: Path) -> None:
    says = refused(offbeat("run", tmp_path / "no.toml"))
    assert f"cannot read {tmp_path / 'no.toml'}: No such file" in says
    assert "Is a directory" in refused(offbeat("run", tmp_path))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert "binary.toml is not a text file" in refused(offbeat("run", tmp_path / "binary.toml"))
    assert "experiment.toml is not TOML: " in refused(run(tmp_path, "seed = = 3"))


def test_a_command_or_option_that_does_not_exist_shows_how_to_get_help() -> None:
    for words in (["rum"], ["run", "--ot", "x"], ["run", "a", "b"], ["resume"]):
        outcome = offbeat(*words)
        assert outcome.code == 2
        assert "--help" in outcome.err
        assert "Traceback" not in outcome.err
