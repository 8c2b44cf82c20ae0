"""The encoders of categories: values as codes, by hash or from a vocabulary."""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from celu.config.columns import Coded, FittedBag, FittedCategory
from celu.errors import DataError
from celu.prepare.encoders.encoder import Mask
from celu.prepare.encoders.statistics import ColumnSummary
from celu.prepare.hashing import hash_texts
from celu.prepare.parsing import Kind

Codes = npt.NDArray[np.int32]

MAX_VALUES = 4_000_000  # distinct values in all vocabularies of a scan: they are held in memory


class HashEncoder:
    """Codes are hashes of the values: nothing is fitted."""

    kind: Kind = "category"
    unseen = 0

    def __init__(self, name: str, category: Coded) -> None:
        assert category.buckets is not None
        self.name = name
        self.columns = [name]
        self._category = category
        self._buckets = np.uint64(category.buckets)
        self._summary = ColumnSummary()

    def fit(self, array: Any, train: Mask) -> npt.NDArray[Any]:
        """Return the codes as stored."""
        hashes = hash_texts(array.dictionary)
        codes_of_values = (hashes % self._buckets + np.uint64(1)).astype(np.int32)
        codes = _look_up(array, codes_of_values)
        train_codes = codes[train]
        self._summary.add(train_codes, int((train_codes == 0).sum()))
        return codes

    def transform(self, spilled: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """The codes that `fit` computed."""
        return [spilled]

    def problems(self) -> list[str]:
        """None: any text can be hashed."""
        return []

    def warnings(self) -> list[str]:
        """A column that is constant or nearly empty."""
        return self._summary.warnings(self.name)

    def values(self) -> list[str] | None:
        """None: there is no vocabulary."""
        return None


class VocabularyBudget:
    """The number of distinct values that the vocabularies of a scan may hold in memory.

    Columns are encoded in several threads, so what they use is checked after each block.
    """

    def __init__(self, num_values: int = MAX_VALUES) -> None:
        self._total = num_values
        self._used: dict[str, int] = {}
        self._lock = Lock()

    def use(self, num_values: int, column: str) -> None:
        """Add distinct values of a column."""
        with self._lock:
            self._used[column] = self._used.get(column, 0) + num_values

    def check(self) -> None:
        """Raise DataError, which names the column with the most values, if they are too many."""
        if sum(self._used.values()) > self._total:
            column = min(self._used, key=lambda name: (-self._used[name], name))
            raise DataError(
                f"column {column!r}: expected at most {self._total:,} distinct values in all "
                "columns with a vocabulary, got more; use buckets for this one instead"
            )


class VocabularyEncoder:
    """Codes of the most frequent values of the training rows."""

    kind: Kind = "category"
    unseen = 0

    def __init__(self, name: str, category: Coded, budget: VocabularyBudget) -> None:
        assert category.vocabulary is not None
        self.name = name
        self.columns = [name]
        self._category = category
        self._max_values = category.vocabulary
        self._budget = budget
        self._index: dict[str, int] = {}  # value -> its index by first appearance
        self._counts = np.zeros(1024, np.int64)  # training rows, by that index
        self._summary = ColumnSummary()
        self._result: tuple[list[str], Codes] | None = None

    def fit(self, array: Any, train: Mask) -> npt.NDArray[Any]:
        """Return values as indices by first appearance, -1 where missing."""
        index, before = self._index, len(self._index)
        indices = [index.setdefault(v, len(index)) for v in array.dictionary.to_pylist()]
        self._budget.use(len(index) - before, self.name)
        spilled = _look_up(array, np.array(indices, np.int32), missing=-1)
        train_indices = spilled[train]
        present = train_indices[train_indices >= 0]
        if len(index) > len(self._counts):
            grown = np.zeros(2 * len(index), np.int64)
            grown[: len(self._counts)] = self._counts
            self._counts = grown
        counts = np.bincount(present)
        self._counts[: len(counts)] += counts
        self._summary.add(train_indices, len(train_indices) - len(present))
        return spilled

    def transform(self, spilled: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """The code of each spilled index."""
        codes: Codes = self._vocabulary()[1][spilled]
        return [codes]

    def _vocabulary(self) -> tuple[list[str], Codes]:
        """The values in the order of their codes, and the code of each index.

        The last element is code 0, so that index -1 (missing) has code 0.
        """
        if self._result is None:
            values = list(self._index)
            counts = self._counts[: len(values)]
            frequent = np.flatnonzero(counts >= self._category.min_count).tolist()
            frequent.sort(key=lambda i: (-counts[i], values[i]))
            chosen = frequent[: self._max_values]
            codes = np.ones(len(values) + 1, np.int32)
            codes[-1] = 0
            codes[chosen] = np.arange(2, len(chosen) + 2)
            self._result = [values[i] for i in chosen], codes
            self._index = {}
        return self._result

    def problems(self) -> list[str]:
        """None: a value outside the vocabulary has a code too."""
        return []

    def warnings(self) -> list[str]:
        """A column that is constant or nearly empty, or without any frequent value."""
        found = self._summary.warnings(self.name)
        if not found and not self._vocabulary()[0]:
            found = [
                f"column {self.name!r}: no value occurs in {self._category.min_count:,} or more "
                "training rows, so its vocabulary is empty"
            ]
        return found

    def values(self) -> list[str] | None:
        """The vocabulary, in the order of the codes."""
        return self._vocabulary()[0]


class FittedVocabularyEncoder:
    """Codes from the vocabulary of another store; `unseen` counts the rows with other values."""

    kind: Kind = "category"

    def __init__(self, name: str, category: FittedCategory | FittedBag) -> None:
        self.name = name
        self.columns = [name]
        self._category = category
        self._code = {value: code for code, value in enumerate(category.values or [], start=2)}
        self.unseen = 0

    def fit(self, array: Any, train: Mask) -> npt.NDArray[Any]:
        """Return the codes as stored; nothing is fitted."""
        codes_of_values = [self._code.get(value, 1) for value in array.dictionary.to_pylist()]
        codes = _look_up(array, np.array(codes_of_values, np.int32))
        self.unseen += int((codes == 1).sum())
        return codes

    def transform(self, spilled: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """The codes that `fit` computed."""
        return [spilled]

    def problems(self) -> list[str]:
        """None: a value outside the vocabulary has a code too."""
        return []

    def warnings(self) -> list[str]:
        """None: nothing is fitted."""
        return []

    def values(self) -> list[str] | None:
        """The vocabulary of the other store."""
        return self._category.values


def _look_up(array: Any, codes: Codes, missing: int = 0) -> Codes:
    """The code of each row of a dictionary array, given the codes of the dictionary's values."""
    indices = array.indices
    if indices.null_count:
        indices = indices.fill_null(len(codes))
    found: Codes = np.append(codes, np.int32(missing))[indices.to_numpy()]
    return found
