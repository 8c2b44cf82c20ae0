"""Parses cells as numbers, and replaces pyarrow's errors by ours, which quote no cell.

It opens no files; `delimited` and `parquet` do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from celu.errors import DataError
from celu.prepare.number_text import PLAIN, NumberStyle, style_of_all

# text: string. number: float64. category, bag: dictionary of strings.
# label: a dictionary of strings from text, Parquet's own type from Parquet; see `parse_labels`.
# date: dictionary of strings, or timestamps in microseconds from Parquet.
# as-is: string from a text file, Parquet's own type from Parquet.
Kind = Literal["text", "number", "category", "date", "bag", "label", "as-is"]

_DATE = re.compile(
    rb"\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([T ].*)?\s*$"
)
_RAGGED = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")


FORMAT_ADVICE = 'set its format, such as format = "%d/%m/%Y" where the day comes first'


class NumberParser:
    """Parses dictionaries of text as float64 and counts, by column, the rows that do not parse."""

    def __init__(self, style: NumberStyle = PLAIN) -> None:
        self.text_rows: Counter[str] = Counter()
        self._style = style

    def parse(self, name: str, array: Any) -> tuple[Any, bool]:
        """The numbers, and whether all are written as integers; text becomes null."""
        values = self._style.plain(array.dictionary)
        pattern = "^[+-]?[0-9]+$"
        are_integers = pc.all(pc.match_substring_regex(values, pattern)).as_py() is not False
        try:
            return values.cast(pa.float64()).take(array.indices), are_integers
        except pa.ArrowInvalid:
            is_text = [
                value is not None and classify_cell(value.encode()) != "number"
                for value in values.to_pylist()
            ]
            self.text_rows[name] += pc.sum(pa.array(is_text).take(array.indices)).as_py() or 0
            parsed = pc.if_else(pa.array(is_text), None, values).cast(pa.float64())
            return parsed.take(array.indices), are_integers


class ParsedLabels(NamedTuple):
    """Labels as float64, with null for a missing one; and how they are written."""

    values: Any
    are_integers: bool
    num_text: int  # rows that hold no number; they are null in `values`

    @property
    def num_numbers(self) -> int:
        """How many rows hold a number."""
        return len(self.values) - int(self.values.null_count)


def parse_labels(array: Any, style: NumberStyle = PLAIN) -> ParsedLabels:
    """Labels of a raw file as numbers."""
    if pa.types.is_dictionary(array.type):
        parser = NumberParser(style)
        values, are_integers = parser.parse("", array)
        return ParsedLabels(values, are_integers, parser.text_rows[""])
    are_integers = pa.types.is_integer(array.type) or pa.types.is_boolean(array.type)
    if pa.types.is_floating(array.type):
        # Null means that a label is missing, NaN is an error: do not mix them.
        return ParsedLabels(array.cast(pa.float64()), False, 0)
    return ParsedLabels(to_float64(array), are_integers, 0)


def to_float64(array: Any) -> Any:
    """A typed array as float64, with null for NaN: in a typed file NaN means a missing value."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    array = array.cast(pa.float64(), safe=False)
    return pc.if_else(pc.is_nan(array), None, array)


def classify_cell(value: bytes, style: NumberStyle = PLAIN) -> Literal["bytes", "text", "number"]:
    """What a cell holds; "bytes" is anything but UTF-8."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "bytes"
    try:
        style.parse(text)
    except ValueError:
        return "text"
    return "number"


def is_date(value: bytes) -> bool:
    """Whether a cell looks like a date or a time stamp."""
    return _DATE.match(value) is not None


def advice_on_text(name: str, *, are_dates: bool = False, style: NumberStyle | None = None) -> str:
    """What to do about text in a column of numbers: dates, or numbers in another style, if so."""
    if style is not None:
        return f"they look like numbers: set {style.declaration} under [source] in schema.toml"
    if are_dates:
        return (
            f"they look like dates: declare {name!r} under [dates] in schema.toml and, unless they "
            f"are in ISO 8601, {FORMAT_ADVICE}"
        )
    return (
        f"declare {name!r} under [categories] in schema.toml, or, if the text means a missing "
        "value, list it in missing of [source]"
    )


def advice_on_numbers(texts: Sequence[str], separator: str = "") -> str:
    """What to do about labels that are text, if all of them are numbers in another style."""
    style = style_of_all(texts) if texts else None
    return separator + advice_on_text("", style=style) if style is not None else ""


class CellTypeError(Exception):
    """A cell does not have its column's type; a second pass finds out which one."""


@contextmanager
def readable(path: Path, *, block_bytes: int = 0) -> Iterator[None]:
    """Raise DataError for errors of pyarrow, without their messages: those may quote cells."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, got: {error}") from None
    except (pa.ArrowException, UnicodeDecodeError) as error:
        message = str(error)
        if "conversion error" in message:
            raise CellTypeError from None
        ragged = _RAGGED.search(message)
        if ragged is not None:
            row, expected, fields = ragged.groups()
            advice = ""
            if expected == "1":  # the header has no delimiter
                advice = "; if another character is between its fields, set source.delimiter"
            raise DataError(
                f"{path}: row {row}: expected {expected} fields, got {fields}{advice}"
            ) from None
        got = "a damaged one"
        if "Empty CSV" in message:
            got = "an empty one"
        elif "straddling" in message:
            got = f"a row longer than {block_bytes:,} bytes; check for an unclosed quote"
        elif isinstance(error, UnicodeDecodeError) or "UTF8" in message:
            got = "bytes that are not UTF-8; write the file again as UTF-8"
        raise DataError(f"{path}: expected a readable file, got {got}") from None
