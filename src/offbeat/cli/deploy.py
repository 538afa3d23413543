"""`offbeat up`, `serve`, `join`, `status`, `retire`, `replay`, `trace` and `export`: real runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import typer

from offbeat.cli.options import AsJson, Set, overrides
from offbeat.core.errors import SettingError, not_installed

Url = Annotated[
    str,
    typer.Option(
        "--nats", metavar="URL", help="Address of the broker, tls://host:4222; for a cluster, a comma-separated list."
    ),
]
Keys = Annotated[Path, typer.Option("--keys", metavar="FILE", help="Credentials file.")]
Run = Annotated[Path, typer.Argument(help="Folder of a run, LABEL-SEED.")]
Folder = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Folder to write. If it contains this run, the run continues. Default: runs/TIME."
    ),
]
Metrics = Annotated[
    int | None,
    typer.Option(metavar="PORT", min=1, max=65535, help="Serve Prometheus metrics on this local port. Default: off."),
]
Lease = Annotated[
    float, typer.Option(help="Maximum duration of a job in seconds, from when its client could start it.")
]
Patience = Annotated[float, typer.Option(help="Seconds without a heartbeat after which a client counts as gone.")]
Norm = Annotated[
    str,
    typer.Option(
        "--max-norm",
        metavar="NORM|auto|off",
        help="Refuse updates with a larger norm. auto: 20 times the usual norm, as learned from the run.",
    ),
]
Window = Annotated[
    int | None,
    typer.Option("--max-staleness", help="Refuse updates from more than this many versions ago. Default: no limit."),
]
Slot = Annotated[bool, typer.Option("--one-slot", help="Accept one update per client between two server steps.")]
Trim = Annotated[bool, typer.Option("--trim", help="Keep only the part of the log that is needed to continue.")]
Size = Annotated[int, typer.Option("--max-size", min=1, max=2000, help="Refuse updates of more megabytes than this.")]
Replicas = Annotated[int, typer.Option(min=1, max=5, help="Number of brokers of a cluster that store the run.")]
Half = Annotated[bool, typer.Option("--bfloat16", help="Clients send updates as bfloat16, with half the bytes.")]
Data = Annotated[
    str, typer.Option(metavar="MODULE:FUNCTION", help="Function that returns the samples. Default: as in the file.")
]
Holdout = Annotated[float, typer.Option(help="Share of the samples kept for evaluation.")]
Device = Annotated[str, typer.Option(help="cpu or cuda. Default: as in the experiment.")]
State = Annotated[
    Path | None, typer.Option(help="Folder for this client's state. Do not delete it. Default: ~/.local/state/offbeat.")
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    typer.Option("--log-level", help="What is logged. Default: info."),
]
LogFormat = Annotated[
    Literal["text", "json"] | None,
    typer.Option(
        "--log-format", help="Lines of text, or one JSON object per line. Default: serve writes JSON, join text."
    ),
]
BROKER = "tls://127.0.0.1:4222"
runs = typer.Typer(help="List, stop and delete the runs of a federation.")


@contextmanager
def needs_deploy() -> Iterator[None]:
    """Within, a module is imported that needs what `offbeat[deploy]` installs; other commands do without it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package in ("nats", "cryptography", "prometheus_client"):
            raise not_installed(f"real runs need {package}", "deploy") from None
        raise


def _library() -> ModuleType:
    with needs_deploy():
        from offbeat.experiment import federation
    return federation


def _admin() -> ModuleType:
    """What does without PyTorch, and so answers at once."""
    with needs_deploy():
        from offbeat.experiment import admin
    return admin


def _show(found: Any, as_json: bool) -> None:
    from offbeat.cli import show

    show.results(found, as_json)


def _norm(text: str) -> float | None:
    """A bound on norms; None: a learned one, 0: none."""
    if text in ("auto", "off"):
        return None if text == "auto" else 0.0
    try:
        return float(text)
    except ValueError:
        raise SettingError(f"--max-norm {text}: must be a number, auto or off") from None


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
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Follow the timing model, with SECONDS per unit of time. Default: as fast as clients are.",
        ),
    ] = None,
    data: Data = "",
    set_: Set = None,
    out: Folder = None,
    metrics: Metrics = None,
    lease: Lease = 600.0,
    patience: Patience = 15.0,
    size: Size = 1024,
    norm: Norm = "auto",
    window: Window = None,
    slot: Slot = False,
    half: Half = False,
    sync: Annotated[bool, typer.Option(help="Sync every message to disk before it is acknowledged.")] = True,
    as_json: AsJson = False,
) -> None:
    """Run an experiment with real processes on this machine: a broker, the server and clients.

    It takes the files of `offbeat run`; times are seconds. Ctrl-C stops everything cleanly.
    """
    limits = {"norm": _norm(norm), "window": window, "slot": slot, "lease": lease, "patience": patience}
    options = _options(size, half, limits, unit=1.0 if pace is None else pace, paced=pace is not None, data=data)
    experiment = _library().experiment_for(file, overrides(set_), clients)
    found = _library().up(experiment, out, options, processes=processes, metrics=metrics, sync=sync)
    _show(found, as_json)


def serve(
    file: Annotated[Path, typer.Argument(help="Experiment file in TOML.")],
    keys: Keys,
    nats: Url = BROKER,
    embedded: Annotated[bool, typer.Option(help="Also run the broker; it stores its data next to the keys.")] = False,
    algorithm: Annotated[
        str | None, typer.Option(help="Label of the algorithm to run. Default: the file's, if it has one.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the run. Default: the file's, if it has one.")] = None,
    wait: Annotated[int | None, typer.Option(help="Start when this many clients are online. Default: all.")] = None,
    set_: Set = None,
    out: Folder = None,
    metrics: Metrics = None,
    lease: Lease = 600.0,
    patience: Patience = 15.0,
    size: Size = 1024,
    norm: Norm = "auto",
    window: Window = None,
    slot: Slot = False,
    half: Half = False,
    trim: Trim = False,
    replicas: Replicas = 1,
    new: Annotated[
        bool, typer.Option("--new", help="Begin another run. Default: stand by if this experiment is being served.")
    ] = False,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    as_json: AsJson = False,
) -> None:
    """Serve one run of an experiment to the clients on the roster.

    After Ctrl-C or a crash, start it again with the same --out to continue the run.
    """
    _admin().server_creds(keys)  # what is wrong with them is said before PyTorch is imported
    limits = {"norm": _norm(norm), "window": window, "slot": slot, "lease": lease, "patience": patience}
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
        options=_options(size, half, limits, trim=trim, replicas=replicas, new=new, level=log_level, style=log_format),
        metrics=metrics,
    )
    _show(found, as_json)


def join(
    keys: Annotated[list[Path], typer.Option("--keys", metavar="FILE", help="Credentials file; once for each client.")],
    nats: Url = BROKER,
    data: Data = "",
    holdout: Holdout = 0.2,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Your own package.module:Name that the server may ask for. Repeatable. Default: none."),
    ] = None,
    device: Device = "",
    state: State = None,
    once: Annotated[bool, typer.Option(help="Leave after one run. Default: wait for the next.")] = False,
    cohort: Annotated[
        int | None,
        typer.Option(help="Only join runs that sum the updates of this many clients ([secure]). Default: all runs."),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Only join runs that train with dp-sgd and spend at most this on a sample. Default: all."),
    ] = None,
    delta: Annotated[float, typer.Option(help="With --epsilon: the largest delta of such a run.")] = 1e-5,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    until_closed: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Take part in the runs of a federation with this client's data. Reconnects until Ctrl-C."""
    with needs_deploy():
        from offbeat.experiment import joining
    joining.join(
        keys,
        url=nats,
        data=data,
        holdout=holdout,
        models=allow or (),
        device=device,
        state=state,
        once=once,
        cohort=cohort,
        epsilon=epsilon,
        delta=delta,
        until_closed=until_closed,
        level=log_level or "info",
        style=log_format or "text",
    )


def helper(
    keys: Keys,
    nats: Url = BROKER,
    cohort: Annotated[int, typer.Option(help="Open no sum of fewer clients, whatever an experiment says.")] = 30,
    state: State = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    until_closed: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Open sums of clients' updates in runs with [secure], as a second party. Runs until Ctrl-C."""
    with needs_deploy():
        from offbeat.experiment import helping
    helping.help_runs(
        keys,
        url=nats,
        state=state,
        least=cohort,
        until_closed=until_closed,
        level=log_level or "info",
        style=log_format or "text",
    )


def doctor(
    keys: Keys,
    file: Annotated[Path | None, typer.Argument(help="Experiment file to check as well. Default: none.")] = None,
    nats: Url = BROKER,
    data: Data = "",
    holdout: Holdout = 0.2,
    device: Device = "",
    state: State = None,
    set_: Set = None,
    as_json: AsJson = False,
) -> None:
    """Check broker, certificate, keys, clock, disk, data and model before a run. Exits with 1 if there is a problem."""
    with needs_deploy():
        from offbeat.experiment import examination
    found = []
    for finding in examination.doctor(
        keys,
        url=nats,
        file=file,
        overrides=overrides(set_),
        data=data,
        holdout=holdout,
        device=device,
        state=state,
    ):
        found.append(finding)
        if not as_json:
            print(f"{finding.level:7}  {finding.what:11}  {finding.line}", flush=True)
    if as_json:
        print(json.dumps({"findings": [finding._asdict() for finding in found]}))
    if any(finding.level == "problem" for finding in found):
        raise typer.Exit(1)


def status(keys: Keys, nats: Url = BROKER, as_json: AsJson = False) -> None:
    """Show the state of a federation's run."""
    found = _admin().status(keys, nats)
    if as_json:
        print(json.dumps(found))
        return
    jobs = f"{found['updates']:,} updates, {found['lost']} lost"
    print(f"{found['run']}: {found['state']}, time {found['time']:.1f}, {jobs}")
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in found["metrics"].items())
    print(f"versions {found['versions']}, staleness {found['staleness']:.2f}{', ' + metrics if metrics else ''}")
    for client in found["clients"]:
        there = "removed" if client["removed"] else "online" if client["present"] else "offline"
        silent = "" if client["silent"] is None else f", heard {client['silent']:.1f} s ago"
        useless = f", its last {client['useless']} jobs failed or were refused" if client["useless"] else ""
        counts = [f"{client['applied']:,} updates applied"]
        counts += [f"{client[what]:,} {what}" for what in ("refused", "failed") if client[what]]
        done = f"{', '.join(counts)}, {client['jobs']} jobs under way"
        print(f"  {client['name']}: {there}, {done}{silent}{useless}")
    if found["refused"]:
        print("refused: " + ", ".join(f"{code} {count}" for code, count in found["refused"].items()))


@runs.callback(invoke_without_command=True)
def list_runs(
    context: typer.Context,
    keys: Annotated[
        Path | None, typer.Option("--keys", metavar="FILE", help="The server's credentials. Required.")
    ] = None,
    nats: Url = BROKER,
    as_json: AsJson = False,
) -> None:
    """List the runs of a federation: active, abandoned (not served) and over."""
    if context.invoked_subcommand is not None:
        return
    if keys is None:
        raise SettingError("--keys: name the server's credentials, fed/server.creds")
    found = _admin().runs(keys, nats)
    if as_json:
        print(json.dumps({"runs": [vars(run) for run in found]}))
        return
    if not found:
        print("the broker has no runs of this federation")
    rows = [(r.run, r.state, f"{r.entries:,} entries", f"{r.bytes / 2**20:,.1f} MB", r.last or "") for r in found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@runs.command()
def stop(run: Annotated[str, typer.Argument(help="Name of the run.")], keys: Keys, nats: Url = BROKER) -> None:
    """End a run. Its server writes the results; sites leave a run that is not served."""
    print(_admin().stop(run, keys, nats))


@runs.command()
def delete(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    keys: Keys,
    nats: Url = BROKER,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a run from the broker: log, updates, assignments, models and clients' copies."""

    def confirm() -> None:
        if not yes:
            text = f"Delete everything that the broker has of {run}? It cannot be replayed or continued"
            typer.confirm(text, abort=True)

    _admin().delete(run, keys, nats, confirm)
    print(f"{run} is deleted")


def retire(client: Annotated[str, typer.Argument(help="Name of the client.")], keys: Keys, nats: Url = BROKER) -> None:
    """Permanently remove a client from the run, for example if its memory is lost.

    Its contribution is taken out if the algorithm tracks it separately (AREA, SCAFFOLD, MIFA, CA2FL, ACE, AFA-CS);
    otherwise it stays in the model.
    """
    _admin().retire(client, keys, nats)
    print(f"{client} is retired")


def backup(
    run: Run, file: Annotated[Path, typer.Argument(help="Tar file to write.")], keys: Keys, nats: Url = BROKER
) -> None:
    """Back up a run to a file, even while it is active: the server's folder, then the log with all updates."""
    print(f"{file}: {_admin().backup(run, file, keys, nats):,} records")


def restore(
    file: Annotated[Path, typer.Argument(help="File that `offbeat backup` has written.")],
    keys: Keys,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to put the run folder into.")],
    nats: Url = BROKER,
) -> None:
    """Restore a run from a backup to a broker and to disk, after verifying its log. Overwrites nothing."""
    folder, records = _admin().restore(file, out, keys, nats)
    print(f"{folder}: {records:,} records; continue with `offbeat serve … --out {out}`")


def replay(
    run: Run,
    keys: Annotated[
        Path | None,
        typer.Option("--keys", metavar="FILE", help="The server's; not needed after `offbeat up`. Default: none."),
    ] = None,
    nats: Url = BROKER,
) -> None:
    """Replay the log of a finished real run and check that the state is the same, bit for bit."""
    entries, fingerprint = _library().replay(run, keys, nats)
    print(f"{run}: {entries:,} entries give the same state, {fingerprint[:16]}")


def trace(run: Run, out: Annotated[Path, typer.Option(help="CSV file to write.")] = Path("trace.csv")) -> None:
    """Turn the measured times of a real run into a timing trace, for [timing] trace = { file = "FILE" }."""
    from offbeat.experiment import export as library

    with needs_deploy():
        rows = library.trace(run, out)
    print(f'{out}: {rows} rows; simulate with [timing] trace = {{ file = "{out}" }}')


def export(
    run: Run,
    file: Annotated[Path, typer.Argument(help="File to write; for hf a folder.")],
    to: Annotated[
        Literal["safetensors", "state-dict", "hf", "onnx"],
        typer.Option(
            help="safetensors: trained parameters by name; state-dict: frozen ones and buffers, too; hf: a folder for "
            "from_pretrained."
        ),
    ] = "safetensors",
) -> None:
    """Export the model of a run, finished or not, with a model card."""
    from offbeat.experiment import export as library

    with needs_deploy():  # for the checkpoint of a real run
        tensors = library.export(run, file, to)
    print(f"{file}: {len(tensors)} tensors, {sum(t.numel() for t in tensors.values()):,} numbers")
