"""Samples that are read when needed train the same models as samples in memory, in bounded memory."""

from __future__ import annotations

import pickle
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset as TorchDataset

import offbeat as ob
from offbeat.core.errors import DataError
from offbeat.data import Padded, Read, dataset, samples
from offbeat.data.lazy import Cache
from offbeat.simulate.pool import Pool
from offbeat.timing import Exponential, Times

N = 90
RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (N, 1, 4, 4), dtype=np.uint8)
Y = RNG.integers(0, 3, N)
ROW = 16 + 8  # bytes
CLOCK = Times(Exponential(1.0))
ALGORITHMS = {
    "steps": ob.Algorithm(ob.FedBuff(size=2), ob.SGD(lr=0.1, steps=4, batch=8)),
    "epochs": ob.Algorithm(ob.AREA(size=2), ob.SGD(lr=0.1, steps=3, batch=8, shuffle=True)),
    "all data": ob.Algorithm(ob.FedBuff(size=2), ob.SGD(lr=0.1, steps=2, batch=None)),
}


class Images(TorchDataset[Any]):
    """The same images, decoded when they are read; counts how often, and in which threads."""

    def __init__(self) -> None:
        self.packed = [zlib.compress(x.tobytes()) for x in X]
        self.reads = np.zeros(N, int)
        self.threads: set[str] = set()

    def __len__(self) -> int:
        return N

    def __getitem__(self, at: int) -> tuple[np.ndarray, int]:
        self.reads[at] += 1
        self.threads.add(threading.current_thread().name)
        return np.frombuffer(zlib.decompress(self.packed[at]), np.uint8).reshape(1, 4, 4), int(Y[at])


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Tanh(), nn.Linear(6, 3))


def ran(task: ob.Supervised, updates: int) -> Any:
    return ob.run(task, ALGORITHMS["steps"], CLOCK, ob.Until(updates=updates), executor="serial")


def problem(given: Any) -> ob.Supervised:
    return ob.Supervised.split(given, clients=5, split=ob.data.Dirichlet(0.5), model=net(), l2=1e-3)


def trained(given: Any, how: str, executor: Any) -> tuple[Tensor, Any]:
    done = ob.run(problem(given), ALGORITHMS[how], CLOCK, ob.Until(updates=24), executor=executor)
    return done.model, done.history


@pytest.mark.parametrize("executor", ["serial", "batched"])
@pytest.mark.parametrize("how", ALGORITHMS)
@pytest.mark.parametrize("keep", [0, 20 * ROW, 1 << 30], ids=["none", "some", "all"])
def test_the_same_run_as_in_memory_bit_for_bit(keep: int, how: str, executor: str) -> None:
    model, history = trained((X, Y), how, executor)
    lazy, seen = trained(Read(Images(), keep=keep), how, executor)
    assert torch.equal(model, lazy)
    assert history == seen
    without_thread, _ = trained(Read(Images(), keep=keep, ahead=False), how, executor)
    assert torch.equal(model, without_thread)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool(2)
    yield made
    made.close()


def test_worker_processes_read_for_themselves(pool: Pool) -> None:
    model, history = trained((X, Y), "steps", "serial")
    spread, seen = trained(Read(Images(), keep=20 * ROW), "steps", pool)
    assert torch.equal(model, spread)
    assert history == seen


def test_neither_what_is_kept_nor_the_thread_travels() -> None:
    big = Read(list(zip(X, Y.tolist(), strict=True)))
    big.ahead(torch.arange(8))
    big.take(torch.arange(40))
    assert big.cache.used >= 40
    assert big.cache.thread is not None
    other = pickle.loads(pickle.dumps(big))
    assert (other.cache.used, other.cache.thread, other.cache.coming) == (0, None, {})
    which = torch.tensor([[3, 80], [3, 0]])
    assert all(torch.equal(other.take(which)[name], values) for name, values in big.take(which).items())


def test_what_is_kept_is_read_once_and_no_more_is_kept_than_there_is_room_for() -> None:
    images = Images()
    read = Read(images, keep=30 * ROW)
    images.reads[:] = 0
    for _ in range(3):
        for start in range(0, N, 10):
            assert torch.equal(read.take(torch.arange(start, start + 10))["y"], torch.from_numpy(Y[start : start + 10]))
    assert images.reads.tolist() == [1] * 30 + [3] * 60
    assert (read.cache.used, len(read.cache.kept["x"])) == (30, 30)


class SlowImages(Images):
    def __getitem__(self, at: int) -> tuple[np.ndarray, int]:
        time.sleep(0.0005)
        return super().__getitem__(at)


def test_the_next_mini_batch_is_read_by_a_thread_if_that_takes_long() -> None:
    images = SlowImages()
    model, history = trained(Read(images, keep=0), "steps", "serial")
    assert {"MainThread"} < images.threads
    stored, same = trained((X, Y), "steps", "serial")
    assert torch.equal(model, stored)
    assert history == same
    own = SlowImages()
    trained(Read(own, keep=0, ahead=False), "steps", "serial")
    assert own.threads == {"MainThread"}


def test_many_items_are_asked_for_at_once_where_that_is_possible() -> None:
    class Several(Images):
        def __getitems__(self, which: list[int]) -> list[Any]:
            asked.append(len(which))
            return [self[at] for at in which]

    asked: list[int] = []
    samples(Several()).take(torch.arange(7))
    assert asked[-1] == 7


def test_a_number_of_numpy_is_a_number() -> None:
    found = samples([(x.astype(np.float32), y, np.float32(y)) for x, y in zip(X, Y, strict=True)])
    assert [found.shape(name) for name in found.names] == [(1, 4, 4), (), ()]
    assert torch.equal(found["x2"], torch.from_numpy(Y))


def test_labels_that_a_data_set_knows_are_not_read_one_by_one() -> None:
    class Known(Images):
        targets = Y.tolist()

    known = Known()
    read = samples(known)
    assert np.array_equal(read.column("y"), Y)
    assert known.reads.sum() < 10

    class Other(Images):
        targets = (Y + 1).tolist()  # of what the items give something else is made

    assert np.array_equal(samples(Other()).column("y"), Y)


def test_parts_and_devices_share_one_cache() -> None:
    images = Images()
    read = Read(images)
    part = read.part(np.array([5, 6, 7])).part(np.array([2, 0]))
    assert part["y"].tolist() == Y[[7, 5]].tolist()
    assert torch.equal(part.take(torch.tensor([0]))["x"], read.take(torch.tensor([7]))["x"])
    assert part.cache is read.cache
    assert images.reads[7] == 1


class Texts:
    """Sentences of unlike lengths."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, at: int) -> dict[str, Any]:
        words = [(at * k) % 7 for k in range(1, 2 + at % 6)]
        return {"words": words, "y": float(sum(words)), "text": "…"}


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(7, 1)

    def forward(self, words: Tensor) -> Tensor:
        return self.words(words).squeeze(-1)


def masked(output: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    return ((output * mask).sum(1) - target).square()


def test_unlike_lengths_are_padded_and_the_loss_gets_the_mask() -> None:
    with pytest.raises(DataError, match=r"'words' of sample \d+ is \[\d\], and of others \[\d\]; .*collate"):
        ob.Supervised.split(Texts(), clients=2, model=Bag(), loss="mse")
    read = samples(Texts(), collate=Padded(6))
    assert read.take(torch.tensor([1]))["mask"].tolist() == [[True, True] + [False] * 4]
    lazy = ob.Supervised.split(read, clients=2, model=Bag(), loss=masked, metrics=[])
    assert lazy.objective.columns == ("words", "y", "mask")
    items = [Texts()[at] for at in range(40)]
    table = {"words": [item["words"] for item in items], "y": [item["y"] for item in items]}
    stored = ob.Supervised.split(table, clients=2, model=Bag(), loss=masked, metrics=[])
    assert torch.equal(ran(lazy, 10).model, ran(stored, 10).model)


def test_padding_of_labels_does_not_count() -> None:
    pad = Padded(3)
    made = pad([([1, 2], [1, 0]), ([3], [2])])
    assert made["x"].tolist() == [[1, 2, 0], [3, 0, 0]]
    assert made["y"].tolist() == [[1, 0, -100], [2, -100, -100]]
    assert Padded(1, ["x"], {"x": 9})([([], 1), ([4, 5], 0)])["x"].tolist() == [[9], [4]]


class Large:
    """Ten times as much as may be kept, made when it is read."""

    def __init__(self, count: int, width: int) -> None:
        self.count, self.width, self.most = count, width, 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        self.most = max(self.most, resident())
        return torch.full((self.width,), at % 7 / 7), at % 2


def resident() -> int:
    """Bytes of memory in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_data_set_of_ten_times_what_may_be_kept_trains_in_flat_memory() -> None:
    width, room = 8192, 400
    keep = room * (4 * width + 8)
    test = (torch.zeros(4, width), torch.tensor([0, 1, 0, 1]))
    algorithm = ob.Algorithm(ob.FedBuff(size=2), ob.SGD(lr=1e-4, steps=10, batch=32))

    def grown(count: int) -> int:
        """Bytes that memory grew by at most."""
        large = Large(count, width)
        data = dataset((Read(large, keep=keep), test), classes=2)
        task = ob.Supervised.split(data, clients=4, model=nn.Linear(width, 2), measured=100)
        before = resident()
        ob.run(task, algorithm, CLOCK, ob.Until(updates=count // 100), executor="serial")
        assert isinstance(data.train, Read)
        assert data.train.cache.used == room
        return large.most - before

    grown(2 * room)  # what the first run of a process needs once
    assert grown(10 * room) < 2.5 * keep  # the cache and a few mini-batches, of ten times the cache


@pytest.mark.slow
def test_reading_keeps_pace_with_a_plain_data_loader() -> None:
    rng = np.random.default_rng(0)
    packed = [zlib.compress(rng.integers(0, 16, (3, 32, 32), dtype=np.uint8).tobytes(), 1) for _ in range(4000)]

    class Packed(TorchDataset[Any]):
        def __len__(self) -> int:
            return len(packed)

        def __getitem__(self, at: int) -> tuple[Tensor, int]:
            raw = torch.frombuffer(bytearray(zlib.decompress(packed[at])), dtype=torch.uint8)
            return raw.view(3, 32, 32), at % 10

    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(3072, 64), nn.ReLU(), nn.Linear(64, 10))

    given = Packed()

    def plain(steps: int) -> float:
        """Seconds a step."""
        module, begin, done = model(), time.perf_counter(), 0
        optimiser = torch.optim.SGD(module.parameters(), 0.01)
        while done < steps:
            for x, y in DataLoader(given, 32, shuffle=True):
                optimiser.zero_grad()
                nn.functional.cross_entropy(module(x.float() / 255), y).backward()
                optimiser.step()
                done += 1
        return (time.perf_counter() - begin) / done

    train = Read(given, keep=len(packed) * 3080 // 10)
    data = dataset((train, (torch.zeros(4, 3, 32, 32), torch.arange(4))), classes=10)
    task = ob.Supervised.split(data, clients=10, model=model(), measured=1)
    algorithm = ob.Algorithm(ob.FedBuff(size=2), ob.SGD(lr=0.01, steps=25, batch=32))

    def ours(steps: int) -> float:
        begin = time.perf_counter()
        ob.run(task, algorithm, CLOCK, ob.Until(updates=steps // 25), executor="serial")
        return time.perf_counter() - begin

    times = [(plain(250), (ours(350) - ours(100)) / 250) for _ in range(5)]  # without the evaluation at the end
    assert np.median([theirs / own for theirs, own in times]) > 0.7


class Odd:
    """Items with something wrong with them."""

    def __init__(self, wrong: Any) -> None:
        self.wrong = wrong

    def __len__(self) -> int:
        return 9

    def __getitem__(self, at: int) -> Any:
        return self.wrong(at)


def failing(at: int) -> Any:
    if at == 5:
        raise OSError("cannot open 5.png\nand more")
    return torch.zeros(2), 0


WRONG = {
    "raises": (failing, "sample 5 cannot be read: OSError: cannot open 5.png$"),
    "draws": (lambda at: (torch.rand(2), 0), "'x' of sample 0 differs when it is read twice"),
    "shapes": (lambda at: (torch.zeros(2 + at // 8), 0), r"'x' of sample 8 is \[3\], and of others \[2\]"),
    "kinds": (lambda at: (torch.zeros(2), 0.5 if at == 3 else 0), "'y' is float"),
    "nan": (lambda at: (torch.full((2,), np.nan if at == 4 else 0.0), 0), "'x': sample 4 is not finite"),
    "objects": (lambda at: (object(), 0), "'x' of sample 0 is a object, neither numbers nor text"),
    "missing": (lambda at: {"x": torch.zeros(2), **({"y": 0} if at < 3 else {})}, "KeyError|'y' is not there"),
    "text": (lambda at: (torch.zeros(2), "cat"), "'y' is text, and samples are read when needed"),
}


@pytest.mark.parametrize("name", WRONG)
def test_items_that_cannot_be_samples_are_named_before_the_first_job(name: str) -> None:
    wrong, said = WRONG[name]
    with pytest.raises(DataError, match=said) as raised:
        ob.Supervised.split(Odd(wrong), clients=2, model=nn.Linear(2, 3))
    assert "\n" not in str(raised.value)


def test_a_failure_in_the_thread_is_the_same_error() -> None:
    cache = Cache(samples(Odd(lambda at: (torch.zeros(2), at))).cache.source, 0, True)  # type: ignore[attr-defined]
    cache.source.given.wrong = failing  # type: ignore[attr-defined]
    cache.expect(np.array([5]))
    with pytest.raises(DataError, match="sample 5 cannot be read"):
        cache.take(np.array([5]))
