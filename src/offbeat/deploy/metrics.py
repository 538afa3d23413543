"""A run that is being served as operators see it: its numbers and its health on a port of its own."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from offbeat.core.errors import SettingError
from offbeat.deploy.server import RunServer

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

STUCK = 10.0  # seconds without a turn of the event loop, after which the process should be started again


class RunCollector(Collector):
    """A run's numbers, as they are when they are asked for."""

    def __init__(self, server: RunServer) -> None:
        self.server = server

    def collect(self) -> Iterator[Metric]:
        server, ledger, link = self.server, self.server.ledger, self.server.link
        tally = ledger.tally
        for name, text, count in (
            ("updates", "Results that were applied.", tally.updates),
            ("lost", "Jobs that were lost.", tally.lost),
            ("cancelled", "Jobs that the algorithm has cancelled.", tally.cancelled),
            ("repeated", "Messages that had been settled before.", tally.repeated),
            ("staleness", "Summed staleness of the applied results.", tally.staleness_sum),
            (
                "cohorts_aborted",
                "Cohorts that were called again, because too few of their members were left.",
                ledger.aborted,
            ),
            (
                "clients_left_out",
                "Clients that are left out, because they have kept cohorts from giving a sum.",
                ledger.left_out,
            ),
            ("sums_unopened", "Secure sums that were lost.", ledger.unopened),
            ("updates_cut", "Updates of which secure aggregation has cut off a part.", tally.cut),
            ("received_bytes", "Bytes read from the broker.", link.bytes_in),
            ("sent_bytes", "Bytes sent to the broker.", link.bytes_out),
        ):
            yield CounterMetricFamily(f"offbeat_{name}", text, count)
        for name, text, value in (
            ("staleness_max", "Largest staleness so far.", tally.staleness_max),
            ("clients_present", "Clients that are connected.", sum(record.present for record in ledger.clients)),
            ("jobs_in_flight", "Jobs between sending and end.", server.core.reducer.view.flying),
            ("log_position", "Entries of the log that were folded.", ledger.position),
            ("inbox_waiting", "Messages that clients have sent and that were not folded yet.", server.backlog[0]),
            (
                "lag_seconds",
                "For which the oldest such message, or the last that was folded, has waited.",
                server.lag,
            ),
            ("folded_seconds", "Since the last entry was folded.", time.monotonic() - server.core.folded_at),
            ("leading", "Whether this server leads the run; 0: it stands by.", server.leading),
            ("connected", "Whether there is a connection to the broker.", server.link.client.is_connected),
        ):
            yield GaugeMetricFamily(f"offbeat_{name}", text, value)
        refused = CounterMetricFamily("offbeat_refused", "Messages that were refused, by code.", labels=["code"])
        for code, count in sorted(server.refused.items()):  # a copy: the run goes on in another thread
            refused.add_metric([code], count)
        yield refused
        version = GaugeMetricFamily("offbeat_version", "Server steps of each task.", labels=["task"])
        for task, model in enumerate(server.plan.server.models(ledger.server)):
            version.add_metric([str(task)], model.version)
        yield version
        last = {each.task: each.metrics for each in list(server.recorder.measurements)}
        found = GaugeMetricFamily("offbeat_metric", "Of each task's last evaluation.", labels=["task", "name"])
        for task, metrics in sorted(last.items()):
            for name, number in sorted(metrics.items()):
                found.add_metric([str(task), name], number)
        yield found


class Health:
    """Whether the process that serves a run is alive (`/healthz`) and does what it is there for (`/readyz`)."""

    def __init__(self, server: RunServer) -> None:
        self.server, self.beaten = server, time.monotonic()

    async def beat(self) -> None:
        """Show that the event loop goes round, for as long as this runs."""
        while True:
            self.beaten = time.monotonic()
            await asyncio.sleep(0.5)

    def alive(self) -> dict[str, Any]:
        """`ok`, and for how long the event loop has been stuck."""
        stuck = time.monotonic() - self.beaten
        return {"ok": stuck < STUCK, "stuck_seconds": round(stuck, 1)}

    def ready(self) -> dict[str, Any]:
        """`ok`, and what it is made of: connected to the broker, and the whole log folded, to lead or to stand by."""
        server = self.server
        found = {"alive": self.alive()["ok"], "connected": server.link.client.is_connected, "caught_up": server.ready}
        folded = time.monotonic() - server.core.folded_at
        more = {"leading": server.leading, "lag_seconds": round(server.lag, 3), "folded_seconds": round(folded, 1)}
        return {"ok": all(found.values()), **found, **more}


def application(server: RunServer, health: Health) -> WSGIApplication:
    """`/metrics` for Prometheus, `/healthz` and `/readyz` for a process supervisor."""
    registry = CollectorRegistry()
    registry.register(RunCollector(server))
    ProcessCollector(registry=registry)
    metrics = make_wsgi_app(registry)
    checks = {"/healthz": health.alive, "/readyz": health.ready}

    def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            text: Iterable[bytes] = metrics(environ, start)
            return text
        found = checks[path]() if path in checks else {"ok": False, "paths": ["/metrics", *checks]}
        status = "200 OK" if found["ok"] else "503 Service Unavailable" if path in checks else "404 Not Found"
        start(status, [("Content-Type", "application/json")])
        return [json.dumps(found).encode() + b"\n"]

    return answer


@contextmanager
def exposed(server: RunServer, port: int | None, address: str = "127.0.0.1") -> Iterator[Health]:
    """Within, the run's numbers and health can be read on this port; None: they cannot. Keep the health beating."""
    health = Health(server)
    if port is None:
        yield health
        return
    try:
        http = make_server(address, port, application(server, health), ThreadingWSGIServer, _Silent)
    except OSError as error:
        raise SettingError(f"--metrics {port}: cannot listen there ({error.strerror}); choose another port") from None
    thread = threading.Thread(target=http.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield health
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


class _Silent(WSGIRequestHandler):
    """Does not print a line for every request, and does not wait for ever for one."""

    timeout = STUCK

    def log_message(self, format: str, *args: Any) -> None:
        pass
