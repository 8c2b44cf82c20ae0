"""A host's side of serving: answers the guest's asks with Z, within limits.

Z is rounded to nearest, so asking twice for a row reveals no more than asking once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from celu.codecs.registry import find_codec
from celu.config.serving import Serving
from celu.errors import AskRefused, CeluError, DataError
from celu.serving.announcement import MAX_SLOT, HostModels, read_wanted
from celu.serving.ask_rows import NUMBERS_PER_ROW, tags_from_numbers
from celu.serving.few_rows import to_arrays
from celu.serving.handshake import exchange_hellos
from celu.serving.lookup import Lookup, look_up
from celu.serving.model_shelf import ModelShelf, ServedModel
from celu.serving.pushing import push
from celu.serving.quota import Quota
from celu.serving.row_index import NO_ROW, Arrays, ServedRows
from celu.serving.rows import StoreRows
from celu.transport.ask import Ask, Refusal, serve_asks
from celu.transport.link import run_blocking
from celu.transport.message import Kind, Message
from celu.transport.stream import StreamLink
from celu.transport.wire import is_finite, not_finite

SCAN_S = 1.0  # between two looks into the folder of models
MAX_ASK_ROWS = 4096


@dataclass
class HostSession:
    """Answers one guest, session after session. `say` is called at each change of state."""

    name: str
    serving: Serving
    shelf: ModelShelf
    rows: ServedRows
    quota: Quota
    lookup: Lookup | None = None
    say: Callable[[str], None] = lambda text: None
    is_stopping: Callable[[], bool] = lambda: False
    on_connected: Callable[[str], None] = lambda peer: None
    _slots: dict[str, int] = field(default_factory=dict)
    _next_slot: int = 0
    _wanted: list[str] = field(default_factory=list)
    _complete: set[str] = field(default_factory=set)
    _wake: threading.Event = field(default_factory=threading.Event)
    _ids: Any = None
    _refused: str = ""

    def __post_init__(self) -> None:
        self._codec = find_codec(self.serving.codec, "codec")
        if self.lookup is not None:
            self._ids = self.rows.ids()

    def run(self, link: StreamLink) -> None:
        """One session, until the link is over; raises the error that ended it."""
        exchange_hellos(self.name, link, self.serving, self.rows)
        ended: list[CeluError] = []

        def on_end(error: CeluError) -> None:
            ended.append(error)
            self._wake.set()

        self._wanted, self._complete = [], set()
        serve_asks(
            link,
            self.answer,
            max_rows=MAX_ASK_ROWS * self._numbers_per_row,
            on_error=self._on_error,
            on_end=on_end,
            handlers={Kind.ANNOUNCE: self._on_wanted},
        )
        self.on_connected(link.peer)
        self.say(f"{link.peer} is connected")
        announced: HostModels | None = None
        while not ended and not self.is_stopping():
            self._load_wanted()
            models = HostModels(tuple(self.shelf.scan()), dict(self._slots))
            if models != announced:
                announced = models
                run_blocking(link.send(models.to_message()))
            if self.serving.mode == "pushed":
                self._push_wanted(link)
            self._wake.wait(SCAN_S)
            self._wake.clear()
        if ended:
            raise ended[0]

    def answer(self, ask: Ask) -> Tensor:
        """Z of the rows of an ask, encoded; raises AskRefused."""
        if self.serving.mode == "pushed":
            raise AskRefused("Z was pushed", reason=Refusal.UNKNOWN_ROW)
        served = self._served(ask.slot)
        rows, counted = self._find_rows(ask.rows)
        limit = self.quota.spend(counted)
        if limit is not None:
            if self._refused != limit:
                self.say(f"the guest reached serve.{limit}; its asks are refused")
            self._refused = limit
            raise AskRefused(f"beyond {limit}", reason=Refusal.LIMIT)
        if self._refused:
            self.say(f"the guest is within serve.{self._refused} again")
            self._refused = ""
        inputs = self._inputs(served, rows)
        with np.errstate(all="ignore"):
            z_BD = torch.from_numpy(served.few_rows.activations(inputs))
        if not is_finite(z_BD):
            raise not_finite("Z of an ask")
        return self._codec.encode(z_BD, None).reshape(-1, 1)

    @property
    def _numbers_per_row(self) -> int:
        return NUMBERS_PER_ROW[self.serving.asks]

    def _served(self, slot: int) -> ServedModel:
        for name, its_slot in self._slots.items():
            served = self.shelf.loaded(name) if its_slot == slot else None
            if served is not None:
                return served
        raise AskRefused("no model has this slot", reason=Refusal.UNKNOWN_MODEL)

    def _find_rows(self, asked: list[int]) -> tuple[list[int], list[int]]:
        """The store's rows of an ask, and the numbers that the quota counts."""
        if self.serving.asks == "tags":
            rows = self.rows.find(tags_from_numbers(asked))
            if NO_ROW in rows:
                raise AskRefused("a row is not in the store", reason=Refusal.UNKNOWN_ROW)
            return rows, rows
        if max(asked) >= self.rows.num_aligned:
            raise AskRefused("a row is not in the alignment", reason=Refusal.UNKNOWN_ROW)
        return self.rows.rows(asked), asked

    def _inputs(self, served: ServedModel, rows: list[int]) -> Arrays:
        if self.lookup is None:
            inputs = served.rows.take(rows)
            assert inputs is not None  # a host has features
            return inputs
        assert served.encoder is not None  # the shelf only has models that were trained on a store
        ids = [self._ids[row].as_py() for row in rows]
        try:
            return to_arrays(look_up(self.lookup, ids, served.encoder))
        except DataError as error:
            self._on_error(error)
            raise AskRefused("a row has no features now", reason=Refusal.UNKNOWN_ROW) from error

    def _on_error(self, error: Exception) -> None:
        self.say(f"an ask failed: {error}")

    def _on_wanted(self, message: Message) -> None:
        self._wanted, complete = read_wanted(message)
        self._complete |= set(complete)
        self._wake.set()

    def _push_wanted(self, link: StreamLink) -> None:
        """Push Z of the models that the guest wants and does not have, each once a session."""
        for name, slot in self._slots.items():
            served = self.shelf.loaded(name)
            if served is None or name in self._complete:
                continue
            self._complete.add(name)
            rows = StoreRows(
                self.rows.store, served.model, self.rows.alignment, self.serving.chunk_rows
            )
            push(link, served.model, slot, rows, self._codec)
            self.say(f"Z of {self.rows.num_aligned:,} rows is pushed for model {name}")

    def _load_wanted(self) -> None:
        """Load what the guest wants, and unload the rest."""
        held, wanted = self.shelf.scan(), list(self._wanted)
        if not wanted:
            return
        for name in wanted:
            if name in held and name not in self._slots:
                try:
                    self.shelf.load(name)
                except CeluError as error:
                    self.say(f"model {name} cannot be loaded: {error}")
                    continue
                self._slots = self._slots | {name: self._next_slot}
                self._next_slot = (self._next_slot + 1) % MAX_SLOT
                self.say(f"model {name} is loaded")
        for name in [name for name in self._slots if name not in wanted]:
            self._slots = {n: slot for n, slot in self._slots.items() if n != name}
        self.shelf.unload_except(self._slots)
