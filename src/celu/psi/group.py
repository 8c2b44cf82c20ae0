"""The group in which ids are blinded, P-256 or Curve25519, behind an interface of three methods.

An id is hashed to an element of the group, and each party blinds it: multiplies it by its own
secret key. The order of the keys does not matter, so an id that both parties have becomes the same
element; an element of any other id is indistinguishable from a random one. Elements are passed in
bulk, as concatenated bytes. Nothing here imports torch, because worker processes load this module.
"""

from __future__ import annotations

from typing import Protocol

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from gmpy2 import mpz

from celu.errors import ProtocolError
from celu.psi import curve25519
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


class X25519:
    """The group of prime order in Curve25519, with the function X25519 of RFC 7748.

    A point is its u coordinate, in 32 bytes. Ids are mapped to the curve, never to its twist, or
    each element would show one bit of its id. Every key is a multiple of the cofactor 8, so what a
    key has multiplied is in the group of prime order, and an added point of small order vanishes.
    """

    name = "x25519"
    element_bytes = 32
    dst = b"CELU-PSI-V01-curve25519_XMD:SHA-512_ELL2_NU_"

    def new_key(self) -> bytes:
        """See `Group`."""
        return X25519PrivateKey.generate().private_bytes_raw()

    def blind(self, key: bytes, session: bytes, ids: bytes) -> bytes:
        """See `Group`."""
        points = curve25519.encode_to_curve(_split(ids, ID_BYTES), self.dst, session)
        exchange, point = X25519PrivateKey.from_private_bytes(key).exchange, _X25519_PUBLIC
        return b"".join(exchange(point(int(u).to_bytes(32, "little"))) for u in points)

    def reblind(self, key: bytes, elements: bytes) -> bytes:
        """See `Group`."""
        exchange, point = X25519PrivateKey.from_private_bytes(key).exchange, _X25519_PUBLIC
        answers = []
        for element in _split(elements, self.element_bytes):
            u = mpz(int.from_bytes(element, "little"))
            # X25519 itself would take numbers beyond the field, and points of the twist.
            if u >= curve25519.P or not curve25519.is_on_curve(u):
                raise ProtocolError("expected points of Curve25519, got an invalid one")
            try:
                answers.append(exchange(point(element)))
            except ValueError:  # a wrong length, or the product is 0: the order was 1, 2, 4 or 8
                raise ProtocolError(
                    "expected points of Curve25519, got one of small order"
                ) from None
        return b"".join(answers)


GROUPS: dict[str, Group] = {"P-256": P256(), "x25519": X25519()}
_CURVE = ec.SECP256R1()
_ECDH = ec.ECDH()
_X25519_PUBLIC = X25519PublicKey.from_public_bytes
_PUBLIC = ec.EllipticCurvePublicKey.from_encoded_point


def _private(key: bytes) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(key), _CURVE)


def _split(data: bytes, width: int) -> list[bytes]:
    return [data[start : start + width] for start in range(0, len(data), width)]
