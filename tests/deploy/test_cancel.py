"""A server that stops clients in the middle of their work, over a real broker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from served import Served, kill, staged, until
from worlds import Line

from offbeat.algorithms import Ringmaster
from offbeat.deploy.refold import fingerprint, refold
from offbeat.local import Gradient


@dataclass(frozen=True)
class Slow(Line):
    """The first client's gradient takes longer than many steps of the others."""

    def oracle(self, clients: Sequence[int], *given: Any) -> Any:
        if 0 in clients:
            time.sleep(0.3)
        return super().oracle(clients, *given)


def test_a_slow_client_is_stopped_again_and_again_and_none_of_its_late_results_counts(tmp_path: Path) -> None:
    async def act(served: Served) -> None:
        server, task = await served.serve("one", wait=3, save_every=1e9)
        clients = [(await served.join(name))[0] for name in served.names]
        await until(lambda: server.ledger.tally.refused.get("cancelled", 0) > 1)
        await kill(server, task)  # with cancelled work on its way
        server, _ = await served.serve("one", wait=3, save_every=1e9)
        before = server.ledger.tally.updates
        await until(lambda: server.ledger.tally.refused.get("cancelled", 0) > 3)
        await until(lambda: server.ledger.tally.updates > before + 20)
        tally, state = server.ledger.tally, server.ledger.server
        assert tally.cancelled > 5
        assert tally.refused.keys() <= {"cancelled"}
        assert (state.ignored, state.model.stale < 2) == (0, True)  # a step was made with every result that counts
        assert state.model.version == tally.updates == sum(record.applied for record in server.ledger.clients)
        assert all(client.state is not None and client.state.epoch == 1 for client in (each.core for each in clients))
        server.leave()
        await until(lambda: not server.leading)
        link = await served.link("server")
        assert fingerprint(await refold(link, served.plan(), server.ledger.position)) == fingerprint(server.ledger)

    problem = Slow([1.0, 2.0, 4.0])
    staged(Served(tmp_path, problem=problem, server=Ringmaster(threshold=2, stop=True), local=Gradient()), act)
