"""Messages as bytes: a fixed header, then the raw buffer of a tensor or a small JSON object.

    magic   4s   b"CELU"
    version u8   3
    kind    u8   see `message.Kind`
    dtype   u8   0 JSON, 1 float32, 2 bytes
    rank    u8   0 for JSON, 2 for a tensor
    sequence u64  counts a sender's messages from 0; a gap or repeat is refused
    received u64  how many messages the sender has of the other side
    round   u64
    part    u32
    rows    u32  dimensions of a tensor, else 0
    width   u32
    length  u64  bytes that follow
    digest  16s  of Z and dZ: the digest of the rows they belong to, else 0

All little-endian. The bytes that follow a header come in pieces of at most `PIECE_BYTES`, so that
no carrier's ceiling on a message is ever met and no claim of size costs more than a piece before
it has been checked. Nothing here executes what it reads: there is no pickle on any path.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from celu.errors import NonFiniteError, ProtocolError, ShapeError
from celu.transport.message import ROW_DIGEST_BYTES, TENSORS, Kind, Message, TensorSpec

MAGIC = b"CELU"
VERSION = 3
HEADER = struct.Struct(f"<4sBBBBQQQIIIQ{ROW_DIGEST_BYTES}s")
PIECE_BYTES = 1024 * 1024  # so that copying, encrypting and sending of a message overlap
MAX_BODY_BYTES = 256 * 1024
MAX_BODY_LEVELS = 16  # deeper ones could exhaust the stack of whoever handles them later

_DTYPES: dict[torch.dtype, int] = {torch.float32: 1, torch.uint8: 2}
_DTYPES_BY_CODE = {code: dtype for dtype, code in _DTYPES.items()}
_JSON = 0


@dataclass(frozen=True)
class Header:
    """A header that has been checked: what follows it may be allocated."""

    kind: Kind
    round: int
    part: int
    shape: tuple[int, int] | None  # None: a JSON body
    dtype: torch.dtype
    length: int
    row_digest: bytes
    received: int = 0  # how many of our messages the peer has


def encode(
    message: Message, sequence: int, received: int = 0, piece_bytes: int = PIECE_BYTES
) -> Iterator[bytes]:
    """The header, then the payload in pieces. Each piece is copied only when asked for."""
    if message.tensor is not None:
        tensor = message.tensor.detach().to("cpu").contiguous()
        payload = memoryview(tensor.numpy()).cast("B")  # type: ignore[arg-type]
        code, rank, (rows, width) = _DTYPES[tensor.dtype], 2, tensor.shape
    else:
        heartbeat = message.kind is Kind.HEARTBEAT
        payload = memoryview(b"" if heartbeat else json.dumps(message.body or {}).encode())
        code, rank, rows, width = _JSON, 0, 0, 0
    yield HEADER.pack(
        MAGIC, VERSION, message.kind, code, rank, sequence, received,
        message.round, message.part, rows, width, len(payload), message.row_digest,
    )  # fmt: skip
    for start in range(0, len(payload), piece_bytes):
        yield bytes(payload[start : start + piece_bytes])


def decode_header(data: bytes, sequence: int, specs: Mapping[Kind, TensorSpec]) -> Header:
    """Check a header against the protocol and the contract, before anything is allocated."""
    if len(data) != HEADER.size:
        raise ProtocolError(f"expected a header of {HEADER.size} bytes, got {len(data)}")
    magic, version, code, dtype, rank, number, received, *more = HEADER.unpack(data)
    round_, part, rows, width, length, row_digest = more
    if magic != MAGIC or version != VERSION:
        raise ProtocolError(
            f"expected protocol version {VERSION}, got {version if magic == MAGIC else 'none'}; "
            "use the same release of celu at all parties"
        )
    if number != sequence:
        raise ProtocolError(f"expected message number {sequence}, got {number}")
    try:
        kind = Kind(code)
    except ValueError:
        raise ProtocolError(f"expected a known kind of message, got kind {code}") from None
    if kind not in TENSORS:
        most = 0 if kind is Kind.HEARTBEAT else MAX_BODY_BYTES
        if (dtype, rank, rows, width) != (_JSON, 0, 0, 0) or length > most:
            raise ProtocolError(
                f"{kind.name}: expected a body of at most {most} bytes, "
                f"got dtype {dtype}, rank {rank}, [{rows}, {width}], {length} bytes"
            )
        return Header(kind, round_, part, None, torch.uint8, length, row_digest, received)
    if kind not in specs:
        raise ProtocolError(f"{kind.name}: not expected at this point")
    if dtype not in _DTYPES_BY_CODE or rank != 2:
        raise ProtocolError(f"{kind.name}: expected a matrix, got dtype {dtype}, rank {rank}")
    specs[kind].validate(kind, _DTYPES_BY_CODE[dtype], (rows, width))
    if length != rows * width * specs[kind].dtype.itemsize:
        raise ProtocolError(f"{kind.name}: [{rows}, {width}] does not make {length} bytes")
    shape = (rows, width)
    return Header(kind, round_, part, shape, specs[kind].dtype, length, row_digest, received)


class Assembly:
    """A message whose header was found sound, put together as its pieces come."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self._filled = 0
        if header.shape is not None:
            # A tensor of torch's own, rather than a view of the bytes received: its memory is
            # aligned as any other tensor's, so kernels take the same path and give the same bits.
            self._tensor = torch.empty(header.shape, dtype=header.dtype)
            self._buffer = memoryview(self._tensor.numpy()).cast("B")  # type: ignore[arg-type]
        else:
            self._buffer = memoryview(bytearray(header.length))

    @property
    def num_bytes(self) -> int:
        """What it takes on the wire."""
        return HEADER.size + len(self._buffer)

    @property
    def missing(self) -> int:
        """How many bytes are still to come."""
        return len(self._buffer) - self._filled

    def add(self, piece: bytes) -> None:
        """Fill in what came; raises ProtocolError for an empty piece or one too many."""
        if not 0 < len(piece) <= self.missing:
            raise ProtocolError(f"expected {self.missing} more bytes, got {len(piece)}")
        self._buffer[self._filled : self._filled + len(piece)] = piece
        self._filled += len(piece)

    def message(self) -> Message:
        """The whole message; raises ProtocolError for a body that is none."""
        header = self.header
        if header.shape is not None:
            return Message(
                header.kind,
                header.round,
                header.part,
                tensor=self._tensor,
                row_digest=header.row_digest,
            )
        try:
            body = json.loads(bytes(self._buffer))
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"{header.kind.name}: expected JSON") from error
        if not isinstance(body, dict) or not _within(body, MAX_BODY_LEVELS):
            raise ProtocolError(
                f"{header.kind.name}: expected a JSON object of at most {MAX_BODY_LEVELS} levels"
            )
        return Message(header.kind, header.round, header.part, body=body)


def _within(value: object, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels >= 0 and all(_within(v, levels - 1) for v in inner)


def num_bytes(message: Message) -> int:
    """What a message takes on a wire."""
    if message.tensor is not None:
        return HEADER.size + message.tensor.nbytes
    return HEADER.size + len(json.dumps(message.body or {}))


def check_sendable(message: Message) -> None:
    """Raise ShapeError for a tensor that the wire has no form for, NonFiniteError for NaN or Inf.

    Called by the compute thread, so that it learns of the mistake, and not the carrier's.
    """
    tensor = message.tensor
    if tensor is None:
        return
    if tensor.dtype not in _DTYPES or tensor.dim() != 2 or tensor.numel() == 0:
        raise ShapeError(
            f"{message.kind.name} of round {message.round}: expected a matrix of float32 or bytes, "
            f"got {tensor.dtype} of {list(tensor.shape)}"
        )
    check_finite(tensor, message.kind.name, message.round)


def check_finite(tensor: Tensor, what: str, round_: int) -> None:
    """Raise NonFiniteError if a tensor in main memory holds NaN or Inf.

    One on an accelerator is not looked at, for that would stall it at every step; it is looked at
    when it comes to main memory, as everything does that crosses a wire.
    """
    if tensor.device.type != "cpu" or tensor.dtype == torch.uint8:
        return
    if math.isfinite(tensor.sum().item()):
        return  # a sum is finite only if every term is
    if not bool(torch.isfinite(tensor).all()):  # ... but may overflow where no term is infinite
        raise NonFiniteError(
            f"{what} of round {round_} holds NaN or Inf; no step was applied. "
            "Lower the learning rate, or look for extreme values in the inputs"
        )
