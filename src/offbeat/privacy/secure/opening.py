"""The server's end of a cohort: the masks that are left on a sum, from what its members have answered.

The members give away shares of a survivor's seed or of a drop-out's mask key. With the seeds the survivors' own masks
come off their sum, with the mask keys the pairs that drop-outs have left in it. Neither opens one survivor's message:
its pairs with other survivors are in it, and those nobody gives away. Each member is put together as one of the two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations, islice
from math import comb

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from offbeat.privacy.secure.calls import Call, ReadyKeys, commitment, cut
from offbeat.privacy.secure.shamir import SECRET, SHARE, combine, corrected
from offbeat.privacy.secure.streams import Words
from offbeat.privacy.secure.tickets import TicketError

WORK = 500_000  # multiplications of large numbers, at most, to try every choice of answers: a quarter of a second


def left_masks(call: Call, survivors: Sequence[int], dropped: Sequence[int], answers: Mapping[int, bytes]) -> Words:
    """What is to be taken off the survivors' sum. answers: by place, of as many members as it takes (`threshold`).

    If there are more, half of those may be wrong, and in a small cohort all of them. Raises `TicketError` if they are
    too few, or do not fit what the members have said of themselves.
    """
    if {*survivors} & {*dropped}:
        raise TicketError("both", "a member is a survivor and a drop-out")
    secrets = _fitting(call, sorted([*survivors, *dropped]), {*survivors}, answers)
    total = np.zeros(call.context.dim, dtype=np.uint32)
    for place in survivors:
        call.add_own(total, secrets[place])
    for place in dropped:
        key = X25519PrivateKey.from_private_bytes(secrets[place])
        for other in survivors:
            shared = key.exchange(X25519PublicKey.from_public_bytes(call.members[other].mask))
            call.add_pair(total, shared, other, place)
    return total


def _fitting(
    call: Call, sharers: Sequence[int], survivors: Collection[int], answers: Mapping[int, bytes]
) -> dict[int, bytes]:
    """By place, the secrets to which the members have committed themselves: each on its own, so that it does not matter
    which answers give it."""
    if len(answers) < call.threshold:
        raise TicketError("threshold", f"{len(answers)} members have answered, and {call.threshold} have to")
    shares = {place: cut(answers[place], SHARE, len(sharers)) for place in sorted(answers)}
    order, found = [*shares], dict[int, bytes]()
    for at, sharer in enumerate(sharers):
        given = {1 + place: int.from_bytes(shares[place][at], "big") for place in order}
        for value, right in _guesses(given, call.threshold):
            if _is_committed(call.members[sharer], sharer in survivors, value):
                found[sharer] = value.to_bytes(SECRET, "big")
                order.sort(key=lambda place: 1 + place not in right)  # those that fit here come first for the next one
                break
        else:
            what = "seed" if sharer in survivors else "key"
            raise TicketError("masks", f"the shares of {call.members[sharer].client!r} do not give its {what}")
    return found


def _guesses(shares: Mapping[int, int], enough: int) -> Iterator[tuple[int, Collection[int]]]:
    """Values that may be the secret, with the numbers of the shares that gave it: of the first ones; of all, if some
    are wrong; and of every choice, if there are few."""
    first = dict(islice(shares.items(), enough))
    yield combine(first), first
    if len(shares) > enough:
        if (found := corrected(shares, enough)) is not None:
            yield found
        if comb(len(shares), enough) * enough**2 <= WORK:
            yield from ((combine({x: shares[x] for x in chosen}), chosen) for chosen in combinations(shares, enough))


def _is_committed(member: ReadyKeys, survives: bool, value: int) -> bool:
    """Whether this is the seed of a member that survives, or the mask key of one that has dropped out."""
    if value >> 8 * SECRET:
        return False
    secret = value.to_bytes(SECRET, "big")
    if survives:
        return commitment(secret) == member.seed
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw() == member.mask
