"""The group in which ids are blinded: P-256, behind an interface of three methods.

An id is hashed to an element of the group, and each party blinds it: multiplies it by its own
secret key. The order of the keys does not matter, so an id that both parties have becomes the same
element; an element of any other id is indistinguishable from a random one. Elements are passed in
bulk, as concatenated bytes. Nothing here imports torch, because worker processes load this module.
"""

from __future__ import annotations

from typing import Protocol

from cryptography.hazmat.primitives.asymmetric import ec

from celu.errors import ProtocolError
from celu.psi.curve import hash_to_curve

ID_BYTES = 16


class Group(Protocol):
    """A group of prime order in which discrete logarithms are hard."""

    name: str
    element_bytes: int

    def new_key(self) -> bytes:
        """A fresh secret key."""
        ...

    def blind(self, key: bytes, session: bytes, ids: bytes) -> bytes:
        """Hash ids of ID_BYTES each to the group, salted with the session, and blind them."""
        ...

    def reblind(self, key: bytes, elements: bytes) -> bytes:
        """Blind a peer's elements too, in order; raises ProtocolError for an invalid element."""
        ...


class P256:
    """P-256 with points represented by their x coordinate alone, in 32 bytes.

    A point and its negative share x, and so do their multiples, so x identifies the pair. The
    cofactor is 1, so every point but the identity has full order: no small-subgroup attack. The
    identity has no x, so it cannot be sent. OpenSSL multiplies by the key and validates points.
    """

    name = "P-256"
    element_bytes = 32
    dst = b"CELU-PSI-V01-P256_XMD:SHA-256_SSWU_RO_"

    def new_key(self) -> bytes:
        """See `Group`."""
        secret = ec.generate_private_key(_CURVE).private_numbers().private_value
        return secret.to_bytes(self.element_bytes)

    def blind(self, key: bytes, session: bytes, ids: bytes) -> bytes:
        """See `Group`."""
        exchange, point, size = _private(key).exchange, _PUBLIC, self.element_bytes
        hashed = hash_to_curve(_split(ids, ID_BYTES), self.dst, session)
        return b"".join(
            # Passing y saves OpenSSL a square root.
            exchange(_ECDH, point(_CURVE, b"\x04" + int(x).to_bytes(size) + int(y).to_bytes(size)))
            for x, y in hashed
        )

    def reblind(self, key: bytes, elements: bytes) -> bytes:
        """See `Group`."""
        exchange, point = _private(key).exchange, _PUBLIC
        try:
            return b"".join(
                exchange(_ECDH, point(_CURVE, b"\x02" + x))
                for x in _split(elements, self.element_bytes)
            )
        except ValueError:
            raise ProtocolError("expected points of P-256, got an invalid one") from None


GROUPS: dict[str, Group] = {"P-256": P256()}
_CURVE = ec.SECP256R1()
_ECDH = ec.ECDH()
_PUBLIC = ec.EllipticCurvePublicKey.from_encoded_point


def _private(key: bytes) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(key), _CURVE)


def _split(data: bytes, width: int) -> list[bytes]:
    return [data[start : start + width] for start in range(0, len(data), width)]
