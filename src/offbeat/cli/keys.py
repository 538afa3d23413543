"""`offbeat keys`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.deploy import needs_deploy

keys = typer.Typer(help="Manage the keys, roster and broker configuration of a federation.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="Folder of the federation's keys.")]
_RELOAD = "let the broker read {} again (SIGHUP; with --embedded, stop `offbeat serve` and start it again)"


@keys.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Folder to create.")],
    clients: Annotated[str, typer.Option(help="Names of the clients, separated by commas.")],
    federation: Annotated[str, typer.Option("--name", help="Name of the federation on the broker.")] = "fed",
    host: Annotated[
        list[str] | None, typer.Option(help="Host name or address of the broker, for its certificate. Repeatable.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the broker.")] = 4222,
    tls: Annotated[bool, typer.Option(help="Encrypt all traffic.")] = True,
) -> None:
    """Create the roster, one credentials file per client, and the broker's configuration."""
    with needs_deploy():
        from offbeat.deploy import keys as identities
    names = _names(clients)
    identities.init(folder, names, federation, host or (), port, tls)
    print(f"{folder}: keys for the server and {len(names)} clients, {identities.ROSTER}, {identities.BROKER}")
    print("Give each site its own .creds file and no other; keep server.creds and broker.key here.")


@keys.command()
def add(
    folder: Folder,
    clients: Annotated[str, typer.Option(help="Names of new clients, separated by commas.")],
    port: Annotated[int | None, typer.Option(help="Port of the broker. Default: unchanged.")] = None,
) -> None:
    """Add clients to the roster, for later runs."""
    with needs_deploy():
        from offbeat.deploy import keys as identities
    identities.add(folder, _names(clients), port)
    print(f"{folder}: {_RELOAD.format(identities.BROKER)}")


@keys.command()
def rotate(
    folder: Folder, clients: Annotated[str, typer.Option(help="Names of the clients, separated by commas.")]
) -> None:
    """Replace clients' keys, for example after a leak. Names and state are kept."""
    with needs_deploy():
        from offbeat.deploy import keys as identities
    identities.rotate(folder, _names(clients))
    print(f"{folder}: {_RELOAD.format(identities.BROKER)}; from then on the old keys are refused")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
