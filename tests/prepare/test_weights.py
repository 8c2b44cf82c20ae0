"""Weights of rows: from a column of the raw files to a dataset, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import celu
from celu.config.columns import Number
from celu.config.job import Job
from celu.config.party import PartySettings
from celu.config.schema import RawSchema, read_store_schema
from celu.data.gate import check_store
from celu.errors import DataError
from celu.launch.loading import load_party
from celu.prepare.pipeline import prepare_like
from prepare.samples import SCHEMA, as_parquet, csv, make, rows

WEIGHTED = SCHEMA.model_copy(update={"weight": "w"})


def weighted_rows(num_rows: int = 200) -> list[dict[str, str]]:
    return [{**row, "w": str(number % 5 / 2)} for number, row in enumerate(rows(num_rows))]


def weight_of(row_id: str) -> float:
    return int(row_id.removeprefix("user-")) % 5 / 2


@pytest.fixture
def store(tmp_path: Path) -> Path:
    make(csv(tmp_path, weighted_rows()), WEIGHTED, tmp_path / "store")
    return tmp_path / "store"


def test_each_row_has_its_weight_in_the_datasets(store: Path) -> None:
    datasets = celu.open_store(store).datasets()
    for part, data in (("train", datasets.train), ("test", datasets.test)):
        ids = pq.read_table(store / f"{part}.parquet", columns=["id"])["id"].to_pylist()
        assert data.weights is not None
        assert data.weights.tolist() == [weight_of(row_id) for row_id in ids]
        assert data.inputs["numbers"].shape[1] == 3  # the weight is no feature


def test_csv_and_parquet_make_the_same_weights(store: Path, tmp_path: Path) -> None:
    path = as_parquet(tmp_path, weighted_rows())
    table = pq.read_table(path)
    at = table.column_names.index("w")
    numbers = pa.array([float(w) for w in table["w"].to_pylist()])
    pq.write_table(table.set_column(at, "w", numbers), path)
    make(path, WEIGHTED, tmp_path / "other")
    for part in ("train", "test"):
        a, b = (pq.read_table(folder / f"{part}.parquet") for folder in (store, tmp_path / "other"))
        assert a.equals(b)


def test_rows_read_without_labels_have_no_weights(store: Path) -> None:
    assert celu.open_store(store).datasets(label=False).train.weights is None


def test_weights_do_not_change_what_a_model_fits(store: Path, tmp_path: Path) -> None:
    make(csv(tmp_path, rows(), "plain.csv"), SCHEMA, tmp_path / "plain")
    assert read_store_schema(store).digest() == read_store_schema(tmp_path / "plain").digest()
    new = csv(tmp_path, rows(20, first=900), "new.csv")  # without weights, to predict
    prepare_like([new], store, tmp_path / "new")
    assert celu.open_store(tmp_path / "new").datasets().test.weights is None


def test_a_feature_may_be_called_weight_in_a_store_with_weights(tmp_path: Path) -> None:
    named = [
        {("weight" if k == "plain" else k): v for k, v in row.items()} for row in weighted_rows()
    ]
    declared = RawSchema(id="id", label="y", weight="w", numbers={"weight": Number()})
    make(csv(tmp_path, named), declared, tmp_path / "store")
    train = celu.open_store(tmp_path / "store").datasets().train
    assert train.weights is not None and not train.weights.equal(train.inputs["numbers"][:, 0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda n: "-1" if n < 3 else "1",
            "column 'w': expected weights of 0 or more, got 3 below",
        ),
        (lambda n: "" if n < 3 else "1", "column 'w': expected a number in every row, got 3 rows"),
        (lambda n: "inf" if n < 3 else "1", "column 'w': expected finite numbers"),
        (lambda n: "much" if n < 3 else "1", "column 'w': expected"),
        (lambda n: "0", "column 'w': expected weights above 0 in the training rows, got 0 in all"),
    ],
)
def test_raw_weights_that_are_none_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    raws = [{**row, "w": change(number)} for number, row in enumerate(rows())]
    with pytest.raises(DataError) as error:
        make(csv(tmp_path, raws), WEIGHTED, tmp_path / "store")
    assert message in str(error.value) and "declare a replacement" not in str(error.value)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (-1.0, "column '#weight': expected finite numbers from 0, got others in"),
        (float("nan"), "column '#weight': expected finite numbers from 0, got others in"),
        (None, "column '#weight': all"),
        (0.0, "column '#weight': all .* rows have the weight 0"),
    ],
)
def test_the_gate_refuses_a_store_with_other_weights(
    store: Path, weights: float | None, message: str
) -> None:
    table = pq.read_table(store / "train.parquet")
    at = table.column_names.index("#weight")
    column = pa.array([weights] * table.num_rows, pa.float32())
    pq.write_table(table.set_column(at, "#weight", column), store / "train.parquet")
    with pytest.raises(DataError, match=message):
        celu.open_store(store).datasets()
    assert any(f.level == "error" for f in check_store(celu.open_store(store)).findings())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weight": "plain"}, "plain is declared as weight, and as a feature"),
        ({"weight": "id"}, "weight is the same column as id or label"),
        ({"weight": "w", "label": None}, "weight needs label"),
        ({"weight": "w", "numbers": {"#weight": Number()}}, "#weight is reserved"),
    ],
)
def test_a_schema_with_another_weight_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RawSchema.model_validate({**dict(SCHEMA), **fields})


def test_a_party_trains_with_the_weights_of_its_store_and_its_settings(store: Path) -> None:
    settings = PartySettings.model_validate(
        {
            "role": "guest",
            "name": "guest",
            "data": {"store": store, "aligned": True},
            "model": {
                "bottom": "wdl",
                "top": "wdl",
                "loss": "binary",
                "class_weights": {"0": 1.0, "1": 3.0},
            },
        }
    )
    job = Job(rounds=2, batch_size=32, hosts={})
    guest = load_party(settings, job, store)
    assert isinstance(guest, celu.Guest)
    assert guest.class_weights == {"0": 1.0, "1": 3.0} and guest.train.weights is not None
    assert celu.simulate(job, guest, {}).rounds == 2
