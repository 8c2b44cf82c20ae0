"""A message from its header and its pieces, as a link takes it in."""

from __future__ import annotations

from collections.abc import Iterator

from celu.errors import ProtocolError
from celu.transport.message import Message
from celu.transport.wire import Assembly, Header


def decode(header: Header, pieces: Iterator[bytes]) -> Message:
    """Read the payload that follows a checked header; raises ProtocolError where it is cut off."""
    coming = Assembly(header)
    while coming.missing:
        piece = next(pieces, None)
        if piece is None:
            raise ProtocolError(f"expected {coming.missing} more bytes, got 0")
        coming.add(piece)
    return coming.message()
