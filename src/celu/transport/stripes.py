"""Stripe a connection over several gRPC streams: piece i goes over stream i mod N.

A gateway may limit each stream to a small flow-control window, such as 64 KB, which limits the
throughput of a link with a long delay; N streams have N windows. Pieces carry no number: both sides
visit the streams in the same order.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from celu.config.party import MAX_STRIPES
from celu.errors import CeluError, PeerLost, ProtocolError
from celu.transport.connection import Connection
from celu.transport.wire import PIECE_BYTES

STRIPED_PIECE_BYTES = 30 * 1024  # two, encrypted and framed, fill a gateway's window of 64 KB
COMPLETE_S = 20.0  # how long the first stream of a connection waits for the last
_STRIPE_KEY, _TOKEN_KEY = "celu-stripe", "celu-token"
_MAX_INCOMPLETE = 8  # connections of a peer with missing stripes


def piece_bytes(count: int) -> int:
    """The size of a piece on a connection with `count` stripes."""
    return PIECE_BYTES if count == 1 else STRIPED_PIECE_BYTES


@dataclass(frozen=True)
class Stripe:
    """Stream `index` of `count`; the streams of one attempt to connect share a `token`."""

    index: int = 0
    count: int = 1
    token: str = ""

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The gRPC metadata with which a client announces a stream."""
        return ((_STRIPE_KEY, f"{self.index}/{self.count}"), (_TOKEN_KEY, self.token))

    @staticmethod
    def read(metadata: Mapping[str, str], max_count: int = MAX_STRIPES) -> Stripe:
        """Parse a client's metadata; raises ProtocolError if it is invalid."""
        value, token = metadata.get(_STRIPE_KEY, "0/1"), metadata.get(_TOKEN_KEY, "0" * 32)
        numbers = re.fullmatch(r"(\d{1,4})/(\d{1,4})", value, re.ASCII)
        if not numbers or not int(numbers[1]) < int(numbers[2]) <= max_count:
            raise ProtocolError(
                f"expected a stripe I/N with I below N and N at most {max_count}, "
                f"got {value[:20]!r}"
            )
        if not re.fullmatch(r"[0-9a-f]{32}", token):
            raise ProtocolError("expected a token of 32 hexadecimal digits with a stripe")
        return Stripe(int(numbers[1]), int(numbers[2]), token)


class RoundRobin:
    """Distributes pieces over `count` streams in turn, each on its own thread."""

    def __init__(self, pieces: Iterator[bytes], count: int) -> None:
        self._pieces = pieces
        self._turns = [threading.Semaphore(0) for _ in range(count)]
        self._turns[0].release()
        self._ended = False

    def pieces_for(self, index: int) -> Iterator[bytes]:
        """The pieces that stream `index` sends."""
        if len(self._turns) == 1:  # there are no turns to take
            yield from self._pieces
            return
        own_turn, next_turn = self._turns[index], self._turns[(index + 1) % len(self._turns)]
        try:
            while True:
                own_turn.acquire()
                piece = None if self._ended else next(self._pieces, None)
                if piece is None:
                    return
                next_turn.release()
                yield piece
        finally:  # the end, or the carrier dropped a stream: release the others
            self._ended = True
            for turn in self._turns:
                turn.release()


def gather(streams: list[Iterator[bytes]]) -> Iterator[bytes]:
    """The pieces of all streams in their original order."""
    for stream in itertools.cycle(streams):
        piece = next(stream, None)
        if piece is None:
            return
        yield piece


class StreamCount:
    """Limits the open streams of each peer, so that one cannot occupy the threads of another."""

    def __init__(self, max_streams: int) -> None:
        self._max_streams = max_streams
        self._open: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def added(self, name: str) -> Iterator[None]:
        """Count a stream while it is open; raises PeerLost if the peer has too many."""
        with self._lock:
            if self._open[name] >= self._max_streams:
                raise PeerLost("too many streams at the same time; try again later")
            self._open[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open[name] -= 1


@dataclass
class _Group:
    """The streams of one attempt to connect, and their connection once all have arrived."""

    count: int
    streams: dict[int, Iterator[bytes]] = field(default_factory=dict)
    resolved: threading.Event = field(default_factory=threading.Event)
    connection: Connection | None = None
    outgoing: RoundRobin | None = None
    problem: CeluError | None = None

    def resolve(self, problem: CeluError | None) -> None:
        """Wake the threads that wait for the other streams, with an error if there is one."""
        self.problem = self.problem or problem
        self.resolved.set()


class StripeGroups:
    """Groups the streams of each attempt to connect, on the side that listens.

    At most `max_waiting` streams of a peer wait for others: each occupies a thread and may fill its
    buffer. The limits are for each peer, so that one cannot keep another out.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._incomplete: dict[tuple[str, str], _Group] = {}
        self._lock = threading.Lock()
        self._stopped: CeluError | None = None

    def add_stream(
        self,
        name: str,
        stripe: Stripe,
        stream: Iterator[bytes],
        connect: Callable[[list[Iterator[bytes]]], Connection],
    ) -> tuple[Connection, Iterator[bytes]]:
        """Wait for the other streams; returns their connection and what this stream sends.

        The last stream to arrive calls `connect` with all of them. Raises ProtocolError for a
        stream that does not fit or if others are missing, PeerLost if too many wait; an error of
        `connect` is raised in all threads.
        """
        key = (name, stripe.token)
        with self._lock:
            if self._stopped is not None:
                raise self._stopped
            group = self._group(key, stripe.count)
            if group.count != stripe.count or stripe.index in group.streams:
                raise ProtocolError(
                    f"expected each of {group.count} stripes once, "
                    f"got {stripe.index}/{stripe.count} again"
                )
            complete = len(group.streams) + 1 == group.count
            if not complete and self._num_waiting(name) >= self._max_waiting:
                raise PeerLost("too many stripes that wait for others; try again later")
            group.streams[stripe.index] = stream
            if complete:
                del self._incomplete[key]
        if complete:
            try:
                group.connection = connect([group.streams[i] for i in range(group.count)])
                group.outgoing = RoundRobin(group.connection.outgoing_pieces(), group.count)
            except CeluError as error:
                group.resolve(error)
            finally:  # also after a bug: the others wait for this
                group.resolve(None)
        elif not group.resolved.wait(COMPLETE_S):
            self._time_out(key, group)
            group.resolved.wait(COMPLETE_S)  # the last stream may just have arrived
        if group.problem is not None:
            raise group.problem
        if group.connection is None or group.outgoing is None:
            raise PeerLost("the connection could not be opened; try again later")
        return group.connection, group.outgoing.pieces_for(stripe.index)

    def stop(self, problem: CeluError) -> None:
        """Fail the groups that are still incomplete, and streams that arrive later."""
        with self._lock:
            self._stopped = problem
            incomplete, self._incomplete = self._incomplete, {}
        for group in incomplete.values():
            group.resolve(problem)

    def _time_out(self, key: tuple[str, str], group: _Group) -> None:
        with self._lock:
            if self._incomplete.get(key) is not group:
                return
            del self._incomplete[key]
        group.resolve(
            ProtocolError(
                f"expected all {group.count} stripes within {COMPLETE_S:g} s, "
                f"got {len(group.streams)}"
            )
        )

    def _num_waiting(self, name: str) -> int:
        return sum(len(group.streams) for (of, _), group in self._incomplete.items() if of == name)

    def _group(self, key: tuple[str, str], count: int) -> _Group:
        if key not in self._incomplete:
            if count > 1 and [of for of, _ in self._incomplete].count(key[0]) >= _MAX_INCOMPLETE:
                raise PeerLost("too many connections with missing stripes; try again later")
            self._incomplete[key] = _Group(count)
        return self._incomplete[key]
