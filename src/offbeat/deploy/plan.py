"""A real run as settled before it begins: who may take part, the algorithm, where it starts and when it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from offbeat.core.errors import SettingError, positive
from offbeat.core.local import Local
from offbeat.core.metric import Metric, all_metrics
from offbeat.core.server import Server
from offbeat.core.sums import Secure
from offbeat.core.until import Until
from offbeat.core.vectors import Vector
from offbeat.deploy.admission import Limits
from offbeat.deploy.encoding import check_name
from offbeat.privacy.secure.calls import MEMBERS
from offbeat.problems.metrics import Accuracy, Score
from offbeat.simulate.personal import Personal


@dataclass(frozen=True)
class Plan:
    """What is fixed for a run.

    roster: the clients' names; nobody else is let in.   initial: every task's first model.   unit: seconds in one unit
    of the experiment's time.   terms: by task, the times from which and until which it is there.
    metrics: by task, all that its evaluations give, its own metric first; by default what follows from the scores.
    scores: by task, the metrics that clients evaluate; by default accuracy.
    grows: whether clients may be added later; not where the data were split among those that it begins with.
    planned: by task, how many local steps each client's jobs have, if they differ.
    personal: how the clients' own models are judged, if they are.
    secure: whether the server sees sums only; federation: whose, which masks are made for.
    frozen: by task, a digest of the parameters that nobody trains, which clients must have as the server has them.
    dtype: "bfloat16" halves what clients send, for algorithms whose clients have no memory; "": as the model.
    """

    run: str
    roster: Sequence[str]
    server: Server[Any]
    locals: Sequence[Local]
    initial: Sequence[Vector]
    until: Until
    seed: int = 0
    unit: float = 1.0
    terms: Sequence[tuple[float, float]] = ()
    limits: Limits = field(default_factory=Limits)
    dtype: str = ""
    grows: bool = True
    personal: Personal | None = None
    metrics: Sequence[Sequence[Metric]] = ()
    scores: Sequence[Sequence[Score]] = ()
    planned: Sequence[Sequence[int] | None] = ()
    secure: Secure | None = None
    federation: str = ""
    frozen: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_name("run", self.run)
        positive(unit=self.unit)
        self.until.goals(self.measured)  # refuses what no task measures
        for name in self.roster:
            check_name("client", name)
        if len(set(self.roster)) != len(self.roster) or not self.roster:
            raise SettingError(f"roster = {list(self.roster)}: at least one client, and each once")
        if self.dtype not in ("", "bfloat16"):
            raise SettingError(f"dtype = {self.dtype!r}: must be bfloat16 or left out")
        if self.dtype and any(self.remembers):
            raise SettingError(
                "dtype = bfloat16: these clients have a memory, which rounding would part from the server"
            )

        if self.secure is not None:
            self._check_secure(self.secure)
        for task, local in enumerate(self.locals):
            if local.epochs is not None and not (self.planned and self.planned[task]):
                raise SettingError("epochs: how many samples the clients have is not known to the server; give steps")
            if isinstance(local.batch, tuple) and self.grows:
                raise SettingError("batch: clients that come later would have none in this list; give one or a share")
            size, most = self.update_bytes(task) / 2**20, self.limits.size / 2**20
            if size > most:
                raise SettingError(
                    f"an update of this model is {size:,.0f} MB, and at most {most:,.0f} are taken; raise "
                    f"--max-size, halve it with --bfloat16, or train a smaller model"
                )

    def _check_secure(self, secure: Secure) -> None:
        secure.check_clients(len(self.roster))
        if self.pairwise:
            self._check_pairwise(secure)
        if self.limits.norm:
            raise SettingError(
                f"--max-norm {self.limits.norm:g}: [secure] shows the server no single update whose length it could "
                "check; leave it out, and let the clients clip"
            )
        if self.dtype:
            raise SettingError("--bfloat16: [secure] sends whole numbers of 32 bits; leave it out")

    def _check_pairwise(self, secure: Secure) -> None:
        for task in range(len(self.locals)):
            name, working = self._working(task)
            if working is not None and working < secure.cohort:
                raise SettingError(
                    f'{name} = {working}: with secure.mode = "cohort" at least {secure.cohort} (cohort) clients have '
                    "to be ready at the same time; give that many or more"
                )
            size = self.server.adds(task) or 1
            if size > MEMBERS:
                raise SettingError(f'size = {size}: secure.mode = "cohort" has at most {MEMBERS} clients in a sum')
            secure.check_size(size, len(self.roster))

    def _working(self, task: int) -> tuple[str, int | None]:
        """The setting that says how many clients work for a task at a time, and how many; None: all."""
        requests = getattr(self.server, "requests", None)
        if requests is None:
            return "concurrency", getattr(self.server, "concurrency", None)
        return "requests", requests[task] if isinstance(requests, tuple) else requests // len(self.locals)

    @property
    def pairwise(self) -> bool:
        """Whether clients mask for each other."""
        return self.secure is not None and self.secure.mode == "cohort"

    @property
    def helped(self) -> bool:
        """Whether a helper takes masks off sums."""
        return self.secure is not None and self.secure.mode == "helper"

    @property
    def measured(self) -> Sequence[Sequence[Metric]]:
        """By task, all that its evaluations give."""
        return self.metrics or [all_metrics(scores, self.personal is not None) for scores in self.scored]

    @property
    def scored(self) -> Sequence[Sequence[Score]]:
        """By task, the metrics that clients evaluate."""
        return self.scores or [(Accuracy(),)] * len(self.locals)

    def steps(self, task: int, client: int) -> int:
        """Local steps of a client's job, where the server does not say."""
        planned = self.planned[task] if self.planned else None
        return self.locals[task].steps if planned is None else planned[client]

    def update_bytes(self, task: int) -> int:
        """Bytes of an update, with some for its header."""
        half = self.dtype == "bfloat16" and self.initial[task].dtype == torch.float32
        width, coders = self.initial[task].element_size(), self.locals[task].coders
        sizes = {name: (2 if half else width) * length for name, length in self.expected(task).items()}
        return 1024 + sum(coders[n].size(self.expected(task)[n], width) if n in coders else s for n, s in sizes.items())

    @property
    def remembers(self) -> list[bool]:
        """By task, whether clients have a memory."""
        return [bool(local.remember(x)) for local, x in zip(self.locals, self.initial, strict=True)]

    @property
    def agrees(self) -> list[bool]:
        """By task, whether clients have a memory with which the server's state has to agree."""
        pairs = zip(self.locals, self.initial, strict=True)
        return [any(not local.private(name) for name in local.remember(x)) for local, x in pairs]

    def expected(self, task: int) -> dict[str, int]:
        """Name and length of the vectors that an update of this task holds."""
        local, dim = self.locals[task], self.initial[task].numel()
        return {name: 1 if name in local.notes else dim for name in local.sends}
