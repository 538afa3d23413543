"""The broker's configuration for a folder of keys, and the tokens of accounts that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from offbeat.core.errors import FolderError
from offbeat.deploy import jwt
from offbeat.deploy.identity import CERTIFICATE, CERTIFICATE_KEY, OPERATOR_TOKEN, PROCESS, TOKENS, read_roster


def configuration(
    folder: Path, port: int = 4222, host: str = "0.0.0.0", store: Path | None = None, sync: bool = True
) -> str:
    """The broker's configuration for this folder of keys.

    store: folder for the broker's own data; None: streams in `jetstream` where it is started, tokens in the folder of
    keys.   sync: every message is on disk when it is acknowledged; without it a power failure (not a crash) may cost
    the last ones.
    """
    tokens = (folder if store is None else store).resolve() / TOKENS
    token = (folder / OPERATOR_TOKEN).read_text(encoding="utf-8")
    accounts = [str(jwt.operator_claims(token)["nats"]["system_account"]), read_roster(folder).server.account]
    preload = [f"  {account}: {text}" for account, text in read_tokens(folder, accounts).items()]
    lines = [
        f"listen: {_quoted(f'{host}:{port}')}",
        f"max_payload: {jwt.MAX_PAYLOAD}",
        "jetstream {",
        f"  store_dir: {_quoted('jetstream' if store is None else store.resolve() / 'jetstream')}",
        *(["  sync_interval: always"] if sync else []),
        "}",
        f"operator: {token}",
        f"system_account: {accounts[0]}",
        f'resolver {{ type: full, dir: {_quoted(tokens)}, allow_delete: true, timeout: "500ms" }}',
        *["resolver_preload {", *preload, "}"],
    ]
    if store is not None:
        lines.append(f"pid_file: {_quoted(store.resolve() / PROCESS)}")
    if has_tls(folder):
        cert, key = (_quoted((folder / name).resolve()) for name in (CERTIFICATE, CERTIFICATE_KEY))
        lines += ["tls {", f"  cert_file: {cert}", f"  key_file: {key}"]
        lines += ["  handshake_first: true", "}"]
    return "\n".join([*lines, ""])


def _quoted(text: str | Path) -> str:
    """As the broker's configuration has text: not as JSON, whose escapes of other alphabets it does not know."""
    return '"' + "".join(f"\\x{ord(c):02x}" if c < " " or c in '"\\' else c for c in str(text)) + '"'


def has_tls(folder: Path) -> bool:
    """Whether the broker of this folder of keys has a certificate."""
    return (folder / CERTIFICATE).exists()


def read_tokens(folder: Path, accounts: Sequence[str] | None = None) -> dict[str, str]:
    """Tokens in a folder of keys by their account; refuses one that the operator there has not signed.

    The broker takes any token, and a client whose account has a wrong one is locked out when the broker is restarted.
    accounts: which; None: all.
    """
    found = {}
    try:
        issuer = str(jwt.operator_claims((folder / OPERATOR_TOKEN).read_text(encoding="utf-8"))["sub"])
        for account in list_tokens(folder) if accounts is None else accounts:
            found[account] = (folder / TOKENS / f"{account}.jwt").read_text(encoding="utf-8")
    except OSError as error:
        raise FolderError(f"cannot read {error.filename}: {error.strerror}") from None
    for account, token in found.items():
        if jwt.verified(token, issuer)["sub"] != account:
            raise FolderError(f"{folder / TOKENS / account}.jwt is the token of another account")
    return found


def list_tokens(folder: Path) -> list[str]:
    """The accounts that have tokens in a folder of keys."""
    return sorted(path.stem for path in (folder / TOKENS).glob("A*.jwt"))
