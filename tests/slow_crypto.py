"""X25519 (RFC 7748), HKDF (RFC 5869), AES-256 (FIPS 197), ChaCha20-Poly1305 (RFC 8439) and Shamir's sharing, once more.

In plain Python integers and as slow as that is: what golden vectors are made with, independently of the package.
"""

from __future__ import annotations

import hmac
import struct
from fractions import Fraction

P = 2**255 - 19


def x25519(secret: bytes, public: bytes) -> bytes:
    k = int.from_bytes(secret, "little") & ~7 & ~(1 << 255) | (1 << 254)
    u = int.from_bytes(public, "little") & (1 << 255) - 1
    a, b, c, d, swap = 1, 0, u, 1, 0
    for bit in reversed(range(255)):
        now = k >> bit & 1
        if swap ^ now:
            a, b, c, d = c, d, a, b
        swap = now
        s, t, v, w = (a + b) ** 2 % P, (a - b) ** 2 % P, (c - d) * (a + b) % P, (c + d) * (a - b) % P
        e = s - t
        c, d, a, b = (v + w) ** 2 % P, u * (v - w) ** 2 % P, s * t % P, e * (s + 121665 * e) % P
    if swap:
        a, b = c, d
    return (a * pow(b, P - 2, P) % P).to_bytes(32, "little")


def hkdf(secret: bytes, info: bytes) -> bytes:
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, info + b"\1", "sha256")


def times(a: int, b: int) -> int:
    found = 0
    while b:
        found ^= a * (b & 1)
        a, b = (a << 1) ^ (0x11B if a & 0x80 else 0), b >> 1
    return found


def sbox(x: int) -> int:
    inverse = next((y for y in range(256) if times(x, y) == 1), 0)
    return sum(((bin(inverse & mask).count("1") & 1) << n) for n, mask in enumerate(ROWS)) ^ 0x63


ROWS = [sum(1 << ((n + k) % 8) for k in (0, 4, 5, 6, 7)) for n in range(8)]
SBOX = [sbox(x) for x in range(256)]


def aes256(key: bytes, block: bytes) -> bytes:
    words, rcon = [list(key[i : i + 4]) for i in range(0, 32, 4)], 1
    for i in range(8, 60):
        t = list(words[-1])
        if i % 8 == 0:
            t = [SBOX[b] for b in t[1:] + t[:1]]
            t[0] ^= rcon
            rcon = times(rcon, 2)
        elif i % 8 == 4:
            t = [SBOX[b] for b in t]
        words.append([a ^ b for a, b in zip(words[i - 8], t, strict=True)])
    keys = [[b for word in words[4 * r : 4 * r + 4] for b in word] for r in range(15)]
    s = [a ^ b for a, b in zip(block, keys[0], strict=True)]
    for r in range(1, 15):
        s = [SBOX[s[(i + 4 * (i % 4)) % 16]] for i in range(16)]
        if r < 14:
            mixed = []
            for c in range(0, 16, 4):
                col = s[c : c + 4]
                for i in range(4):
                    a, b, x, y = (col[(i + k) % 4] for k in range(4))
                    mixed.append(times(a, 2) ^ times(b, 3) ^ x ^ y)
            s = mixed
        s = [a ^ b for a, b in zip(s, keys[r], strict=True)]
    return bytes(s)


def keystream(key: bytes, dim: int) -> list[int]:
    """Words of 32 bits: AES in counter mode from 0."""
    stream = b"".join(aes256(key, n.to_bytes(16, "big")) for n in range(-(-dim // 4)))
    return [w for (w,) in struct.iter_unpack("<I", stream[: 4 * dim])]


def parts(*each: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(x)) + x for x in each)


NINE = (9).to_bytes(32, "little")


def chacha_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    first = [
        *struct.unpack("<4I", b"expand 32-byte k"),
        *struct.unpack("<8I", key),
        counter,
        *struct.unpack("<3I", nonce),
    ]
    s = list(first)
    columns = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
    diagonals = [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
    for _ in range(10):
        for a, b, c, d in columns + diagonals:
            for x, y, z, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                s[x] = (s[x] + s[y]) % 2**32
                s[z] ^= s[x]
                s[z] = (s[z] << by | s[z] >> 32 - by) % 2**32
    return struct.pack("<16I", *((x + y) % 2**32 for x, y in zip(s, first, strict=True)))


def chacha_seal(key: bytes, nonce: bytes, text: bytes, about: bytes) -> bytes:
    stream = b"".join(chacha_block(key, 1 + n, nonce) for n in range(-(-len(text) // 64)))
    sealed = bytes(x ^ y for x, y in zip(text, stream, strict=False))
    once = chacha_block(key, 0, nonce)[:32]
    r, s = int.from_bytes(once[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF, int.from_bytes(once[16:], "little")
    padded = [part + bytes(-len(part) % 16) for part in (about, sealed)]
    message, tag = b"".join(padded) + struct.pack("<QQ", len(about), len(sealed)), 0
    for at in range(0, len(message), 16):
        tag = (tag + int.from_bytes(message[at : at + 16] + b"\1", "little")) * r % (2**130 - 5)
    return sealed + ((tag + s) % 2**128).to_bytes(16, "little")


def shamir_value(shares: dict[int, int], prime: int) -> int:
    """The secret, by fractions: Lagrange's formula at 0."""
    total = 0
    for x, y in shares.items():
        weight = Fraction(1)
        for other in shares:
            weight *= Fraction(other, other - x) if other != x else 1
        total += y * weight.numerator * pow(weight.denominator, prime - 2, prime)
    return total % prime
