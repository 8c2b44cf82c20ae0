"""One link over several streams: piece i goes over stream i mod N, and is taken from there again.

A gateway may give each stream a small window, 64 KB say, so that one stream fills a fraction of a
long line; N of them fill N times as much. Order is kept by turns alone: no piece carries a number.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from celu.config.party import MAX_STRIPES
from celu.errors import CeluError, ProtocolError
from celu.transport.stream import Connection
from celu.transport.wire import PIECE_BYTES

STRIPED_PIECE_BYTES = 30 * 1024  # two, sealed and framed, fill a gateway's window of 64 KB
COMPLETE_S = 20.0  # how long the first stripe of a link may wait for the last
_STRIPE_KEY, _TOKEN_KEY = "celu-stripe", "celu-token"
_INCOMPLETE = 8  # attempts, at a time, of which some stripes are missing


def piece_bytes(count: int) -> int:
    """The size of a piece on a link of so many stripes."""
    return PIECE_BYTES if count == 1 else STRIPED_PIECE_BYTES


@dataclass(frozen=True)
class Stripe:
    """Which stream of how many this is; `token` tells one attempt's streams from another's."""

    index: int = 0
    count: int = 1
    token: str = ""

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What a caller says of a stream."""
        return ((_STRIPE_KEY, f"{self.index}/{self.count}"), (_TOKEN_KEY, self.token))

    @staticmethod
    def read(metadata: Mapping[str, str]) -> Stripe:
        """What a caller said, if it makes sense; raises ProtocolError."""
        said, token = metadata.get(_STRIPE_KEY, "0/1"), metadata.get(_TOKEN_KEY, "0" * 32)
        numbers = re.fullmatch(r"(\d{1,4})/(\d{1,4})", said, re.ASCII)
        if not numbers or not int(numbers[1]) < int(numbers[2]) <= MAX_STRIPES:
            raise ProtocolError(
                f"expected a stripe I/N with I below N and N at most {MAX_STRIPES}, "
                f"got {said[:20]!r}"
            )
        if not re.fullmatch(r"[0-9a-f]{32}", token):
            raise ProtocolError("expected a token of 32 hexadecimal digits with a stripe")
        return Stripe(int(numbers[1]), int(numbers[2]), token)


class Deal:
    """Deals pieces out to `count` streams in turn, each on a thread of its own."""

    def __init__(self, pieces: Iterator[bytes], count: int) -> None:
        self._pieces = pieces
        self._turns = [threading.Semaphore(0) for _ in range(count)]
        self._turns[0].release()
        self._over = False

    def stripe(self, index: int) -> Iterator[bytes]:
        """What stream `index` has to send."""
        mine, after = self._turns[index], self._turns[(index + 1) % len(self._turns)]
        try:
            while True:
                mine.acquire()
                piece = None if self._over else next(self._pieces, None)
                if piece is None:
                    return
                after.release()
                yield piece
        finally:  # the end, or a stream that the carrier dropped: no other may wait for its turn
            self._over = True
            for turn in self._turns:
                turn.release()


def gather(streams: list[Iterator[bytes]]) -> Iterator[bytes]:
    """The pieces of all streams in the order in which they were dealt."""
    for stream in itertools.cycle(streams):
        piece = next(stream, None)
        if piece is None:
            return
        yield piece


@dataclass
class Bundle:
    """The streams of one attempt as they come, and what was made of them once all are there."""

    count: int
    streams: dict[int, Iterator[bytes]] = field(default_factory=dict)
    settled: threading.Event = field(default_factory=threading.Event)
    connection: Connection | None = None
    deal: Deal | None = None
    problem: CeluError | None = None

    def settle(self, problem: CeluError | None) -> None:
        """Nothing is waited for any more."""
        self.problem = self.problem or problem
        self.settled.set()


class Bundles:
    """Brings the streams of each attempt together at the side that listens."""

    def __init__(self) -> None:
        self._incomplete: dict[tuple[str, str], Bundle] = {}
        self._lock = threading.Lock()

    def join(
        self,
        name: str,
        stripe: Stripe,
        stream: Iterator[bytes],
        begin: Callable[[list[Iterator[bytes]]], Connection],
    ) -> tuple[Connection, Iterator[bytes]]:
        """The connection that this stream is a part of, and what to send over it, once all are there.

        The last to come calls `begin` with all of them. Raises ProtocolError for a stream that
        does not fit, or where the others do not come; and what `begin` raises, at all of them.
        """
        key = (name, stripe.token)
        with self._lock:
            bundle = self._bundle(key, stripe.count)
            if bundle.count != stripe.count or stripe.index in bundle.streams:
                raise ProtocolError(
                    f"expected each of {bundle.count} stripes once, "
                    f"got {stripe.index}/{stripe.count} again"
                )
            bundle.streams[stripe.index] = stream
            complete = len(bundle.streams) == bundle.count
            if complete:
                del self._incomplete[key]
        if complete:
            try:
                bundle.connection = begin([bundle.streams[i] for i in range(bundle.count)])
                bundle.deal = Deal(bundle.connection.outgoing(), bundle.count)
                bundle.settle(None)
            except CeluError as error:
                bundle.settle(error)
        elif not bundle.settled.wait(COMPLETE_S):
            self._give_up(key, bundle)
            bundle.settled.wait()  # the last one may just have come
        if bundle.problem is not None:
            raise bundle.problem
        assert (
            bundle.connection is not None and bundle.deal is not None
        )  # settled without a problem
        return bundle.connection, bundle.deal.stripe(stripe.index)

    def _give_up(self, key: tuple[str, str], bundle: Bundle) -> None:
        with self._lock:
            if self._incomplete.get(key) is not bundle:
                return
            del self._incomplete[key]
        bundle.settle(
            ProtocolError(
                f"expected all {bundle.count} stripes within {COMPLETE_S:g} s, "
                f"got {len(bundle.streams)}"
            )
        )

    def stop(self, problem: CeluError) -> None:
        """Let those go that still wait."""
        with self._lock:
            waiting, self._incomplete = self._incomplete, {}
        for bundle in waiting.values():
            bundle.settle(problem)

    def _bundle(self, key: tuple[str, str], count: int) -> Bundle:
        if key not in self._incomplete:
            if count > 1 and len(self._incomplete) >= _INCOMPLETE:
                raise ProtocolError("expected the stripes of one link, got those of too many")
            self._incomplete[key] = Bundle(count)
        return self._incomplete[key]
