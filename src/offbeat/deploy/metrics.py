"""The numbers of a run that is being served, as Prometheus reads them: `GET /metrics` on a port of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import Iterator

from offbeat.deploy.host import Host


def render(host: Host) -> str:
    """All numbers, in Prometheus's text format."""
    return "\n".join(_lines(host)) + "\n"


def _lines(host: Host) -> Iterator[str]:
    ledger, link = host.ledger, host.link
    tally = ledger.tally
    yield from _one("updates_total", "counter", "Results that were applied.", tally.updates)
    yield from _one("lost_total", "counter", "Jobs that were lost.", tally.lost)
    yield from _one("repeated_total", "counter", "Messages that had been settled before.", tally.repeated)
    yield from _one("staleness_sum", "counter", "Summed staleness of the applied results.", tally.staleness_sum)
    yield from _one("staleness_max", "gauge", "Largest staleness so far.", tally.staleness_max)
    yield "# HELP offbeat_refused_total Messages that were refused, by code."
    yield "# TYPE offbeat_refused_total counter"
    for code, count in sorted(tally.refused.items()):
        yield f'offbeat_refused_total{{code="{code}"}} {count}'
    yield "# HELP offbeat_version Server steps of each task."
    yield "# TYPE offbeat_version gauge"
    for task, model in enumerate(host.plan.server.models(ledger.server)):
        yield f'offbeat_version{{task="{task}"}} {model.version}'
    present = sum(seat.present for seat in ledger.seats)
    yield from _one("clients_present", "gauge", "Clients that are there.", present)
    yield from _one("jobs_in_flight", "gauge", "Jobs between sending and end.", len(ledger.flights))
    yield from _one("log_position", "gauge", "Entries of the log that were folded.", ledger.position)
    yield from _one("log_waiting", "gauge", "Entries that were read and not folded yet.", host.entries.qsize())
    yield from _one("lag_seconds", "gauge", "From an entry's time stamp to its being folded.", f"{host.lag:.6f}")
    yield from _one("received_bytes_total", "counter", "Bytes read from the broker.", link.bytes_in)
    yield from _one("sent_bytes_total", "counter", "Bytes sent to the broker.", link.bytes_out)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    yield from _one("resident_memory_max_bytes", "gauge", "Most memory of the server so far.", memory)
    yield from _one("cpu_seconds_total", "counter", "Processor time of the server.", f"{sum(os.times()[:2]):.3f}")


def _one(name: str, kind: str, text: str, value: object) -> Iterator[str]:
    yield f"# HELP offbeat_{name} {text}"
    yield f"# TYPE offbeat_{name} {kind}"
    yield f"offbeat_{name} {value}"


async def expose(host: Host, port: int, address: str = "127.0.0.1") -> asyncio.Server:
    """Answer on this port until the server that is given back is closed."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError, ValueError):
            line = await asyncio.wait_for(reader.readline(), 5)
            found = line.startswith(b"GET /metrics")
            body = render(host).encode() if found else b"the numbers are at /metrics\n"
            status = b"200 OK" if found else b"404 Not Found"
            kind = b"text/plain; version=0.0.4; charset=utf-8"
            size = str(len(body)).encode()
            writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Type: " + kind + b"\r\nContent-Length: " + size)
            writer.write(b"\r\nConnection: close\r\n\r\n" + body)
            await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, address, port)
