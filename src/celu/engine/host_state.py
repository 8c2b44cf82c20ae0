"""What a host has besides rows, and how it is saved, loaded and rolled back.

The rounds in flight are a part of it. `host_trainer` computes with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from celu.audit.recorder import RECORDED, load_recorded
from celu.config.job import Job
from celu.engine.checkpoint_tensors import CheckpointTensors
from celu.engine.coding import Coding
from celu.engine.graphs import NO_GRAPHS, GraphOptions
from celu.engine.in_flight import InFlight
from celu.engine.noise import MessageNoise
from celu.engine.spans import Spans
from celu.engine.state import TrainerState
from celu.engine.state_dict import (
    TrainerMetadata,
    from_state_dict,
    restore_counters,
    to_state_dict,
)
from celu.engine.trainer import Trainer
from celu.errors import CheckpointError, ProtocolError
from celu.models.clipped import Clipped
from celu.party import Host
from celu.ranks.slices import Slices
from celu.transport.message import Kind, Message


class HostState(Trainer):
    """One host's bottom model, optimizer, workset and rounds in flight."""

    def __init__(
        self,
        name: str,
        host: Host,
        job: Job,
        spans: Spans | None,
        graphs: GraphOptions,
        ranks: Slices,
    ) -> None:
        graphs = graphs if ranks.size == 1 else NO_GRAPHS
        super().__init__(name, host, {"bottom": host.bottom}, job, "host", graphs, ranks)
        self._bottom = self._model = host.bottom
        if job.privacy.z_noise is not None:
            self._model = Clipped(host.bottom, job.privacy.z_noise.clip)
        self._noise = MessageNoise.of_host(job, host)
        self._width = job.hosts[name].z_width
        self._coding = Coding(job, name, spans=spans)
        self._in_flight = InFlight()

    def next_to_send(self, round_: int) -> int:
        """The first round from `round_` on whose activation was not sent."""
        return self._in_flight.next_to_send(round_)

    def in_flight(self) -> list[Message]:
        """Activations that were sent and have no derivative yet."""
        return self._in_flight.messages()

    def repeated_bytes(self) -> dict[str, int]:
        """The bytes of `in_flight`, which a resumed run sends again."""
        return {"bytes_sent": self._in_flight.num_bytes()}

    def buffers(self) -> dict[str, Tensor]:
        """A copy of what a forward pass changes: the model's buffers, such as running means."""
        return {f"bottom.{name}": b.clone() for name, b in self._bottom.named_buffers()}

    def discard_in_flight(self, buffers: Mapping[str, Tensor]) -> None:
        """Discard the rounds in flight, and restore the model's buffers."""
        self._in_flight.clear()
        self._write_buffers(buffers)

    def _write_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        for name, buffer in self._bottom.named_buffers():
            buffer.copy_(buffers[f"bottom.{name}"])

    def roll_back(self, state: TrainerState) -> None:
        """Return to an earlier state; rounds in flight stay, as sent."""
        super().roll_back(state)
        self._in_flight.drop_graphs()

    def state_dict(self) -> tuple[TrainerMetadata, dict[str, Tensor]]:
        """The contents of a checkpoint between two rounds, with the activations in flight."""
        metadata, tensors = to_state_dict(self.state(), self.workset, self._ranks, self._batch_size)
        tensors |= self._in_flight.state_dict(self._gather, exact=self._sends_exact_z)
        recorded = {} if self.recorder is None else self.recorder.state_dict()
        added = {"in_flight": self._in_flight.rounds(), "noise_key": self._noise.fingerprint}
        return metadata.model_copy(update=added), tensors | recorded

    @property
    def _sends_exact_z(self) -> bool:
        return self._coding.is_exact(Kind.ACTIVATION) and self._noise.noise is None

    def load_state_dict(self, metadata: TrainerMetadata, tensors: Mapping[str, Tensor]) -> None:
        """Load a checkpoint, whose tuning is applied; raises CheckpointError if it does not fit."""
        self._ranks.at_first(  # which alone adds noise
            lambda: self._noise.check_same_key(metadata.noise_key), otherwise=None
        )
        checkpoint = CheckpointTensors(tensors, self._device)
        shape = (self._batch_size, self._width)
        own_rows = self._ranks.own_rows(self._batch_size)
        state = from_state_dict(
            metadata, checkpoint, self._modules, self._optimizer, self.loader, [shape], own_rows
        )
        self._in_flight.load(
            {round_: self.loader.batch(round_) for round_ in metadata.in_flight},
            checkpoint,
            self._decode,
            shape,
            own_rows,
            exact=self._sends_exact_z,
        )
        restore_counters(metadata, checkpoint, self.workset)
        load_recorded(self.recorder, checkpoint.pop_prefix(RECORDED))
        checkpoint.check_empty()
        self.roll_back(state)

    def _decode(self, message: Message) -> Tensor:
        try:
            if message.tensor is not None:
                spec = self._coding.specs(Kind.ACTIVATION)[Kind.ACTIVATION]
                spec.validate(Kind.ACTIVATION, message.tensor.dtype, tuple(message.tensor.shape))
            return self._coding.unpack(message, self._batch_size).to(self._device)
        except ProtocolError as error:
            raise CheckpointError(f"in_flight.{message.round}: {error}") from error

    def _gather(self, tensor: Tensor) -> Tensor:
        return self._ranks.gather(tensor, self._batch_size)
