"""Ids that other parties would not find, and tables without a clear id."""

from __future__ import annotations

from pathlib import Path

import pytest

from celu.config.columns import Number
from celu.config.schema import RawSchema
from celu.prepare.draft import draft_schema
from prepare.samples import make

ROWS = 60


def write(path: Path, ids: list[str], name: str = "id") -> Path:
    path.write_text(f"{name},x\n" + "".join(f"{one},{n % 7}.5\n" for n, one in enumerate(ids)))
    return path


@pytest.mark.parametrize(
    ("ids", "warning"),
    [
        ([f" c{n}" if n % 2 else f"c{n}" for n in range(ROWS)], "30 ids have spaces around them"),
        ([f"{n}.0" for n in range(ROWS)], '60 ids have an ending ".0"'),
        ([f"1.{n:03}E+12" for n in range(ROWS)], "60 ids have an exponent, as a spreadsheet"),
    ],
)
def test_ids_that_were_altered_are_a_warning(tmp_path: Path, ids: list[str], warning: str) -> None:
    schema = RawSchema(id="id", numbers={"x": Number()})
    report = make(write(tmp_path / "rows.csv", ids), schema, tmp_path / "store")
    (found,) = report.warnings
    assert f"column 'id': {warning}" in found and "will not be found there" in found


def test_usual_ids_are_no_warning(tmp_path: Path) -> None:
    ids = ["007", "a b", "1.5", "2E5", "x.0", *[f"{n:05}" for n in range(10, ROWS)]]
    schema = RawSchema(id="id", numbers={"x": Number()})
    assert make(write(tmp_path / "rows.csv", ids), schema, tmp_path / "store").warnings == ()


def test_a_draft_names_an_id_that_repeats(tmp_path: Path) -> None:
    ids = [f"c{n}" for n in range(ROWS)]
    made = draft_schema(write(tmp_path / "rows.csv", [*ids, *ids[:2]], "customer_id"))
    assert made.id is None
    assert f"# customer_id has {ROWS} different values in {ROWS + 2} rows" in made.text
    assert "remove the rows that repeat one" in made.text


def test_a_column_without_a_name_is_no_id(tmp_path: Path) -> None:
    made = draft_schema(write(tmp_path / "rows.csv", [str(n) for n in range(ROWS)], ""))
    assert made.id is None
    assert '# "": no name, as the index has that pandas writes: name it' in made.text
