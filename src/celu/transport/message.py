"""The messages between parties: a closed set of kinds, and the checks of what may arrive.

A message carries either one tensor or one small JSON object, never both. This module knows nothing
of carriers; `wire` encodes messages as bytes.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from celu.device_copy import Event
from celu.errors import PeerFailed, ProtocolError, ShapeError
from celu.text import printable


class Kind(enum.IntEnum):
    """The kinds of message; the values are part of the wire format."""

    __hash__ = int.__hash__  # that of an enumeration is several times slower

    HELLO = 1  # the sender's name and contract
    READY = 2  # the contracts match, start; during an alignment also: still computing
    ACTIVATION = 3  # Z of a training batch, host to guest
    DERIVATIVE = 4  # dZ of a training batch, guest to host
    TEST_ACTIVATION = 5  # Z of held-out rows, host to guest
    VERDICT = 6  # after an evaluation, guest to host: continue or stop
    FAILURE = 7  # the sender stops; the body has the reason, as far as a peer may know it
    GOODBYE = 8  # the session is complete; nothing follows
    BLINDED = 9  # alignment: the sender's ids, blinded with its key
    REBLINDED = 10  # alignment: the receiver's ids, in its order, blinded with the sender's key too
    KEPT = 11  # alignment, guest to host: which of their common rows all other hosts have too
    ALIGNED = 12  # alignment: the sender's commitment to the rows that were found
    PROBE = 13  # diagnosis of the link: bytes without meaning
    FINDINGS = 14  # diagnosis of the link: what to measure next, and the measurements
    REPORT = 15  # how a host spent its time, host to guest, for a guest that tunes the run
    GREETING = 16  # opens a connection: the sender's token, and how many messages it has received
    HEARTBEAT = 17  # the sender is alive; acknowledges messages as every header does
    MODEL = 18  # the end of training: digests of the weights, which name the model
    SCORING_ACTIVATION = 19  # Z of rows to predict, host to guest; the round counts the chunks
    ASK = 20  # serving, guest to host: the rows whose Z is needed now; `round` is its number
    ANSWER = 21  # serving, host to guest: Z of those rows; `round` is the ask's number
    REFUSAL = 22  # serving, host to guest: why there is no answer; `round` is the ask's number
    ANNOUNCE = 23  # serving: the models that a host holds, and those that the guest wants


TRAINING = frozenset({Kind.ACTIVATION, Kind.DERIVATIVE})
ALIGNING = frozenset({Kind.BLINDED, Kind.REBLINDED, Kind.KEPT})
SERVING = frozenset({Kind.SCORING_ACTIVATION, Kind.ASK, Kind.ANSWER})
ASKING = frozenset({Kind.ASK, Kind.ANSWER, Kind.REFUSAL})
TENSORS = TRAINING | ALIGNING | SERVING | {Kind.TEST_ACTIVATION, Kind.PROBE}
ROW_DIGEST_BYTES = 16
MAX_CURVATURE = 1e12  # far above any useful one, and small enough not to overflow
MAX_SPANS = 64  # latest tensors of one direction whose transfer times are recorded


@dataclass(frozen=True)
class Message:
    """One message, identified by kind, round and part; `part` counts the slices of an evaluation.

    `row_digest` is the digest of the rows that a tensor of training or evaluation belongs to.
    `curvature` is the loss's, for a host that corrects stale derivatives (see `celu.Loss`).
    `total` is the sum of a tensor before a GPU encoded it: it is checked for NaN and Inf before the
    tensor is sent. `copied` says when the tensor has arrived from a GPU, if it came from one.
    """

    kind: Kind
    round: int = 0
    part: int = 0
    tensor: Tensor | None = None
    body: dict[str, Any] | None = None
    row_digest: bytes = bytes(ROW_DIGEST_BYTES)
    curvature: float = 1.0
    total: Tensor | None = None
    copied: Event | None = field(default=None, compare=False)
    sender: str = field(default="", compare=False)  # set by the link that received it

    @property
    def described(self) -> str:
        """Its kind, round and sender, for errors."""
        number = f"{self.kind.name} of {counted(self.kind)} {self.round}"
        return number + (self.sender and f" from {self.sender}")


@dataclass(frozen=True)
class TensorSpec:
    """The shapes and the dtype that the contract allows for one kind of tensor."""

    max_rows: int
    width: int
    dtype: torch.dtype = torch.float32

    @property
    def max_bytes(self) -> int:
        """The size of the largest tensor that is allowed."""
        return self.max_rows * self.width * self.dtype.itemsize

    def validate(self, kind: Kind, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        """Raise ShapeError unless the contract allows a tensor of this dtype and shape."""
        rows, width = (shape[0], shape[1]) if len(shape) == 2 else (0, 0)
        if dtype != self.dtype or width != self.width or not 0 < rows <= self.max_rows:
            raise ShapeError(
                f"{kind.name}: expected {self.dtype} of at most [{self.max_rows}, {self.width}], "
                f"got {dtype} of {list(shape)}"
            )


@dataclass
class Traffic:
    """Byte and message counts of one direction of a link, by what the bytes were for."""

    training_bytes: int = 0
    evaluation_bytes: int = 0
    alignment_bytes: int = 0
    scoring_bytes: int = 0
    control_bytes: int = 0
    messages: int = 0
    # Sum over received training messages of the time from first byte to last.
    training_transfer_s: float = field(default=0.0, compare=False)
    # (first byte, last byte) of the latest tensors, by the link's clock. The link's threads append
    # and one reader drains.
    spans: deque[tuple[float, float]] = field(
        default_factory=lambda: deque(maxlen=MAX_SPANS), compare=False, repr=False
    )

    def count(self, kind: Kind, num_bytes: int, seconds: float = 0.0) -> None:
        """Count one message of a kind."""
        self.messages += 1
        if kind in TRAINING:
            self.training_bytes += num_bytes
            self.training_transfer_s += seconds
        elif kind is Kind.TEST_ACTIVATION:
            self.evaluation_bytes += num_bytes
        elif kind in ALIGNING:
            self.alignment_bytes += num_bytes
        elif kind is Kind.SCORING_ACTIVATION:
            self.scoring_bytes += num_bytes
        else:
            self.control_bytes += num_bytes

    def drain_spans(self) -> list[tuple[float, float]]:
        """Return and remove the recorded spans."""
        return [self.spans.popleft() for _ in range(len(self.spans))]

    @property
    def total_bytes(self) -> int:
        """All bytes of this direction."""
        return (
            self.training_bytes
            + self.evaluation_bytes
            + self.alignment_bytes
            + self.scoring_bytes
            + self.control_bytes
        )


@dataclass
class TrafficBothWays:
    """The traffic of one link, as this party counts it."""

    sent: Traffic = field(default_factory=Traffic)
    received: Traffic = field(default_factory=Traffic)


def counted(kind: Kind) -> str:
    """What the field `round` of a kind of message counts, for errors."""
    if kind is Kind.SCORING_ACTIVATION:
        return "chunk"
    return "ask" if kind in ASKING else "round"


def expect(message: Message, kind: Kind, round_: int = 0, part: int = 0) -> Message:
    """Return the message; raise ProtocolError unless it has this kind, round and part."""
    got = (message.kind, message.round, message.part)
    if got != (kind, round_, part):
        raise ProtocolError(
            f"expected {kind.name} of {counted(kind)} {round_} part {part}, got "
            f"{message.kind.name} of {counted(message.kind)} {message.round} part {message.part}"
            + (message.sender and f" from {message.sender}")
        )
    return message


def peer_failure(peer: str, message: Message) -> PeerFailed:
    """The error for a FAILURE message. Its reason is the peer's text, so it is made printable."""
    return PeerFailed(f"{peer} stopped: {printable(str((message.body or {}).get('reason')))}")


def require_rows(message: Message, rows: int) -> Tensor:
    """Return the message's tensor; raise ShapeError unless it has this many rows."""
    if message.tensor is None or len(message.tensor) != rows:
        got = "none" if message.tensor is None else len(message.tensor)
        raise ShapeError(f"{message.described}: expected {rows} rows, got {got}")
    return message.tensor
