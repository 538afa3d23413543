"""What a client with valid keys can do to the broker beyond its own subjects: nothing, whatever it tries."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nats.errors import Error as NatsError, NoRespondersError, TimeoutError as NatsTimeoutError
from nats.js import api
from nats.js.errors import APIError
from served import until

from offbeat.core.errors import OffbeatError
from offbeat.deploy import identity, jwt, keys
from offbeat.deploy.broker import Broker
from offbeat.deploy.connection import Connection

RUN = "r"


class Stage:
    """A broker with a run's streams, on which each test plays with new connections."""

    def __init__(self, folder: Path) -> None:
        self.fed = folder / "fed"
        self.roster = keys.init(self.fed, ["alice", "mallory", "oscar"], tls=False)
        self.broker = Broker(folder / "broker", self.fed, sync=False)
        self.alice, self.mallory = (self.roster.clients[name].account for name in ("alice", "mallory"))

    def connection(self, name: str) -> Connection:
        return Connection(identity.read_creds(self.fed / f"{name}.creds"), self.broker.url)

    async def prepare(self) -> None:
        server = self.connection("server")
        await server.connect(5)
        newest: dict[str, Any] = {"max_msgs_per_subject": 1}
        queue: dict[str, Any] = {
            "max_msgs_per_subject": 16,
            "discard": api.DiscardPolicy.NEW,
            "discard_new_per_subject": True,
            "retention": api.RetentionPolicy.WORK_QUEUE,
        }
        for name, subjects, options in (
            (f"IN-{RUN}", [f"up.*.{RUN}"], queue),
            (f"PART-{RUN}", [f"part.*.{RUN}"], {"max_msgs_per_subject": 72}),
            (f"LOG-{RUN}", [f"log.{RUN}"], {}),
            ("DESK", ["desk.*.*"], newest),
            ("BOARD", ["board", "roster"], newest),
            ("MODEL", ["model.>"], newest),
        ):
            await server.js.add_stream(api.StreamConfig(name=name, subjects=subjects, allow_direct=True, **options))
        await server.close()

    async def state(self, server: Connection) -> dict[str, dict[str, int]]:
        """How many messages each subject of each stream holds."""
        found = {}
        for info in await server.js.streams_info():
            exact = await server.js.stream_info(str(info.config.name), subjects_filter=">")
            found[str(info.config.name)] = dict(exact.state.subjects or {})
        return found

    async def _play(self, act: Callable[[Stage, Act], Awaitable[None]]) -> None:
        act_now = Act(*(self.connection(name) for name in ("server", "alice", "mallory")))
        connections = (act_now.server, act_now.alice, act_now.mallory)
        for connection in connections:
            await connection.connect(5)
        try:
            for stream in (f"IN-{RUN}", f"PART-{RUN}", f"LOG-{RUN}"):
                await act_now.server.js.purge_stream(stream)
            for subject, data in (
                (f"desk.{self.alice}.{RUN}", b"for alice"),
                (f"desk.{self.mallory}.{RUN}", b"for mallory"),
                (f"log.{RUN}", b"entry"),
                ("board", b"runs"),
                ("roster", b"roster"),
                (f"model.{RUN}.d.0", b"model" * 100),
            ):
                await act_now.server.js.publish(subject, data)
            await act(self, act_now)
        finally:
            for connection in connections:
                await connection.close()

    def play(self, act: Callable[[Stage, Act], Awaitable[None]]) -> None:
        asyncio.run(asyncio.wait_for(self._play(act), 120))


class Act:
    """The connections of one test."""

    def __init__(self, server: Connection, alice: Connection, mallory: Connection) -> None:
        self.server, self.alice, self.mallory = server, alice, mallory


async def settled(connection: Connection) -> None:
    """Everything that was sent has had its effect."""
    await connection.client.flush()
    await asyncio.sleep(0.05)


async def complains(connection: Connection, about: str) -> None:
    await until(lambda: about in connection.trouble.lower(), said=f"no {about}")


async def cut_off(connection: Connection) -> None:
    await until(lambda: connection.client.stats["reconnects"], said="still connected")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("stage"))
    made.broker.start()
    try:
        asyncio.run(made.prepare())
        yield made
    finally:
        made.broker.stop()


def test_what_a_client_needs_works(stage: Stage) -> None:
    async def act(stage: Stage, now: Act) -> None:
        heard: list[tuple[str, bytes]] = []

        async def hear(message: Any) -> None:
            heard.append((message.subject, message.data))

        ask = now.alice.client.request
        for subject in ("desk.*", "tell.*", "pulse.*", "board"):
            await now.alice.client.subscribe(subject, cb=hear)
        await now.alice.client.flush()
        assert json.loads((await ask(f"up.{RUN}", b"trained")).data)["stream"] == f"IN-{RUN}"
        assert json.loads((await ask(f"part.{RUN}", b"piece")).data)["stream"] == f"PART-{RUN}"
        assert (await ask(f"get.desk.{RUN}", b"")).data == b"for alice"
        assert (await ask("get.board", b"")).data == b"runs"
        assert (await ask(f"get.model.{RUN}.d.0", b"")).data == b"model" * 100
        for subject in (f"desk.{stage.alice}.{RUN}", f"tell.{stage.alice}.{RUN}", f"pulse.{RUN}", "board"):
            await now.server.client.publish(subject, b"!")
        await settled(now.server)
        assert sorted(heard) == sorted((name, b"!") for name in ("board", f"desk.{RUN}", f"pulse.{RUN}", f"tell.{RUN}"))
        counts = await stage.state(now.server)
        assert counts[f"IN-{RUN}"] == {f"up.{stage.alice}.{RUN}": 1}

    stage.play(act)


REPLIES = [
    "$JS.API.STREAM.DELETE.LOG-r",
    "$JS.API.STREAM.PURGE.LOG-r",
    "$JS.API.STREAM.UPDATE.LOG-r",
    "$SYS.REQ.CLAIMS.UPDATE",
    "up.{alice}.r",
    "desk.{alice}.r",
    "log.r",
    "roster",
    "pulse.r",
    "_INBOX.server.x",
    "_R_.x",
]


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("asked", ["get.model.r.d.0", "up.r", "ask.r"])
def test_an_answer_goes_nowhere_but_to_the_account_that_asked(stage: Stage, asked: str, reply: str) -> None:
    async def act(stage: Stage, now: Act) -> None:
        before, heard = await stage.state(now.server), list[str]()

        async def hear(message: Any) -> None:
            heard.append(message.subject)

        async def answer(message: Any) -> None:
            await message.respond(b"an answer")

        await now.server.client.subscribe("ask.*.*", cb=answer)
        for subject in ("pulse.*", "roster", "_INBOX.server.x"):
            await now.server.client.subscribe(subject, cb=hear)
        await now.server.client.flush()
        await now.mallory.client.publish(asked, b"", reply=reply.format(alice=stage.alice))
        await settled(now.mallory)
        after = await stage.state(now.server)
        after[f"IN-{RUN}"].pop(f"up.{stage.mallory}.{RUN}", None)
        assert after == before
        assert heard == []

    stage.play(act)


def test_an_answer_that_becomes_an_own_entry_fills_the_own_quota_only(stage: Stage) -> None:
    async def act(stage: Stage, now: Act) -> None:
        for _ in range(50):
            await now.mallory.client.publish(f"get.model.{RUN}.d.0", b"", reply=f"up.{RUN}")
        await settled(now.mallory)
        counts = (await stage.state(now.server))[f"IN-{RUN}"]
        assert set(counts) <= {f"up.{stage.mallory}.{RUN}"}
        assert sum(counts.values()) <= 16
        assert json.loads((await now.alice.client.request(f"up.{RUN}", b"mine")).data)["seq"] > 0

    stage.play(act)


PUBLISH = [
    "up.{alice}.r",
    "up.{mallory}.r",
    "up",
    "up.r.s",
    "log.r",
    "body.r.d.0",
    "roster",
    "board",
    "pulse.r",
    "desk.r",
    "desk.{alice}.r",
    "tell.r",
    "model.r.d.0",
    "$JS.API.STREAM.DELETE.LOG-r",
    "$JS.API.STREAM.CREATE.X",
    "$JS.API.STREAM.NAMES",
    "$JS.API.DIRECT.GET.DESK.desk.{alice}.r",
    "$JS.API.INFO",
    "$JS.ACK.IN-r.gate.1.1.1.1.1",
    "$JS.FC.LOG-r.x",
    "$SYS.REQ.CLAIMS.UPDATE",
    "$SYS.REQ.CLAIMS.DELETE",
    "$SYS.REQ.CLAIMS.LIST",
    "$SYS.REQ.SERVER.PING.CONNZ",
    "$SYS.REQ.ACCOUNT.PING.CONNZ",
    "$SYS.REQ.USER.INFO",
    "_INBOX.server.x",
    "_INBOX.alice.x",
    "_R_.x",
    "get.desk.r.x",
    "get.model.r",
]


@pytest.mark.parametrize("subject", PUBLISH)
def test_a_client_publishes_on_its_own_names_only(stage: Stage, subject: str) -> None:
    async def act(stage: Stage, now: Act) -> None:
        before = await stage.state(now.server)
        await now.mallory.client.publish(subject.format(alice=stage.alice, mallory=stage.mallory), b"{}")
        await complains(now.mallory, "permissions violation for publish")
        assert await stage.state(now.server) == before

    stage.play(act)


SUBSCRIBE = [
    ">",
    "*.>",
    "up.>",
    "up.r",
    "ask.r",
    "desk.{alice}.r",
    "log.r",
    "roster",
    "_INBOX.>",
    "_INBOX.alice.>",
    "_INBOX.server.>",
    "_R_.>",
    "$JS.>",
    "$JS.EVENT.ADVISORY.>",
    "$SYS.>",
    "$SYS.ACCOUNT.*.CONNECT",
    "get.>",
]


@pytest.mark.parametrize("subject", SUBSCRIBE)
def test_a_client_listens_to_its_own_names_only(stage: Stage, subject: str) -> None:
    async def act(stage: Stage, now: Act) -> None:
        await now.mallory.client.subscribe(subject.format(alice=stage.alice))
        await complains(now.mallory, "permissions violation for subscription")

    stage.play(act)


@pytest.mark.parametrize("queue", ["", "q"])
@pytest.mark.parametrize("pattern", ["desk.*", "desk.>"])
def test_another_s_assignment_is_neither_heard_nor_stolen(stage: Stage, pattern: str, queue: str) -> None:
    async def act(stage: Stage, now: Act) -> None:
        heard: list[bytes] = []
        got: list[bytes] = []

        async def hear(message: Any) -> None:
            heard.append(message.data)

        async def get(message: Any) -> None:
            got.append(message.data)

        await now.mallory.client.subscribe(pattern, queue=queue, cb=hear)
        await now.alice.client.subscribe("desk.*", queue=queue, cb=get)
        await now.mallory.client.flush()
        await now.alice.client.flush()
        for number in range(20):
            await now.server.client.publish(f"desk.{stage.alice}.{RUN}", str(number).encode())
        await settled(now.server)
        assert len(got) == 20
        assert heard == []

    stage.play(act)


@pytest.mark.parametrize(
    "body",
    [
        {"last_by_subj": "desk.{alice}.r"},
        {"seq": 1},
        {"multi_last": ["desk.>"]},
        {"next_by_subj": "desk.>", "seq": 1},
        {"batch": 10, "next_by_subj": "desk.{alice}.r"},
        {"start_time": "2020-01-01T00:00:00Z", "next_by_subj": ">"},
    ],
)
def test_a_get_gives_nothing_but_what_its_name_says(stage: Stage, body: dict[str, Any]) -> None:
    async def act(stage: Stage, now: Act) -> None:
        text = json.dumps(body).replace("{alice}", stage.alice)
        for subject in (f"get.desk.{RUN}", "get.board", f"get.model.{RUN}.d.0"):
            inbox, found = now.mallory.client.new_inbox(), list[Any]()

            async def hear(message: Any, found: list[Any] = found) -> None:
                found.append(message)

            await now.mallory.client.subscribe(inbox, cb=hear)
            await now.mallory.client.publish(subject, text.encode(), reply=inbox)
            await settled(now.mallory)
            assert all(b"alice" not in message.data and b"entry" not in message.data for message in found)

    stage.play(act)


@pytest.mark.parametrize("subject", ["up.*", "up.>", "part.*", "get.desk.*", "get.model.*.*.*", "get.model.>"])
def test_a_wildcard_in_a_published_subject_reaches_no_other(stage: Stage, subject: str) -> None:
    async def act(stage: Stage, now: Act) -> None:
        before = await stage.state(now.server)
        with contextlib.suppress(NatsTimeoutError, NoRespondersError, NatsError):
            answer = await now.mallory.client.request(subject, b"", timeout=0.2)
            assert b"alice" not in answer.data
        await settled(now.server)
        assert await stage.state(now.server) == before

    stage.play(act)


def test_a_run_that_is_not_there_takes_nothing(stage: Stage) -> None:
    async def act(stage: Stage, now: Act) -> None:
        before = await stage.state(now.server)
        for subject in ("up.other", "part.other", "mirror.other"):
            with pytest.raises((NoRespondersError, NatsTimeoutError)):
                await now.mallory.client.request(subject, b"", timeout=0.3)
        assert await stage.state(now.server) == before

    stage.play(act)


def test_a_full_inbox_is_the_sender_s_own(stage: Stage) -> None:
    async def act(stage: Stage, now: Act) -> None:
        answers = [json.loads((await now.mallory.client.request(f"up.{RUN}", b"x")).data) for _ in range(20)]
        assert [("error" in answer) for answer in answers] == [False] * 16 + [True] * 4
        assert "error" not in json.loads((await now.alice.client.request(f"up.{RUN}", b"x")).data)

    stage.play(act)


def test_a_message_id_that_another_has_used_costs_nobody_without_one(stage: Stage) -> None:
    async def act(stage: Stage, now: Act) -> None:
        await now.mallory.client.request(f"up.{RUN}", b"first", headers={"Nats-Msg-Id": "1"})
        answer = json.loads((await now.alice.client.request(f"up.{RUN}", b"second")).data)
        assert "duplicate" not in answer
        assert (await stage.state(now.server))[f"IN-{RUN}"][f"up.{stage.alice}.{RUN}"] == 1

    stage.play(act)


@pytest.mark.parametrize(
    "headers",
    [
        {"Nats-Rollup": "all"},
        {"Nats-Rollup": "sub"},
        {"Nats-TTL": "1s"},
        {"Nats-Incr": "+1"},
        {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": "log.r"},
        {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
        {"Nats-Expected-Stream": "LOG-r"},
        {"Nats-Expected-Last-Sequence": "99999"},
        {"Nats-Stream-Source": "LOG-r 1"},
    ],
)
def test_headers_that_mean_something_to_the_broker_change_nothing_else(stage: Stage, headers: dict[str, str]) -> None:
    async def act(stage: Stage, now: Act) -> None:
        await now.alice.client.request(f"up.{RUN}", b"mine")
        before = await stage.state(now.server)
        with contextlib.suppress(NatsTimeoutError, NoRespondersError):
            await now.mallory.client.request(f"up.{RUN}", b"x", headers=headers, timeout=0.3)
        after = await stage.state(now.server)
        after[f"IN-{RUN}"].pop(f"up.{stage.mallory}.{RUN}", None)
        assert after == before

    stage.play(act)


@pytest.mark.parametrize("target", ["log.r", "up.{alice}.r", "roster", "$JS.API.STREAM.DELETE.LOG-r"])
def test_a_trace_of_a_message_stays_in_its_account(stage: Stage, target: str) -> None:
    async def act(stage: Stage, now: Act) -> None:
        before = await stage.state(now.server)
        trace = {"Nats-Trace-Dest": target.format(alice=stage.alice)}
        await now.mallory.client.publish(f"beat.{RUN}", b"", headers=trace)
        await settled(now.mallory)
        assert await stage.state(now.server) == before

    stage.play(act)


# Limits


def test_a_message_above_the_limit_cuts_its_sender_off_and_is_not_kept(stage: Stage) -> None:
    async def act(stage: Stage, now: Act) -> None:
        await now.mallory.client.publish(f"up.{RUN}", bytes(jwt.CLIENT_PAYLOAD + 1))
        with contextlib.suppress(NatsError):
            await now.mallory.client.flush(1)
        await cut_off(now.mallory)
        assert (await stage.state(now.server))[f"IN-{RUN}"] == {}
        await now.alice.client.request(f"up.{RUN}", bytes(1 << 20))

    stage.play(act)


def test_subscriptions_are_limited(stage: Stage) -> None:
    async def act(stage: Stage, now: Act) -> None:
        for number in range(40):
            await now.mallory.client.subscribe(f"desk.{number}")
        await complains(now.mallory, "maximum")

    stage.play(act)


def test_connections_are_limited_and_another_s_are_its_own(stage: Stage) -> None:
    async def act(stage: Stage, now: Act) -> None:
        more = [stage.connection("oscar") for _ in range(5)]  # who is in no other test: the broker may count late
        for connection in more[:4]:
            await connection.connect(2)
        with pytest.raises(OffbeatError, match="is connected several times already"):
            await more[4].connect(1)
        other = stage.connection("alice")
        await other.connect(2)
        for connection in (*more, other):
            await connection.close()

    stage.play(act)


def test_a_subject_of_5000_letters_costs_only_its_sender(stage: Stage) -> None:
    async def act(stage: Stage, now: Act) -> None:
        await now.mallory.client.publish("up." + "x" * 5000, b"")
        with contextlib.suppress(NatsError):
            await now.mallory.client.flush(1)
        await now.alice.client.request(f"up.{RUN}", b"")

    stage.play(act)


# Identity


async def refused(stage: Stage, creds: identity.Creds) -> None:
    connection = Connection(creds, stage.broker.url)
    with pytest.raises(OffbeatError, match="refuses these keys"):
        await connection.connect(4)


def test_a_user_that_another_key_has_signed_is_refused(stage: Stage) -> None:
    mallory = identity.read_creds(stage.fed / "mallory.creds")
    alice = identity.read_creds(stage.fed / "alice.creds")
    own = jwt.new_seed(jwt.ACCOUNT)
    user = jwt.public_of(mallory.seed)
    forged = {
        "a token of another client": replace(mallory, jwt=alice.jwt),
        "a user that a user has signed": replace(mallory, jwt=jwt.issue(mallory.seed, user, "x", jwt.user())),
        "a user of an unknown account": replace(mallory, jwt=jwt.issue(own, user, "x", jwt.user())),
        "a signing key that an account does not have": replace(
            mallory, jwt=jwt.issue(own, user, "x", {**jwt.user(), "issuer_account": stage.alice})
        ),
        "no token": replace(mallory, jwt=""),
        "another signature": replace(mallory, seed=jwt.new_seed(jwt.USER)),
    }

    async def act(stage: Stage, now: Act) -> None:
        await asyncio.gather(*(refused(stage, creds) for creds in forged.values()))

    stage.play(act)


def test_a_token_that_was_changed_is_refused(stage: Stage) -> None:
    creds = identity.read_creds(stage.fed / "mallory.creds")
    head, body, signature = creds.jwt.split(".")
    changed = f"{head}.{body[:-2]}{'AA' if body[-2:] != 'AA' else 'BB'}.{signature}"

    async def act(stage: Stage, now: Act) -> None:
        await refused(stage, replace(creds, jwt=changed))

    stage.play(act)


def without_permits(content: dict[str, Any]) -> dict[str, Any]:
    """The same account without its permits."""
    return {**content, "imports": [{k: v for k, v in each.items() if k != "token"} for each in content["imports"]]}


def other_subject(content: dict[str, Any], own: str, other: str) -> dict[str, Any]:
    """The same account with another's subjects, and its own permits."""
    text = json.dumps([{**each, "token": ""} for each in content["imports"]]).replace(own, other)
    changed = [{**each, "token": old["token"]} for each, old in zip(json.loads(text), content["imports"], strict=True)]
    return {**content, "imports": changed}


@pytest.mark.parametrize("trick", ["another's permits", "no permits", "own permits for another's subjects"])
def test_an_account_imports_nothing_without_a_permit_even_if_the_operator_has_signed_it(
    stage: Stage, trick: str
) -> None:
    """Such an account is a mistake of the coordinator's, or another tenant's of the same broker."""
    made = keys._read_coordinator(stage.fed)
    seed, user = jwt.new_seed(jwt.ACCOUNT), jwt.new_seed(jwt.USER)
    account, fed = jwt.public_of(seed), made.accounts[""]
    own = jwt.client_account(jwt.Access("eve", account, {}), fed)
    content = {
        "another's permits": jwt.client_account(jwt.Access("eve", stage.alice, {}), fed),
        "no permits": without_permits(own),
        "own permits for another's subjects": other_subject(own, account, stage.alice),
    }[trick]
    creds = replace(
        identity.read_creds(stage.fed / "mallory.creds"),
        client="eve",
        jwt=jwt.issue(seed, jwt.public_of(user), "eve", jwt.user()),
        seed=user,
    )

    async def act(stage: Stage, now: Act) -> None:
        system = Connection(identity.read_system(stage.fed), stage.broker.url)
        await system.connect(2)
        await system.client.request(
            "$SYS.REQ.CLAIMS.UPDATE", jwt.issue(made.operator, account, "eve", content).encode()
        )
        await system.close()
        before, eve = await stage.state(now.server), Connection(creds, stage.broker.url)
        try:
            await eve.connect(2)
            for subject in (f"up.{RUN}", f"get.desk.{RUN}"):
                with pytest.raises((NoRespondersError, NatsTimeoutError)):
                    await eve.client.request(subject, b"", timeout=0.3)
        except OffbeatError:
            pass  # or no connection at all
        finally:
            await eve.close()
        assert await stage.state(now.server) == before

    stage.play(act)


def test_the_broker_s_own_account_is_closed_to_server_and_clients(stage: Stage) -> None:
    async def act(stage: Stage, now: Act) -> None:
        token = (stage.fed / identity.TOKENS / f"{stage.alice}.jwt").read_bytes()
        with pytest.raises((NoRespondersError, NatsTimeoutError, APIError)):
            await now.server.client.request("$SYS.REQ.CLAIMS.UPDATE", token, timeout=0.3)

    stage.play(act)
