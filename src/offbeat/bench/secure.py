"""What secure aggregation with a helper costs: CPU and bytes of an update, beside those of a plain one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from offbeat.algorithms import FedBuff
from offbeat.core.algorithm import Algorithm
from offbeat.core.sums import Encoded, Secure, words
from offbeat.deploy import encoding, wire
from offbeat.deploy.admission import admit, admit_masked
from offbeat.deploy.envelope import Channel, Ours, Theirs, public_seal, public_sign
from offbeat.deploy.masking import Masking
from offbeat.local import SGD
from offbeat.privacy.secure.masks import Unmasker
from offbeat.privacy.secure.tickets import MaskContext, MaskTicket

DIM = 1_000_000
TURNS = 5
CLIENT, HELPER = bytes([1]) * 32, bytes([2]) * 32


@dataclass(frozen=True)
class SecureRow:
    """CPU seconds, each the fastest of some turns, and bytes of an update of one size of a sum.

    plain: to write an update as a message, sign and seal it.   client: the same after rounding and masking.
    server: to read a message, plain and masked, and add it up.   helper: for the masks of the whole sum.
    """

    cohort: int
    plain: float
    client: float
    server_plain: float
    server: float
    helper: float
    bytes_plain: int
    bytes_masked: int

    @property
    def ratio(self) -> float:
        """Client CPU over plain."""
        return self.client / self.plain


def bench(cohorts: Sequence[int] = (10, 30, 100), dim: int = DIM) -> list[SecureRow]:
    """One row for each size of a sum; the sum is checked in every row."""
    return [_row(cohort, dim) for cohort in cohorts]


def _row(cohort: int, dim: int) -> SecureRow:
    secure, header = Secure(cohort=cohort), wire.Trained("run", "c", 1, 1, 1, 1)
    local = Algorithm(FedBuff(size=cohort), SGD(lr=0.1), secure=secure).local
    assert isinstance(local, Encoded)
    masking = Masking("fed", "run", secure, CLIENT, public_seal(HELPER))
    delta, uniform = torch.randn(1, dim) * 0.01, torch.rand(1, dim)

    ours, theirs = Ours(CLIENT, CLIENT), Theirs(public_sign(HELPER), public_seal(HELPER))
    channel = Channel("fed", "run", "c", ours, theirs, server=False)

    def masked() -> bytes:
        return wire.say(header, masking(header, 0, {"delta": local.rounded(delta, uniform)[0]}))

    plain, data = wire.say(header, {"delta": delta[0]}), masked()
    total = torch.zeros(dim)
    sum_ = torch.zeros(dim, dtype=torch.int32)
    parts = admit_masked(encoding.unpack(data), "delta", dim)
    ticket = MaskTicket("c", 1, 1, public_seal(CLIENT), bytes(parts["once"].tolist()))
    context = MaskContext("fed", "run", 0, dim, cohort, secure.places)
    mask = Unmasker(HELPER).total(context, (ticket,))
    left = parts["delta"] - torch.from_numpy(mask.view("int32"))
    assert torch.equal(left, words(local.rounded(delta, uniform)[0], secure.unit))
    return SecureRow(
        cohort,
        fastest(lambda: channel.seal("entry", wire.say(header, {"delta": delta[0]}))),
        fastest(lambda: channel.seal("entry", masked())),
        fastest(lambda: total + admit(encoding.unpack(plain), {"delta": dim}, "float32")["delta"]),
        fastest(lambda: sum_ + admit_masked(encoding.unpack(data), "delta", dim)["delta"]),
        fastest(lambda: Unmasker(HELPER).total(context, (ticket,) * cohort), 2),
        len(plain),
        len(data),
    )


def fastest(action: Callable[[], Any], turns: int = TURNS) -> float:
    """CPU seconds."""
    found = []
    for _ in range(turns):
        began = time.process_time()
        action()
        found.append(time.process_time() - began)
    return min(found)


def text(rows: Sequence[SecureRow], dim: int = DIM) -> str:
    """The rows as a table, in Markdown."""
    named = ("client, ms", "over plain", "server, ms an update", "plain", "helper, ms a sum", "bytes over plain")
    cells = []
    for row in rows:
        ms = [1e3 * value for value in (row.client, row.server, row.server_plain, row.helper)]
        times = (f"{ms[0]:.0f}", f"{row.ratio:.1f} times", f"{ms[1]:.1f}", f"{ms[2]:.1f}", f"{ms[3]:.0f}")
        cells.append((str(row.cohort), *times, f"{row.bytes_masked - row.bytes_plain:+,}"))
    return table((f"clients in a sum, {dim:,} numbers", *named), cells)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(each)} |" for each in (heads, ["---"] * len(heads), *rows))


def plain(rows: Sequence[SecureRow]) -> dict[str, Any]:
    """As JSON has it."""
    return {"secure": [asdict(row) for row in rows]}
