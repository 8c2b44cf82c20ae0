"""The guest's session with one host, whichever way its Z comes: contracts, then announcements.

`asking` asks for the Z of single rows, `pushing` receives the Z of all rows in advance.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt

from celu.codecs.registry import find_codec
from celu.config.serving import Serving
from celu.errors import CeluError
from celu.serving.announcement import HostModels, wanted_message
from celu.serving.handshake import exchange_hellos
from celu.serving.row_index import ServedRows
from celu.transport.asker import Call
from celu.transport.link import run_blocking
from celu.transport.message import Message
from celu.transport.stream import StreamLink

MAX_WIDTH = 4096  # of Z, unless a model has more
_SESSION_S = 1e6  # a session is renewed after this time

Mask = list[bool]  # one for each row
OnEnd = Callable[[CeluError], None]


@dataclass(slots=True)  # not frozen, here and below: that takes three times as long to create
class RowKeys:
    """How hosts know the rows of a request: numbers of the alignment, or NO_ROW, and tags."""

    numbers: list[int]
    tags: list[bytes]

    def __len__(self) -> int:
        return len(self.numbers)

    def select(self, rows: Mask) -> RowKeys:
        """Some of the rows."""
        return RowKeys(list(compress(self.numbers, rows)), list(compress(self.tags, rows)))


@dataclass(slots=True)
class ZRows:
    """Z of the rows that a host has it for, in order; None if there are none."""

    has_z: Mask
    z_ND: npt.NDArray[np.float32] | None


@dataclass(slots=True)
class Result:
    """Z that was asked for: `get` returns it and may wait, at most until the deadline.

    It waits for `call`, if there is one. When that has finished, it waits only if `asks_again`.
    """

    get: Callable[[], ZRows]
    call: Call | None = None
    asks_again: Callable[[], bool] = lambda: False


@dataclass
class GuestParts:
    """What all hosts' sessions at a guest share; the functions are called on any thread.

    `on_change` is called when a host's models or its link changed.
    """

    name: str
    serving: Serving
    rows: ServedRows
    say: Callable[[str], None] = lambda text: None
    on_change: Callable[[], None] = lambda: None
    on_connected: Callable[[str], None] = lambda peer: None


class HostLink(ABC):
    """The Z of one host, session after session. `widths` has the width of its Z, by model."""

    def __init__(
        self, name: str, parts: GuestParts, widths: Callable[[], Mapping[str, int]]
    ) -> None:
        self.name = name
        self.models: HostModels | None = None  # as last announced, also if it is down now
        self.counts = dict.fromkeys(("asks", "expired", "refused", "failed"), 0)
        self._parts = parts
        self._widths = widths
        self._codec = find_codec(parts.serving.codec, "codec")
        self._lock = threading.Lock()  # guards the two below
        self._link: StreamLink | None = None
        self._wanted: tuple[str, ...] = ()

    @property
    def is_up(self) -> bool:
        """Whether a session is open, and its link is neither down nor over."""
        link = self._link
        return link is not None and not link.is_down and not link.is_over

    @abstractmethod
    def has_z(self, model: str) -> bool:
        """Whether Z of this model is available now."""

    @abstractmethod
    def start(self, model: str, keys: RowKeys, deadline_at: float) -> Result:
        """Begin to get Z of some rows; never waits."""

    @abstractmethod
    def _begin(self, link: StreamLink, on_end: OnEnd) -> None:
        """Handle what the host sends from now on; `on_end` is called when the link is over."""

    def _complete(self) -> list[str]:
        """The models whose Z need not be sent again."""
        return []

    def run(self, link: StreamLink) -> None:
        """One session, until the link is over; raises the error that ended it."""
        parts = self._parts
        exchange_hellos(parts.name, link, parts.serving, parts.rows)
        ended: list[CeluError] = []
        over = threading.Event()

        def on_end(error: CeluError) -> None:
            ended.append(error)
            over.set()

        # Slots belong to a session: an old one could name another model now.
        self.models = None if self.models is None else HostModels(self.models.held)
        self._begin(link, on_end)
        with self._lock:
            self._link, wanted = link, self._wanted
        try:
            run_blocking(link.send(wanted_message(wanted, self._complete())))
            parts.on_connected(self.name)
            parts.say(f"{self.name} is connected")
            parts.on_change()
            over.wait(_SESSION_S)
        finally:
            with self._lock:
                self._link = None
            parts.on_change()
        if ended:
            raise ended[0]

    def want(self, names: Sequence[str]) -> None:
        """Ask the host for these models, now and in later sessions."""
        with self._lock:
            if self._wanted == tuple(names):
                return
            self._wanted, link = tuple(names), self._link
        if link is not None:
            try:
                run_blocking(link.send(wanted_message(names, self._complete())))
            except CeluError:  # the session ends; the next one sends it again
                return

    def _slot(self, model: str) -> int | None:
        models = self.models
        return None if models is None else (models.slots or {}).get(model)

    def _max_bytes(self, rows: int) -> int:
        """The size of the largest encoded Z of some rows."""
        return self._codec.max_bytes(rows, max([MAX_WIDTH, *self._widths().values()]))

    def _on_announce(self, message: Message) -> None:
        self.models = HostModels.from_message(message)
        self._parts.on_change()
