"""`offbeat up`, `serve`, `join`, `keys`, `status`, `retire`, `trace` and `export`: real runs."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from offbeat.cli.outcome import conclude
from offbeat.core.errors import FolderError, OffbeatError, SettingError, positive
from offbeat.deploy.admission import Limits
from offbeat.experiment.experiment import Experiment, Spec, read, read_table
from offbeat.experiment.folder import create, open_experiment
from offbeat.watch import checkpoint
from offbeat.watch.files import EXPERIMENT, MODEL, locked
from offbeat.watch.folder import RunFolder

keys_app = typer.Typer(help="Keys, roster and broker configuration of a federation.", no_args_is_help=True)

Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY.PATH=VALUE", help="Override a setting. Repeatable.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")]
Url = Annotated[
    str,
    typer.Option(
        "--nats", metavar="URL", help="The broker, such as tls://host:4222; of a cluster several, with commas."
    ),
]
Keys = Annotated[Path, typer.Option("--keys", metavar="FILE", help="This identity's credentials.")]
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


def register(app: typer.Typer) -> None:
    """Put the commands on the command line."""
    app.add_typer(keys_app, name="keys")
    for command in (up, serve, join, status, retire, replay, trace, export):
        app.command()(command)


def _part(name: str) -> Any:
    """A module that needs what `offbeat[deploy]` installs; the other commands do without it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("nats", "cryptography"):
            raise SettingError("real runs need more packages: pip install 'offbeat[deploy]'") from None
        raise


def _read(file: Path | None, overrides: list[str] | None, clients: int | None) -> Experiment:
    """The experiment, with this many clients."""
    given = list(overrides or ())
    if clients is not None:
        several = "task" in read_table(file)
        given.append(f"{'clients.count' if several else 'problem.clients'}={clients}")
    return read(file, given)


def _folder(out: Path | None, experiment: Experiment) -> Path:
    """The run folder; one that holds the same experiment goes on."""
    if out is None or not (out / EXPERIMENT).exists():
        return create(out, experiment)
    if open_experiment(out).table != experiment.table:
        raise FolderError(f"{out} holds another experiment; name another folder")
    return out


def up(
    file: Annotated[Path | None, typer.Argument(help="Experiment file; without one, the demonstration.")] = None,
    clients: Annotated[int | None, typer.Option(help="How many clients; default what the file says.")] = None,
    processes: Annotated[int | None, typer.Option(help="Client processes; default one a client, at most 8.")] = None,
    pace: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Clients take as long as the timing model says, SECONDS for its unit."),
    ] = None,
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write; one that holds this run goes on with it.")] = None,
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
    real, serving = _part("offbeat.experiment.real"), _part("offbeat.experiment.serving")
    experiment = _read(file, set_, clients)
    positive(pace=pace, processes=processes)
    limits = Limits(size=size << 20, norm=norm, window=window, slot=slot, lease=lease, patience=patience)
    options = real.Options(pace or 1.0, pace is not None, limits, "bfloat16" if half else "")
    for spec in experiment.runs[: len(experiment.labels)]:
        names = [f"c{number}" for number in range(experiment.tasks[0].problem.clients)]
        real.plan_of(experiment, spec, "up", names, options)  # mistakes are found before anything is written
    folder = _folder(out, experiment)
    with locked(folder, f"{folder} is being served by another process"):
        results = asyncio.run(serving.serve_all(experiment, folder, options, processes, metrics, sync))
    conclude(experiment, folder, results, as_json)


def serve(
    file: Annotated[Path, typer.Argument(help="Experiment file.")],
    keys: Keys,
    nats: Url = "tls://127.0.0.1:4222",
    embedded: Annotated[bool, typer.Option(help="Run the broker too, beside the keys.")] = False,
    algorithm: Annotated[str | None, typer.Option(help="Which of the file's algorithms, by label.")] = None,
    seed: Annotated[int | None, typer.Option(help="Which of the file's seeds.")] = None,
    wait: Annotated[int | None, typer.Option(help="Begin when so many clients are there; default all.")] = None,
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write; one that holds this run goes on with it.")] = None,
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

    Stopped with Ctrl-C or killed, it goes on where it was when it is started again with the same --out.
    """
    identities = _part("offbeat.deploy.keys")
    creds = identities.read_creds(keys)
    if creds.client:
        raise SettingError(f"{keys} are the keys of the client {creds.client}; the server's are in server.creds")
    roster = identities.read_roster(keys.parent)
    experiment = _read(file, set_, len(roster.clients))
    chosen = [s for s in experiment.runs if algorithm in (None, s.label) and seed in (None, s.seed)]
    if len(chosen) != 1:
        listed = ", ".join(s.name for s in experiment.runs)
        raise SettingError(f"the file asks for several runs ({listed}); choose one with --algorithm and --seed")
    limits = Limits(size=size << 20, norm=norm, window=window, slot=slot, lease=lease, patience=patience)
    options = _part("offbeat.experiment.real").Options(
        limits=limits, dtype="bfloat16" if half else "", trim=trim, replicas=replicas
    )
    _part("offbeat.experiment.real").plan_of(experiment, chosen[0], "serve", list(roster.clients), options)
    folder = _folder(out, experiment)
    serving = _part("offbeat.experiment.serving")
    place = serving.Place(creds, roster, keys.parent, nats, embedded)
    with locked(folder, f"{folder} is being served by another process"):
        result = asyncio.run(serving.serve_one(experiment, chosen[0], folder, place, wait, options, metrics))
    conclude(experiment, folder, [result], as_json)


def join(
    keys: Annotated[list[Path], typer.Option("--keys", metavar="FILE", help="Credentials; once for each client.")],
    nats: Url = "tls://127.0.0.1:4222",
    data: Annotated[str, typer.Option(metavar="MODULE:FUNCTION", help="Gives this client's own samples.")] = "",
    holdout: Annotated[float, typer.Option(help="Share of them kept for evaluation.")] = 0.2,
    model: Annotated[
        list[str] | None, typer.Option(help="A model factory outside offbeat that the server may name.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda; default what the experiment says.")] = "",
    state: Annotated[Path | None, typer.Option(help="Folder for this client's state; keep it.")] = None,
    once: Annotated[bool, typer.Option(help="Leave when a run is over; default wait for the next.")] = False,
    until_closed: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Take part in the runs of a federation with this site's data. Reconnects for ever; Ctrl-C leaves."""
    identities, real = _part("offbeat.deploy.keys"), _part("offbeat.experiment.real")
    partner = real.Partner(data, model or (), device, holdout)
    creds = [identities.read_creds(path) for path in keys]
    for each in creds:
        if not each.client:
            raise SettingError("these are the server's keys; a client has its own file")
    sys.path.insert(0, os.getcwd())  # a site's own loader lies where it is started
    folder = state or real.state_folder()
    error = asyncio.run(_part("offbeat.experiment.joining").take_part(creds, nats, partner, folder, once, until_closed))
    if error:
        raise OffbeatError(error)


@keys_app.command("init")
def keys_init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    clients: Annotated[str, typer.Option(help="Their names, separated by commas.")],
    federation: Annotated[str, typer.Option("--name", help="The federation's name on the broker.")] = "fed",
    host: Annotated[
        list[str] | None, typer.Option(help="A name or address of the broker, for its certificate.")
    ] = None,
    port: int = 4222,
    tls: bool = True,
) -> None:
    """Make the roster, one credential file per client and the broker's configuration."""
    identities = _part("offbeat.deploy.keys")
    names = [name.strip() for name in clients.split(",") if name.strip()]
    identities.init(folder, names, federation, host or (), port, tls)
    print(f"{folder}: keys for the server and {len(names)} clients, {identities.ROSTER}, {identities.BROKER}")
    print("Give each site its own .creds file and no other; keep server.creds and broker.key here.")


@keys_app.command("add")
def keys_add(
    folder: Annotated[Path, typer.Argument(help="The folder of keys.")],
    clients: Annotated[str, typer.Option(help="Names of new clients, separated by commas.")],
    port: Annotated[int | None, typer.Option(help="The broker's; default as before.")] = None,
) -> None:
    """Put more clients on the roster, for runs to come."""
    identities = _part("offbeat.deploy.keys")
    identities.add(folder, [name.strip() for name in clients.split(",") if name.strip()], port)
    print(f"{folder}: {_RELOAD.format(identities.BROKER)}")


@keys_app.command("rotate")
def keys_rotate(
    folder: Annotated[Path, typer.Argument(help="The folder of keys.")],
    clients: Annotated[str, typer.Option(help="Clients that get another key, separated by commas.")],
) -> None:
    """Give clients new keys, such as those whose credentials were seen by others; names and state stay theirs."""
    identities = _part("offbeat.deploy.keys")
    identities.rotate(folder, [name.strip() for name in clients.split(",") if name.strip()])
    print(f"{folder}: {_RELOAD.format(identities.BROKER)}; from then on the old keys are refused")


_RELOAD = "let the broker read {} again (SIGHUP; with --embedded, stop `offbeat serve` and start it again)"


def status(keys: Keys, nats: Url = "tls://127.0.0.1:4222", as_json: AsJson = False) -> None:
    """Ask the server of a federation how its run stands."""
    identities = _part("offbeat.deploy.keys")
    found = asyncio.run(_part("offbeat.experiment.serving").ask(identities.read_creds(keys), nats))
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


def retire(
    client: Annotated[str, typer.Argument(help="The client's name.")],
    keys: Keys,
    nats: Url = "tls://127.0.0.1:4222",
) -> None:
    """Take a client out of the run for good, such as one whose memory is lost; what it has contributed stays."""
    identities = _part("offbeat.deploy.keys")
    creds = identities.read_creds(keys)
    roster = identities.read_roster(keys.parent)
    if client not in roster.clients:
        raise SettingError(f"{client} is not on the roster")
    asyncio.run(
        _part("offbeat.experiment.serving").append(
            creds, nats, "retired", {"client": list(roster.clients).index(client)}
        )
    )
    print(f"{client} is retired")


def trace(
    run: Annotated[Path, typer.Argument(help="The folder of a real run, LABEL-SEED.")],
    out: Annotated[Path, typer.Option(help="The CSV file to write.")] = Path("trace.csv"),
) -> None:
    """Turn a real run's measured times into a timing model: `trace = { file = "FILE" }` in an experiment's [timing]."""
    from offbeat.deploy.trace import write_trace

    done = RunFolder(run).result()
    unit = done.real.unit if done and done.real else 1.0
    print(f'{out}: {write_trace(run, out, unit)} rows; simulate with [timing] trace = {{ file = "{out}" }}')


def replay(
    run: Annotated[Path, typer.Argument(help="The folder of a finished real run, LABEL-SEED.")],
    keys: Annotated[Path | None, typer.Option("--keys", metavar="FILE", help="The server's; not for `up`.")] = None,
    nats: Url = "tls://127.0.0.1:4222",
) -> None:
    """Fold the log of a finished run again and compare: the same state, to the last bit."""
    real, serving, identities = (
        _part(f"offbeat.{name}") for name in ("experiment.real", "experiment.serving", "deploy.keys")
    )
    done, experiment = RunFolder(run).result(), open_experiment(run.parent)
    spec = next((s for s in experiment.runs if s.folder == run.name), None)
    if done is None or done.real is None or spec is None:
        raise FolderError(f"{run} is not the folder of a finished real run")
    made = done.real
    place = run.parent / "keys" if keys is None else keys.parent
    roster, creds = identities.read_roster(place), identities.read_creds(keys or place / identities.SERVER)
    options = real.Options(made.unit, False, Limits(**made.limits), made.dtype)
    plan = real.plan_of(experiment, spec, made.run, list(roster.clients), options)
    broker = serving.Broker(run.parent / "broker", roster) if keys is None else None
    found = asyncio.run(serving.replay(plan, made.position, creds, nats, broker))
    if found != made.fingerprint:
        raise OffbeatError(f"{run}: the log gives another state ({found[:16]}, not {made.fingerprint[:16]})")
    print(f"{run}: {made.position:,} entries give the same state, {found[:16]}")


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run, LABEL-SEED.")],
    file: Annotated[Path, typer.Argument(help="The safetensors file to write.")],
) -> None:
    """Write a run's model, finished or not, as named parameters that `load_state_dict` takes."""
    from safetensors.torch import save_file

    experiment = open_experiment(run.parent)
    spec = next((s for s in experiment.runs if s.folder == run.name), None)
    if spec is None:
        raise FolderError(f"{run} is not a run of the experiment in {run.parent}")
    problems = experiment.problems(spec.seed)
    tensors: dict[str, Any] = {}
    for task, vector in enumerate(_models(run, experiment, spec)):
        flat = getattr(problems[task], "flat", None)
        views = flat.views(vector) if flat is not None else {"vector": vector}
        prefix = f"{problems[task].name}." if len(problems) > 1 else ""
        tensors |= {f"{prefix}{name}": view.contiguous().clone() for name, view in views.items()}
    save_file(tensors, file)
    print(f"{file}: {len(tensors)} tensors, {sum(t.numel() for t in tensors.values()):,} numbers")


def _models(run: Path, experiment: Experiment, spec: Spec) -> list[Any]:
    from safetensors.torch import load_file

    from offbeat.deploy.ledger import Ledger

    if (run / MODEL).exists():
        saved = load_file(run / MODEL)
        return [saved[p.name or f"task{i}"] for i, p in enumerate(experiment.problems(spec.seed))]
    server = experiment.algorithm(spec.index, spec.seed).server
    ways: list[Callable[[], Any]] = [lambda: checkpoint.restore_as(Ledger, run), lambda: checkpoint.restore(run)]
    for restore in ways:
        with contextlib.suppress(FolderError):
            found = restore()
            if found is not None:
                return [model.vector for model in server.models(found[0].server)]
    raise FolderError(f"{run} has neither a model nor a checkpoint")
