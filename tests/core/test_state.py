"""State goes through JSON text and a table of tensors and comes back as it was."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, strategies as st

from offbeat.core.errors import FolderError
from offbeat.core.state import State, Tensors, copied, dump, load


@dataclass
class Leaf(State):
    value: Any
    other: Any = None


def back(value: Any) -> Any:
    tensors = Tensors()
    text = json.dumps(dump(value, tensors), allow_nan=False)
    return load(json.loads(text), tensors.table)


atoms = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
keys = st.integers() | st.text() | st.tuples(st.integers(), st.integers())
trees = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(keys, inner), st.builds(Leaf, inner, inner)
    ),
    max_leaves=20,
)


@given(trees)
def test_any_tree_comes_back_equal_and_of_the_same_types(tree: Any) -> None:
    found = back(tree)
    assert found == tree
    assert repr(found) == repr(tree)  # 1 and 1.0 and True are equal but not the same


@given(st.floats())
def test_every_number_comes_back_to_the_last_bit(number: float) -> None:
    found = back(Leaf(number)).value
    assert (math.isnan(found) and math.isnan(number)) or found.hex() == number.hex()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.bool])
def test_a_tensor_keeps_its_type_and_its_bits(dtype: torch.dtype) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    found = back({"x": tensor})["x"]
    assert found.dtype == dtype
    assert torch.equal(found, tensor)


def test_a_tensor_in_two_places_is_stored_once_and_is_shared_again() -> None:
    shared, equal = torch.ones(3), torch.ones(3)
    tensors = Tensors()
    data = dump([Leaf(shared, equal), {"again": shared}], tensors)
    assert len(tensors.table) == 2
    leaf, mapping = load(data, tensors.table)
    assert leaf.value is mapping["again"]
    assert leaf.other is not leaf.value


def test_keys_that_json_does_not_have_come_back() -> None:
    value = {3: "a", (1, 2): "b", "$tensor": "c", "3": "d"}
    assert back(value) == value


def test_a_kind_that_the_program_does_not_know_is_refused() -> None:
    with pytest.raises(FolderError, match=r"unknown kind 'os:system'.*import the module"):
        load({"$state": "os:system", "fields": {"command": "true"}}, {})
    with pytest.raises(FolderError, match="unknown kind None"):
        load({"whatever": 1}, {})


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", 1j])
def test_what_cannot_be_written_down_is_refused_when_it_is_saved(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be saved"):
        dump([Leaf(value)], Tensors())


class Pair(NamedTuple):
    numbers: list[int]
    other: int


def test_a_copy_shares_nothing_that_can_be_changed() -> None:
    vector = torch.ones(2)
    tree: Any = [Leaf(vector, {1: [2]}), defaultdict(list, {"a": [1]}), Pair([1], 2), ([1], (2, [3]))]
    before, again = repr(tree), copied(tree)
    assert repr(again) == before
    assert again[0].value is vector
    again[0].value = None
    for each in (again[0].other[1], again[1]["a"], again[1]["b"], again[2].numbers, again[3][0], again[3][1][1]):
        each.append(4)
    assert repr(tree) == before
