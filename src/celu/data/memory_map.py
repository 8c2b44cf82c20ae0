"""A store's rows as tensors mapped from files, so that they may be more than fit in memory.

Parquet is made for scanning; batches need rows from anywhere. So the columns of a run are laid out
once, row by row and in the aligned order, beside the store, and mapped from there:

    STORE/columns/KEY/columns.json      what it holds
    STORE/columns/KEY/train.ids.bin     int32 [rows, columns]; one file an input, and the label
    STORE/columns/KEY/train.tag.bin

KEY names the store's files, the columns and the alignment, so what is found under it is what would
be made again. The folder `columns` may be deleted at any time. The gate looks at the rows on the
way.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from celu.config.schema import ID, LABEL, TAG, Part
from celu.data.alignment import Alignment
from celu.data.dataset import Dataset
from celu.data.folder import sync
from celu.data.gate import Examiner, refuse_errors
from celu.data.store import PARTS, Store, tags_of
from celu.data.tags import TAG_BYTES, Tags, commitment
from celu.errors import AlignmentError, DataError

_FORMAT = "celu-columns-1"
_LABEL_TYPES: dict[str, np.dtype[Any]] = {
    "class": np.dtype(np.int64),
    "number": np.dtype(np.float32),
}


@dataclass(frozen=True)
class StoreDatasets:
    """A party's rows, ready to train on, and what the gate had to say about them."""

    train: Dataset
    test: Dataset
    warnings: list[str]
    schema: str  # the digest of what the columns mean: new rows for the model must have the same


@dataclass(frozen=True)
class _Matrix:
    """One file of a part: some columns side by side."""

    name: str
    columns: tuple[str, ...]
    dtype: np.dtype[Any]

    def read(self, batch: Any) -> np.ndarray[Any, np.dtype[Any]]:
        """These columns of a record batch, [rows, columns]."""
        if self.name == TAG:
            return tags_of(batch)
        return np.stack([batch.column(c).to_numpy() for c in self.columns], axis=1)

    @property
    def width(self) -> int:
        return TAG_BYTES if self.name == TAG else len(self.columns)


def open_datasets(
    store: Store,
    inputs: Mapping[str, Sequence[str]] | None = None,
    *,
    label: bool | None = None,
    alignment: Alignment | None = None,
) -> StoreDatasets:
    """The training and test rows of a store, mapped from files that are written on first use.

    By default `inputs` are all features, as `Store.inputs` names them, and the label is read where
    the store has one. Without an alignment, all rows in the store's order. Raises DataError for
    rows that the gate refuses, AlignmentError if the store changed since it was aligned.
    """
    inputs = store.inputs() if inputs is None else inputs
    label = store.schema.has_labels if label is None else label
    matrices = _matrices(store, inputs, label)
    key = _key(store, matrices, alignment)
    folder = store.path / "columns" / key
    warnings = _found(folder, key)
    if warnings is None:
        warnings = _lay_out(store, matrices, alignment, folder, key)
    sizes = {
        name: tuple(store.schema.categories[c].size for c in columns)
        for name, columns in inputs.items()
        if columns[0] in store.schema.categories
    }
    tables = []
    for part in PARTS:
        count = store.schema.rows[part] if alignment is None else len(alignment.rows[part])
        mapped = {m.name: _map(folder, part, m, count) for m in matrices}
        tags = mapped.pop(TAG)
        labels = torch.from_numpy(mapped.pop(LABEL)).reshape(-1) if label else None
        tensors = {name: torch.from_numpy(array) for name, array in mapped.items()}
        tables.append(Dataset(tensors, labels, sizes, tags))
    return StoreDatasets(tables[0], tables[1], warnings, store.schema.digest())


def _matrices(store: Store, inputs: Mapping[str, Sequence[str]], label: bool) -> list[_Matrix]:
    schema = store.schema
    matrices = [_Matrix(TAG, (TAG,), np.dtype(np.uint8))]
    if label:
        if schema.label_type is None or not schema.labelled:
            raise DataError(f"{store.path}: expected a label, as a guest needs one, got none")
        matrices.append(_Matrix(LABEL, (LABEL,), _LABEL_TYPES[schema.label_type]))
    known = schema.numbers.keys() | schema.categories.keys()
    for name, columns in inputs.items():
        for column in columns:
            if column not in known:
                raise DataError(
                    f"{store.path}: input {name!r}: expected features of a store "
                    f"({', '.join(sorted(known)[:20])}), got {column!r}"
                )
        sorts = {column in schema.categories for column in columns}
        if len(sorts) != 1:
            raise DataError(
                f"{store.path}: input {name!r} mixes categories and numbers; expected one sort: "
                "put them under two inputs"
            )
        dtype = np.dtype(np.int32 if sorts == {True} else np.float32)
        matrices.append(_Matrix(name, tuple(columns), dtype))
    return matrices


def _key(store: Store, matrices: list[_Matrix], alignment: Alignment | None) -> str:
    files = [store.file(part).stat() for part in PARTS]
    facts = {
        "format": _FORMAT,
        "files": [[s.st_size, s.st_mtime_ns, s.st_ino] for s in files],
        "schema": store.schema.model_dump(
            mode="json", exclude={"categories": {"__all__": {"values"}}}
        ),
        "matrices": [[m.name, m.columns] for m in matrices],
        "alignment": None if alignment is None else alignment.facts.commitments,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _found(folder: Path, key: str) -> list[str] | None:
    try:
        facts = json.loads((folder / "columns.json").read_text(encoding="utf-8"))
        whole = facts["key"] == key and all(
            (folder / name).stat().st_size == size for name, size in facts["files"].items()
        )
        return list(facts["warnings"]) if whole else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _lay_out(
    store: Store, matrices: list[_Matrix], alignment: Alignment | None, folder: Path, key: str
) -> list[str]:
    folder.parent.mkdir(exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder.parent))
    try:
        examiner = Examiner(store.schema)
        for part in PARTS:
            rows = None if alignment is None else alignment.rows[part]
            tags = _lay_out_part(store, part, matrices, rows, partial, examiner)
            if alignment is not None and commitment(tags) != alignment.facts.commitments[part]:
                raise AlignmentError(
                    f"the store's {part} rows are not those that the alignment was made for; "
                    'run "celu align" again at all parties'
                )
        warnings = refuse_errors(store, examiner.findings())
        sizes = {file.name: file.stat().st_size for file in partial.iterdir()}
        facts = {"key": key, "files": sizes, "warnings": warnings}
        (partial / "columns.json").write_text(json.dumps(facts), encoding="utf-8")
        for file in partial.iterdir():
            sync(file)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    except OSError as error:
        if _found(folder, key) is None:  # not merely that another process was faster
            raise DataError(
                f"{folder}: could not be written: {error.strerror}; free space beside the store"
            ) from error
        return _found(folder, key) or []
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return warnings


def _lay_out_part(
    store: Store,
    part: Part,
    matrices: list[_Matrix],
    rows: np.ndarray[Any, np.dtype[np.int64]] | None,
    folder: Path,
    examiner: Examiner,
) -> Tags:
    """Write the files of a part, and return the tags of the rows in them."""
    count = store.schema.rows[part] if rows is None else len(rows)
    places = None
    if rows is not None:
        places = np.full(store.schema.rows[part], -1, np.int64)
        places[rows] = np.arange(count)
    targets: dict[str, Any] = {}
    for matrix in matrices:
        path = folder / f"{part}.{matrix.name}.bin"
        path.touch()
        if count:
            shape = (count, matrix.width)
            targets[matrix.name] = np.memmap(path, matrix.dtype, "w+", shape=shape)
    start = 0
    for batch in store.batches(part, [ID, TAG, *examiner.columns]):
        examiner.see(part, batch)
        place = None
        if places is not None:
            place = places[start : start + batch.num_rows]
        for matrix in matrices:
            if count:
                _fill(targets[matrix.name], matrix, batch, start, place)
        start += batch.num_rows
    for target in targets.values():
        target.flush()
    return np.asarray(targets[TAG]) if count else np.zeros((0, TAG_BYTES), np.uint8)


def _fill(target: Any, matrix: _Matrix, batch: Any, start: int, place: Any) -> None:
    if any(batch.column(c).null_count for c in matrix.columns):
        return  # the gate will refuse the store
    values = matrix.read(batch)
    if place is None:
        target[start : start + batch.num_rows] = values
    else:
        kept = place >= 0
        target[place[kept]] = values[kept]


def _map(folder: Path, part: Part, matrix: _Matrix, count: int) -> Any:
    if count == 0:
        return np.zeros((0, matrix.width), matrix.dtype)
    # Copy on write: torch wants memory that may be written to; the file stays as it is.
    path = folder / f"{part}.{matrix.name}.bin"
    return np.asarray(np.memmap(path, matrix.dtype, "c", shape=(count, matrix.width)))
