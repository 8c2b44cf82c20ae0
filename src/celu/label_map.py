"""How labels become what a loss takes, and a model's output becomes a prediction in their units.

It is fitted on the training rows (`models/fit_labels`) and recorded with the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from celu.config.reading import Settings
from celu.config.schema import ClassLabel

MAX_CLASSES = 10_000


class LabelMap(Settings):
    """Labels of rows to what the loss takes, and back. By default both are the same.

    `classes` are in the order of their codes; of two, the second is the positive one. Rows with
    text labels have codes already. A number is scaled with the `mean` and `deviation` of the
    training rows.
    """

    classes: Annotated[list[ClassLabel], Field(max_length=MAX_CLASSES)] | None = None
    mean: float = 0.0
    deviation: Annotated[float, Field(gt=0)] = 1.0

    @property
    def is_scaled(self) -> bool:
        """Whether the loss takes a scaled number."""
        return (self.mean, self.deviation) != (0.0, 1.0)

    @property
    def leaves_labels(self) -> bool:
        """Whether the loss takes labels as the rows have them."""
        return not self.is_scaled and (self.classes is None or are_codes(self.classes))

    def codes(self, labels: Tensor) -> Tensor:
        """Classes as codes from 0; numbers as they are."""
        if self.classes is None or are_codes(self.classes):
            return labels
        return torch.eq(labels, float(self.classes[1])).to(labels.dtype)

    def for_loss(self, labels: Tensor) -> Tensor:
        """What the loss takes."""
        if not self.is_scaled:
            return self.codes(labels)
        return ((labels.double() - self.mean) / self.deviation).float()

    def in_own_units(self, output: Tensor) -> Tensor:
        """A model's output, in the units of the labels."""
        return output.double() * self.deviation + self.mean if self.is_scaled else output


def are_codes(classes: Sequence[ClassLabel]) -> bool:
    """Whether the labels of rows are the codes of these classes."""
    return isinstance(classes[0], str) or list(classes) == list(range(len(classes)))
