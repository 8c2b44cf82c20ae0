"""The link between two parties: four methods, implemented in memory and over carriers.

`send` and `receive` are coroutines because a party may have to wait there, and nowhere else. No
event loop is involved. Over a network they simply block, so `run_blocking` finishes a party's
program in one go. In memory they suspend, and `celu.simulate` lets another party go on in the
same thread. One program serves both, and its order of work never depends on timing.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from celu.transport.message import Kind, Message, TensorSpec, TrafficBothWays

_T = TypeVar("_T")


class Link(Protocol):
    """One party's end of a connection to one peer. Messages arrive once each, in order."""

    peer: str
    traffic: TrafficBothWays

    def allow(self, specs: Mapping[Kind, TensorSpec]) -> None:
        """From now on tensors of these kinds and sizes may arrive; before, none may."""
        ...

    async def send(self, message: Message) -> None:
        """Hand a message over; waits only where too many are still unsent.

        The tensor must not be changed afterwards. Raises PeerLost at the deadline.
        """
        ...

    async def receive(self) -> Message:
        """The next message.

        Raises PeerLost at the deadline or where the link has ended, PeerFailed where the peer
        says that it stopped, ProtocolError or ShapeError for what the peer may not send.
        """
        ...

    def close(self) -> None:
        """Let what was sent arrive, within a short time, and end the link. May be called twice."""
        ...


def run_blocking(program: Coroutine[Any, Any, _T]) -> _T:
    """Run a party's program whose links block."""
    try:
        program.send(None)
    except StopIteration as done:
        result: _T = done.value
        return result
    program.close()
    raise RuntimeError("a link suspended a program that was to run in one go")
