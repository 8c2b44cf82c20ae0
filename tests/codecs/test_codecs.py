"""Codecs: the error after decoding, the encoded size, and which bytes are refused."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from celu.codecs.quantizers import _round_down, _round_up, hadamard
from celu.codecs.registry import CODECS, find_codec
from celu.errors import ConfigError, ProtocolError

NAMES = [*CODECS, "bf16+zstd", "4bit+zstd"]
PLAIN = [name for name in NAMES if "+" not in name]
# The number of steps between the min and max of a row.
LEVELS = {"int8": 255, "4bit": 15, "2bit": 3}
DIGESTS = {
    "bf16": "15b8b34956daf2a2",
    "int8": "0510f7d8c0b8670a",
    "4bit": "2ab168927d8303d5",
    "2bit": "7f60793e163374f2",
}


def noise(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def round_trip(name: str, x: Tensor, seed: int = 1) -> Tensor:
    codec = find_codec(name, "codec")
    payload = codec.encode(x, noise(seed))
    assert payload.dtype == torch.uint8 and payload.dim() == 1
    assert payload.numel() <= codec.max_bytes(*x.shape)
    return codec.decode(payload, *x.shape)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (64, 16), (7, 33), (100, 256)])
def test_a_decoded_matrix_has_its_shape_and_a_bounded_error(
    name: str, shape: tuple[int, int]
) -> None:
    x = torch.randn(shape, generator=noise(3)) * 1e-3
    back = round_trip(name, x)
    assert back.shape == x.shape and back.dtype == torch.float32
    error = float((back - x).abs().max())
    if name.startswith("fp32"):
        assert torch.equal(back, x)
    elif name.startswith(("bf16", "fp16")):
        assert error <= 2**-8 * float(x.abs().max()) + 1e-7
    else:
        # The range of a rotated row is at most twice its norm; the rotation back adds errors up.
        reach = float((x - x.mean(dim=0)).norm(dim=1).max()) * 2 + float(x.abs().max())
        step = reach / LEVELS[name.removesuffix("+zstd")]
        assert error <= step * max(1.0, math.sqrt(shape[1]))


def test_compression_ratios_of_a_message_of_the_papers_size() -> None:
    shape = (4096, 256)
    size = {name: CODECS[name].max_bytes(*shape) for name in PLAIN}
    plain = size["fp32"]
    assert plain == 4 * 4096 * 256
    assert plain / size["bf16"] == 2
    assert size["fp16"] == size["bf16"] + 4
    assert 3.8 < plain / size["int8"] < 4
    assert 7.4 < plain / size["4bit"] < 8
    assert 14 < plain / size["2bit"] < 16


@pytest.mark.parametrize("name", ["int8", "4bit", "2bit"])
def test_rounding_is_unbiased(name: str) -> None:
    x = torch.randn(8, 32, generator=noise(5))
    backs = torch.stack([round_trip(name, x, seed) for seed in range(600)])
    spread = float(backs.std(dim=0).mean())
    assert spread > 0, "rounding is stochastic"
    assert float((backs.mean(dim=0) - x).abs().max()) < 6 * spread / math.sqrt(600) + 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_without_a_generator_rounding_is_to_nearest(name: str) -> None:
    codec = find_codec(name, "codec")
    x = torch.randn(40, 32, generator=noise(5))
    payload = codec.encode(x, None)
    assert torch.equal(payload, codec.encode(x, None))
    error = (codec.decode(payload, *x.shape) - x).abs()
    assert float((error - (round_trip(name, x) - x).abs()).mean()) <= 0
    if name == "int8":
        steps = (x.amax(dim=1) - x.amin(dim=1)) / LEVELS[name]
        assert bool((error <= 0.501 * steps[:, None]).all())


def test_the_mean_row_and_the_rotation_reduce_the_error_of_outliers() -> None:
    x = torch.randn(256, 64, generator=noise(6))
    x[:, 3] += 40.0  # like an activation that is always on
    x[5, 7] += 30.0
    from celu.codecs.quantizers import RowQuantizer

    plain = RowQuantizer(4)
    error = plain.decode(plain.encode(x, noise()), *x.shape) - x
    assert float((round_trip("4bit", x) - x).norm()) < 0.3 * float(error.norm())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(4, 8),
        torch.full((4, 8), -3.5),
        torch.tensor([[1e38, -1e38, 0.0, 1.0]]),
        torch.tensor([[1e-40, -1e-40, 0.0, 3e-45]]),
    ],
    ids=["zeros", "equal", "huge", "tiny"],
)
def test_extreme_values_stay_finite(name: str, x: Tensor) -> None:
    back = round_trip(name, x)
    assert torch.isfinite(back).all()
    if not x.any():
        assert not back.any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 2), (64, 3), (5, 64), (300, 1024)])
@pytest.mark.parametrize("signs", ["equal", "random", "alternating"])
def test_every_finite_matrix_decodes_to_a_finite_one(
    name: str, shape: tuple[int, int], signs: str
) -> None:
    largest = torch.finfo(torch.float32).max
    x = torch.full(shape, largest)
    if signs == "random":
        x *= torch.randint(0, 2, shape, generator=noise(7)) * 2 - 1
    elif signs == "alternating":
        x[1::2] *= -1
        x[:, 1::2] *= -1
    for scale in (1.0, 3e38 / largest, 1e-3):
        assert torch.isfinite(round_trip(name, x * scale)).all()


def test_clamping_changes_no_bit_of_numbers_that_occur() -> None:
    # Digests of payloads of the release that did not clamp.
    x = torch.randint(-1000, 1000, (300, 24), generator=noise(8)).float()  # sums are exact
    digests = {
        name: hashlib.sha256(CODECS[name].encode(x, noise(4)).numpy().tobytes()).hexdigest()[:16]
        for name in ("bf16", "int8", "4bit", "2bit")
    }
    assert digests == DIGESTS


@pytest.mark.parametrize("name", NAMES)
def test_equal_seeds_give_equal_bytes(name: str) -> None:
    x = torch.randn(16, 24, generator=noise(8))
    codec = find_codec(name, "codec")
    assert torch.equal(codec.encode(x, noise(4)), codec.encode(x, noise(4)))


def test_decoded_bits_never_change() -> None:
    # Parties with different releases and machines must decode equal bits.
    mean = torch.tensor([0.5, -1.0, 2.0])
    ranges = torch.tensor([0.25, -0.75, 0.125, 0.0625], dtype=torch.bfloat16)
    codes = torch.tensor([28, 29, 30, 31], dtype=torch.uint8)
    payload = torch.cat([mean.view(torch.uint8), ranges.view(torch.uint8), codes])
    back = CODECS["4bit"].decode(payload, 2, 3)
    assert [x.hex() for x in back.double().flatten().tolist()] == [
        "0x1.5800000000000p+1",
        "-0x1.3800000000000p+1",
        "0x1.0800000000000p+1",
        "-0x1.0000000000000p-5",
        "-0x1.d800000000000p+0",
        "0x1.0400000000000p+1",
    ]


@pytest.mark.parametrize("size", [3e-38, 1e-20, 1e-8, 1.0, 1e8, 1e38, 3e38])
def test_fp16_has_the_same_relative_error_for_derivatives_of_any_size(size: float) -> None:
    x = torch.rand(64, 16, generator=noise(11)) * size + size / 16
    x[3, 2] = -size
    assert float(((round_trip("fp16", x) - x) / x).abs().max()) <= 2**-11


def test_fp16_is_exact_for_numbers_of_few_bits_whatever_the_scale() -> None:
    x = torch.tensor([[3.0, -1.5, 0.0, 0.25]])
    for power in (-100, -24, 0, 90):
        assert torch.equal(round_trip("fp16", x * 2.0**power), x * 2.0**power)


def test_an_fp16_payload_without_a_scale_is_read() -> None:
    # Rounds in flight in a checkpoint of an older release.
    x = torch.tensor([[3.0, -1.5], [0.0, 0.25]])
    payload = x.half().reshape(-1).view(torch.uint8)
    assert torch.equal(CODECS["fp16"].decode(payload, 2, 2), x)


def test_the_range_of_a_row_is_rounded_outward() -> None:
    # Otherwise the min and max of a row would always be clamped, which is a bias.
    x = torch.tensor([1.0, -1.0, 3.14159e-3, -2.71828, 0.0, 1e-30, -1e30])
    low = _round_down(x, torch.bfloat16)
    assert torch.equal(low, low.bfloat16().float()) and (low <= x).all()
    step = _round_up(x.abs(), torch.bfloat16)
    assert torch.equal(step, step.bfloat16().float()) and (step >= x.abs()).all()
    assert (step <= x.abs() * (1 + 2**-7)).all()


@pytest.mark.parametrize("width", [1, 2, 8, 64, 256])
def test_the_rotation_is_its_own_inverse_and_preserves_norms(width: int) -> None:
    x = torch.randn(5, width, generator=noise(9))
    torch.testing.assert_close(hadamard(hadamard(x)), x)
    torch.testing.assert_close(hadamard(x).norm(dim=1), x.norm(dim=1))
    if width == 8:
        matrix = np.array([[(-1) ** bin(i & j).count("1") for j in range(8)] for i in range(8)])
        expected = torch.from_numpy(x.numpy() @ matrix / math.sqrt(8))
        torch.testing.assert_close(hadamard(x), expected.float())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", ["empty", "cut", "longer", "doubled"])
def test_payloads_of_another_size_are_refused(name: str, change: str) -> None:
    codec = find_codec(name, "codec")
    payload = codec.encode(torch.randn(6, 12, generator=noise(2)), noise())
    wrong = {
        "empty": payload[:0],
        "cut": payload[:-1],
        "longer": torch.cat([payload, payload[:1]]),
        "doubled": torch.cat([payload, payload]),
    }[change]
    with pytest.raises(ProtocolError):
        codec.decode(wrong, 6, 12)


@settings(max_examples=60)
@given(st.sampled_from(NAMES), st.binary(max_size=200), st.integers(1, 6), st.integers(1, 20))
def test_any_bytes_decode_to_a_matrix_or_are_refused(
    name: str, data: bytes, rows: int, width: int
) -> None:
    payload = torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)
    try:
        back = find_codec(name, "codec").decode(payload, rows, width)
    except ProtocolError:
        return
    assert back.shape == (rows, width)


def test_a_zstd_bomb_is_refused_before_decompression() -> None:
    zstandard = pytest.importorskip("zstandard")
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 28))
    payload = torch.frombuffer(bytearray(bomb), dtype=torch.uint8)
    with pytest.raises(ProtocolError, match="at most 288 bytes"):
        find_codec("fp32+zstd", "codec").decode(payload, 6, 12)


def test_a_frame_that_hides_its_size_or_asks_for_a_large_window_is_refused() -> None:
    zstandard = pytest.importorskip("zstandard")
    plain = bytes(288)
    hidden = zstandard.ZstdCompressor(write_content_size=False).compress(plain)
    with pytest.raises(ProtocolError, match="or no size"):
        decode_fp32(hidden)
    # A hand-written frame: a window of 64 MiB for 288 bytes, in one raw block.
    window = b"\x28\xb5\x2f\xfd" + b"\x40" + bytes([16 << 3]) + (288 - 256).to_bytes(2, "little")
    block = ((288 << 3) | 1).to_bytes(3, "little") + plain
    assert zstandard.frame_content_size(window + block) == 288
    decode_fp32(window + block)  # a complete frame needs no window
    with pytest.raises(ProtocolError, match="compressed with zstd"):
        decode_fp32(window + block[:-1])


def decode_fp32(data: bytes) -> torch.Tensor:
    payload = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return find_codec("fp32+zstd", "codec").decode(payload, 6, 12)


@pytest.mark.parametrize("name", NAMES)
@given(st.binary(min_size=200, max_size=200), st.integers(1, 8))
def test_no_decoded_number_exceeds_the_bound(name: str, seed: bytes, rows: int) -> None:
    codec = find_codec(name, "codec")
    payload = torch.frombuffer(bytearray(seed * 8), dtype=torch.uint8)
    payload = payload[: codec.max_bytes(rows, 4)]
    bound = codec.bound(payload, rows, 4)
    if bound < torch.finfo(torch.float32).max:
        decoded = codec.decode(payload, rows, 4)
        assert decoded.isfinite().all() and float(decoded.abs().max()) <= bound * (1 + 1e-5)


def test_bytes_with_a_range_or_mean_that_is_not_finite_have_no_bound() -> None:
    for name in ("int8", "4bit", "2bit"):
        for value in (float("nan"), float("inf")):
            payload = CODECS[name].encode(torch.randn(3, 8), None)
            payload[:4] = torch.tensor([value]).view(torch.uint8)
            assert not CODECS[name].bound(payload, 3, 8) < float("inf")


def test_an_unknown_codec_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"codec: expected one of fp32, .*got 'int7'"):
        find_codec("int7", "codec")
