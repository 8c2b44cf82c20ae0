"""Byte strings as points of Curve25519: RFC 9380, suite curve25519_XMD:SHA-512_ELL2_NU_.

Points are u coordinates alone, so that Elligator 2 needs a Jacobi symbol and no square root. The
cofactor is not cleared here: every X25519 key is a multiple of 8. As in `curve`, the running time
may depend on the input, keys must not be used here, and nothing imports torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from gmpy2 import jacobi, mpz

from celu.psi.curve import FIELD_BYTES, expand_messages, invert_all

P = mpz(2**255 - 19)
A = mpz(486662)  # v^2 = u^3 + A u^2 + u


def encode_to_curve(messages: Sequence[bytes], dst: bytes, prefix: bytes = b"") -> list[mpz]:
    """Map `prefix + message` to a point, for each message, under a domain separation tag.

    It has a small order with a probability of 2**-250 for each message; X25519 then fails.
    """
    uniform = expand_messages(messages, dst, FIELD_BYTES, prefix, hashlib.sha512)
    return map_to_curve([mpz(int.from_bytes(data)) % P for data in uniform])


def map_to_curve(elements: Sequence[mpz]) -> list[mpz]:
    """Elligator 2 of section 6.7.1, for the u coordinate."""
    # 1 + 2 r^2 is never 0, because -1 is a square and 2 is not.
    inverses = invert_all([1 + 2 * r * r for r in elements], P)
    points = []
    for inverse in inverses:
        u = -A * inverse % P
        points.append(u if is_on_curve(u) else -A - u)
    return [u % P for u in points]


def is_on_curve(u: mpz) -> bool:
    """Whether u belongs to a point of the curve other than (0, 0); otherwise it is on the twist."""
    return bool(jacobi(((u + A) * u + 1) * u % P, P) == 1)
