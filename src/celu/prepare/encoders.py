"""What becomes of each raw column: learnt from in a first pass, given its final form in a second.

`take` sees a block of raw rows, counts and learns, and returns what is to be kept of them; `finish`
turns that, once all rows have been seen, into what stands in the store. Only training rows teach.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from celu.config.schema import Category, LearntCategory, LearntNumber, Number
from celu.errors import DataError
from celu.prepare.hashing import hash_texts

Mask = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

MAX_VALUES = 4_000_000  # distinct values of all vocabularies of a run: each is held in memory
MAX_CLASSES = 1000  # beyond, integers are not taken for classes when looking for rare ones
RARE_ROWS = 10
RARE_SHARE = 0.001
MISSING_SHARE = 0.95
_WINDOW = 65_536
_LARGEST = float(np.finfo(np.float32).max)
_EXACT = 2.0**53  # whole numbers below this are exact in float64


class Column(Protocol):
    """One column on its way into a store."""

    name: str

    def take(self, array: Any, train: Mask) -> npt.NDArray[Any]:
        """Look at a block; what to keep of it."""

    def finish(self, kept: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The final values of rows that were kept, once everything is learnt."""

    def problems(self) -> list[str]:
        """What forbids a store, of the rows seen since this was last asked."""

    def warnings(self) -> list[str]:
        """What a person should know of the training rows."""


class Moments:
    """Mean and deviation of a stream: Chan, Golub and LeVeque's merge of windows of equal length.

    Windows, rather than blocks as they come: so the last bit does not hang on the block size.
    """

    def __init__(self) -> None:
        self._count = 0
        self._mean = 0.0
        self._squares = 0.0
        self._rest: Floats = np.empty(0)

    def add(self, values: Floats) -> None:
        """Take in some values."""
        values = np.concatenate((self._rest, values))
        whole = len(values) // _WINDOW * _WINDOW
        for start in range(0, whole, _WINDOW):
            self._merge(values[start : start + _WINDOW])
        self._rest = values[whole:].copy()

    def _merge(self, values: Floats) -> None:
        mean = float(values.mean())
        count = self._count + len(values)
        shift = mean - self._mean
        self._squares += float(np.square(values - mean).sum())
        self._squares += shift * shift * self._count * len(values) / count
        self._mean += shift * len(values) / count
        self._count = count

    def result(self) -> tuple[float, float]:
        """Mean and deviation; 1 for a deviation of 0, which would divide by it."""
        if len(self._rest):
            self._merge(self._rest)
            self._rest = np.empty(0)
        deviation = float(np.sqrt(self._squares / max(self._count, 1)))
        return self._mean, deviation or 1.0


class _Seen:
    """How varied a column's training rows are, for warnings."""

    def __init__(self) -> None:
        self.rows = 0
        self.missing = 0
        self._low = np.inf
        self._high = -np.inf

    def add(self, values: npt.NDArray[Any], missing: int) -> None:
        self.rows += len(values)
        self.missing += missing
        if len(values):
            self._low = min(self._low, float(values.min()))
            self._high = max(self._high, float(values.max()))

    def warnings(self, name: str) -> list[str]:
        if not self.rows:
            return []
        if self.missing == self.rows:
            return [f"column {name!r}: every value is missing in the training rows"]
        if self._low == self._high:
            return [f"column {name!r}: all training rows have the same value"]
        if self.missing / self.rows >= MISSING_SHARE:
            share = self.missing / self.rows
            return [f"column {name!r}: {share:.1%} of the training rows have no value"]
        return []


class NumberColumn:
    """A number: filled, log, and standardised where that is declared; float32 in the end."""

    def __init__(self, name: str, number: Number) -> None:
        self.name = name
        self._number = number
        self._known = number if isinstance(number, LearntNumber) else None
        self._largest = float(np.finfo(np.float64).max) if number.log else _LARGEST
        self._moments = Moments()
        self._seen = _Seen()
        self._missing = 0
        self._not_finite = 0

    def take(self, array: Any, train: Mask) -> npt.NDArray[Any]:
        """Filled and log; float64 where a mean is still to be learnt, else as stored."""
        values = array.to_numpy(zero_copy_only=False)
        missing = np.isnan(values)
        within = np.abs(values) <= self._largest  # False for NaN
        self._missing += array.null_count
        self._not_finite += int((~within).sum()) - array.null_count
        values = np.where(missing, self._number.missing or 0.0, values)
        if self._number.log:
            with np.errstate(divide="ignore"):  # of what is replaced
                values = np.where(values > -1, np.log(np.maximum(values, -1.0) + 1.0), -1.0)
        if self._known is not None:
            return self._scaled(values, self._known.mean, self._known.deviation)
        taught = values[train]
        self._seen.add(taught, int(missing[train].sum()))
        if not self._number.standardise:
            return self._scaled(values, 0.0, 1.0)
        self._moments.add(taught)
        return values

    def _scaled(self, values: Floats, mean: float, deviation: float) -> npt.NDArray[np.float32]:
        if self._number.standardise:
            values = (values - mean) / deviation
            self._not_finite += int((np.abs(values) > _LARGEST).sum())
        with np.errstate(over="ignore"):  # counted already
            return values.astype(np.float32)

    def finish(self, kept: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Standardise, where that is still to be done."""
        if kept.dtype == np.float32:
            return kept
        learnt = self.learnt()
        return self._scaled(kept, learnt.mean, learnt.deviation)

    def problems(self) -> list[str]:
        """Missing values that nothing stands for; NaN and Inf."""
        found = []
        if self._missing and self._number.missing is None:
            found.append(
                f"column {self.name!r}: expected a number in every row, got {self._missing:,} rows "
                "without; declare what to take for them as missing"
            )
        if self._not_finite:
            found.append(
                f"column {self.name!r}: expected finite numbers within float32, "
                f"got {self._not_finite:,} that are not"
            )
        self._missing = self._not_finite = 0
        return found

    def warnings(self) -> list[str]:
        """Nothing varies, or hardly anything is there."""
        return self._seen.warnings(self.name)

    def learnt(self) -> LearntNumber:
        """The declaration with its mean and deviation."""
        if self._known is not None:
            return self._known
        mean, deviation = self._moments.result() if self._number.standardise else (0.0, 1.0)
        return LearntNumber(**self._number.model_dump(), mean=mean, deviation=deviation)


class HashedColumn:
    """A category whose codes are hashes: nothing is learnt."""

    def __init__(self, name: str, category: Category) -> None:
        assert category.buckets is not None
        self.name = name
        self._category = category
        self._buckets = np.uint64(category.buckets)
        self._seen = _Seen()

    def take(self, array: Any, train: Mask) -> npt.NDArray[Any]:
        """The codes."""
        codes = _by_index(array, self._codes(array.dictionary))
        taught = codes[train]
        self._seen.add(taught, int((taught == 0).sum()))
        return codes

    def _codes(self, values: Any) -> Codes:
        return (hash_texts(values) % self._buckets + np.uint64(1)).astype(np.int32)

    def finish(self, kept: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """As they were kept."""
        return kept

    def problems(self) -> list[str]:
        """None: any text can be hashed."""
        return []

    def warnings(self) -> list[str]:
        """Nothing varies, or hardly anything is there."""
        return self._seen.warnings(self.name)

    def learnt(self) -> LearntCategory:
        """The declaration."""
        return LearntCategory(**self._category.model_dump(exclude={"values"}))


class Room:
    """How many more distinct values may be held in memory, by all vocabularies of a run."""

    def __init__(self, num_values: int = MAX_VALUES) -> None:
        self._total = num_values
        self._left = num_values

    def use(self, num_values: int, column: str) -> None:
        """Use some of it; raises DataError where too little is left."""
        self._left -= num_values
        if self._left < 0:
            raise DataError(
                f"column {column!r}: expected at most {self._total:,} distinct values in all "
                "columns with a vocabulary, got more; give this one buckets instead"
            )


class VocabularyColumn:
    """A category whose codes are learnt: the most frequent values of the training rows."""

    def __init__(self, name: str, category: Category, room: Room) -> None:
        assert category.vocabulary is not None
        self.name = name
        self._category = category
        self._kept = category.vocabulary
        self._room = room
        self._order: dict[str, int] = {}  # value -> its number by first appearance
        self._counts = np.zeros(1024, np.int64)  # training rows, by that number
        self._seen = _Seen()
        self._final: tuple[list[str], Codes] | None = None

    def take(self, array: Any, train: Mask) -> npt.NDArray[Any]:
        """Values by the order of their first appearance, -1 where missing."""
        order, before = self._order, len(self._order)
        numbers = [order.setdefault(v, len(order)) for v in array.dictionary.to_pylist()]
        self._room.use(len(order) - before, self.name)
        kept = _by_index(array, np.array(numbers, np.int32), missing=-1)
        taught = kept[train]
        present = taught[taught >= 0]
        if len(order) > len(self._counts):
            grown = np.zeros(2 * len(order), np.int64)
            grown[: len(self._counts)] = self._counts
            self._counts = grown
        found = np.bincount(present)
        self._counts[: len(found)] += found
        self._seen.add(taught, len(taught) - len(present))
        return kept

    def finish(self, kept: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The codes."""
        codes: Codes = self._learn()[1][kept]
        return codes

    def _learn(self) -> tuple[list[str], Codes]:
        """The vocabulary, and each value's code; code 0, for missing, stands last."""
        if self._final is None:
            values = list(self._order)
            counts = self._counts[: len(values)]
            enough = np.flatnonzero(counts >= self._category.min_count).tolist()
            enough.sort(key=lambda number: (-counts[number], values[number]))
            chosen = enough[: self._kept]
            codes = np.ones(len(values) + 1, np.int32)
            codes[-1] = 0
            codes[chosen] = np.arange(2, len(chosen) + 2)
            self._final = [values[number] for number in chosen], codes
            self._order = {}
        return self._final

    def problems(self) -> list[str]:
        """None: a value that is not in the vocabulary has a code too."""
        return []

    def warnings(self) -> list[str]:
        """Nothing varies, hardly anything is there, or nothing was frequent enough."""
        found = self._seen.warnings(self.name)
        if not found and not self._learn()[0]:
            found = [
                f"column {self.name!r}: no value stands in {self._category.min_count:,} or more "
                "training rows, so its vocabulary is empty"
            ]
        return found

    def learnt(self) -> LearntCategory:
        """The declaration with its vocabulary."""
        return LearntCategory(**self._category.model_dump(), values=self._learn()[0])


class KnownColumn:
    """A category whose vocabulary another store has learnt; counts the rows it does not know."""

    def __init__(self, name: str, category: LearntCategory) -> None:
        self.name = name
        self._category = category
        self._code = {value: code for code, value in enumerate(category.values or [], start=2)}
        self.unseen = 0

    def take(self, array: Any, train: Mask) -> npt.NDArray[Any]:
        """The codes."""
        codes = [self._code.get(value, 1) for value in array.dictionary.to_pylist()]
        taken = _by_index(array, np.array(codes, np.int32))
        self.unseen += int((taken == 1).sum())
        return taken

    def finish(self, kept: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """As they were kept."""
        return kept

    def problems(self) -> list[str]:
        """None: a value that is not known has a code too."""
        return []

    def warnings(self) -> list[str]:
        """None: nothing is learnt."""
        return []

    def learnt(self) -> LearntCategory:
        """What the other store says."""
        return self._category


class LabelColumn:
    """The label: int64 where all are written as whole numbers, float32 elsewhere."""

    def __init__(self, name: str, known: Literal["class", "number"] | None = None) -> None:
        self.name = name
        self._known = known
        self._whole = True
        self._missing = 0
        self._not_finite = 0
        self._not_whole = 0
        self._classes: Counter[float] | None = Counter()

    @property
    def type(self) -> Literal["class", "number"]:
        """What the labels are, by the rows seen so far."""
        return self._known or ("class" if self._whole else "number")

    def note(self, whole: bool) -> None:
        """Say whether the labels of the block to come are written as whole numbers."""
        self._whole = self._whole and whole

    def take(self, array: Any, train: Mask) -> npt.NDArray[Any]:
        """The labels as float64."""
        values = array.to_numpy(zero_copy_only=False)
        within = np.abs(values) <= _LARGEST  # False for NaN
        self._missing += array.null_count
        self._not_finite += int((~within).sum()) - array.null_count
        values = np.where(within, values, 0.0)
        self._whole = self._whole and bool((np.abs(values) < _EXACT).all())
        if self._known == "class":
            self._not_whole += int((values != np.floor(values)).sum())
        if self._classes is not None:
            classes, counts = np.unique(values[train], return_counts=True)
            self._classes.update(dict(zip(classes.tolist(), counts.tolist(), strict=True)))
            if len(self._classes) > MAX_CLASSES:
                self._classes = None
        return values

    def finish(self, kept: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """As stored."""
        return kept.astype(np.int64 if self.type == "class" else np.float32)

    def problems(self) -> list[str]:
        """A row without a label, or with one that is no number or not the known type."""
        counts = {
            "a label in every row, got {} rows without": self._missing,
            "finite labels within float32, got {} that are not": self._not_finite,
            "whole numbers, as in the store, got {} that are not": self._not_whole,
        }
        self._missing = self._not_finite = self._not_whole = 0
        return [
            f"column {self.name!r}: expected {text.format(f'{count:,}')}"
            for text, count in counts.items()
            if count
        ]

    def one_only(self) -> bool:
        """Whether all training rows have one and the same label."""
        return self._classes is not None and len(self._classes) == 1

    def warnings(self) -> list[str]:
        """A class that is very rare."""
        if self._known or self.type == "number" or not self._classes:
            return []
        rows, rarest = sum(self._classes.values()), min(self._classes.values())
        if rarest >= RARE_ROWS and rarest / rows >= RARE_SHARE:
            return []
        return [
            f"column {self.name!r}: the rarest of its {len(self._classes)} classes has "
            f"{rarest:,} of {rows:,} training rows"
        ]


def _by_index(array: Any, codes: Codes, missing: int = 0) -> Codes:
    """The codes of a dictionary's values, for the rows that refer to them."""
    indices = array.indices
    if indices.null_count:
        indices = indices.fill_null(len(codes))
    found: Codes = np.append(codes, np.int32(missing))[indices.to_numpy()]
    return found
