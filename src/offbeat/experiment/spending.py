"""What the clients of a run with differential privacy have spent, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from pathlib import Path
from typing import Any

from offbeat.core.errors import FolderError
from offbeat.privacy.accounting import column_norm, epsilon_of, mu_of, sampled_epsilon, steps_within
from offbeat.privacy.dp_sgd import rate
from offbeat.watch.results import Result

MANY = 1 << 20  # local steps beyond which it is looked at whether a client may have made them


@dataclass(frozen=True)
class Spending:
    """Of one run with a [privacy] table.

    kept: what its server has reported.   real: whether it was a real run.   tasks: their names, if there are several.
    """

    name: str
    kept: Mapping[str, Any]
    real: bool
    tasks: Sequence[str] = ()

    @property
    def clients(self) -> dict[str, tuple[int, float]]:
        """By client, how often it has contributed over all tasks and its ε; recomputed, not read."""
        return {client: (count, self._epsilon(count)) for client, count in self.kept["contributions"].items()}

    def _epsilon(self, count: int) -> float:
        kept = self.kept
        return epsilon_of(kept["delta"], mu_of(kept["multiplier"], count, column_norm(kept["bands"])))

    @property
    def squares(self) -> dict[str, float]:
        """By client, (sensitivity over noise)² of all that it has contributed: these add up over runs."""
        kept, norm = self.kept, column_norm(self.kept["bands"])
        return {client: mu_of(kept["multiplier"], n, norm) ** 2 for client, n in kept["contributions"].items()}

    @property
    def plain(self) -> dict[str, Any]:
        """For --json."""
        spent = {client: {"contributions": count, "epsilon": eps} for client, (count, eps) in self.clients.items()}
        return {"run": self.name, **self.kept, "clients": spent}

    @property
    def lines(self) -> list[str]:
        """What a reviewer is told."""
        kept = self.kept
        most = max((eps for _, eps in self.clients.values()), default=0.0)
        by_count = sorted(Counter(count for count, _ in self.clients.values()).items(), reverse=True)
        noise = f"standard deviation {kept['multiplier']:.4g} x {kept['clip']:g} in every coordinate of every sum"
        if kept["bands"] > 1:
            noise += f", correlated over {kept['bands']} bands"
        sealed, shared = kept.get("sealed", False), "unknown" in kept
        secret = f"from a secret that only the {'helper has' if sealed else 'servers can open'}"
        secret = "from each client's operating system" if shared else secret
        drawn = secret if self.real else "from the run's seed, so that this simulation hides nothing"
        servers = "a server and a helper that work together" if sealed else "the servers, which see single updates"
        bent = "a server that deviates from the protocol, or works with more members of a sum than that"
        cap = f"{kept['participations']} times"
        over = f" to each of {len(self.tasks)} tasks" if self.tasks else ""
        limit = inf if kept["limit"] is None else kept["limit"]  # a record has no infinity
        return [
            f"{self.name}: {_claim(most, kept['delta'])} for every client"
            f"{', over all tasks together' if self.tasks else ''}",
            f"  at most ({limit:.4g}, {kept['delta']:g}) when a client has contributed {cap}{over}",
            *(f"  {_each(n, count)}, epsilon {self._epsilon(count):.4g}" for count, n in by_count),
            *self._by_task(),
            "What it rests on",
            f"  unit: all contributions of one client, replaced by zeros; each has length {kept['clip']:g} at most",
            f"  noise: Gaussian, {noise}, drawn {drawn}",
            *self._shares(),
            f"  participation: at most once in a sum, {cap} in all{over}, {kept['separation']} or more sums apart; "
            f"{kept['releases']} sums were released",
            "  accounting: exact composition of Gaussian mechanisms; no amplification by sampling is claimed",
            "What it does not cover",
            f"  {bent if shared else servers};",
            "  when and how often a client took part; metrics measured on clients' data; what was computed from all",
            "  data before, such as a vocabulary; other runs on the same data, and the choice of settings by them",
            *_careless(kept["delta"], len(kept["contributions"]), "clients"),
        ]

    def _shares(self) -> list[str]:
        """Where clients add the noise: what that rests on."""
        kept = self.kept
        if "unknown" not in kept:
            return []
        return [
            f"  shares: each client adds noise of standard deviation {kept['share']:.4g}; a sum has at least "
            f"{kept['cohort']}",
            f"  clients, of whom at least {kept['unknown']} tell nobody theirs: the noise above is that of so many",
        ]

    def _by_task(self) -> list[str]:
        pairs = zip(self.tasks, self.kept.get("tasks", ()), strict=False)
        return [
            f"  task {name}: {task['releases']} sums, at most {max(task['contributions'].values(), default=0)} "
            f"contributions of a client, epsilon {self._epsilon(max(task['contributions'].values(), default=0)):.4g}"
            for name, task in pairs
        ]


@dataclass(frozen=True)
class LocalSpending:
    """Of one run whose clients train by dp-sgd, for one task."""

    name: str
    kept: Mapping[str, Any]
    real: bool

    @property
    def clients(self) -> dict[str, tuple[int, float | None]]:
        """By client, its local steps and its ε; None: its samples are not known here, or it claims too much."""
        return {client: (own["steps"], self._epsilon(own)) for client, own in self.kept["clients"].items()}

    def _epsilon(self, own: Mapping[str, Any]) -> float | None:
        if "samples" not in own:
            return None
        noise = rate(own["samples"], own["batch"]), self.kept["multiplier"]
        if own["steps"] > MANY and own["steps"] > steps_within(*noise, self.kept["limit"], self.kept["delta"]):
            return None  # no honest client makes them, and composing what a dishonest one claims would take for ever
        return sampled_epsilon(*noise, own["steps"], self.kept["delta"])

    def _shown(self, client: str, epsilon: float | None) -> str:
        if epsilon is not None:
            return f"{epsilon:.4g}"
        if "samples" in self.kept["clients"][client]:
            return "above its limit if that were so: a client that keeps to its limit refuses such jobs"
        return "known to the client alone, which has its data"

    @property
    def plain(self) -> dict[str, Any]:
        """For --json."""
        spent = {client: {**self.kept["clients"][client], "epsilon": eps} for client, (_, eps) in self.clients.items()}
        return {"run": self.name, **self.kept, "unit": "sample", "clients": spent}

    @property
    def lines(self) -> list[str]:
        """What a reviewer is told."""
        kept, found = self.kept, self.clients
        known = [eps for _, eps in found.values() if eps is not None]
        most = max(known, default=0.0)
        samples = min((own["samples"] for own in kept["clients"].values() if "samples" in own), default=0)
        drawn = (
            "from each client's operating system"
            if self.real
            else "from the run's seed, so that this simulation hides nothing"
        )
        steps = "all local steps behind what the server has received" if self.real else "all local steps"
        return [
            f"{self.name}: {_claim(most, kept['delta'])} for every sample"
            if len(known) == len(found)
            else f"{self.name}: at most ({kept['limit']:g}, {kept['delta']:g})-differentially private for every sample",
            f"  at most ({kept['limit']:g}, {kept['delta']:g}): a client refuses jobs beyond that",
            *(f"  client {c}: {n:,} local steps, epsilon {self._shown(c, eps)}" for c, (n, eps) in found.items()),
            "What it rests on",
            "  unit: one sample at one client, added or removed; against everybody, the servers included",
            f"  noise: Gaussian, standard deviation {kept['multiplier']:.4g} x {kept['clip']:g} in every coordinate of",
            f"  the sum of a step's clipped gradients, drawn {drawn}",
            "  sampling: in a step every sample is drawn independently with probability batch over samples, in secret",
            f"  accounting: privacy loss distribution of the Poisson-sampled Gaussian mechanism, over {steps}",
            "What it does not cover",
            "  how many samples a client has; metrics measured on clients' data; what was computed from all data",
            "  before the run, such as a vocabulary; other runs on the same data, and the choice of settings by them",
            *_careless(kept["delta"], samples, "samples of a client"),
        ]


def _claim(epsilon: float, delta: float) -> str:
    if epsilon == inf:
        return "nothing is claimed: epsilon is beyond a million"
    return f"({epsilon:.4g}, {delta:g})-differentially private"


def _careless(delta: float, many: int, of: str) -> list[str]:
    """A warning about a δ so large that publishing one client's data would satisfy it."""
    if delta * many < 1.0:
        return []
    return [f"  delta = {delta:g} is not below one over the {many} {of}: to show one at random would keep to it"]


def _each(clients: int, contributions: int) -> str:
    many = f"{contributions} contribution{'' if contributions == 1 else 's'}"
    return f"1 client: {many}" if clients == 1 else f"{clients} clients: {many} each"


def of_results(results: Iterable[Result]) -> list[Spending | LocalSpending]:
    """Of those that have a [privacy] table, or clients with budgets of their own."""
    found = list[Spending | LocalSpending]()
    for result in results:
        said, real = result.server or {}, result.real is not None
        names = [task.name for task in result.tasks] if len(result.tasks) > 1 else []
        if "privacy" in said:
            found.append(Spending(result.name, said["privacy"], real, names))
        for task, kept in enumerate(said.get("local_privacy", ())):
            if kept is not None:
                name = f"{result.name}, task {names[task]}" if names else result.name
                found.append(LocalSpending(name, kept, real))
    return found


def together(found: Iterable[Spending | LocalSpending]) -> tuple[float, float] | None:
    """(ε, δ) of a client over all runs with a [privacy] table, for the smallest δ; None: there are not several.

    A client is taken to have the same number in all of them.
    """
    runs = [each for each in found if isinstance(each, Spending)]
    if len(runs) < 2:
        return None
    squares: dict[str, float] = {}
    for each in runs:
        for client, square in each.squares.items():
            squares[client] = squares.get(client, 0.0) + square
    delta = min(each.kept["delta"] for each in runs)
    return epsilon_of(delta, sqrt(max(squares.values(), default=0.0))), delta


def told(found: Sequence[Spending | LocalSpending]) -> list[str]:
    """What a reviewer is told of these runs."""
    lines = [line for each in found for line in each.lines]
    if (all_ := together(found)) is not None:
        lines.append(f"All runs with a [privacy] table together, if their clients are the same: {_claim(*all_)}")
    return lines


def spending(folder: Path) -> list[Spending | LocalSpending]:
    """Of every finished run in a folder."""
    from offbeat.experiment import runs

    found = of_results(runs.open(folder))
    if not found:
        raise FolderError(f"{folder}: no finished run with a [privacy] table or dp-sgd")
    return found
