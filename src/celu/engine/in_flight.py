"""A host's rounds in flight: Z was sent, and dZ has not arrived."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from celu.data.dataset import Batch
from celu.engine.checkpoint_tensors import CheckpointTensors
from celu.transport.message import Kind, Message
from celu.transport.wire import num_bytes


@dataclass
class Sent:
    """The batch and the message of one round."""

    batch: Batch
    message: Message
    # By slice, with its autograd graph, while no other update can come before its own.
    z: list[Tensor] | None
    exact_BD: Tensor  # Z before it was encoded


class InFlight:
    """The rounds in flight, from the oldest to the newest."""

    def __init__(self) -> None:
        self._sent: dict[int, Sent] = {}

    def __len__(self) -> int:
        return len(self._sent)

    def add(self, round_: int, sent: Sent) -> None:
        """Add a round that was sent."""
        self._sent[round_] = sent

    def pop(self, round_: int) -> Sent:
        """Remove a round whose dZ arrived."""
        return self._sent.pop(round_)

    def clear(self) -> None:
        """Discard all rounds."""
        self._sent.clear()

    def drop_graphs(self) -> None:
        """Forget the autograd graphs: the weights have changed."""
        for sent in self._sent.values():
            sent.z = None

    def next_to_send(self, round_: int) -> int:
        """The first round from `round_` on whose activation was not sent."""
        return max(self._sent, default=round_ - 1) + 1

    def rounds(self) -> list[int]:
        """The numbers of the rounds."""
        return list(self._sent)

    def messages(self) -> list[Message]:
        """Activations that were sent and have no derivative yet."""
        return [sent.message for sent in self._sent.values()]

    def num_bytes(self) -> int:
        """The bytes of `messages`."""
        return sum(map(num_bytes, self.messages()))

    def state_dict(self, gather: Callable[[Tensor], Tensor], *, exact: bool) -> dict[str, Tensor]:
        """The tensors for a checkpoint, of all rows; those before encoding too, unless `exact`."""
        tensors = {}
        for round_, sent in self._sent.items():
            if sent.message.tensor is not None:  # the first rank has it
                tensors[f"in_flight.{round_}"] = sent.message.tensor
            if not exact:
                tensors[f"in_flight_exact.{round_}"] = gather(sent.exact_BD)
        return tensors

    def load(
        self,
        batches: Mapping[int, Batch],
        checkpoint: CheckpointTensors,
        decode: Callable[[Message], Tensor],
        shape: tuple[int, int],
        own_rows: slice,
        *,
        exact: bool,
    ) -> None:
        """Add rounds from a checkpoint, without their autograd graphs, with this rank's rows.

        They need none: the weights have changed since, so the derivatives are applied to a
        recomputed Z. `decode` checks a message, and returns its Z of all rows.
        """
        for round_, batch in batches.items():
            payload = checkpoint.pop_optional(f"in_flight.{round_}")
            message = Message(Kind.ACTIVATION, round_, tensor=payload, row_digest=batch.row_digest)
            exact_BD = decode(message)
            if not exact:
                exact_BD = checkpoint.pop(f"in_flight_exact.{round_}", shape)
            exact_BD = exact_BD[own_rows].clone() if len(batch.tags) < len(exact_BD) else exact_BD
            self.add(round_, Sent(batch, message, None, exact_BD))
