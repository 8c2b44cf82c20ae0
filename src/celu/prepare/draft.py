"""Drafts a `schema.toml` from a raw file, with a comment that gives the reason for each guess.

It reads the first rows only. The draft is for its user to check: nothing else reads the guesses.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from celu.config.schema import RESERVED, ROW_NUMBER, Source
from celu.errors import ConfigError, DataError
from celu.prepare.guessing import ColumnSample, Guess, Table, find_style, guess
from celu.prepare.number_text import PLAIN, NumberStyle
from celu.prepare.parquet import has_codes, is_list
from celu.prepare.parsing import Kind, readable
from celu.prepare.raw_file import RawFile
from celu.prepare.text_format import find_delimiter, usual_delimiter

MAX_ROWS = 100_000
_TABLES: tuple[Table, ...] = ("numbers", "categories", "dates", "bags")
_MAX_NAME = 200  # characters, as in a schema
_ID_NAME = re.compile(r"(?i:(^|[^a-z])(id|uuid|guid|key|msisdn|iban)$)|[a-z]Id$|[a-z]ID$")
_LABEL_VALUES = 2


@dataclass(frozen=True)
class Draft:
    """The text of a `schema.toml`; `id` is None if no column clearly identifies the rows."""

    text: str
    id: str | None
    counts: dict[Table, int]
    left_out: int


def write_draft(source: Path, path: Path, *, label: str | None = None) -> Draft:
    """Draft a schema and write it to a new file.

    Raises ConfigError if the file exists or the label is no column, DataError for a file that
    cannot be read or has no features.
    """
    if path.exists():  # before the rows are read
        raise ConfigError(f"{path}: already exists; choose another name, or remove it first")
    draft = draft_schema(source, label=label)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(draft.text)
    except FileExistsError:
        raise ConfigError(f"{path}: already exists; choose another name") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
    return draft


def draft_schema(source: Path, *, label: str | None = None) -> Draft:
    """Guess the columns of a raw file from its first rows; raises as `write_draft` does."""
    delimiter = find_delimiter(source)
    samples, unreadable, has_more = _read(source, Source(delimiter=delimiter))
    style = find_style(samples, delimiter or usual_delimiter(source))
    samples = [replace(sample, style=style) for sample in samples]
    names = [sample.name for sample in samples]
    if label is not None and label not in names:
        shown = ", ".join(names[:20])
        raise ConfigError(f"--label: {source} has no column {label!r}, only {shown}")
    others = [sample for sample in samples if sample.name != label]
    row_id, candidates = _find_id(others)
    guesses: dict[str, Guess] = {}
    for sample in samples:
        if sample.name in (row_id, label):
            continue
        found = guess(sample, names)
        if sample.name in RESERVED:
            found = Guess(None, "", f"a store has a column of this name; rename it ({found.why})")
        elif not sample.name:
            found = Guess(None, "", "no name, as the index has that pandas writes: name it")
        elif len(sample.name) > _MAX_NAME:
            found = Guess(None, "", f"expected a name of 1 to {_MAX_NAME} characters")
        guesses[sample.name] = found
    kept = {name: found for name, found in guesses.items() if found.table is not None}
    if not kept and label is None:
        raise DataError(f"{source}: expected columns with features, got none")
    binary = [s.name for s in samples if s.name in kept and len(s.counts) == _LABEL_VALUES]
    texts = {text for found in kept.values() for text in found.missing_texts}
    num_rows = samples[0].rows
    rows = f"the first {num_rows:,} rows" if has_more else f"all {num_rows:,} rows"
    lines = [
        f"# A draft from {rows}. Check every line: the guesses know the values, not their meaning.",
        "",
        *_id_lines(row_id, candidates, rows, _repeated_ids(others)),
        *_label_lines(label, binary),
        "",
        "[split]  # the same at all parties: seed and id decide which rows are held out",
        "seed = 1",
        "test = 0.1",
        "validation = 0.1  # the rows that choose the best weights of a run",
        *_source_lines(delimiter, style, texts),
    ]
    for table in _TABLES:
        lines += _table_lines(table, kept)
    left_out = {name: found.why for name, found in guesses.items() if found.table is None}
    left_out |= unreadable
    if left_out:
        lines += ["", "# Left out:"]
        lines += [f"# {_key(name)}: {why}" for name, why in left_out.items()]
    counts = {table: sum(found.table == table for found in kept.values()) for table in _TABLES}
    return Draft("\n".join(lines) + "\n", row_id, counts, len(left_out))


def _id_lines(
    row_id: str | None, candidates: Sequence[str], rows: str, repeated: Sequence[ColumnSample]
) -> Iterator[str]:
    if row_id is not None:
        others = [name for name in candidates if name != row_id]
        also = f"; so do those of {', '.join(map(_key, others[:5]))}" if others else ""
        yield f"# Its values differ in {rows}{also}. All parties need the same ids."
        yield f"id = {_quoted(row_id)}"
    elif candidates:
        listed = ", ".join(map(_key, candidates[:5]))
        yield f"# Name the id: {listed} have a different value in each row."
        yield f"# id = {_quoted(candidates[0])}"
    else:
        for s in repeated:
            values = f"{len(s.counts):,} different values in {s.num_present:,} rows"
            yield f"# {_key(s.name)} has {values}: if it is the id,"
            yield "# remove the rows that repeat one."
        yield "# No column has a different value in each row. If the rows have the same order at"
        yield "# all parties, the row number is the id."
        yield f'# id = "{ROW_NUMBER}"'


def _label_lines(label: str | None, binary: Sequence[str]) -> Iterator[str]:
    if label is not None:
        yield f"label = {_quoted(label)}"
        return
    yield "# A guest names its label here, and deletes the label's line below; a host has none."
    if binary:
        yield f"# Columns with two values: {', '.join(map(_key, binary[:10]))}."
    yield '# label = "..."'


def _source_lines(delimiter: str | None, style: NumberStyle, texts: set[str]) -> Iterator[str]:
    if delimiter is None and style == PLAIN and not texts:
        return
    yield ""
    yield "[source]"
    if delimiter is not None:
        yield f"delimiter = {_quoted(delimiter)}"
    if style.decimal != ".":
        yield f"decimal = {_quoted(style.decimal)}  # numbers are written with it"
    if style.thousands is not None:
        yield f"thousands = {_quoted(style.thousands)}  # between groups of three digits"
    if style.units:
        listed = ", ".join(map(_quoted, style.units))
        yield f"units = [{listed}]  # left out of numbers"
    if texts:
        listed = ", ".join(map(_quoted, sorted(texts)))
        yield f"missing = [{listed}]  # found among numbers or dates; applies to all columns"


def _table_lines(table: Table, kept: Mapping[str, Guess]) -> Iterator[str]:
    found = {name: one for name, one in kept.items() if one.table == table}
    if found and table != "dates":
        yield ""
        yield f"[{table}]"
    for name, one in found.items():
        if table == "dates":
            yield ""
            yield f"[dates.{_key(name)}]  # {one.why}"
            yield one.declaration
        else:
            yield f"{_key(name)} = {one.declaration}  # {one.why}"


def _find_id(samples: Sequence[ColumnSample]) -> tuple[str | None, list[str]]:
    """The column that clearly identifies the rows, if one does, and all that could."""
    candidates = [s.name for s in samples if s.identifies_rows and s.name]
    named = [name for name in candidates if _ID_NAME.search(name)]
    if named:
        return named[0], candidates
    if len(candidates) == 1 or (candidates and candidates[0] == samples[0].name):
        return candidates[0], candidates
    return None, candidates


def _repeated_ids(samples: Sequence[ColumnSample]) -> list[ColumnSample]:
    """The columns with the name of an id, and the same value in few rows."""
    return [s for s in samples if _ID_NAME.search(s.name) and 2 * len(s.counts) > s.num_present > 0]


def _read(path: Path, source: Source) -> tuple[list[ColumnSample], dict[str, str], bool]:
    """The distinct values of each column in the first rows, and whether there are more rows.

    Columns of a type that `celu prepare` cannot read are apart, each with the reason.
    """
    file = RawFile(path, source)
    names = file.names()
    unreadable: dict[str, str] = {}
    lists: Sequence[str] = ()
    if file.is_text:
        looks_like_row = sum(re.fullmatch(r"[+-]?[\d.,]+", name) is not None for name in names)
        if 2 * looks_like_row >= len(names):
            raise DataError(
                f"{path}: expected names of columns in the first line, got numbers; if the file "
                "has no header, write a schema.toml with source.names"
            )
    else:
        with readable(path):
            types = {field.name: field.type for field in pq.read_schema(path)}
        for name, given in types.items():
            if not _is_readable(given):
                unreadable[name] = (
                    "a column of another type than text, numbers, dates, times or lists of text"
                )
        names = [name for name in names if name not in unreadable]
        lists = [name for name in names if is_list(types[name])]
        if not names:
            raise DataError(f"{path}: expected columns of text, numbers or dates, got none")
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    rows, has_more = 0, False
    longest = dict.fromkeys(names, 0)
    kind: Kind = "category" if file.is_text else "as-is"
    kinds: dict[str, Kind] = dict.fromkeys(names, kind)
    kinds |= dict.fromkeys(lists, "bag")
    with closing(file.blocks(kinds)) as blocks:
        for block in blocks:
            taken = min(block.num_rows, MAX_ROWS - rows)
            has_more = taken < block.num_rows
            for name in names:
                column = block.columns[name].slice(0, taken)
                if name in lists:
                    longest[name] = max(longest[name], pc.max(pc.list_value_length(column)).as_py())
                    column = column.flatten()
                counts[name].update(_count(column))
            rows += taken
            if has_more:
                break
    samples = [ColumnSample(name, rows, counts[name], longest[name]) for name in names]
    return samples, unreadable, has_more


def _is_readable(given: Any) -> bool:
    """Whether `celu prepare` can read a Parquet column of this type as a feature."""
    types = pa.types
    if types.is_dictionary(given):
        given = given.value_type
    if is_list(given):
        return has_codes(given.value_type)
    return bool(
        types.is_string(given)
        or types.is_large_string(given)
        or types.is_integer(given)
        or types.is_floating(given)
        or types.is_decimal(given)
        or types.is_boolean(given)
        or types.is_date(given)
        or types.is_timestamp(given)
        or types.is_null(given)
    )


def _count(array: Any) -> dict[str, int]:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_floating(array.type):
        array = pc.if_else(pc.is_nan(array), None, array)
    counted = array.cast(pa.string()).drop_null().value_counts()
    texts, counts = counted.field(0).to_pylist(), counted.field(1).to_pylist()
    return {text: count for text, count in zip(texts, counts, strict=True) if text.strip()}


def _key(name: str) -> str:
    """A name as a key of TOML."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _quoted(text: str) -> str:
    """A text in TOML, on one line."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'
