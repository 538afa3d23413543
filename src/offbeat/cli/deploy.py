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
        "--nats", metavar="URL", help="The broker, such as tls://host:4222; of a cluster several, with commas."
    ),
]
Keys = Annotated[Path, typer.Option("--keys", metavar="FILE", help="This identity's credentials.")]
Run = Annotated[Path, typer.Argument(help="The folder of a run, LABEL-SEED.")]
Folder = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder to write; one that holds this run continues it.")
]
Metrics = Annotated[int | None, typer.Option(metavar="PORT", help="Answer Prometheus on this local port.")]
Lease = Annotated[float, typer.Option(help="Seconds for a job, from when its client could begin it.")]
Patience = Annotated[float, typer.Option(help="Seconds without a sign of life after which a client counts as gone.")]
Norm = Annotated[float | None, typer.Option("--max-norm", help="Refuse updates that are longer.")]
Window = Annotated[int | None, typer.Option("--max-staleness", help="Refuse updates that are more versions old.")]
Slot = Annotated[bool, typer.Option("--one-slot", help="One update a client between two server steps.")]
Trim = Annotated[bool, typer.Option("--trim", help="Keep no more of the log than is needed to go on.")]
Size = Annotated[int, typer.Option("--max-size", min=1, max=4000, help="Refuse updates of more megabytes.")]
Replicas = Annotated[int, typer.Option(min=1, max=5, help="Brokers of a cluster that each keep the whole run.")]
Half = Annotated[bool, typer.Option("--bfloat16", help="Clients send half as many bytes, rounded.")]
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
    file: Annotated[Path | None, typer.Argument(help="Experiment file; without one, the demonstration.")] = None,
    clients: Annotated[int | None, typer.Option(help="How many clients; default what the file says.")] = None,
    processes: Annotated[int | None, typer.Option(help="Client processes; default one a client, at most 8.")] = None,
    pace: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Clients take as long as the timing model says, SECONDS for its unit."),
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
    sync: Annotated[bool, typer.Option(help="Every message is on disk before it counts.")] = True,
    as_json: AsJson = False,
) -> None:
    """Run an experiment for real on this machine: broker, server and client processes.

    The same file and the same algorithm as `offbeat run`; times in it are seconds. Ctrl-C stops everything cleanly.
    """
    limits = {"norm": norm, "window": window, "slot": slot, "lease": lease, "patience": patience}
    options = _options(size, half, limits, unit=1.0 if pace is None else pace, paced=pace is not None)
    experiment = _library().experiment_for(file, overrides(set_), clients)
    found = _library().up(experiment, out, options, processes=processes, metrics=metrics, sync=sync)
    show.results(found, as_json)


def serve(
    file: Annotated[Path, typer.Argument(help="Experiment file.")],
    keys: Keys,
    nats: Url = BROKER,
    embedded: Annotated[bool, typer.Option(help="Run the broker too, beside the keys.")] = False,
    algorithm: Annotated[str | None, typer.Option(help="Which of the file's algorithms, by label.")] = None,
    seed: Annotated[int | None, typer.Option(help="Which of the file's seeds.")] = None,
    wait: Annotated[int | None, typer.Option(help="Begin when so many clients are there; default all.")] = None,
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

    Stopped with Ctrl-C or killed, it continues where it was when it is started again with the same --out.
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
    keys: Annotated[list[Path], typer.Option("--keys", metavar="FILE", help="Credentials; once for each client.")],
    nats: Url = BROKER,
    data: Annotated[str, typer.Option(metavar="MODULE:FUNCTION", help="Gives this client's own samples.")] = "",
    holdout: Annotated[float, typer.Option(help="Share of them kept for evaluation.")] = 0.2,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model factory, or another name outside offbeat, that the server may ask for. Repeatable."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda; default what the experiment says.")] = "",
    state: Annotated[Path | None, typer.Option(help="Folder for this client's state; keep it.")] = None,
    once: Annotated[bool, typer.Option(help="Leave when a run is over; default wait for the next.")] = False,
    until_closed: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Take part in the runs of a federation with this site's data. Reconnects for ever; Ctrl-C leaves."""
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
    """Ask the server of a federation how its run stands."""
    found = _library().status(keys, nats)
    if as_json:
        print(json.dumps(found))
        return
    jobs = f"{found['updates']:,} updates, {found['lost']} lost"
    print(f"{found['run']}: {found['state']}, time {found['time']:.1f}, {jobs}")
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in found["metrics"].items())
    print(f"versions {found['versions']}, staleness {found['staleness']:.2f}{', ' + metrics if metrics else ''}")
    for client in found["clients"]:
        there = "there" if client["present"] else "away"
        silent = "" if client["silent"] is None else f", heard {client['silent']:.1f} s ago"
        print(f"  {client['name']}: {there}, {client['settled']} messages settled, {client['jobs']} jobs{silent}")
    if found["refused"]:
        print("refused: " + ", ".join(f"{code} {count}" for code, count in found["refused"].items()))


def retire(client: Annotated[str, typer.Argument(help="The client's name.")], keys: Keys, nats: Url = BROKER) -> None:
    """Take a client out of the run for good, such as one whose memory is lost; what it has contributed stays."""
    _library().retire(client, keys, nats)
    print(f"{client} is retired")


def replay(
    run: Run,
    keys: Annotated[Path | None, typer.Option("--keys", metavar="FILE", help="The server's; not for `up`.")] = None,
    nats: Url = BROKER,
) -> None:
    """Fold the log of a finished real run again and compare: the same state, to the last bit."""
    entries, fingerprint = _library().replay(run, keys, nats)
    print(f"{run}: {entries:,} entries give the same state, {fingerprint[:16]}")


def trace(run: Run, out: Annotated[Path, typer.Option(help="The CSV file to write.")] = Path("trace.csv")) -> None:
    """Turn a real run's measured times into a timing model: `trace = { file = "FILE" }` in an experiment's [timing]."""
    from offbeat.experiment import export as library

    rows = library.trace(run, out)
    print(f'{out}: {rows} rows; simulate with [timing] trace = {{ file = "{out}" }}')


def export(run: Run, file: Annotated[Path, typer.Argument(help="The safetensors file to write.")]) -> None:
    """Write a run's model, finished or not, as named parameters that `load_state_dict` takes."""
    from offbeat.experiment import export as library

    tensors = library.export(run, file)
    print(f"{file}: {len(tensors)} tensors, {sum(t.numel() for t in tensors.values()):,} numbers")
