"""Encode messages as bytes: a fixed header, then a tensor's raw buffer or a small JSON object.

    magic   4s   b"CELU"
    version u8   4
    kind    u8   see `message.Kind`
    dtype   u8   0 JSON, 1 float32, 2 bytes, 3 int64
    rank    u8   0 for JSON, 2 for a tensor
    sequence u64  counts a sender's messages from 0; a gap or repeat is refused
    received u64  acknowledgement: how many messages the sender has received
    round   u64
    part    u32
    rows    u32  dimensions of a tensor, else 0
    width   u32
    length  u64  bytes of payload
    digest  16s  for Z and dZ: the digest of the rows they belong to, else 0
    curvature f64 for dZ: the curvature of the loss, else 1

All little-endian. The payload follows in pieces of at most `PIECE_BYTES`, so no message exceeds a
carrier's size limit; the payload of a small message is in the same piece as its header. A header
with a false size is refused before anything is allocated. Nothing is unpickled or executed.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from celu.device_copy import to_main_memory
from celu.errors import NonFiniteError, ProtocolError, ShapeError
from celu.transport.message import (
    MAX_CURVATURE,
    ROW_DIGEST_BYTES,
    SERVING,
    TENSORS,
    Kind,
    Message,
    TensorSpec,
)

MAGIC = b"CELU"
VERSION = 4
HEADER = struct.Struct(f"<4sBBBBQQQIIIQ{ROW_DIGEST_BYTES}sd")
PIECE_BYTES = 1024 * 1024  # small enough that copying, encrypting and sending overlap
MAX_BODY_BYTES = 256 * 1024
MAX_BODY_LEVELS = 16  # a deeper body could exhaust the stack of code that walks it

_DTYPES: dict[torch.dtype, int] = {torch.float32: 1, torch.uint8: 2, torch.int64: 3}
_DTYPES_BY_CODE = {code: dtype for dtype, code in _DTYPES.items()}
_NUMPY_FLOATS = (torch.float32, torch.float64)
_JSON = 0
_KINDS = {kind.value: kind for kind in Kind}
# PyTorch releases Python's interpreter lock in every operation. With many threads that delays a
# small message by more than the operation takes; NumPy does not release it for small arrays.
_SMALL_ELEMENTS = 4096
_ALIGNMENT = 64  # of a tensor's memory, in bytes, as PyTorch allocates it
_NUMPY_DTYPES = {torch.float32: np.float32, torch.uint8: np.uint8, torch.int64: np.int64}


class Header(NamedTuple):
    """A header that has been checked: its payload may be allocated."""

    kind: Kind
    round: int
    part: int
    shape: tuple[int, int] | None  # None: a JSON body
    dtype: torch.dtype
    length: int
    row_digest: bytes
    curvature: float = 1.0
    received: int = 0  # how many of our messages the peer has received


def encode(
    message: Message, sequence: int, received: int = 0, piece_bytes: int = PIECE_BYTES
) -> Iterator[bytes]:
    """Yield the header, then the payload in pieces, each copied only when it is requested."""
    header, payload = _header_and_payload(message, sequence, received)
    yield header
    for start in range(0, len(payload), piece_bytes):
        yield bytes(payload[start : start + piece_bytes])


def encode_whole(message: Message, sequence: int, received: int) -> bytes:
    """The header and the payload as one piece, for a small message."""
    return b"".join(_header_and_payload(message, sequence, received))


def _header_and_payload(message: Message, sequence: int, received: int) -> tuple[bytes, memoryview]:
    if message.tensor is not None:
        if message.copied is not None:
            message.copied.synchronize()
        tensor = message.tensor.contiguous()
        payload = memoryview(tensor.numpy()).cast("B")  # type: ignore[arg-type]
        code, rank, (rows, width) = _DTYPES[tensor.dtype], 2, tensor.shape
    else:
        heartbeat = message.kind is Kind.HEARTBEAT
        payload = memoryview(b"" if heartbeat else json.dumps(message.body or {}).encode())
        code, rank, rows, width = _JSON, 0, 0, 0
    header = HEADER.pack(
        MAGIC, VERSION, message.kind, code, rank, sequence, received,
        message.round, message.part, rows, width, len(payload), message.row_digest,
        message.curvature,
    )  # fmt: skip
    return header, payload


def decode_header(data: bytes, sequence: int, specs: Mapping[Kind, TensorSpec]) -> Header:
    """Check a header against the protocol and the contract, before anything is allocated."""
    if len(data) != HEADER.size:
        raise ProtocolError(f"expected a header of {HEADER.size} bytes, got {len(data)}")
    magic, version, code, dtype, rank, number, received, *more = HEADER.unpack(data)
    round_, part, rows, width, length, row_digest, curvature = more
    if magic != MAGIC or version != VERSION:
        raise ProtocolError(
            f"expected protocol version {VERSION}, got {version if magic == MAGIC else 'none'}; "
            "use the same release of celu at all parties"
        )
    if number != sequence:
        raise ProtocolError(f"expected message number {sequence}, got {number}")
    kind = _KINDS.get(code)
    if kind is None:
        raise ProtocolError(f"unknown kind of message: {code}")
    if kind not in TENSORS:
        max_bytes = 0 if kind is Kind.HEARTBEAT else MAX_BODY_BYTES
        if (dtype, rank, rows, width) != (_JSON, 0, 0, 0) or length > max_bytes:
            raise ProtocolError(
                f"{kind.name}: expected a body of at most {max_bytes} bytes, "
                f"got dtype {dtype}, rank {rank}, [{rows}, {width}], {length} bytes"
            )
        return Header(kind, round_, part, None, torch.uint8, length, row_digest, received=received)
    spec = specs.get(kind)
    if spec is None:
        raise ProtocolError(f"{kind.name}: not expected at this point")
    if dtype not in _DTYPES_BY_CODE or rank != 2:
        raise ProtocolError(f"{kind.name}: expected a matrix, got dtype {dtype}, rank {rank}")
    shape = (rows, width)
    spec.validate(kind, _DTYPES_BY_CODE[dtype], shape)
    if length != rows * width * spec.dtype.itemsize:
        raise ProtocolError(f"{kind.name}: [{rows}, {width}] does not fit {length} bytes")
    if not 0 <= curvature <= MAX_CURVATURE:
        raise ProtocolError(
            f"{kind.name}: expected a curvature from 0 to {MAX_CURVATURE:g}, got {curvature}"
        )
    return Header(kind, round_, part, shape, spec.dtype, length, row_digest, curvature, received)


class PartialMessage:
    """A message with a checked header whose payload is still arriving."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self._filled = 0
        if header.shape is not None:
            self._tensor, self._buffer = _allocate(header.shape, header.dtype, header.length)
        else:
            self._buffer = memoryview(bytearray(header.length))

    @property
    def num_bytes(self) -> int:
        """Size of the whole message on the wire."""
        return HEADER.size + len(self._buffer)

    @property
    def missing_bytes(self) -> int:
        """How many bytes have not arrived yet."""
        return len(self._buffer) - self._filled

    def add(self, piece: bytes | memoryview) -> None:
        """Append a piece; raises ProtocolError if it is empty or too long."""
        start, stop = self._filled, self._filled + len(piece)
        if not start < stop <= len(self._buffer):
            raise ProtocolError(f"expected {self.missing_bytes} more bytes, got {len(piece)}")
        self._buffer[start:stop] = piece
        self._filled = stop

    def message(self, sender: str = "") -> Message:
        """Decode the whole message; raises ProtocolError for an invalid body."""
        header = self.header
        if header.shape is not None:
            return Message(
                header.kind,
                header.round,
                header.part,
                tensor=self._tensor,
                row_digest=header.row_digest,
                curvature=header.curvature,
                sender=sender,
            )
        try:
            body = json.loads(bytes(self._buffer))
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"{header.kind.name}: expected JSON") from error
        if not isinstance(body, dict) or not _nests_at_most(body, MAX_BODY_LEVELS):
            raise ProtocolError(
                f"{header.kind.name}: expected a JSON object of at most {MAX_BODY_LEVELS} levels"
            )
        return Message(header.kind, header.round, header.part, body=body, sender=sender)


def _allocate(shape: tuple[int, int], dtype: torch.dtype, length: int) -> tuple[Tensor, memoryview]:
    """An empty tensor of `length` bytes and its memory.

    It is no view of the received bytes, but aligned like any other tensor: so kernels choose the
    same code path and return the same bits.
    """
    if length > _SMALL_ELEMENTS:
        tensor = torch.empty(shape, dtype=dtype)
        return tensor, memoryview(tensor.numpy()).cast("B")  # type: ignore[arg-type]
    if dtype != torch.float32:  # no kernel computes with it
        values = np.empty(shape, _NUMPY_DTYPES[dtype])
        return torch.from_numpy(values), memoryview(values).cast("B")  # type: ignore[arg-type]
    memory = np.empty(length + _ALIGNMENT, dtype=np.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    memory = memory[start : start + length]
    values = memory.view(_NUMPY_DTYPES[dtype]).reshape(shape)
    return torch.from_numpy(values), memoryview(memory)  # type: ignore[arg-type]


def _nests_at_most(value: object, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels >= 0 and all(_nests_at_most(v, levels - 1) for v in inner)


def num_bytes(message: Message) -> int:
    """Size of a message on the wire."""
    if message.tensor is not None:
        return HEADER.size + message.tensor.nbytes
    return HEADER.size + len(json.dumps(message.body or {}))


def as_sendable(message: Message) -> Message:
    """The message with its tensor in main memory and without a graph; raises as `check_values`.

    A tensor from a GPU may not have arrived there yet: see `Message.copied`.
    """
    tensor = message.tensor
    if tensor is not None and tensor.requires_grad:
        message = replace(message, tensor=tensor.detach())
    if tensor is None or tensor.device.type == "cpu":
        check_sendable(message)
        return message
    if tensor.is_cuda:  # the copy starts before the check waits
        copy, copied = to_main_memory(tensor.detach())
        sendable = replace(message, tensor=copy, total=None, copied=copied)
    else:
        sendable = replace(message, tensor=tensor.detach().to("cpu"), total=None)
    check_values(message)
    return sendable


def check_values(message: Message) -> None:
    """Raise as `check_sendable`, for a tensor on a GPU too: this waits for the GPU."""
    check_sendable(message)
    tensor, total = message.tensor, message.total
    if tensor is None or tensor.device.type == "cpu":
        return
    if total is None and tensor.is_floating_point():
        # No float32 numbers add up to an infinite float64.
        total = tensor.sum(dtype=torch.float64)
    if total is not None:
        _check_message(message, total.cpu())


def check_sendable(message: Message) -> None:
    """Raise ShapeError for a tensor that cannot be encoded, NonFiniteError for NaN or Inf.

    Numbers on a GPU are not checked. Called on the compute thread, so that the error is raised
    there and not on a carrier's thread.
    """
    tensor = message.tensor
    if tensor is None:
        return
    if tensor.dtype not in _DTYPES or tensor.dim() != 2 or tensor.numel() == 0:
        raise ShapeError(
            f"{message.described}: expected a matrix of float32, bytes or int64, got "
            f"{tensor.dtype} of {list(tensor.shape)}"
        )
    _check_message(message, tensor)


def check_received(message: Message) -> None:
    """Raise NonFiniteError if the tensor of a received message holds NaN or Inf."""
    if message.tensor is not None:
        _check_message(message, message.tensor)


def _check_message(message: Message, tensor: Tensor) -> None:
    if is_finite(tensor):
        return
    if message.kind in SERVING:
        raise not_finite(message.described)
    sender = message.sender and f" from {message.sender}"
    check_finite(tensor, f"{message.kind.name}{sender}", message.round)


def check_finite(tensor: Tensor, what: str, round_: int) -> None:
    """Raise NonFiniteError if a tensor of a round of training holds NaN or Inf; see `is_finite`."""
    if not is_finite(tensor):
        raise NonFiniteError(
            f"{what} of round {round_} holds NaN or Inf and was not used. Weights may have "
            "diverged in earlier rounds: lower the learning rate, or look for extreme values in "
            "the inputs"
        )


def not_finite(what: str) -> NonFiniteError:
    """The error for a tensor of a trained model that holds NaN or Inf."""
    return NonFiniteError(
        f"{what} holds NaN or Inf and was not used; look for extreme values in the inputs, or use "
        "another model"
    )


def is_finite(tensor: Tensor) -> bool:
    """Whether a tensor in main memory holds neither NaN nor Inf.

    A tensor on a GPU is not checked, because that would synchronize at every step. Its sum is
    checked before it is sent (`as_sendable`).
    """
    if tensor.device.type != "cpu" or not tensor.is_floating_point():
        return True
    if tensor.dtype in _NUMPY_FLOATS and tensor.numel() <= _SMALL_ELEMENTS:
        values = tensor.detach().numpy()
        # The sum of squares is finite only if every term is, but it may overflow.
        return math.isfinite(np.vdot(values, values)) or bool(np.isfinite(values).all())
    # A sum is finite only if every term is, but it may overflow although every term is.
    return math.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all())
