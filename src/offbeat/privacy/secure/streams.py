"""Masks from keys: HKDF-SHA256 and the keystream of AES-256, and no key of anybody."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

Words = NDArray[np.uint32]
_PIECE = 1 << 14  # words: with the piece of the sum, they stay in a core's own cache
_ZEROS = memoryview(bytes(4 * _PIECE))


def derive(secret: bytes, info: bytes) -> bytes:
    """A key of 32 bytes for what `info` says."""
    return HKDF(hashes.SHA256(), 32, None, info).derive(secret)


def stream(key: bytes, size: int) -> bytes:
    """So many bytes under a key that has no other use."""
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(size))


def add_keystream(total: Words, key: bytes, sign: int = 1) -> None:
    """Add the keystream to these words, or take it off, piece by piece: a mask is never in memory as a whole."""
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    buffer, change = bytearray(4 * _PIECE + 15), np.add if sign > 0 else np.subtract
    words = np.frombuffer(buffer, dtype="<u4", count=_PIECE)
    for at in range(0, len(total), _PIECE):
        piece = total[at : at + _PIECE]
        encryptor.update_into(_ZEROS[: 4 * len(piece)], buffer)
        change(piece, words[: len(piece)], out=piece)
