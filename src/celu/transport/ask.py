"""Asks over a link, for serving: a guest asks a host for some rows, the host answers or refuses.

An ASK is an int64 matrix of one column: the slot of a model, the microseconds left, then the row
numbers. Its number is the message's `round`, and the ANSWER or REFUSAL has the same; the `part` of
an ANSWER is the slot. This module
has the format and the host's side; `asker` has the guest's.

A link delivers each message once, also after an outage. So a host may receive an ask whose callers
no longer wait. It still answers each ask, at least with a refusal, and the guest has a few asks in
flight at most: an outage cannot pile them up.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from celu.errors import AskRefused, CeluError, PeerLost, ProtocolError
from celu.transport.message import Kind, Message, TensorSpec
from celu.transport.stream import Handler, StreamLink

MAX_SLOT = 2**16
MAX_ROW = 2**48
MAX_ASK_S = 3600.0
_FIRST_ROW = 2  # after the slot and the time left


class Refusal(enum.StrEnum):
    """Why a host does not answer an ask; the values are part of the wire format."""

    EXPIRED = "expired"  # the time that the ask had left has passed
    UNKNOWN_MODEL = "unknown-model"  # no model is in this slot
    UNKNOWN_ROW = "unknown-row"  # the host does not hold one of the rows
    LIMIT = "limit"  # the guest has asked for as many rows as the host allows
    FAILED = "failed"  # an error that only the host's operator sees


@dataclass(frozen=True)
class Ask:
    """The rows that a guest asks for, and when (`time.monotonic`) it stops waiting for them.

    A host counts the time left from when it reads the ask, because the parties' clocks differ.
    """

    number: int
    slot: int
    rows: list[int]
    deadline: float

    def to_message(self) -> Message:
        """Encode it; the time left is at least a microsecond."""
        microseconds = max(1, int(1e6 * (self.deadline - time.monotonic())))
        values = np.array([self.slot, microseconds, *self.rows], dtype=np.int64)
        return Message(Kind.ASK, self.number, tensor=torch.from_numpy(values.reshape(-1, 1)))

    @staticmethod
    def from_message(message: Message) -> Ask:
        """Decode an ASK; raises ProtocolError for values out of range."""
        assert message.tensor is not None  # checked with the header
        values = message.tensor.numpy().reshape(-1).tolist()
        if len(values) <= _FIRST_ROW:
            raise ProtocolError(f"{message.described}: expected at least one row, got none")
        slot, microseconds, *rows = values
        if not 0 <= slot < MAX_SLOT or not 0 < microseconds <= MAX_ASK_S * 1e6:
            raise ProtocolError(
                f"{message.described}: expected a slot below {MAX_SLOT} and at most "
                f"{MAX_ASK_S:g} s, got slot {slot} and {microseconds} microseconds"
            )
        if min(rows) < 0 or max(rows) >= MAX_ROW:
            raise ProtocolError(f"{message.described}: expected numbers from 0 to {MAX_ROW - 1}")
        return Ask(message.round, slot, rows, time.monotonic() + microseconds / 1e6)


def ask_spec(max_rows: int) -> TensorSpec:
    """The largest ASK, for `link.allow`."""
    return TensorSpec(_FIRST_ROW + max_rows, 1, torch.int64)


def serve_asks(
    link: StreamLink,
    answer: Callable[[Ask], Tensor],
    *,
    max_rows: int,
    on_error: Callable[[Exception], None],
    on_end: Callable[[CeluError], None],
    handlers: Mapping[Kind, Handler] = MappingProxyType({}),
) -> None:
    """Answer the asks of a guest from now on, on the link's receiving thread.

    `answer` returns the tensor of the ANSWER; it raises AskRefused to refuse. After another error
    of it, `on_error` is called and the guest only learns that its ask failed. `on_end` is called
    once when the link is over: with PeerLost after the guest's GOODBYE, else with the link's error.
    An ask that violates the format ends the link. `handlers` are for messages of other kinds.
    """

    def reply(message: Message) -> None:
        ask = Ask.from_message(message)
        try:
            tensor = answer(ask)
            if time.monotonic() < ask.deadline:
                link.post(Message(Kind.ANSWER, ask.number, ask.slot, tensor=tensor))
                return
            reason = Refusal.EXPIRED
        except PeerLost:
            raise  # the guest asks without receiving answers
        except AskRefused as error:
            reason = Refusal(error.reason)
        except Exception as error:
            on_error(error)
            reason = Refusal.FAILED
        link.post(Message(Kind.REFUSAL, ask.number, body={"reason": reason.value}))

    link.allow({Kind.ASK: ask_spec(max_rows)})
    link.handle(only({**handlers, Kind.ASK: reply}, link.peer), on_end)


def only(handlers: Mapping[Kind, Handler], peer: str) -> dict[Kind, Handler]:
    """Handlers for all kinds: GOODBYE ends the link, and other kinds violate the protocol."""

    def refuse(message: Message) -> None:
        raise ProtocolError(f"{message.kind.name}: not expected while serving")

    def leave(message: Message) -> None:
        raise PeerLost(f"{peer} stopped serving")

    return {**dict.fromkeys(Kind, refuse), Kind.GOODBYE: leave, **handlers}
