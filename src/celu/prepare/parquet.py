"""Reads a Parquet file as Arrow arrays, batch by batch, and checks the types of its columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from celu.data.decoded_text import decode_text
from celu.data.parquet_sizes import check_sizes
from celu.errors import DataError
from celu.prepare.parsing import Kind, NumberParser, advice_on_text, readable, to_float64

PARQUET_ROWS = 65_536
_MAX_LIST_VALUES = 1 << 24  # in a row group; more only where the file has bytes for them
_MAX_VALUES_PER_BYTE = 16


class ParquetReader:
    """One Parquet file. Text where numbers are expected is parsed, and counted by `parser`."""

    def __init__(self, path: Path, missing: list[str], parser: NumberParser) -> None:
        self._path = path
        self._missing = missing
        self._parser = parser

    def text_bytes(self, num_columns: int) -> int:
        """See `RawFile.text_bytes`."""
        with readable(self._path):
            metadata = pq.read_metadata(self._path)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        # Pages of repeated values are much smaller than their text.
        at_least = metadata.num_rows * 8 * (num_columns + 4)
        return int(max(at_least, sum(group.total_byte_size for group in groups)))

    def names(self) -> list[str]:
        """The column names."""
        with readable(self._path):
            return list(pq.read_schema(self._path).names)

    def blocks(
        self, columns: Mapping[str, Kind], threads: int
    ) -> Iterator[tuple[dict[str, Any], int]]:
        """Arrays by column, and roughly the number of bytes read so far."""
        del threads  # columns are converted one by one
        with readable(self._path):
            types = {field.name: field.type for field in pq.read_schema(self._path)}
            for name, kind in columns.items():
                self._check_type(name, kind, types[name])
            check_sizes(self._path, columns)
            lists = [name for name in columns if is_list(types[name])]
            file = pq.ParquetFile(
                self._path,
                # Of text; its size is checked before it is copied.
                read_dictionary=[n for n in columns if n not in lists] + self._values_of(lists),
                buffer_size=1 << 20,  # by default a whole column of a row group is read at once
                page_checksum_verification=True,
            )
        with file:
            num_bytes = self._path.stat().st_size
            num_rows = max(file.metadata.num_rows, 1)
            rows_read = 0
            batches = file.iter_batches(PARQUET_ROWS, columns=list(columns), use_threads=False)
            while True:
                with readable(self._path):
                    batch = next(batches, None)
                    if batch is None:
                        return
                    arrays = {
                        name: self._convert(name, kind, batch.column(name))
                        for name, kind in columns.items()
                    }
                rows_read += batch.num_rows
                yield arrays, num_bytes * rows_read // num_rows

    def _values_of(self, lists: Sequence[str]) -> list[str]:
        """The paths of the values of these columns of lists.

        Raises DataError for more values than the file can have: nulls take no bytes.
        """
        metadata = pq.read_metadata(self._path)
        paths = []
        for number in range(metadata.num_columns if lists else 0):
            path = metadata.schema.column(number).path
            if not any(path.startswith(f"{name}.") for name in lists):
                continue
            paths.append(path)
            for group in range(metadata.num_row_groups):
                chunk = metadata.row_group(group).column(number)
                limit = max(_MAX_LIST_VALUES, _MAX_VALUES_PER_BYTE * chunk.total_compressed_size)
                if chunk.num_values > limit:
                    raise DataError(
                        f"{self._path}: column {path!r}: row group {group} declares "
                        f"{chunk.num_values:,} values, far more than it has bytes for; write the "
                        "file again"
                    )
        return paths

    def _check_type(self, name: str, kind: Kind, given: Any) -> None:
        if pa.types.is_dictionary(given):
            given = given.value_type
        is_text = pa.types.is_string(given) or pa.types.is_large_string(given)
        is_integer = pa.types.is_integer(given)
        is_boolean = pa.types.is_boolean(given)
        is_number = (
            is_integer or is_boolean or pa.types.is_floating(given) or pa.types.is_decimal(given)
        )
        is_empty = pa.types.is_null(given)
        is_of_codes = is_list(given) and has_codes(given.value_type)
        is_valid = {
            "text": is_text or is_integer,
            "number": is_number or is_text or is_empty,
            "label": is_number or is_text or is_empty,
            "category": is_text or is_integer or is_boolean or is_empty,
            "date": is_text or pa.types.is_date(given) or pa.types.is_timestamp(given) or is_empty,
            "bag": is_text or is_empty or is_of_codes,
            "as-is": not pa.types.is_nested(given),
        }[kind]
        if not is_valid:
            expected = {
                "text": "text or integers for an id",
                "number": "numbers",
                "label": "numbers for a label",
                "category": "text, integers or booleans for a category",
                "date": "dates, timestamps or text",
                "bag": "text with separators, or lists of text or integers, for a bag",
                "as-is": "a type that is not nested",
            }[kind]
            fix = ""
            if kind == "number" and pa.types.is_temporal(given):
                fix = f"; {advice_on_text(name, are_dates=True)}"
            raise DataError(f"{self._path}: column {name!r}: expected {expected}, got {given}{fix}")

    def _convert(self, name: str, kind: Kind, array: Any) -> Any:
        is_date = pa.types.is_date(array.type) or pa.types.is_timestamp(array.type)
        if kind in ("category", "bag") or (kind == "date" and not is_date):
            is_of_lists = is_list(array.type)
            return self._to_lists(name, array) if is_of_lists else self._to_category(array)
        if pa.types.is_dictionary(array.type):
            array = self._decode(name, array)
        if kind in ("as-is", "date"):
            return _to_timestamp(array) if kind == "date" else array
        if kind == "text":
            array = array.cast(pa.string())
            _check_utf8(array)
            is_missing = pc.is_in(array, value_set=pa.array(self._missing, array.type))
            return pc.if_else(is_missing, None, array)
        is_text = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
        if kind == "number":
            if is_text:
                return self._parser.parse(name, self._to_category(array))[0]
            return to_float64(array)
        return self._to_category(array) if is_text else array

    def _decode(self, name: str, values: Any) -> Any:
        advice = "shorten them or drop the column"
        return decode_text(self._path, name, values, PARQUET_ROWS, advice)

    def _to_lists(self, name: str, array: Any) -> Any:
        """Lists of texts, without nulls and the texts for missing values; empty if missing."""
        parents, values = pc.list_parent_indices(array), array.flatten()
        if pa.types.is_dictionary(values.type):
            values = self._decode(name, values)
        values = values.cast(pa.string())
        _check_utf8(values)
        is_value = pc.invert(pc.is_in(values, value_set=pa.array([*self._missing, None])))
        values, parents = values.filter(is_value), parents.filter(is_value).to_numpy()
        lengths = np.bincount(parents, minlength=len(array))
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), values)

    def _to_category(self, array: Any) -> Any:
        """A dictionary of strings, with null for missing values."""
        if pa.types.is_dictionary(array.type) and not array.dictionary.null_count:
            values = array.dictionary.cast(pa.string())
            array = pa.DictionaryArray.from_arrays(array.indices.cast(pa.int32()), values)
        else:
            if pa.types.is_dictionary(array.type):
                array = array.dictionary_decode()
            array = array.cast(pa.string()).dictionary_encode()
        _check_utf8(array.dictionary)
        is_missing = pc.is_in(array.dictionary, value_set=pa.array(self._missing))
        if not pc.any(is_missing).as_py():
            return array
        missing_rows = is_missing.take(array.indices)
        indices = pc.if_else(pc.fill_null(missing_rows, True), None, array.indices)
        return pa.DictionaryArray.from_arrays(indices, array.dictionary)


def has_codes(given: Any) -> bool:
    """Whether values of a type can be the values of a bag."""
    types = pa.types
    if types.is_dictionary(given):
        given = given.value_type
    is_text = types.is_string(given) or types.is_large_string(given)
    return bool(is_text or types.is_integer(given) or types.is_null(given))


def is_list(given: Any) -> bool:
    """Whether a type of Arrow is one of lists."""
    types = pa.types
    return bool(
        types.is_list(given) or types.is_large_list(given) or types.is_fixed_size_list(given)
    )


def _check_utf8(array: Any) -> None:
    array.validate(full=True)  # text in a Parquet file may be any bytes


def _to_timestamp(array: Any) -> Any:
    """Microseconds without a zone: Parquet has those with a zone in UTC."""
    if pa.types.is_date(array.type):
        array = array.cast(pa.timestamp("s"))
    zone = array.type.tz
    array = array.cast(pa.timestamp("us", zone), safe=False)
    return array.cast(pa.int64()).cast(pa.timestamp("us"))
