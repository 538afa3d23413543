"""Errors that help, servers and local trainers that belong together, settings that cannot work."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_type_hints

import numpy as np
import pytest
import torch
from worlds import Line

import offbeat.algorithms
import offbeat.core
import offbeat.local
import offbeat.problems
import offbeat.simulate
import offbeat.theory
from offbeat.algorithms import Decay, Hinge, MessageCount, Period, Poisson, Polynomial, optimal_rate
from offbeat.algorithms.area import AREA
from offbeat.algorithms.asfedavg import AsFedAvg
from offbeat.algorithms.buffer import Buffer
from offbeat.algorithms.fedasync import FedAsync
from offbeat.algorithms.fedavg import FedAvg
from offbeat.algorithms.fedbuff import FedBuff
from offbeat.core import errors
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import Checked, Count, NotNegative, Positive, SettingError, Share, positive, unknown
from offbeat.core.local import Local, Work
from offbeat.core.server import Model
from offbeat.core.vectors import dot, lengths, norm
from offbeat.local.reached import Reached
from offbeat.local.sgd import SGD

# Errors


def test_an_unknown_name_is_answered_with_the_nearest_one() -> None:
    assert (
        str(unknown("algorithm", "fedbuf", ["area", "fedbuff"]))
        == "unknown algorithm 'fedbuf'; did you mean 'fedbuff'?"
    )


def test_a_name_near_to_none_is_answered_with_all_of_them() -> None:
    assert str(unknown("algorithm", "xyz", ["fedbuff", "area"])) == "unknown algorithm 'xyz'; known: area, fedbuff"
    assert str(unknown("key", "xyz", [])) == "unknown key 'xyz'; known: none"


def test_the_tree_in_the_docstring_is_the_tree_of_classes() -> None:
    drawn = [line.strip("├─└ ").split()[0] for line in (errors.__doc__ or "").splitlines() if "──" in line]
    classes = [c.__name__ for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.OffbeatError)]
    assert drawn == classes[1:]
    assert issubclass(SettingError, ValueError)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_a_number_that_must_be_positive_is_named_when_it_is_not(value: float) -> None:
    with pytest.raises(SettingError, match=f"rate = {value}: must be a positive number"):
        positive(time=1.0, left_out=None, rate=value)


@dataclass(frozen=True)
class Knobs(Checked):
    lr: Positive | Literal["auto"] = 1.0
    sizes: Count | tuple[Count, ...] | None = None
    of: Mapping[str, tuple[Share, Positive]] = field(default_factory=dict)
    weight: NotNegative | Hinge = 0.0
    mode: Literal["a", "b"] = "a"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"lr": "x"}, "lr = 'x': must be a positive number or 'auto'"),
        ({"sizes": 0}, "sizes = 0: must be at least 1"),
        ({"sizes": (1, 2.5)}, "sizes[1] = 2.5: must be a whole number"),
        ({"of": {"slow": (2.0, 1.0)}}, "of.slow[0] = 2.0: must be a share in (0, 1]"),
        ({"weight": -1}, "weight = -1: must be a number, 0 or above"),
        ({"mode": "c"}, "mode = 'c': must be one of 'a', 'b'"),
    ],
)
def test_fields_are_checked_by_their_types(wrong: dict[str, Any], said: str) -> None:
    Knobs("auto", (1, 2), {"slow": (0.5, 2.0)}, Hinge(), "b")
    assert type(Knobs(sizes=np.int64(3)).sizes) is int  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=f"^{re.escape(said)}$"):
        Knobs(**wrong)


def subclasses(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def test_all_annotations_of_the_packages_own_settings_can_be_looked_up() -> None:
    """Otherwise their checks would be left out."""
    own = [kind for kind in subclasses(Checked) if kind.__module__.startswith("offbeat.")]
    assert len(own) > 50
    for kind in own:
        get_type_hints(kind)


def test_annotations_that_cannot_be_looked_up_leave_the_checks_of_the_base() -> None:
    @dataclass(frozen=True)
    class Mine(Knobs):
        other: Elsewhere = 0  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(SettingError, match=r"^lr = 0: must be"):
        Mine(lr=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SGD(lr=0.0),
        lambda: SGD(lr=0.1, steps=0),
        lambda: SGD(lr=0.1, batch=0),
        lambda: SGD(lr=0.1, clip=0.0),
        lambda: SGD(lr=0.1, decay=-1.0),
        lambda: AREA(size=0),
        lambda: AREA(concurrency=0),
        lambda: FedBuff(size=0),
        lambda: FedBuff(lr=-1.0),
        lambda: FedAsync(lr=0.0),
        lambda: AsFedAvg(size=0),
        lambda: FedAvg(lr=0.0),
        lambda: MessageCount(0),
        lambda: Period(0.0),
        lambda: Poisson(-1.0),
        lambda: Decay(0.0),
        lambda: Decay(1.0, 0.0),
        lambda: Polynomial(-1.0),
        lambda: Hinge(slope=0.0),
        lambda: optimal_rate([]),
        lambda: optimal_rate([1.0, 0.0]),
    ],
)
def test_a_setting_that_cannot_work_is_refused_at_once(make: Any) -> None:
    with pytest.raises(SettingError):
        make()


# A server and its local trainer


@dataclass(frozen=True)
class NeedsControl(SGD):
    @property
    def needs(self) -> tuple[str, ...]:
        return ("model", "control")


@dataclass(frozen=True)
class SendsSign(SGD):
    @property
    def sends(self) -> tuple[str, ...]:
        return ("sign",)


def test_a_server_that_reads_what_the_client_does_not_send_is_refused() -> None:
    with pytest.raises(SettingError, match=r"FedBuff reads 'delta' but SendsSign sends only 'sign'"):
        Algorithm(FedBuff(), SendsSign(lr=0.1))


@pytest.mark.parametrize("server", [FedBuff(), AREA(), AsFedAvg()])
def test_a_client_that_needs_what_the_server_does_not_send_is_refused(server: Any) -> None:
    with pytest.raises(SettingError, match=r"NeedsControl needs 'control' but .* sends only 'model'"):
        Algorithm(server, NeedsControl(lr=0.1))


def test_a_server_wraps_the_local_trainer_as_it_needs_it() -> None:
    assert Algorithm(AREA(), SGD(lr=0.1)).local.sends == ("residual",)
    assert Algorithm(AsFedAvg(), SGD(lr=0.1)).local.sends == ("model",)
    assert Algorithm(FedBuff(), SGD(lr=0.1)).local == SGD(lr=0.1)


def test_a_wrapper_has_the_settings_of_what_it_wraps() -> None:
    inner = SGD(lr=0.1, steps=3, batch=5, shuffle=True)
    outer = Reached.around(inner)
    assert (outer.lr, outer.steps, outer.batch, outer.shuffle) == (0.1, 3, 5, True)


def test_an_algorithm_is_named_after_its_server_unless_it_is_given_a_name() -> None:
    assert Algorithm(FedBuff(), SGD(lr=0.1)).name == "fedbuff"
    assert Algorithm(FedBuff(), SGD(lr=0.1), "mine").name == "mine"


# Vectors, models, buffers, local steps


def test_a_model_steps_to_a_new_vector_and_counts() -> None:
    old = torch.tensor([1.0, 2.0])
    model = Model(old)
    model.step(-0.5, torch.tensor([2.0, 2.0]))
    assert (model.vector.tolist(), model.version, old.tolist()) == ([0.0, 1.0], 1, [1.0, 2.0])


def test_a_buffer_takes_weights_and_divides_by_the_count() -> None:
    buffer = Buffer()
    buffer.add(1.0, torch.tensor([4.0]))
    buffer.add(0.5, torch.tensor([4.0]))
    assert buffer.take_mean().item() == 3.0
    assert (buffer.sum, buffer.count) == (None, 0)
    with pytest.raises(ValueError, match="empty"):
        buffer.take_mean()


def test_what_servers_may_ask_of_vectors() -> None:
    a, b = torch.tensor([3.0, 4.0]), torch.tensor([1.0, 2.0])
    assert (norm(a), dot(a, b)) == (5.0, 11.0)
    assert lengths(torch.stack([a, 2 * a])).tolist() == [[5.0], [10.0]]


def step(local: Local, w: list[float]) -> list[float]:
    """One local step of as many clients as there are numbers, all with their centre at 0."""
    n = len(w)
    rows = torch.tensor(w, dtype=torch.float64).unsqueeze(1)
    oracle = Line([0.0] * n).oracle(range(n), [0] * n, 1, None, False)
    work = Work({"model": rows}, {}, local.lr, 1, oracle, keys=torch.zeros(n, 1, dtype=torch.int64))
    return local.step(local.init(work), work)["w"].flatten().tolist()


def test_a_gradient_step_with_decay_and_clipping() -> None:
    """The gradient at w is w. Clipping bounds it row by row; decay is added afterwards."""
    assert step(SGD(lr=0.5), [4.0, 1.0]) == [2.0, 0.5]
    assert step(SGD(lr=0.5, decay=1.0), [4.0]) == [0.0]
    assert step(SGD(lr=0.5, clip=2.0), [4.0, -4.0, 1.0, 0.0]) == [3.0, -3.0, 0.5, 0.0]
    assert step(SGD(lr=0.5, clip=2.0, decay=0.5), [4.0]) == [2.0]


# The examples in the docstrings


PACKAGES = (offbeat.core, offbeat.local, offbeat.algorithms, offbeat.problems, offbeat.simulate, offbeat.theory)
MODULES = [m.name for p in PACKAGES for m in pkgutil.iter_modules(p.__path__, p.__name__ + ".")]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_docstrings_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
