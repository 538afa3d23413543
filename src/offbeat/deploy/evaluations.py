"""Evaluations in the fold: clients are asked, their answers are counted, and the run goes by the outcome."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from offbeat.core.errors import DivergedError
from offbeat.core.metric import Metric, in_order, own_metric
from offbeat.core.watcher import Measurement
from offbeat.deploy import wire
from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.judging import Verdict, objection, out_of_range, weigh
from offbeat.deploy.ledger import Judging
from offbeat.deploy.part import FoldPart
from offbeat.simulate.personal import counted, summarise

_NAN = float("nan")


class Evaluations(FoldPart):
    """The evaluations of a run, by its clients, its server, or both."""

    def ask(self, task: int) -> None:
        ledger = self.ledger
        if task >= len(self.plan.locals) or task in ledger.finished:
            return
        self.count(task)  # what the last question has brought
        if task in ledger.finished:
            return
        ledger.asked += 1
        model = self.fold.server.models(ledger.server)[task]
        everybody = len(ledger.clients)
        asked = counted(self.plan.personal, everybody) if ledger.scores else everybody
        when = (ledger.now, ledger.tally.updates, model.version, model.vector)
        ledger.judging[task] = Judging(ledger.asked, task, *when, asked, ledger.scores)
        for client in self.fold.view.everyone():
            if client < asked:
                self.fold.traffic.touch(client)

    def judged(self, client: int, judged: wire.Judged) -> str:
        self.fold.sessions.check_epoch(self.ledger.clients[client], judged.epoch)
        for judging in self.ledger.judging.values():
            if judging.number == judged.number and client < judging.asked:
                own = own_metric(self.plan.measured[judging.task])
                self._check_claim(judging.task, judged, own)
                loss = _NAN if judged.diverged else judged.loss
                judging.claims[client] = (judged.total, loss, judged.sums)
                if own.name in judged.personal and client < counted(self.plan.personal, judging.asked):
                    judging.personal[client] = judged.personal[own.name]
                self.fold.traffic.touch(client)
                self._count_if_all(judging)
                break
        return ""

    def _check_claim(self, task: int, judged: wire.Judged, own: Metric) -> None:
        scores = {score.name: score for score in self.plan.scored[task]}
        said = [objection(scores[name], sums) for name, sums in judged.sums.items() if name in scores]
        said += [f"no metric {name!r}" for name in judged.sums if name not in scores]
        said += [out_of_range(own, value) for value in judged.personal.values()]
        if wrong := next(filter(None, said), ""):
            raise RefusedError("malformed", wrong)

    def _count_if_all(self, judging: Judging) -> None:
        there = self.fold.traffic.census.present
        if judging.unscored:
            return
        wanted = bisect_left(there, judging.asked)  # of those who are there
        if len(judging.claims) >= wanted and all(client in judging.claims for client in there[:wanted]):
            self.count(judging.task)

    def count(self, task: int) -> None:
        """An evaluation by the clients is over, with the answers that came."""
        judging = self.ledger.judging.pop(task, None)
        if judging is None:
            return
        if judging.scored:
            found = None if judging.score is None else Verdict(judging.score, None, False)
        else:
            found = weigh(judging.claims, self.ledger.members, self.plan.scored[task])
        if found is not None:
            each = [judging.personal.get(client) for client in range(max(judging.personal, default=-1) + 1)]
            measured = self.plan.measured[task]
            metrics = in_order({**found.metrics, **summarise(each, measured[0])}, measured)
            header = (task, judging.time, judging.updates, judging.version, metrics, found.diverged)
            self._scored(wire.Scored(self.plan.run, *header), found.sure, each)

    def score(self, scored: wire.Scored) -> None:
        """The server has evaluated a model; where clients do so as well, both count together."""
        judging = self.ledger.judging.get(scored.task)
        if judging is None or not judging.scored or judging.time != scored.time or scored.diverged:
            self._scored(scored)
        else:
            judging.score = scored.metrics
            self._count_if_all(judging)

    def _scored(
        self, scored: wire.Scored, sure: Mapping[str, float] | None = None, each: Sequence[float | None] = ()
    ) -> None:
        ledger = self.ledger
        if scored.task >= len(self.plan.locals) or ledger.measured[scored.task] >= scored.time:
            return
        ledger.measured[scored.task] = scored.time
        metrics = {**scored.metrics, "loss": _NAN} if scored.diverged else scored.metrics
        try:
            self.fold.scored(Measurement(scored.task, scored.time, scored.updates, scored.version, metrics, each), sure)
        except DivergedError as error:
            ledger.diverged = ledger.diverged or str(error)
            self.fold.end("diverged")
