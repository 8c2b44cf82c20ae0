"""Byte strings as points of P-256: RFC 9380, suite P256_XMD:SHA-256_SSWU_RO_, many at a time.

Nobody knows the discrete logarithm of such a point, so it is safe to blind. The running time may
depend on the input, which is this party's own and stays in this process; keys must not be used
here. Nothing here imports torch, because worker processes load this module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

from gmpy2 import invert, mpz, powmod

Point = tuple[mpz, mpz]

P = mpz(2**256 - 2**224 + 2**192 + 2**96 - 1)
A = mpz(-3)
B = mpz(0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B)
Z = mpz(-10)  # of the suite: not a square, and g(B / (Z A)) is one
_ROOT = (P + 1) // 4  # x**_ROOT is a square root of x, or of -x where x has none
_SQRT_MINUS_Z = powmod(-Z, _ROOT, P)
_MINUS_B_OVER_A = -B * invert(A, P) % P
_X_EXCEPTIONAL = B * invert(Z * A, P) % P

FIELD_BYTES = 48  # of uniform bytes for one field element: the bias is below 2**-128


def hash_to_curve(messages: Sequence[bytes], dst: bytes, prefix: bytes = b"") -> list[Point]:
    """Hash `prefix + message` to a point, for each message, under a domain separation tag.

    Raises ZeroDivisionError with a probability of 2**-254 for each message: see `add`.
    """
    elements = [
        mpz(int.from_bytes(half)) % P
        for uniform in expand_messages(messages, dst, 2 * FIELD_BYTES, prefix)
        for half in (uniform[:FIELD_BYTES], uniform[FIELD_BYTES:])
    ]
    points = map_to_curve(elements)
    return add(points[::2], points[1::2])  # the cofactor is 1: no clearing


def expand_messages(
    messages: Iterable[bytes],
    dst: bytes,
    num_bytes: int,
    prefix: bytes = b"",
    new_hash: Callable[[bytes], hashlib._Hash] = hashlib.sha256,
) -> Iterable[bytes]:
    """`expand_message_xmd` of section 5.3.1, of `prefix + message` for each."""
    hash_bytes, block_bytes = new_hash(b"").digest_size, new_hash(b"").block_size
    num_blocks = -(-num_bytes // hash_bytes)
    if num_blocks > 255 or len(dst) > 255:
        raise ValueError(f"expected at most 255 blocks and bytes of DST, got {num_blocks}, {dst!r}")
    dst_prime = dst + bytes([len(dst)])
    start = new_hash(bytes(block_bytes) + prefix)
    end = num_bytes.to_bytes(2) + b"\x00" + dst_prime
    ends = [bytes([i]) + dst_prime for i in range(1, num_blocks + 1)]
    for message in messages:
        state = start.copy()
        state.update(message + end)
        first = state.digest()
        mask, block, blocks = int.from_bytes(first), bytes(hash_bytes), b""
        for block_end in ends:
            mixed = (mask ^ int.from_bytes(block)).to_bytes(hash_bytes)
            block = new_hash(mixed + block_end).digest()
            blocks += block
        yield blocks[:num_bytes]


def map_to_curve(elements: Sequence[mpz]) -> list[Point]:
    """The simplified Shallue-van de Woestijne-Ulas map of section 6.6.2, one power for each."""
    scaled = [Z * u * u % P for u in elements]
    inverses = invert_all([t * t + t for t in scaled])
    points = []
    for u, t, inverse in zip(elements, scaled, inverses, strict=True):
        x = _MINUS_B_OVER_A * (1 + inverse) % P if inverse else _X_EXCEPTIONAL
        square = ((x * x + A) * x + B) % P
        y = powmod(square, _ROOT, P)
        if y * y % P != square:  # then t x is on the curve, with this y
            x, y = t * x % P, t * u % P * y % P * _SQRT_MINUS_Z % P
        points.append((x, y if (u ^ y) % 2 == 0 else P - y))
    return points


def add(left: Sequence[Point], right: Sequence[Point]) -> list[Point]:
    """Add points pairwise; raises ZeroDivisionError if two have the same x."""
    steps = invert_all([q[0] - p[0] for p, q in zip(left, right, strict=True)])
    if not all(steps):
        raise ZeroDivisionError("two points have the same x: this formula cannot add them")
    sums = []
    for (x, y), (other_x, other_y), step in zip(left, right, steps, strict=True):
        slope = (other_y - y) * step % P
        sum_x = (slope * slope - x - other_x) % P
        sums.append((sum_x, (slope * (x - sum_x) - y) % P))
    return sums


def invert_all(values: Sequence[mpz], modulus: mpz = P) -> list[mpz]:
    """1 / v for each value, and 0 for 0, with a single inversion (Montgomery's trick)."""
    product, before = mpz(1), []
    for value in values:
        before.append(product)
        product = product * value % modulus or product
    rest, inverses = invert(product, modulus), []
    for value, part in zip(reversed(values), reversed(before), strict=True):
        if value % modulus:
            inverses.append(rest * part % modulus)
            rest = rest * value % modulus
        else:
            inverses.append(mpz(0))
    return inverses[::-1]
