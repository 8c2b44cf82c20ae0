"""Converts a pandas DataFrame or an Arrow table to the inputs of a dataset.

Inputs are named as in a store: "ids" for codes and "numbers" for the rest. Columns are checked and
encoded. Only `celu prepare` scales numbers, fills nulls and holds rows out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from celu.config.schema import IDS, NUMBERS
from celu.data.tags import Tags, make_tags
from celu.errors import DataError

_NAMES_SHOWN = 20
_MAX_CODES = 2**31

Numbers = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int64]


class TableContent(NamedTuple):
    """The content of a dataset, as NumPy arrays."""

    inputs: dict[str, npt.NDArray[Any]]
    labels: npt.NDArray[Any] | None
    sizes: dict[str, tuple[int, ...]]
    tags: Tags | None
    classes: tuple[str, ...] | None = None  # of text labels, which are codes
    weights: Numbers | None = None


def read_table(
    table: Any,
    *,
    label: str | None,
    row_id: str | None,
    weight: str | None,
    inputs: Mapping[str, Sequence[str]] | None,
    seed: int,
) -> TableContent:
    """Convert a table; raises DataError that names the column and the next step."""
    columns = _Columns(table)
    if inputs is None:
        others = (label, row_id, weight)
        inputs = columns.by_type([name for name in columns.names if name not in others])
    _check_inputs(inputs, {"label": label, "id": row_id, "weight": weight})
    labels, classes = columns.label(label) if label else (None, None)
    weights = columns.numbers(weight) if weight else None
    content = TableContent({}, labels, {}, columns.tags(row_id, seed), classes, weights)
    if inputs.get(IDS):
        codes, content.sizes[IDS] = zip(*map(columns.codes, inputs[IDS]), strict=True)
        content.inputs[IDS] = np.stack(codes, axis=1)
    if inputs.get(NUMBERS):
        content.inputs[NUMBERS] = np.stack([*map(columns.numbers, inputs[NUMBERS])], axis=1)
    return content


def _check_inputs(inputs: Mapping[str, Sequence[str]], others: Mapping[str, str | None]) -> None:
    for name, columns in inputs.items():
        if name not in (IDS, NUMBERS):
            raise DataError(f"inputs: expected the names {IDS!r} and {NUMBERS!r}, got {name!r}")
        if isinstance(columns, str):
            raise DataError(f"input {name!r}: expected a list of columns, got text")
        for role, column in others.items():
            if column is not None and column in columns:
                raise DataError(f"input {name!r}: column {column!r} is the {role}, not a feature")


class _Columns:
    """The columns of a table by name, converted one at a time."""

    def __init__(self, table: Any) -> None:
        import pyarrow as pa

        # By its module, so that pandas need not be installed.
        self._pandas = table if type(table).__module__.partition(".")[0] == "pandas" else None
        if self._pandas is None:
            if not hasattr(table, "__arrow_c_stream__"):
                raise DataError(
                    "table: expected a pandas DataFrame or a pyarrow Table, "
                    f"got {type(table).__name__}"
                )
            table = pa.table(table)
        elif not hasattr(table, "columns"):
            raise DataError(f"table: expected a DataFrame, got a {type(table).__name__}")
        self._table = table
        self.names = [*map(str, table.columns if self._pandas is not None else table.column_names)]
        self._position = {name: at for at, name in enumerate(self.names)}
        if len(self._position) < len(self.names):
            raise DataError("table: expected each column name once, got a name twice")
        if not len(table):
            raise DataError("table: expected rows, got none")

    def by_type(self, names: Sequence[str]) -> dict[str, list[str]]:
        """Text and categories are ids, everything else numbers."""
        inputs: dict[str, list[str]] = {IDS: [], NUMBERS: []}
        for name in names:
            inputs[IDS if _is_text(self._array(name).type) else NUMBERS].append(name)
        return inputs

    def numbers(self, name: str) -> Numbers:
        """Any numeric column or booleans, as float32."""
        import pyarrow as pa

        array = self._array(name)
        self._check_numeric(name, array.type)
        if pa.types.is_boolean(array.type):
            array = array.cast(pa.int8())
        with np.errstate(over="ignore"):  # too large becomes infinite, and is refused
            values = array.cast(pa.float64(), safe=False).to_numpy().astype(np.float32)
        num_bad = int((~np.isfinite(values)).sum())
        if num_bad:
            raise DataError(
                f"column {name!r}: expected finite numbers within float32, got others in "
                f"{num_bad:,} rows; replace them first"
            )
        return np.asarray(values, np.float32)

    def label(self, name: str) -> tuple[npt.NDArray[Any], tuple[str, ...] | None]:
        """Integers as int64, other numbers as float32, text as codes of its sorted classes."""
        import pyarrow as pa

        array = self._array(name)
        if _is_text(array.type):
            texts = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
            if not _is_text(texts.type):  # categories that are numbers
                return texts.to_numpy(zero_copy_only=False), None
            classes, codes = np.unique(texts.to_numpy(zero_copy_only=False), return_inverse=True)
            return codes.astype(np.int64), tuple(map(str, classes))
        if not pa.types.is_integer(array.type):
            return self.numbers(name), None
        return np.asarray(array.to_numpy(), np.int64), None

    def codes(self, name: str) -> tuple[Codes, int]:
        """A column's codes, and the largest possible code + 1; integers are codes already."""
        import pyarrow as pa
        import pyarrow.compute as pc

        array = self._array(name)
        if pa.types.is_integer(array.type):
            codes = np.asarray(array.to_numpy(), np.int64)
            if codes.min() < 0 or codes.max() >= _MAX_CODES:
                raise DataError(
                    f"column {name!r}: expected codes from 0 to below 2**31, got others; "
                    "make the column categorical to encode its values"
                )
            return codes, int(codes.max()) + 1
        if not _is_text(array.type):
            raise DataError(
                f"column {name!r}: expected text, categories or integer codes for an id, "
                f"got {array.type}"
            )
        if not pa.types.is_dictionary(array.type):
            array = array.dictionary_encode()
        # Unused categories get codes too, so that all parts of one table have the same codes.
        order = pc.sort_indices(array.dictionary).to_numpy()
        code_of = np.empty(len(order), np.int64)
        code_of[order] = np.arange(len(order))
        return code_of[array.indices.to_numpy()], len(order)

    def tags(self, name: str | None, seed: int) -> Tags | None:
        """The tags of the rows, from the column of ids."""
        import pyarrow as pa

        if name is None:
            return None
        array = self._array(name)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if not (_is_text(array.type) or pa.types.is_integer(array.type)):
            raise DataError(
                f"column {name!r}: expected text or integers for an id, got {array.type}"
            )
        ids = array.cast(pa.large_string()).to_pylist()
        num_repeats = len(ids) - len(set(ids))
        if num_repeats:
            raise DataError(
                f"column {name!r}: expected each id once, got {num_repeats:,} repeats; "
                "drop the duplicates"
            )
        return make_tags(ids, seed)

    def _array(self, name: str) -> Any:
        import pyarrow as pa

        if name not in self._position:
            shown = ", ".join(self.names[:_NAMES_SHOWN])
            more = ", ..." if len(self.names) > _NAMES_SHOWN else ""
            raise DataError(f"column {name!r}: the table has no such column, only {shown}{more}")
        at = self._position[name]
        if self._pandas is not None:
            try:
                array = pa.array(self._pandas.iloc[:, at], from_pandas=True)
            except pa.ArrowException:  # its message may quote a value
                raise DataError(
                    f"column {name!r}: expected one type in all rows, got several; convert it first"
                ) from None
        else:
            array = self._table.column(at)
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        if pa.types.is_string_view(array.type):  # Arrow cannot dictionary-encode these
            array = array.cast(pa.large_string())
        if pa.types.is_dictionary(array.type) and array.dictionary.null_count:
            array = array.dictionary_decode().dictionary_encode()
        if array.null_count:
            raise DataError(
                f"column {name!r}: expected a value in every row, got {array.null_count:,} nulls; "
                "fill them or drop those rows first"
            )
        return array

    def _check_numeric(self, name: str, given: Any) -> None:
        import pyarrow as pa

        types = pa.types
        if (
            types.is_integer(given)
            or types.is_floating(given)
            or types.is_boolean(given)
            or types.is_decimal(given)
        ):
            return
        raise DataError(
            f"column {name!r}: expected numbers or booleans, got {given}; convert it, or leave it "
            "out of inputs"
        )


def _is_text(given: Any) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_dictionary(given)
        or pa.types.is_string(given)
        or pa.types.is_large_string(given)
    )
