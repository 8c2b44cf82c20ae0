"""Numbers as spreadsheets write them: thousands, units, decimal commas, infinity."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from celu.config.columns import Number
from celu.config.schema import RawSchema, Source, Split, read_raw_schema, read_store_schema
from celu.data.store import open_store
from celu.errors import ConfigError, DataError
from celu.prepare.draft import draft_schema, write_draft
from celu.prepare.number_text import NumberStyle
from celu.prepare.parsing import NumberParser, classify_cell
from celu.serving.encoding import RowEncoder
from prepare.samples import make

ROWS = 60
NUMBERS = [1234.5 * n - 900 for n in range(ROWS)]
ENGLISH = [f"{x:,.2f}" for x in NUMBERS]
GERMAN = [x.translate(str.maketrans(",.", ".,")) for x in ENGLISH]


def write(path: Path, columns: dict[str, list[str]], delimiter: str = ",") -> Path:
    columns = {"id": [f"r{n}" for n in range(ROWS)], **columns}
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    cells = [delimiter.join('"' + c.replace('"', '""') + '"' for c in row) for row in rows]
    path.write_bytes("\ufeff".encode() + "\r\n".join(cells).encode() + b"\r\n")
    return path


def numbers(store: Path, name: str) -> list[float]:
    """The column in the order of the raw rows."""
    tables = [pq.read_table(store / f"{part}.parquet") for part in ("train", "test")]
    rows = pa.concat_tables(tables).to_pylist()
    return [row[name] for row in sorted(rows, key=lambda row: int(row["id"][1:]))]


@pytest.mark.parametrize(
    ("texts", "delimiter", "source"),
    {
        "thousands": (ENGLISH, ",", {"thousands": ","}),
        "German": (GERMAN, ";", {"delimiter": ";", "decimal": ",", "thousands": "."}),
        "spaces": ([x.replace(",", "\u202f") for x in ENGLISH], ",", {"thousands": " "}),
        "Swiss": ([x.replace(",", "'") for x in ENGLISH], ",", {"thousands": "'"}),
        "dollars": ([f"${x}" for x in ENGLISH], ",", {"thousands": ",", "units": ["$"]}),
        "minus before the sign": (
            [f"-${x[1:]}" if x[0] == "-" else f"${x}" for x in ENGLISH],
            ",",
            {"thousands": ",", "units": ["$"]},
        ),
        "per cent": ([f"{x} %" for x in NUMBERS], ",", {"units": ["%"]}),
        "euros": (
            [f"{x} EUR" for x in GERMAN],
            ";",
            {"delimiter": ";", "decimal": ",", "thousands": ".", "units": ["EUR"]},
        ),
    }.values(),
)
def test_numbers_with_separators_and_units_are_drafted_and_read(
    tmp_path: Path, texts: list[str], delimiter: str, source: dict[str, Any]
) -> None:
    path = write(tmp_path / "rows.csv", {"x": texts}, delimiter)
    write_draft(path, tmp_path / "schema.toml")
    assert tomllib.loads((tmp_path / "schema.toml").read_text())["source"] == source
    drafted = read_raw_schema(tmp_path / "schema.toml")
    plain = drafted.model_copy(update={"numbers": {"x": Number()}, "split": Split(test=0.2)})
    make(path, plain, tmp_path / "store")
    assert numbers(tmp_path / "store", "x") == np.array(NUMBERS, np.float32).tolist()
    schema = read_store_schema(tmp_path / "store")
    request = RowEncoder(schema, {"numbers": ["x"]}).encode({"x": [texts[3]]})
    assert request.inputs["numbers"].item() == np.float32(NUMBERS[3])


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("1,234", r'set thousands = "," under \[source\]'),
        ("$1,234.50", r'set thousands = "," and units = \["\$"\] under \[source\]'),
        ("12%", r'set units = \["%"\] under \[source\]'),
    ],
)
def test_an_undeclared_style_is_named_with_what_to_write(
    tmp_path: Path, text: str, advice: str
) -> None:
    path = write(tmp_path / "rows.csv", {"x": ["1", *[text] * (ROWS - 1)]})
    schema = RawSchema(id="id", numbers={"x": Number()})
    with pytest.raises(DataError, match=f"got text in {ROWS - 1} rows; they look like .*{advice}"):
        make(path, schema, tmp_path / "store")


def test_text_among_numbers_with_separators_is_counted(tmp_path: Path) -> None:
    cells = [*ENGLISH[:-3], "1,23", "text", "12,3456"]
    path = write(tmp_path / "rows.csv", {"x": cells})
    schema = RawSchema(id="id", numbers={"x": Number()}, source=Source(thousands=","))
    with pytest.raises(DataError, match="column 'x': expected numbers, got text in 3 rows"):
        make(path, schema, tmp_path / "store")


def test_a_label_may_have_separators(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", {"y": ENGLISH, "x": ENGLISH})
    schema = RawSchema(
        id="id",
        label="y",
        numbers={"x": Number()},
        source=Source(thousands=","),
        split=Split(test=0.2),
    )
    make(path, schema, tmp_path / "store")
    assert numbers(tmp_path / "store", "label") == numbers(tmp_path / "store", "x")


def test_numbers_of_several_units_or_of_another_style_are_left_out_of_a_draft(
    tmp_path: Path,
) -> None:
    columns = {
        "x": [f"{n}.5" for n in range(ROWS)],
        "z": [f"{n}.25" for n in range(ROWS)],
        "mixed": [f"{'$€'[n % 2]}{n}" for n in range(ROWS)],
        "german": GERMAN,
    }
    made = draft_schema(write(tmp_path / "rows.csv", columns))
    assert list(tomllib.loads(made.text)["numbers"]) == ["x", "z"]
    assert "bags" not in tomllib.loads(made.text) and "categories" not in tomllib.loads(made.text)
    assert "# mixed: numbers with different units" in made.text
    assert "# german: numbers with other separators or units" in made.text


@pytest.mark.parametrize(
    "source",
    [{"thousands": ",", "decimal": ","}, {"units": ["k9"]}, {"format": "parquet", "units": ["$"]}],
)
def test_a_style_that_cannot_be_is_refused(tmp_path: Path, source: dict[str, Any]) -> None:
    lines = [f"{key} = {value!r}" for key, value in source.items()]
    (tmp_path / "schema.toml").write_text("\n".join(['id = "id"', "[source]", *lines]))
    with pytest.raises(ConfigError, match="source"):
        read_raw_schema(tmp_path / "schema.toml")


@pytest.mark.parametrize("text", ["$", "1_000", "\u0663", "1,2", ",123", "0x10", "--1", "$-$1"])
def test_what_is_no_number_is_text_to_both_readers(text: str) -> None:
    style = NumberStyle(".", ",", ("$",))
    assert classify_cell(text.encode(), style) == "text"
    parser = NumberParser(style)
    parsed, _ = parser.parse("x", pa.array([text, "$1,000"]).dictionary_encode())
    assert parsed.to_pylist() == [None, 1000.0] and parser.text_rows["x"] == 1


def test_infinity_in_a_draft_is_a_missing_value(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", {"x": ["inf", "-Infinity", *map(str, range(ROWS - 2))]})
    write_draft(path, tmp_path / "schema.toml")
    schema = read_raw_schema(tmp_path / "schema.toml")
    assert schema.numbers["x"].missing == "median" and "inf" in schema.source.missing
    make(path, schema, tmp_path / "store")
    assert sum(open_store(tmp_path / "store").schema.missing.values()) <= 2
