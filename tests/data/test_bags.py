"""Columns of lists in a store: as tensors, in a stream of rows, and before the gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from celu.config.columns import Bag
from celu.config.schema import RawSchema, Split
from celu.data.gate import check_store
from celu.data.memory_map import open_datasets
from celu.data.row_stream import RowStream
from celu.data.store import Store, open_store
from celu.errors import DataError
from prepare.samples import csv, make

ROWS = 60


def make_store(folder: Path) -> Store:
    some = [
        {
            "id": f"r{n}",
            "genres": "|".join(f"g{i}" for i in range(n % 5)),
            "tags": " ".join(f"t{i * n % 9}" for i in range(3)) if n % 4 else "",
            "odd": "a b" if n % 2 else "",
        }
        for n in range(ROWS)
    ]
    bags = {
        "genres": Bag(separator="|", vocabulary=3, max_values=4),
        "tags": Bag(separator=" ", buckets=20, max_values=2),
        "odd": Bag(separator="/", vocabulary=5, max_values=1),
    }
    make(csv(folder, some), RawSchema(id="id", split=Split(test=0.2), bags=bags), folder / "store")
    return open_store(folder / "store")


def test_an_input_of_bags_has_the_longest_list_of_its_columns(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    train = open_datasets(store).train
    assert train.inputs["bags"].shape == (store.schema.rows["train"], 3, 4)
    assert train.sizes == {"bags": (5, 21, 3)}
    table = pq.read_table(store.file("train"))
    for number, name in enumerate(["genres", "tags", "odd"]):
        lists = [codes + [0] * (4 - len(codes)) for codes in table[name].to_pylist()]
        assert train.inputs["bags"][:, number].tolist() == lists
    batch = train.take(slice(0, 3))
    assert str(batch.inputs["bags"].dtype) == "torch.int64"
    own = open_datasets(store, {"few": ["tags"], "many": ["genres"]}).test
    assert own.inputs["few"].shape[1:] == (1, 2) and own.inputs["many"].shape[1:] == (1, 4)
    again = open_datasets(store).train  # from the files that exist now
    assert again.inputs["bags"].equal(train.inputs["bags"])


def test_a_stream_of_rows_has_the_same_bags(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    inputs = {"some": ["tags", "genres"]}
    expected = open_datasets(store, inputs).train.inputs["some"].numpy()
    stream = RowStream(store, inputs, store.schema.rows, None, ids=False)
    blocks = list(stream.blocks("train", aligned=True, start=5))
    assert np.array_equal(np.concatenate([b.inputs["some"] for b in blocks]), expected[5:])


def test_an_input_of_bags_and_others_is_refused(tmp_path: Path) -> None:
    some = [{"id": f"r{n}", "a": "x|y", "b": str(n)} for n in range(9)]
    schema = RawSchema.model_validate(
        {
            "id": "id",
            "numbers": {"b": {}},
            "bags": {"a": {"separator": "|", "buckets": 9}},
            "split": {"test": 0.0},
        }
    )
    make(csv(tmp_path, some), schema, tmp_path / "store")
    with pytest.raises(DataError, match=r"'both': expected only .*, got bags and numbers"):
        open_datasets(open_store(tmp_path / "store"), {"both": ["a", "b"]})


def test_the_gate_counts_rows_without_values_and_rows_with_unseen_ones(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    gate = check_store(store)
    rows = np.array(pq.read_table(store.file("train"))["genres"].to_pylist())
    facts = gate.facts["train"]["genres"]
    assert facts.missing == int((rows == 0).all(axis=1).sum()) > 0
    assert facts.unseen == int((rows == 1).any(axis=1).sum()) > 0
    assert facts.coverage == 1.0
    assert gate.findings() == []  # a bag that has one value or none is not constant


def rewrite(store: Store, name: str, lists: Any) -> None:
    table = pq.read_table(store.file("train"))
    at = table.column_names.index(name)
    pq.write_table(table.set_column(at, name, lists), store.file("train"))


@pytest.mark.parametrize("code", [-1, 5])
def test_codes_out_of_range_are_refused_before_training_and_prediction(
    tmp_path: Path, code: int
) -> None:
    store = make_store(tmp_path)
    lists = pq.read_table(store.file("train"))["genres"].to_pylist()
    lists[7][2] = code
    rewrite(store, "genres", pa.array(lists, pa.list_(pa.int32(), 4)))
    with pytest.raises(DataError, match=r"'genres': expected codes from 0.*in 1 rows"):
        open_datasets(open_store(store.path))
    stream = RowStream(store, {"bags": ["genres"]}, store.schema.rows, None, ids=False)
    with pytest.raises(DataError, match=r"'genres': expected codes below .* in 1 rows"):
        list(stream.blocks("train", aligned=True))


def test_lists_with_nulls_or_of_another_length_are_refused(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    lists = pq.read_table(store.file("train"))["genres"].to_pylist()
    rewrite(store, "genres", pa.array([c[:3] for c in lists], pa.list_(pa.int32(), 3)))
    with pytest.raises(DataError, match=r"'genres': expected .*4"):
        open_store(store.path)
    lists[3][1] = None
    rewrite(store, "genres", pa.array(lists, pa.list_(pa.int32(), 4)))
    with pytest.raises(DataError, match=r"'genres': expected codes.*in 1 rows"):
        open_datasets(open_store(store.path))
