"""The numbers of a run that is being served, for Prometheus: `GET /metrics` on a port of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from offbeat.deploy.server import RunServer


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
            ("repeated", "Messages that had been settled before.", tally.repeated),
            ("staleness", "Summed staleness of the applied results.", tally.staleness_sum),
            ("received_bytes", "Bytes read from the broker.", link.bytes_in),
            ("sent_bytes", "Bytes sent to the broker.", link.bytes_out),
        ):
            yield CounterMetricFamily(f"offbeat_{name}", text, count)
        for name, text, value in (
            ("staleness_max", "Largest staleness so far.", tally.staleness_max),
            ("clients_present", "Clients that are connected.", sum(record.present for record in ledger.clients)),
            ("jobs_in_flight", "Jobs between sending and end.", server.core.reducer.view.flying),
            ("log_position", "Entries of the log that were folded.", ledger.position),
            ("log_waiting", "Entries that were read and not folded yet.", server.entries.qsize()),
            ("lag_seconds", "From an entry's time stamp to its being folded.", server.lag),
        ):
            yield GaugeMetricFamily(f"offbeat_{name}", text, value)
        refused = CounterMetricFamily("offbeat_refused", "Messages that were refused, by code.", labels=["code"])
        for code, count in sorted(dict(tally.refused).items()):  # a copy: the run goes on in another thread
            refused.add_metric([code], count)
        yield refused
        version = GaugeMetricFamily("offbeat_version", "Server steps of each task.", labels=["task"])
        for task, model in enumerate(server.plan.server.models(ledger.server)):
            version.add_metric([str(task)], model.version)
        yield version


@contextmanager
def exposed(server: RunServer, port: int | None, address: str = "127.0.0.1") -> Iterator[None]:
    """Within, the numbers of the run and of this process can be read on this port; None: they cannot."""
    if port is None:
        yield
        return
    registry = CollectorRegistry()
    registry.register(RunCollector(server))
    ProcessCollector(registry=registry)
    http, thread = start_http_server(port, address, registry)
    try:
        yield
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
