"""A run in a file: the server's folder first, then the log and what lies beside it, so that no checkpoint is ahead.

backup.json        federation, run, records of the log, the streams' settings, and the digest of every other file
experiment.json    of the folder above
folder/…           the run folder, without what belongs to one server alone
LOG, BODY, MIRROR  messages, each as number, lengths, subject, content

`backup.json` is signed by the server. Records of the log and large envelopes would show that they were changed; a
checkpoint, streams' settings and the subjects of messages, which are put back with all the server's rights, would not.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import struct
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from hashlib import file_digest
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

from nats.js.errors import NotFoundError

from offbeat.core.errors import FolderError, OffbeatError
from offbeat.deploy import encoding, wire
from offbeat.deploy.board import change_board
from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.envelope import SIGNATURE, STATEMENT, public_sign, sign, verify
from offbeat.deploy.journal import Appender, Body, Chain, LogAudit, LogClock, Scribe, Tail, body_of, check_body
from offbeat.deploy.ledger import Ledger
from offbeat.deploy.link import Link, as_json
from offbeat.deploy.mending import NAME
from offbeat.deploy.refold import mended
from offbeat.deploy.streams import BrokerLog, StreamReader
from offbeat.experiment.real import saved_identity
from offbeat.watch import checkpoint
from offbeat.watch.files import EXPERIMENT, OWNER

FORMAT = "offbeat backup 2"
MANIFEST, LARGEST = "backup.json", 64 << 20  # its bytes at most
OWN = (NAME, "log.tail", "log.tail.old")  # of one server: a restored one has another name, and the whole log
_BUDGETS = ("dp-sgd", "DPSGD")  # names of what clients keep budgets for
KEPT = ("LOG", "BODY", "MIRROR")  # streams whose messages are saved; the others fill again by themselves
_FRAME = struct.Struct("<QII")  # number, bytes of the subject and of the content


async def backup(link: Link, folder: Path, file: Path) -> int:
    """Write a run to a new file; gives the number of its records."""
    identity = saved_identity(folder)
    if identity is None:
        raise FolderError(f"{folder} is not the folder of a real run")
    if file.exists():
        raise FolderError(f"{file} already exists; name another file")
    run = identity.run
    check_budgets(run, _experiment(folder.parent / EXPERIMENT))
    if not await _exists(link, f"LOG-{run}"):
        raise OffbeatError(f"the broker has no log of {run}, which is in {folder}; `offbeat runs` lists what it has")
    with tempfile.TemporaryDirectory(dir=file.absolute().parent) as name:
        place = Path(name)
        _copy(folder, place / "folder")
        shutil.copy(folder.parent / EXPERIMENT, place / EXPERIMENT)
        settings = {kind: await _settings(link, f"{kind}-{run}") for kind in ("LOG", "BODY", "MIRROR", "IN", "PART")}
        records = await _save_log(link, run, place / "LOG")
        for kind in KEPT[1:]:
            with (place / kind).open("wb") as out:
                async for number, subject, data in _messages(link, f"{kind}-{run}"):
                    out.write(_frame(number, subject, data))
        about = {"format": FORMAT, "federation": link.creds.federation, "run": run, "label": folder.name}
        content = {**about, "records": records, "streams": settings, "files": _digests(place)}
        (place / MANIFEST).write_bytes(sign(link.creds.sign, _about(link), as_json(content)))
        part = place / "tar"
        with tarfile.open(part, "w") as tar:
            for each in (MANIFEST, EXPERIMENT, "folder", *KEPT):
                tar.add(place / each, each)
        part.chmod(0o600)
        part.replace(file)
    return records


async def restore(link: Link, file: Path, out: Path) -> tuple[Path, int]:
    """Put a run back: (its folder, the number of its records). Nothing that is there is overwritten."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as name:
        place = Path(name)
        about = _unpacked(link, file, place)
        run, folder = str(about["run"]), out / Path(str(about["label"])).name
        if folder.exists():
            raise FolderError(f"{folder} already exists; name another folder with --out")
        if (out / EXPERIMENT).exists() and (out / EXPERIMENT).read_bytes() != (place / EXPERIMENT).read_bytes():
            raise FolderError(f"{out} holds another experiment; name another folder with --out")
        if await _exists(link, f"LOG-{run}"):
            raise OffbeatError(f"the broker has {run} already; to replace it, `offbeat runs delete {run}` first")
        check_budgets(run, _experiment(place / EXPERIMENT))
        subjects, chain = _verified(link, place, run, int(about["records"]))
        await link.make_board()
        try:
            for kind, config in about["streams"].items():
                await _create(link, f"{kind}-{run}", config)
            for seq, (_, _, data) in enumerate(_frames(place / "LOG"), 1):
                await link.store(subjects[seq - 1], data, {"Nats-Expected-Last-Sequence": str(seq - 1)})
            for kind in KEPT[1:]:
                for _, subject, data in _frames(place / kind):
                    await link.store(subject, data)
            await _begin_anew(link, run, place / "folder", chain)
        except BaseException:
            await link.delete_run(run)  # so that it can be tried again
            raise
        (place / "folder").replace(folder)
        folder.chmod(OWNER)
        (place / EXPERIMENT).replace(out / EXPERIMENT)
    await change_board(link, lambda board: board.without(run, "restored"))
    return folder, len(subjects)


def check_budgets(run: str, experiment: Mapping[str, Any]) -> None:
    """Raise for an experiment whose clients have privacy budgets, of which a backup knows an old state.

    Nor is one made: it would be of no use, and a checkpoint holds the secret that the noise of [privacy] is drawn from.
    """
    if "privacy" in experiment or any(name in json.dumps(experiment) for name in _BUDGETS):
        raise OffbeatError(
            f"{run} has a [privacy] table or dp-sgd, and is not put back from a backup: what was released since would "
            "be forgotten, and its clients would spend more than they were promised; let a second server stand by, or "
            "begin another run"
        )


def _experiment(path: Path) -> Mapping[str, Any]:
    """The table that a folder was made for."""
    found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8")).get("experiment", {})
    return found


async def _begin_anew(link: Link, run: str, folder: Path, chain: Chain) -> None:
    """Say in the log that it was restored, as the server that will serve it from this folder.

    Clients may have done more than the log knows. Seconds since 1970 are larger than any epoch that they can have
    reached, and than any term that they can have heard of, also since an earlier restore.
    """
    name, tail, clock = secrets.token_hex(8), Tail(folder), LogClock()
    (folder / NAME).write_text(name, encoding="ascii")
    clock.start(chain.stamp)
    scribe = Scribe(link.creds.federation, run, link.ours)
    appender = Appender(scribe, BrokerLog(link, run), chain, tail, clock, name)
    appender.term = max(appender.term, int(time.time()))
    for message in (wire.Led(run, appender.term, name), wire.Restored(run, int(time.time()))):
        await appender.add_own(wire.say(message))
        await appender.settle()
    tail.close()


def _copy(folder: Path, to: Path) -> None:
    """Copy the run folder, again if a server has written a checkpoint meanwhile."""
    for attempt in range(5):
        shutil.rmtree(to, ignore_errors=True)
        try:
            shutil.copytree(folder, to, ignore=shutil.ignore_patterns(*OWN, "*.part", "*.lock"))
            checkpoint.restore(Ledger, to)
            return
        except (shutil.Error, OSError, FolderError):
            if attempt == 4:
                raise FolderError(f"{folder} cannot be copied: its checkpoint changes all the time") from None


async def _save_log(link: Link, run: str, to: Path) -> int:
    """Write the verified records; what the broker has lost of them is taken from its mended copies."""
    info = await link.js.stream_info(f"LOG-{run}")
    if info.state.first_seq > 1 and await mended(link, run, 1) is None:
        raise FolderError(f"the log of {run} was trimmed; back up the broker's store instead")
    audit = LogAudit(Scribe(link.creds.federation, run, link.ours), Chain(), lambda seq: mended(link, run, seq))
    with to.open("wb") as out:
        async for number, _, data in _messages(link, f"LOG-{run}"):
            for record, raw in await audit.take(number, data):
                out.write(_frame(record.seq, f"log.{run}.{record.term}", raw))
    return audit.chain.seq


def _verified(link: Link, place: Path, run: str, records: int) -> tuple[list[str], Chain]:
    """The subjects of the records, and where they end, if they are what the server has written and none is missing."""
    scribe, chain, subjects = Scribe(link.creds.federation, run, link.ours), Chain(), list[str]()
    bodies = {subject: data for _, subject, data in _frames(place / "BODY")}
    try:
        for _, _, data in _frames(place / "LOG"):
            record = scribe.read(data)
            chain.check(record)
            if record.body is not None:
                check_body(record.body, _whole(bodies, run, record.term, record.body))
            chain.follow(record, data)
            subjects.append(f"log.{run}.{record.term}")
    except RefusedError as error:
        why = f"record {chain.seq + 1} of the backup of {run} does not count ({error}); it is damaged"
        raise OffbeatError(why) from None
    if chain.seq != records:
        raise OffbeatError(f"the backup of {run} has {chain.seq} of {records} records; it is cut off")
    found = checkpoint.restore(Ledger, place / "folder")
    if found is not None and found[0].position > records:
        raise OffbeatError(f"the checkpoint in the backup of {run} is ahead of its log; it is damaged")
    return subjects, chain


def _whole(bodies: dict[str, bytes], run: str, term: int, body: Body) -> bytes | None:
    names = [f"{body_of(run, term, body.number)}.{n}" for n in range(body.pieces)]
    return b"".join(bodies[name] for name in names) if all(name in bodies for name in names) else None


def _unpacked(link: Link, file: Path, place: Path) -> dict[str, Any]:
    """The files of a backup and what it says about itself, if these keys have written all of it."""
    try:
        with tarfile.open(file, "r:") as tar:
            signed = _manifest(tar)
            about: dict[str, Any] = json.loads(signed[len(STATEMENT) : -SIGNATURE])
            if about["format"] != FORMAT:
                raise ValueError(about["format"])
            federation, files = str(about["federation"]), dict(about["files"])
            if federation != link.creds.federation:
                raise FolderError(
                    f"{file} is of the federation {encoding.writable(federation)}, these keys are of another"
                )
            verify(public_sign(link.creds.sign), _about(link), signed)
            _check_same(file, _packed(tar), files)
            tar.extractall(place, filter="data")
            (place / MANIFEST).unlink()
            _check_same(file, _digests(place), files)  # the file may have been changed since it was looked at
    except RefusedError:
        raise FolderError(f"{file} was changed, or written with other keys than these; use another backup") from None
    except (OSError, tarfile.TarError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise FolderError(f"{file} is not a backup of this version ({error})") from None
    return about


def _manifest(tar: tarfile.TarFile) -> bytes:
    """What a backup says about itself, signed."""
    member = tar.getmember(MANIFEST)
    content = tar.extractfile(member) if member.isfile() and member.size <= LARGEST else None
    if content is None:
        raise ValueError(f"{MANIFEST} is not a file of a sensible size")
    return content.read()


def _packed(tar: tarfile.TarFile) -> dict[str, str]:
    """The digests of all files in a backup but the one that lists them, before any of it is on disk."""
    found = dict[str, str]()
    for member in tar:
        content = tar.extractfile(member) if member.isfile() and member.name not in found else None
        if content is not None and member.name != MANIFEST:
            found[member.name] = file_digest(cast(BufferedReader, content), "sha256").hexdigest()
        elif content is None and not member.isdir():
            found[member.name] = ""  # a link, or a file that is there twice
    return found


def _check_same(file: Path, found: Mapping[str, str], files: Mapping[str, str]) -> None:
    """Raise unless the digests of all files are those that the signed list has."""
    if changed := sorted(name for name in {*found, *files} if found.get(name) != files.get(name)):
        names = encoding.writable(", ".join(changed[:3]))
        raise FolderError(f"{file} was changed or is damaged: {names}; use another backup")


def _about(link: Link) -> tuple[str, str]:
    return "backup", link.creds.federation


def _digests(place: Path) -> dict[str, str]:
    """Of all files there."""
    found = {}
    for path in place.rglob("*"):
        if path.is_symlink():
            found[path.relative_to(place).as_posix()] = ""
        elif path.is_file():
            with path.open("rb") as file:
                found[path.relative_to(place).as_posix()] = file_digest(file, "sha256").hexdigest()
    return found


def _frame(number: int, subject: str, data: bytes) -> bytes:
    return _FRAME.pack(number, len(subject.encode()), len(data)) + subject.encode() + data


def _frames(path: Path) -> Iterator[tuple[int, str, bytes]]:
    with path.open("rb") as file:
        while head := file.read(_FRAME.size):
            try:
                number, subject, data = _FRAME.unpack(head)
                found = number, file.read(subject).decode(), file.read(data)
            except (struct.error, UnicodeError):
                raise FolderError(f"{path.name} in the backup is damaged") from None
            if len(found[2]) != data:
                raise FolderError(f"{path.name} in the backup is cut off")
            yield found


# The broker


async def _messages(link: Link, stream: str) -> AsyncIterator[tuple[int, str, bytes]]:
    """What a stream has now, in order."""
    info = await link.js.stream_info(stream)
    entries: asyncio.Queue[tuple[int, str, bytes]] = asyncio.Queue()
    if not info.state.messages:
        return
    reader = StreamReader(link, stream, lambda *message: entries.put_nowait(message))
    await reader.start(0)
    try:
        while True:
            try:
                message = await asyncio.wait_for(entries.get(), 2)
            except TimeoutError:  # the last ones may have been removed meanwhile
                if (await link.js.stream_info(stream)).state.first_seq > info.state.last_seq:
                    return
                await reader.watch()
                continue
            yield message
            if message[0] >= info.state.last_seq:
                return
    finally:
        await reader.stop()


async def _settings(link: Link, stream: str) -> dict[str, Any]:
    config: dict[str, Any] = (await link.js._api_request(f"$JS.API.STREAM.INFO.{stream}", timeout=5))["config"]
    config.pop("metadata", None)
    return config


async def _create(link: Link, stream: str, config: dict[str, Any]) -> None:
    await link.js._api_request(f"$JS.API.STREAM.CREATE.{stream}", as_json({**config, "name": stream}), timeout=5)


async def _exists(link: Link, stream: str) -> bool:
    try:
        await link.js.stream_info(stream)
    except NotFoundError:
        return False
    return True
