"""Arithmetic on rows, done at once or later, is that of tensors to the last bit; rows are reused, never too early."""

from __future__ import annotations

import gc
import json
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from offbeat.algorithms import AREA, FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import OffbeatError
from offbeat.core.server import Server
from offbeat.core.state import State, Tensors, dump, exchange, load
from offbeat.core.until import Until
from offbeat.core.vectors import dot, materialise, norm, stacked
from offbeat.local import SGD
from offbeat.problems.quadratic import Quadratic
from offbeat.simulate import arena as arenas
from offbeat.simulate.arena import Arena, Arenas, LazyArena
from offbeat.simulate.lazy import LazyVector
from offbeat.simulate.run import prepare
from offbeat.timing import Exponential, Times

DIM = 7
CPU = torch.device("cpu")


KINDS = pytest.mark.parametrize("kind", [Arena, LazyArena], ids=["at once", "later"])


def arena(kind: type[Arena] = Arena, dtype: torch.dtype = torch.float32) -> Arena:
    return kind(DIM, dtype, CPU)


def values(count: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, DIM, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# Random programs

ELEMENTWISE: dict[str, Any] = {
    "product": lambda x, y, a: x * y,
    "quotient": lambda x, y, a: x / (abs(y) + 0.5),
    "shift": lambda x, y, a: a - (x + a),
    "divide": lambda x, y, a: x / (a if abs(a) > 0.1 else 3.0),
    "root": lambda x, y, a: x.abs().sqrt(),
    "roots by torch": lambda x, y, a: torch.sqrt(torch.abs(x)),
    "square": lambda x, y, a: x.square() - y**2,
    "sign": lambda x, y, a: a * (x - y).sign(),
    "larger": lambda x, y, a: torch.maximum(x, a * y),
    "smaller": lambda x, y, a: x.minimum(y),
    "adam": lambda x, y, a: x - a * y / ((x * x).sqrt() + 1e-8),
}
numbers = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 0.5, 1.0 / 3.0]),
    st.floats(-10.0, 10.0, allow_nan=False, width=32),
    st.floats(-1.0, 1.0, allow_nan=False),  # not a number of single precision
)
places = st.integers(0, 1 << 20)
steps = st.one_of(
    st.tuples(st.just("add"), places, places),
    st.tuples(st.just("subtract"), places, places),
    st.tuples(st.just("scale"), places, numbers),
    st.tuples(st.just("negate"), places, st.none()),
    st.tuples(st.just("step"), places, places, numbers),  # x − a·y, as servers do
    st.tuples(st.just("mix"), places, places, numbers, numbers),  # a·x + b·y
    st.tuples(st.sampled_from(sorted(ELEMENTWISE)), places, places, numbers),
    st.tuples(st.just("forget"), places, st.none()),
    st.tuples(st.just("read"), places, st.none()),
    st.tuples(st.just("materialise"), st.none(), st.none()),
)


def performed(held: list[Any], program: Any, space: Arena) -> None:
    """Carry out a program on a list of vectors; what it makes is put at the list's end."""
    for what, first, second, *factors in program:
        x, y = (held[p % len(held)] if isinstance(p, int) else None for p in (first, second))
        if what == "add":
            held.append(x + y)
        elif what == "subtract":
            held.append(x - y)
        elif what == "scale":
            held.append(second * x)
        elif what == "negate":
            held.append(-x)
        elif what == "step":
            held.append(x - factors[0] * y)
        elif what == "mix":
            held.append(factors[0] * x + y * factors[1])
        elif what in ELEMENTWISE:
            held.append(ELEMENTWISE[what](x, y, *factors))
        elif what == "forget" and len(held) > 1:
            del held[first % len(held)]
        elif what == "read":
            assert materialise(x).shape == (DIM,)
        elif what == "materialise":
            space.materialise()


@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(program=st.lists(steps, max_size=150))
def test_random_programs_give_what_eager_torch_gives_bit_for_bit(
    kind: type[Arena], dtype: torch.dtype, program: Any
) -> None:
    space, start = arena(kind, dtype), values(4, dtype)
    recorded: list[Any] = space.keep(start)
    eager: list[Any] = list(start.clone())
    performed(recorded, program, space)
    performed(eager, program, arena())
    assert all(isinstance(vector, LazyVector) for vector in recorded)
    assert torch.equal(stacked(recorded).nan_to_num(7.0), torch.stack(eager).nan_to_num(7.0))


IN_PLACE: dict[str, Any] = {
    "a method": lambda x: x.add_(1.0),
    "an item": lambda x: x.__setitem__(0, 1.0),
    "an operator": lambda x: x.__iadd__(x),
    "out": lambda x: torch.add(torch.ones(DIM), 1.0, out=x),
    "a function": lambda x: torch.relu_(x),
}


@pytest.mark.parametrize("write", IN_PLACE.values(), ids=IN_PLACE)
def test_writing_into_a_vector_is_refused_with_the_way_to_do_it(write: Any) -> None:
    (x,) = arena().keep(values(1))
    with pytest.raises(OffbeatError, match="make a new one, as in v = v \\+ w"):
        write(x)
    assert torch.equal(x.tensor(), values(1)[0])


OTHERS: dict[str, Any] = {
    "a power": lambda x, y: x**3,
    "a comparison": lambda x, y: torch.where(x > y, x, y),
    "a number over it": lambda x, y: 1.0 / x,
    "a product of matrices": lambda x, y: x @ y,
    "a sort": lambda x, y: x.sort().values + y,
    "with a plain one": lambda x, y: x * torch.ones(DIM) / torch.full((DIM,), 3.0),
}


@KINDS
@pytest.mark.parametrize("function", OTHERS.values(), ids=OTHERS)
def test_any_other_function_gives_a_plain_tensor(function: Any, kind: type[Arena]) -> None:
    found = function(*arena(kind).keep(values(2)))
    assert type(found) is torch.Tensor
    assert torch.equal(found, function(*values(2)))


@KINDS
def test_two_factors_are_two_roundings(kind: type[Arena]) -> None:
    (x,) = arena(kind).keep(values(1))
    eager = values(1)[0]
    assert torch.equal(((x * 0.1) * 0.7).tensor(), (eager * 0.1) * 0.7)
    assert not torch.equal((eager * 0.1) * 0.7, eager * (0.1 * 0.7))  # so that the test means something


@KINDS
def test_the_operands_of_a_sum_stay_as_they_are(kind: type[Arena]) -> None:
    """Sums may read a row that was made after they were noted, but never a later value of theirs."""
    space = arena(kind)
    x, y = space.keep(values(2))
    model, chain = x, []
    for _ in range(10):
        chain.append(model)
        model = model - 0.5 * y
    eager, expected = values(2)[0], []
    for _ in range(10):
        expected.append(eager)
        eager = eager - 0.5 * values(2)[1]
    assert torch.equal(stacked(chain), torch.stack(expected))


def test_plain_tensors_and_rows_of_another_arena_can_be_added_too() -> None:
    (x,), (y,) = arena().keep(values(1)), arena().keep(values(1, seed=1))
    a, b = values(1)[0], values(1, seed=1)[0]
    for found in (x + b, a + y, x + y):
        assert torch.equal(materialise(found), a + b)
    for found in (x - b, a - y, x - y):
        assert torch.equal(materialise(found), a - b)
    assert torch.equal(sum([x, x]), a + a)


# Rows


def test_a_row_comes_back_when_nobody_holds_it() -> None:
    space = arena()
    x, y = space.keep(values(2))
    slot, total = x.slot, x + y
    del x
    assert slot in space.free
    assert torch.equal(total.tensor(), values(2).sum(dim=0))


def test_a_row_of_lazy_arithmetic_is_reused_only_after_it_was_materialised() -> None:
    space = LazyArena(DIM, torch.float32, CPU)
    x, y = space.keep(values(2))
    total = x + y
    slot, free = x.slot, len(space.free)
    del x
    assert space.returned == [slot]
    assert slot not in space.free
    assert len(space.free) == free
    others = space.keep(values(len(space.free)))  # all that are free: the sum still has to read the old row
    assert slot not in {v.slot for v in others}
    assert torch.equal(total.tensor(), values(2).sum(dim=0))
    assert slot in space.free  # reading has materialise


@KINDS
def test_a_multiple_keeps_the_row_that_it_is_a_multiple_of(kind: type[Arena]) -> None:
    space = arena(kind)
    (x,) = space.keep(values(1))
    half = -(0.5 * x)
    del x
    space.materialise()
    assert len(space.free) == len(space.matrix) - 1
    assert torch.equal(half.tensor(), -0.5 * values(1)[0])
    del half
    space.materialise()
    assert len(space.free) == len(space.matrix)


@KINDS
def test_growing_keeps_all_values_and_what_is_still_to_be_done(kind: type[Arena]) -> None:
    space = arena(kind)
    begin = len(space.matrix)
    kept = space.keep(values(begin - 1))
    sums = [kept[i] - 0.25 * kept[i + 1] for i in range(3 * begin // 4)]  # grows on the way
    more = space.keep(values(5 * begin, seed=1))
    assert len(space.matrix) > 5 * begin
    eager = values(begin - 1)
    assert torch.equal(stacked(kept), eager)
    assert torch.equal(stacked(more), values(5 * begin, seed=1))
    assert torch.equal(stacked(sums), eager[: len(sums)] - 0.25 * eager[1 : len(sums) + 1])


@KINDS
def test_large_matrices_grow_by_a_quarter(kind: type[Arena], monkeypatch: pytest.MonkeyPatch) -> None:
    space = arena(kind)
    begin, wanted = len(space.matrix), 3 * len(space.matrix)
    monkeypatch.setattr(arenas, "_LARGE", 2 * space.matrix.numel() * space.matrix.element_size())
    kept = [vector for at in range(wanted) for vector in space.keep(values(1, seed=at))]
    assert torch.equal(stacked(kept), torch.cat([values(1, seed=at) for at in range(wanted)]))
    assert len(space.matrix) == (2 * begin) * 5 // 4 * 5 // 4  # not 4 · begin


def test_sums_that_do_not_depend_on_each_other_are_one_level() -> None:
    space = LazyArena(DIM, torch.float32, CPU)
    kept = space.keep(values(20))
    pairs = [kept[i] + kept[i + 1] for i in range(0, 20, 2)]
    assert [len(slots) // 3 for level in space.levels for slots, _ in level.values()] == [10]
    fours = [pairs[i] + pairs[i + 1] for i in range(0, 10, 2)]
    assert [len(slots) // 3 for level in space.levels for slots, _ in level.values()] == [10, 5]
    mixed = fours[0] + kept[0]  # one level above the later of the two
    assert [len(slots) // 3 for level in space.levels for slots, _ in level.values()] == [10, 5, 1]
    del fours, mixed
    space.materialise()
    assert space.levels == []
    assert space.depth == {}


@KINDS
def test_scaling_alone_takes_no_row_and_no_operation(kind: type[Arena]) -> None:
    space = arena(kind)
    (x,) = space.keep(values(1))
    free = len(space.free)
    twice, none = 2.0 * x, 0.0 * x
    assert x + none is x
    assert none + twice is twice
    assert len(space.free) == free
    assert not getattr(space, "levels", [])


@KINDS
def test_a_long_chain_that_nobody_reads_needs_few_rows(kind: type[Arena]) -> None:
    space = arena(kind)
    x, y = space.keep(values(2))
    for _ in range(20_000):
        x = x - 1e-4 * y
    assert len(space.matrix) <= 128
    assert norm(x) == pytest.approx(norm(values(2)[0] - 2.0 * values(2)[1]), rel=1e-2)


@pytest.mark.parametrize("server", [AREA(size=4), FedBuff(size=4)], ids=["area", "fedbuff"])
def test_a_long_run_needs_a_few_rows_a_client(server: Server[Any]) -> None:
    clients = 64
    problem, timing = Quadratic(clients, dim=3, noise=0.1), Times(Exponential(1.0))
    run = prepare(problem, Algorithm(server, SGD(lr=0.01)), timing, Until(updates=20_000), executor="batched")
    run.run()
    (space,) = run.arenas
    assert space is not None
    assert len(space.matrix) <= 8 * clients


# Reading


READINGS = {
    "tensor": lambda x, y: x.tensor(),
    "stacked": lambda x, y: stacked([x, y]),
    "norm": lambda x, y: norm(x),
    "dot": lambda x, y: dot(x, y),
    "a torch function": lambda x, y: torch.maximum(x, torch.zeros(DIM)),
    "a torch function of a list": lambda x, y: torch.stack([x, y]),
    "a method": lambda x, y: x.abs().sum(),
    "an item": lambda x, y: float(x[3]),
    "its length": lambda x, y: len(x),
    "repr": lambda x, y: repr(x),
    "equality": lambda x, y: bool((x == x.tensor()).all()),
    "with a plain tensor": lambda x, y: x + torch.ones(DIM),
}


@KINDS
@pytest.mark.parametrize("reading", READINGS.values(), ids=READINGS)
def test_reading_changes_nothing(reading: Any, kind: type[Arena]) -> None:
    space = arena(kind)
    x, y = space.keep(values(2))
    total, scaled = x + y, -0.3 * x
    for one, other in ((x, y), (total, scaled), (scaled, total)):
        first, again = reading(one, other), reading(one, other)
        assert str(first) == str(again)
    eager = values(2)
    assert torch.equal(stacked([x, y, total, scaled]), torch.stack([*eager, eager[0] + eager[1], -0.3 * eager[0]]))


@KINDS
def test_what_was_read_is_a_copy(kind: type[Arena]) -> None:
    space = arena(kind)
    (x,) = space.keep(values(1))
    x.tensor().zero_()
    stacked([x, x]).zero_()
    assert torch.equal(x.tensor(), values(1)[0])


# As part of a state


@dataclass
class Kept(State):
    """Vectors in several places."""

    model: Any
    sent: dict[int, Any]
    pair: tuple[Any, Any]


def made(space: Arena) -> Kept:
    x, y = space.keep(values(2))
    z = x - 0.5 * y
    return Kept(z, {0: z, 1: x}, (-0.5 * x, z))


EXPECTED = values(2)[0] - 0.5 * values(2)[1]


def test_exchange_replaces_a_shared_vector_by_a_shared_one() -> None:
    kept = made(arena())
    exchange(kept, materialise)
    assert isinstance(kept.model, torch.Tensor)
    assert kept.model is kept.sent[0] is kept.pair[1]
    assert torch.equal(kept.model, EXPECTED)
    arenas = Arenas()
    exchange(kept, arenas.adopt)
    assert isinstance(kept.model, LazyVector)
    assert kept.model is kept.sent[0] is kept.pair[1]
    space = arenas.like(EXPECTED)
    assert len(space.matrix) - len(space.free) == 3
    assert torch.equal(stacked([kept.model, kept.pair[0]]), torch.stack([EXPECTED, -0.5 * values(2)[0]]))


def test_adopting_takes_rows_of_other_arenas_and_leaves_its_own() -> None:
    arenas, (foreign,) = Arenas(), arena().keep(values(1))
    mine = arenas.adopt(foreign)
    assert mine.arena is arenas.like(values(1)[0])
    assert arenas.adopt(mine) is mine
    assert torch.equal(mine.tensor(), values(1)[0])


def test_dump_and_load_keep_what_is_shared_shared() -> None:
    kept, tensors = made(arena()), Tensors()
    written = json.dumps(dump(kept, tensors))
    assert len(tensors.table) == 3  # z, x and −½·x
    back = load(json.loads(written), tensors.table)
    assert back.model is back.sent[0] is back.pair[1]
    assert torch.equal(back.model, EXPECTED)
    assert torch.equal(back.pair[0], -0.5 * back.sent[1])


@KINDS
def test_rows_of_reference_cycles_come_back_at_any_moment(kind: type[Arena]) -> None:
    """The garbage collector may return rows in the middle of anything."""
    space = arena(kind)
    x, y = space.keep(values(2))
    for i in range(2000):
        ring: list[Any] = [x + y]
        ring.append(ring)
        if i % 100 == 0:
            gc.collect()
    del ring
    gc.collect()
    space.materialise()
    assert len(space.free) == len(space.matrix) - 2
    assert len(set(space.free)) == len(space.free)
    assert torch.equal(stacked([x, y]), values(2))
