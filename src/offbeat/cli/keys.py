"""`offbeat keys`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.deploy import needs_deploy
from offbeat.core.errors import SettingError

keys = typer.Typer(help="Manage the keys, roster and broker configuration of a federation.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="Folder of the federation's keys.")]
Clients = Annotated[str, typer.Option(help="Names of the clients, separated by commas.")]
Nats = Annotated[
    str, typer.Option("--nats", help="Address of a running broker to notify at once. Default: notify none.")
]


@keys.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Folder to create.")],
    clients: Clients,
    federation: Annotated[str, typer.Option("--name", help="Name of the federation.")] = "fed",
    host: Annotated[
        list[str] | None,
        typer.Option(help="Host name or address of the broker, for its certificate. Repeatable. Default: localhost."),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the broker.")] = 4222,
    tls: Annotated[bool, typer.Option(help="Encrypt all traffic.")] = True,
) -> None:
    """Create the roster, one credentials file per client, and the broker's configuration."""
    with needs_deploy():
        from offbeat.deploy import identity, keys
    names = _names(clients)
    keys.init(folder, names, federation, host or (), port, tls)
    print(f"{folder}: keys for the server and {len(names)} clients, {identity.ROSTER}, {identity.BROKER}")
    print(f"Give each site its own .creds file and no other; {identity.OPERATOR} signs for all: keep it safe.")


@keys.command()
def add(folder: Folder, clients: Clients, nats: Nats = "") -> None:
    """Add clients to the federation. An active run continues."""
    with needs_deploy():
        from offbeat.deploy import keys
    keys.add(folder, _names(clients))
    print(f"{folder}: keys for {clients}")
    _tell(folder, nats, _names(clients))


@keys.command()
def helper(folder: Folder, nats: Nats = "") -> None:
    """Create the helper's keys, for runs with [secure]. Clients' files change: send each site its own again."""
    with needs_deploy():
        from offbeat.deploy import keys
    keys.add_helper(folder)
    print(f"{folder}: helper.creds, for a second party: whoever has it and the server's log can read every update")
    print("Give it to nobody who runs the server, delete it here, and send each site its own .creds file again.")
    _tell(folder, nats, [])


@keys.command()
def remove(folder: Folder, clients: Clients, nats: Nats = "") -> None:
    """Permanently remove clients from the federation. An active run continues without them."""
    with needs_deploy():
        from offbeat.deploy import keys
    keys.remove(folder, _names(clients))
    print(f"{folder}: removed {clients}")
    _tell(folder, nats, _names(clients))


@keys.command()
def rotate(
    folder: Folder,
    clients: Clients,
    nats: Nats = "",
    everything: Annotated[
        bool, typer.Option("--all", help="Replace the key of the encrypted copies as well. Old copies stay readable.")
    ] = False,
) -> None:
    """Replace clients' keys, for example after a leak. Names and state are kept."""
    with needs_deploy():
        from offbeat.deploy import keys
    keys.rotate(folder, _names(clients), everything)
    print(f"{folder}: new keys for {clients}; send each site its new .creds file")
    _tell(folder, nats, _names(clients))


@keys.command()
def revoke(folder: Folder, clients: Clients, nats: Nats = "") -> None:
    """Revoke clients' keys, for example after a theft. `offbeat keys rotate` lets them in again."""
    with needs_deploy():
        from offbeat.deploy import keys
    keys.revoke(folder, _names(clients))
    print(f"{folder}: revoked the keys of {clients}")
    _tell(folder, nats, _names(clients))


@keys.command()
def renew(
    folder: Folder,
    host: Annotated[
        list[str] | None, typer.Option(help="A further host name or address. Repeatable. Default: none.")
    ] = None,
) -> None:
    """Make a new certificate for the broker. All credentials stay valid."""
    with needs_deploy():
        from offbeat.deploy import identity, keys
    keys.renew(folder, host or ())
    print(f"{folder}: a new {identity.CERTIFICATE}, valid until {keys.valid_until(folder):%Y-%m-%d}")
    print("Copy broker.pem and broker.key to the broker and let it reload (SIGHUP), or start `offbeat serve` again.")


@keys.command()
def push(
    folder: Folder,
    nats: Annotated[str, typer.Option("--nats", help="Address of the running broker.")],
    system: Annotated[
        Path | None,
        typer.Option(
            "--system",
            help="NATS credentials of the broker's system account, if it is another operator's. "
            "Default: sys.creds in the folder.",
        ),
    ] = None,
) -> None:
    """Tell a running broker and server about all changes in this folder."""
    with needs_deploy():
        from offbeat.deploy.push import push as tell
    count = asyncio.run(tell(folder, nats, system=system))
    print(f"{nats}: up to date, with {count} accounts")


def _tell(folder: Path, url: str, clients: list[str]) -> None:
    if not url:
        print(f"A running broker does not know yet: `offbeat keys push {folder} --nats URL` tells it and the server.")
        return
    from offbeat.deploy.push import push as tell

    asyncio.run(tell(folder, url, clients))
    print(f"{url}: up to date")


def _names(text: str) -> list[str]:
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise SettingError(f"--clients {text!r}: name at least one")
    return found
