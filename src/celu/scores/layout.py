"""The layout of a scores file, and the checks of its schema, sizes and ids.

    id         string, unique
    score      float64: the probability of the positive class (binary) or the value (regression);
               fixed_size_list<float64, K>: the probabilities of the K classes (multiclass)
    hosts      dictionary<string>: the names of the hosts that took part, joined by ","
    fallback   bool: whether a fallback stands in for the model
    label      float64: the label, only in the scores of a run's own held-out rows
    weight     float64: how much the row counts, only there, and only if the rows have weights

The schema's metadata has `celu.format`, `celu.model` (the model's name), `celu.output` and, unless
they are the codes 0 to K - 1, `celu.classes`: the classes of the labels as JSON, in the order of
their probabilities; of two, a score is the probability of the second. Errors name the file, the
column and counts, never an id.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa

from celu.config.schema import ClassLabel
from celu.errors import DataError
from celu.metrics.names import Output
from celu.scores.classes import from_metadata, to_metadata
from celu.text import printable

FORMAT = "celu-scores-1"
COLUMNS = ("id", "score", "hosts", "fallback")
LABEL = "label"
WEIGHT = "weight"
ROWS_PER_GROUP = 1 << 16
MAX_CLASSES = 10_000
MAX_NAME = 200
# A column of equal values is tiny in a file, however many rows it has.
_MIN_ROWS_BOUND, _MAX_ROWS_PER_BYTE = 1 << 20, 16
_MIN_BYTES_BOUND, _MAX_RATIO = 64 << 20, 1000
_AGAIN = "write the file again with celu predict"


def make_schema(
    output: Output,
    num_classes: int | None,
    model: str,
    classes: Sequence[ClassLabel] | None = None,
    *,
    with_labels: bool = False,
    with_weights: bool = False,
) -> Any:
    """The Arrow schema of a scores file."""
    score = pa.float64() if num_classes is None else pa.list_(pa.float64(), num_classes)
    types = (pa.string(), score, pa.dictionary(pa.int32(), pa.string()), pa.bool_())
    fields = list(zip(COLUMNS, types, strict=True))
    if with_labels:
        fields.append((LABEL, pa.float64()))
    if with_weights:
        fields.append((WEIGHT, pa.float64()))
    metadata = {"celu.format": FORMAT, "celu.model": model, "celu.output": output}
    if classes is not None:
        metadata["celu.classes"] = to_metadata(classes)
    return pa.schema(fields, metadata=metadata)


def columns_of(schema: Any) -> tuple[str, ...]:
    """The columns that a reader uses: all of `COLUMNS`, and label and weight where there are."""
    return (*COLUMNS, *(name for name in (LABEL, WEIGHT) if name in schema.names))


def num_values(schema: Any) -> int:
    """The number of values of each score: the number of classes, or 1."""
    score = schema.field("score").type
    return score.list_size if pa.types.is_fixed_size_list(score) else 1


def classes_of(path: Path, schema: Any, output: Output) -> tuple[ClassLabel, ...] | None:
    """The classes of the labels, if a checked schema names them; raises DataError."""
    text = (schema.metadata or {}).get(b"celu.classes")
    if text is None or output == "regression":
        return None
    return from_metadata(str(path), text, 2 if output == "binary" else num_values(schema))


def check_schema(path: Path, schema: Any) -> tuple[str, Output]:
    """The model's name and its output; raises DataError for other columns, types or metadata."""
    metadata = schema.metadata or {}
    names = ("format", "model", "output")
    format_, model, output = (
        printable(metadata.get(f"celu.{name}".encode(), b"").decode("utf-8", "replace"), MAX_NAME)
        for name in names
    )
    if format_ != FORMAT:
        raise DataError(
            f"{path}: expected a scores file (celu.format {FORMAT!r}), got {format_!r}; {_AGAIN}"
        )
    if output not in get_args(Output) or not model:
        raise DataError(
            f"{path}: expected celu.model, and celu.output to be one of "
            f"{', '.join(get_args(Output))}, got {model!r} and {output!r}; {_AGAIN}"
        )
    for name in columns_of(schema):
        if schema.names.count(name) != 1:
            raise DataError(f"{path}: expected one column {name!r}; {_AGAIN}")
        given = schema.field(name).type
        if not _is_valid(name, given, output):
            raise DataError(
                f"{path}: column {name!r}: expected {_expected(name, output)}, got "
                f"{printable(str(given), MAX_NAME)}; {_AGAIN}"
            )
    return model, output  # type: ignore[return-value]


def _expected(name: str, output: str) -> str:
    score = "fixed_size_list<float64, K>" if output == "multiclass" else "float64"
    expected = {"id": "string", "score": score, "hosts": "dictionary<string>", "fallback": "bool"}
    return {**expected, LABEL: "float64", WEIGHT: "float64"}[name]


def _is_valid(name: str, given: Any, output: str) -> bool:
    if name == "id":
        return bool(pa.types.is_string(given) or pa.types.is_large_string(given))
    if name == "hosts":
        return bool(pa.types.is_dictionary(given) and pa.types.is_string(given.value_type))
    if name == "fallback":
        return bool(pa.types.is_boolean(given))
    if name in (LABEL, WEIGHT) or output != "multiclass":
        return bool(given == pa.float64())
    is_list = pa.types.is_fixed_size_list(given) and given.value_type == pa.float64()
    return bool(is_list and 2 <= given.list_size <= MAX_CLASSES)


def check_num_rows(path: Path, num_rows: int, num_classes: int = 1) -> None:
    """Raise DataError for more rows than a file of this size can hold, if their ids differ."""
    num_bytes = path.stat().st_size
    max_rows = max(_MIN_ROWS_BOUND, _MAX_ROWS_PER_BYTE * num_bytes)
    max_bytes = max(_MIN_BYTES_BOUND, _MAX_RATIO * num_bytes)
    if num_rows > max_rows or 4 * num_rows * num_classes > max_bytes:
        raise DataError(
            f"{path}: expected rows with different ids, got {num_rows:,} or more rows with "
            f"{num_classes:,} values each in {num_bytes:,} bytes; write the file again"
        )


def check_rows(path: Path, batch: Any) -> None:
    """Raise DataError for nulls; pyarrow's own error for text that is not UTF-8."""
    batch.validate(full=True)  # text in a Parquet file may be any bytes
    for name in columns_of(batch.schema):
        if nulls := batch.column(name).null_count:
            raise DataError(
                f"{path}: column {name!r}: expected a value in every row, got {nulls:,} nulls; "
                f"{_AGAIN}"
            )


def check_unique(path: Path, ids: Any) -> None:
    """Raise DataError for ids that occur twice."""
    repeated = len(ids) - len(ids.unique())
    if repeated:
        raise DataError(
            f"{path}: column 'id': expected each id once, got {repeated:,} more rows than ids; "
            f"{_AGAIN}"
        )
