"""The guest's selection: which of the rows in common with a host all other hosts have, as a bitmap.

It is sent after the exchanges. While the guest still works with other hosts, a host that waits for
its selection receives READY.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from celu.errors import ProtocolError
from celu.transport.link import Link
from celu.transport.message import Kind, Message, TensorSpec, expect, require_rows

_PART_BYTES = 64 * 1024  # of the bitmap, in one message


def selection_spec() -> TensorSpec:
    """The tensor that a guest may send as a part of a selection."""
    return TensorSpec(_PART_BYTES, 1, torch.uint8)


async def send_selection(link: Link, selected: npt.NDArray[np.bool_]) -> None:
    """Send a host which of its common rows all hosts have."""
    bits = torch.from_numpy(np.packbits(selected)).reshape(-1, 1)
    for part, start in enumerate(range(0, len(bits), _PART_BYTES)):
        await link.send(Message(Kind.KEPT, part, tensor=bits[start : start + _PART_BYTES]))


async def receive_selection(link: Link, num_rows: int) -> npt.NDArray[np.bool_]:
    """Which of the rows in common with the guest all hosts have."""
    message = await link.receive()
    while message.kind is Kind.READY:  # the guest is not done with other hosts
        message = await link.receive()
    num_bytes = -(-num_rows // 8)
    parts = []
    for part, start in enumerate(range(0, num_bytes, _PART_BYTES)):
        message = message if part == 0 else await link.receive()
        size = min(_PART_BYTES, num_bytes - start)
        parts.append(require_rows(expect(message, Kind.KEPT, part), size).numpy().reshape(-1))
    bits = np.unpackbits(np.concatenate(parts)).astype(np.bool_)
    if bits[num_rows:].any():
        raise ProtocolError(f"from {link.peer}: KEPT: expected a bit for each common row, got more")
    return bits[:num_rows]
