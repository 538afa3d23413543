"""Noise of a real run: nobody can take it off who does not have the servers' secret, and every server gets the same.

The secret is 32 bytes from the operating system, drawn when the run begins. It is in the log, in an entry that is
sealed for the servers; so a later leader, and anyone who replays the log with a server's key, adds the same
noise. The numbers are a function of the secret, of the number of the release and of the vector that they hide: two
different vectors never have the same noise, also not where two histories of a run exist because a disk was put back,
and two releases of equal vectors do not look equal.
"""

from __future__ import annotations

import hashlib
import hmac

from offbeat.core.errors import FolderError
from offbeat.core.vectors import Vector
from offbeat.privacy.noise import keyed_normal


def secret_normal(secret: str, about: Vector, number: int) -> Vector:
    """Standard normal numbers, as many as this vector has, in double precision."""
    if len(secret) != 64:
        raise FolderError("the log of this run has no secret for its noise, so nothing can be released")
    exact = about.detach().cpu().double().contiguous()
    hidden = b"offbeat noise %d:" % number + exact.numpy().tobytes()
    seed = hmac.new(bytes.fromhex(secret), hidden, hashlib.sha256).digest()
    return keyed_normal(seed, exact.numel()).to(about.device)
