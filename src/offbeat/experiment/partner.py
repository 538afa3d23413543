"""What a site brings to a run: its samples, and what it allows.

PyTorch is imported when there is a run to take part in: that takes seconds, and what is wrong before is said at once.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offbeat.core import names
from offbeat.core.errors import DataError, SettingError

if TYPE_CHECKING:
    from offbeat.deploy.client import Party
    from offbeat.experiment.real import PartyMaker

VERSION = 1  # of the charter


class Partner:
    """A site as far as its runs are concerned.

    data: "package.module:function" that gives this client's own samples.   device: "" for the experiment's own.
    models: names outside offbeat, of model factories and others, that the server may ask for: nothing else is imported
        at its word.   holdout: share of the samples kept for evaluation.
    cohort: only in runs that sum the updates of so many clients.
    budget: only in runs whose local trainers are dp-sgd and spend at most this (ε, δ) on one sample, over all tasks.
    """

    def __init__(
        self,
        data: str = "",
        models: Sequence[str] = (),
        device: str = "",
        holdout: float = 0.2,
        cohort: int | None = None,
        budget: tuple[float, float] | None = None,
    ) -> None:
        self.options, self.cohort, self.budget = (data, models, device, holdout), cohort, budget
        self.maker: PartyMaker | None = None
        if data:
            loader(data)

    def objection(self, charter: Mapping[str, Any], client: str) -> str:
        """Why this client cannot take part in a run, where it is not up to the client; "" if it can."""
        run, version = charter["run"], charter.get("version")
        if version != VERSION:
            older = "server" if isinstance(version, int) and version < VERSION else "client"
            return f"the server of {run} speaks version {version} and this client {VERSION}; upgrade the {older}"
        if client not in charter["roster"]:
            return f"{client} is not on the roster of {run}; the coordinator can add it with `offbeat keys add`"
        if self.cohort is not None:
            table = charter["experiment"].get("secure")
            asked = table.get("cohort", 30) if isinstance(table, Mapping) else 1
            summed = asked if isinstance(asked, int) else 1  # what is no number is refused when the run is read
            if summed < self.cohort:
                what = "shows its server single updates" if summed == 1 else f"sums the updates of only {summed}"
                return f"{run} {what}, and {client} was told to take part where {self.cohort} are summed (--cohort)"
        return ""

    def party(self, charter: Mapping[str, Any], client: str) -> Party:
        """This client's part in a run."""
        from offbeat.experiment.real import PartyMaker

        self.maker = self.maker or PartyMaker(*self.options)
        party = self.maker.party(charter, client)
        if self.budget is not None:
            check_budget(party, *self.budget)
        return party


def check_budget(party: Party, epsilon: float, delta: float) -> None:
    """Raise `SettingError` if a run may spend more than this on one of a site's samples."""
    from offbeat.privacy.dp_sgd import inside

    noises = [None if (found := inside(local)) is None else found.noise for local in party.locals]
    spent = [(each.epsilon, each.delta) for each in noises if each is not None]
    if len(spent) < len(noises):
        raise SettingError(
            f"--epsilon {epsilon:g}: {party.run} trains without dp-sgd, so nothing bounds what its server learns about "
            "a sample; have its operator use dp-sgd, or leave the option out"
        )
    total = sum(each for each, _ in spent), sum(each for _, each in spent)
    if total[0] > epsilon or total[1] > delta:
        raise SettingError(
            f"--epsilon {epsilon:g} --delta {delta:g}: {party.run} may spend epsilon = {total[0]:g} and delta = "
            f"{total[1]:g}{' over its tasks' if len(spent) > 1 else ''}; have its operator lower them"
        )


def loader(name: str) -> Callable[[str], Any]:
    """The function behind "package.module:function", which takes nothing or the client's name."""
    where = f"--data {name}"
    if not names.imported(name):
        raise SettingError(f"{where}: write package.module:function")
    found = names.import_name(name, where)
    if not callable(found):
        raise SettingError(f"{where}: is a {type(found).__name__}, not a function")
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # some callables written in C have none
        return lambda client: found()
    for arguments in ((), ("client",)):
        with contextlib.suppress(TypeError):
            signature.bind(*arguments)
            return lambda client: found(*(client for _ in arguments))
    raise SettingError(f"{where}: takes {signature}; it is called without arguments, or with the client's name")


def samples(name: str, client: str) -> Any:
    """What a client's loader gives."""
    load = loader(name)
    try:
        return load(client)
    except (Exception, SystemExit) as error:
        raise DataError(f"--data {name}: failed with {type(error).__name__}: {error}") from error


def state_folder() -> Path:
    """Where clients keep their state by default."""
    return Path.home() / ".local" / "state" / "offbeat"
