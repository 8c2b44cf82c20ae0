"""The weights of classes in the training loss, as the guest gives them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

ClassWeights = Literal["balanced"] | dict[str, float]  # by the class, as text
ClassWeightsLike = Literal["balanced"] | Mapping[str, float] | Mapping[int, float]


def parse_class_weights(given: Any) -> ClassWeights:
    """Class weights by the text of each class; raises ValueError."""
    if given == "balanced":
        return "balanced"
    if not isinstance(given, Mapping) or not given:
        raise ValueError(f'expected "balanced" or weights by class, got {given!r}')
    weights: dict[str, float] = {}
    for label, weight in given.items():
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_number or not math.isfinite(weight) or weight <= 0:
            raise ValueError(f"expected weights above 0, got {weight!r}")
        weights[class_text(label)] = float(weight)
    return weights


def class_text(label: object) -> str:
    """A class as text: 1 and 1.0 are the same class."""
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    return str(label)
