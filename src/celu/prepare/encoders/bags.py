"""The encoder of bags: cells with several values, as lists of codes of one length."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from celu.config.columns import Bag
from celu.prepare.encoders.categories import (
    FittedVocabularyEncoder,
    HashEncoder,
    VocabularyEncoder,
)
from celu.prepare.encoders.encoder import Mask
from celu.prepare.encoders.statistics import ColumnSummary
from celu.prepare.parsing import Kind

_NONE = -1  # the index where a row has no further value


class BagEncoder:
    """Splits cells; `values` encodes the values of all rows as those of one category."""

    kind: Kind = "bag"

    def __init__(
        self,
        name: str,
        bag: Bag,
        values: HashEncoder | VocabularyEncoder | FittedVocabularyEncoder,
    ) -> None:
        self.name = name
        self.columns = [name]
        self.row_bytes = 4 * bag.max_values
        self.unseen = 0
        self._bag = bag
        self._values = values
        self._summary = ColumnSummary()
        self._truncated = 0
        self._separated = 0  # values of lists that contain the separator

    def fit(self, array: Any, train: Mask) -> npt.NDArray[Any]:
        """Return [rows, max_values]: what the encoder of the values returns for each."""
        if pa.types.is_list(array.type):
            rows, values, is_truncated = self._cut(array)
            self._truncated += int(is_truncated.sum())
            self._separated += _count_with(values, self._bag.separator)
        else:
            cells, values, is_truncated = self._cut(
                pc.split_pattern(array.dictionary, self._bag.separator)
            )
            empty = np.full((1, self._bag.max_values), _NONE, np.int32)
            indices = array.indices.fill_null(len(cells)).to_numpy()
            rows = np.concatenate((cells, empty))[indices]
            self._truncated += int(np.append(is_truncated, False)[indices].sum())
        is_empty = rows[:, 0] == _NONE
        self._summary.add(~is_empty[train], int(is_empty[train].sum()))
        flat = rows.reshape(-1)
        codes = pa.DictionaryArray.from_arrays(pa.array(flat, mask=flat == _NONE), values)
        encoded = self._values.fit(codes, np.repeat(train, self._bag.max_values))
        encoded = encoded.reshape(rows.shape)
        if isinstance(self._values, FittedVocabularyEncoder):
            self.unseen += int((encoded == 1).any(axis=1).sum())
        return encoded

    def _cut(self, cells: Any) -> tuple[npt.NDArray[np.int32], Any, Mask]:
        """The values of each list as indices, the values, and which lists have too many."""
        width = self._bag.max_values
        cell = np.repeat(np.arange(len(cells)), pc.list_value_length(cells).to_numpy())
        flat = pc.utf8_trim_whitespace(cells.flatten()).dictionary_encode()
        index = flat.indices.to_numpy()
        is_value = pc.not_equal(flat.dictionary, "").to_numpy(zero_copy_only=False)[index]
        cell, index = cell[is_value], index[is_value]
        # Each value once, at its first place in the cell.
        _, first = np.unique(cell * max(len(flat.dictionary), 1) + index, return_index=True)
        first.sort()
        cell, index = cell[first], index[first]
        lengths = np.bincount(cell, minlength=len(cells))
        place = np.arange(len(cell)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        fits = place < width
        matrix = np.full((len(cells), width), _NONE, np.int32)
        matrix[cell[fits], place[fits]] = index[fits]
        return matrix, flat.dictionary, lengths > width

    def transform(self, spilled: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """The code of each value."""
        return self._values.transform(spilled)

    def problems(self) -> list[str]:
        """None: any text can be split."""
        return []

    def warnings(self) -> list[str]:
        """A column that is nearly empty, an empty vocabulary, and rows with too many values."""
        found = self._summary.warnings(self.name) if self._summary.missing else []
        if self._values.values() == [] and not found:
            found = self._values.warnings()
        if self._truncated:
            found = [
                *found,
                f"column {self.name!r}: {self._truncated:,} rows have more than "
                f"{self._bag.max_values} values; only the first ones are used (max_values)",
            ]
        if self._separated:
            found = [
                *found,
                f"column {self.name!r}: values of its lists contain the separator, which would "
                "split them in text, such as a request; choose another separator",
            ]
        return found

    def values(self) -> list[str] | None:
        """The vocabulary in the order of the codes, if there is one."""
        return self._values.values()


def _count_with(values: Any, text: str) -> int:
    return int(pc.sum(pc.match_substring(values, text)).as_py() or 0)
