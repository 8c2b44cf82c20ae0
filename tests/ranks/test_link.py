"""The link of a party of several ranks; two ranks are two threads here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from celu.errors import CeluError, PeerLost
from celu.ranks.link import RankLink
from celu.ranks.slices import Slices
from celu.transport.link import Link, run_blocking
from celu.transport.memory import memory_links
from celu.transport.message import Kind, Message

WAIT_S = 60.0


class Exchange:
    """What the first of some ranks shares with the others."""

    def __init__(self, size: int) -> None:
        self.meeting = threading.Barrier(size, timeout=WAIT_S)
        self.shared: Any = None


class ThreadRank(Slices):
    """One of some ranks, each a thread."""

    def __init__(self, rank: int, size: int, exchange: Exchange) -> None:
        super().__init__(size)
        self.own = range(rank, rank + 1)
        self._exchange = exchange

    def share(self, compute: Callable[[], Any]) -> Any:
        if self.is_first:
            try:
                self._exchange.shared = compute()
            except CeluError as error:
                self._exchange.shared = error
        self._exchange.meeting.wait()
        found = self._exchange.shared
        self._exchange.meeting.wait()
        if isinstance(found, CeluError):
            raise found
        return found


class FailingSend:
    """A link to a peer whose second send fails."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._sends = 0
        self.peer, self.traffic = link.peer, link.traffic

    async def send(self, message: Message) -> None:
        self._sends += 1
        if self._sends == 2:
            raise PeerLost("the send failed")
        await self._link.send(message)

    async def receive(self) -> Message:
        return await self._link.receive()

    def allow(self, specs: Any) -> None:
        self._link.allow(specs)

    def close(self) -> None:
        self._link.close()


def test_a_send_that_fails_raises_at_the_next_receive_of_all_ranks() -> None:
    to_peer, of_peer = memory_links("us", "peer")
    run_blocking(of_peer.send(Message(Kind.READY, body={"from": "peer"})))
    exchange, size = Exchange(3), 3

    def program(rank: int) -> list[str]:
        """What every rank runs: messages that it received, and where it raised."""
        link = FailingSend(to_peer) if rank == 0 else None
        ranks = RankLink(ThreadRank(rank, size, exchange), "peer", link)
        done = []
        run_blocking(ranks.send(Message(Kind.READY)))
        message = run_blocking(ranks.receive())
        done.append(f"received {message.kind.name} {message.body}")
        run_blocking(ranks.send(Message(Kind.READY)))  # fails at the first rank, without a word
        run_blocking(ranks.send(Message(Kind.READY)))
        done.append("sent")
        try:
            run_blocking(ranks.receive())
        except PeerLost as error:
            done.append(f"raised {error}")
        return done

    with ThreadPoolExecutor(size) as threads:
        found = list(threads.map(program, range(size), timeout=WAIT_S))
    expected = ["received READY {'from': 'peer'}", "sent", "raised the send failed"]
    assert found == [expected] * size
    run_blocking(of_peer.receive())
    to_peer.close()
    with pytest.raises(PeerLost, match="closed the link"):  # nothing was sent after the failure
        run_blocking(of_peer.receive())
