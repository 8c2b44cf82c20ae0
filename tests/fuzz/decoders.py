"""Every decoder as one function of bytes, for fuzzing that is guided by coverage.

An input is decoded, or refused with a CeluError. Any other exception, an input that takes longer
than `MAX_SECONDS` of CPU time or more memory than `MAX_MIB` is a failure.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import torch

from celu.errors import CeluError
from celu.transport.delivery import ConnectionProtocol, Delivery
from celu.transport.message import Kind, Message, TensorSpec
from celu.transport.wire import HEADER, encode

from .engine import Report, attack
from .files import Reader, make_files
from .frames import FIELDS, Frame, joined
from .network import network_decoders
from .targets import ROWS, WIDTH, Target, open_targets
from .values import mutated_body, mutated_bytes

MAX_SECONDS = 5.0
MAX_MIB = 256
LENGTH_BYTES = 2  # before each piece of an input that is cut into pieces


@dataclass(frozen=True)
class Decoder:
    """A decoder, valid inputs, and a mutation that knows their format."""

    name: str
    seeds: list[bytes]
    decode: Callable[[bytes], object]
    mutate: Callable[[Random, bytes], bytes] = field(default=mutated_bytes)

    @property
    def file_name(self) -> str:
        """The name of its corpus."""
        return self.name.replace(" ", "-") + ".txt"


def check(decoder: Decoder, data: bytes) -> None:
    """Decode an input; raises AssertionError, or the exception that the decoder may not raise."""
    started, peak = time.process_time(), _peak_mib()
    with suppress(CeluError):
        decoder.decode(data)
    seconds, grown = time.process_time() - started, _peak_mib() - peak
    assert seconds < MAX_SECONDS, f"{decoder.name}: an input took {seconds:.1f} s"
    assert grown < MAX_MIB, f"{decoder.name}: an input took {grown} MiB"


@contextmanager
def open_decoders(folder: Path) -> Iterator[list[Decoder]]:
    """All decoders; they write to `folder`."""
    with ExitStack() as stack:
        for name in ("alignment", "files", "network"):
            (folder / name).mkdir()
        targets = stack.enter_context(open_targets(folder / "alignment"))
        network = network_decoders(folder / "network", stack)
        yield [
            connection(),
            *map(message_decoder, targets),
            *(file_decoder(folder / "files", reader) for reader in make_files(folder / "files")),
            *(Decoder(name, seeds, decode) for name, seeds, decode in network),
        ]


def message_decoder(target: Target) -> Decoder:
    """The first byte chooses one of the target's headers for the payload, or none: frames."""

    def pieces(data: bytes) -> list[bytes]:
        which = data[0] % (len(target.messages) + 1) if data else 0
        if which == len(target.messages):
            return _cut_by_headers(data[1:])
        frame = Frame.of(target.messages[which], 0)
        return joined([frame.with_payload(data[1:], honest=True)])

    def mutate(random: Random, data: bytes) -> bytes:
        if data[:1] and data[0] < len(target.messages):
            message = target.messages[data[0]]
            change = mutated_bytes if message.tensor is not None else mutated_body
            with suppress(ValueError, RecursionError):  # it may not be JSON any more
                return data[:1] + change(random, data[1:])
        return mutated_bytes(random, data)

    frames = [Frame.of(message, 0) for message in target.messages]
    payloads = [bytes([i]) + frame.payload for i, frame in enumerate(frames)]
    numbered = [frame.with_fields(sequence=i) for i, frame in enumerate(frames)]
    raw = bytes([len(frames)]) + b"".join(joined(numbered))
    return Decoder(
        target.name,
        [*payloads, raw],
        lambda data: attack(target, pieces(data), Report()),
        mutate,
    )


def connection() -> Decoder:
    """A greeting, then messages, in pieces cut anywhere."""
    specs = {Kind.ACTIVATION: TensorSpec(ROWS, WIDTH, torch.float32)}

    def decode(data: bytes) -> None:
        delivery = Delivery("host", "a" * 32)
        delivery.specs = specs
        protocol = ConnectionProtocol(delivery, dials=False)
        num_pieces = 0
        for piece in split_pieces(data):
            num_pieces += 1
            protocol.receive_piece(piece)
            while protocol.next_piece() is not None:
                continue
        assert delivery.received <= num_pieces

    greeting = Message(Kind.GREETING, body={"token": "b" * 32, "knows": None, "received": 0})
    tensor = Message(Kind.ACTIVATION, 0, tensor=torch.zeros(ROWS, WIDTH))
    messages = [
        *encode(greeting, 0),
        *encode(Message(Kind.READY, body={}), 0),
        *encode(tensor, 1),
        *encode(Message(Kind.HEARTBEAT), 2),
    ]
    return Decoder("connection", [join_pieces(messages)], decode)


def file_decoder(folder: Path, reader: Reader) -> Decoder:
    """A file of a party, read from disk."""
    path = folder / reader.file
    valid = path.read_bytes()

    def decode(data: bytes) -> None:
        path.write_bytes(data)
        try:
            reader.read(folder)
        finally:
            path.write_bytes(valid)

    def mutate(random: Random, data: bytes) -> bytes:
        try:
            return reader.mutate(random, data)
        except (ValueError, RecursionError):  # the data may not be of the format any more
            return mutated_bytes(random, data)

    return Decoder(f"file {reader.name}", [valid], decode, mutate)


def join_pieces(pieces: list[bytes]) -> bytes:
    """Pieces as one input, each after its length."""
    return b"".join(len(piece).to_bytes(LENGTH_BYTES, "big") + piece for piece in pieces)


def split_pieces(data: bytes) -> Iterator[bytes]:
    """The inverse of `join_pieces`, for any bytes."""
    while data:
        size = int.from_bytes(data[:LENGTH_BYTES], "big")
        yield data[LENGTH_BYTES : LENGTH_BYTES + size]
        data = data[LENGTH_BYTES + size :]


def _cut_by_headers(data: bytes) -> list[bytes]:
    """Frames as pieces, each payload as long as its header says."""
    pieces = []
    while data:
        header, data = data[: HEADER.size], data[HEADER.size :]
        pieces.append(header)
        if len(header) == HEADER.size:
            length = HEADER.unpack(header)[FIELDS.index("length")]
            if length:
                pieces.append(data[:length])
                data = data[length:]
    return pieces


def _peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
