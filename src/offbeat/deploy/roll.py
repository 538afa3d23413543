"""Who may take part in a run and with which keys: as the newest roster of the coordinator says, or as the log does."""

from __future__ import annotations

from offbeat.core.errors import OffbeatError
from offbeat.deploy import wire
from offbeat.deploy.identity import ACTIVE, HELPER, Roster, parse_roster
from offbeat.deploy.journal import MemberKeys
from offbeat.deploy.ledger import ClientRecord
from offbeat.deploy.link import Link
from offbeat.deploy.logs import log, note
from offbeat.deploy.membership import changes
from offbeat.deploy.server_core import ServerCore


class Roll:
    """The roster that a server goes by. Clients that mask for each other get it with what they are called to."""

    def __init__(self, link: Link, core: ServerCore, roster: Roster) -> None:
        self.link, self.core, self.plan = link, core, core.plan
        self._adopt(roster)

    def _adopt(self, roster: Roster) -> None:
        self.roster = roster
        self.core.roster = roster.to_json() if self.plan.pairwise else None

    async def read(self) -> bool:
        """Whether the coordinator has sent a newer roster; we go by it from now on."""
        kept = await self.link.last("BOARD", "roster")
        if kept is None:
            return False
        try:
            roster = parse_roster(kept.data, self.link.creds.coordinator)
        except OffbeatError as error:
            log.warning("a roster is not taken: %s", error)
            return False
        newest = max(self.roster.serial + 1, self.core.ledger.roster)
        if roster.federation != self.roster.federation or roster.serial < newest:
            return False
        self._adopt(roster)
        return True

    def senders(self) -> dict[str, MemberKeys]:
        """The keys of those who may send something: as the roster says, or the log, if that knows a newer one."""
        ledger = self.core.ledger
        if self.roster.serial >= ledger.roster:
            return senders_of(self.roster)
        there = {record.name: keys_of(record) for record in ledger.clients if record.account and not record.removed}
        return {**there, HELPER: MemberKeys(*ledger.helper)} if ledger.helper[0] else there

    def news(self) -> list[bytes]:
        """Entries for what the log does not say yet about limits and clients."""
        ledger, plan = self.core.ledger, self.plan
        keys = {name: (each.account, each.sign, each.seal) for name, each in members_of(self.roster).items()}
        gone = [name for name, member in self.roster.clients.items() if member.state != ACTIVE]
        found = changes(ledger, plan, keys, gone, self.roster.serial)
        for why in found.refused:
            note(why, "warning", run=plan.run)
        helper = tuple(helper_of(self.roster)) if plan.helped else ledger.helper
        if helper != ledger.helper and self.roster.serial >= ledger.roster:
            found.entries.append(wire.say(wire.Helped(plan.run, *helper)))
        return found.entries

    def warn(self) -> None:
        """Say so if the log knows a newer roster than ours."""
        if self.roster.serial < (newer := self.core.ledger.roster):
            note(
                f"roster {self.roster.serial} is older than {newer}, which {self.plan.run} goes by; who takes part "
                f"is read from the log. Give this server the newest roster.json of the coordinator",
                "warning",
            )


def members_of(roster: Roster) -> dict[str, MemberKeys]:
    """The keys of those who may take part."""
    return {name: _keys(roster, name) for name, member in roster.clients.items() if member.state == ACTIVE}


def helper_of(roster: Roster) -> MemberKeys:
    """The keys of the helper, if there is one."""
    member = roster.helper
    return (
        MemberKeys("", "", "") if member is None else MemberKeys(member.account, member.sign.hex(), member.seal.hex())
    )


def senders_of(roster: Roster) -> dict[str, MemberKeys]:
    """The keys of all that may send something to a run: the clients and the helper."""
    helper = {} if roster.helper is None else {HELPER: helper_of(roster)}
    return {**members_of(roster), **helper}


def keys_of(record: ClientRecord) -> MemberKeys:
    """A client's keys as the log has them."""
    return MemberKeys(record.account, record.sign, record.seal)


def _keys(roster: Roster, name: str) -> MemberKeys:
    member = roster.client(name)
    return MemberKeys(member.account, member.sign.hex(), member.seal.hex())
