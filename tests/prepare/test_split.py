"""Splitting one table among parties: columns, rows, order, and errors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from celu.config.columns import Category, Number
from celu.config.schema import RawSchema, Split
from celu.errors import CeluError, ConfigError, DataError
from celu.prepare import delimited, spill
from celu.prepare.pipeline import Target, prepare
from celu.prepare.split import split

ROWS = 2000
PARTIES = {"bank": ["age", "late"], "shop": ["clicks"]}


def csv(folder: Path) -> Path:
    lines = [f"u{row},{20 + row % 50},{row % 2},{row * 3}" for row in range(ROWS)]
    path = folder / "table.csv"
    path.write_text("\n".join(["id,age,late,clicks", *lines]) + "\n")
    return path


def read(folder: Path, party: str) -> pa.Table:
    return pq.read_table(folder / f"{party}.parquet")


def ids(folder: Path, party: str) -> list[str]:
    found: list[str] = read(folder, party).column("id").to_pylist()
    return found


def test_each_party_gets_its_columns_of_the_same_rows(tmp_path: Path) -> None:
    counts = split(csv(tmp_path), "id", PARTIES, tmp_path / "out")
    assert counts == {"bank": ROWS, "shop": ROWS}
    assert read(tmp_path / "out", "bank").column_names == ["id", "age", "late"]
    assert read(tmp_path / "out", "shop").column_names == ["id", "clicks"]
    clicks = {row["id"]: row["clicks"] for row in read(tmp_path / "out", "shop").to_pylist()}
    assert clicks == {f"u{row}": str(row * 3) for row in range(ROWS)}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "table.csv"]


def test_each_party_has_its_own_order(tmp_path: Path) -> None:
    split(csv(tmp_path), "id", PARTIES, tmp_path / "out")
    bank, shop = ids(tmp_path / "out", "bank"), ids(tmp_path / "out", "shop")
    given = [f"u{row}" for row in range(ROWS)]
    for one, other in ((bank, shop), (bank, given), (shop, given)):
        position = {row_id: number for number, row_id in enumerate(other)}
        correlation = np.corrcoef([position[row_id] for row_id in one], np.arange(ROWS))[0, 1]
        assert abs(correlation) < 0.1


def test_each_party_lacks_different_rows(tmp_path: Path) -> None:
    split(csv(tmp_path), "id", PARTIES, tmp_path / "out", keep=0.8)
    bank, shop = set(ids(tmp_path / "out", "bank")), set(ids(tmp_path / "out", "shop"))
    assert len(bank) == pytest.approx(0.8 * ROWS, rel=0.05)
    assert len(bank & shop) == pytest.approx(0.64 * ROWS, rel=0.07)


def test_a_share_is_a_function_of_seed_and_party(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = csv(tmp_path)
    split(table, "id", PARTIES, tmp_path / "a", keep=0.5)
    split(table, "id", PARTIES, tmp_path / "other", keep=0.5, seed=2)
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 3000)
    monkeypatch.setattr(delimited, "BLOCKS_JOINED", 2)
    monkeypatch.setattr(delimited, "PIECE_BYTES", 6000)
    monkeypatch.setattr(spill, "BUCKET_BYTES", 4000)
    split(table, "id", PARTIES, tmp_path / "b", keep=0.5)
    split(table, "id", {"shop": ["age"]}, tmp_path / "c", keep=0.5)
    assert ids(tmp_path / "a", "bank") == ids(tmp_path / "b", "bank")
    assert ids(tmp_path / "a", "shop") == ids(tmp_path / "b", "shop") == ids(tmp_path / "c", "shop")
    assert set(ids(tmp_path / "a", "bank")) != set(ids(tmp_path / "other", "bank"))


def test_columns_of_parquet_retain_their_types_and_row_numbers_may_be_the_ids(
    tmp_path: Path,
) -> None:
    columns = {
        "n": pa.array(range(50), pa.int16()),
        "c": pa.array(["a", None] * 25).dictionary_encode(),
        "t": pa.array(range(50), pa.timestamp("ms")),
    }
    pq.write_table(pa.table(columns), tmp_path / "table.parquet", row_group_size=20)
    split(tmp_path / "table.parquet", "#row", {"a": ["n", "t"], "b": ["c"]}, tmp_path / "out")
    party = read(tmp_path / "out", "a")
    assert party.schema.types == [pa.string(), pa.int16(), pa.timestamp("ms")]
    assert party.column("id").to_pylist() == [str(n) for n in party.column("n").to_pylist()]


def test_split_tables_can_be_prepared_and_have_the_same_order(tmp_path: Path) -> None:
    split(csv(tmp_path), "id", PARTIES, tmp_path / "out", keep=0.9)
    bank = RawSchema(id="id", label="late", split=Split(), numbers={"age": Number()})
    shop = RawSchema(id="id", split=Split(), categories={"clicks": Category(buckets=10)})
    prepare([tmp_path / "out" / "bank.parquet"], [Target(bank, tmp_path / "bank")])
    prepare([tmp_path / "out" / "shop.parquet"], [Target(shop, tmp_path / "shop")])
    mine, theirs = (
        pq.read_table(tmp_path / name / "test.parquet").column("id").to_pylist()
        for name in ("bank", "shop")
    )
    shared = set(mine) & set(theirs)
    assert len(shared) > 100
    assert [i for i in mine if i in shared] == [i for i in theirs if i in shared]


BAD: dict[str, tuple[dict[str, Any], type[CeluError], str]] = {
    "no such column": ({"parties": {"a": ["agee"]}}, DataError, "expected a column 'agee'"),
    "no such id": ({"row_id": "user"}, DataError, "expected a column 'user'"),
    "no parties": ({"parties": {}}, ConfigError, "party: expected at least one"),
    "no columns": ({"parties": {"a": []}}, ConfigError, "party a: expected columns"),
    "a column twice": ({"parties": {"a": ["age", "age"]}}, ConfigError, "each once"),
    "the id as column": ({"parties": {"a": ["id"]}}, ConfigError, "without the id"),
    "keep nothing": ({"keep": 0.0}, ConfigError, "keep: expected a share above 0"),
    "keep too much": ({"keep": 1.5}, ConfigError, "keep: expected a share above 0"),
    "keep too little": ({"keep": 1e-9}, DataError, "expected rows for bank, got none"),
}


@pytest.mark.parametrize(("change", "error", "message"), BAD.values(), ids=BAD)
def test_invalid_arguments_are_refused_and_leave_nothing(
    tmp_path: Path, change: dict[str, Any], error: type[CeluError], message: str
) -> None:
    arguments: dict[str, Any] = {"row_id": "id", "parties": PARTIES} | change
    with pytest.raises(error, match=re.escape(message)):
        split(csv(tmp_path), out=tmp_path / "out", **arguments)
    assert [p.name for p in tmp_path.iterdir()] == ["table.csv"]


def test_an_existing_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="out: already exists"):
        split(csv(tmp_path), "id", PARTIES, tmp_path / "out")
