"""Drafts of a schema: what is guessed from raw files, and that a draft makes a store as it is."""

from __future__ import annotations

import gzip
import tomllib
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from celu.cli.app import app
from celu.config.schema import read_raw_schema
from celu.data.store import open_store
from celu.errors import ConfigError, DataError
from celu.prepare import draft
from celu.prepare.draft import Draft, draft_schema, write_draft
from prepare.samples import make

ROWS = 240


def columns() -> dict[str, list[str]]:
    start = datetime(2021, 3, 4, 5)
    made: dict[str, list[str]] = {
        "customer_id": [f"c{n:04}" for n in range(ROWS)],
        "churned": [str(n % 2) for n in range(ROWS)],
        "age": ["NA" if n % 9 == 0 else str(18 + n % 60) for n in range(ROWS)],
        "spent": [f"{1.07 ** (n % 200):.2f}" for n in range(ROWS)],
        "flag": [str(n % 5 // 4) for n in range(ROWS)],
        "plan": [str(n % 4) for n in range(ROWS)],
        "postcode": [f"0{n % 7}12" for n in range(ROWS)],
        "city": ["" if n % 8 == 0 else f"city {n % 11}" for n in range(ROWS)],
        "joined": [f"{start + timedelta(days=n):%Y-%m-%d}" for n in range(ROWS)],
        "seen": ["" if n % 5 == 0 else f"{start + timedelta(hours=n)}" for n in range(ROWS)],
        "born": [f"{start - timedelta(days=90 * n):%d.%m.%Y}" for n in range(ROWS)],
        "genres": ["|".join(["pop", "rock", "jazz"][: n % 4]) for n in range(ROWS)],
        "note": [f"note number {n}" for n in range(ROWS)],
        "country": ["x"] * ROWS,
        "empty": [""] * ROWS,
    }
    return made


def write(path: Path, table: dict[str, list[str]], delimiter: str = ",") -> Path:
    lines = [delimiter.join(row) for row in [list(table), *zip(*table.values(), strict=True)]]
    text = "\n".join(lines) + "\n"
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def parsed(made: Draft) -> dict[str, Any]:
    return tomllib.loads(made.text)


EXPECTED: dict[str, Any] = {
    "id": "customer_id",
    "label": "churned",
    "split": {"seed": 1, "test": 0.1, "validation": 0.1},
    "source": {"missing": ["NA"]},
    "numbers": {
        "age": {"missing": "median", "indicator": True, "standardise": True},
        "spent": {"log": True, "standardise": True},
        "flag": {},
        "plan": {"standardise": True},
    },
    "categories": {"postcode": {"vocabulary": 10000}, "city": {"vocabulary": 10000}},
    "dates": {
        "joined": {
            "parts": ["year", "month", "weekday", "days_since"],
            "since": datetime(2021, 3, 4).date(),
            "standardise": True,
        },
        "seen": {
            "parts": ["year", "month", "weekday", "hour", "days_since"],
            "since": datetime(2021, 3, 4).date(),
            "missing": "median",
            "indicator": True,
            "standardise": True,
        },
        "born": {
            "parts": ["year", "month", "weekday", "days_since"],
            "format": "%d.%m.%Y",
            "since": (datetime(2021, 3, 4) - timedelta(days=90 * (ROWS - 1))).date(),
            "standardise": True,
        },
    },
    "bags": {"genres": {"separator": "|", "vocabulary": 10000, "max_values": 3}},
}


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.csv.gz", "rows.txt.gz"])
def test_a_draft_has_the_type_of_every_column_and_makes_a_store(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, columns(), "," if "csv" in name else "\t")
    made = write_draft(path, tmp_path / "schema.toml", label="churned")
    assert parsed(made) == EXPECTED
    assert (tmp_path / "schema.toml").read_text() == made.text
    report = make(path, read_raw_schema(tmp_path / "schema.toml"), tmp_path / "store")
    assert sum(report.rows.values()) == ROWS and report.warnings == ()
    assert open_store(tmp_path / "store").schema.inputs()["bags"] == ["genres"]


def test_every_guess_has_its_reason(tmp_path: Path) -> None:
    text = draft_schema(write(tmp_path / "rows.csv", columns()), label="churned").text
    lines = {line.split(" = ")[0]: line for line in text.splitlines()}
    for name, reason in {
        "age": "integers from 18 to 77, 11.2% missing",
        "spent": "most are small (median",
        "flag": "0 or 1",
        "plan": "4 distinct ones: if they are codes, move it to [categories]",
        "city": "text, 11 distinct values, 12.5% missing",
        "genres": "up to 3 values in a field, 3 distinct ones",
    }.items():
        assert reason in lines[name], name
    assert "[dates.seen]  # times in ISO 8601, 20.0% missing" in text
    assert "# note: 240 distinct values in 240 rows: it names rows, or is free text" in text
    assert "# country: all rows have the same value" in text
    assert "# empty: every value is missing" in text
    assert "# Its values differ in all 240 rows; so do those of note." in text


def test_the_label_is_left_to_the_user_unless_it_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", columns())
    made = draft_schema(path)
    assert "label" not in parsed(made) and "churned" in parsed(made)["numbers"]
    assert "# Columns with two values: churned, flag." in made.text
    with pytest.raises(ConfigError, match=r"--label: .* has no column 'late', only customer_id"):
        draft_schema(path, label="late")


@pytest.mark.parametrize("delimiter", [";", "|", "\t"])
def test_another_delimiter_and_decimal_commas_are_noticed(tmp_path: Path, delimiter: str) -> None:
    table = {name: columns()[name] for name in ("customer_id", "age", "city", "spent")}
    table["spent"] = [cell.replace(".", ",") for cell in table["spent"]]
    path = write(tmp_path / "rows.csv", table, delimiter)
    made = write_draft(path, tmp_path / "schema.toml")
    source = {"delimiter": delimiter, "decimal": ",", "missing": ["NA"]}
    assert parsed(made)["source"] == source
    assert parsed(made)["numbers"]["spent"] == {"log": True, "standardise": True}
    make(path, read_raw_schema(tmp_path / "schema.toml"), tmp_path / "store")


def test_a_comma_in_ordinary_text_makes_no_bag(tmp_path: Path) -> None:
    table = {
        "id": [str(n) for n in range(60)],
        "place": [f"Town {n % 5}; Land {n % 2}" for n in range(60)],
        "title": [f'"Mr, {n % 4}"' for n in range(60)],
        "pets": [f'"{", ".join(["cat", "dog", "cow"][: 1 + n % 3])}"' for n in range(60)],
    }
    found = parsed(draft_schema(write(tmp_path / "rows.csv", table)))
    assert found["bags"] == {
        "place": {"separator": ";", "vocabulary": 10000, "max_values": 2},
        "pets": {"separator": ",", "vocabulary": 10000, "max_values": 3},
    }
    assert list(found["categories"]) == ["title"]


def test_a_parquet_file_has_types_of_its_own(tmp_path: Path) -> None:
    write(tmp_path / "rows.csv", columns())
    options = pa_csv.ConvertOptions(strings_can_be_null=True, null_values=["", "NA"])
    table = pa_csv.read_csv(tmp_path / "rows.csv", convert_options=options)
    assert pa.types.is_timestamp(table.schema.field("seen").type)
    table = table.append_column("nested", pa.array([[[1]]] * ROWS))
    table = table.append_column("binary", pa.array([b"x", b"y"] * (ROWS // 2)))
    pq.write_table(table, tmp_path / "rows.parquet")
    made = write_draft(tmp_path / "rows.parquet", tmp_path / "schema.toml", label="churned")
    expected = {key: value for key, value in EXPECTED.items() if key not in ("source",)}
    found = parsed(made)
    assert "postcode" in found["numbers"] or "postcode" in found["categories"]
    for key in ("id", "label", "dates", "bags"):
        assert found[key] == expected[key]
    assert found["numbers"]["age"] == expected["numbers"]["age"]
    for name in ("nested", "binary"):
        assert f"# {name}: a column of another type" in made.text
    make(tmp_path / "rows.parquet", read_raw_schema(tmp_path / "schema.toml"), tmp_path / "store")


def id_of(tmp_path: Path, names: Sequence[str]) -> str | None:
    """The id that is guessed for unique columns of these names; one beginning with x is text."""
    table = {name: [f"{name}{n}" for n in range(30)] for name in names}
    table["value"] = [str(n % 3) for n in range(30)]
    return draft_schema(write(tmp_path / "rows.csv", table)).id


def test_the_id_is_named_only_where_it_is_clear(tmp_path: Path) -> None:
    assert id_of(tmp_path, ["person"]) == "person"
    assert id_of(tmp_path, ["email", "userId"]) == "userId"
    assert id_of(tmp_path, ["value2", "phone"]) == "value2"  # the first column
    table = {"kind": ["a", "b"] * 15, "x": [f"x{n}" for n in range(30)]}
    table["y"] = [f"y{n}" for n in range(30)]
    made = draft_schema(write(tmp_path / "rows.csv", table))
    assert made.id is None and "# Name the id: x, y have a different value" in made.text
    made = draft_schema(write(tmp_path / "rows.csv", {"kind": table["kind"]}))
    assert made.id is None and '# id = "#row"' in made.text
    times = [f"{datetime(2020, 1, 1) + timedelta(hours=n)}" for n in range(30)]
    made = draft_schema(write(tmp_path / "rows.csv", {"time": times, "kind": table["kind"]}))
    assert made.id is None


def test_names_that_toml_or_a_store_cannot_have_are_quoted_or_left_out(tmp_path: Path) -> None:
    table = {
        "row id": [f"r{n}" for n in range(30)],
        'a "b" \\ é\x7f': [str(n) for n in range(30)],
        "label": [str(n % 4) for n in range(30)],
        "x": [str(n % 7) if n % 3 else "" for n in range(30)],
        "x.missing": [str(n % 5) for n in range(30)],
    }
    path = tmp_path / "rows.csv"
    rows = [[f'"{name.replace(chr(34), chr(34) * 2)}"' for name in table]]
    rows += [list(row) for row in zip(*table.values(), strict=True)]
    path.write_text("\n".join(",".join(row) for row in rows) + "\n")
    made = write_draft(path, tmp_path / "schema.toml")
    schema = read_raw_schema(tmp_path / "schema.toml")
    assert schema.id == "row id"
    assert list(schema.numbers) == ['a "b" \\ é\x7f', "x", "x.missing"]
    assert not schema.numbers["x"].indicator
    assert "# label: a store has a column of this name; rename it" in made.text
    make(path, schema, tmp_path / "store")


def test_a_long_file_is_read_only_as_far_as_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft, "MAX_ROWS", 100)
    table = {"id": [str(n) for n in range(ROWS)], "x": [str(n % 9) for n in range(ROWS)]}
    table["x"][-1] = "text"
    made = draft_schema(write(tmp_path / "rows.csv", table))
    assert "from the first 100 rows" in made.text and "x" in parsed(made)["numbers"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("1,2\n3,4\n", "expected names of columns in the first line, got numbers"),
        ("id,x\n", "expected rows, got none"),
        ("", "an empty one"),
        ("id\na\nb\n", "expected columns with features, got none"),
    ],
)
def test_a_file_without_header_rows_or_features_is_refused(
    tmp_path: Path, text: str, error: str
) -> None:
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(DataError, match=error):
        write_draft(tmp_path / "rows.csv", tmp_path / "schema.toml")
    assert not (tmp_path / "schema.toml").exists()


def invoke(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_writes_a_draft_once_and_names_the_next_one(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", columns())
    schema = tmp_path / "schema.toml"
    output = invoke("prepare", path, "--draft", schema, "--label", "churned")
    assert "id customer_id; numbers: 4, categories: 2, dates: 3, bags: 1; left out: 3" in output
    assert f"celu prepare {path} --schema {schema} --out store" in output
    invoke("prepare", path, "--schema", schema, "--out", tmp_path / "store")
    before = schema.read_text()
    for arguments, problem in (
        (["--draft", schema], "already exists"),
        (["--draft", tmp_path / "new.toml", "--out", tmp_path], "neither --out nor --force"),
        (["--draft", tmp_path / "new.toml", "--schema", schema], "expected one of --draft"),
        (["--schema", schema, "--label", "churned"], "--label is for --draft"),
        ([path, "--draft", tmp_path / "new.toml"], "expected one file"),
    ):
        with pytest.raises(ConfigError, match=problem):
            invoke("prepare", path, *arguments)
    assert schema.read_text() == before and not (tmp_path / "new.toml").exists()


def test_a_few_texts_among_numbers_are_drafted_as_missing_and_shown(tmp_path: Path) -> None:
    rows = 1200
    table = {
        "id": [f"c{n}" for n in range(rows)],
        "income": ["oops" if n in (7, 99) else f"{n * 3.7 % 911:.3f}" for n in range(rows)],
        "visits": ["unknown" if n % 100 == 0 else str(n * 7 % 1009) for n in range(rows)],
        "rate": [f"{n % 90}%" if n % 3 else str(n % 90) for n in range(rows)],
        "half": [f"{n * 1.7:.2f}" if n % 2 else f"free text {n}" for n in range(rows)],
        "code": [f"0{n}" if n > 4 else "none" for n in range(rows)],
    }
    made = draft_schema(write(tmp_path / "rows.csv", table))
    schema = parsed(made)
    assert set(schema["numbers"]) == {"income", "visits"}
    assert schema["source"]["missing"] == ["oops", "unknown"]
    assert '2 rows is taken for missing: "oops"' in made.text
    assert '12 rows is taken for missing: "unknown"' in made.text
    assert "# rate: numbers with different units, or some with and some without" in made.text
    assert "# half: numbers in 600 of 1,200 rows, and text in the others" in made.text
    assert "code" not in schema["numbers"]
    (tmp_path / "schema.toml").write_text(made.text)
    declared = read_raw_schema(tmp_path / "schema.toml")
    report = make(tmp_path / "rows.csv", declared, tmp_path / "store")
    assert sum(report.rows.values()) == rows


def test_a_stray_text_does_not_hide_that_numbers_have_decimal_commas(tmp_path: Path) -> None:
    table = {
        "id": [f"c{n}" for n in range(ROWS)],
        "income": ["n.v." if n == 5 else f"{n * 3.7:.1f}".replace(".", ",") for n in range(ROWS)],
    }
    schema = parsed(draft_schema(write(tmp_path / "rows.csv", table, ";")))
    assert schema["source"] == {"delimiter": ";", "decimal": ",", "missing": ["n.v."]}
    assert set(schema["numbers"]) == {"income"}
