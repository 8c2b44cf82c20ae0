"""How labels become what a loss takes, and a model's output becomes a prediction in their units.

It is fitted on the training rows (`models/fit_labels`) and recorded with the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from celu.config.reading import Settings
from celu.config.schema import ClassLabel

if TYPE_CHECKING:  # commands that prepare data do not load torch
    from torch import Tensor

MAX_CLASSES = 10_000


class LabelMap(Settings):
    """Labels of rows to what the loss takes, and back. By default both are the same.

    `classes` are in the order of their codes; of two, the second is the positive one. Rows with
    text labels have codes already. A number is scaled with the `mean` and `deviation` of the
    training rows.
    """

    classes: Annotated[list[ClassLabel], Field(min_length=2, max_length=MAX_CLASSES)] | None = None
    mean: float = 0.0
    deviation: Annotated[float, Field(gt=0)] = 1.0

    @model_validator(mode="after")
    def _numbers_are_two_or_codes(self) -> LabelMap:
        if self.classes is not None and len(self.classes) != 2 and not are_codes(self.classes):
            raise ValueError("classes: expected text, codes from 0, or two numbers")
        return self

    @property
    def is_scaled(self) -> bool:
        """Whether the loss takes a scaled number."""
        return (self.mean, self.deviation) != (0.0, 1.0)

    @property
    def leaves_labels(self) -> bool:
        """Whether the loss takes labels as the rows have them."""
        return not self.is_scaled and self._are_codes

    @cached_property
    def _are_codes(self) -> bool:
        return self.classes is None or are_codes(self.classes)

    @cached_property
    def names(self) -> tuple[ClassLabel, ...] | None:
        """The classes by code, if they are other than the codes."""
        if self.classes is None or list(self.classes) == list(range(len(self.classes))):
            return None
        return tuple(self.classes)

    def codes(self, labels: Tensor) -> Tensor:
        """Classes as codes from 0; numbers as they are."""
        if self.classes is None or self._are_codes:
            return labels
        positive = float(self.classes[1])
        if not labels.is_floating_point():  # torch would compare integers with a float in float32
            positive = int(self.classes[1]) if positive.is_integer() else math.nan
        # A float is rounded as labels are: they are float32, and a class is as it was written.
        return labels.eq(positive).to(labels.dtype)

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
