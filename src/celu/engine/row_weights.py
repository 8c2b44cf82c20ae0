"""How much each training row counts in the guest's loss: its own weight times that of its class.

Weights are divided by their mean over all training rows. The loss of a batch of B rows is then
sum(weight * loss) / B: an unbiased estimate of the weighted mean over all rows, in which a row
counts the same in every batch, and the learning rate keeps its meaning.
"""

from __future__ import annotations

import hashlib
import json

import torch
from torch import Tensor

from celu.config.class_weights import ClassWeights, class_text
from celu.data.dataset import Batch, Dataset
from celu.errors import DataError

_MAX_CLASSES = 10_000


class RowWeights:
    """The weights of training rows; without weights of rows or classes, every row counts 1."""

    def __init__(
        self, train: Dataset, class_weights: ClassWeights | None, device: torch.device
    ) -> None:
        """Raises DataError if the labels do not have the classes that are named."""
        self._classes: Tensor | None = None
        self._by_class: Tensor | None = None
        self._mean = 1.0
        self._has_weights = train.weights is not None or class_weights is not None
        if not self._has_weights:
            return
        weights_N = None if train.weights is None else train.weights.double().cpu()
        if class_weights is None:
            assert weights_N is not None
            self._mean = float(weights_N.mean())
            return
        assert train.labels is not None  # checked before the run starts
        classes, class_of_N = torch.unique(train.labels.cpu(), return_inverse=True)
        if train.labels.dim() != 1 or len(classes) > _MAX_CLASSES:
            raise DataError(
                f"class_weights: expected labels that are at most {_MAX_CLASSES:,} classes, got "
                f"{len(classes):,} different ones; remove class_weights"
            )
        totals_C = torch.bincount(class_of_N, weights_N, len(classes)).double()
        by_class_C = _by_class(_names(train, classes), totals_C, class_weights)
        self._mean = float((by_class_C * totals_C).sum()) / train.num_rows
        self._classes, self._by_class = classes.to(device), by_class_C.float().to(device)

    def of(self, batch: Batch) -> Tensor | None:
        """The weights of a batch, [B]; None if every row counts 1."""
        if not self._has_weights:
            return None
        weights_B = batch.weights
        if self._classes is not None and self._by_class is not None:
            assert batch.labels is not None
            of_class_B = self._by_class[torch.searchsorted(self._classes, batch.labels)]
            weights_B = of_class_B if weights_B is None else weights_B * of_class_B
        assert weights_B is not None
        return weights_B / self._mean

    def digest(self) -> str | None:
        """Identifies the weights in a checkpoint; None if every row counts 1."""
        if not self._has_weights:
            return None
        classes = [] if self._classes is None else self._classes.tolist()
        by_class = [] if self._by_class is None else self._by_class.tolist()
        facts = json.dumps([self._mean, classes, by_class])
        return hashlib.sha256(facts.encode()).hexdigest()


def _names(train: Dataset, labels: Tensor) -> list[str]:
    """The classes of these labels as text."""
    known = train.classes
    if known is not None and isinstance(known[0], str):  # labels are codes
        return [str(known[int(code)]) for code in labels]
    return [class_text(label) for label in labels.tolist()]


def _by_class(names: list[str], totals_C: Tensor, given: ClassWeights) -> Tensor:
    """The weight of each class; "balanced" gives all classes the same total weight."""
    if given == "balanced":
        share_C = totals_C / totals_C.sum()
        # A class whose rows all have the weight 0 has no share; its rows do not count anyway.
        return torch.where(share_C > 0, 1 / (len(names) * share_C), 1.0)
    as_code = {"False": "0", "True": "1"}  # of labels that are True and False
    given = {
        name if name in names else as_code.get(name, name): weight for name, weight in given.items()
    }
    unknown = [name for name in given if name not in names]
    if unknown:
        raise DataError(
            f"class_weights: expected classes of the training labels ({', '.join(names[:20])}), "
            f"got {', '.join(unknown[:20])}"
        )
    return torch.tensor([given.get(name, 1.0) for name in names], dtype=torch.float64)
