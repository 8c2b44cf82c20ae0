"""Frames as bytes, and the mutations that an attacker could apply to a stream of them.

Header fields are named here; their sizes come from the product's own format. Every mutation accepts
a random generator and a stream, and returns the pieces to deliver instead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from celu.transport.message import Message
from celu.transport.wire import HEADER, encode

from .values import NUMBERS, mutated_body, mutated_bytes

FIELDS = [
    "magic", "version", "kind", "dtype", "rank",
    "sequence", "received", "round", "part", "rows", "width", "length", "digest",
    "curvature",
]  # fmt: skip
CURVATURES = (0.0, -0.0, 0.5, 5e-324, 1e12, 1.1e12, 1e300, -1.0, math.inf, -math.inf, math.nan)
_BITS = {"B": 8, "H": 16, "I": 32, "Q": 64, "s": 0, "d": 0}  # 0: bytes or a float
BITS = dict(
    zip(
        FIELDS,
        (_BITS[code] for _, code in re.findall(r"(\d*)([BHIQsd])", HEADER.format)),
        strict=True,
    )
)
NUMERIC = [field for field in FIELDS if BITS[field]]


@dataclass(frozen=True)
class Frame:
    """A message on the wire: its header by fields, and the bytes that follow."""

    fields: dict[str, int | float | bytes]
    payload: bytes
    is_body: bool

    @staticmethod
    def of(message: Message, sequence: int) -> Frame:
        header, *payload = encode(message, sequence)
        fields = dict(zip(FIELDS, HEADER.unpack(header), strict=True))
        return Frame(fields, b"".join(payload), message.tensor is None)

    def with_fields(self, **changes: int | float | bytes) -> Frame:
        fitting = {  # modulo the size of the field
            name: value % (1 << BITS[name]) if isinstance(value, int) else value
            for name, value in changes.items()
        }
        return Frame({**self.fields, **fitting}, self.payload, self.is_body)

    def with_payload(self, payload: bytes, *, honest: bool) -> Frame:
        """Replace the payload; the header has its length only if it is `honest`."""
        fields = {**self.fields, "length": len(payload)} if honest else self.fields
        return Frame(fields, payload, self.is_body)

    def pieces(self) -> list[bytes]:
        header = HEADER.pack(*self.fields.values())
        return [header, self.payload] if self.payload else [header]


Stream = Sequence[Frame]
Mutation = Callable[[Random, Stream], list[bytes]]


def joined(stream: Stream) -> list[bytes]:
    return [piece for frame in stream for piece in frame.pieces()]


def _change_one(random: Random, stream: Stream, change: Callable[[Frame], Frame]) -> list[bytes]:
    at = random.randrange(len(stream))
    return joined([change(frame) if i == at else frame for i, frame in enumerate(stream)])


def change_fields(random: Random, stream: Stream) -> list[bytes]:
    """Change one to three fields of a header: sizes of 2^63, other kinds and types."""

    def change(frame: Frame) -> Frame:
        for name in random.sample(NUMERIC, random.choice((1, 1, 1, 2, 3))):
            value = frame.fields[name]
            assert isinstance(value, int)
            near = value + random.choice((-1, 1))
            frame = frame.with_fields(**{name: random.choice((*NUMBERS, near))})
        return frame

    return _change_one(random, stream, change)


def change_curvature(random: Random, stream: Stream) -> list[bytes]:
    """Claim another curvature: negative, not finite, or too large."""
    curvature = random.choice(CURVATURES)
    return _change_one(random, stream, lambda frame: frame.with_fields(curvature=curvature))


def claim_a_shape(random: Random, stream: Stream) -> list[bytes]:
    """Announce another shape with a consistent length, but leave the payload as it is."""

    def change(frame: Frame) -> Frame:
        rows, width = random.choice(NUMBERS), random.choice((*NUMBERS, frame.fields["width"]))
        assert isinstance(width, int)
        size = random.choice((1, 4))
        return frame.with_fields(rows=rows, width=width, length=rows * width * size)

    return _change_one(random, stream, change)


def change_payload(random: Random, stream: Stream) -> list[bytes]:
    """Mutate the bytes of a payload, with or without its length in the header."""
    honest = random.random() < 0.5
    return _change_one(
        random,
        stream,
        lambda frame: frame.with_payload(mutated_bytes(random, frame.payload), honest=honest),
    )


def change_body(random: Random, stream: Stream) -> list[bytes]:
    """Mutate a JSON body, or a payload, with its length in the header."""

    def change(frame: Frame) -> Frame:
        if not frame.is_body:
            return frame.with_payload(mutated_bytes(random, frame.payload), honest=True)
        return frame.with_payload(mutated_body(random, frame.payload), honest=True)

    return _change_one(random, stream, change)


def change_header_bytes(random: Random, stream: Stream) -> list[bytes]:
    """Mutate the bytes of a header."""
    at = random.randrange(len(stream))
    pieces = []
    for i, frame in enumerate(stream):
        header, *payload = frame.pieces()
        pieces += [mutated_bytes(random, header) if i == at else header, *payload]
    return pieces


def renumber(random: Random, stream: Stream) -> list[bytes]:
    """Repeat, drop or shuffle frames; then renumber them, or not."""
    frames = list(stream)
    what, at = random.randrange(3), random.randrange(len(frames))
    if what == 0:
        frames.insert(random.randrange(len(frames) + 1), frames[at])
    elif what == 1:
        del frames[at]
    else:
        random.shuffle(frames)
    if random.random() < 0.5:
        frames = [frame.with_fields(sequence=i) for i, frame in enumerate(frames)]
    return joined(frames)


def splice(random: Random, stream: Stream) -> list[bytes]:
    """Join one message's header with another's payload, or with halves of two."""
    first, second = random.choice(stream), random.choice(stream)
    payload = second.payload
    if random.random() < 0.5:
        payload = first.payload[: len(first.payload) // 2] + payload[len(payload) // 2 :]
    spliced = first.with_payload(payload, honest=random.random() < 0.5)
    return joined([spliced.with_fields(sequence=0), *stream[1:]])


def recut(random: Random, stream: Stream) -> list[bytes]:
    """Repeat, swap, drop, split, join or add pieces, also empty ones."""
    pieces = joined(stream)
    for _ in range(random.choice((1, 1, 2))):
        at, what = random.randrange(len(pieces)), random.randrange(7)
        piece = pieces[at]
        if what == 0:
            pieces.insert(at, piece)
        elif what == 1:
            other = random.randrange(len(pieces))
            pieces[at], pieces[other] = pieces[other], piece
        elif what == 2 and len(pieces) > 1:
            del pieces[at]
        elif what == 3:
            pieces.insert(at, b"")
        elif what == 4:
            middle = random.randrange(len(piece) + 1)
            pieces[at : at + 1] = [piece[:middle], piece[middle:]]
        elif what == 5 and at + 1 < len(pieces):
            pieces[at : at + 2] = [piece + pieces[at + 1]]
        else:
            pieces.insert(at, random.randbytes(random.randrange(1, 200)))
    return pieces


MUTATIONS: tuple[Mutation, ...] = (
    change_fields,
    change_curvature,
    claim_a_shape,
    change_payload,
    change_body,
    change_body,  # more often: most kinds of message have a body
    change_header_bytes,
    renumber,
    splice,
    recut,
)
