"""Hashing to P-256 against the vectors of RFC 9380, and the group against plain arithmetic."""

from __future__ import annotations

import subprocess
import sys

import pytest
from gmpy2 import mpz

from celu.data.tags import TAG_BYTES
from celu.errors import ProtocolError
from celu.psi.curve import (
    P,
    Point,
    add,
    expand_messages,
    hash_to_curve,
    invert_all,
    map_to_curve,
)
from celu.psi.group import ID_BYTES, P256, Group

MESSAGES = [b"", b"abc", b"abcdef0123456789", b"q128_" + b"q" * 128, b"a512_" + b"a" * 512]

# Appendix J.1.1: u[0], u[1], P.x, P.y.
CURVE_DST = b"QUUX-V01-CS02-with-P256_XMD:SHA-256_SSWU_RO_"
POINTS = [
    (
        0xAD5342C66A6DD0FF080DF1DA0EA1C04B96E0330DD89406465EEBA11582515009,
        0x8C0F1D43204BD6F6EA70AE8013070A1518B43873BCD850AAFA0A9E220E2EEA5A,
        0x2C15230B26DBC6FC9A37051158C95B79656E17A1A920B11394CA91C44247D3E4,
        0x8A7A74985CC5C776CDFE4B1F19884970453912E9D31528C060BE9AB5C43E8415,
    ),
    (
        0xAFE47F2EA2B10465CC26AC403194DFB68B7F5EE865CDA61E9F3E07A537220AF1,
        0x379A27833B0BFE6F7BDCA08E1E83C760BF9A338AB335542704EDCD69CE9E46E0,
        0x0BB8B87485551AA43ED54F009230450B492FEAD5F1CC91658775DAC4A3388A0F,
        0x5C41B3D0731A27A7B14BC0BF0CCDED2D8751F83493404C84A88E71FFD424212E,
    ),
    (
        0x0FAD9D125A9477D55CF9357105B0EB3A5C4259809BF87180AA01D651F53D312C,
        0xB68597377392CD3419D8FCC7D7660948C8403B19EA78BBCA4B133C9D2196C0FB,
        0x65038AC8F2B1DEF042A5DF0B33B1F4ECA6BFF7CB0F9C6C1526811864E544ED80,
        0xCAD44D40A656E7AFF4002A8DE287ABC8AE0482B5AE825822BB870D6DF9B56CA3,
    ),
    (
        0x3BBC30446F39A7BEFAD080F4D5F32ED116B9534626993D2CC5033F6F8D805919,
        0x76BB02DB019CA9D3C1E02F0C17F8BAF617BBDAE5C393A81D9CE11E3BE1BF1D33,
        0x4BE61EE205094282BA8A2042BCB48D88DFBB609301C49AA8B078533DC65A0B5D,
        0x98F8DF449A072C4721D241A3B1236D3CACCBA603F916CA680F4539D2BFB3C29E,
    ),
    (
        0x4EBC95A6E839B1AE3C63B847798E85CB3C12D3817EC6EBC10AF6EE51ADB29FEC,
        0x4E21AF88E22EA80156AFF790750121035B3EEFAA96B425A8716E0D20B4E269EE,
        0x457AE2981F70CA85D8E24C308B14DB22F3E3862C5EA0F652CA38B5E49CD64BC5,
        0xECB9F0EADC9AEED232DABC53235368C1394C78DE05DD96893EEFA62B0F4757DC,
    ),
]

# Appendix K.1, of 32 and of 128 bytes.
EXPANDER_DST = b"QUUX-V01-CS02-with-expander-SHA256-128"
EXPANDED_32 = [
    "68a985b87eb6b46952128911f2a4412bbc302a9d759667f87f7a21d803f07235",
    "d8ccab23b5985ccea865c6c97b6e5b8350e794e603b4b97902f53a8a0d605615",
    "eff31487c770a893cfb36f912fbfcbff40d5661771ca4b2cb4eafe524333f5c1",
    "b23a1d2b4d97b2ef7785562a7e8bac7eed54ed6e97e29aa51bfe3f12ddad1ff9",
    "4623227bcc01293b8c130bf771da8c298dede7383243dc0993d2d94823958c4c",
]
EXPANDED_128 = [
    "af84c27ccfd45d41914fdff5df25293e221afc53d8ad2ac06d5e3e29485dadbe"
    "e0d121587713a3e0dd4d5e69e93eb7cd4f5df4cd103e188cf60cb02edc3edf18"
    "eda8576c412b18ffb658e3dd6ec849469b979d444cf7b26911a08e63cf31f9dc"
    "c541708d3491184472c2c29bb749d4286b004ceb5ee6b9a7fa5b646c993f0ced",
    "abba86a6129e366fc877aab32fc4ffc70120d8996c88aee2fe4b32d6c7b6437a"
    "647e6c3163d40b76a73cf6a5674ef1d890f95b664ee0afa5359a5c4e07985635"
    "bbecbac65d747d3d2da7ec2b8221b17b0ca9dc8a1ac1c07ea6a1e60583e2cb00"
    "058e77b7b72a298425cd1b941ad4ec65e8afc50303a22c0f99b0509b4c895f40",
    "ef904a29bffc4cf9ee82832451c946ac3c8f8058ae97d8d629831a74c6572bd9"
    "ebd0df635cd1f208e2038e760c4994984ce73f0d55ea9f22af83ba4734569d4b"
    "c95e18350f740c07eef653cbb9f87910d833751825f0ebefa1abe5420bb52be1"
    "4cf489b37fe1a72f7de2d10be453b2c9d9eb20c7e3f6edc5a60629178d9478df",
    "80be107d0884f0d881bb460322f0443d38bd222db8bd0b0a5312a6fedb49c1bb"
    "d88fd75d8b9a09486c60123dfa1d73c1cc3169761b17476d3c6b7cbbd727acd0"
    "e2c942f4dd96ae3da5de368d26b32286e32de7e5a8cb2949f866a0b80c58116b"
    "29fa7fabb3ea7d520ee603e0c25bcaf0b9a5e92ec6a1fe4e0391d1cdbce8c68a",
    "546aff5444b5b79aa6148bd81728704c32decb73a3ba76e9e75885cad9def1d0"
    "6d6792f8a7d12794e90efed817d96920d728896a4510864370c207f99bd4a608"
    "ea121700ef01ed879745ee3e4ceef777eda6d9e5e38b90c86ea6fb0b36504ba4"
    "a45d22e86f6db5dd43d98a294bebb9125d5b794e9d2a81181066eb954966a487",
]
B = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B


def on_curve(point: Point) -> bool:
    x, y = point
    return bool((y * y - (x**3 - 3 * x + B)) % P == 0)


def times(factor: int, point: Point) -> Point:
    """Double and add, one bit at a time."""
    result: Point | None = None
    for bit in bin(factor)[2:]:
        if result is not None:
            x, y = result
            slope = (3 * x * x - 3) * pow(int(2 * y), -1, int(P)) % P
            double = (slope * slope - 2 * x) % P
            result = double, (slope * (x - double) - y) % P
        if bit == "1":
            result = point if result is None else add([result], [point])[0]
    assert result is not None
    return result


def test_expanded_messages_match_the_rfc() -> None:
    for num_bytes, expected in ((32, EXPANDED_32), (128, EXPANDED_128)):
        got = expand_messages(MESSAGES, EXPANDER_DST, num_bytes)
        assert [data.hex() for data in got] == expected


def test_hashed_points_match_the_rfc() -> None:
    expected = [(x, y) for _, _, x, y in POINTS]
    assert all(on_curve(point) for point in expected)
    assert hash_to_curve(MESSAGES, CURVE_DST) == expected
    for message, point in zip(MESSAGES, expected, strict=True):
        assert hash_to_curve([message], CURVE_DST) == [point]  # alone as in a batch
        half = len(message) // 2
        assert hash_to_curve([message[half:]], CURVE_DST, message[:half]) == [point]


def test_mapped_field_elements_match_the_rfc() -> None:
    for u0, u1, x, y in POINTS:
        assert add(map_to_curve([mpz(u0)]), map_to_curve([mpz(u1)])) == [(x, y)]


def test_the_exceptional_field_elements_map_to_the_curve() -> None:
    tenth = pow(10, -1, int(P))
    root = pow(tenth, (int(P) + 1) // 4, int(P))
    exceptional = [mpz(0)] + ([mpz(root), P - root] if root * root % P == tenth else [])
    points = map_to_curve([mpz(5), *exceptional, mpz(6)])
    assert all(on_curve(point) for point in points)
    assert points[1][0] == B * pow(30, -1, int(P)) % P  # B / (Z A)


def test_the_inverse_of_zero_is_zero() -> None:
    values = [mpz(3), mpz(0), P - 1, mpz(-7), mpz(P)]
    inverses = invert_all(values)
    assert [v * i % P for v, i in zip(values, inverses, strict=True)] == [1, 0, 1, 1, 0]
    assert invert_all([]) == []


def test_points_of_the_same_x_are_not_added() -> None:
    point = hash_to_curve([b"a"], CURVE_DST)[0]
    other = hash_to_curve([b"b"], CURVE_DST)[0]
    with pytest.raises(ZeroDivisionError):
        add([other, point], [point, (point[0], P - point[1])])


def test_blinding_multiplies_the_hashed_point_by_the_key() -> None:
    group = P256()
    key, session, tag = group.new_key(), b"s" * 32, b"t" * ID_BYTES
    point = hash_to_curve([session + tag], group.dst)[0]
    expected = times(int.from_bytes(key), point)[0]
    assert group.blind(key, session, tag) == int(expected).to_bytes(32)


def test_the_order_of_the_keys_does_not_matter() -> None:
    group: Group = P256()
    one, other, ids = group.new_key(), group.new_key(), bytes(range(4 * ID_BYTES))
    both = group.reblind(other, group.blind(one, b"s", ids))
    assert both == group.reblind(one, group.blind(other, b"s", ids))
    assert len(both) == 4 * group.element_bytes
    assert both != group.reblind(other, group.blind(one, b"another session", ids))


def off_curve() -> bytes:
    x = next(x for x in range(100) if pow(x**3 - 3 * x + B, (int(P) - 1) // 2, int(P)) != 1)
    return x.to_bytes(32)


@pytest.mark.parametrize(
    "element", [off_curve(), int(P).to_bytes(32), int(P + 5).to_bytes(32), b"\xff" * 32, b"short"]
)
def test_an_invalid_point_is_refused(element: bytes) -> None:
    group = P256()
    good = group.blind(group.new_key(), b"s", bytes(ID_BYTES))
    with pytest.raises(ProtocolError, match="points of P-256"):
        group.reblind(group.new_key(), good + element)


def test_a_tag_has_the_size_of_a_blinded_id() -> None:
    assert ID_BYTES == TAG_BYTES


def test_workers_do_not_import_torch() -> None:
    code = "import sys, celu.psi.workers; print(*{'torch', 'numpy', 'grpc'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
