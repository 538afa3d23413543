"""The state of a run as plain data, for `offbeat status` and others that ask."""

from __future__ import annotations

from typing import Any

from offbeat.deploy.server_core import ServerCore


def status_of(core: ServerCore, clock: float) -> dict[str, Any]:
    """What the ledger says. clock: local seconds, as the core's."""
    ledger, plan = core.ledger, core.plan
    tally = ledger.tally
    return {
        "run": plan.run,
        "state": ledger.stopped or ("running" if ledger.begun else "waiting for clients"),
        "time": ledger.now,
        "updates": tally.updates,
        "lost": tally.lost,
        "repeated": tally.repeated,
        "staleness": tally.staleness_sum / tally.updates if tally.updates else 0.0,
        "versions": [model.version for model in plan.server.models(ledger.server)],
        "position": ledger.position,
        "folded": clock - core.folded_at,
        "clients": [
            {
                "name": record.name,
                "present": record.present,
                "removed": record.removed,
                "useless": record.strikes,
                "epoch": record.epoch,
                "applied": record.applied,
                "refused": record.refused,
                "failed": record.failed,
                "jobs": len(record.queue) + len(record.held),
                "silent": clock - core.heard[client] if client in core.heard else None,
            }
            for client, record in enumerate(ledger.clients)
        ],
    }
