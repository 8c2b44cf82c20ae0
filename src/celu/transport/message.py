"""What parties may say to each other, and what they may expect: a closed set of messages.

A message carries either one tensor or one small JSON object, never both. This module knows nothing
of carriers; `wire` turns a message into bytes.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from celu.errors import PeerFailed, ProtocolError, ShapeError


class Kind(enum.IntEnum):
    """The kinds of message; the values are part of the wire format."""

    HELLO = 1  # who I am, and the contract I hold
    READY = 2  # yours is the same: let us begin; in an alignment also: still at work
    ACTIVATION = 3  # Z of a training batch, host to guest
    DERIVATIVE = 4  # dZ of a training batch, guest to host
    TEST_ACTIVATION = 5  # Z of held-out rows, host to guest
    VERDICT = 6  # after an evaluation, guest to host: go on, or stop
    FAILURE = 7  # I stop, and this is what I may say of the reason
    GOODBYE = 8  # all done; nothing follows
    BLINDED = 9  # of an alignment: the sender's ids as group elements under its key
    REBLINDED = 10  # ... the receiver's elements, in its order, under the sender's key as well
    KEPT = 11  # ... which of the rows common with this host all hosts have, guest to host
    ALIGNED = 12  # ... my commitment to the rows that we found
    PROBE = 13  # of an examination of the link: bytes that say nothing
    FINDINGS = 14  # ... what is to be measured next, and what was measured
    REPORT = 15  # how a host spent its time, host to guest, where the guest chooses by it
    GREETING = 16  # of a connection: whose it is, and how many messages that party has
    HEARTBEAT = 17  # ... still here; and how many messages I have now


TRAINING = frozenset({Kind.ACTIVATION, Kind.DERIVATIVE})
ALIGNING = frozenset({Kind.BLINDED, Kind.REBLINDED, Kind.KEPT})
TENSORS = TRAINING | ALIGNING | {Kind.TEST_ACTIVATION, Kind.PROBE}
ROW_DIGEST_BYTES = 16
MOST_SPANS = 64  # of the latest messages, of one direction


@dataclass(frozen=True)
class Message:
    """One message: `round` and `part` say which; `part` counts the pieces of an evaluation.

    `row_digest` is the digest of the rows that a tensor of training or evaluation belongs to. `total`
    is the sum of what was encoded on an accelerator: looked at when the bytes leave it.
    """

    kind: Kind
    round: int = 0
    part: int = 0
    tensor: Tensor | None = None
    body: dict[str, Any] | None = None
    row_digest: bytes = bytes(ROW_DIGEST_BYTES)
    total: Tensor | None = None


@dataclass(frozen=True)
class TensorSpec:
    """What the contract allows a kind of tensor to be."""

    max_rows: int
    width: int
    dtype: torch.dtype = torch.float32

    @property
    def max_bytes(self) -> int:
        """The most bytes of such a tensor."""
        return self.max_rows * self.width * self.dtype.itemsize

    def validate(self, kind: Kind, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        """Raise ShapeError unless a tensor of this claim is within the contract."""
        rows, width = (shape[0], shape[1]) if len(shape) == 2 else (0, 0)
        if dtype != self.dtype or width != self.width or not 0 < rows <= self.max_rows:
            raise ShapeError(
                f"{kind.name}: expected {self.dtype} of at most [{self.max_rows}, {self.width}] "
                f"as the contract says, got {dtype} of {list(shape)}"
            )


@dataclass
class Traffic:
    """Bytes and messages of one direction, training apart from evaluation and from the rest."""

    training_bytes: int = 0
    evaluation_bytes: int = 0
    alignment_bytes: int = 0
    control_bytes: int = 0
    messages: int = 0
    # Of what was received: from the first byte to the last of each message. Not a count.
    training_s: float = field(default=0.0, compare=False)
    # When the latest tensors were on the wire, each from its first byte to its last, by the link's
    # clock. The link's threads append, and one reader takes.
    spans: deque[tuple[float, float]] = field(
        default_factory=lambda: deque(maxlen=MOST_SPANS), compare=False, repr=False
    )

    def count(self, kind: Kind, num_bytes: int, seconds: float = 0.0) -> None:
        """Add one message."""
        self.messages += 1
        if kind in TRAINING:
            self.training_bytes += num_bytes
            self.training_s += seconds
        elif kind is Kind.TEST_ACTIVATION:
            self.evaluation_bytes += num_bytes
        elif kind in ALIGNING:
            self.alignment_bytes += num_bytes
        else:
            self.control_bytes += num_bytes

    def take_spans(self) -> list[tuple[float, float]]:
        """The spans that were added since this was last asked."""
        return [self.spans.popleft() for _ in range(len(self.spans))]

    @property
    def total_bytes(self) -> int:
        """All bytes of this direction."""
        return (
            self.training_bytes + self.evaluation_bytes + self.alignment_bytes + self.control_bytes
        )


@dataclass
class TrafficBothWays:
    """What one link carried, as this party counts it."""

    sent: Traffic = field(default_factory=Traffic)
    received: Traffic = field(default_factory=Traffic)


def expect(message: Message, kind: Kind, round_: int = 0, part: int = 0) -> Message:
    """The message, if it is the one that is due; ProtocolError otherwise."""
    got = (message.kind, message.round, message.part)
    if got != (kind, round_, part):
        raise ProtocolError(
            f"expected {kind.name} of round {round_} part {part}, "
            f"got {message.kind.name} of round {message.round} part {message.part}"
        )
    return message


def failure_of(peer: str, message: Message) -> PeerFailed:
    """The error that a FAILURE stands for; its reason is the peer's, so cut and made printable."""
    return PeerFailed(f"{peer} stopped: {shown(str((message.body or {}).get('reason')))}")


def shown(text: str) -> str:
    """What a peer says, fit for a terminal: of bounded length, and nothing but letters."""
    return "".join(c if c.isprintable() else "?" for c in text[:1000])


def rows_of(message: Message, rows: int) -> Tensor:
    """The tensor of a message that is due with this many rows; ShapeError otherwise."""
    if message.tensor is None or len(message.tensor) != rows:
        got = "none" if message.tensor is None else len(message.tensor)
        raise ShapeError(
            f"{message.kind.name} of round {message.round}: expected {rows} rows, got {got}"
        )
    return message.tensor
