"""Encoding to Curve25519 against RFC 9380, X25519 against RFC 7748, and what it must refuse."""

from __future__ import annotations

import hashlib

import pytest
from gmpy2 import mpz

from celu.errors import ProtocolError
from celu.psi.curve import expand_messages
from celu.psi.curve25519 import A, P, encode_to_curve, is_on_curve, map_to_curve
from celu.psi.group import GROUPS, ID_BYTES, X25519
from psi.test_curve import MESSAGES

# RFC 9380, appendix J.4.2: u[0], Q.x, P.x.
DST = b"QUUX-V01-CS02-with-curve25519_XMD:SHA-512_ELL2_NU_"
POINTS = [
    (
        0x608D892B641F0328523802A6603427C26E55E6F27E71A91A478148D45B5093CD,
        0x51125222DA5E763D97F3C10FCC92EA6860B9CCBBD2EB1285728F566721C1E65B,
        0x1BB913F0C9DAEFA0B3375378FFA534BDA5526C97391952A7789EB976EDFE4D08,
    ),
    (
        0x46F5B22494BFEAA7F232CC8D054BE68561AF50230234D7D1D63D1D9ABECA8DA5,
        0x7D56D1E08CB0CCB92BAF069C18C49BB5A0DCD927EFF8DCF75CA921EF7F3E6EEB,
        0x7C22950B7D900FA866334262FCAEA47A441A578DF43B894B4625C9B450F9A026,
    ),
    (
        0x235FE40C443766CE7E18111C33862D66C3B33267EFA50D50F9E8E5D252A40AAA,
        0x3FBE66B9C9883D79E8407150E7C2A1C8680BEE496C62FABE4619A72B3CABE90F,
        0x31AD08A8B0DEEB2A4D8B0206CA25F567AB4E042746F792F4B7973F3AE2096C52,
    ),
    (
        0x001E92A544463BDA9BD04DDBE3D6EED248F82DE32F522669EFC5DDCE95F46F5B,
        0x227E0BB89DE700385D19EC40E857DB6E6A3E634B1C32962F370D26F84FF19683,
        0x027877759D155B1997D0D84683A313EB78BDB493271D935B622900459D52CEAA,
    ),
    (
        0x1A68A1AF9F663592291AF987203393F707305C7BAC9C8D63D6A729BDC553DC19,
        0x3BCD651EE54D5F7B6013898AAB251EE8ECC0688166FCE6E9548D38472F6BD196,
        0x5FD892C0958D1A75F54C3182A18D286EFAB784E774D1E017BA2FB252998B5DC1,
    ),
]

# RFC 7748: scalar, u, product. The first of section 5.2, then Bob's of section 6.1: his public key,
# and his product with Alice's.
BOB = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"
PRODUCTS = [
    (
        "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
        "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
        "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
    ),
    (
        BOB,
        "0900000000000000000000000000000000000000000000000000000000000000",
        "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f",
    ),
    (
        BOB,
        "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
        "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742",
    ),
]
# The second of section 5.2, without the bit that the RFC ignores. It is on the twist.
ON_TWIST = "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a413"
SMALL_ORDER = [  # u of the points of orders 1, 2, 4 and 8, on the curve or its twist
    0,
    1,
    int(P) - 1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
]


def double(u: mpz) -> mpz:
    """The u coordinate of twice the point (RFC 7748's curve, affine)."""
    return (u * u - 1) ** 2 * pow(4 * u * (u * u + A * u + 1), -1, P) % P


def encoded(u: int | mpz) -> bytes:
    return int(u).to_bytes(32, "little")


def test_expanded_messages_match_the_rfc() -> None:
    fields = [
        mpz(int.from_bytes(data)) % P
        for data in expand_messages(MESSAGES, DST, 48, new_hash=hashlib.sha512)
    ]
    assert fields == [u for u, _, _ in POINTS]


def test_encoded_points_match_the_rfc() -> None:
    points = encode_to_curve(MESSAGES, DST)
    assert points == [q for _, q, _ in POINTS]
    assert points == map_to_curve([mpz(u) for u, _, _ in POINTS])
    assert [double(double(double(q))) for q in points] == [p for _, _, p in POINTS]
    for message, point in zip(MESSAGES, points, strict=True):
        half = len(message) // 2
        assert encode_to_curve([message[half:]], DST, message[:half]) == [point]


def test_every_message_maps_to_the_curve_and_none_to_the_twist() -> None:
    points = encode_to_curve([str(i).encode() for i in range(300)], DST)
    assert all(is_on_curve(u) and 0 < u < P for u in points)
    assert len(set(points)) == 300
    assert map_to_curve([mpz(0)]) == [0]  # the point of order 2, as in the RFC


def test_about_half_of_all_numbers_are_on_the_twist() -> None:
    # So a number alone would show one bit of its id, whatever it is multiplied by.
    hashed = [mpz(int.from_bytes(hashlib.sha256(bytes([i])).digest())) % P for i in range(200)]
    on_curve = [is_on_curve(u) for u in hashed]
    assert 60 < sum(on_curve) < 140


@pytest.mark.parametrize(("scalar", "u", "product"), PRODUCTS)
def test_products_match_the_rfc(scalar: str, u: str, product: str) -> None:
    assert X25519().reblind(bytes.fromhex(scalar), bytes.fromhex(u)).hex() == product


def test_blinding_multiplies_the_encoded_point_by_the_key() -> None:
    group = X25519()
    session, tag = b"s" * 32, b"t" * ID_BYTES
    point = encode_to_curve([session + tag], group.dst)[0]
    power_of_two = (2**254).to_bytes(32, "little")  # a key, so 254 times doubled
    for _ in range(254):
        point = double(point)
    assert group.blind(power_of_two, session, tag) == encoded(point)


def test_the_order_of_the_keys_does_not_matter() -> None:
    group = GROUPS["x25519"]
    one, other, ids = group.new_key(), group.new_key(), bytes(range(4 * ID_BYTES))
    both = group.reblind(other, group.blind(one, b"s", ids))
    assert both == group.reblind(one, group.blind(other, b"s", ids))
    assert len(both) == 4 * group.element_bytes
    assert both != group.reblind(other, group.blind(one, b"another session", ids))


def test_an_added_point_of_small_order_changes_no_answer() -> None:
    # (u, v) + (0, 0) = (1 / u, ...): the point of order 2 vanishes, as every key is even.
    group, key = X25519(), X25519().new_key()
    u = encode_to_curve([b"id"], DST)[0]
    moved = pow(u, -1, P)
    assert is_on_curve(moved)
    assert group.reblind(key, encoded(u)) == group.reblind(key, encoded(moved))


@pytest.mark.parametrize("u", SMALL_ORDER)
def test_a_point_of_small_order_is_refused(u: int) -> None:
    group = X25519()
    good = group.blind(group.new_key(), b"s", bytes(ID_BYTES))
    with pytest.raises(ProtocolError, match="points of Curve25519, got"):
        group.reblind(group.new_key(), good + encoded(u))


@pytest.mark.parametrize(
    "element",
    [
        bytes.fromhex(ON_TWIST),
        encoded(2),  # on the twist too
        encoded(P),
        encoded(P + 9),  # 9 is the base point
        encoded(9 + 2**255),
        b"\xff" * 32,
        b"\x09",
    ],
)
def test_an_invalid_point_is_refused(element: bytes) -> None:
    group = X25519()
    good = group.blind(group.new_key(), b"s", bytes(ID_BYTES))
    with pytest.raises(ProtocolError, match="points of Curve25519"):
        group.reblind(group.new_key(), good + element)
