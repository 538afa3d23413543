"""Two servers of one run: one leads, the other stands by and takes over, and nothing is lost or applied twice."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from served import Served, kill, staged, until

from offbeat.deploy import identity, keys, questions, server as server_module, wire
from offbeat.deploy.board import Pulse, Pulses
from offbeat.deploy.push import push
from offbeat.deploy.refold import fingerprint, refold
from offbeat.deploy.server import RunServer


async def replayed(served: Served, position: int) -> str:
    return fingerprint(await refold(await served.link("server"), served.plan(), position))


def test_a_second_server_stands_by_and_takes_over_when_the_first_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(served: Served) -> None:
        first, task = await served.serve("one")
        for name in served.names:
            await served.join(name)
        await until(lambda: first.ledger.tally.updates > 20)
        second, _ = await served.serve("two", ready=False)
        await until(lambda: second.ledger.position > 20)
        assert (second.leading, second.chain.leader) == (False, first.name)
        await kill(first, task)
        before = second.ledger.tally.updates
        await until(lambda: second.leading and second.ledger.tally.updates > before + 20)
        assert (second.chain.leader, second.chain.term) == (second.name, 2)
        # the first comes back, folds what it has missed, and stands by; only the other's farewell can make it lead
        monkeypatch.setattr(server_module, "SILENCE", 1e9)
        first, _ = await served.serve("one", ready=False)
        await until(lambda: first.ready and first.chain.leader == second.name)
        assert not first.leading
        second.leave()
        await until(lambda: first.leading)
        await until(lambda: first.ledger.tally.updates > second.ledger.tally.updates)
        first.leave()
        await until(lambda: not first.leading)
        assert fingerprint(first.ledger) == await replayed(served, first.ledger.position)

    staged(Served(tmp_path), act)


def test_who_has_a_run_stopped_is_told_so_although_its_server_ends_at_once(tmp_path: Path) -> None:
    async def act(served: Served) -> None:
        _, task = await served.serve("one")
        stop = wire.say(wire.Halted("run", "stopped"))
        asking = questions.Asking(await served.link("server"), "run")
        await asking.listen()
        answer = await asking.ask("append", piece=stop, patience=60)  # once
        assert json.loads(answer)["state"] == "stopped"
        await asyncio.wait_for(task, 60)

    staged(Served(tmp_path), act)


def test_a_leader_that_was_overtaken_stands_by_and_has_harmed_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(served: Served) -> None:
        first, _ = await served.serve("one")
        for name in served.names:
            await served.join(name)
        await until(lambda: first.ledger.tally.updates > 20)
        assert first.appender is not None
        async with first.appender.lock:  # it is halted for a while, and the other believes that it is gone
            with monkeypatch.context() as patch:
                patch.setattr(RunServer, "_stand_by", lambda self: asyncio.sleep(0))
                second, _ = await served.serve("two")
        await until(lambda: not first.leading)
        await until(lambda: second.ledger.tally.updates > 60)
        await until(lambda: first.ledger.position > second.ledger.position - 20)
        assert first.chain.leader == second.name
        second.leave()
        await until(lambda: first.leading)
        first.leave()
        await until(lambda: not first.leading)
        assert fingerprint(first.ledger) == await replayed(served, first.ledger.position)
        assert not set(first.ledger.tally.refused)

    staged(Served(tmp_path), act)


def test_a_pulse_counts_once_in_its_order_and_not_long_after_it_was_said() -> None:
    pulses = Pulses()

    def heard(term: int, number: int, said: float, now: float) -> bool:
        return pulses.fresh(Pulse(term, "one", 0, number, 1000.0 + said), now)

    assert heard(1, 1, 0.0, 7.5)  # half a second later than the fastest
    assert heard(1, 2, 1.0, 8.0)
    assert not heard(1, 2, 1.0, 8.0)
    assert not heard(1, 1, 0.0, 8.1)
    assert heard(1, 4, 3.0, 10.2)
    assert not heard(1, 3, 2.0, 10.3)
    assert heard(1, 5, 4.0, 14.5)  # 3.5 s late: a slow line
    assert not heard(1, 6, 5.0, 16.5)  # kept back
    assert heard(1, 12, 11.0, 18.0)
    assert heard(2, 1, 5.0, 30.0)  # nobody has served for a while, and the log's time stood still
    assert not heard(1, 13, 12.0, 31.0)
    assert not heard(2, 2, 6.0, 36.0)


def test_a_record_that_brokers_have_kept_for_a_while_is_a_sign_of_when_it_was_written() -> None:
    pulses = Pulses()
    assert pulses.written(1, 1000.0, 7.0) == 7.0  # nothing is known yet of its leader's clock
    assert pulses.fresh(Pulse(1, "one", 0, 1, 1000.0), 7.0)
    assert pulses.written(1, 1000.5, 7.5) == 7.5
    assert pulses.written(1, 1000.5, 12.0) == 7.5
    assert pulses.written(1, 1006.0, 12.0) == 12.0  # on a faster way than any pulse
    assert pulses.written(2, 1000.5, 12.0) == 12.0  # of another leader


def test_pulses_said_again_hold_off_no_take_over(tmp_path: Path) -> None:
    async def act(served: Served) -> None:
        pulses: list[bytes] = []

        async def hear(_: str, data: bytes) -> None:
            pulses.append(data)

        admin = await served.link("server")
        subscription = await admin.listen("pulse.run", hear)
        first, task = await served.serve("one")
        second, _ = await served.serve("two")
        await until(lambda: len(pulses) > 3)
        await subscription.unsubscribe()
        await kill(first, task)
        for _ in range(240):
            for pulse in pulses:
                await admin.say("pulse.run", pulse)
            await asyncio.sleep(0.25)
            if second.leading:
                return
        raise AssertionError("it did not take over")

    staged(Served(tmp_path), act)


def test_a_server_with_an_old_roster_that_the_broker_shows_no_newer_one_goes_by_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(served: Served) -> None:
        fed, old = tmp_path / "fed", identity.read_creds(tmp_path / "fed" / "alice.creds")
        first, task = await served.serve("one")
        keys.rotate(fed, ["alice"])
        await push(fed, served.broker.url)
        new = identity.read_roster(fed).client("alice")
        await until(lambda: first.ledger.clients[0].sign == new.sign.hex())
        await kill(first, task)
        admin = await served.link("server")
        await admin.js.purge_stream("BOARD", subject="roster")
        second, _ = await served.serve("two")  # with the roster of the beginning
        await until(lambda: second.leading)
        hello = questions.channel_of(old, "run").seal("entry", wire.say(wire.Hello("run", "alice", 1, "stolen")))
        await admin.store(f"up.{new.account}.run", hello)
        await until(lambda: second.refused == {"forged": 1})
        assert second.ledger.clients[0].sign == new.sign.hex()
        assert "who takes part is read from the log" in caplog.text
        alice, _ = await served.join("alice")
        await until(lambda: alice.applied > 2)

    staged(Served(tmp_path), act)
