"""The guest asks a host for the Z of single rows, when a request needs them.

Errors of a host never reach a client: rows without Z get the fallback.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from celu.errors import AskExpired, AskRefused, CeluError, ProtocolError
from celu.serving.answering import MAX_ASK_ROWS
from celu.serving.ask_rows import NUMBERS_PER_ROW, numbers_from_tags
from celu.serving.cache import Row, ZCache
from celu.serving.host_link import GuestParts, HostLink, Mask, OnEnd, Result, RowKeys, ZRows
from celu.serving.row_index import NO_ROW
from celu.transport.ask import Refusal
from celu.transport.asker import Asker, Call
from celu.transport.message import Message, TensorSpec
from celu.transport.stream import StreamLink
from celu.transport.wire import is_finite, not_finite

# A refusal for these reasons may be due to single rows of an ask: each is asked for once more.
_BY_ROW = (Refusal.UNKNOWN_ROW, Refusal.LIMIT)
_MAX_SINGLE_ROWS = 64  # of a refused ask


def _none(rows: int) -> ZRows:
    return ZRows([False] * rows, None)


def _no_result(rows: int) -> Result:
    none = _none(rows)
    return Result(lambda: none)


def _spread(values: list[bool], places: Mask, *, others: bool = False) -> Mask:
    """The values at these places in order, and `others` elsewhere."""
    rest = iter(values)
    return [next(rest) if place else others for place in places]


class HostAsks(HostLink):
    """The Z of one host, asked for from many threads and cached."""

    def __init__(
        self,
        name: str,
        parts: GuestParts,
        widths: Callable[[], Mapping[str, int]],
        cache: ZCache,
    ) -> None:
        super().__init__(name, parts, widths)
        self._cache = cache
        self._by_tags = parts.serving.asks == "tags"
        self._asker: Asker | None = None
        self._width_of_slot: dict[int, int] = {}

    def _begin(self, link: StreamLink, on_end: OnEnd) -> None:
        self._width_of_slot = {}
        self._asker = Asker(
            link,
            TensorSpec(self._max_bytes(MAX_ASK_ROWS), 1, torch.uint8),
            max_rows=MAX_ASK_ROWS,
            numbers_per_row=NUMBERS_PER_ROW[self._parts.serving.asks],
            decode=self._decode,
            on_announce=self._on_announce,
            on_end=on_end,
        )

    def has_z(self, model: str) -> bool:
        """See `HostLink`."""
        return self.is_up and self._slot(model) is not None

    def start(self, model: str, keys: RowKeys, deadline_at: float) -> Result:
        """See `HostLink`."""
        is_known = [self._by_tags or number != NO_ROW for number in keys.numbers]
        width = self._widths().get(model)
        if width is None or not any(is_known):
            return _no_result(len(keys))
        start = self._ask if self._cache.is_off else self._ask_unless_cached
        if all(is_known):
            return start(model, width, keys, deadline_at)
        asked = start(model, width, keys.select(is_known), deadline_at)

        def get() -> ZRows:
            found = asked.get()
            return ZRows(_spread(found.has_z, is_known), found.z_ND)

        return replace(asked, get=get)

    def _ask_unless_cached(
        self, model: str, width: int, keys: RowKeys, deadline_at: float
    ) -> Result:
        cached = self._cached(model, keys)
        is_new = [z_D is None for z_D in cached]
        new = keys if all(is_new) else keys.select(is_new)
        asked = self._ask(model, width, new, deadline_at) if len(new) else _no_result(0)

        def get() -> ZRows:
            found = asked.get()
            if found.z_ND is not None:
                self._store(model, new.select(found.has_z), found.z_ND)
            if len(new) == len(keys):
                return found
            has_z = _spread(found.has_z, is_new, others=True)
            rows = iter(()) if found.z_ND is None else iter(found.z_ND)
            z = [
                next(rows) if z_D is None else z_D
                for z_D, has in zip(cached, has_z, strict=True)
                if has
            ]
            return ZRows(has_z, np.stack(z) if z else None)

        return replace(asked, get=get)

    def _ask(self, model: str, width: int, keys: RowKeys, deadline_at: float) -> Result:
        """Ask for rows that are not cached."""
        asker, slot = self._asker, self._slot(model)
        if asker is None or slot is None or not self.is_up:
            return _no_result(len(keys))
        self._width_of_slot[slot] = width
        numbers = numbers_from_tags(keys.tags) if self._by_tags else keys.numbers
        call = self._start(asker, slot, numbers, deadline_at)
        if call is None:
            return _no_result(len(keys))

        def asks_again() -> bool:
            problem = call.problem
            is_by_row = isinstance(problem, AskRefused) and problem.reason in _BY_ROW
            return is_by_row and 1 < len(keys) <= _MAX_SINGLE_ROWS

        def get() -> ZRows:
            z_ND = self._wait(asker, call)
            if z_ND is not None:
                return ZRows([True] * len(keys), z_ND)
            if not asks_again():
                return _none(len(keys))
            size = len(numbers) // len(keys)
            singles = [numbers[at : at + size] for at in range(0, len(numbers), size)]
            calls = [self._start(asker, slot, one, deadline_at) for one in singles]
            z = [None if one is None else self._wait(asker, one) for one in calls]
            present = [z_1D for z_1D in z if z_1D is not None]
            has_z = [z_1D is not None for z_1D in z]
            return ZRows(has_z, np.concatenate(present) if present else None)

        return Result(get, call, asks_again)

    def _start(
        self, asker: Asker, slot: int, numbers: list[int], deadline_at: float
    ) -> Call | None:
        left_s = deadline_at - time.monotonic()
        if left_s <= 0:
            return None
        self.counts["asks"] += 1
        try:
            return asker.start(slot, numbers, left_s)
        except CeluError:
            self.counts["failed"] += 1
            return None

    def _wait(self, asker: Asker, call: Call) -> Row | None:
        """Z of the rows of an ask, None if there is none by its deadline."""
        try:
            return asker.wait(call).numpy()
        except AskExpired:
            self.counts["expired"] += 1
        except AskRefused:
            self.counts["refused"] += 1
        except CeluError:
            self.counts["failed"] += 1
        return None

    def _decode(self, message: Message, rows: int) -> Tensor:
        """See `Asker`: an answer has the contract's codec and the width of its slot's model."""
        assert message.tensor is not None  # checked with the header
        width = self._width_of_slot.get(message.part)
        if width is None:
            raise ProtocolError(f"{message.described}: expected a slot that was asked for")
        z_BD = self._codec.decode(message.tensor.reshape(-1), rows, width)
        if not is_finite(z_BD):
            raise not_finite(f"Z of {self.name}")
        return z_BD

    def _cached(self, model: str, keys: RowKeys) -> list[Row | None]:
        return [self._cache.get((model, self.name, key)) for key in self._cache_keys(keys)]

    def _store(self, model: str, keys: RowKeys, z_BD: Row) -> None:
        for key, z_D in zip(self._cache_keys(keys), z_BD, strict=True):
            self._cache.put((model, self.name, key), z_D)

    def _cache_keys(self, keys: RowKeys) -> list[bytes]:
        if self._by_tags:
            return keys.tags
        return [number.to_bytes(8, "little") for number in keys.numbers]
