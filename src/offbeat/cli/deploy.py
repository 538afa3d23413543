"""`offbeat up`, `serve`, `join`, `status`, `retire`, `replay`, `trace` and `export`: real runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from offbeat.cli import show
from offbeat.cli.options import AsJson, Set, overrides
from offbeat.core.errors import SettingError

Url = Annotated[
    str,
    typer.Option(
        "--nats", metavar="URL", help="Address of the broker, tls://host:4222; of a cluster several, with commas."
    ),
]
Keys = Annotated[Path, typer.Option("--keys", metavar="FILE", help="Credentials file.")]
Run = Annotated[Path, typer.Argument(help="Folder of a run, LABEL-SEED.")]
Folder = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder to write. If it contains this run, the run continues.")
]
Metrics = Annotated[int | None, typer.Option(metavar="PORT", help="Serve Prometheus metrics on this local port.")]
Lease = Annotated[float, typer.Option(help="Seconds that a job may take, from when its client could start it.")]
Patience = Annotated[float, typer.Option(help="Seconds without a heartbeat after which a client counts as gone.")]
Norm = Annotated[float | None, typer.Option("--max-norm", help="Refuse updates with a larger norm.")]
Window = Annotated[
    int | None, typer.Option("--max-staleness", help="Refuse updates from more than this many versions ago.")
]
Slot = Annotated[bool, typer.Option("--one-slot", help="Accept one update per client between two server steps.")]
Trim = Annotated[bool, typer.Option("--trim", help="Keep only the part of the log that is needed to continue.")]
Size = Annotated[int, typer.Option("--max-size", min=1, max=4000, help="Refuse updates of more megabytes than this.")]
Replicas = Annotated[int, typer.Option(min=1, max=5, help="Number of brokers of a cluster that store the run.")]
Half = Annotated[bool, typer.Option("--bfloat16", help="Clients send updates as bfloat16, with half the bytes.")]
BROKER = "tls://127.0.0.1:4222"


@contextmanager
def needs_deploy() -> Iterator[None]:
    """Within, a module is imported that needs what `offbeat[deploy]` installs; other commands do without it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("nats", "cryptography", "prometheus_client"):
            raise SettingError("real runs need more packages: pip install 'offbeat[deploy]'") from None
        raise


def _library() -> ModuleType:
    with needs_deploy():
        from offbeat.experiment import federation
    return federation


def _options(size: int, half: bool, limits: dict[str, Any], **others: Any) -> Any:
    library = _library()
    return library.DeployOptions(
        limits=library.Limits(size=size << 20, **limits), dtype="bfloat16" if half else "", **others
    )


def up(
    file: Annotated[Path | None, typer.Argument(help="Experiment file. Default: the embedded demonstration.")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients. Default: as in the file.")] = None,
    processes: Annotated[int | None, typer.Option(help="Client processes. Default: one per client, at most 8.")] = None,
    pace: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Follow the timing model, with SECONDS per unit of time.")
    ] = None,
    set_: Set = None,
    out: Folder = None,
    metrics: Metrics = None,
    lease: Lease = 600.0,
    patience: Patience = 15.0,
    size: Size = 1024,
    norm: Norm = None,
    window: Window = None,
    slot: Slot = False,
    half: Half = False,
    sync: Annotated[bool, typer.Option(help="Sync every message to disk before it is acknowledged.")] = True,
    as_json: AsJson = False,
) -> None:
    """Run an experiment with real processes on this machine: a broker, the server and clients.

    It takes the files of `offbeat run`; times are seconds. Ctrl-C stops everything cleanly.
    """
    limits = {"norm": norm, "window": window, "slot": slot, "lease": lease, "patience": patience}
    options = _options(size, half, limits, unit=1.0 if pace is None else pace, paced=pace is not None)
    experiment = _library().experiment_for(file, overrides(set_), clients)
    found = _library().up(experiment, out, options, processes=processes, metrics=metrics, sync=sync)
    show.results(found, as_json)


def serve(
    file: Annotated[Path, typer.Argument(help="Experiment file in TOML.")],
    keys: Keys,
    nats: Url = BROKER,
    embedded: Annotated[bool, typer.Option(help="Also run the broker; it stores its data next to the keys.")] = False,
    algorithm: Annotated[str | None, typer.Option(help="Label of the algorithm to run.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the run.")] = None,
    wait: Annotated[int | None, typer.Option(help="Start when this many clients are online. Default: all.")] = None,
    set_: Set = None,
    out: Folder = None,
    metrics: Metrics = None,
    lease: Lease = 600.0,
    patience: Patience = 15.0,
    size: Size = 1024,
    norm: Norm = None,
    window: Window = None,
    slot: Slot = False,
    half: Half = False,
    trim: Trim = False,
    replicas: Replicas = 1,
    as_json: AsJson = False,
) -> None:
    """Serve one run of an experiment to the clients on the roster.

    After Ctrl-C or a crash, start it again with the same --out to continue the run.
    """
    limits = {"norm": norm, "window": window, "slot": slot, "lease": lease, "patience": patience}
    found = _library().serve(
        file,
        keys,
        url=nats,
        embedded=embedded,
        algorithm=algorithm,
        seed=seed,
        wait=wait,
        overrides=overrides(set_),
        out=out,
        options=_options(size, half, limits, trim=trim, replicas=replicas),
        metrics=metrics,
    )
    show.results(found, as_json)


def join(
    keys: Annotated[list[Path], typer.Option("--keys", metavar="FILE", help="Credentials file; once for each client.")],
    nats: Url = BROKER,
    data: Annotated[str, typer.Option(metavar="MODULE:FUNCTION", help="Function that returns the samples.")] = "",
    holdout: Annotated[float, typer.Option(help="Share of the samples kept for evaluation.")] = 0.2,
    model: Annotated[
        list[str] | None, typer.Option(help="Your own package.module:Name that the server may ask for. Repeatable.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda. Default: as in the experiment.")] = "",
    state: Annotated[Path | None, typer.Option(help="Folder for this client's state. Do not delete it.")] = None,
    once: Annotated[bool, typer.Option(help="Leave after one run. Default: wait for the next.")] = False,
    until_closed: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Take part in the runs of a federation with this client's data. Reconnects until Ctrl-C."""
    _library().join(
        keys,
        url=nats,
        data=data,
        holdout=holdout,
        models=model or (),
        device=device,
        state=state,
        once=once,
        until_closed=until_closed,
    )


def status(keys: Keys, nats: Url = BROKER, as_json: AsJson = False) -> None:
    """Show the state of a federation's run."""
    found = _library().status(keys, nats)
    if as_json:
        print(json.dumps(found))
        return
    jobs = f"{found['updates']:,} updates, {found['lost']} lost"
    print(f"{found['run']}: {found['state']}, time {found['time']:.1f}, {jobs}")
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in found["metrics"].items())
    print(f"versions {found['versions']}, staleness {found['staleness']:.2f}{', ' + metrics if metrics else ''}")
    for client in found["clients"]:
        there = "online" if client["present"] else "offline"
        silent = "" if client["silent"] is None else f", heard {client['silent']:.1f} s ago"
        print(f"  {client['name']}: {there}, {client['settled']} messages processed, {client['jobs']} jobs{silent}")
    if found["refused"]:
        print("refused: " + ", ".join(f"{code} {count}" for code, count in found["refused"].items()))


def retire(client: Annotated[str, typer.Argument(help="Name of the client.")], keys: Keys, nats: Url = BROKER) -> None:
    """Remove a client from the run for good, for example if its memory is lost. Its contribution stays."""
    _library().retire(client, keys, nats)
    print(f"{client} is retired")


def replay(
    run: Run,
    keys: Annotated[
        Path | None, typer.Option("--keys", metavar="FILE", help="The server's; not needed after `offbeat up`.")
    ] = None,
    nats: Url = BROKER,
) -> None:
    """Fold the log of a finished real run again and check that the state is the same, bit for bit."""
    entries, fingerprint = _library().replay(run, keys, nats)
    print(f"{run}: {entries:,} entries give the same state, {fingerprint[:16]}")


def trace(run: Run, out: Annotated[Path, typer.Option(help="CSV file to write.")] = Path("trace.csv")) -> None:
    """Turn the measured times of a real run into a trace, for [timing] trace = { file = "FILE" }."""
    from offbeat.experiment import export as library

    rows = library.trace(run, out)
    print(f'{out}: {rows} rows; simulate with [timing] trace = {{ file = "{out}" }}')


def export(run: Run, file: Annotated[Path, typer.Argument(help="Safetensors file to write.")]) -> None:
    """Write the model of a run, finished or not, as named parameters for `load_state_dict`."""
    from offbeat.experiment import export as library

    tensors = library.export(run, file)
    print(f"{file}: {len(tensors)} tensors, {sum(t.numel() for t in tensors.values()):,} numbers")
