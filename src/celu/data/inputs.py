"""The inputs of a bottom model: which columns of a store each has, and the shape of its rows.

| columns    | rows of the input                                                        |
|------------|--------------------------------------------------------------------------|
| numbers    | [columns], float32                                                       |
| categories | [columns], codes                                                         |
| bags       | [columns, values], codes; 0 fills up columns with fewer values than most |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from celu.config.schema import StoreSchema, number_columns, stored_columns
from celu.errors import DataError


@dataclass(frozen=True)
class InputLayout:
    """One input; `sizes` has the number of codes of each column, and is empty for numbers."""

    columns: tuple[str, ...]
    sizes: tuple[int, ...] = ()
    num_values: int | None = None  # in each list of codes, for bags

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        lists = () if self.num_values is None else (self.num_values,)
        return (len(self.columns), *lists)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the values in a store."""
        return np.dtype(np.int32 if self.sizes else np.float32)

    def stack(self, arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """The rows, given the values of each column."""
        if self.num_values is None:
            return np.stack(arrays, axis=1)
        rows = np.zeros((len(arrays[0]), *self.shape), self.dtype)
        for number, array in enumerate(arrays):
            rows[:, number, : array.shape[1]] = array
        return rows


def layouts(
    schema: StoreSchema, inputs: Mapping[str, Sequence[str]], where: str
) -> dict[str, InputLayout]:
    """The layout of each input; raises DataError for an unknown column, and for mixed kinds."""
    known = stored_columns(schema)
    numbers = set(number_columns(schema))
    found = {}
    for name, columns in inputs.items():
        for column in columns:
            if column not in known:
                raise DataError(
                    f"{where}: input {name!r}: expected features of the store "
                    f"({', '.join(sorted(known)[:20])}), got {column!r}"
                )
        kinds = {
            "numbers" if c in numbers else "categories" if c in schema.categories else "bags"
            for c in columns
        }
        if len(kinds) != 1:
            raise DataError(
                f"{where}: input {name!r}: expected only categories, only numbers or only bags, "
                f"got {' and '.join(sorted(kinds))}; make several inputs of them"
            )
        if kinds == {"numbers"}:
            found[name] = InputLayout(tuple(columns))
        elif kinds == {"categories"}:
            sizes = tuple(schema.categories[c].size for c in columns)
            found[name] = InputLayout(tuple(columns), sizes)
        else:
            bags = [schema.bags[c] for c in columns]
            sizes = tuple(bag.size for bag in bags)
            found[name] = InputLayout(tuple(columns), sizes, max(bag.max_values for bag in bags))
    return found
