"""The encoder of row weights: numbers of 0 or more, as float32."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from celu.config.columns import Number
from celu.prepare.encoders.encoder import Mask
from celu.prepare.encoders.numbers import NumberEncoder


class WeightEncoder(NumberEncoder):
    """Weights as they are; a missing or negative weight is an error."""

    def __init__(self, name: str) -> None:
        super().__init__(name, Number())
        self._negative = 0
        self._has_positive = False

    def fit(self, array: Any, train: Mask) -> npt.NDArray[Any]:
        """See `Encoder`."""
        values = super().fit(array, train)
        self._negative += int((values < 0).sum())
        self._has_positive = self._has_positive or bool((values[train] > 0).any())
        return values

    def problems(self) -> list[str]:
        """Weights that are missing, not finite or negative."""
        found = [problem.partition("; ")[0] for problem in super().problems()]
        if self._negative:
            found.append(
                f"column {self.name!r}: expected weights of 0 or more, "
                f"got {self._negative:,} below 0"
            )
        self._negative = 0
        return found

    def are_all_zero(self) -> bool:
        """Whether no training row has a weight above 0."""
        return not self._has_positive
