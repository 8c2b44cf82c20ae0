"""`celu prepare` and `celu split` as typed."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from celu.cli.app import app
from celu.config.schema import read_store_schema
from celu.errors import ConfigError
from celu.prepare.presets import AVAZU_GUEST, AVAZU_HOST, CRITEO_CATEGORIES, CRITEO_NUMBERS

SCHEMA = """
id = "id"
label = "late"
[numbers]
age = { standardise = true }
[categories]
town = { vocabulary = 100 }
flat = { buckets = 10 }
"""


def invoke(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return re.sub(r"\x1b\[[0-9;]*m", "", result.output)


def table(folder: Path, name: str = "table.csv", first: int = 0) -> Path:
    lines = [f"{row},{row % 2},{row % 60},t{row % 5},x" for row in range(first, first + 300)]
    (folder / name).write_text("\n".join(["id,late,age,town,flat", *lines]) + "\n")
    (folder / "schema.toml").write_text(SCHEMA)
    return folder / name


def criteo(folder: Path) -> Path:
    random = np.random.default_rng(1)
    lines = []
    for row in range(300):
        numbers = ["" if v % 3 == 0 else str(v - 2) for v in random.integers(0, 90, 13).tolist()]
        codes = ["" if v % 7 == 0 else f"{v:08x}" for v in random.integers(0, 99, 26).tolist()]
        lines.append("\t".join([str(row % 2), *numbers, *codes]))
    path = folder / "train.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def avazu(folder: Path) -> Path:
    random = np.random.default_rng(1)
    names = ["id", "click", *AVAZU_HOST, *AVAZU_GUEST]
    lines = [
        ",".join([str(10**19 + row), str(row % 2), *map(str, random.integers(0, 9, 22).tolist())])
        for row in range(300)
    ]
    path = folder / "train.csv.gz"
    path.write_bytes(gzip.compress("\n".join([",".join(names), *lines, ""]).encode()))
    return path


def test_a_schema_makes_a_store_and_warnings_are_shown(tmp_path: Path) -> None:
    output = invoke(
        "prepare", table(tmp_path), "--schema", tmp_path / "schema.toml", "--out", tmp_path / "s"
    )
    schema = read_store_schema(tmp_path / "s")
    assert (
        f"{tmp_path / 's'}: {schema.rows['train']} train and {schema.rows['test']} test" in output
    )
    assert "warning column 'flat': all training rows have the same value" in output
    assert "reading ...\nwriting ..." in output, "no bar where there is no terminal"


def test_new_rows_are_encoded_like_a_store_and_unseen_values_are_reported(tmp_path: Path) -> None:
    path = table(tmp_path)
    invoke("prepare", path, "--schema", tmp_path / "schema.toml", "--out", tmp_path / "s")
    new = table(tmp_path, "new.csv", first=300)
    new.write_text(new.read_text().replace("t4", "t9"))
    output = invoke("prepare", new, "--like", tmp_path / "s", "--out", tmp_path / "new")
    assert "0 train and 300 test rows" in output
    assert "column 'town': 60 rows have values that are not in its vocabulary" in output


def test_rows_to_be_scored_are_inspected_with_their_missing_and_unseen_values(
    tmp_path: Path,
) -> None:
    for name, first, word in (("old", 0, "a"), ("new", 900, "z")):
        lines = [f"r{n},{'' if n % 4 == 0 else n},{word}{n % 3}" for n in range(first, first + 300)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,x,word", *lines, ""]))
    (tmp_path / "schema.toml").write_text(
        'id = "id"\nsplit = { test = 0.2 }\n[numbers]\nx = { missing = "mean" }\n'
        "[categories]\nword = { vocabulary = 10 }\n"
    )
    options = ("--schema", tmp_path / "schema.toml")
    invoke("prepare", tmp_path / "old.csv", *options, "--out", tmp_path / "s")
    assert "training rows" in invoke("inspect", tmp_path / "s")
    invoke("prepare", tmp_path / "new.csv", "--like", tmp_path / "s", "--out", tmp_path / "new")
    assert (
        read_store_schema(tmp_path / "new").digest() == read_store_schema(tmp_path / "s").digest()
    )
    text = invoke("inspect", tmp_path / "new")
    assert "test rows" in text and "training rows" not in text
    shown = {line.split("│")[1].strip(): line for line in text.splitlines() if "│" in line}
    assert "25.0%" in shown["x"] and "100.0%" in shown["word"]
    assert "-" not in shown["x"]


def test_a_store_is_replaced_only_with_force(tmp_path: Path) -> None:
    options = ("--schema", tmp_path / "schema.toml", "--out", tmp_path / "s")
    path = table(tmp_path)
    invoke("prepare", path, *options)
    with pytest.raises(ConfigError, match="--force"):
        invoke("prepare", path, *options)
    invoke("prepare", path, table(tmp_path, "more.csv", first=300), *options, "--force")
    assert sum(read_store_schema(tmp_path / "s").rows.values()) == 600


def test_criteo_becomes_a_guest_and_a_host_with_the_same_rows(tmp_path: Path) -> None:
    invoke("prepare", "criteo", criteo(tmp_path), "--out", tmp_path / "out", "--test", "0.2")
    guest, host = (tmp_path / "out" / party / "store" for party in ("guest", "host"))
    for part in ("train", "test"):
        mine, theirs = (pq.read_table(s / f"{part}.parquet") for s in (guest, host))
        assert mine.column_names == ["id", "tag", "label", *CRITEO_NUMBERS]
        assert theirs.column_names == ["id", "tag", *CRITEO_CATEGORIES]
        assert mine.column("tag") == theirs.column("tag")
        assert mine.num_rows > 20
    assert read_store_schema(guest).split.test == 0.2
    assert read_store_schema(host).categories["C1"].size == 100_001


def test_avazu_becomes_a_guest_and_a_host_with_the_same_rows(tmp_path: Path) -> None:
    path, out = avazu(tmp_path), tmp_path / "out"
    invoke("prepare", "avazu", path, "--out", out, "--seed", "4", "--buckets", "50")
    guest, host = (pq.read_table(out / p / "store" / "train.parquet") for p in ("guest", "host"))
    assert guest.column_names == ["id", "tag", "label", *AVAZU_GUEST]
    assert host.column_names == ["id", "tag", *AVAZU_HOST]
    assert guest.column("id") == host.column("id")
    assert read_store_schema(out / "host" / "store").split.seed == 4
    assert read_store_schema(out / "host" / "store").categories["hour"].buckets == 50


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["FILE"], "expected one of --draft, --schema, --like, and criteo or avazu .* got 0"),
        (["FILE", "--schema", "SCHEMA", "--like", "SCHEMA"], "expected one of .* got 2"),
        (["criteo", "FILE", "--schema", "SCHEMA"], "expected one of .* got 2"),
        (["FILE", "--schema", "SCHEMA", "--seed", "3"], "are for criteo and avazu only"),
        (["criteo"], "expected raw files, got none"),
        (["criteo", "FILE", "--test", "1.5"], "test: expected"),
    ],
)
def test_missing_and_conflicting_options_are_refused(
    tmp_path: Path, arguments: list[str], output: str
) -> None:
    known = {"FILE": str(table(tmp_path)), "SCHEMA": str(tmp_path / "schema.toml")}
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConfigError, match=output):
        invoke("prepare", *(known.get(a, a) for a in arguments), "--out", tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before


def test_a_table_is_split_among_parties(tmp_path: Path) -> None:
    parties = ["--party", "bank=age,late", "--party", "shop=town, flat", "--keep", "0.5"]
    output = invoke("split", table(tmp_path), "--id", "id", *parties, "--out", tmp_path / "parties")
    assert f"{tmp_path / 'parties' / 'bank'}.parquet: 1" in output
    assert pq.read_schema(tmp_path / "parties" / "shop.parquet").names == ["id", "town", "flat"]


@pytest.mark.parametrize("party", ["bank", "=age", "Bank=age", "../bank=age"])
def test_a_party_needs_a_name_and_columns(tmp_path: Path, party: str) -> None:
    with pytest.raises(ConfigError, match="--party: expected NAME=COLUMN"):
        invoke(
            "split", table(tmp_path), "--id", "id", "--party", party, "--out", tmp_path / "parties"
        )


def test_two_parties_with_the_same_name_are_refused(tmp_path: Path) -> None:
    twice = ["--party", "a=age", "--party", "a=town"]
    with pytest.raises(ConfigError, match="--party: expected each name once"):
        invoke("split", table(tmp_path), "--id", "id", *twice, "--out", tmp_path / "parties")
