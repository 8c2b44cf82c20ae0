"""A release of labels is all that determines them: rows, labels, classes, key and epsilon."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import celu
from celu.audit.sample import RowSample
from celu.config.party import PartySettings
from celu.data.alignment import write_alignment
from celu.data.labelled_rows import LabelledRows
from celu.data.store import Store
from celu.engine.auditing import with_canaries
from celu.launch.label_budget import spend_label_budget
from celu.privacy.ledger import read_ledger
from celu.privacy.randomized_response import RandomizedResponse, digest_labels
from celu.privacy.secret_key import SecretKey
from stores import write_store

ROWS = 4000
KEY = SecretKey(b"k" * 32)
LABELS = (np.arange(ROWS) % 3 == 0).astype(np.float32)
IDS = {part: [f"{part}-{row}" for row in range(ROWS)] for part in ("train", "test")}


def store_at(path: Path, labels: np.ndarray = LABELS, seed: int = 1, rows: int = ROWS) -> Store:
    columns = {"x": np.ones(rows, np.float32), "label": labels[:rows]}
    ids = {part: names[:rows] for part, names in IDS.items()}
    return write_store(path, columns, ids=ids, seed=seed)


def guest_of(store: Store, key: Path | bytes = KEY.secret, rows: slice | None = None) -> celu.Guest:
    alignment = None
    if rows is not None:
        numbers = {part: np.arange(ROWS)[rows] for part in store.parts}
        alignment = write_alignment(
            store.path.parent / "alignment", store, numbers, peers={}, common={}
        )
    parts = store.datasets(alignment=alignment)
    guest = celu.Guest(
        top=nn.Linear(1, 1), loss="binary", train=parts.train, test=parts.test, label_key=key
    )
    return guest.of_store(store)


def flips(guest: celu.Guest) -> Tensor:
    """Which labels of the training rows change, in the order of their tags."""
    assert guest.train.labels is not None and guest.train.tags is not None
    labels, classes = guest.train.labels, guest.label_map.classes
    digest = digest_labels(KEY, guest.labelled_rows, classes)
    found = RandomizedResponse(1.0, 2).randomize(guest.train, "train", labels, KEY, digest)
    order = np.argsort([row.tobytes() for row in guest.train.tags])
    return (found != labels).double()[order]


def spent(guest: celu.Guest) -> float:
    assert isinstance(guest.label_key, Path)
    job = celu.Job(hosts={"host": 6}, rounds=1, privacy={"label_epsilon": 1.0})
    settings = PartySettings(role="guest", name="guest")
    spend_label_budget(settings, job, guest)
    return read_ledger(guest.label_key).total


def test_rows_that_are_prepared_with_another_seed_are_another_release(tmp_path: Path) -> None:
    key = tmp_path / "label.key"
    for number in range(1, 5):  # an average over all of them would find most labels
        store = store_at(tmp_path / f"store{number}", seed=number)
        assert spent(guest_of(store, key)) == number
        assert spent(guest_of(store, key)) == number


def test_other_labels_of_the_same_rows_are_another_release_with_other_choices(
    tmp_path: Path,
) -> None:
    key = tmp_path / "label.key"
    corrected = LABELS.copy()
    corrected[7] = 1 - corrected[7]
    stores = [store_at(tmp_path / "one"), store_at(tmp_path / "two", corrected)]
    assert [spent(guest_of(store, key)) for store in stores] == [1.0, 2.0]
    changed = torch.stack([flips(guest_of(store)) for store in stores])
    # With the same choices, their difference would show which rows were corrected.
    assert abs(float(torch.corrcoef(changed)[0, 1])) < 0.08


def test_more_rows_are_another_release_of_all_of_them(tmp_path: Path) -> None:
    key = tmp_path / "label.key"
    assert spent(guest_of(store_at(tmp_path / "few", rows=ROWS - 1), key)) == 1.0
    assert spent(guest_of(store_at(tmp_path / "all"), key)) == 2.0


def test_all_alignments_of_a_store_are_one_release(tmp_path: Path) -> None:
    store, key = store_at(tmp_path / "store"), tmp_path / "label.key"
    assert spent(guest_of(store, key)) == 1.0
    assert spent(guest_of(store, key, slice(0, ROWS // 2))) == 1.0
    assert spent(guest_of(store, key, slice(ROWS // 4, ROWS))) == 1.0
    whole, tags = guest_of(store), store.tags("train")
    part = guest_of(store, rows=slice(0, ROWS // 2))
    order = np.argsort([row.tobytes() for row in tags])
    assert torch.equal(flips(part), flips(whole)[order < ROWS // 2])


def test_a_store_and_datasets_with_all_of_its_rows_are_one_release(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    parts = store.datasets()
    of_datasets = LabelledRows({"train": parts.train, "test": parts.test})
    assert of_datasets.digest == LabelledRows(store).digest
    moved = LabelledRows({"train": parts.test, "test": parts.train})
    assert moved.digest != of_datasets.digest


def test_an_audit_with_canaries_is_the_release_of_the_run_without(tmp_path: Path) -> None:
    guest = guest_of(store_at(tmp_path / "store"))
    audited = with_canaries(guest, RowSample(guest.train, b"a" * 32, 1000, 100))
    assert torch.equal(flips(audited), flips(guest))


def test_the_order_of_the_classes_is_part_of_a_release() -> None:
    rows = LabelledRows({"train": celu.Dataset({}, torch.tensor([0.0, 1.0]))})
    assert digest_labels(KEY, rows, ["no", "yes"]) != digest_labels(KEY, rows, ["yes", "no"])


def test_the_digest_in_the_ledger_tells_nothing_without_the_key() -> None:
    rows = LabelledRows({"train": celu.Dataset({}, torch.tensor([0.0, 1.0]))})
    other = SecretKey(b"o" * 32)
    assert digest_labels(KEY, rows, None) != digest_labels(other, rows, None)


@pytest.mark.parametrize("labels", [[0, 1, 1], [0.0, 1.0, 1.0]], ids=["integers", "numbers"])
def test_the_type_of_the_labels_does_not_matter(labels: list[float]) -> None:
    rows = LabelledRows({"train": celu.Dataset({}, torch.tensor(labels))})
    expected = LabelledRows({"train": celu.Dataset({}, np.array([0, 1, 1], np.int32))})
    assert rows.digest == expected.digest
