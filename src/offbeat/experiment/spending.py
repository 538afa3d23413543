"""What the clients of a run with differential privacy have spent, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offbeat.core.errors import FolderError
from offbeat.privacy.accounting import column_norm, epsilon_of, mu_of
from offbeat.watch.results import Result


@dataclass(frozen=True)
class Spending:
    """Of one run. kept: what its server has reported.   real: whether it was a real run."""

    name: str
    kept: Mapping[str, Any]
    real: bool

    @property
    def clients(self) -> dict[str, tuple[int, float]]:
        """By client, how often it has contributed and its ε; recomputed, not read."""
        return {client: (count, self._epsilon(count)) for client, count in self.kept["contributions"].items()}

    def _epsilon(self, count: int) -> float:
        kept = self.kept
        return epsilon_of(kept["delta"], mu_of(kept["multiplier"], count, column_norm(kept["bands"])))

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
        sealed = kept.get("sealed", False)
        secret = f"from a secret that only the {'helper has' if sealed else 'servers can open'}"
        drawn = secret if self.real else "from the run's seed, so that this simulation hides nothing"
        cap = f"{kept['participations']} times"
        return [
            f"{self.name}: ({most:.4g}, {kept['delta']:g})-differentially private for every client",
            f"  at most ({kept['limit']:.4g}, {kept['delta']:g}) when a client has contributed {cap}",
            *(f"  {_each(n, count)}, epsilon {self._epsilon(count):.4g}" for count, n in by_count),
            "What it rests on",
            f"  unit: all contributions of one client, replaced by zeros; each has length {kept['clip']:g} at most",
            f"  noise: Gaussian, {noise}, drawn {drawn}",
            f"  participation: at most once in a sum, {cap} in all, {kept['separation']} or more sums apart; "
            f"{kept['releases']} sums were released",
            "  accounting: exact composition of Gaussian mechanisms; no amplification by sampling is claimed",
            "What it does not cover",
            f"  {'a server and a helper that work together' if sealed else 'the servers, which see single updates'};",
            "  when and how often a client took part; metrics measured on clients' data; other runs on the same data,",
            "  and the choice of settings by them",
        ]


def _each(clients: int, contributions: int) -> str:
    many = f"{contributions} contribution{'' if contributions == 1 else 's'}"
    return f"1 client: {many}" if clients == 1 else f"{clients} clients: {many} each"


def of_results(results: Iterable[Result]) -> list[Spending]:
    """Of those that have a [privacy] table."""
    kept = [(result, (result.server or {}).get("privacy")) for result in results]
    return [Spending(result.name, each, result.real is not None) for result, each in kept if each is not None]


def spending(folder: Path) -> list[Spending]:
    """Of every finished run in a folder."""
    from offbeat.experiment import runs

    found = of_results(runs.open(folder))
    if not found:
        raise FolderError(f"{folder}: no finished run with a [privacy] table")
    return found
