"""The link between two parties: four methods, implemented in memory and over carriers.

`send` and `receive` are coroutines because a party may wait there, and nowhere else. There is no
event loop. Over a network they block, so `run_blocking` runs a party's coroutine to its end in one
step. In memory they suspend, and `celu.simulate` runs another party in the same thread. One
coroutine serves both, and its order of work never depends on timing.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from celu.transport.message import Kind, Message, TensorSpec, TrafficBothWays

_T = TypeVar("_T")


class Link(Protocol):
    """One party's end of the link to one peer. Messages arrive once each, in order."""

    peer: str
    traffic: TrafficBothWays

    def allow(self, specs: Mapping[Kind, TensorSpec]) -> None:
        """Accept tensors of these kinds and sizes from now on; before the first call, none."""
        ...

    async def send(self, message: Message) -> None:
        """Queue a message; waits only while the queue is full.

        The tensor must not be changed afterwards. Raises PeerLost at the deadline.
        """
        ...

    async def receive(self) -> Message:
        """Return the next message.

        Raises PeerLost at the deadline or when the link has ended, PeerFailed when the peer
        reports that it stopped, ProtocolError or ShapeError for a message that is not allowed.
        """
        ...

    def close(self) -> None:
        """Wait a few seconds for sent messages to arrive, then end the link. Idempotent."""
        ...


def run_blocking(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a party's coroutine, whose links block instead of suspending, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: _T = done.value
        return result
    coroutine.close()
    raise RuntimeError("a link suspended the coroutine; run_blocking needs links that block")
