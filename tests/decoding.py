"""A message from its header and its pieces, as a link receives it."""

from __future__ import annotations

from collections.abc import Iterator

from celu.errors import ProtocolError
from celu.transport.message import Message
from celu.transport.wire import Header, PartialMessage


def decode(header: Header, pieces: Iterator[bytes]) -> Message:
    """Read the payload that follows a checked header; raises ProtocolError where it is cut off."""
    partial = PartialMessage(header)
    while partial.missing_bytes:
        piece = next(pieces, None)
        if piece is None:
            raise ProtocolError(f"expected {partial.missing_bytes} more bytes, got 0")
        partial.add(piece)
    return partial.message()
