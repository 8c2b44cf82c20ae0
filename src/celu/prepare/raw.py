"""Raw files (CSV, TSV, Parquet; .gz of the first two) as blocks of typed columns.

A file is streamed, so memory does not grow with it. What cannot be read is told by file, column and
count, or by row number; a cell is never quoted, which is why no message of the parser is passed on.
"""

from __future__ import annotations

import queue
import re
import threading
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from celu.config.schema import Source
from celu.errors import ConfigError, DataError

# text: string. number: float64. category: dictionary of strings. label: float64.
# as-is: string from a text file, Parquet's own type from Parquet.
Kind = Literal["text", "number", "category", "label", "as-is"]

FORMATS = {".csv": "csv", ".tsv": "tsv", ".txt": "tsv", ".parquet": "parquet"}
# Blocks of this size parse within the processor's cache. Many are then joined, because the work on
# a category goes by the distinct values of what is handed on.
BLOCK_BYTES = 1 << 20
BLOCKS_JOINED = 16
PARQUET_ROWS = 65_536
GZIP_RATIO = 8  # how much larger the text may be, where an upper bound is wanted
_NAMES_SHOWN = 20
_RAGGED = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")

_T = TypeVar("_T")


class Block(NamedTuple):
    """Some consecutive rows; `position` is how many bytes of the file have been read by now."""

    columns: dict[str, Any]
    num_rows: int
    position: int
    whole_labels: bool  # every label of these rows is written as a whole number


class RawFile:
    """One raw file; raises ConfigError where it cannot be told how to read it."""

    def __init__(self, path: Path, source: Source) -> None:
        self.path = path
        self._source = source
        self._zipped = path.suffix.lower() == ".gz"
        suffix = (path.with_suffix("") if self._zipped else path).suffix.lower()
        self._format = source.format or FORMATS.get(suffix)
        if self._format is None or (self._zipped and self._format == "parquet"):
            raise ConfigError(
                f"{path}: expected a name that ends in {', '.join(FORMATS)} or .gz of the first "
                f"three, got {path.suffix or 'no ending'}; say source.format"
            )
        if not path.is_file():
            raise DataError(
                f"{path}: expected a file, got {'a folder' if path.is_dir() else 'none'}"
            )
        if source.names is not None and self._format == "parquet":
            raise ConfigError(f"{path}: source.names is for files without names of their own")
        self.num_bytes = path.stat().st_size
        self._missing = sorted({"", *source.missing})
        self._names: list[str] | None = None
        self._text_rows: Counter[str] = Counter()  # rows of text, by column of numbers

    def text_bytes(self, columns: Mapping[str, Kind]) -> int:
        """About how many bytes these columns would be as text, at most."""
        if self._format == "parquet":
            with _explained(self.path):
                about = pq.read_metadata(self.path)
            groups = [about.row_group(number) for number in range(about.num_row_groups)]
            # Pages may hold little, where values repeat.
            least = about.num_rows * 8 * (len(columns) + 4)
            return int(max(least, sum(group.total_byte_size for group in groups)))
        return self.num_bytes * (GZIP_RATIO if self._zipped else 1)

    def names(self) -> list[str]:
        """The names of its columns, in their order; raises DataError where two are the same."""
        if self._names is not None:
            return self._names
        with _explained(self.path):
            if self._format == "parquet":
                names = list(pq.read_schema(self.path).names)
            else:
                with self._open() as stream:
                    names = self._reader(stream, None).schema.names
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise DataError(
                f"{self.path}: expected each column name once, got {len(twice)} of them twice, "
                f"the first at column {names.index(twice[0]) + 1}"
            )
        self._names = names
        return names

    def check(self, columns: Mapping[str, Kind]) -> None:
        """Raise DataError unless the file has these columns."""
        names = self.names()
        absent = [name for name in columns if name not in names]
        if not absent:
            return
        if len(absent) == len(columns) and self._format != "parquet":
            # Perhaps a row stands where the names are expected: it must not be quoted.
            raise DataError(
                f"{self.path}: expected columns such as {absent[0]!r}, got none of those declared "
                "in its first line; if it has no line of names, give them as source.names"
            )
        shown = ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
        raise DataError(f"{self.path}: expected a column {absent[0]!r}, got {shown}")

    def blocks(self, columns: Mapping[str, Kind]) -> Generator[Block, None, None]:
        """Its rows, in their order; raises DataError for what is damaged, ragged or mistyped."""
        self.check(columns)
        read = self._parquet if self._format == "parquet" else self._delimited
        num_rows = 0
        for arrays, position in read(columns):
            whole = True
            for name, kind in columns.items():
                if kind == "label":
                    arrays[name], whole = self._label(name, arrays[name])
            length = len(next(iter(arrays.values())))
            num_rows += length
            yield Block(arrays, length, position, whole)
        problems = [
            f"column {name!r}: expected numbers, got text in {count:,} rows"
            for name, count in self._text_rows.items()
            if count
        ]
        if not num_rows and not problems:
            problems = ["expected rows, got none"]
        if problems:
            raise DataError("\n".join(f"{self.path}: {problem}" for problem in problems))

    # Delimited text

    def _open(self) -> Any:
        raw = pa.OSFile(str(self.path))
        return pa.CompressedInputStream(raw, "gzip") if self._zipped else raw

    def _reader(self, stream: Any, types: Mapping[str, Any] | None) -> Any:
        return pa_csv.open_csv(
            stream,
            # One thread: errors tell the row, and what is in flight does not grow with the cores.
            pa_csv.ReadOptions(
                use_threads=False, block_size=BLOCK_BYTES, column_names=self._source.names
            ),
            pa_csv.ParseOptions(delimiter="\t" if self._format == "tsv" else ","),
            pa_csv.ConvertOptions(
                null_values=self._missing,
                strings_can_be_null=True,
                column_types=types,
                include_columns=list(types) if types else None,
            ),
        )

    def _delimited(self, columns: Mapping[str, Kind]) -> Iterator[tuple[dict[str, Any], int]]:
        types = {
            name: pa.float64() if kind == "number" else pa.string()
            for name, kind in columns.items()
        }
        try:
            with _explained(self.path), pa.OSFile(str(self.path)) as raw:
                stream = pa.CompressedInputStream(raw, "gzip") if self._zipped else raw
                # Parsed in a thread of its own, beside the one that this runs in.
                for batches in ahead(_grouped(self._reader(stream, types), BLOCKS_JOINED)):
                    yield _joined(batches, columns), raw.tell()
        except _MistypedError:
            raise self._diagnosis(columns) from None

    def _diagnosis(self, columns: Mapping[str, Kind]) -> DataError:
        """Read it all again as bytes, to count what could not be converted, and where."""
        undecodable: Counter[str] = Counter()
        text: Counter[str] = Counter()
        with _explained(self.path), self._open() as stream:
            for batch in self._reader(stream, dict.fromkeys(columns, pa.binary())):
                for name, kind in columns.items():
                    for value in batch.column(name).drop_null().to_pylist():
                        sort = _sort(value)
                        undecodable[name] += sort == "bytes"
                        text[name] += kind == "number" and sort == "text"
        problems = [
            f"{self.path}: column {name!r}: expected {expected}, got {got} in {count[name]:,} rows"
            for count, expected, got in (
                (undecodable, "UTF-8", "other bytes"),
                (text, "numbers", "text"),
            )
            for name in columns
            if count[name]
        ]
        return DataError("\n".join(problems) or f"{self.path}: expected numbers, got text")

    # Parquet

    def _parquet(self, columns: Mapping[str, Kind]) -> Iterator[tuple[dict[str, Any], int]]:
        with _explained(self.path):
            types = {field.name: field.type for field in pq.read_schema(self.path)}
            for name, kind in columns.items():
                self._check_type(name, kind, types[name])
            file = pq.ParquetFile(
                self.path,
                read_dictionary=[n for n, k in columns.items() if k in ("category", "label")],
                buffer_size=1 << 20,  # rather than a whole column of a row group
                page_checksum_verification=True,
            )
        with file:
            num_rows = max(file.metadata.num_rows, 1)
            done = 0
            batches = file.iter_batches(PARQUET_ROWS, columns=list(columns), use_threads=False)
            while True:
                with _explained(self.path):
                    batch = next(batches, None)
                    if batch is None:
                        return
                    arrays = {
                        name: self._converted(name, kind, batch.column(name))
                        for name, kind in columns.items()
                    }
                done += batch.num_rows
                yield arrays, self.num_bytes * done // num_rows

    def _check_type(self, name: str, kind: Kind, given: Any) -> None:
        if pa.types.is_dictionary(given):
            given = given.value_type
        texts = pa.types.is_string(given) or pa.types.is_large_string(given)
        whole = pa.types.is_integer(given)
        flags = pa.types.is_boolean(given)
        numbers = whole or flags or pa.types.is_floating(given) or pa.types.is_decimal(given)
        empty = pa.types.is_null(given)
        good = {
            "text": texts or whole,
            "number": numbers or texts or empty,
            "label": numbers or texts or empty,
            "category": texts or whole or flags or empty,
            "as-is": not pa.types.is_nested(given),
        }[kind]
        if not good:
            expected = {
                "text": "text or integers for an id",
                "number": "numbers",
                "label": "numbers for a label",
                "category": "text, integers or booleans for a category",
                "as-is": "a type that is not nested",
            }[kind]
            raise DataError(f"{self.path}: column {name!r}: expected {expected}, got {given}")

    def _converted(self, name: str, kind: Kind, array: Any) -> Any:
        if kind == "category":
            return self._category(array)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if kind == "as-is":
            return array
        if kind == "text":
            array = _checked(array.cast(pa.string()))
            return self._blanked(array)
        if kind == "number":
            return self._number(name, array)
        text = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
        return self._category(array) if text else array

    def _category(self, array: Any) -> Any:
        if pa.types.is_dictionary(array.type) and not array.dictionary.null_count:
            values = array.dictionary.cast(pa.string())
            array = pa.DictionaryArray.from_arrays(array.indices.cast(pa.int32()), values)
        else:
            if pa.types.is_dictionary(array.type):
                array = array.dictionary_decode()
            array = array.cast(pa.string()).dictionary_encode()
        _checked(array.dictionary)
        blank = pc.is_in(array.dictionary, value_set=pa.array(self._missing))
        if not pc.any(blank).as_py():
            return array
        blank_rows = blank.take(array.indices)
        indices = pc.if_else(pc.fill_null(blank_rows, True), None, array.indices)
        return pa.DictionaryArray.from_arrays(indices, array.dictionary)

    def _number(self, name: str, array: Any) -> Any:
        """As float64, with NaN for null: nothing else can be meant by it in a typed file."""
        if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
            return self._parsed(name, self._category(array))[0]
        if pa.types.is_boolean(array.type):
            array = array.cast(pa.int8())
        array = array.cast(pa.float64(), safe=False)
        return pc.if_else(pc.is_nan(array), None, array)

    def _blanked(self, array: Any) -> Any:
        blank = pc.is_in(array, value_set=pa.array(self._missing, array.type))
        return pc.if_else(blank, None, array)

    # Both

    def _label(self, name: str, array: Any) -> tuple[Any, bool]:
        """Labels as float64, and whether all are written as whole numbers."""
        if pa.types.is_dictionary(array.type):
            return self._parsed(name, array)
        whole = pa.types.is_integer(array.type) or pa.types.is_boolean(array.type)
        if pa.types.is_floating(array.type):
            # NaN is an error in a label, where null is the ordinary absence: keep them apart.
            return array.cast(pa.float64()), False
        return self._number(name, array), whole

    def _parsed(self, name: str, array: Any) -> tuple[Any, bool]:
        """Text as float64, and whether all is written as whole numbers.

        Rows that do not parse are counted, and become null.
        """
        values = pc.utf8_trim_whitespace(array.dictionary)
        whole = pc.all(pc.match_substring_regex(values, "^[+-]?[0-9]+$")).as_py() is not False
        try:
            return values.cast(pa.float64()).take(array.indices), whole
        except pa.ArrowInvalid:
            texts = [v is not None and _sort(v.encode()) != "number" for v in values.to_pylist()]
            self._text_rows[name] += pc.sum(pa.array(texts).take(array.indices)).as_py() or 0
            parsed = pc.if_else(pa.array(texts), None, values).cast(pa.float64())
            return parsed.take(array.indices), whole


def ahead(items: Generator[_T, None, None]) -> Generator[_T, None, None]:
    """The same items, made in a thread while the caller works; what it raises is raised here."""
    made: queue.Queue[tuple[str, Any]] = queue.Queue(1)
    stopped = threading.Event()

    def put(item: tuple[str, Any]) -> bool:
        while not stopped.is_set():
            try:
                made.put(item, timeout=0.1)
                return True
            except queue.Full:
                pass
        return False

    def work() -> None:
        try:
            with closing(items):
                for item in items:
                    if not put(("item", item)):
                        return
            put(("end", None))
        except BaseException as error:
            put(("error", error))

    thread = threading.Thread(target=work, name="reader", daemon=True)
    thread.start()
    try:
        while True:
            what, value = made.get()
            if what == "end":
                return
            if what == "error":
                raise value
            yield value
    finally:
        stopped.set()
        thread.join()


class _MistypedError(Exception):
    """A cell could not be converted; which, a second reading tells."""


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what pyarrow raises into DataError; its own words may quote cells and stay here."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, got: {error}") from None
    except (pa.ArrowException, UnicodeDecodeError) as error:
        said = str(error)
        if "conversion error" in said:
            raise _MistypedError from None
        ragged = _RAGGED.search(said)
        if ragged is not None:
            row, expected, fields = ragged.groups()
            raise DataError(
                f"{path}: row {row}: expected {expected} fields, got {fields}"
            ) from None
        got = "a damaged one"
        if "Empty CSV" in said:
            got = "an empty one"
        elif "straddling" in said:
            got = f"a row longer than {BLOCK_BYTES:,} bytes; is a quote left open?"
        elif isinstance(error, UnicodeDecodeError) or "UTF8" in said:
            got = "bytes that are not UTF-8"
        raise DataError(f"{path}: expected a readable file, got {got}") from None


def _grouped(batches: Iterator[Any], size: int) -> Generator[list[Any], None, None]:
    group = []
    for batch in batches:
        group.append(batch)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def _joined(batches: list[Any], columns: Mapping[str, Kind]) -> dict[str, Any]:
    table = pa.Table.from_batches(batches)
    joined = {}
    for name, kind in columns.items():
        column = table.column(name)
        if kind in ("category", "label"):
            # Faster than to have it done while parsing, block by block.
            column = column.dictionary_encode()
        joined[name] = column.combine_chunks()
    return joined


def _checked(array: Any) -> Any:
    array.validate(full=True)  # text of a Parquet file may be any bytes
    return array


def _sort(value: bytes) -> Literal["bytes", "text", "number"]:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "bytes"
    try:
        float(text)
    except ValueError:
        return "text"
    return "number" if text.isascii() and "_" not in text else "text"
