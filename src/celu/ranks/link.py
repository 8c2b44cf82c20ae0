"""The link of a party with several ranks: the first rank has it, and tells the others.

Every rank runs the same program. `receive` gives all of them the header and body of a message, or
the error that the first rank got; a tensor stays at the first rank, which decodes it and scatters
its rows. What a rank other than the first sends goes nowhere. A send that fails raises at the next
`receive`, so that all ranks raise at one place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from celu.errors import CeluError
from celu.ranks.slices import Slices
from celu.transport.link import Link, run_blocking
from celu.transport.message import Kind, Message, TensorSpec, TrafficBothWays


class RankLink:
    """One rank's end of a party's link to one peer; see `Link`. Only the first has a `link`."""

    def __init__(self, ranks: Slices, peer: str, link: Link | None) -> None:
        self._ranks = ranks
        self._link = link
        self._failed: CeluError | None = None  # of a send
        self.peer = peer
        self.traffic = TrafficBothWays() if link is None else link.traffic

    def allow(self, specs: Mapping[Kind, TensorSpec]) -> None:
        """See `Link`."""
        if self._link is not None:
            self._link.allow(specs)

    async def send(self, message: Message) -> None:
        """See `Link`; an error is raised by the next `receive`."""
        if self._link is None or self._failed is not None:
            return
        try:
            await self._link.send(message)
        except CeluError as error:
            self._failed = error

    async def receive(self) -> Message:
        """See `Link`; the tensor of a message is at the first rank only."""
        received: list[Message] = []

        def receive() -> dict[str, Any]:
            failed, self._failed = self._failed, None
            if failed is not None:
                raise failed
            assert self._link is not None
            received.append(run_blocking(self._link.receive()))
            return _header(received[0])

        header = self._ranks.share(receive)
        return received[0] if received else _message(header)

    def close(self) -> None:
        """See `Link`."""
        if self._link is not None:
            self._link.close()


def _header(message: Message) -> dict[str, Any]:
    return {
        "kind": int(message.kind),
        "round": message.round,
        "part": message.part,
        "body": message.body,
        "row_digest": message.row_digest.hex(),
        "curvature": message.curvature,
        "sender": message.sender,
    }


def _message(header: dict[str, Any]) -> Message:
    kind, digest = Kind(header["kind"]), bytes.fromhex(header["row_digest"])
    return replace(Message(kind), **{**header, "kind": kind, "row_digest": digest})
