"""Datasets, their batches, and datasets from arrays and tables."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from celu.data.dataset import Batch, Dataset
from celu.data.tags import make_tags
from celu.errors import DataError
from celu.models.tower import Tower

TAGS = make_tags(["a", "b", "c", "d"], 1)


def small_dataset(tags: np.ndarray | None = TAGS) -> Dataset:
    ids = torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]], dtype=torch.int32)
    numbers = torch.tensor([[0.5], [1.5], [2.5], [3.5]])
    return Dataset({"ids": ids, "numbers": numbers}, torch.arange(4.0), {"ids": (9, 9)}, tags)


def test_a_batch_has_the_requested_rows_in_order_with_ids_as_int64() -> None:
    batch = small_dataset().take(torch.tensor([2, 0]))
    assert batch.inputs["ids"].tolist() == [[5, 6], [1, 2]]
    assert batch.inputs["ids"].dtype == torch.int64
    assert batch.inputs["numbers"].tolist() == [[2.5], [0.5]]
    assert batch.labels is not None
    assert batch.labels.tolist() == [2, 0]
    assert np.array_equal(batch.tags, TAGS[[2, 0]])
    part = small_dataset().take(slice(1, 3))
    assert part.inputs["ids"].tolist() == [[3, 4], [5, 6]]
    assert np.array_equal(part.tags, TAGS[1:3])


def test_joined_batches_equal_the_batch_of_all_rows() -> None:
    joined = Batch.join(
        [small_dataset().take(slice(2, 4)), small_dataset().take(torch.tensor([0]))]
    )
    whole = small_dataset().take(torch.tensor([2, 3, 0]))
    assert joined.inputs["ids"].equal(whole.inputs["ids"])
    assert joined.labels is not None and whole.labels is not None
    assert joined.labels.equal(whole.labels)
    assert joined.row_digest == whole.row_digest


@pytest.mark.parametrize("tags", [TAGS, None], ids=["by tag", "by number"])
def test_the_row_digest_detects_shifted_swapped_and_replaced_rows(tags: np.ndarray | None) -> None:
    digests = [
        small_dataset(tags).take(torch.tensor(rows)).row_digest
        for rows in ([0, 1], [1, 2], [1, 0], [0, 3], [0], [0, 1, 2])
    ]
    assert len(set(digests)) == len(digests)
    assert digests[0] == small_dataset(tags).take(slice(0, 2)).row_digest


def test_the_commitment_depends_on_the_rows_and_their_order() -> None:
    commitments = {
        small_dataset(tags).commitment for tags in (TAGS, TAGS[::-1], TAGS[[0, 1, 3, 2]], None)
    }
    assert len(commitments) == 4


def test_gathered_blocks_are_concatenated_and_permuted() -> None:
    window = small_dataset().gather_blocks([(2, 4), (0, 1)], np.array([1, 2, 0]))
    assert window.inputs["numbers"].tolist() == [[3.5], [0.5], [2.5]]
    assert window.tags is not None
    assert np.array_equal(window.tags, TAGS[[3, 0, 2]])


def test_inputs_labels_and_tags_of_different_lengths_are_refused() -> None:
    with pytest.raises(DataError, match=r"same number of rows.*input 'a': 3, input 'b': 2"):
        Dataset({"a": torch.zeros(3, 1), "b": torch.zeros(2, 1)})
    with pytest.raises(DataError, match="labels: 2"):
        Dataset({"a": np.zeros((3, 1))}, np.zeros(2))
    with pytest.raises(DataError, match="tags: 4"):
        Dataset({"a": torch.zeros(3, 1)}, tags=TAGS)
    with pytest.raises(DataError, match="needs inputs or labels"):
        Dataset({})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.float64, torch.float32),
        (np.float32, torch.float32),
        (np.bool_, torch.float32),
        (np.uint8, torch.int64),
        (np.int32, torch.int64),
        (np.uint32, torch.int64),
        (np.dtype(">i4"), torch.int64),
    ],
)
def test_numpy_arrays_and_tensors_become_float32_or_int64(
    given: Any, expected: torch.dtype
) -> None:
    values = np.array([[0, 1], [1, 0], [1, 1]]).astype(given)
    dataset = Dataset({"x": values[:, ::-1]}, values[:, 0])
    assert dataset.labels is not None
    assert dataset.inputs["x"].dtype == dataset.labels.dtype == expected
    assert dataset.inputs["x"].tolist() == [[1, 0], [0, 1], [1, 1]]
    assert dataset.labels.tolist() == [0, 1, 1]
    if given not in (np.uint32, np.dtype(">i4")):
        same = Dataset({"x": torch.from_numpy(values)})
        assert same.inputs["x"].dtype == expected
        assert same.inputs["x"].tolist() == values.tolist()


def test_arrays_of_the_right_type_are_not_copied_and_read_only_ones_are() -> None:
    values = np.zeros((2, 1), np.float32)
    dataset = Dataset({"x": values})
    values[:] = 7
    assert dataset.inputs["x"].tolist() == [[7], [7]]
    values.flags.writeable = False
    Dataset({"x": values}).inputs["x"].zero_()
    assert values.tolist() == [[7], [7]]


def test_codes_stay_narrow_in_the_dataset_and_are_int64_in_a_batch() -> None:
    dataset = Dataset({"ids": np.array([[1], [2]], np.int16)}, sizes={"ids": (3,)})
    assert dataset.inputs["ids"].dtype == torch.int16
    assert dataset.take(slice(0, 2)).inputs["ids"].dtype == torch.int64


@pytest.mark.parametrize(
    ("values", "got"),
    [
        ([[1.0], [2.0]], "list"),
        (torch.zeros(2, 1, dtype=torch.complex64), "complex64"),
        (np.zeros(()), "single value"),
    ],
)
def test_other_types_are_refused_by_the_name_of_the_input(values: Any, got: str) -> None:
    with pytest.raises(DataError, match=f"input 'x': expected .*, got .*{got}"):
        Dataset({"x": values})
    with pytest.raises(DataError, match=f"labels: expected .*, got .*{got}"):
        Dataset({"x": np.zeros((2, 1))}, values)


def test_text_is_refused_as_an_input_and_taken_as_labels_of_one_column() -> None:
    for values, got in ((np.array([["a"], ["b"]]), "<U1"), (np.array([[1], [None]]), "object")):
        with pytest.raises(DataError, match=f"input 'x': expected .*, got .*{got}"):
            Dataset({"x": values})
        with pytest.raises(DataError, match=r"labels: expected one text per row, got shape \[2, 1"):
            Dataset({"x": np.zeros((2, 1))}, values)


def test_inputs_without_names_and_codes_that_are_not_integers_are_refused() -> None:
    with pytest.raises(DataError, match="inputs: expected arrays by name, got ndarray"):
        Dataset(np.zeros((2, 1)))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="input 'ids': has sizes, so expected integer codes"):
        Dataset({"ids": np.zeros((2, 1))}, sizes={"ids": (3,)})


TABLE = {
    "who": ["p", "q", "r"],
    "age": [40, 20, 30],
    "city": ["rome", "bern", "rome"],
    "income": [1.5, 2.5, 3.5],
    "member": [True, False, True],
    "bought": [0, 1, 1],
}


def as_pandas(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("pandas").DataFrame(columns)


both_libraries = pytest.mark.parametrize("make", [pa.table, as_pandas], ids=["pyarrow", "pandas"])


@both_libraries
def test_a_table_becomes_numbers_and_ids_in_column_order(make: Callable[..., Any]) -> None:
    dataset = Dataset.from_table(make(TABLE), label="bought", id="who")
    assert list(dataset.inputs) == ["ids", "numbers"]
    assert dataset.inputs["numbers"].tolist() == [[40, 1.5, 1], [20, 2.5, 0], [30, 3.5, 1]]
    assert dataset.inputs["numbers"].dtype == torch.float32
    assert dataset.inputs["ids"].tolist() == [[1], [0], [1]]
    assert dataset.inputs["ids"].dtype == torch.int64
    assert dataset.sizes == {"ids": (2,)}
    assert dataset.labels is not None
    assert (dataset.labels.tolist(), dataset.labels.dtype) == ([0, 1, 1], torch.int64)
    assert dataset.tags is not None
    assert np.array_equal(dataset.tags, make_tags(["p", "q", "r"], 1))


@both_libraries
def test_inputs_select_columns_and_make_ids_of_integers(make: Callable[..., Any]) -> None:
    inputs = {"numbers": ["income"], "ids": ["city", "age"]}
    dataset = Dataset.from_table(make(TABLE), inputs=inputs)
    assert dataset.inputs["numbers"].tolist() == [[1.5], [2.5], [3.5]]
    assert dataset.inputs["ids"].tolist() == [[1, 40], [0, 20], [1, 30]]
    assert dataset.sizes == {"ids": (2, 41)}
    assert dataset.labels is None and dataset.tags is None
    alone = Dataset.from_table(make(TABLE), label="income", inputs={})
    assert alone.inputs == {}
    assert alone.labels is not None and alone.labels.dtype == torch.float32


def test_parts_of_a_categorical_column_are_coded_alike() -> None:
    arrow = pa.table({"c": pa.array(["b", "a", "c"]).dictionary_encode()})
    chunks = pa.concat_tables([arrow, pa.table({"c": pa.array(["d"]).dictionary_encode()})])
    assert Dataset.from_table(chunks).inputs["ids"].tolist() == [[1], [0], [2], [3]]
    frame = as_pandas({"c": ["b", "a", "c"]}).astype("category")
    for table in (arrow.slice(2, 1), frame.iloc[2:]):
        dataset = Dataset.from_table(table)
        assert (dataset.inputs["ids"].tolist(), dataset.sizes) == ([[2]], {"ids": (3,)})


def test_integer_ids_and_their_text_are_the_same_rows() -> None:
    texts = pa.table({"who": ["10", "11"], "x": [1.0, 2.0]})
    numbers = pa.table({"who": [10, 11], "x": [3.0, 4.0]})
    by_text, by_number = (Dataset.from_table(table, id="who") for table in (texts, numbers))
    assert by_text.commitment == by_number.commitment
    assert Dataset.from_table(texts, id="who", seed=2).commitment != by_text.commitment


SECRET = "87654"  # is in every bad table; no message may show it


@both_libraries
@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"x": [1.0, None]}, {}, r"column 'x': expected a value in every row, got 1 nulls; fill"),
        ({"x": [SECRET, None]}, {}, r"column 'x': .*got 1 nulls"),
        ({"x": [1.0, 2.0]}, {"label": "y"}, "column 'y': the table has no such column, only x"),
        ({"x": [1.0, 2.0]}, {"id": "y"}, "column 'y': the table has no such column, only x"),
        ({"x": [1.0]}, {"inputs": {"numbers": ["z"]}}, "column 'z': the table has no such column"),
        ({"x": [1.0]}, {"inputs": {"others": ["x"]}}, "inputs: expected the names 'ids' and 'num"),
        ({"x": [1.0]}, {"inputs": {"numbers": "x"}}, "input 'numbers': expected a list of columns"),
        (
            {"x": [1.0], "y": [0]},
            {"label": "y", "inputs": {"numbers": ["x", "y"]}},
            "input 'numbers': column 'y' is the label, not a feature",
        ),
        ({"x": [SECRET, SECRET]}, {"id": "x"}, "column 'x': expected each id once, got 1 repeats"),
        ({"x": [1.5, 2.5]}, {"id": "x"}, "column 'x': expected text or integers for an id, got d"),
        ({"x": [SECRET]}, {"inputs": {"numbers": ["x"]}}, "column 'x': expected numbers or bool"),
        ({"x": [87654.5]}, {"inputs": {"ids": ["x"]}}, "column 'x': expected text, categories or"),
        ({"x": [-87654]}, {"inputs": {"ids": ["x"]}}, r"column 'x': expected codes from 0 to"),
        ({"x": [1.0, float("inf")]}, {}, "column 'x': expected finite numbers .* in 1 rows"),
        ({"x": [1.0, 1e300]}, {}, "column 'x': expected finite numbers within float32"),
        ({"x": [date(2020, 1, 1)]}, {}, "column 'x': expected numbers or booleans, got date"),
        ({"x": np.zeros(0)}, {}, "table: expected rows, got none"),
    ],
)
def test_errors_of_a_table_name_the_column_and_never_a_value(
    make: Callable[..., Any], columns: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message) as raised:
        Dataset.from_table(make(columns), **options)
    assert SECRET not in str(raised.value)


def test_other_objects_mixed_types_and_repeated_names_are_refused() -> None:
    with pytest.raises(DataError, match="expected a pandas DataFrame or a pyarrow Table, got dict"):
        Dataset.from_table({"x": [1]})
    with pytest.raises(DataError, match="expected a DataFrame, got a Series"):
        Dataset.from_table(as_pandas({"x": [1]})["x"])
    with pytest.raises(DataError, match="column 'x': expected one type in all rows"):
        Dataset.from_table(as_pandas({"x": [1, SECRET]}))
    with pytest.raises(DataError, match="each column name once"):
        Dataset.from_table(pa.table([pa.array([1]), pa.array([2])], names=["x", "x"]))


def test_a_built_in_tower_accepts_the_inputs_of_a_table() -> None:
    dataset = Dataset.from_table(pa.table(TABLE), label="bought", id="who")
    columns = {name: values.shape[1] for name, values in dataset.inputs.items()}
    tower = Tower(4, columns, dataset.sizes, embedding_dim=2, hidden=(3,))
    assert tower(**dataset.take(slice(0, 3)).inputs).shape == (3, 4)


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["no", "yes", "no"]),
        np.array(["no", "yes", "no"], object),
        np.array([b"no", b"yes", b"no"]),
        pd.Series(["no", "yes", "no"]),
        pd.Series(["no", "yes", "no"], dtype="category"),
        pd.Categorical(["no", "yes", "no"], categories=["yes", "maybe", "no"]),
    ],
    ids=["text", "objects", "bytes", "series", "categories", "categorical"],
)
def test_text_labels_become_codes_of_their_sorted_values(labels: Any) -> None:
    dataset = Dataset({"x": np.zeros((3, 1))}, labels)
    assert dataset.classes == ("no", "yes")
    assert dataset.labels is not None and dataset.labels.tolist() == [0, 1, 0]
    assert dataset.to(torch.device("cpu")).classes == ("no", "yes")


def test_missing_text_labels_are_refused_by_their_number() -> None:
    for labels in (pd.Categorical(["no", None, "yes"]), np.array(["no", 1, "yes"], object)):
        with pytest.raises(DataError, match=r"text in every row, got .* in 1 of 3 rows") as raised:
            Dataset({"x": np.zeros((3, 1))}, labels)
        assert "yes" not in str(raised.value)


@pytest.mark.parametrize(
    "values",
    [
        np.array([1, 2], np.uint64),
        np.array([1, 2], np.float16),
        np.array([1, 2], np.longdouble),
        np.array([1, 2], ">i4"),
        pd.Series([1, 2]),
        pd.Series([1, 2], dtype="Int64"),
        pd.Series([1, 2], dtype="category"),
        torch.tensor([1, 2], dtype=torch.bfloat16),
    ],
    ids=str,
)
def test_numbers_of_numpy_and_pandas_are_taken_as_inputs_and_labels(values: Any) -> None:
    dataset = Dataset({"x": values}, values)
    assert dataset.inputs["x"].tolist() == [1, 2]
    assert dataset.inputs["x"].dtype in (torch.int64, torch.float32)
    assert dataset.labels is not None and dataset.labels.tolist() == [1, 2]


def test_values_that_a_mask_hides_are_refused() -> None:
    hidden = np.ma.masked_array([[1.0], [-9999.0], [-9999.0]], [[0], [1], [1]])
    with pytest.raises(DataError, match="input 'x': expected values everywhere, got 2 that are ma"):
        Dataset({"x": hidden})
    with pytest.raises(DataError, match="labels: expected values everywhere, got 2 that are mask"):
        Dataset({"x": np.zeros((3, 1))}, hidden[:, 0])
    whole = Dataset({"x": np.ma.masked_array([[1.0], [2.0]], False)})
    assert whole.inputs["x"].tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize("labels", [[0, 1, 1], [False, True, True], [0.5, 1, 2.5]])
def test_labels_that_are_numbers_in_an_array_of_objects_are_numbers(labels: list[Any]) -> None:
    found = Dataset({}, np.array(labels, dtype=object))
    assert found.labels is not None and found.labels.tolist() == labels
    assert found.classes is None


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_inputs_that_are_not_finite_are_refused_by_name_and_number(bad: float) -> None:
    x = np.zeros((300, 2))
    x[10:17, 1] = bad
    with pytest.raises(
        DataError, match=r"input 'numbers': .* NaN or Inf in 7 of 300 rows; replace"
    ):
        Dataset({"ids": np.zeros((300, 1), int), "numbers": x})
    with pytest.raises(DataError, match=r"input 'one': .* in 7 of 300 rows"):
        Dataset({"one": torch.from_numpy(x[:, 1])})


def test_a_table_may_have_text_labels() -> None:
    for make in (pa.table, pd.DataFrame):
        table = make({"x": [1.0, 2.0, 3.0], "y": ["b", "a", "b"]})
        dataset = Dataset.from_table(table, label="y")
        assert dataset.classes == ("a", "b")
        assert dataset.labels is not None and dataset.labels.tolist() == [1, 0, 1]
    categories = pd.DataFrame({"x": [1.0, 2.0], "y": pd.Categorical(["b", "a"])})
    assert Dataset.from_table(categories, label="y").classes == ("a", "b")
