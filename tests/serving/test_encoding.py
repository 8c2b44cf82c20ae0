"""Raw rows of a request are encoded as `celu prepare` encodes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from celu.cli.app import app
from celu.config.schema import StoreSchema
from celu.data.memory_map import open_datasets
from celu.data.store import Store, open_store
from celu.errors import DataError
from celu.serving.encoding import RowEncoder
from celu.serving.lookup import load_lookup, look_up

SCHEMA = """
id = "id"
[source]
missing = ["NA"]
[split]
test = 0.0
[numbers]
plain = {}
scaled = { missing = 2.5, log = true, standardise = true }
[categories]
hashed = { buckets = 20 }
listed = { vocabulary = 3, min_count = 2 }
"""
ROWS: dict[str, list[Any]] = {
    "plain": [float(n) for n in range(40)],
    "scaled": [None if n % 5 == 0 else n / 3 for n in range(40)],
    "hashed": [None if n % 6 == 0 else f"é {n}" for n in range(40)],
    "listed": [f"v{n % 7}" for n in range(40)],
}
INPUTS = {"ids": ["hashed", "listed"], "numbers": ["plain", "scaled"]}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("encoding")
    names = list(ROWS)
    lines = [",".join(["id", *names])]
    for n, row in enumerate(zip(*ROWS.values(), strict=True)):
        lines.append(",".join([f"r{n}", *("NA" if v is None else str(v) for v in row)]))
    (folder / "raw.csv").write_text("\n".join(lines) + "\n")
    (folder / "schema.toml").write_text(SCHEMA)
    arguments = ["prepare", folder / "raw.csv", "--schema", folder / "schema.toml"]
    result = CliRunner().invoke(app, [*map(str, arguments), "--out", str(folder / "store")])
    assert result.exit_code == 0, result.output
    return open_store(folder / "store")


@pytest.fixture
def encoder(store: Store) -> RowEncoder:
    return RowEncoder(store.schema, INPUTS)


def test_encoded_rows_are_those_of_the_store_to_the_bit(store: Store, encoder: RowEncoder) -> None:
    stored = open_datasets(store, INPUTS, label=False).train
    ids = [row for batch in store.batches("train", ["id"]) for row in batch["id"].to_pylist()]
    order = [int(row[1:]) for row in ids]
    encoded = encoder.encode({name: [v[n] for n in order] for name, v in ROWS.items()})
    expected = stored.take(slice(0, 40))
    for name in INPUTS:
        assert np.array_equal(encoded.inputs[name].numpy(), expected.inputs[name].numpy()), name
    assert encoder.unseen["listed"] > 0


def test_an_unseen_value_has_the_code_of_rare_ones_and_is_counted(encoder: RowEncoder) -> None:
    row = {"plain": [1], "scaled": ["NA"], "hashed": [None], "listed": ["never"]}
    encoded = encoder.encode(row)
    assert encoded.inputs["ids"].tolist() == [[0, 1]]
    assert encoder.unseen == {"listed": 1}


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("plain", None, "'plain': expected a number in every row"),
        ("plain", float("inf"), "'plain': expected finite"),
        ("plain", 1e300, "'plain': expected finite"),
        ("plain", "text", "'plain': expected numbers"),
        ("plain", "1_000", "'plain': expected numbers"),
        ("plain", [], "'plain': expected numbers"),
        ("plain", 10**400, "'plain': expected numbers"),
        ("listed", 1.5, "'listed': expected text"),
        ("listed", {}, "'listed': expected text"),
        ("listed", "\ud800", "'listed': expected UTF-8"),
        ("listed", "x" * 70_000, "'listed': expected at most"),
    ],
)
def test_a_bad_value_is_named_by_its_column_and_never_quoted(
    encoder: RowEncoder, column: str, value: Any, problem: str
) -> None:
    row: dict[str, Any] = {"plain": [1.0], "scaled": [1.0], "hashed": ["a"], "listed": ["v1"]}
    with pytest.raises(DataError, match=problem):
        encoder.encode({**row, column: [value]})
    good = encoder.encode(row)  # the counts of the bad row are gone
    assert good.inputs["numbers"].shape == (1, 2)


def test_columns_that_are_absent_or_of_two_lengths_are_refused(encoder: RowEncoder) -> None:
    with pytest.raises(DataError, match="'hashed': expected a value in every row, got no column"):
        encoder.encode({"plain": [1.0], "scaled": [1.0], "listed": ["a"]})
    with pytest.raises(DataError, match="one length"):
        encoder.encode({"plain": [1.0], "scaled": [1.0, 2.0], "hashed": ["a"], "listed": ["a"]})


def test_numpy_scalars_of_a_lookup_are_encoded_as_python_values_are(encoder: RowEncoder) -> None:
    python = {"plain": [1.5], "scaled": [2], "hashed": [7], "listed": ["v1"]}
    numpy = {
        "plain": np.array([1.5], np.float32),
        "scaled": np.array([2]),
        "hashed": np.array([7]),
        "listed": np.array(["v1"]),
    }
    expected, got = encoder.encode(python), encoder.encode(numpy)
    assert all(tensor.equal(got.inputs[name]) for name, tensor in expected.inputs.items())


class Features:
    """A feature service of a test."""

    rows: list[Any] = []

    def lookup(self, ids: list[str]) -> list[Any]:
        if isinstance(self.rows, Exception):
            raise self.rows
        return self.rows


GOOD = {"plain": 1, "scaled": 2.0, "hashed": "a", "listed": "v1", "more": "is ignored"}


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([GOOD], "expected a list of 2 rows"),
        ((GOOD, GOOD), "expected a list of 2 rows"),
        ([GOOD, None], "no such row"),
        ([GOOD, {"plain": 1}], "'scaled': expected a value"),
        ([GOOD, {**GOOD, "plain": "x"}], "'plain': expected numbers"),
        (OSError("down"), "serve.lookup raised OSError: down"),
    ],
)
def test_a_lookup_that_does_not_fit_is_refused_by_name(
    encoder: RowEncoder, rows: Any, problem: str
) -> None:
    service = Features()
    service.rows = [GOOD, GOOD]
    assert look_up(service, ["1", "2"], encoder).inputs["ids"].shape == (2, 2)
    service.rows = rows
    with pytest.raises(DataError, match=problem):
        look_up(service, ["1", "2"], encoder)


@pytest.mark.parametrize(
    ("code", "use", "problem"),
    [
        ("class A: pass", "own_{n}:A", "expected a method lookup"),
        ("def make(): raise ValueError('x')", "own_{n}:make", "ValueError: x"),
        ("", "own_{n}:Absent", "cannot import"),
        ("", "absent_{n}:A", "cannot import"),
    ],
)
def test_a_lookup_class_that_cannot_be_used_is_a_config_error(
    tmp_path: Path, code: str, use: str, problem: str
) -> None:
    from celu.errors import ConfigError

    number = abs(hash((code, use)))
    (tmp_path / f"own_{number}.py").write_text(code)
    with pytest.raises(ConfigError, match=problem):
        load_lookup(use.format(n=number), tmp_path)


def test_a_schema_without_columns_of_the_model_encodes_only_those_of_the_model() -> None:
    schema = StoreSchema.model_validate({"id": "id", "numbers": {"a": {}, "b": {}}})
    encoder = RowEncoder(schema, {"numbers": ["b"]})
    assert encoder.columns == {"b": "number"}
    assert encoder.encode({"b": [3.0]}).inputs["numbers"].tolist() == [[3.0]]
