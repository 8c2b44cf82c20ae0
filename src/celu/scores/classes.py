"""Labels of a file or an array as codes of the classes that a model was trained on.

Errors name counts, never a label.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, TypeAdapter, ValidationError

from celu.config.schema import ClassLabel
from celu.errors import DataError
from celu.metrics.values import Labels

_MAX_BYTES = 4 << 20  # of the classes as JSON
_CLASSES = TypeAdapter(list[ClassLabel], config=ConfigDict(strict=True, allow_inf_nan=False))


def are_text(classes: Sequence[ClassLabel] | None) -> bool:
    """Whether labels of these classes are text."""
    return bool(classes) and isinstance((classes or [0])[0], str)


def text_codes(where: str, texts: npt.NDArray[Any], classes: Sequence[ClassLabel]) -> Labels:
    """The code of each text, NaN for None; raises DataError for text that is no class."""
    code_of: dict[Any, float] = {name: float(code) for code, name in enumerate(classes)}
    values, inverse = np.unique([t if t is not None else "" for t in texts], return_inverse=True)
    codes = np.array([code_of.get(str(value), -1.0) for value in values])[inverse]
    is_missing = np.array([text is None for text in texts])
    codes[is_missing] = np.nan
    _check(where, int((codes == -1).sum()), classes)
    return codes


def number_codes(where: str, labels: Labels, classes: Sequence[ClassLabel] | None) -> Labels:
    """The codes of two numbers; labels of other classes are codes already.

    NaN stays. Raises DataError for a number that is no class.
    """
    if classes is None or are_text(classes) or len(classes) != 2:
        return labels
    codes = np.select([_are(labels, value) for value in classes], [0.0, 1.0], -1.0)
    codes[np.isnan(labels)] = np.nan
    _check(where, int((codes == -1).sum()), classes)
    return codes


def _are(labels: Labels, value: ClassLabel) -> npt.NDArray[np.bool_]:
    """Which labels are this number; a fraction may be rounded to float32 on either side."""
    number = float(value)
    same: npt.NDArray[np.bool_] = labels == number
    if not number.is_integer():
        same |= labels.astype(np.float32) == np.float32(number)
    return same


def _check(where: str, num_unknown: int, classes: Sequence[ClassLabel]) -> None:
    if num_unknown:
        raise DataError(
            f"{where}: expected the {len(classes):,} classes of the model, got other values in "
            f"{num_unknown:,} rows; choose another label column"
        )


def to_metadata(classes: Sequence[ClassLabel]) -> str:
    """Classes as a text, for a file."""
    return json.dumps(list(classes))


def from_metadata(where: str, text: bytes, num_classes: int) -> tuple[ClassLabel, ...]:
    """The inverse of `to_metadata`; raises DataError unless there are as many classes as scores."""
    found: list[ClassLabel] = []
    if len(text) <= _MAX_BYTES:
        with suppress(ValidationError):
            found = _CLASSES.validate_json(text)
    if len(found) != num_classes or len(set(map(str, found))) != num_classes:
        raise DataError(
            f"{where}: celu.classes: expected {num_classes} different classes, got something else; "
            "write the file again with celu predict"
        )
    return tuple(found)
