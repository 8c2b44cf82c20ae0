"""The guest's selection: which of the rows in common with a host all other hosts have, as a bitmap.

It is sent after the exchanges. While the guest still works with other hosts, a host that waits for
its selection receives READY: at most as often as another host can have chunks, for at most a day.
"""

from __future__ import annotations

from time import monotonic

import numpy as np
import numpy.typing as npt
import torch

from celu.errors import PeerLost, ProtocolError
from celu.psi.exchange import AHEAD, LAG
from celu.transport.link import Link
from celu.transport.message import Kind, Message, TensorSpec, expect, require_rows

MAX_ROWS = 2**28  # of a party: a billion multiplications; a larger claim is an error
MAX_WAIT_S = 24 * 3600.0  # the largest host takes less; after it, a new start resumes
_MAX_HOSTS = 2**16  # one READY for each, when the exchanges are done
_PART_BYTES = 64 * 1024  # of the bitmap, in one message


def selection_spec() -> TensorSpec:
    """The tensor that a guest may send as a part of a selection."""
    return TensorSpec(_PART_BYTES, 1, torch.uint8)


async def send_selection(link: Link, selected: npt.NDArray[np.bool_]) -> None:
    """Send a host which of its common rows all hosts have."""
    packed = np.packbits(selected) if len(selected) else np.zeros(1, np.uint8)
    bits = torch.from_numpy(packed).reshape(-1, 1)
    for part, start in enumerate(range(0, len(bits), _PART_BYTES)):
        await link.send(Message(Kind.KEPT, part, tensor=bits[start : start + _PART_BYTES]))


def max_ready(chunk_rows: int) -> int:
    """How often a guest may send READY: once for each step with the largest possible other host."""
    return -(-MAX_ROWS // chunk_rows) + 2 * (LAG + AHEAD) + _MAX_HOSTS


async def receive_selection(link: Link, num_rows: int, ready_limit: int) -> npt.NDArray[np.bool_]:
    """Which of the rows in common with the guest all hosts have.

    Raises ProtocolError after `ready_limit` READY, and PeerLost after MAX_WAIT_S.
    """
    message = await _receive_after_ready(link, ready_limit)
    num_bytes = max(1, -(-num_rows // 8))  # a shard may have no common rows
    parts = []
    for part, start in enumerate(range(0, num_bytes, _PART_BYTES)):
        message = message if part == 0 else await link.receive()
        size = min(_PART_BYTES, num_bytes - start)
        parts.append(require_rows(expect(message, Kind.KEPT, part), size).numpy().reshape(-1))
    bits = np.unpackbits(np.concatenate(parts)).astype(np.bool_)
    if bits[num_rows:].any():
        raise ProtocolError(f"from {link.peer}: KEPT: expected a bit for each common row, got more")
    return bits[:num_rows]


async def _receive_after_ready(link: Link, ready_limit: int) -> Message:
    """The first message after those by which a guest says that it works with other hosts."""
    started = monotonic()
    for _ in range(ready_limit + 1):
        message = await link.receive()
        if message.kind is not Kind.READY:
            return message
        if monotonic() - started > MAX_WAIT_S:
            raise PeerLost(
                f"{link.peer} has sent no selection for {MAX_WAIT_S / 3600:.0f} hours, only that "
                "it works with other hosts; ask its operator, and start again at all parties to "
                "resume"
            )
    raise ProtocolError(
        f"from {link.peer}: expected KEPT after at most {ready_limit} READY, got another READY"
    )
