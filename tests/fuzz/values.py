"""Mutations of bytes and JSON, and values that a reader may not expect."""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

NUMBERS = (
    0, 1, 2, 3, 7, 127, 128, 255, 256, 1023, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32,
    2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1,
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    *NUMBERS, -1, -(2**63), 10**18, 10**400, 0.0, -0.0, 0.5, 5e-324, 1e300, math.nan, math.inf,
    -math.inf, 4.0, True, False, None, "", "base", "best", "fp32", "4bit+zstd", "x" * 5000,
    "\ud800", "\0", "\x1b[2J", "../../etc/passwd", "os:system", [], [[]], {}, [1.0], ["base"],
    {"a": {"b": []}}, [None] * 300,
)  # fmt: skip


def mutated_bytes(random: Random, data: bytes) -> bytes:
    """Flip bits; cut, append, repeat or overwrite bytes; or replace them all."""
    what, size = random.randrange(6), len(data)
    at = random.randrange(size + 1)
    if what == 0 and size:
        changed = bytearray(data)
        for _ in range(random.choice((1, 1, 2, 8))):
            changed[random.randrange(size)] ^= 1 << random.randrange(8)
        return bytes(changed)
    if what == 1:
        return data[:at]
    if what == 2:
        return data + random.randbytes(random.choice((1, 2, 4, 64)))
    if what == 3:
        return data[:at] + data[max(0, at - 16) :]
    if what == 4:
        odd = random.choice((b"\0" * 8, b"\xff" * 8, b"\x00\x00\x80\x7f", b"\xc3\x28", b"\xf0"))
        return data[:at] + odd + data[at + len(odd) :]
    return random.randbytes(random.choice((0, 1, 4, size)))


def mutated_body(random: Random, payload: bytes) -> bytes:
    """Another JSON object, or text that is almost JSON."""
    if random.random() < 0.7:
        return json.dumps(mutated_value(random, json.loads(payload))).encode()
    text = payload.decode()
    deep = random.choice((5, 15, 16, 17, 500, 50_000))
    return random.choice(
        (
            text.replace("{", '{"name":"x","name":"y",', 1).encode(),
            text.replace(":", ":1e999,", 1).encode(),
            text.encode("utf-16"),
            text.encode("latin-1", "replace") + b"\xff",
            f'{{"contract":{"[" * deep}{"]" * deep}}}'.encode(),
            f'{{"rows":{"9" * random.choice((400, 4300, 5000))}}}'.encode(),
            b'{"reason":"' + b"\\ud800" * 100 + b'"}',
            b"\xef\xbb\xbf" + payload,
            b"[" * 200_000,
            json.dumps({str(i): i for i in range(2000)}).encode(),
            mutated_bytes(random, payload),
        )
    )


def mutated_value(random: Random, value: Any) -> Any:
    """The same JSON with one value changed, removed or added."""
    if random.random() < 0.25 or not isinstance(value, dict | list) or not value:
        return random.choice(VALUES)
    if isinstance(value, list):
        at = random.randrange(len(value))
        return [*value[:at], mutated_value(random, value[at]), *value[at + 1 :]]
    key, what = random.choice(list(value)), random.randrange(6)
    if what == 0:
        return {k: v for k, v in value.items() if k != key}
    if what == 1:
        return {**value, random.choice(("", "next", "x" * 300, "\ud800", key + " ")): value[key]}
    if what == 2:
        return {**value, key: value[random.choice(list(value))]}
    return {**value, key: mutated_value(random, value[key])}
