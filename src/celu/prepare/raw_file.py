"""A raw file (CSV, TSV, Parquet; .gz of the first two) as blocks of typed columns.

A file is streamed, so memory does not grow with its size. Errors name the file, the column and a
count or a row number. They never quote a cell, so pyarrow's own messages are not shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from celu.config.schema import TEXT_STYLE, Source
from celu.errors import ConfigError, DataError
from celu.prepare.delimited import DelimitedReader
from celu.prepare.number_text import NumberStyle
from celu.prepare.parquet import ParquetReader
from celu.prepare.parsing import Kind, NumberParser, advice_on_text
from celu.prepare.text_format import DELIMITERS, FORMATS, format_of, usual_delimiter

_NAMES_SHOWN = 20
_SHEETS = (".xlsx", ".xls", ".ods")


class Block(NamedTuple):
    """Consecutive rows; `position` is the number of bytes of the file read so far."""

    columns: dict[str, Any]
    num_rows: int
    position: int


class RawFile:
    """One raw file; raises ConfigError if its format is unknown, DataError if it is missing."""

    def __init__(self, path: Path, source: Source) -> None:
        self.path = path
        is_gzip, format_ = format_of(path)
        format_ = source.format or format_
        if format_ is None or (is_gzip and format_ == "parquet"):
            is_sheet = path.suffix.lower() in _SHEETS
            raise ConfigError(
                f"{path}: expected a name that ends in {', '.join(FORMATS)} or .gz of the first "
                f"three, got {path.suffix or 'no ending'}; "
                + ("save the sheet as CSV (UTF-8)" if is_sheet else "set source.format")
            )
        if not path.is_file():
            raise DataError(
                f"{path}: expected a file, got {'a folder' if path.is_dir() else 'none'}"
            )
        self.is_text = format_ != "parquet"
        if source.names is not None and not self.is_text:
            raise ConfigError(f"{path}: source.names is for files without column names")
        if not self.is_text and source.styles_text:
            raise ConfigError(f"{path}: {TEXT_STYLE} of [source] are for text files")
        self.num_bytes = path.stat().st_size
        self._parser = NumberParser()
        missing = sorted({"", *source.missing})
        self._reader: DelimitedReader | ParquetReader
        if self.is_text:
            delimiter = source.delimiter or usual_delimiter(path, format_)
            if delimiter == source.decimal:
                raise ConfigError(
                    f"{path}: source.decimal is also between the fields; set source.delimiter"
                )
            self._reader = DelimitedReader(
                path, delimiter, source.names, missing, is_gzip, NumberStyle.of(source)
            )
        else:
            self._reader = ParquetReader(path, missing, self._parser)
        self._names: list[str] | None = None

    def text_bytes(self, columns: Mapping[str, Kind]) -> int:
        """A rough upper bound of the size of these columns as text."""
        return self._reader.text_bytes(len(columns))

    def names(self) -> list[str]:
        """The column names in order; raises DataError if a name occurs twice."""
        if self._names is not None:
            return self._names
        names = self._reader.names()
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            raise DataError(
                f"{self.path}: expected each column name once, got {len(repeated)} of them twice, "
                f"the first at column {names.index(repeated[0]) + 1}"
            )
        self._names = names
        return names

    def check(self, columns: Mapping[str, Kind]) -> None:
        """Raise DataError unless the file has these columns."""
        names = self.names()
        absent = [name for name in columns if name not in names]
        if not absent:
            return
        if len(absent) == len(columns) and self.is_text:
            # The first line may be a row instead of the header: it must not be quoted.
            advice = "if the file has no header, set source.names"
            other = next((d for d in DELIMITERS if len(names) == 1 and d in names[0]), None)
            if other is not None:
                advice = f"if {other!r} is between its fields, set source.delimiter"
            raise DataError(
                f"{self.path}: expected columns such as {absent[0]!r}, got none of the declared "
                f"columns in the first line; {advice}"
            )
        shown = ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
        raise DataError(f"{self.path}: expected a column {absent[0]!r}, got {shown}")

    def blocks(self, columns: Mapping[str, Kind], threads: int = 1) -> Generator[Block, None, None]:
        """The rows in order; raises DataError for damaged files, ragged rows and wrong types."""
        self.check(columns)
        num_rows = 0
        for arrays, position in self._reader.blocks(columns, threads):
            length = len(next(iter(arrays.values())))
            num_rows += length
            yield Block(arrays, length, position)
        problems = [
            f"column {name!r}: expected numbers, got text in {count:,} rows; "
            + advice_on_text(name)
            for name, count in self._parser.text_rows.items()
            if count
        ]
        if not num_rows and not problems:
            problems = ["expected rows, got none"]
        if problems:
            raise DataError("\n".join(f"{self.path}: {problem}" for problem in problems))
