"""Masks from keys: HKDF-SHA256 and the keystream of AES-256, and no key of anybody."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

Words = NDArray[np.uint32]


def derive(secret: bytes, info: bytes) -> bytes:
    """A key of 32 bytes for what `info` says."""
    return HKDF(hashes.SHA256(), 32, None, info).derive(secret)


def stream(key: bytes, size: int) -> bytes:
    """So many bytes under a key that is used for nothing else."""
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(size))


def keystream(key: bytes, count: int) -> Words:
    """So many words of 32 bits, little-endian, under a key that is used for nothing else."""
    return np.frombuffer(stream(key, 4 * count), dtype="<u4")
