"""`scripts/bench codec --device cuda`: the time to encode and decode a message on a GPU.

It is compared with the time that the encoded bytes take on a fast line. Times are those of the
device for many calls in a row, so launching them is included where it is what takes longest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from bench.report import BenchResult, Log
from celu.codecs.registry import CODECS, find_codec

SHAPE = (4096, 256)  # the paper's
_LINE_BITS_S = 10e9
_CALLS = 200


def bench_device_codec(log: Log, device: str, turns: int = 5) -> BenchResult:
    """Milliseconds of encoding and decoding, the fastest turn, for each codec."""
    result = BenchResult("codec", seeds=[1])
    x_BD = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1)).to(device)
    for name in CODECS:
        codec = find_codec(name, "codec")
        generator = torch.Generator(device).manual_seed(1)
        payload = codec.encode(x_BD, generator)
        encode = partial(codec.encode, x_BD, generator)
        decode = partial(codec.decode, payload, *SHAPE)
        encode_s = min(_time(encode) for _ in range(turns))
        decode_s = min(_time(decode) for _ in range(turns))
        line_s = 8 * payload.numel() / _LINE_BITS_S
        result.rows.append(
            {
                "codec": name,
                "bytes": payload.numel(),
                "encode ms": 1000 * encode_s,
                "decode ms": 1000 * decode_s,
                "over a 10 Gbit/s line": (encode_s + decode_s) / line_s,
            }
        )
        log(f"{name}: encode {1000 * encode_s:.3f} ms, decode {1000 * decode_s:.3f} ms")
        if name in ("int8", "4bit", "2bit"):
            result.figures[f"codec_{name}_gpu_ms"] = 1000 * (encode_s + decode_s)
    result.notes.append(f"Z of {SHAPE[0]} x {SHAPE[1]}, {_CALLS} calls a turn, {turns} turns.")
    return result


def _time(call: Callable[[], Tensor]) -> float:
    """Seconds per call."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(_CALLS):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / _CALLS
