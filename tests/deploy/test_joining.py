"""What `offbeat join` says: what it does, what is wrong, and what to do about it, within two seconds each."""

from __future__ import annotations

import asyncio
import json
import shutil
import socketserver
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from command import offbeat
from federation import LOADER, OWN
from served import until
from sites import running, served, site

from offbeat.core.errors import SettingError
from offbeat.core.vectors import Vector
from offbeat.deploy import keys
from offbeat.deploy.broker import Broker, free_port
from offbeat.deploy.client_data import ClientProblem
from offbeat.deploy.logs import log, logged, note
from offbeat.deploy.push import push
from offbeat.experiment import joining
from offbeat.experiment.partner import Partner


def test_a_dead_port_is_said_and_the_client_connects_once_there_is_a_broker(tmp_path: Path) -> None:
    fed, port = tmp_path / "fed", free_port()
    keys.init(fed, ["a"], port=port, tls=False)
    broker = Broker(tmp_path / "broker", fed, port=port)

    async def play() -> None:
        with site(tmp_path, fed / "a.creds", broker.url) as a:
            async with a:
                await a.says(f"a: cannot connect to nats://127.0.0.1:{port}: nothing listens there; start the broker")
                broker.start()
                await a.says("connected to", 60)
                await a.says("this federation has no active run")

    try:
        asyncio.run(play())
    finally:
        broker.stop()


def test_a_host_that_is_not_there_and_an_address_that_is_none_are_said(tmp_path: Path) -> None:
    keys.init(tmp_path / "fed", ["a"], tls=False)

    async def play(url: str, text: str) -> None:
        with site(tmp_path, tmp_path / "fed" / "a.creds", url) as a:
            async with a:
                await a.says(text)

    asyncio.run(play("nats://no-such-host.invalid:4222", "there is no such host; check the address"))


def test_a_certificate_for_another_name_and_one_of_another_authority_are_told_apart(tmp_path: Path) -> None:
    ours, other, port = tmp_path / "fed", tmp_path / "other", free_port()
    for fed in (ours, other):
        keys.init(fed, ["a"], port=port)
    broker = Broker(tmp_path / "broker", ours, host="127.0.0.2", port=port)

    async def play() -> None:
        with site(tmp_path, ours / "a.creds", broker.url) as a:
            async with a:
                await a.says(f"the certificate of 127.0.0.2:{port} is for localhost, 127.0.0.1, not for 127.0.0.2; use")
        with site(tmp_path, other / "a.creds", broker.url) as a:
            async with a:
                await a.says(f"127.0.0.2:{port} is not this federation's broker")
        with site(tmp_path, ours / "a.creds", f"tls://127.0.0.1:{http}") as a:
            async with a:
                await a.says("does not begin with TLS")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Greeter) as plain, running(broker):
        http = plain.server_address[1]
        threading.Thread(target=plain.serve_forever, args=(0.05,), daemon=True).start()
        asyncio.run(play())
        plain.shutdown()


class Greeter(socketserver.BaseRequestHandler):
    """A broker that speaks first, in the clear."""

    def handle(self) -> None:
        self.request.sendall(b'INFO {"server_id":"x"}\r\n')
        while self.request.recv(1 << 16):
            pass


def test_a_key_that_was_rotated_is_said_and_the_new_file_is_taken_up(tmp_path: Path) -> None:
    fed, port, mine = tmp_path / "fed", free_port(), tmp_path / "a.creds"
    keys.init(fed, ["a"], port=port)
    shutil.copy(fed / "a.creds", mine)
    keys.rotate(fed, ["a"])
    broker = Broker(tmp_path / "broker", fed, port=port)

    async def play() -> None:
        with site(tmp_path, mine, broker.url) as a:
            async with a:
                await a.says(f"put the newest a.creds from the coordinator at {mine}, if there is one")
                shutil.copy(fed / "a.creds", mine)
                await a.says("connected to", 60)

    with running(broker):
        asyncio.run(play())


def test_a_site_that_was_removed_is_told_so_and_whom_to_ask(tmp_path: Path) -> None:
    fed, port = tmp_path / "fed", free_port()
    keys.init(fed, ["a", "b"], port=port)
    broker = Broker(tmp_path / "broker", fed, port=port)

    async def play() -> None:
        with site(tmp_path, fed / "a.creds", broker.url) as a:
            async with a:
                await a.says("connected to", 60)
                keys.remove(fed, ["a"])
                await push(fed, broker.url)
                await a.says(
                    "(a was removed from fed or revoked, or is connected several times already; ask the coordinator of"
                )
                await a.says("the broker takes no connection from a: a was removed", 60)
                assert "newest a.creds" not in a.log.read_text()

    with running(broker):
        asyncio.run(play())


def test_a_client_moves_on_from_an_abandoned_run_and_comes_back_when_that_lives_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "SILENT", 1.6)
    monkeypatch.setattr(joining, "GONE", 3.0)
    keys.init(tmp_path / "fed", ["a", "b"], tls=False)
    broker = Broker(tmp_path / "broker", tmp_path / "fed")

    async def play() -> None:
        with site(tmp_path, tmp_path / "fed" / "a.creds", broker.url) as a:
            async with a:
                await a.says("this federation has no active run")
                async with served(tmp_path, broker.url, "first", 10**6):
                    await a.says("takes part in first", 60)
                await a.says("the server of first has been silent for")
                async with served(tmp_path, broker.url, "second", 40) as (_, second):
                    await a.says("leaves first, which no server is running, for another run", 60)
                    await a.says("takes part in second", 60)
                    await asyncio.wait_for(second, 120)
                await a.says("second is finished (updates); ", 60)
                async with served(tmp_path, broker.url, "first", 10**6) as (first, _):
                    await until(lambda: first.ledger.tally.updates)

    with running(broker):
        asyncio.run(play())


def test_runs_that_are_not_for_this_client_are_said_and_waited_out(tmp_path: Path) -> None:
    keys.init(tmp_path / "fed", ["a", "b"], tls=False)
    broker = Broker(tmp_path / "broker", tmp_path / "fed")

    async def play() -> None:
        with site(tmp_path, tmp_path / "fed" / "a.creds", broker.url) as a:
            async with a:
                async with served(tmp_path, broker.url, "newer", 40, version=99):
                    await a.says("the server of newer speaks version 99 and this client")
                    await a.says("; upgrade the client")
                async with served(tmp_path, broker.url, "others", 40, ["b"]):
                    await a.says("a is not on the roster of others; the coordinator can add it with `offbeat keys add`")

    with running(broker):
        asyncio.run(play())


def test_a_site_that_is_added_while_a_run_goes_on_takes_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "joined_late.py").write_text(LOADER)
    monkeypatch.syspath_prepend(str(tmp_path))
    fed = tmp_path / "fed"
    keys.init(fed, ["a"], tls=False)
    broker = Broker(tmp_path / "broker", fed)

    async def play() -> None:
        with site(tmp_path, fed / "a.creds", broker.url, "joined_late:load") as a:
            async with a, served(tmp_path, broker.url, "own", 10**6, text=OWN) as (server, _):
                await a.says("takes part in own", 60)
                keys.add(fed, ["late"])
                await push(fed, broker.url)
                with site(tmp_path, fed / "late.creds", broker.url, "joined_late:load") as late:
                    async with late:
                        await late.says("late: takes part in own", 60)
                        await until(lambda: len(server.ledger.clients) == 2 and server.ledger.clients[1].seq > 3)

    with running(broker):
        asyncio.run(play())


def test_a_loss_of_nan_on_held_out_samples_ends_neither_the_client_nor_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = "\ndef huge():\n    x, y = load()\n    x[160:] = 3e38\n    return x, y\n"
    (tmp_path / "holed_data.py").write_text(LOADER + huge)
    judge = ClientProblem.judge

    def overflows(problem: ClientProblem, vector: Vector) -> tuple[int, int, float]:
        right, total, loss = judge(problem, vector)
        return right, total, float("nan") if float(problem.inner.test["x"].max()) > 1e30 else loss

    monkeypatch.setattr(ClientProblem, "judge", overflows)
    monkeypatch.syspath_prepend(str(tmp_path))
    fed = tmp_path / "fed"
    keys.init(fed, ["a", "b"], tls=False)
    broker = Broker(tmp_path / "broker", fed)

    async def play() -> None:
        with (
            site(tmp_path, fed / "a.creds", broker.url, "holed_data:huge") as a,
            site(tmp_path / "fed", fed / "b.creds", broker.url, "holed_data:load") as b,
        ):
            async with a, b, served(tmp_path, broker.url, "own", 200, text=OWN) as (server, task):
                await asyncio.wait_for(task, 120)
                await a.says("own is finished (updates); ", 60)
                assert (server.ledger.stopped, server.ledger.diverged) == ("updates", "")
                assert server.ledger.asked > 0

    with running(broker):
        asyncio.run(play())


def test_a_typo_in_data_is_found_before_anything_is_connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mysite.py").write_text("def load():\n    return 1\n\ndef two(a, b):\n    pass\n\nnumber = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    keys.init(tmp_path / "fed", ["a"], tls=False)
    for name, says in {
        "mysite:laod": "did you mean 'load'?",
        "mysit:load": "no module 'mysit'",
        "mysite.load": "write package.module:function",
        "mysite:two": "takes (a, b); it is called without arguments, or with the client's name",
        "mysite:number": "is a int, not a function",
    }.items():
        said = offbeat("join", "--keys", tmp_path / "fed" / "a.creds", "--nats", "nats://127.0.0.1:1", "--data", name)
        assert (said.code, says in said.err) == (1, True), said.err


def test_what_is_wrong_on_the_way_to_the_broker_is_said_while_a_site_s_module_is_imported(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(60)\ndef load():\n    pass\n")
    keys.init(tmp_path / "fed", ["a"], tls=False)
    words = ("join", "--keys", "fed/a.creds", "--nats", "nats://127.0.0.1:1", "--data", "slow:load")
    with subprocess.Popen(
        [sys.executable, "-m", "offbeat", *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as site:
        began = time.monotonic()
        assert site.stderr is not None
        said = [site.stderr.readline(), site.stderr.readline()]
        site.kill()
    assert time.monotonic() - began < 50
    assert "imports slow:load" in said[0]
    assert "a: warning: nothing listens on port 1 of 127.0.0.1" in said[1]


FIRST_LINE = """
import os, sys, threading, time
from offbeat.cli import main

class First:
    def write(self, text):
        if text.strip():
            spent = os.times()
            print(json(text, spent.user + spent.system, "torch" in sys.modules), flush=True)
            os._exit(0)
    def flush(self):
        pass
    def isatty(self):
        return False

def json(*values):
    import json
    return json.dumps(values)

sys.stderr = First()
main()
"""


@pytest.mark.parametrize(
    "words",
    [
        ("join", "--keys", "fed/a.creds", "--nats", "nats://127.0.0.1:1"),
        ("status", "--keys", "fed/a.creds", "--nats", "nats://127.0.0.1:1"),
        ("runs", "--keys", "fed/server.creds", "--nats", "nats://127.0.0.1:1"),
        ("serve", "no.toml", "--keys", "fed/a.creds"),
        ("backup", "no", "no.tar", "--keys", "fed/a.creds"),
    ],
)
def test_the_first_line_takes_a_second_of_processor_time_at_most_and_no_torch(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    keys.init(tmp_path / "fed", ["a"], tls=False)
    process = subprocess.run(
        [sys.executable, "-s", "-c", FIRST_LINE, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    line, spent, torch = json.loads(process.stdout)
    assert (torch, spent < 1.0) == (False, True), (line, spent)


def test_lines_of_the_log_are_text_for_people_or_json_for_programs(tmp_path: Path) -> None:
    text, objects = tmp_path / "text", tmp_path / "json"
    with logged(text, "warning"), logged(objects, "info", "json"):
        note("connected", client="a", seconds=3)
        note("disk", "error", free=0)
        log.warning("not sent: %s", "reason")
    assert [line[9:] for line in text.read_text().splitlines()] == ["error: disk free=0", "warning: not sent: reason"]
    first, *others = (json.loads(line) for line in objects.read_text().splitlines())
    assert (first["event"], first["level"], first["client"], first["seconds"]) == ("connected", "info", "a", 3)
    assert [other["event"] for other in others] == ["disk", "not sent: reason"]


def test_what_goes_wrong_with_one_client_of_a_process_is_said_and_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys.init(tmp_path / "fed", ["a", "b", "c"], tls=False)
    creds, told, over = [tmp_path / "fed" / f"{name}.creds" for name in "abc"], tmp_path / "told", asyncio.Event()

    async def part(self: joining.Participant) -> str:
        if self.creds.client == "a":
            return "a: fenced: another copy of this client has taken over"
        if self.creds.client == "b":
            raise SettingError("there are no samples")
        await over.wait()
        return ""

    async def play() -> None:
        taking = asyncio.create_task(joining.take_part(creds, "nats://x:1", Partner(), tmp_path, False, False))
        await until(lambda: "error: b: there are no samples" in told.read_text())
        assert "error: a: fenced" in told.read_text()
        assert not taking.done()
        over.set()
        assert await taking == "a: fenced: another copy of this client has taken over; b: there are no samples"

    monkeypatch.setattr(joining.Participant, "take_part", part)
    with logged(told):
        asyncio.run(play())


def test_under_up_it_ends_the_others_because_the_run_would_wait_for_it_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys.init(tmp_path / "fed", ["a", "b"], tls=False)
    creds = [tmp_path / "fed" / f"{name}.creds" for name in "ab"]

    async def part(self: joining.Participant) -> str:
        if self.creds.client == "a":
            raise SettingError("another base")
        await self.leaving.wait()
        return ""

    monkeypatch.setattr(joining.Participant, "take_part", part)
    taking = joining.take_part(creds, "nats://x:1", Partner(), tmp_path, False, until_closed=True)
    assert asyncio.run(asyncio.wait_for(taking, 5)) == "a: another base"
