"""A store's rows as memory-mapped tensors, for stores larger than memory.

Parquet is made for scans; batches need random access. So the inputs of a run are written once to
row-major files in the aligned order, beside the store, and mapped from there:

    STORE/columns/KEY/columns.json      the list of files and the warnings of the gate
    STORE/columns/KEY/train.ids.bin     int32 [rows, columns]; one file per input, label, weight
    STORE/columns/KEY/train.bags.bin    int32 [rows, columns, values]
    STORE/columns/KEY/train.tag.bin

KEY is a hash of the store's files, the columns and the alignment, so an existing folder is always
valid. The folder `columns` is a cache and may be deleted at any time. The gate checks the rows
while they are written.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from celu.config.schema import ID, LABEL, TAG, WEIGHT, Part, StoreSchema
from celu.data.alignment import Alignment
from celu.data.dataset import Dataset
from celu.data.folder import sync
from celu.data.gate import Gate, raise_errors
from celu.data.inputs import InputLayout, layouts
from celu.data.store import Store, tags_of, to_numpy
from celu.data.tags import TAG_BYTES, Tags, commitment
from celu.errors import AlignmentError, DataError

_FORMAT = "celu-columns-1"
_LABEL_TYPES: dict[str, np.dtype[Any]] = {
    "class": np.dtype(np.int64),
    "number": np.dtype(np.float32),
}


@dataclass(frozen=True)
class StoreDatasets:
    """A party's rows, ready to train on, and the warnings of the gate."""

    parts: dict[Part, Dataset]
    warnings: list[str]
    schema: StoreSchema  # rows to predict must have one with the same digest

    @property
    def train(self) -> Dataset:
        """The training rows."""
        return self.parts["train"]

    @property
    def test(self) -> Dataset:
        """The test rows."""
        return self.parts["test"]

    @property
    def validation(self) -> Dataset | None:
        """The validation rows; None if there are none."""
        found = self.parts.get("validation")
        return found if found is not None and found.num_rows else None


@dataclass(frozen=True)
class _Matrix:
    """One file of a part: some columns as a matrix, or as one of lists."""

    name: str
    layout: InputLayout
    dtype: np.dtype[Any]

    def read(self, batch: Any) -> np.ndarray[Any, np.dtype[Any]]:
        """These columns of a record batch, [rows, *shape]."""
        if self.name == TAG:
            return tags_of(batch)
        return self.layout.stack([to_numpy(batch.column(c)) for c in self.columns])

    @property
    def columns(self) -> tuple[str, ...]:
        return self.layout.columns

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return (TAG_BYTES,) if self.name == TAG else self.layout.shape

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def open_datasets(
    store: Store,
    inputs: Mapping[str, Sequence[str]] | None = None,
    *,
    label: bool | None = None,
    alignment: Alignment | None = None,
) -> StoreDatasets:
    """The rows of each part of a store, mapped from files that are written on first use.

    By default `inputs` are all features, as `Store.inputs` names them, and the label is read where
    the store has one, with the weights of rows. Without an alignment, the datasets have all rows in
    the store's order. Raises DataError for rows that the gate refuses, AlignmentError if the store
    changed since it was aligned.
    """
    inputs = store.inputs() if inputs is None else inputs
    label = store.schema.has_labels if label is None else label
    matrices = _matrices(store, inputs, label)
    key = _key(store, matrices, alignment)
    folder = store.path / "columns" / key
    counts = store.schema.rows
    if alignment is not None:
        counts = {part: len(alignment.rows[part]) for part in store.parts}
    files = {
        f"{part}.{matrix.name}.bin": counts[part] * matrix.row_bytes
        for part in store.parts
        for matrix in matrices
    }
    warnings = _read_cached(folder, key, files)
    if warnings is None:
        warnings = _write(store, matrices, alignment, folder, key, files)
    sizes = {m.name: m.layout.sizes for m in matrices if m.layout.sizes}
    datasets: dict[Part, Dataset] = {}
    for part in store.parts:
        mapped = {m.name: _map(folder, part, m, counts[part]) for m in matrices}
        tags = mapped.pop(TAG)
        labels = torch.from_numpy(mapped.pop(LABEL)).reshape(-1) if label else None
        weights = torch.from_numpy(mapped.pop(WEIGHT)).reshape(-1) if WEIGHT in mapped else None
        tensors = {name: torch.from_numpy(array) for name, array in mapped.items()}
        classes = store.schema.classes if label else None
        # The gate has read every value.
        datasets[part] = Dataset.of_finite(tensors, labels, sizes, tags, classes, weights)
    return StoreDatasets(datasets, warnings, store.schema)


def _matrices(store: Store, inputs: Mapping[str, Sequence[str]], label: bool) -> list[_Matrix]:
    schema = store.schema
    matrices = [_Matrix(TAG, InputLayout((TAG,)), np.dtype(np.uint8))]
    if label:
        if schema.label_type is None or not schema.labelled:
            raise DataError(f"{store.path}: expected labels, which a guest needs, got none")
        matrices.append(_Matrix(LABEL, InputLayout((LABEL,)), _LABEL_TYPES[schema.label_type]))
        if schema.has_weights:
            matrices.append(_Matrix(WEIGHT, InputLayout((WEIGHT,)), np.dtype(np.float32)))
    for name, layout in layouts(schema, inputs, str(store.path)).items():
        matrices.append(_Matrix(name, layout, layout.dtype))
    return matrices


def _key(store: Store, matrices: list[_Matrix], alignment: Alignment | None) -> str:
    files = [store.file(part).stat() for part in store.parts]
    facts = {
        "format": _FORMAT,
        "files": [[s.st_size, s.st_mtime_ns, s.st_ino] for s in files],
        "schema": store.schema.model_dump(
            mode="json",
            exclude={
                "categories": {"__all__": {"values"}},
                "bags": {"__all__": {"values"}},
                "classes": True,
            },
        ),
        "matrices": [[m.name, m.columns] for m in matrices],
        "alignment": None if alignment is None else alignment.facts.commitments,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _read_cached(folder: Path, key: str, files: Mapping[str, int]) -> list[str] | None:
    """The warnings of files that have these sizes; None if they must be written."""
    try:
        facts = json.loads((folder / "columns.json").read_text(encoding="utf-8"))
        is_complete = facts["key"] == key and all(
            (folder / name).stat().st_size == size for name, size in files.items()
        )
        return list(facts["warnings"]) if is_complete else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _write(
    store: Store,
    matrices: list[_Matrix],
    alignment: Alignment | None,
    folder: Path,
    key: str,
    files: Mapping[str, int],
) -> list[str]:
    try:
        folder.parent.mkdir(exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder.parent))
    except OSError as error:
        raise DataError(
            f"{folder.parent}: expected a folder that can be written, for a cache of the rows, "
            f"got: {error.strerror}"
        ) from error
    try:
        gate = Gate(store.schema)
        for part in store.parts:
            rows = None if alignment is None else alignment.rows[part]
            tags = _write_part(store, part, matrices, rows, partial, gate)
            if alignment is not None and commitment(tags) != alignment.facts.commitments[part]:
                raise AlignmentError(
                    f"the store's {part} rows changed since the alignment; "
                    'run "celu align" again at all parties'
                )
        warnings = raise_errors(store, gate.findings())
        facts = {"key": key, "files": files, "warnings": warnings}
        (partial / "columns.json").write_text(json.dumps(facts), encoding="utf-8")
        for file in partial.iterdir():
            sync(file)
        with _locked(folder.parent):
            # Another process, such as a rank, may have been faster, and be mapping its files.
            if _read_cached(folder, key, files) is None:
                shutil.rmtree(folder, ignore_errors=True)
                partial.rename(folder)
    except OSError as error:
        if _read_cached(folder, key, files) is None:  # another process may have written it first
            raise DataError(
                f"{folder}: cannot be written: {error.strerror}; check the disk of the store"
            ) from error
        return _read_cached(folder, key, files) or []
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return warnings


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _write_part(
    store: Store,
    part: Part,
    matrices: list[_Matrix],
    rows: np.ndarray[Any, np.dtype[np.int64]] | None,
    folder: Path,
    gate: Gate,
) -> Tags:
    """Write the files of a part, and return the tags of the rows in them."""
    count = store.schema.rows[part] if rows is None else len(rows)
    target_rows = None
    if rows is not None:
        target_rows = np.full(store.schema.rows[part], -1, np.int64)
        target_rows[rows] = np.arange(count)
    targets: dict[str, Any] = {}
    for matrix in matrices:
        path = folder / f"{part}.{matrix.name}.bin"
        path.touch()
        if count:
            shape = (count, *matrix.shape)
            targets[matrix.name] = np.memmap(path, matrix.dtype, "w+", shape=shape)
    start = 0
    for batch in store.batches(part, [ID, TAG, *gate.columns]):
        gate.add(part, batch)
        positions = None
        if target_rows is not None:
            positions = target_rows[start : start + batch.num_rows]
        for matrix in matrices:
            if count:
                _fill(targets[matrix.name], matrix, batch, start, positions)
        start += batch.num_rows
    for target in targets.values():
        target.flush()
    return np.asarray(targets[TAG]) if count else np.zeros((0, TAG_BYTES), np.uint8)


def _fill(target: Any, matrix: _Matrix, batch: Any, start: int, positions: Any) -> None:
    """Copy a batch to consecutive rows from `start`, or to `positions`, -1 for rows to skip."""
    if any(batch.column(c).null_count for c in matrix.columns):
        return  # the gate refuses the store
    values = matrix.read(batch)
    if positions is None:
        target[start : start + batch.num_rows] = values
    else:
        aligned = positions >= 0
        target[positions[aligned]] = values[aligned]


def _map(folder: Path, part: Part, matrix: _Matrix, count: int) -> Any:
    if count == 0:
        return np.zeros((0, *matrix.shape), matrix.dtype)
    # Copy on write: torch needs writable memory, and the file must not change.
    path = folder / f"{part}.{matrix.name}.bin"
    return np.asarray(np.memmap(path, matrix.dtype, "c", shape=(count, *matrix.shape)))
