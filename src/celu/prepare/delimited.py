"""Reads delimited text (CSV, TSV, gzip of either) as Arrow arrays, block by block.

The file is cut into pieces after a newline, which threads parse. Where a piece may be cut within
quotes, or cannot be parsed, the file is parsed from there on as one stream: errors then name the
row of the file, and nothing depends on the number of threads.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv

from celu.errors import DataError
from celu.prepare.number_text import PLAIN, NumberStyle, styles_of
from celu.prepare.parsing import (
    CellTypeError,
    Kind,
    NumberParser,
    advice_on_text,
    classify_cell,
    is_date,
    readable,
)
from celu.prepare.prefetch import prefetch
from celu.threads import DaemonThreads

# Blocks of this size are parsed within the CPU's cache. Several are then joined, because the cost
# of a category depends on the number of distinct values in a block.
BLOCK_BYTES = 1 << 20
BLOCKS_JOINED = 16
PIECE_BYTES = BLOCK_BYTES * BLOCKS_JOINED  # which a thread parses
GZIP_RATIO = 8  # a rough upper bound of the compression ratio


class DelimitedReader:
    """One text file."""

    def __init__(
        self,
        path: Path,
        delimiter: str,
        names: list[str] | None,
        missing: list[str],
        is_gzip: bool,
        style: NumberStyle = PLAIN,
    ) -> None:
        self._path = path
        self._delimiter = delimiter
        self._header = names
        self._missing = missing
        self._is_gzip = is_gzip
        self._style = style

    def text_bytes(self, num_columns: int) -> int:
        """See `RawFile.text_bytes`; this bound includes all columns of the file."""
        del num_columns
        return self._path.stat().st_size * (GZIP_RATIO if self._is_gzip else 1)

    def names(self) -> list[str]:
        """The column names."""
        self._check_encoding()
        with readable(self._path, block_bytes=BLOCK_BYTES), self._open() as stream:
            names: list[str] = self._parse(stream, None).schema.names
            return names

    def blocks(
        self, columns: Mapping[str, Kind], threads: int
    ) -> Iterator[tuple[dict[str, Any], int]]:
        """Arrays by column, and the number of bytes read so far."""
        types = {
            name: pa.float64() if kind == "number" and self._style.is_for_arrow else pa.string()
            for name, kind in columns.items()
        }
        parser = NumberParser(self._style)
        try:
            with readable(self._path, block_bytes=BLOCK_BYTES):
                yield from self._parsed(types, columns, threads, parser)
            if parser.text_rows.total():
                raise CellTypeError
        except CellTypeError:
            raise self._diagnose(columns) from None

    def _parsed(
        self,
        types: Mapping[str, Any],
        columns: Mapping[str, Kind],
        threads: int,
        parser: NumberParser,
    ) -> Iterator[tuple[dict[str, Any], int]]:
        """Like `blocks`; text in columns of numbers is null, and counted by the parser."""
        num_rows = 0
        for parsed in self._in_pieces(types, columns, threads, parser):
            if parsed is None:
                yield from self._as_stream(types, columns, num_rows, parser)
                return
            arrays, position = parsed
            length = len(next(iter(arrays.values())))
            num_rows += length
            if length:
                yield arrays, position

    def _in_pieces(
        self,
        types: Mapping[str, Any],
        columns: Mapping[str, Kind],
        threads: int,
        parser: NumberParser,
    ) -> Iterator[tuple[dict[str, Any], int] | None]:
        """The blocks of all pieces in order; ends with None if the rest has to be a stream."""
        ahead: deque[tuple[Future[dict[str, Any] | None], int]] = deque()
        names = self._header

        def parse(piece: bytes, names: list[str] | None) -> dict[str, Any] | None:
            try:
                read, parsing, converting = self._options(types, names)
                table = pa_csv.read_csv(pa.BufferReader(piece), read, parsing, converting)
            except (pa.ArrowException, UnicodeDecodeError):
                return None
            return _join(table, columns, parser)

        is_cut = False
        with DaemonThreads(threads, "celu-parse") as pool:
            for piece, position in prefetch(self._pieces()):
                is_cut = piece is not None
                if piece is None:
                    break
                ahead.append((pool.submit(parse, piece, names), position))
                names = names or self.names()
                if len(ahead) > threads:
                    yield _placed(*ahead.popleft())
            while ahead:
                yield _placed(*ahead.popleft())
        if not is_cut:  # or it is empty
            yield None

    def _pieces(self) -> Generator[tuple[bytes | None, int], None, None]:
        """The file cut after newlines, and the bytes read so far; None: it cannot be cut."""
        rest = b""
        with pa.OSFile(str(self._path)) as raw:
            stream = pa.CompressedInputStream(raw, "gzip") if self._is_gzip else raw
            while data := stream.read(PIECE_BYTES):
                data = rest + data
                end = data.rfind(b"\n") + 1
                if not end or data.count(b'"', 0, end) % 2:
                    yield None, 0
                    return
                yield data[:end], raw.tell()
                rest = data[end:]
            if rest:
                yield rest, raw.tell()

    def _as_stream(
        self, types: Mapping[str, Any], columns: Mapping[str, Kind], skip: int, parser: NumberParser
    ) -> Iterator[tuple[dict[str, Any], int]]:
        """Like `blocks`, without the first rows."""
        with pa.OSFile(str(self._path)) as raw:
            stream = pa.CompressedInputStream(raw, "gzip") if self._is_gzip else raw
            # Parse in another thread, while this one joins blocks.
            for batches in prefetch(_group(self._parse(stream, types), BLOCKS_JOINED)):
                left = []
                for batch in batches:
                    if batch.num_rows > skip:
                        left.append(batch.slice(skip))
                    skip = max(0, skip - batch.num_rows)
                if left:
                    yield _join(pa.Table.from_batches(left), columns, parser), raw.tell()

    def _open(self) -> Any:
        raw = pa.OSFile(str(self._path))
        return pa.CompressedInputStream(raw, "gzip") if self._is_gzip else raw

    def _check_encoding(self) -> None:
        with readable(self._path), self._open() as stream:
            start = stream.read(2)
        if start in (b"\xff\xfe", b"\xfe\xff"):
            raise DataError(
                f"{self._path}: expected UTF-8, got UTF-16; write the file again as UTF-8"
            )

    def _parse(self, stream: Any, types: Mapping[str, Any] | None) -> Any:
        return pa_csv.open_csv(stream, *self._options(types, self._header))

    def _options(
        self, types: Mapping[str, Any] | None, names: list[str] | None
    ) -> tuple[Any, Any, Any]:
        """How to read, to parse and to convert."""
        return (
            # One thread: errors then name the row, and buffered blocks do not grow with the cores.
            pa_csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES, column_names=names),
            pa_csv.ParseOptions(delimiter=self._delimiter),
            pa_csv.ConvertOptions(
                null_values=self._missing,
                decimal_point=self._style.decimal,
                strings_can_be_null=True,
                column_types=types,
                include_columns=list(types) if types else None,
            ),
        )

    def _diagnose(self, columns: Mapping[str, Kind]) -> DataError:
        """Read the whole file again as bytes, to count the cells that cannot be converted."""
        undecodable: Counter[str] = Counter()
        text: Counter[str] = Counter()
        dates: Counter[str] = Counter()
        styles: dict[str, Counter[NumberStyle]] = {name: Counter() for name in columns}
        with readable(self._path, block_bytes=BLOCK_BYTES), self._open() as stream:
            for batch in self._parse(stream, dict.fromkeys(columns, pa.binary())):
                for name, kind in columns.items():
                    for value in batch.column(name).drop_null().to_pylist():
                        found = classify_cell(value, self._style)
                        undecodable[name] += found == "bytes"
                        if kind == "number" and found == "text":
                            text[name] += 1
                            dates[name] += is_date(value)
                            styles[name].update(styles_of(value.decode(), self._delimiter))
        problems = []
        for count, expected, got in (
            (undecodable, "UTF-8", "other bytes"),
            (text, "numbers", "text"),
        ):
            for name in columns:
                if count[name]:
                    what = f"expected {expected}, got {got} in {count[name]:,} rows"
                    fix = "write the file again as UTF-8"
                    if count is text:
                        style, rows = max(
                            styles[name].items(), key=lambda item: item[1], default=(None, 0)
                        )
                        fix = advice_on_text(
                            name,
                            are_dates=dates[name] == text[name],
                            style=style if rows == text[name] else None,
                        )
                    problems.append(f"{self._path}: column {name!r}: {what}; {fix}")
        return DataError("\n".join(problems) or f"{self._path}: expected numbers, got text")


def _placed(
    parsed: Future[dict[str, Any] | None], position: int
) -> tuple[dict[str, Any], int] | None:
    arrays = parsed.result()
    return None if arrays is None else (arrays, position)


def _group(batches: Iterator[Any], size: int) -> Generator[list[Any], None, None]:
    group = []
    for batch in batches:
        group.append(batch)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def _join(table: Any, columns: Mapping[str, Kind], parser: NumberParser) -> dict[str, Any]:
    joined = {}
    for name, kind in columns.items():
        column = table.column(name)
        if kind in ("category", "date", "bag", "label"):
            # Faster than dictionaries from the parser, which makes one for each block.
            column = column.dictionary_encode()
        if kind == "number" and column.type == pa.string():
            column = column.dictionary_encode().combine_chunks()
            joined[name] = parser.parse(name, column)[0]
        else:
            joined[name] = column.combine_chunks()
    return joined
