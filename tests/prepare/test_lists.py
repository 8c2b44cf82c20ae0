"""Lists in a Parquet file are bags, like text with separators."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from celu.config.columns import Bag
from celu.config.schema import RawSchema, Source, Split, read_raw_schema
from celu.data import decoded_text
from celu.data.store import open_store
from celu.errors import DataError
from celu.prepare import parquet
from celu.prepare.draft import write_draft
from celu.prepare.pipeline import prepare_like
from prepare.samples import make

ROWS = 120
LISTS: list[list[str | None] | None] = [
    None
    if n % 11 == 0
    else [["pop", "rock", None, " jazz ", "pop"][(n + i) % 5] for i in range(n % 4)]
    for n in range(ROWS)
]
TEXTS = ["|".join(value or "" for value in one or ()) for one in LISTS]
IDS = [f"r{n}" for n in range(ROWS)]


def schema(**options: Any) -> RawSchema:
    bag = Bag(separator="|", **{"vocabulary": 5, "max_values": 3, **options})
    return RawSchema(id="id", split=Split(test=0.2), bags={"genres": bag})


def write(path: Path, column: Any) -> Path:
    pq.write_table(pa.table({"id": IDS, "genres": column}), path)
    return path


def codes(store: Path) -> list[Any]:
    return [pq.read_table(store / f"{part}.parquet").to_pylist() for part in ("train", "test")]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.string()),
        pa.large_list(pa.large_string()),
        pa.list_(pa.dictionary(pa.int32(), pa.string())),
    ],
)
@pytest.mark.parametrize("options", [{}, {"vocabulary": None, "buckets": 9}, {"max_values": 1}])
def test_lists_have_the_codes_of_the_same_values_in_text(
    tmp_path: Path, kind: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "PARQUET_ROWS", 50)
    values = pa.array(LISTS, pa.list_(pa.string())).cast(kind)
    report = make(write(tmp_path / "l.parquet", values), schema(**options), tmp_path / "lists")
    text = make(write(tmp_path / "t.parquet", TEXTS), schema(**options), tmp_path / "texts")
    assert codes(tmp_path / "lists") == codes(tmp_path / "texts")
    assert report.warnings == text.warnings and bool(report.warnings) == ("max_values" in options)
    prepare_like([tmp_path / "l.parquet"], tmp_path / "texts", tmp_path / "new-lists")
    prepare_like([tmp_path / "t.parquet"], tmp_path / "lists", tmp_path / "new-texts")
    new = [pq.read_table(tmp_path / f"new-{name}" / "test.parquet") for name in ("lists", "texts")]
    assert new[0].equals(new[1])


def test_lists_of_integers_are_codes_of_their_digits(tmp_path: Path) -> None:
    path = write(tmp_path / "l.parquet", [[n % 3, n % 2] for n in range(ROWS)])
    make(path, schema(), tmp_path / "store")
    values = open_store(tmp_path / "store").schema.bags["genres"].values
    assert sorted(values or []) == ["0", "1", "2"]


def test_values_that_mean_missing_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "l.parquet", [["NA", "x"]] * ROWS)
    declared = schema().model_copy(update={"source": Source(missing=["NA"])})
    make(path, declared, tmp_path / "store")
    assert open_store(tmp_path / "store").schema.bags["genres"].values == ["x"]


def test_a_draft_proposes_a_bag_with_a_separator_that_no_value_has(tmp_path: Path) -> None:
    lists = [[f"a|{(n + i) % 7}" for i in range(n % 4)] for n in range(ROWS)]
    path = write(tmp_path / "l.parquet", lists)
    made = write_draft(path, tmp_path / "schema.toml")
    bag = read_raw_schema(tmp_path / "schema.toml").bags["genres"]
    assert (bag.separator, bag.max_values, bag.vocabulary) == (";", 3, 10000)
    assert "lists of up to 3 values, 7 distinct ones" in made.text
    assert make(path, read_raw_schema(tmp_path / "schema.toml"), tmp_path / "s").warnings == ()
    (warning,) = make(path, schema(vocabulary=9), tmp_path / "store").warnings
    assert "values of its lists contain the separator" in warning


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.list_(pa.list_(pa.string()))])
def test_lists_of_anything_else_are_refused_by_name(tmp_path: Path, kind: Any) -> None:
    path = write(tmp_path / "l.parquet", pa.array([None] * ROWS, kind))
    with pytest.raises(DataError, match="column 'genres': expected text with separators, or lists"):
        make(path, schema(), tmp_path / "store")


def test_a_list_in_another_column_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "l.parquet", pa.array(LISTS, pa.list_(pa.string())))
    declared = RawSchema.model_validate({"id": "id", "categories": {"genres": {"buckets": 3}}})
    with pytest.raises(DataError, match="column 'genres': expected text, integers or booleans"):
        make(path, declared, tmp_path / "store")


@pytest.mark.parametrize(
    ("module", "limit"), [(parquet, "_MAX_LIST_VALUES"), (decoded_text, "MAX_BATCH_TEXT")]
)
def test_more_values_or_text_than_the_file_has_bytes_for_are_refused(
    tmp_path: Path, module: ModuleType, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = pa.array([["x" * 100] * 200] * ROWS)
    path = write(tmp_path / "l.parquet", values)
    monkeypatch.setattr(module, limit, 1000)
    with pytest.raises(DataError, match=r"genres.*(values, far more|bytes of text)"):
        make(path, schema(), tmp_path / "store")
