"""Noise of a real run: nobody can take it off who does not have the servers' secret, and every server gets the same.

The secret is 32 bytes from the operating system, drawn when the run begins. It is in the log, in an entry that is
sealed for the servers; so whoever leads later, and whoever folds the log again with a server's key, adds the same
noise. The numbers are a function of the secret, of the number of the release and of the vector that they hide: two
different vectors never have the same noise, also not where two histories of a run exist because a disk was put back,
and two releases of equal vectors do not look equal.
"""

from __future__ import annotations

import hashlib
import hmac

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from offbeat.core.errors import FolderError
from offbeat.core.random import box_muller, unit
from offbeat.core.vectors import Vector


def secret_normal(secret: str, about: Vector, number: int) -> Vector:
    """Standard normal numbers, as many as this vector has, in double precision."""
    if len(secret) != 64:
        raise FolderError("the log of this run has no secret for its noise, so nothing can be released")
    exact = about.detach().cpu().double().contiguous()
    hidden = b"offbeat noise %d:" % number + exact.numpy().tobytes()
    seed = hmac.new(bytes.fromhex(secret), hidden, hashlib.sha256).digest()
    half = -(-exact.numel() // 2)
    stream = Cipher(algorithms.AES256(seed), modes.CTR(bytes(16))).encryptor()  # a key is used once
    drawn = torch.frombuffer(bytearray(stream.update(bytes(24 * half))), dtype=torch.int64).view(3, half)
    return box_muller(finer(drawn[0], drawn[1]), unit(drawn[2]))[: exact.numel()].to(about.device)


def finer(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """Numbers in (0, 1] from 104 random bits each, for lengths of pairs of normal numbers.

    With 52 bits a length takes few values beyond seven standard deviations, and none beyond 8.6: one pair in 3e10 would
    be wider apart from the next possible one than the grid of what is released, and tell which sum it was added to.
    """
    return (unit(high) - 0.5 * 2.0**-52) + unit(low) * 2.0**-52
