"""Corrupt raw files and schemas: the error of each, and that nothing is left behind."""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from celu.config.schema import read_raw_schema
from celu.errors import CeluError, ConfigError, DataError
from celu.prepare.pipeline import Target, prepare

CANARY = "7731"  # is in every cell except labels; no message may show it
ROWS = 40
SCHEMA = """
id = "id"
label = "y"
split = { seed = 1, test = 0.3 }
[numbers]
x = {}
[categories]
c = { vocabulary = 10 }
"""


def cells(changes: Mapping[str, Mapping[int, str]] | None = None) -> dict[str, list[str]]:
    columns = {
        "id": [f"{CANARY}-{row}" for row in range(ROWS)],
        "y": [str(row % 2) for row in range(ROWS)],
        "x": [f"{CANARY}.{row}" for row in range(ROWS)],
        "c": [f"canary{CANARY}{row % 3}" for row in range(ROWS)],
    }
    for name, values in (changes or {}).items():
        for row, value in values.items():
            columns[name][row] = value
    return columns


def lines(**changes: Mapping[int, str]) -> list[bytes]:
    columns = cells(changes)
    rows = [",".join(row) for row in zip(*columns.values(), strict=True)]
    return [line.encode() for line in (",".join(columns), *rows)]


def csv(**changes: Mapping[int, str]) -> bytes:
    return b"\n".join(lines(**changes)) + b"\n"


def with_line(number: int, line: bytes) -> bytes:
    return b"\n".join([*lines()[:number], line, *lines()[number:]]) + b"\n"


def parquet(without: str = "", **columns: Any) -> bytes:
    given = cells()
    table: dict[str, Any] = {
        "id": given["id"],
        "y": [row % 2 for row in range(ROWS)],
        "x": [float(value) for value in given["x"]],
        "c": given["c"],
    } | columns
    table.pop(without, None)
    sink = io.BytesIO()
    pq.write_table(pa.table(table), sink, write_page_checksum=True, compression="none")
    return sink.getvalue()


def some(values: Mapping[int, Any], default: Any) -> list[Any]:
    return [values.get(row, default) for row in range(ROWS)]


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def invalid_text() -> Any:
    bad = pa.array([b"ok" + CANARY.encode()] * (ROWS - 1) + [b"\xff" + CANARY.encode()])
    return bad.view(pa.string())


def twice_named() -> bytes:
    names = ["id", "y", "x", "c", "x"]
    given = pq.read_table(io.BytesIO(parquet()))
    sink = io.BytesIO()
    pq.write_table(pa.table([given[name] for name in names], names), sink)
    return sink.getvalue()


@dataclass(frozen=True)
class Case:
    files: Mapping[str, bytes | None]  # None: a folder of that name
    message: str
    schema: str = SCHEMA
    error: type[CeluError] = DataError


def raw(data: bytes, message: str, name: str = "rows.csv", schema: str = SCHEMA) -> Case:
    return Case({name: data}, message, schema)


def table(message: str, without: str = "", **columns: Any) -> Case:
    return Case({"rows.parquet": parquet(without, **columns)}, message)


def declared(old: str, new: str, message: str) -> Case:
    assert old in SCHEMA
    return Case({"rows.csv": csv()}, message, SCHEMA.replace(old, new), ConfigError)


NULLS = {3: None, 7: None}
ZIPPED = gzip.compress(csv())
CASES = {
    # Text files: columns
    "no number column": raw(csv().replace(b"x", b"z", 1), "expected a column 'x', got id, y, z, c"),
    "no category column": raw(
        csv().replace(b"c", b"d", 1), "expected a column 'c', got id, y, x, d"
    ),
    "no label column": raw(csv().replace(b"y", b"z", 1), "expected a column 'y', got id, z, x, c"),
    "no id column": raw(csv().replace(b"id", b"no", 1), "expected a column 'id', got no, y, x, c"),
    "no header": raw(b"\n".join(lines()[1:]), "got none of the declared columns in the first line"),
    "a name twice": raw(
        csv().replace(b"c", b"x", 1), "each column name once, got 1 of them twice, .* column 3"
    ),
    "names too few": raw(
        b"\n".join(lines()[1:]),
        "row 1: expected 3 fields, got 4$",
        schema='source = { names = ["id", "y", "x"] }\n' + SCHEMA.replace("c =", "# c ="),
    ),
    "tabs in a .csv": raw(csv().replace(b",", b"\t"), "between its fields, set source.delimiter"),
    "commas in a .tsv": raw(csv(), "',' is between its fields, set source.delimiter", "rows.tsv"),
    # ids
    "ids empty": raw(
        csv(id={3: "", 8: ""}), "column 'id': expected an id in every row, got 2 rows without"
    ),
    "ids that stand for missing": raw(
        csv(id={3: "NA"}),
        "column 'id': expected an id in every row, got 1 rows without",
        schema='source = { missing = ["NA"] }\n' + SCHEMA,
    ),
    "ids twice": raw(
        csv(id={3: "7731-5", 8: "7731-5", 9: "7731-10"}),
        "column 'id': expected each id once, got 3 rows that repeat an id",
    ),
    # labels
    "labels missing": raw(csv(y={0: ""}), "column 'y': expected a label in every row, got 1 rows"),
    "labels of text": raw(
        csv(y={5: "yes7731", 6: "no7731"}),
        "column 'y': expected numbers, got text in 2 rows; write all labels as",
    ),
    "labels all the same": raw(
        csv(y=dict.fromkeys(range(ROWS), "1")),
        "column 'y': expected different labels .* same in all",
    ),
    "labels all the same number": raw(
        csv(y=dict.fromkeys(range(ROWS), "7731.5")), "column 'y': expected different labels"
    ),
    "labels NaN": raw(csv(y={4: "nan"}), "column 'y': expected finite labels .* got 1 that"),
    "labels Inf": raw(csv(y={4: "inf", 5: "-inf"}), "column 'y': expected finite labels .* got 2"),
    "labels beyond float32": raw(csv(y={4: "7.731e60"}), "column 'y': expected finite labels"),
    # numbers
    "numbers missing": raw(
        csv(x={1: "", 2: "", 3: ""}),
        "column 'x': expected a number in every row, got 3 rows without",
    ),
    "numbers of text": raw(
        csv(x={1: "abc7731", 20: "1_7731"}), "column 'x': expected numbers, got text in 2 rows"
    ),
    "text says what to do": raw(
        csv(x={1: "abc7731"}),
        r"declare 'x' under \[categories\] .* list it in missing of \[source\]",
    ),
    "dates": raw(
        csv(x={1: "2013-01-31", 2: "7731-02-01 10:00", 3: "31.01.2013"}),
        "'x': expected numbers, got text in 3 rows; they look like dates: declare "
        r"'x' under \[dates\] in schema.toml and, unless they are in ISO 8601, set its format",
    ),
    "some dates": raw(
        csv(x={1: "2013-01-31", 2: "abc7731"}), "got text in 2 rows; declare 'x' under"
    ),
    "semicolons": raw(csv().replace(b",", b";"), "';' is between its fields, set source.delimiter"),
    "numbers with a comma": raw(
        csv(x={1: '"7,731"'}), "column 'x': expected numbers, got text in 1"
    ),
    "numbers Inf": raw(csv(x={1: "inf", 2: "-Inf"}), "column 'x': expected finite .* got 2 that"),
    "numbers NaN": raw(csv(x={1: "nan"}), "column 'x': expected finite numbers .* got 1 that"),
    "numbers beyond float32": raw(csv(x={1: "7.731e50"}), "column 'x': expected finite numbers"),
    "numbers beyond float64": raw(csv(x={1: "7.731e500"}), "column 'x': expected finite numbers"),
    # shape
    "a short row": raw(with_line(5, b"secret7731,1"), "row 6: expected 4 fields, got 2$"),
    "a long row": raw(with_line(9, b"7731,1,7731,d,7731"), "row 10: expected 4 fields, got 5$"),
    "many ragged rows": raw(csv() + b"7731\n" * 9, "row 42: expected 4 fields, got 1$"),
    "a ragged row of other bytes": raw(
        with_line(5, b"\xff7731"), "row 6: expected 4 fields, got 1$"
    ),
    "a quote left open": raw(with_line(5, b'"7731,1,7731,d'), "row 6: expected 4 fields"),
    "a row too long": raw(
        csv() + b"7731" * 2_500_000, "expected a readable file, got a row longer than"
    ),
    # bytes
    "a category not UTF-8": raw(
        with_line(3, b"7731,1,7731,\xff"), "column 'c': expected UTF-8, got other bytes in 1 rows"
    ),
    "a number not UTF-8": raw(with_line(3, b"7731,1,\xff,d"), "column 'x': expected UTF-8"),
    "an id not UTF-8": raw(with_line(3, b"\xff7731,1,7731,d"), "column 'id': expected UTF-8"),
    "names not UTF-8": raw(
        csv().replace(b"c", b"\xff", 1), "not UTF-8; write the file again as UTF-8"
    ),
    "UTF-16": raw(csv().decode().encode("utf-16"), "got UTF-16; write the file again as UTF-8"),
    "binary": raw(bytes(range(256)) * 64, "rows.csv: row \\d+: expected \\d+ fields"),
    "cut gzip": raw(ZIPPED[:-20], "expected a readable file, got: Truncated", "rows.csv.gz"),
    "cut gzip trailer": raw(ZIPPED[:-3], "expected a readable file", "rows.csv.gz"),
    "damaged gzip": raw(flipped(ZIPPED, 60), "expected a readable file", "rows.csv.gz"),
    "gzip checksum": raw(flipped(ZIPPED, -6), "incorrect data check", "rows.csv.gz"),
    "not gzip": raw(csv(), "expected a readable file, got: .*header", "rows.csv.gz"),
    "bytes after gzip": raw(ZIPPED + b"7731", "expected a readable file", "rows.csv.gz"),
    # too little
    "empty file": raw(b"", "expected a readable file, got an empty one"),
    "empty gzip": raw(gzip.compress(b""), "got an empty one", "rows.csv.gz"),
    "header only": raw(lines()[0] + b"\n", "expected rows, got none"),
    "no test rows": raw(
        csv(),
        "expected rows in train and test, got none of 40 in test",
        schema=SCHEMA.replace("0.3", "1e-9"),
    ),
    "no training rows": raw(
        csv(),
        "expected rows in train and test, got none of 40 in train",
        schema=SCHEMA.replace("0.3", "0.999999999"),
    ),
    # several files
    "another file without a column": Case(
        {"a.csv": csv(), "b.csv": csv().replace(b"x", b"z", 1)}, "b.csv: expected a column 'x'"
    ),
    "another file without rows": Case(
        {"a.csv": csv(), "b.csv": lines()[0] + b"\n"}, "b.csv: expected rows, got none"
    ),
    "ids twice over files": Case(
        {"a.csv": csv(), "b.csv": csv()}, "a.csv and 1 more: column 'id': expected each .* 40 rows"
    ),
    "another file of text": Case(
        {"a.csv": csv(), "b.csv": csv(x={1: "7731x"})}, "b.csv: column 'x': expected numbers"
    ),
    # no file
    "no file": Case({}, "rows.csv: expected a file, got none"),
    "a folder": Case({"rows.csv": None}, "rows.csv: expected a file, got a folder"),
    "an unknown ending": Case(
        {"rows.xls": csv()}, "got .xls; save the sheet as CSV", SCHEMA, ConfigError
    ),
    "Parquet in gzip": Case({"a.parquet.gz": ZIPPED}, "expected a name", SCHEMA, ConfigError),
    # Parquet
    "cut Parquet": raw(parquet()[:-30], "rows.parquet: expected a readable file", "rows.parquet"),
    "Parquet half gone": raw(parquet()[:900], "expected a readable file", "rows.parquet"),
    "damaged page": raw(flipped(parquet(), 200), "expected a readable file", "rows.parquet"),
    "not Parquet": raw(csv(), "expected a readable file", "rows.parquet"),
    "empty Parquet": raw(b"", "expected a readable file", "rows.parquet"),
    "Parquet name twice": raw(twice_named(), "each column name once", "rows.parquet"),
    "Parquet no column": table("expected a column 'x', got id, y, c", without="x"),
    "Parquet no label": table("expected a column 'y', got id, x, c", without="y"),
    "Parquet no rows": Case(
        {"rows.parquet": parquet(**{n: pa.array([], pa.string()) for n in ("id", "y", "x", "c")})},
        "expected rows, got none",
    ),
    "null ids": table("an id in every row, got 2 rows without", id=some(NULLS, "7731")),
    "empty ids": table("an id in every row, got 1 rows without", id=some({3: ""}, "7731")),
    "null labels": table("a label in every row, got 2 rows", y=some(NULLS, 1)),
    "NaN labels": table("finite labels .* got 1 that", y=some({3: float("nan")}, 0.5)),
    "text labels all the same": table("'y': expected different labels", y=["yes7731"] * ROWS),
    "numbers among text labels": table(
        "'y': expected text, got numbers in 1 rows", y=some({3: "7731"}, "yes")
    ),
    "dated labels": table(
        "'y': expected numbers for a label", y=pa.array([7731] * ROWS, pa.date32())
    ),
    "nested number": table("'x': expected numbers, got list", x=[[7731.0]] * ROWS),
    "nested category": table("'c': expected text, .* got list", c=[["7731"]] * ROWS),
    "nested id": table("'id': expected text or integers .* got struct", id=[{"a": "7731"}] * ROWS),
    "float category": table("'c': expected text, integers or booleans", c=[7731.5] * ROWS),
    "binary id": table(
        "'id': expected text or integers for an id, got binary", id=[b"7731"] * ROWS
    ),
    "dates as numbers": table(
        "'x': expected numbers, got date", x=pa.array([7731] * ROWS, pa.date32())
    ),
    "dates in Parquet": table(
        "got date.*declare 'x' under .dates. in schema.toml", x=pa.array([7731] * ROWS, pa.date32())
    ),
    "text as numbers": table(
        "'x': expected numbers, got text in 1 rows", x=some({3: "a7731"}, "7")
    ),
    "Inf in Parquet": table(
        "'x': expected finite .* got 2", x=some({1: float("inf"), 2: 1e300}, 7731.0)
    ),
    "NaN in Parquet": table("a number in every row, got 1", x=some({1: float("nan")}, 7731.0)),
    "null numbers": table("a number in every row, got 2 rows", x=some(NULLS, 7731.0)),
    "Parquet not UTF-8": table("rows.parquet: expected a readable file, got", c=invalid_text()),
    # schemas
    "schema: not TOML": declared('id = "id"', "id =", "expected TOML"),
    "schema: no id": declared('id = "id"', "", "id: expected a value, got nothing"),
    "schema: unknown key": declared(
        "x = {}", "x = { fill = 0 }", "numbers.x.fill: expected no such"
    ),
    "schema: wrong type": declared("x = {}", 'x = { log = "yes" }', "numbers.x.log: expected"),
    "schema: two kinds": declared(
        "x = {}", "x = {}\nc = {}", "numbers, categories, dates and bags, got two: c"
    ),
    "schema: label as number": declared("x = {}", "y = {}", "y is declared as id or label, and as"),
    "schema: id as category": declared("c =", "id =", "id is declared as id or label, and as"),
    "schema: a reserved name": declared("x = {}", "tag = {}", "tag is reserved"),
    "schema: id is label": declared(
        'label = "y"', 'label = "id"', "id and label are the same column"
    ),
    "schema: codes two ways": declared(
        "10 }", "10, buckets = 4 }", "exactly one of buckets, vocabulary and"
    ),
    "schema: codes no way": declared(
        "vocabulary = 10", "", "exactly one of buckets, vocabulary and"
    ),
    "schema: no codes": declared("vocabulary = 10", "vocabulary = 0", "categories.c.vocabulary"),
    "schema: all held out": declared("test = 0.3", "test = 1.0", "split.test: expected"),
    "schema: nan": declared("x = {}", "x = { missing = nan }", "numbers.x.missing: expected"),
    "schema: names for Parquet": Case(
        {"a.parquet": parquet()},
        "source.names is for files without",
        'source = { names = ["id"] }\n' + SCHEMA,
        ConfigError,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_corrupt_input_is_reported_without_values_and_leaves_nothing(
    tmp_path: Path, case: Case
) -> None:
    schema = tmp_path / "schema.toml"
    schema.write_text(case.schema)
    for name, data in case.files.items():
        (tmp_path / name).mkdir() if data is None else (tmp_path / name).write_bytes(data)
    sources = [tmp_path / name for name in case.files or ("rows.csv",)]
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(case.error) as caught:
        prepare(sources, [Target(read_raw_schema(schema), tmp_path / "made" / "store")])
    assert type(caught.value) is case.error
    text = str(caught.value)
    assert re.search(case.message, text, re.MULTILINE), text
    assert CANARY not in text.replace(str(tmp_path), "")
    assert caught.value.__cause__ is None or CANARY not in str(caught.value.__cause__)
    assert sorted(tmp_path.rglob("*")) == before


def test_there_are_many_cases() -> None:
    assert len(CASES) >= 45


def test_valid_files_are_accepted(tmp_path: Path) -> None:
    schema = tmp_path / "schema.toml"
    schema.write_text(SCHEMA)
    for name, data in {"a.csv": csv(), "b.csv.gz": ZIPPED, "c.parquet": parquet()}.items():
        (tmp_path / name).write_bytes(data)
        target = Target(read_raw_schema(schema), tmp_path / f"{name}.store")
        [report] = prepare([tmp_path / name], [target])
        assert sum(report.rows.values()) == ROWS
