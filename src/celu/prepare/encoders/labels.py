"""The encoder of labels: classes as int64, other numbers as float32."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from celu.prepare.encoders.encoder import MAX_FLOAT32, Mask

MAX_CLASSES = 1000  # integers with more distinct values are not checked for rare classes
RARE_ROWS = 10
RARE_SHARE = 0.001
_MAX_EXACT = 2.0**53  # integers below this are exact in float64

LabelType = Literal["class", "number"]


class LabelEncoder:
    """Labels are classes if all of them are written as integers; `fitted` fixes the type."""

    def __init__(self, name: str, fitted: LabelType | None = None) -> None:
        self.name = name
        self._fitted = fitted
        self._are_integers = True
        self._missing = 0
        self._not_finite = 0
        self._not_integer = 0
        self._classes: Counter[float] | None = Counter()

    @property
    def type(self) -> LabelType:
        """The type of the labels so far."""
        return self._fitted or ("class" if self._are_integers else "number")

    def note_format(self, are_integers: bool) -> None:
        """Note whether all labels of the next block are written as integers."""
        self._are_integers = self._are_integers and are_integers

    def fit(self, array: Any, train: Mask) -> npt.NDArray[Any]:
        """Return the labels as float64."""
        values = array.to_numpy(zero_copy_only=False)
        in_range = np.abs(values) <= MAX_FLOAT32  # False for NaN
        self._missing += array.null_count
        self._not_finite += int((~in_range).sum()) - array.null_count
        values = np.where(in_range, values, 0.0)
        self._are_integers = self._are_integers and bool((np.abs(values) < _MAX_EXACT).all())
        if self._fitted == "class":
            self._not_integer += int((values != np.floor(values)).sum())
        if self._classes is not None:
            classes, counts = np.unique(values[train], return_counts=True)
            self._classes.update(dict(zip(classes.tolist(), counts.tolist(), strict=True)))
            if len(self._classes) > MAX_CLASSES:
                self._classes = None
        return values

    def transform(self, spilled: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """The labels in their final type."""
        return [spilled.astype(np.int64 if self.type == "class" else np.float32)]

    def problems(self) -> list[str]:
        """Labels that are missing, not finite or not of the fitted type."""
        counts = {
            "a label in every row, got {} rows without": self._missing,
            "finite labels within float32, got {} that are not": self._not_finite,
            "integers, as in the store, got {} that are not": self._not_integer,
        }
        self._missing = self._not_finite = self._not_integer = 0
        return [
            f"column {self.name!r}: expected {text.format(f'{count:,}')}"
            for text, count in counts.items()
            if count
        ]

    def is_constant(self) -> bool:
        """Whether all training rows have the same label."""
        return self._classes is not None and len(self._classes) == 1

    def warnings(self) -> list[str]:
        """A class that is very rare."""
        if self._fitted or self.type == "number" or not self._classes:
            return []
        rows, rarest = sum(self._classes.values()), min(self._classes.values())
        if rarest >= RARE_ROWS and rarest / rows >= RARE_SHARE:
            return []
        return [
            f"column {self.name!r}: the rarest of its {len(self._classes)} classes has "
            f"{rarest:,} of {rows:,} training rows"
        ]
