"""A client's masks: what it sends of a result when the server may see sums only."""

from __future__ import annotations

import numpy as np

from offbeat.core.sums import Secure, words
from offbeat.core.vectors import Payload
from offbeat.deploy import wire
from offbeat.deploy.admission import ONCE
from offbeat.privacy.secure.masks import Masker
from offbeat.privacy.secure.tickets import context_for


class Masking:
    """Masks the messages of one client in one run, each with a key of its own. secret, helper: as `Masker` has them."""

    def __init__(self, federation: str, run: str, secure: Secure, secret: bytes, helper: bytes) -> None:
        self.federation, self.run, self.secure, self.masker = federation, run, secure, Masker(secret, helper)

    def __call__(self, header: wire.Trained, task: int, upload: Payload) -> wire.Parts:
        ((name, vector),) = upload.items()
        numbers = words(vector.cpu(), self.secure.unit).numpy().view(np.uint32)
        context = context_for(self.federation, self.run, task, len(numbers), self.secure)
        masked, ticket = self.masker.mask(context, header.client, header.epoch, header.seq, numbers)
        return {name: masked.astype("<u4").tobytes(), ONCE: ticket.once}
