"""Normal numbers of a secret key, for noise that nobody can take off who does not have it."""

from __future__ import annotations

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from offbeat.core.random import box_muller, finer, unit
from offbeat.core.vectors import Vector


def keyed_normal(key: bytes, count: int) -> Vector:
    """So many standard normal numbers in double precision, from the keystream of AES-256; a key is used once."""
    half = -(-count // 2)
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    drawn = torch.frombuffer(bytearray(stream.update(bytes(24 * half))), dtype=torch.int64).view(3, half)
    return box_muller(finer(drawn[0], drawn[1]), unit(drawn[2]))[:count]
