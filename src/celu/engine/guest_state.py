"""What a guest has besides rows and messages, and how it is saved, loaded and rolled back.

With a twin, the twin is a part of it. `guest_trainer` computes with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from celu.audit.recorder import RECORDED, load_recorded
from celu.config.job import Job
from celu.engine.checkpoint_tensors import CheckpointTensors
from celu.engine.evaluation import Evaluator
from celu.engine.graphs import NO_GRAPHS, GraphOptions
from celu.engine.guest_loss import GuestLoss
from celu.engine.guest_model import GuestModel
from celu.engine.guest_scoring import HELD_OUT, GuestScoring
from celu.engine.noise import MessageNoise
from celu.engine.row_weights import RowWeights
from celu.engine.state import TrainerState
from celu.engine.state_dict import (
    OPTIMIZER,
    TrainerMetadata,
    from_state_dict,
    restore_counters,
    to_state_dict,
)
from celu.engine.trainer import Trainer
from celu.engine.twin import PREFIX, Twin
from celu.errors import CheckpointError
from celu.label_map import LabelMap
from celu.party import Guest
from celu.ranks.slices import Slices


class GuestState(Trainer):
    """The guest's models, loss, optimizer, workset, twin and scores of held-out rows."""

    def __init__(
        self, name: str, guest: Guest, job: Job, graphs: GraphOptions, ranks: Slices
    ) -> None:
        graphs = graphs if ranks.size == 1 else NO_GRAPHS
        self._model = GuestModel(name, guest.bottom, guest.top, list(job.hosts), ranks)
        super().__init__(name, guest, self._model.modules, job, "guest", graphs, ranks)
        self._row_weights = RowWeights(guest.train, guest.class_weights, self._device)
        self._losses = GuestLoss(name, guest, self._row_weights, ranks)
        self.evaluator = Evaluator(guest.loss, job.evaluation, guest.metrics)
        self.twin: Twin | None = None
        if job.privacy.label_epsilon is not None and job.hosts:
            self.twin = Twin(self._model, guest, job, self._device, graphs, ranks)
        self._scoring = GuestScoring(
            guest, self._model, self._losses, self.evaluator, self.twin, ranks
        )
        self._noise = MessageNoise.of_guest(job, guest)

    @property
    def label_map(self) -> LabelMap:
        """What labels become for the loss."""
        return self._losses.label_map

    def public_digest(self) -> str:
        """The digest of weights that hosts receive: with a twin, of those of the twin."""
        return self.digest() if self.twin is None else self.twin.digest()

    def state(self) -> TrainerState:
        """A copy of everything that training changes."""
        state = super().state()
        return state if self.twin is None else replace(state, twin=self.twin.state())

    def roll_back(self, state: TrainerState) -> None:
        """Return to an earlier state; no round may be in flight."""
        super().roll_back(state)
        if self.twin is not None and state.twin is not None:
            self.twin.roll_back(state.twin)

    def state_dict(self) -> tuple[TrainerMetadata, dict[str, Tensor]]:
        """The contents of a checkpoint between two rounds."""
        state = self.state()
        metadata, tensors = to_state_dict(state, self.workset, self._ranks, self._batch_size)
        label_map = None if self.label_map.leaves_labels else self.label_map
        added: dict[str, Any] = {
            "label_map": label_map,
            "row_weights": self._row_weights.digest(),
            "noise_key": self._noise.fingerprint,
        }
        if self.twin is not None and state.twin is not None:
            added["twin"], own = self.twin.state_dict(state.twin)
            tensors |= own
        recorded = {} if self.recorder is None else self.recorder.state_dict()
        return metadata.model_copy(update=added), tensors | recorded

    def _sharded_rows(self) -> dict[str, int]:
        twin = {} if self.twin is None else self.twin.sharded_rows()
        return super()._sharded_rows() | twin

    def final_tensors(self) -> dict[str, Tensor]:
        """What the last checkpoint of a run has besides: the scores of the test rows.

        With validation rows there are none yet, and a run that resumes scores the test rows again.
        """
        return self._scoring.final_tensors()

    def parameter_names(self) -> set[str]:
        """The names of the trained parameters in `state_dict`; with a twin, those of the twin.

        NaN in one of them ends the run, which hosts see.
        """
        return super().parameter_names() if self.twin is None else self.twin.parameter_names()

    @property
    def optimizer_prefix(self) -> str:
        """How the names of the optimizer's tensors in `state_dict` start; likewise."""
        return super().optimizer_prefix if self.twin is None else f"{PREFIX}{OPTIMIZER}"

    def close(self) -> None:
        """Stop reading rows."""
        super().close()
        if self.twin is not None:
            self.twin.close()

    def load_state_dict(self, metadata: TrainerMetadata, tensors: Mapping[str, Tensor]) -> None:
        """Load a checkpoint; raises CheckpointError if it does not fit."""
        if metadata.row_weights != self._row_weights.digest():
            raise CheckpointError(
                "the weights of rows or classes have changed since the run started; restore them, "
                "or start a new run with another --out at all parties"
            )
        self._ranks.at_first(  # which alone adds noise
            lambda: self._noise.check_same_key(metadata.noise_key), otherwise=None
        )
        checkpoint = CheckpointTensors(tensors, self._device)
        shapes = [(self._batch_size, terms.z_width) for terms in self._job.hosts.values()]
        own_rows = self._ranks.own_rows(self._batch_size)
        state = from_state_dict(
            metadata, checkpoint, self._modules, self._optimizer, self.loader, shapes, own_rows
        )
        restore_counters(metadata, checkpoint, self.workset)
        if self.twin is not None and metadata.twin is not None:
            state = replace(state, twin=self.twin.from_state_dict(metadata.twin, checkpoint))
        load_recorded(self.recorder, checkpoint.pop_prefix(RECORDED))
        scores = checkpoint.pop_optional(HELD_OUT)
        checkpoint.check_empty()
        if metadata.label_map is not None:
            self._losses.label_map = metadata.label_map
        elif not self.label_map.leaves_labels:  # an older release trained on labels as they are
            self._losses.label_map = LabelMap()
        self._scoring.load_final(scores)
        self.roll_back(state)
