"""The third part of a store: validation rows, beside training and test rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from celu.cli.app import app
from celu.config.schema import RawSchema, Split, read_store_schema
from celu.data.alignment import read_alignment, write_alignment
from celu.data.gate import check_store
from celu.data.store import Store, open_store
from celu.data.tags import ascending, held_out, make_tags
from celu.errors import CeluError, ConfigError, DataError
from celu.prepare.pipeline import prepare_like
from celu.serving.row_index import InputRows, ServedRows
from prepare.samples import SCHEMA, csv, make, read, rows

PARTS = ("train", "validation", "test")
SPLIT = Split(seed=3, test=0.25, validation=0.2)


def declared(split: Split = SPLIT) -> RawSchema:
    return SCHEMA.model_copy(update={"split": split})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    make(csv(tmp_path, rows()), declared(), tmp_path / "store")
    return open_store(tmp_path / "store")


def ids(folder: Path, part: str) -> list[str]:
    return [row["id"] for row in read(folder, part)]


def test_the_hash_of_the_id_decides_which_rows_are_validation_rows(store: Store) -> None:
    assert store.parts == PARTS and store.schema.rows["validation"] > 20
    for part in PARTS:
        tags = make_tags(ids(store.path, part), SPLIT.seed)
        assert (np.asarray(tags) == store.tags(part)).all()
        assert (ascending(tags) == np.arange(len(tags))).all()
        assert (held_out(tags, 0.25) == (part == "test")).all()
        assert (held_out(tags, 0.2, start=0.25) == (part == "validation")).all()


def test_the_test_rows_are_the_same_with_and_without_validation_rows(
    store: Store, tmp_path: Path
) -> None:
    make(csv(tmp_path, rows()), declared(Split(seed=3, test=0.25)), tmp_path / "two")
    assert ids(tmp_path / "two", "test") == ids(store.path, "test")
    joined = {*ids(store.path, "train"), *ids(store.path, "validation")}
    assert set(ids(tmp_path / "two", "train")) == joined
    assert not (tmp_path / "two" / "validation.parquet").exists()
    assert open_store(tmp_path / "two").datasets().validation is None


def test_encoders_are_fitted_on_training_rows_only(store: Store, tmp_path: Path) -> None:
    raw = {row["id"]: row for row in rows()}
    scaled = [float(raw[i]["scaled"] or -2.5) for i in ids(store.path, "train")]
    assert store.schema.numbers["scaled"].mean == pytest.approx(np.mean(scaled), rel=1e-6)


def test_a_store_of_an_older_release_loads_without_validation_rows(tmp_path: Path) -> None:
    make(csv(tmp_path, rows()), SCHEMA, tmp_path / "store")
    schema = json.loads((tmp_path / "store" / "schema.json").read_text())
    assert schema["split"] == {"seed": 3, "test": 0.25}, "as older releases wrote it"
    datasets = open_store(tmp_path / "store").datasets()
    assert datasets.validation is None and datasets.test.num_rows > 0


def test_datasets_have_all_three_parts(store: Store) -> None:
    datasets = store.datasets()
    assert datasets.validation is not None and datasets.validation.labels is not None
    found = {part: dataset.num_rows for part, dataset in datasets.parts.items()}
    assert found == store.schema.rows
    assert (datasets.validation.tags == store.tags("validation")).all()


def test_an_alignment_holds_validation_rows_and_datasets_follow_it(
    store: Store, tmp_path: Path
) -> None:
    chosen = {"train": np.array([4, 1, 2]), "validation": np.array([7, 3]), "test": np.array([0])}
    write_alignment(tmp_path / "alignment", store, chosen, peers={}, common={})  # type: ignore[arg-type]
    alignment = read_alignment(tmp_path / "alignment", store)
    assert alignment.facts.rows == {"train": 3, "validation": 2, "test": 1}
    validation = store.datasets(alignment=alignment).validation
    assert validation is not None
    assert (validation.tags == store.tags("validation")[[7, 3]]).all()


def test_an_alignment_whose_parts_disagree_is_refused(store: Store, tmp_path: Path) -> None:
    chosen = {part: np.arange(2) for part in PARTS}
    write_alignment(tmp_path / "a", store, chosen, peers={}, common={})  # type: ignore[arg-type]
    facts = json.loads((tmp_path / "a" / "alignment.json").read_text())
    del facts["rows"]["validation"]
    (tmp_path / "a" / "alignment.json").write_text(json.dumps(facts))
    with pytest.raises(DataError, match="expected the same parts"):
        read_alignment(tmp_path / "a", store)


def test_the_gate_checks_validation_rows(store: Store) -> None:
    facts = check_store(store).facts["validation"]
    assert facts["plain"].rows == store.schema.rows["validation"]


def test_served_rows_are_found_in_every_part(store: Store) -> None:
    served, inputs = ServedRows(store, None), InputRows(store, store.inputs())
    wanted = [row for part in PARTS for row in read(store.path, part)]
    located, numbers, _ = served.locate([row["id"] for row in wanted])
    assert located == numbers == list(range(len(wanted)))
    together = inputs.take(located)
    assert together is not None
    columns = store.inputs()["numbers"]
    for i, row in enumerate(wanted):
        alone = inputs.take([i])
        assert alone is not None
        assert alone["numbers"][0].tolist() == [np.float32(row[name]) for name in columns]
        assert (alone["numbers"][0] == together["numbers"][i]).all()
    assert {"validation_rows", "validation_ids"} <= served.contract().keys()


def test_new_rows_like_the_store_are_all_test_rows(store: Store, tmp_path: Path) -> None:
    report = prepare_like(
        [csv(tmp_path, rows(7, first=900), "new.csv")], store.path, tmp_path / "n"
    )
    assert report.rows == {"train": 0, "validation": 0, "test": 7}
    assert open_store(tmp_path / "n").datasets().validation is None


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"test": 0.5, "validation": 0.5}, "expected test . validation below 1, got 0.5 . 0.5"),
        ({"validation": -0.1}, "validation"),
    ],
)
def test_shares_that_leave_nothing_to_train_on_are_refused(
    split: dict[str, float], message: str
) -> None:
    with pytest.raises((ConfigError, ValueError), match=message):
        Split(**split)  # type: ignore[arg-type]


def test_a_validation_part_without_rows_is_refused(tmp_path: Path) -> None:
    split = Split(seed=3, test=0.25, validation=1e-9)
    with pytest.raises(
        CeluError, match=r"train and validation and test, got none .* in validation"
    ):
        make(csv(tmp_path, rows()), declared(split), tmp_path / "store")


def test_inspect_shows_the_validation_rows(store: Store) -> None:
    output = CliRunner().invoke(app, ["inspect", str(store.path)], catch_exceptions=False).output
    count = store.schema.rows["validation"]
    assert f"{count} validation" in output and "validation share 20%" in output


def test_built_in_data_may_have_validation_rows(tmp_path: Path) -> None:
    for share in ("0", "0.2"):
        folder = tmp_path / share
        arguments = ["data", "criteo", str(folder), "--rows", "200", "--validation", share]
        assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    with_, without = (read_store_schema(tmp_path / s / "guest" / "store") for s in ("0.2", "0"))
    assert with_.rows == {"train": 140, "validation": 40, "test": 20}
    assert without.rows == {"train": 180, "test": 20}
    both = [open_store(tmp_path / s / "host" / "store").tags("test") for s in ("0", "0.2")]
    assert (both[0] == both[1]).all()
