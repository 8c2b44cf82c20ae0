"""The encoders of labels: text and integers as classes in int64, other numbers as float32.

Text is stored as codes. Labels are text or numbers in all rows: a few texts among numbers are
errors, not classes. Most rows of the first block decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from celu.config.schema import ClassLabel
from celu.label_map import MAX_CLASSES
from celu.prepare.encoders.encoder import MAX_FLOAT32, Mask
from celu.prepare.number_text import PLAIN, NumberStyle
from celu.prepare.parsing import advice_on_numbers, parse_labels

MAX_COUNTED = 1000  # numbers with more distinct values are not checked for rare classes
RARE_ROWS = 10
RARE_SHARE = 0.001
_MAX_EXACT = 2.0**53  # integers below this are exact in float64

_OF_ONE_KIND = (
    "write all labels as numbers, or all as text, and remove rows whose text means a missing label"
)

LabelType = Literal["class", "number"]
Array = npt.NDArray[Any]


class _Problems:
    """Counts rows whose label cannot be used."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._counts: Counter[str] = Counter()

    def count(self, expected: str, num_rows: int) -> None:
        """Add rows that are not what was `expected`, with {} for their number."""
        self._counts[expected] += num_rows

    def take(self) -> list[str]:
        """The problems since the last call."""
        found = [
            f"column {self.name!r}: expected {text.format(f'{count:,}')}"
            for text, count in self._counts.items()
            if count
        ]
        self._counts.clear()
        return found


class LabelEncoder:
    """Fits labels: classes if all of them are text, or all are written as integers.

    `positive` is the label of two that counts as positive; by default the larger one.
    """

    def __init__(
        self, name: str, positive: ClassLabel | None = None, style: NumberStyle = PLAIN
    ) -> None:
        self.name = name
        self._style = style
        self._positive = positive
        self._found = _Problems(name)
        self._texts: dict[str, int] | None = None  # codes in the order of their first rows
        self._is_first = True
        self._are_integers = True
        self._counts: Counter[float] | None = Counter()  # of training rows
        self._values: set[float] = set()  # the first three numbers of all rows

    @property
    def type(self) -> LabelType:
        """The type of the labels so far."""
        return "class" if self._texts is not None or self._are_integers else "number"

    @property
    def classes(self) -> list[ClassLabel] | None:
        """All text labels in the order of their codes, or the two values of a number."""
        if self._texts is not None:
            ordered: list[ClassLabel] = sorted(self._texts)
        elif len(self._values) == 2:
            make = int if self.type == "class" else _as_written
            ordered = [make(value) for value in sorted(self._values)]
        else:
            return None
        if len(ordered) == 2 and ordered[0] == self._given():
            ordered.reverse()
        return ordered

    def fit(self, array: Any, train: Mask) -> Array:
        """Return the labels as float64: numbers, or the codes of texts so far."""
        parsed = parse_labels(array, self._style)
        if self._is_first and len(array):
            self._is_first = False
            self._texts = {} if parsed.num_text > parsed.num_numbers else None
        if self._texts is not None:
            self._found.count(f"text, got numbers in {{}} rows; {_OF_ONE_KIND}", parsed.num_numbers)
            values = self._fit_texts(_texts(array), self._texts)
        else:
            self._found.count(f"numbers, got text in {{}} rows; {_OF_ONE_KIND}", parsed.num_text)
            self._are_integers = self._are_integers and parsed.are_integers
            values = _numbers(parsed.values, parsed.num_text, self._found)
            self._are_integers = self._are_integers and bool((np.abs(values) < _MAX_EXACT).all())
            if len(self._values) < 3:
                self._values |= set(np.unique(values).tolist()[:3])
        if self._counts is not None:
            classes, counts = np.unique(values[train], return_counts=True)
            self._counts.update(dict(zip(classes.tolist(), counts.tolist(), strict=True)))
            if len(self._counts) > (MAX_COUNTED if self._texts is None else MAX_CLASSES):
                self._counts = None
        return values

    def _fit_texts(self, array: Any, codes: dict[str, int]) -> Array:
        self._found.count(
            "a label in every row, got {} rows without; remove these rows", array.null_count
        )
        for text in array.dictionary.to_pylist():
            if len(codes) <= MAX_CLASSES:
                codes.setdefault(text, len(codes))
        if len(codes) > MAX_CLASSES:
            self._found.count(
                f"numbers, or text of at most {MAX_CLASSES:,} classes, got more in {{}} rows"
                f"{advice_on_numbers(list(codes), separator='; ')}",
                len(array),
            )
        known = np.array([codes.get(text, 0) for text in array.dictionary.to_pylist()] or [0])
        indices = array.indices.fill_null(0).to_numpy()
        return np.asarray(known[indices], np.float64)

    def transform(self, spilled: Array) -> list[Array]:
        """The labels in their final type."""
        if self._texts is not None:
            code_of = {text: code for code, text in enumerate(self.classes or [])}
            final = np.array([code_of[text] for text in self._texts], np.int64)
            return [final[spilled.astype(np.int64)]]
        return [spilled.astype(np.int64 if self.type == "class" else np.float32)]

    def problems(self) -> list[str]:
        """Labels that are missing, not finite or of several types."""
        return self._found.take()

    def refusal(self) -> str | None:
        """Why no model could be trained on all of the labels, if so."""
        if self._counts is not None and len(self._counts) == 1:
            return "expected different labels in the training rows, got the same in all"
        if self._positive is None:
            return None
        classes = self.classes
        if classes is None or len(classes) != 2:
            count = "more" if classes is None else f"{len(classes):,}"
            return f"positive: expected a label with two values, got {count}"
        if self._given() not in classes:
            return "positive: expected one of the two values of the label, got another"
        return None

    def _given(self) -> ClassLabel | None:
        """`positive` as a class of these labels."""
        if self._positive is None or self._texts is not None:
            return None if self._positive is None else str(self._positive).strip()
        try:
            return float(self._positive)
        except ValueError:
            return self._positive

    def warnings(self) -> list[str]:
        """Classes that differ in upper and lower case only, and a class that is very rare."""
        advice = advice_on_numbers(list(self._texts or ()))
        if advice:
            num_classes = len(self._texts or ())
            return [f"column {self.name!r}: {num_classes:,} classes of text; {advice}"]
        alike = len(self._texts or ()) - len({text.casefold() for text in self._texts or ()})
        if alike:
            return [
                f"column {self.name!r}: {len(self._texts or ()):,} classes, of which {alike:,} "
                "differ from another in upper and lower case only; write them alike if they are one"
            ]
        if self.type == "number" or not self._counts:
            return []
        rows, rarest = sum(self._counts.values()), min(self._counts.values())
        num_classes = len(self._counts)
        if self._texts is not None and num_classes < len(self._texts):
            rarest, num_classes = 0, len(self._texts)
        if rarest >= RARE_ROWS and rarest / rows >= RARE_SHARE:
            return []
        return [
            f"column {self.name!r}: the rarest of its {num_classes} classes has "
            f"{rarest:,} of {rows:,} training rows"
        ]


class FittedLabelEncoder:
    """Encodes labels as an existing store has them, whose text labels have these `classes`."""

    def __init__(
        self,
        name: str,
        fitted: LabelType,
        classes: Sequence[ClassLabel] | None = None,
        style: NumberStyle = PLAIN,
    ) -> None:
        self.name = name
        self._style = style
        self.type: LabelType = fitted
        self._found = _Problems(name)
        self._code_of: dict[ClassLabel, int] | None = None
        if classes and isinstance(classes[0], str):
            self._code_of = {text: code for code, text in enumerate(classes)}

    def fit(self, array: Any, train: Mask) -> Array:
        """Return the labels as float64."""
        del train
        if self._code_of is not None:
            return self._codes(_texts(array), self._code_of)
        parsed = parse_labels(array, self._style)
        self._found.count("numbers, as in the store, got text in {} rows", parsed.num_text)
        values = _numbers(parsed.values, parsed.num_text, self._found)
        if self.type == "class":
            self._found.count(
                "integers, as in the store, got {} that are not",
                int((values != np.floor(values)).sum()),
            )
        return values

    def _codes(self, array: Any, code_of: dict[ClassLabel, int]) -> Array:
        self._found.count("a label in every row, got {} rows without", array.null_count)
        known = np.array([code_of.get(text, -1) for text in array.dictionary.to_pylist()] or [0])
        codes = np.asarray(known[array.indices.fill_null(0).to_numpy()], np.float64)
        codes[array.is_null().to_numpy(zero_copy_only=False)] = 0
        self._found.count(
            f"the {len(code_of):,} classes of the store, got others in {{}} rows",
            int((codes < 0).sum()),
        )
        return codes

    def transform(self, spilled: Array) -> list[Array]:
        """The labels in their final type."""
        return [spilled.astype(np.int64 if self.type == "class" else np.float32)]

    def problems(self) -> list[str]:
        """Labels that are missing, not finite or not of the fitted type."""
        return self._found.take()

    def refusal(self) -> None:
        """Nothing is fitted on these labels."""
        return

    def warnings(self) -> list[str]:
        """None: the rows are not trained on."""
        return []


def _as_written(value: float) -> float:
    """A number of the raw file: in a file of float32 columns, the shortest that rounds to it."""
    rounded = np.float32(value)
    return float(str(rounded)) if float(rounded) == value else value


def _texts(array: Any) -> Any:
    """Labels as a dictionary of texts without spaces around them."""
    if pa.types.is_dictionary(array.type):
        trimmed = pc.utf8_trim_whitespace(array.dictionary)
        return pa.DictionaryArray.from_arrays(array.indices, trimmed)
    return array.cast(pa.string()).dictionary_encode()


def _numbers(values: Any, num_text: int, found: _Problems) -> Array:
    """Labels as float64, with 0 for those that cannot be used, which are counted."""
    numbers = values.to_numpy(zero_copy_only=False)
    in_range = np.abs(numbers) <= MAX_FLOAT32  # False for NaN
    found.count(
        "a label in every row, got {} rows without; remove these rows", values.null_count - num_text
    )
    found.count(
        "finite labels within float32, got {} that are not",
        int((~in_range).sum()) - values.null_count,
    )
    return np.where(in_range, numbers, 0.0)
