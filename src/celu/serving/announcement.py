"""ANNOUNCE, which parties send while they serve: the models they hold, and those they want.

A host lists the models in its folder, and the slot of each one that it has loaded: an ask names
the slot. The guest lists the models that it wants loaded, the next one and the current one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from celu.errors import ProtocolError
from celu.transport.message import Kind, Message

MAX_WANTED = 2
MAX_HELD = 1000
MAX_SLOT = 2**16
_NAME = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class HostModels:
    """What a host holds, the newest first, and the slots of what it has loaded."""

    held: tuple[str, ...] = ()
    slots: Mapping[str, int] | None = None

    def to_message(self) -> Message:
        """Encode it."""
        body = {"held": list(self.held[:MAX_HELD]), "slots": dict(self.slots or {})}
        return Message(Kind.ANNOUNCE, body=body)

    @staticmethod
    def from_message(message: Message) -> HostModels:
        """Decode a host's ANNOUNCE; raises ProtocolError."""
        body = message.body or {}
        slots = body.get("slots")
        if not isinstance(slots, dict) or len(slots) > MAX_WANTED:
            raise ProtocolError(f"{message.described}: expected up to {MAX_WANTED} slots")
        for slot in slots.values():
            if not isinstance(slot, int) or isinstance(slot, bool) or not 0 <= slot < MAX_SLOT:
                raise ProtocolError(f"{message.described}: expected slots below {MAX_SLOT}")
        if len(set(slots.values())) != len(slots):
            raise ProtocolError(f"{message.described}: expected a slot for each model")
        _names(message, list(slots), MAX_WANTED)
        return HostModels(tuple(_names(message, body.get("held"), MAX_HELD)), slots)


def wanted_message(names: Sequence[str], complete: Sequence[str] = ()) -> Message:
    """The guest's ANNOUNCE: the models that it wants, the next one first.

    `complete` are those of which it has all Z, so that they need not be pushed.
    """
    return Message(Kind.ANNOUNCE, body={"wanted": list(names), "complete": list(complete)})


def read_wanted(message: Message) -> tuple[list[str], list[str]]:
    """The names of a guest's ANNOUNCE, wanted and complete; raises ProtocolError."""
    body = message.body or {}
    wanted = _names(message, body.get("wanted"), MAX_WANTED)
    return wanted, _names(message, body.get("complete"), MAX_HELD)


def _names(message: Message, names: object, max_names: int) -> list[str]:
    is_valid = (
        isinstance(names, list)
        and len(names) <= max_names
        and all(isinstance(name, str) and _NAME.fullmatch(name) for name in names)
    )
    if not is_valid:
        raise ProtocolError(
            f"{message.described}: expected up to {max_names} names of models, got something else"
        )
    assert isinstance(names, list)
    return names
