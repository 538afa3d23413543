"""What a real run tells those who watch it: the simulator's rows, and what every job took."""

from __future__ import annotations

from typing import NamedTuple

from offbeat.deploy import wire
from offbeat.deploy.ledger import Ledger, SentJob
from offbeat.deploy.plan import Plan

_NAN = float("nan")


class Trip(NamedTuple):
    """What one job took, in seconds: measured by the client, the upload being what remains of the whole.

    known: whether `compute` is what the whole job takes; otherwise it takes at least that long.   upload: nan for
    a held result that was never sent.
    """

    client: int
    job: int
    task: int
    download: float
    wait: float
    compute: float
    upload: float
    known: bool = True


class TripWatcher:
    """A watcher that is told what each job took; subclass it."""

    def trip(self, trip: Trip) -> None:
        """A job has arrived."""
        raise NotImplementedError


def trips(plan: Plan, ledger: Ledger, flight: SentJob, result: wire.Trained) -> list[Trip]:
    """What the job took, and others of its client that nobody asked for.

    One that was interrupted would have taken longer, by the steps that were left.
    """
    job, unit = flight.job, plan.unit
    # The client counts up to the end of its last step; interrupted before the first, one step takes longer than that.
    compute = result.compute * job.steps / max(1, result.steps)
    done = flight.sent + (result.download + result.wait + result.compute) / unit
    upload = ledger.now - max(done, flight.since if job.hold else done)  # held work waits to be recalled
    known = result.steps > 0 or not job.steps
    trip = Trip(job.client, job.id, job.task, result.download, result.wait, compute, max(0.0, upload * unit), known)
    others = [
        Trip(job.client, int(number), job.task, result.download, 0.0, took, _NAN)
        for number, took in result.others.items()
        if number.isdecimal() and len(number) < 16
    ]
    return [each for each in (*others, trip) if each.compute >= 0 and each.download >= 0]
