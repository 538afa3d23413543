"""More attacks on a run with a real broker: replays across runs, lives and kinds, text that is meant for a terminal,
claims without bounds, and a store that its administrator rearranges. `goes_on` is explained in `test_attacks`."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import time
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from attacked import Place, Scene, heard, opened
from nats.js import api
from served import cancel, kill, until

from offbeat.algorithms import AREA
from offbeat.core.errors import OffbeatError
from offbeat.core.until import Until
from offbeat.deploy import identity, keys, server as server_module, streams, wire
from offbeat.deploy.board import Board, Pulse, parse_board, parse_pulse, write_board, write_pulse
from offbeat.deploy.effects import Judgement
from offbeat.deploy.encoding import RefusedError
from offbeat.deploy.envelope import Ours, digest_of
from offbeat.deploy.gate import PARTED
from offbeat.deploy.identity import parse_roster
from offbeat.deploy.journal import BrokenLogError, Scribe
from offbeat.deploy.logs import _Text, log, plain
from offbeat.deploy.push import push
from offbeat.deploy.questions import Asking, Question, ask_server, channel_of
from offbeat.deploy.refold import copy_of, fingerprint, refold
from offbeat.deploy.roll import members_of
from offbeat.experiment import admin, backup
from offbeat.experiment.real import RunIdentity, save_identity


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with opened(tmp_path_factory.mktemp("place")) as made:
        yield made


async def greeted(scene: Scene) -> int:
    """The thief takes mallory's place; gives its job."""
    await scene.up(scene.says("hello", epoch=1, nonce="n"))
    await until(lambda: scene.server.ledger.clients[2].queue)
    return int(next(iter(scene.server.ledger.clients[2].queue)))


# With a client's keys

ESCAPES = "\x1b]0;owned\x07\x1b[2J\r\n12:00:00 alice: was removed\u202e\x9b31m"


def test_text_of_a_client_moves_no_terminal_and_forges_no_line(place: Place) -> None:
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(_Text())

    async def act(scene: Scene) -> None:
        job = await greeted(scene)
        await scene.up(scene.says("trained", epoch=1, seq=1, job=job, steps=0, error=ESCAPES))
        await until(lambda: scene.server.ledger.clients[2].failed == 1)
        await scene.goes_on()

    log.addHandler(handler)
    try:
        place.play(act)
    finally:
        log.removeHandler(handler)
    (line,) = [line for line in lines.getvalue().split("\n") if "its job failed" in line]
    assert line.isprintable()
    assert r"\x1b]0;owned\x07\x1b[2J\r\n12:00:00 alice" in line
    assert not any(line.startswith("12:00:00 alice") for line in lines.getvalue().split("\n"))


def test_what_is_spelled_out_is_what_does_not_print() -> None:
    assert plain("siteA: größe 3 → 4, 日本") == "siteA: größe 3 → 4, 日本"
    assert plain("a\ud800b\u2028c") == r"a\ud800b\u2028c"


def test_a_job_of_another_client_is_not_one_s_own(place: Place) -> None:
    async def act(scene: Scene) -> None:
        alice = await scene.join("alice")
        await until(lambda: alice.applied > 1)
        await cancel(scene.ends)
        await scene.taken()
        await greeted(scene)
        theirs = next(iter(scene.server.ledger.clients[0].queue))
        before = scene.server.ledger.clients[0].applied
        await scene.up(scene.says("trained", epoch=1, seq=1, job=theirs, steps=0, error="not mine"))
        assert scene.server.refused == {"late": 1}
        assert theirs in scene.server.ledger.clients[0].queue
        assert scene.server.ledger.clients[0].applied == before
        scene.clients.clear()
        await scene.goes_on()

    place.play(act, patience=120.0)  # alice has her job as long as she does not count as gone


@pytest.mark.parametrize("what", ["append", "mend", "stop", ""])
def test_a_client_s_question_gives_no_orders(place: Place, what: str) -> None:
    async def act(scene: Scene) -> None:
        asking = Asking(scene.thief, scene.run)
        await asking.listen()
        with pytest.raises(TimeoutError):
            await asking.ask(what, piece=wire.say(wire.Halted(scene.run, "mine")), patience=0.3)
        # nor if it is sent where the operator's questions go
        data = channel_of(scene.thief.creds, scene.run).seal("ask", b"")
        await scene.admin.say(f"ask.server.{scene.run}", data)
        assert scene.server.ledger.stopped == ""
        await scene.goes_on()

    place.play(act)


CLAIMS: dict[str, dict[str, Any]] = {
    "a loss of minus infinity, nearly": {"total": 1, "loss": -1e30, "sums": {"accuracy": [1, 1]}},
    "a loss beyond all": {"total": 2**53 - 1, "loss": 1e30, "sums": {"accuracy": [0, 1]}},
    "samples without sums": {"total": 2**53 - 1, "loss": 0.0, "sums": {}},
    "tiny weights": {"total": 1, "loss": 0.0, "sums": {"accuracy": [1e-30, 1e-30]}},
    "sums without samples": {"total": 0, "loss": -1e30, "sums": {"accuracy": [1, 1]}},
}


def test_no_claim_ends_a_run_or_moves_its_loss_out_of_the_others_reach(place: Place) -> None:
    async def act(scene: Scene) -> None:
        for name in ("alice", "bob"):
            await scene.join(name, judge=lambda *_: Judgement(10, 20.0, {"accuracy": [1, 10]}))
        await greeted(scene)
        said, ledger, claims = set[int](), scene.server.ledger, iter(CLAIMS.values())
        while len(said) < len(CLAIMS):
            for number in {each.number for each in ledger.judging.values()} - said:
                said.add(number)
                await scene.up(scene.says("judged", epoch=1, number=number, **next(claims)))
            await asyncio.sleep(0.02)
        await until(lambda: len(scene.server.recorder.measurements) >= len(CLAIMS))
        for each in scene.server.recorder.measurements:
            assert abs(each.metrics.get("loss", 0.0)) <= 1e6  # there is none if the others were late
            assert 0.0 <= each.metrics.get("accuracy", 0.0) <= 1.0
        assert scene.server.ledger.stopped == ""
        await scene.goes_on()

    place.play(act, until=Until(updates=10**6, accuracy=0.95), every=0.1)


def test_an_answer_to_an_evaluation_that_was_never_asked_for_counts_nowhere(place: Place) -> None:
    async def act(scene: Scene) -> None:
        await greeted(scene)
        for number in (7, 2**52):
            await scene.up(scene.says("judged", epoch=1, number=number, total=5, sums={"accuracy": [5, 5]}))
        assert not scene.server.recorder.measurements
        assert not scene.server.ledger.judging
        await scene.goes_on()

    place.play(act)


@pytest.mark.parametrize(
    "headers",
    [
        {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"},  # a batch that is never ended
        {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": "board"},
        {"Nats-Rollup": "all"},
        {"Nats-Incr": "+1"},
        {"Nats-TTL": "1s"},
    ],
)
def test_what_a_client_asks_of_the_broker_in_headers_stops_nobody_s_messages(
    place: Place, headers: dict[str, str]
) -> None:
    async def act(scene: Scene) -> None:
        for name in ("up", "part", "mirror"):
            await scene.thief.client.publish(f"{name}.{scene.run}", b"x" * 1000, headers=headers)
        await scene.thief.client.flush()
        await scene.goes_on()

    place.play(act)


def test_pieces_that_make_pieces_or_no_list_are_refused(place: Place) -> None:
    async def act(scene: Scene) -> None:
        def told(text: str) -> bytes:
            return PARTED + scene.sealed(text.encode(), "parts")

        inner = told(json.dumps({"numbers": [1], "size": 1, "digest": "0" * 64}))
        number = json.loads((await scene.thief.client.request(f"part.{scene.run}", inner, timeout=5)).data)["seq"]
        found = {"numbers": [number], "size": len(inner), "digest": digest_of(inner)}
        others = ({"numbers": "12"}, {"numbers": {"1": 2}}, {"numbers": [True]}, {"digest": "z" * 64})
        await scene.up(*(told(json.dumps(found | other)) for other in ({}, *others)), told("[" * 90_000), told("NaN"))
        assert scene.server.refused == {"malformed": 6, "damaged": 1}
        await scene.goes_on()

    place.play(act)


def test_greetings_without_end_fill_the_log_no_faster_than_a_budget(place: Place) -> None:
    async def act(scene: Scene) -> None:
        alice = await scene.join("alice")
        await until(lambda: alice.applied > 2)
        start, began = scene.server.ledger.clients[2].epoch, asyncio.get_running_loop().time()
        for epoch in range(1, 400):
            envelope = scene.says("hello", epoch=epoch, nonce=f"n{epoch}", seen=0)
            try:
                await scene.thief.store(f"up.{scene.run}", envelope)
            except Exception:  # the broker refuses what is more than its share
                await asyncio.sleep(0.005)
        passed = asyncio.get_running_loop().time() - began
        before = alice.applied
        await until(lambda: alice.applied > before + 5)
        taken = scene.server.ledger.clients[2].epoch - start
        assert scene.server.gate.held["mallory"] or taken < 110 + 50 * passed
        await scene.goes_on()

    place.play(act)


# By the broker's administrator


def test_a_statement_of_one_kind_is_none_of_another(place: Place) -> None:
    """All of them are signed with the same key of the server's, or sealed with the same two of a client and it."""
    creds = identity.read_creds(place.folder / "fed" / "server.creds")
    board, pulse = write_board(creds, Board(7)), write_pulse(creds, "run", Pulse(1, "one", 1, 1, 1.0))
    roster = (place.folder / "fed" / "roster.json").read_bytes()
    readers = [
        (board, lambda data: parse_board(creds, data)),
        (pulse, lambda data: parse_pulse(creds, "run", data)),
        (roster, lambda data: parse_roster(data, creds.coordinator)),
    ]
    for (ours, _), (_, read) in permutations(readers, 2):
        with pytest.raises(OffbeatError):
            read(ours)
    member = identity.read_creds(place.folder / "fed" / "alice.creds")
    channel = channel_of(member, "run")
    server = Scribe(creds.federation, "run", Ours(creds.sign, creds.seal)).channel(members_of(place.roster)["alice"])
    for kind, other in permutations(("entry", "parts", "beat", "ask"), 2):
        with pytest.raises(RefusedError):
            server.open(other, channel.seal(kind, b"content"))  # type: ignore[arg-type]
    for kind, other in permutations(("desk", "tell"), 2):
        with pytest.raises(RefusedError):
            channel.open(other, server.seal(kind, b"content"))  # type: ignore[arg-type]
    with pytest.raises(RefusedError):  # nor does what one end has said count there as the other's
        channel.open("desk", channel.seal("entry", b"content"))


def test_the_farewell_of_a_former_leader_said_again_calls_no_standby(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "SILENCE", 1e9)  # on a busy machine a leader may be silent for a while

    async def act(scene: Scene) -> None:
        pulses = await heard(scene.admin, f"pulse.{scene.run}")
        await scene.stop()
        await until(lambda: pulses and parse_pulse(scene.admin.creds, scene.run, pulses[-1].data).leaving)
        farewell = pulses[-1]
        await scene.serve()
        leader, scene.folder = scene.server, scene.place.folder / f"{scene.run}-standby"
        await scene.serve()
        for _ in range(10):
            await scene.admin.say(farewell.subject, farewell.data)
            await asyncio.sleep(0.05)
        assert not scene.server.leading
        assert leader.leading
        scene.server.leave()
        scene.server = leader
        scene.serving = scene.tasks[-2]
        await scene.goes_on()

    place.play(act)


def test_an_old_copy_of_a_client_s_own_is_not_taken_for_its_newest(place: Place) -> None:
    """A client that has lost its disk is shown what it had left with the broker long before."""

    async def act(scene: Scene) -> None:
        copies = await heard(scene.admin, f"mirror.{scene.alice}.{scene.run}")
        alice = await scene.join("alice")
        await until(lambda: alice.applied > 6)
        await cancel(scene.ends)
        old = (await copies.so_far())[1]
        await scene.admin.js.purge_stream(f"MIRROR-{scene.run}")
        await scene.admin.store(old.subject, old.data)
        await scene.join("alice", "a new disk")
        assert "too old; retire" in await asyncio.wait_for(scene.ends, 60)
        scene.clients.clear()
        await scene.join("bob")
        await scene.goes_on()

    place.play(act, server=AREA(size=1))


def test_a_made_up_copy_of_a_record_keeps_nobody_from_asking_for_the_true_one(place: Place) -> None:
    async def act(scene: Scene) -> None:
        alice = await scene.join("alice")
        await until(lambda: alice.applied > 3)
        leader = scene.server
        leader.mending.holes = {3}  # it believes to have left a copy
        await scene.admin.store(copy_of(scene.run, 3), b"made up")
        await scene.admin.forget(f"LOG-{scene.run}", 3)
        home, scene.folder = scene.folder, scene.place.folder / f"{scene.run}-standby"
        await scene.serve()
        assert scene.server.ledger.position > 3
        scene.server.leave()
        scene.folder, scene.server, scene.serving = home, leader, scene.tasks[0]
        await scene.goes_on()

    place.play(act)


def test_a_log_written_again_in_another_order_is_put_right_from_the_server_s_copy(place: Place) -> None:
    async def act(scene: Scene) -> None:
        alice = await scene.join("alice")
        await until(lambda: alice.applied > 5)
        await cancel(scene.ends)
        await kill(scene.server, scene.serving)
        name, end = f"LOG-{scene.run}", scene.server.chain.seq
        records = [await scene.admin.kept(name, seq) for seq in range(1, await scene.admin.end(name) + 1)]
        config = (await scene.admin.js.stream_info(name)).config
        await scene.admin.js.delete_stream(name)
        await scene.admin.js.add_stream(config)
        records[5], records[6] = records[6], records[5]
        for record in records:
            assert record is not None
            await scene.admin.store(record.subject, record.data)
        await scene.serve()
        assert scene.server.ledger.position >= end
        assert [number for number, _ in scene.server.following.audit.mended] == [6, 7]
        scene.clients.clear()
        await scene.goes_on()

    place.play(act)


def test_a_log_of_which_the_broker_keeps_only_the_end_is_completed_from_the_server_s_copy(place: Place) -> None:
    async def act(scene: Scene) -> None:
        alice = await scene.join("alice")
        await until(lambda: alice.applied > 5)
        config = (await scene.admin.js.stream_info(f"LOG-{scene.run}")).config
        await scene.admin.js.update_stream(api.StreamConfig(**{**vars(config), "max_msgs": 3}))
        before = alice.applied
        await until(lambda: alice.applied > before + 5)
        applied = scene.server.ledger.tally.updates
        await kill(scene.server, scene.serving)
        await scene.serve()
        assert scene.server.ledger.tally.updates >= applied
        await until(lambda: scene.server.ledger.tally.updates > applied + 3)

    place.play(act)


def test_an_inbox_whose_reader_the_administrator_removes_is_read_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "SILENT", 1.0)

    async def act(scene: Scene) -> None:
        alice = await scene.join("alice")
        await until(lambda: alice.applied > 2)
        for reader in await scene.admin.js.consumers_info(f"IN-{scene.run}"):
            await scene.admin.js.delete_consumer(f"IN-{scene.run}", reader.name)
        before = alice.applied
        await until(lambda: alice.applied > before + 3)
        await scene.goes_on()

    place.play(act)


def test_a_result_that_is_held_back_until_its_keys_were_rotated_is_refused(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        ups = await heard(scene.admin, f"up.*.{scene.run}")
        alice = await scene.join("alice")
        await until(lambda: alice.applied > 2)
        await cancel(scene.ends)
        held, fed = (await ups.so_far())[-1], scene.place.folder / "fed"
        keys.rotate(fed, ["alice"])
        await push(fed, scene.place.broker.url)
        new = identity.read_roster(fed).client("alice")
        await until(lambda: scene.server.ledger.clients[0].sign == new.sign.hex())
        before = scene.server.ledger.clients[0].applied
        await scene.admin.store(f"up.{new.account}.{scene.run}", held.data)
        await scene.admin.store(held.subject, held.data)
        await scene.taken()
        assert scene.server.refused == {"forged": 2}
        assert scene.server.ledger.clients[0].applied == before
        await scene.join("bob")
        await scene.goes_on()

    with opened(tmp_path) as made:
        made.play(act)


def saved(scene: Scene, about: str) -> Path:
    save_identity(scene.folder, RunIdentity(scene.run, list(scene.plan().roster)))
    (scene.folder.parent / "experiment.json").write_text("{}")
    return scene.place.folder / f"{scene.run}-{about}.tar"


async def put_back(scene: Scene, file: Path) -> None:
    """The run is restored from a backup; its server is served from the new folder."""
    await scene.admin.delete_run(scene.run)
    out = scene.place.folder / f"{scene.run}-back"
    scene.folder, _ = await backup.restore(scene.admin, file, out)


def test_an_order_to_stop_said_again_to_a_restored_run_is_void(place: Place) -> None:
    """It was given to the run as it was before; the log that would know of it is gone."""

    async def act(scene: Scene) -> None:
        asked = await heard(scene.admin, f"ask.server.{scene.run}")
        await scene.join("alice")
        await until(lambda: scene.server.ledger.tally.updates > 3)
        file = saved(scene, "before")
        await backup.backup(scene.admin, scene.folder, file)
        await ask_server(scene.admin, scene.run, "append", wire.say(wire.Halted(scene.run, "stopped")))
        await asyncio.wait_for(scene.serving, 60)
        stop = (await asked.so_far())[0].data  # who gets no answer in time says it again
        await asyncio.sleep(1.1)  # the order is older than the restored run, in whole seconds
        await put_back(scene, file)
        await scene.serve()
        for _ in range(3):
            await scene.admin.say(f"ask.server.{scene.run}", stop)
        await asyncio.sleep(0.3)
        assert scene.server.ledger.stopped == ""
        status = json.loads(await ask_server(scene.admin, scene.run))
        assert status["run"] == scene.run
        await scene.stop()
        again = await refold(scene.admin, scene.plan(), scene.server.ledger.position)
        assert fingerprint(again) == fingerprint(scene.server.ledger)

    place.play(act)


def test_an_operator_is_told_if_a_wrong_clock_keeps_an_order_from_counting(place: Place) -> None:
    async def act(scene: Scene) -> None:
        asking, stop = Asking(scene.admin, scene.run), wire.say(wire.Halted(scene.run, "stopped"))
        await asking.listen()
        for ahead, life, said in (
            (3600, 0, r"3,(600|599) s ahead of the server's"),
            (0, 3600, r"again in 3,(600|599) s"),
        ):
            now = time.time()
            scene.server.ledger.life = int(now) + life if life else 0
            with pytest.raises(OffbeatError, match=said):
                await asking.put(Question("append", f"order {ahead}", now + ahead), stop, patience=60.0)
        scene.server.ledger.life = 0
        await scene.goes_on()

    place.play(act)


def test_a_server_whose_clock_is_an_hour_behind_is_answered_and_gives_no_orders(place: Place) -> None:
    async def act(scene: Scene) -> None:
        asking, before = Asking(scene.admin, scene.run), time.time() - 3600.0
        await asking.listen()
        answer = json.loads(await asking.put(Question("mend", "one", before, seq=1), patience=60.0))
        assert answer["run"] == scene.run
        stop = wire.say(wire.Halted(scene.run, "stopped"))
        with pytest.raises(OffbeatError, match=r"nothing was done to .*: the clock of this machine is 3,60\d s behind"):
            await asking.put(Question("append", "two", before), stop, patience=60.0)
        await scene.goes_on()

    place.play(act)


def test_a_server_that_lives_on_while_its_run_is_restored_adds_nothing_to_it(place: Place) -> None:
    async def act(scene: Scene) -> None:
        await scene.join("alice")
        await until(lambda: scene.server.ledger.tally.updates > 3)
        file = saved(scene, "early")
        await backup.backup(scene.admin, scene.folder, file)
        await until(lambda: scene.server.ledger.tally.updates > 20)
        old, serving = scene.server, scene.serving
        assert old.appender is not None
        async with old.appender.lock:  # it is halted, and its operator believes that it is gone
            await cancel(scene.ends)
            await put_back(scene, file)
            await scene.serve()
        await until(serving.done)
        with pytest.raises(BrokenLogError, match=r"restored from a backup|is missing|was changed"):
            serving.result()
        scene.clients.clear()
        await scene.join("bob")
        await scene.goes_on()

    place.play(act)


# The operator's own names


@pytest.mark.parametrize("name", ["*", ">", "run.*", "a b", "../LOG-run", "r0\r\nPUB x 0"])
def test_a_run_whose_name_is_a_pattern_is_none(place: Place, name: str) -> None:
    async def act(scene: Scene) -> None:
        for action in (admin.stop_run, admin.delete_run):
            with pytest.raises(OffbeatError, match="there is no run"):
                await action(scene.admin, name)
        await scene.goes_on()

    place.play(act)
