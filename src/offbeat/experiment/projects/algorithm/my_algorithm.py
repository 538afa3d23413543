"""Your own algorithm: a server that decides what to send, and a local trainer that defines what a client does."""

from collections.abc import Sequence
from dataclasses import dataclass

import offbeat as ob


@dataclass
class Memory(ob.State):
    """What the server remembers: numbers, strings, lists, vectors and other States."""

    model: ob.Model
    average: ob.Vector


@dataclass(frozen=True)
class Averaging(ob.Server[Memory]):
    """Steps along a running average of the updates.

    lr: server step size.
    keep: weight of the past.
    """

    lr: float = 1.0
    keep: float = 0.9

    def begin(self, models: Sequence[ob.Vector], view: ob.View) -> Memory:
        return Memory(ob.Model(models[0]), average=models[0] * 0.0)

    def started(self, state: Memory, view: ob.View) -> ob.Commands:
        for client in view.everyone():
            yield self.work(state, client)

    def arrived(self, state: Memory, update: ob.Update, view: ob.View) -> ob.Commands:
        state.average = self.keep * state.average + (1 - self.keep) * update["delta"]
        state.model.step(-self.lr, state.average)
        yield self.work(state, update.job.client)

    def lost(self, state: Memory, job: ob.Job, reason: str, view: ob.View) -> ob.Commands:
        if view.present(job.client):
            yield self.work(state, job.client)

    def joined(self, state: Memory, client: int, view: ob.View) -> ob.Commands:
        yield self.work(state, client)

    def work(self, state: Memory, client: int) -> ob.Send:
        return ob.Send(client, {"model": state.model.vector}, state.model.version)


@dataclass(frozen=True)
class UnitStep(ob.Local):
    """w ← w − lr · g/‖g‖, for many clients at once: every vector is [n, d], one row per client."""

    def step(self, carry: dict[str, ob.Vector], work: ob.Work) -> dict[str, ob.Vector]:
        g = work.gradient(carry["w"])
        return {"w": carry["w"] - work.lr * g / (ob.lengths(g) + 1e-12)}
