"""A client's memory: jobs build on each other in the order in which the client does them, however they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from worlds import Line, Scenario, Scripted, play, same_world, send

from offbeat.core.events import Recall, Send
from offbeat.core.local import Local
from offbeat.core.until import Until
from offbeat.timing.base import Durations

BOTH = pytest.mark.parametrize("stacked", [True, False], ids=["batched", "serial"])


@dataclass(frozen=True)
class Chain(Local):
    """Memory y; a job from x makes y ← 10·y + x and sends it: the digits of y are the jobs, in the order of doing."""

    lr: float = 1.0

    def remember(self, model: Any) -> Any:
        return {"y": model * 0.0}

    def step(self, carry: Any, work: Any) -> Any:
        return carry

    def final(self, carry: Any, work: Any) -> Any:
        y = 10.0 * work.memory["y"] + work.payload["model"]
        return {"delta": y}, {"y": y}


def digits(script: dict[float, Sequence[Any]], jobs: Sequence[Any], stacked: bool, **options: Any) -> list[float]:
    """What arrives, in the order of arrival."""
    clock = Scripted([jobs], **options)
    simulation, _ = play(Scenario(script), clock, Until(time=100.0), locals_=[Chain()], stacked=stacked)
    return [delta for _, _, _, delta in simulation.world.server.arrived]


@BOTH
def test_jobs_in_a_queue_build_on_each_other(stacked: bool) -> None:
    assert digits({0: [send(0, 1.0), send(0, 2.0), send(0, 3.0)]}, [1.0], stacked) == [1.0, 12.0, 123.0]


@BOTH
def test_a_result_that_overtakes_another_still_builds_on_it(stacked: bool) -> None:
    slow, fast = Durations(0.0, 1.0, 9.0), Durations(0.0, 1.0, 1.0)
    assert digits({0: [send(0, 1.0), send(0, 2.0)]}, [slow, fast], stacked) == [12.0, 1.0]


@BOTH
def test_work_sent_after_an_overtaking_result_builds_on_the_newer_one(stacked: bool) -> None:
    """Job 1 is done at 2 and here at 3; job 0 is here only at 10. Job 2, sent at 4, comes after both."""
    slow, fast = Durations(0.0, 1.0, 9.0), Durations(0.0, 1.0, 1.0)
    script = {0: [send(0, 1.0), send(0, 2.0)], 4.0: [send(0, 3.0)], 20.0: [send(0, 4.0)]}
    assert digits(script, [slow, fast, fast, fast], stacked) == [12.0, 123.0, 1.0, 1234.0]


@BOTH
def test_a_lost_job_leaves_no_trace(stacked: bool) -> None:
    lost = Durations(0.0, 1.0, 0.0, lost=True)
    script = {0: [send(0, 1.0), send(0, 2.0), send(0, 3.0)], 9.0: [send(0, 4.0)]}
    assert digits(script, [1.0, lost, 1.0, 1.0], stacked) == [1.0, 13.0, 134.0]


@BOTH
def test_a_client_that_left_keeps_the_memory_of_what_arrived(stacked: bool) -> None:
    script = {0: [send(0, 1.0), send(0, 2.0), send(0, 3.0)], 9.0: [send(0, 4.0)]}
    assert digits(script, [1.0], stacked, flips={0: [2.5, 3.0]}) == [1.0, 12.0, 124.0]


@BOTH
def test_a_recalled_result_builds_on_work_that_is_still_on_its_way(stacked: bool) -> None:
    """Job 0 uploads from 1 to 9; job 1 is held, done at 2 and recalled at 3."""
    slow = Durations(0.0, 1.0, 8.0)
    script = {0: [send(0, 1.0)], 1.0: [send(0, 2.0, hold=True)], 3.0: [Recall(0)]}
    assert digits(script, [slow, slow], stacked) == [1.0, 12.0]


@BOTH
def test_held_work_that_was_replaced_leaves_no_trace(stacked: bool) -> None:
    script = {t: [send(0, float(t + 1), hold=True)] for t in range(4)} | {8.0: [Recall(0)], 9.0: [send(0, 9.0)]}
    assert digits(script, [0.5], stacked) == [4.0, 49.0]


def test_tasks_have_memories_of_their_own() -> None:
    script = {0: [_for_task(0, 1.0), _for_task(1, 5.0), _for_task(0, 2.0), _for_task(1, 6.0)]}

    class Two(Scenario):
        def models(self, state: Any) -> Any:
            return (state.model, state.model)

    ends = [
        play(Two(script), Scripted([[1.0]]), Until(time=9.0), stacked=stacked, problems=[Line([0.0])] * 2,
             locals_=[Chain(), Chain()])[0].world
        for stacked in (True, False)
    ]  # fmt: skip
    assert [delta for _, _, _, delta in ends[0].server.arrived] == [1.0, 5.0, 12.0, 56.0]
    assert same_world(*ends)


def _for_task(task: int, start: float) -> Send:
    return send(0, start, task=task)
