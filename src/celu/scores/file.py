"""Writes and reads a scores file: what a model predicts for each row (see `layout`).

It computes nothing from the scores.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from celu.config.schema import ClassLabel
from celu.data.decoded_text import decode_text
from celu.data.folder import sync
from celu.data.parquet_sizes import check_sizes
from celu.errors import ConfigError, DataError
from celu.metrics.names import Output
from celu.metrics.values import Labels, check_labels, check_scores, check_weights
from celu.prepare.parsing import readable
from celu.scores.layout import (
    LABEL,
    MAX_CLASSES,
    MAX_NAME,
    ROWS_PER_GROUP,
    WEIGHT,
    check_num_rows,
    check_rows,
    check_schema,
    check_unique,
    classes_of,
    columns_of,
    make_schema,
    num_values,
)

_BATCH_CELLS = 1 << 22


@dataclass(frozen=True)
class Scores:
    """The rows of a scores file, in its order. `scores` has shape [N], or [N, K] for K classes.

    `labels` and `weights` are in the file of a run's own held-out rows only.
    """

    path: Path
    model: str
    output: Output
    ids: Any  # an Arrow array of large strings
    scores: npt.NDArray[np.float64]
    hosts: Any  # an Arrow array: a dictionary of strings
    fallback: npt.NDArray[np.bool_]
    labels: Labels | None = None  # codes of the classes
    classes: tuple[ClassLabel, ...] | None = None  # if they are other than codes
    weights: npt.NDArray[np.float64] | None = None  # how much each row counts

    def __len__(self) -> int:
        return len(self.ids)


class ScoreWriter:
    """Writes a scores file batch by batch; use as a context manager.

    The file appears under its name on exit, complete and with unique ids, and replaces one that
    exists. After an error nothing is left. `num_classes` is for the output "multiclass"; `classes`
    are those of the labels, if they are other than codes. With `ids_are_unique` the caller has
    checked the ids, which takes memory for all of them. With `with_labels` and `with_weights`,
    the file has those, too. Raises ConfigError if the file cannot be written, DataError for scores
    that a reader would refuse.
    """

    def __init__(
        self,
        path: Path,
        *,
        model: str,
        output: Output,
        num_classes: int | None = None,
        classes: Sequence[ClassLabel] | None = None,
        ids_are_unique: bool = False,
        with_labels: bool = False,
        with_weights: bool = False,
    ) -> None:
        if (output == "multiclass") != (num_classes is not None):
            raise ConfigError(
                f"num_classes: expected it for the output 'multiclass' only, got {num_classes} "
                f"for {output!r}"
            )
        if num_classes is not None and not 2 <= num_classes <= MAX_CLASSES:
            raise ConfigError(f"num_classes: expected 2 to {MAX_CLASSES}, got {num_classes}")
        if classes is not None and len(classes) != (num_classes or 2):
            raise ConfigError(f"classes: expected {num_classes or 2}, got {len(classes)}")
        if not 0 < len(model) <= MAX_NAME:
            raise ConfigError(f"model: expected a name of 1 to {MAX_NAME} characters")
        self._path = path
        self._ids_are_unique = ids_are_unique
        self._output: Output = output
        self._schema = make_schema(
            *(output, num_classes, model, classes),
            with_labels=with_labels,
            with_weights=with_weights,
        )
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._file: Any = None

    def __enter__(self) -> ScoreWriter:
        try:
            self._file = pq.ParquetWriter(
                self._partial, self._schema, compression="zstd", write_page_checksum=True
            )
        except OSError as error:
            raise self._unwritable(error) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            self._file.close()
            if kind is None and not self._ids_are_unique:
                # Read back, because the ids of all batches may be too many to hold while writing.
                with pq.ParquetFile(self._partial) as written:
                    check_unique(self._path, _joined(written.read(["id"]).column("id").chunks))
            if kind is None:
                sync(self._partial)
                self._partial.replace(self._path)
                sync(self._path.parent)
        except OSError as error:
            raise self._unwritable(error) from error
        finally:
            with suppress(OSError):
                self._partial.unlink(missing_ok=True)

    def write(
        self,
        ids: Any,
        scores: npt.NDArray[Any],
        hosts: Sequence[str],
        fallback: npt.NDArray[np.bool_] | Sequence[bool],
        labels: Labels | None = None,
        weights: npt.NDArray[np.float64] | None = None,
    ) -> None:
        """Append rows: one id, score, joined host names and fallback flag for each.

        `ids` are strings or an Arrow array of them. `labels` and `weights` are for a file with
        them.
        """
        num_rows = len(ids)
        flat = np.ascontiguousarray(scores, np.float64)
        score_type = self._schema.field("score").type
        num_classes = score_type.list_size if self._output == "multiclass" else None
        expected = (num_rows,) if num_classes is None else (num_rows, num_classes)
        if flat.shape != expected or len(hosts) != num_rows or len(fallback) != num_rows:
            raise DataError(
                f"expected scores of shape {expected} with as many hosts and fallback flags, got "
                f"{flat.shape}, {len(hosts)} and {len(fallback)}"
            )
        check_scores(f"{self._path}: column 'score'", self._output, flat)
        values = pa.array(flat.reshape(-1))
        if num_classes is not None:
            values = pa.FixedSizeListArray.from_arrays(values, num_classes)
        names = pa.array(hosts, pa.string()).dictionary_encode()
        rows = [_text(ids), values, names, pa.array(fallback, pa.bool_())]
        if LABEL in self._schema.names:
            if labels is None or labels.shape != (num_rows,):
                raise DataError(
                    f"expected {num_rows} labels, got {None if labels is None else labels.shape}"
                )
            check_labels(f"{self._path}: column 'label'", self._output, labels, num_classes)
            rows.append(pa.array(labels, pa.float64()))
        if WEIGHT in self._schema.names:
            if weights is None or weights.shape != (num_rows,):
                raise DataError(
                    f"expected {num_rows} weights, got {None if weights is None else weights.shape}"
                )
            check_weights(f"{self._path}: column 'weight'", weights)
            rows.append(pa.array(weights, pa.float64()))
        table = pa.Table.from_arrays(rows, schema=self._schema)
        check_rows(self._path, table)
        try:
            self._file.write_table(table, row_group_size=ROWS_PER_GROUP)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"{self._path}: cannot be written ({error.strerror or error}); choose another file"
        )


def read_scores(path: Path | str) -> Scores:
    """Read and check a scores file; raises DataError with the column, what was expected and got."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: expected a file, got {'a folder' if path.is_dir() else 'none'}")
    with readable(path):
        schema = pq.read_schema(path)
    model, output = check_schema(path, schema)
    check_sizes(path, _Everything())
    ids, hosts, scores, fallback = [], [], [], []
    own: dict[str, list[npt.NDArray[np.float64]]] = {LABEL: [], WEIGHT: []}
    with readable(path):
        file = pq.ParquetFile(
            path,
            read_dictionary=["id", "hosts"],  # its size is checked before the text is copied
            buffer_size=1 << 20,
            page_checksum_verification=True,
        )
        with file:
            num_rows, num_classes, columns = 0, num_values(schema), columns_of(schema)
            size = max(1, min(ROWS_PER_GROUP, _BATCH_CELLS // num_classes))
            for batch in file.iter_batches(size, columns=list(columns), use_threads=False):
                num_rows += batch.num_rows
                check_num_rows(path, num_rows, num_classes)
                check_rows(path, batch)
                ids.append(decode_text(path, "id", batch.column("id"), size, "shorten the ids"))
                hosts.append(batch.column("hosts").cast(pa.dictionary(pa.int32(), pa.string())))
                scores.append(_values(path, output, batch.column("score")))
                fallback.append(batch.column("fallback").to_numpy(zero_copy_only=False))
                for name in own.keys() & set(columns):
                    own[name].append(batch.column(name).to_numpy())
        if not ids:
            raise DataError(f"{path}: expected rows, got none; score the rows again")
        all_ids = _joined(ids)
        all_hosts = pa.chunked_array(hosts).unify_dictionaries().combine_chunks()
    check_unique(path, all_ids)
    all_labels, weights = (np.concatenate(parts) if parts else None for parts in own.values())
    if all_labels is not None:
        classes = num_classes if output == "multiclass" else None
        check_labels(f"{path}: column 'label'", output, all_labels, classes)
    if weights is not None:
        check_weights(f"{path}: column 'weight'", weights)
    return Scores(
        path,
        model,
        output,
        all_ids,
        np.concatenate(scores),
        all_hosts,
        np.concatenate(fallback),
        all_labels,
        classes_of(path, schema, output),
        weights,
    )


def _text(values: Any) -> Any:
    return (
        values.cast(pa.string()) if isinstance(values, pa.Array) else pa.array(values, pa.string())
    )


def _values(path: Path, output: Output, scores: Any) -> npt.NDArray[np.float64]:
    if output != "multiclass":
        values: npt.NDArray[np.float64] = scores.to_numpy(zero_copy_only=False)
    else:
        flat = scores.flatten()
        if flat.null_count:
            raise DataError(
                f"{path}: column 'score': expected probabilities, got nulls; score the rows again"
            )
        size = scores.type.list_size
        values = flat.to_numpy(zero_copy_only=False).reshape(-1, size)
    check_scores(f"{path}: column 'score'", output, values)
    return values


def _joined(chunks: Sequence[Any]) -> Any:
    """One array; large strings, because their offsets have no limit of 2 GiB."""
    return pa.chunked_array([c.cast(pa.large_string()) for c in chunks]).combine_chunks()


class _Everything:
    """Contains every name: the sizes of all columns are checked, nested ones too."""

    def __contains__(self, name: object) -> Literal[True]:
        return True
