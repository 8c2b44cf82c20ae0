"""The guest's loss of a batch: labels as the loss takes them, weights of rows, curvature."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from celu.data.dataset import Batch
from celu.engine.row_weights import RowWeights
from celu.errors import ModelError
from celu.models.fit_labels import check_output
from celu.models.members import MemberLoss
from celu.models.user_code import call_loss, top_of, user_code
from celu.party import Guest
from celu.ranks.slices import Slices
from celu.transport.message import MAX_CURVATURE


class GuestLoss:
    """The loss of a guest; `label_map` says what its labels become, and a checkpoint may set it."""

    def __init__(self, name: str, guest: Guest, weights: RowWeights, ranks: Slices) -> None:
        self._name = name
        self._top = top_of(name, guest.top)
        self._loss = guest.loss
        self._of_members = MemberLoss(guest.loss, guest.top)
        self._weights = weights
        self._ranks = ranks
        self.label_map = guest.label_map

    def of_rows(self, batch: Batch, output: Tensor) -> Tensor:
        """The loss of each row."""
        assert batch.labels is not None
        one = self._of_members.one_member(output)
        check_output(self._top, self._loss, self.label_map, one, len(batch.labels))
        labels = self.label_map.for_loss(batch.labels)
        return call_loss(self._name, self._of_members.per_instance, output, labels)

    def combine(self, output: Tensor) -> Tensor:
        """The output of the whole model, where a top returned those of its members."""
        return self._of_members.combine(output)

    def weighted(self, batch: Batch, output: Tensor) -> Tensor:
        """The loss of each row times its weight; their mean is what is minimized."""
        losses_B, weights_B = self.of_rows(batch, output), self._weights.of(batch)
        return losses_B if weights_B is None else weights_B * losses_B

    def is_positive(self, batch: Batch, rows: int) -> Tensor:
        """Which of all `rows` rows of a batch are of the second of two classes, at the first rank.

        All ranks must call it.
        """
        assert batch.labels is not None
        return self._ranks.gather(self.label_map.for_loss(batch.labels), rows) == 1

    def curvature(self, batch: Batch, output: Tensor, rows: int) -> float:
        """The curvature of the loss over all `rows` rows of a batch, at all ranks."""
        assert batch.labels is not None
        labels, weights_B = self.label_map.for_loss(batch.labels), self._weights.of(batch)
        if self._loss.has_unit_curvature(weights_B):
            return 1.0
        gather = partial(self._ranks.gather, rows=rows)
        output, labels = gather(output), gather(labels)
        weights_B = None if weights_B is None else gather(weights_B)

        def compute() -> float:
            with user_code(f"{self._name}: the curvature of the loss", [output, labels]):
                found = self._of_members.curvature(output, labels, weights_B)
                return min(found, MAX_CURVATURE)

        try:
            return float(self._ranks.share(compute))
        except ModelError as error:
            raise ModelError(f"{self._name}: {error}") from error
