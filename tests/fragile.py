"""Problems that break the process or the call they are in; a module of their own, for worker processes to import."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worlds import Line

from offbeat.problems.quadratic import Quadratic


@dataclass(frozen=True)
class Deadly(Quadratic):
    """A quadratic some of whose gradients end the process; once only, if a file says so."""

    deadly: frozenset[int] = frozenset()
    grave: str = ""

    def oracle(self, clients: Any, *rest: Any) -> Any:
        if self.deadly & {int(c) for c in clients} and not (self.grave and Path(self.grave).exists()):
            if self.grave:
                Path(self.grave).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().oracle(clients, *rest)


@dataclass(frozen=True)
class Broken(Line):
    """A problem with a mistake in it."""

    def oracle(self, *_: Any) -> Any:
        raise RuntimeError("no such sample")
