"""The server's end of a cohort: the masks that are left on a sum, from what its members have answered.

The members give away shares of a survivor's seed or of a drop-out's mask key. With the seeds the survivors' own masks
come off their sum, with the mask keys the pairs that drop-outs have left in it. Neither opens one survivor's message:
its pairs with other survivors are in it, and those nobody gives away. Each member is put together as one of the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from offbeat.privacy.secure.calls import Call, commitment, cut
from offbeat.privacy.secure.shamir import SECRET, SHARE, combine
from offbeat.privacy.secure.streams import Words
from offbeat.privacy.secure.tickets import TicketError

TRIES = 500  # choices among the answers, at most, if some are wrong


def left_masks(call: Call, survivors: Sequence[int], dropped: Sequence[int], answers: Mapping[int, bytes]) -> Words:
    """What is to be taken off the survivors' sum. answers: by place, of as many members as it takes (`threshold`).

    If there are more, some may be wrong: those that fit are found. Raises `TicketError` if they are too few, or do not
    fit what the members have said of themselves.
    """
    if {*survivors} & {*dropped}:
        raise TicketError("both", "a member is a survivor and a drop-out")
    secrets = _fitting(call, survivors, dropped, answers)
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
    call: Call, survivors: Sequence[int], dropped: Sequence[int], answers: Mapping[int, bytes]
) -> dict[int, bytes]:
    """By place, the secrets to which the members have committed themselves."""
    if len(answers) < call.threshold:
        raise TicketError("threshold", f"{len(answers)} members have answered, and {call.threshold} have to")
    first: TicketError | None = None
    for chosen in _choices(sorted(answers), call.threshold):
        try:
            secrets = _secrets(call, sorted([*survivors, *dropped]), answers, chosen)
            _check(call, survivors, dropped, secrets)
            return secrets
        except TicketError as error:
            first = first or error
    assert first is not None
    raise first


def _choices(places: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    """Choices of so many: the first ones, then with one of them replaced by another, then with two."""
    first, others = places[:count], places[count:]
    found = (
        (*kept, *added)
        for out in range(len(others) + 1)
        for kept in combinations(first, count - out)
        for added in combinations(others, out)
    )
    return islice(found, TRIES)


def _check(call: Call, survivors: Sequence[int], dropped: Sequence[int], secrets: Mapping[int, bytes]) -> None:
    for place in survivors:
        if commitment(secrets[place]) != call.members[place].seed:
            raise TicketError("masks", f"the shares of {call.members[place].client!r} do not give its seed")
    for place in dropped:
        key = X25519PrivateKey.from_private_bytes(secrets[place])
        if key.public_key().public_bytes_raw() != call.members[place].mask:
            raise TicketError("masks", f"the shares of {call.members[place].client!r} do not give its key")


def _secrets(
    call: Call, sharers: Sequence[int], answers: Mapping[int, bytes], chosen: Sequence[int]
) -> dict[int, bytes]:
    """By place, the secret that the chosen members' answers hold shares of."""
    shares = {place: cut(answers[place], SHARE, len(sharers)) for place in chosen}
    found = {}
    for at, sharer in enumerate(sharers):
        value = combine({1 + place: int.from_bytes(shares[place][at], "big") for place in chosen})
        if value >> 8 * SECRET:
            raise TicketError("masks", f"the shares of {call.members[sharer].client!r} give no secret")
        found[sharer] = value.to_bytes(SECRET, "big")
    return found
