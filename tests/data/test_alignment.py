"""Alignments: the rows that they select, and the errors of broken ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from celu.data.alignment import read_alignment, write_alignment
from celu.data.store import Store
from celu.errors import AlignmentError, CeluError, DataError
from data.samples import (
    ROWS,
    SIZES,
    columns,
    rows_of,
)
from stores import ids_of, write_store


def test_datasets_take_an_alignment_by_its_path(store: Store, tmp_path: Path) -> None:
    wanted = {"train": np.array([5, 199, 0]), "test": np.array([3])}
    path = tmp_path / "alignment"
    alignment = write_alignment(path, store, wanted, peers={}, common={})
    by_path = store.datasets(alignment=str(path)).train
    assert by_path.commitment == store.datasets(alignment=alignment).train.commitment
    assert by_path.num_rows == 3


def test_an_alignment_selects_and_orders_the_rows(store: Store, tmp_path: Path) -> None:
    wanted = {"train": np.array([5, 199, 0, 17]), "test": np.array([3])}
    path = tmp_path / "alignment"
    write_alignment(path, store, wanted, peers={"host": 9}, common={"host": 5})
    rows = rows_of(store, alignment=read_alignment(path, store))
    expected = columns()
    assert rows.train.inputs["numbers"][:, 0].tolist() == expected["x"][wanted["train"]].tolist()
    assert rows.train.inputs["ids"][:, 0].tolist() == expected["c"][wanted["train"]].tolist()
    assert rows.test.num_rows == 1
    assert rows.train.tags is not None
    assert np.array_equal(rows.train.tags, store.tags("train")[wanted["train"]])


def test_an_alignment_is_refused_after_the_store_changed(store: Store, tmp_path: Path) -> None:
    wanted = {"train": np.arange(50), "test": np.arange(9)}
    path = tmp_path / "alignment"
    write_alignment(path, store, wanted, peers={}, common={})
    ids = {part: ids_of(part, ROWS) for part in ("train", "test")}
    for change in ("swap two", "reverse", "replace one"):
        names = list(ids["train"])
        if change == "swap two":
            names[3], names[4] = names[4], names[3]
        elif change == "reverse":
            names.reverse()
        else:
            names[7] = "other"
        other = write_store(store.path, columns(), SIZES, ids={**ids, "train": names})
        with pytest.raises(AlignmentError, match=r"train rows changed since .* .celu align"):
            rows_of(other, alignment=read_alignment(path, other))
    shorter = {name: values[:-1] for name, values in columns().items()}
    other = write_store(store.path, shorter, SIZES)
    with pytest.raises(AlignmentError, match="made for a store of"):
        read_alignment(path, other)


BROKEN_ALIGNMENTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "absent": (lambda p: (p / "alignment.json").unlink(), 'run "celu align" at all parties'),
    "truncated": (lambda p: (p / "alignment.json").write_text("{"), "expected an alignment"),
    "of another kind": (lambda p: (p / "alignment.json").write_text("{}"), "expected an alignment"),
    "without a part": (
        lambda p: (p / "alignment.json").write_text(
            (p / "alignment.json").read_text().replace('"test": 9', '"train": 50')
        ),
        "rows: ",
    ),
    "an archive": (
        lambda p: (p / "train.npy").write_bytes(b"PK\x03\x04" + bytes(100)),
        "train.npy: expected row numbers",
    ),
    "a damaged header": (
        lambda p: (p / "train.npy").write_bytes(
            (p / "train.npy").read_bytes().replace(b"(50,), ", b"((((((,")
        ),
        "train.npy: expected row numbers",
    ),
    "a huge row count in the header": (
        lambda p: (p / "test.npy").write_bytes(
            (p / "test.npy").read_bytes().replace(b"(9,), }         ", b"(9999999999999),}")
        ),
        "test.npy: expected row numbers",
    ),
    "no rows": (lambda p: (p / "train.npy").unlink(), "train.npy: expected row numbers"),
    "no array": (lambda p: (p / "train.npy").write_bytes(b"x"), "train.npy: expected row numbers"),
    "empty file": (lambda p: (p / "test.npy").write_bytes(b""), "test.npy: expected row numbers"),
    "too few rows": (lambda p: np.save(p / "train.npy", np.arange(49)), "expected 50 row numbers"),
    "floats": (
        lambda p: np.save(p / "train.npy", np.zeros(50)),
        "50 row numbers, got flo",
    ),
    "row numbers beyond the store": (
        lambda p: np.save(p / "train.npy", np.arange(190, 240)),
        "row numbers within the store",
    ),
    "negative row numbers": (
        lambda p: np.save(p / "train.npy", np.arange(-1, 49)),
        "row numbers within the store",
    ),
    "row numbers in another order": (
        lambda p: np.save(p / "train.npy", np.arange(50)[::-1].copy()),
        "changed since",
    ),
    "pickled objects": (
        lambda p: (p / "train.npy").write_bytes(
            b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (50,), }"
            + b" " * 60
            + b"\n"
        ),
        "train.npy: expected row numbers",
    ),
}


@pytest.mark.parametrize("name", BROKEN_ALIGNMENTS)
def test_a_broken_alignment_is_refused(store: Store, tmp_path: Path, name: str) -> None:
    path = tmp_path / "alignment"
    rows = {"train": np.arange(50), "test": np.arange(9)}
    write_alignment(path, store, rows, peers={}, common={})
    damage, message = BROKEN_ALIGNMENTS[name]
    damage(path)
    with pytest.raises(CeluError) as error:
        rows_of(store, alignment=read_alignment(path, store))
    assert isinstance(error.value, DataError | AlignmentError)
    assert message in str(error.value)


def test_an_alignment_of_an_earlier_release_has_no_count_of_answered_ids(
    store: Store, tmp_path: Path
) -> None:
    path = tmp_path / "alignment"
    rows = {"train": np.arange(2), "test": np.arange(2)}
    write_alignment(path, store, rows, peers={"host": 9}, common={"host": 5}, answered={"host": 9})
    file = path / "alignment.json"
    facts = json.loads(file.read_text())
    assert facts.pop("answered") == {"host": 9}
    file.write_text(json.dumps(facts))
    assert read_alignment(path, store).facts.answered == {}
