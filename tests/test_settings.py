"""Every class that an experiment file can name explains its settings, and refuses values that cannot work."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

import offbeat.algorithms
import offbeat.algorithms.optimisers
import offbeat.local
import offbeat.local.compress
import offbeat.local.optimisers
import offbeat.local.schedules
import offbeat.timing
from offbeat.core.errors import SettingError
from offbeat.data import splits
from offbeat.models import NAMES

HOMES = (
    offbeat.algorithms,
    offbeat.algorithms.optimisers,
    offbeat.local,
    offbeat.local.compress,
    offbeat.local.optimisers,
    offbeat.local.schedules,
    offbeat.timing,
    splits,
)
KINDS = sorted(
    {k for home in HOMES for k in vars(home).values() if isinstance(k, type) and dataclasses.is_dataclass(k)},
    key=lambda kind: (kind.__module__, kind.__name__),
)
EVERY_KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def texts(kind: type) -> dict[str, str]:
    """`name: text` of a docstring's lines at its own margin, with those that go on indented; bases' texts first."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        lines = inspect.cleandoc(base.__dict__.get("__doc__") or "").replace("\n    ", " ").splitlines()
        found |= {m[1]: m[2] for line in lines if (m := re.fullmatch(r"(\w+): (.+)", line))}
    return found


def settings(kind: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(kind) if f.metadata.get("setting", True)]


@EVERY_KIND
def test_every_setting_has_a_text_in_the_docstring_of_its_class(kind: type) -> None:
    said = texts(kind)
    assert [name for name in settings(kind) if name not in said] == []
    assert all(said[name].endswith((".", "}", "…")) and len(said[name]) > 8 for name in settings(kind))


@EVERY_KIND
def test_no_line_of_a_docstring_explains_what_is_not_a_field(kind: type) -> None:
    own = inspect.cleandoc(kind.__doc__ or "")
    named = set(re.findall(r"^(\w+): ", own, flags=re.MULTILINE))
    assert named <= {f.name for f in dataclasses.fields(kind)}
    assert "   " not in own.replace("\n    ", "\n")  # one field a line


@pytest.mark.parametrize("name", NAMES)
def test_every_option_of_a_model_has_a_text_in_the_docstring_of_its_class(name: str) -> None:
    options = set(inspect.signature(NAMES[name]).parameters) - {"shape", "classes"}
    assert {option for option, text in texts(NAMES[name]).items() if text.endswith(".")} >= options  # type: ignore[arg-type]


@EVERY_KIND
def test_its_docstring_begins_with_one_sentence_on_one_line(kind: type) -> None:
    first = inspect.cleandoc(kind.__doc__ or "").splitlines()[0]
    assert first.endswith(".")
    assert 10 < len(first) <= 120


# What is given to settings that have no default
GIVEN: dict[str, Any] = {
    "limit": 1.0,
    "lr": 0.1,
    "count": 1,
    "first": 1,
    "share": 0.5,
    "length": 10,
    "every": 10,
    "c": 1.0,
    "alpha": 1.0,
    "per_client": 2,
    "rate": 1.0,
    "time": 1.0,
    "per_step": 1.0,
    "mean": 1.0,
    "std": 1.0,
    "min": 1.0,
    "speed": 1.0,
    "low": 1.0,
    "high": 2.0,
    "sigma": 1.0,
    "scale": 1.0,
    "shape": 2.0,
    "down": 1.0,
    "up": 1.0,
    "download": offbeat.timing.Constant(1.0),
    "upload": offbeat.timing.Constant(1.0),
    "period": 1.0,
    "on": 0.5,
    "off": 0.5,
    "of": {"all": (1.0, 1.0)},
    "values": (1.0,),
    "stays": (((0.0, 0.5),),),
    "records": ((1.0,),),
    "model": "femnist_cnn",
    "file": "trace.csv",
    "function": lambda model, data, job: None,
}
ALSO: dict[type, dict[str, Any]] = {  # one of several that must be given
    offbeat.timing.LogNormal: {"median": 1.0},
    offbeat.timing.Times: {"compute": offbeat.timing.Constant(1.0)},
}
# Numbers that may be 0
ZERO = {"decay", "mu", "momentum", "power", "after", "explore", "fairness", "std", "sigma", "dropout", "spread"} | {
    "beta",
    "beta1",
    "beta2",
    "threshold",
    "floor",
    "warmup",
}
ZERO_OF = {
    (offbeat.local.MAML, "alpha"),
    (offbeat.timing.Uniform, "low"),
    (offbeat.algorithms.optimisers.DelayedNesterov, "activation"),
    *((offbeat.algorithms.optimisers.HeLoCo, name) for name in ("shrink", "most", "turn", "doubt")),
    (offbeat.algorithms.AsyncDiLoCo, "grace"),
    (offbeat.algorithms.DecoupledDiLoCo, "grace"),
    (offbeat.algorithms.Port, "similarity"),
}
NOT_OF = {(offbeat.algorithms.Ringmaster, "threshold")}


def options(hint: Any) -> tuple[Any, ...]:
    """The types that a setting may have."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def made(kind: Any, **given: Any) -> Any:
    needed = [f.name for f in dataclasses.fields(kind) if f.init and f.default is f.default_factory]
    return kind(**{name: GIVEN[name] for name in needed} | ALSO.get(kind, {}) | given)


SETTINGS = [
    (kind, name, options(hint))
    for kind in KINDS
    for name, hint in get_type_hints(kind).items()
    if name in settings(kind)
]
NUMBERS = [(kind, name) for kind, name, types in SETTINGS if {int, float} & set(types)]
LISTS = [(kind, name) for kind, name, types in SETTINGS if tuple[float, ...] in types]
WORDS = [(kind, name, one) for kind, name, types in SETTINGS for one in types if get_origin(one) is Literal]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1, True, "4"], ids=str)
@pytest.mark.parametrize(("kind", "name"), NUMBERS, ids=lambda it: getattr(it, "__name__", it))
def test_a_number_that_cannot_be_one_is_refused_under_the_name_of_its_field(kind: Any, name: str, value: Any) -> None:
    with pytest.raises(SettingError, match=rf"^{name} = {value!r}: must "):
        made(kind, **{name: value})


@pytest.mark.parametrize(("kind", "name"), NUMBERS, ids=lambda it: getattr(it, "__name__", it))
def test_zero_is_refused_except_where_it_means_something(kind: Any, name: str) -> None:
    if (name in ZERO and (kind, name) not in NOT_OF) or (kind, name) in ZERO_OF:
        assert getattr(made(kind, **{name: 0}), name) == 0
    else:
        with pytest.raises(SettingError, match=f"^{name} = 0: must "):
            made(kind, **{name: 0})


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0.0], ids=str)
@pytest.mark.parametrize(("kind", "name"), LISTS, ids=lambda it: getattr(it, "__name__", it))
def test_a_number_in_a_list_is_refused_with_its_place(kind: Any, name: str, value: float) -> None:
    with pytest.raises(SettingError, match=rf"^{name}\[1\] = {value!r}: must "):
        made(kind, **{name: (1.0, value)})


@pytest.mark.parametrize(("kind", "name", "words"), WORDS, ids=lambda it: getattr(it, "__name__", None))
def test_a_word_of_a_closed_set_is_refused_if_it_is_another(kind: Any, name: str, words: Any) -> None:
    for word in get_args(words):
        assert getattr(made(kind, **{name: word}), name) == word
    with pytest.raises(SettingError, match=f"^{name} = 'neither': must "):
        made(kind, **{name: "neither"})
