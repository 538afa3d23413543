"""A run as summaries, measures and displays see it, simulated or real."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from offbeat.core.course import RunState, Until
from offbeat.core.local import Local
from offbeat.core.problem import Problem
from offbeat.core.server import Server
from offbeat.simulate.execute import Executor


class WatchedRun(Protocol):
    """A run that others may look at while it goes on and afterwards."""

    @property
    def world(self) -> RunState:
        """All that changes."""

    @property
    def problems(self) -> Sequence[Problem]:
        """By task, what is trained."""

    @property
    def server(self) -> Server[Any]:
        """The algorithm's server."""

    @property
    def locals(self) -> Sequence[Local]:
        """By task, the local trainer."""

    @property
    def until(self) -> Until:
        """When it ends."""

    @property
    def clients(self) -> int:
        """How many there are."""

    @property
    def executor(self) -> Executor:
        """How jobs are computed."""
