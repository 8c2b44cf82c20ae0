"""Dates, quantiles, filled numbers and bags, from raw files to every use of a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from celu.data.store import PARTS, Store, open_store
from celu.serving.export import export_run
from celu.serving.model_folder import load_model
from celu.serving.model_shelf import load_served
from celu.serving.rows import StoreRows
from serving.trained import invoke

ROWS = 400
GENRES = ["drama", "comedy", "crime", "music", "war"]
SCHEMA = """
id = "id"
label = "liked"
[numbers]
age = { missing = "median", indicator = true, standardise = true }
[categories]
spent = { quantiles = 6 }
[dates.joined]
parts = ["year", "weekday", "days_since"]
missing = "mean"
standardise = true
[bags]
genres = { separator = "|", vocabulary = 4, max_values = 3 }
words = { separator = " ", buckets = 30, max_values = 2 }
"""
HOST_SCHEMA = 'id = "id"\n[bags]\nshops = { separator = ";", buckets = 9 }\n'
OWN = """
import torch
from torch import nn

class Bags(nn.Module):
    def __init__(self, z_width, columns, sizes):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, 4) for n in sizes["bags"])
        self.out = nn.Linear(4 * columns["bags"], z_width)

    def forward(self, bags):
        batch, num_columns, num_values = bags.shape
        assert num_columns == 1 and num_values == 16
        means = [table(bags[:, i]).mean(dim=1) for i, table in enumerate(self.tables)]
        return self.out(torch.cat(means, dim=1))
"""
PARTY = """
role = "{role}"
name = "{name}"
insecure = true
[peers.{peer}]
connect = "localhost:1"
[data]
store = "store"
aligned = true
[model]
bottom = {bottom}
"""
JOB = """
guest = "films"
rounds = 60
batch_size = 64
[hosts.bank]
z_width = 8
[evaluation]
every = 30
metric = "auc"
"""


def raw_rows() -> dict[str, list[Any]]:
    random = np.random.default_rng(4)
    rows: dict[str, list[Any]] = {
        name: [] for name in ("id", "liked", "age", "spent", "joined", "genres", "words", "shops")
    }
    for n in range(ROWS):
        genres = random.permutation(GENRES)[: random.integers(0, 5)].tolist()
        rows["id"].append(f"p{n}")
        rows["liked"].append(int("drama" in genres) if n % 10 else int(random.integers(2)))
        rows["age"].append("" if n % 7 == 0 else str(int(random.integers(18, 90))))
        rows["spent"].append("" if n % 8 == 0 else f"{random.exponential(20):.2f}")
        rows["joined"].append("" if n % 11 == 0 else f"20{n % 20:02}-{n % 12 + 1:02}-03T10:00:00Z")
        rows["genres"].append("|".join(genres))
        rows["words"].append(" ".join(f"w{i}" for i in random.integers(0, 50, 3)))
        rows["shops"].append(";".join(f"s{i}" for i in random.integers(0, 9, n % 3)))
    return rows


def write(path: Path, rows: dict[str, list[Any]], names: list[str]) -> Path:
    lines = [",".join(map(str, row)) for row in zip(*(rows[n] for n in names), strict=True)]
    path.write_text("\n".join([",".join(names), *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[Any]]]:
    """Two parties with stores from raw files, and a run of `celu simulate`."""
    folder = tmp_path_factory.mktemp("raw")
    rows = raw_rows()
    for party, peer, schema in (("films", "bank", SCHEMA), ("bank", "films", HOST_SCHEMA)):
        home = folder / party
        home.mkdir()
        names = list(rows)[:-1] if party == "films" else ["id", "shops"]
        (home / "schema.toml").write_text(schema)
        raw = write(home / "raw.csv", rows, names)
        invoke("prepare", raw, "--schema", home / "schema.toml", "--out", home / "store")
        own = '"own_bags:Bags"'
        built_in = '{ use = "wdl", embedding_dim = 6, hidden = [8], pooling = "sum" }'
        text = PARTY.format(
            role="guest" if party == "films" else "host",
            name=party,
            peer=peer,
            bottom=built_in if party == "films" else own,
        )
        (home / "party.toml").write_text(
            text + ('top = "wdl"\nloss = "binary"\n' if party == "films" else "")
        )
    (folder / "bank" / "own_bags.py").write_text(OWN)
    (folder / "job.toml").write_text(JOB)
    parties = [folder / party / "party.toml" for party in ("films", "bank")]
    output = invoke("simulate", *parties, "--job", folder / "job.toml", "--out", folder / "run")
    assert "auc 0.9" in output, output  # the label is in the bag
    export_run(folder / "run", folder / "model", formats=["pt2", "onnx"])
    return folder, rows


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch.export.load
def test_every_use_of_a_model_computes_the_same_from_raw_rows(
    task: tuple[Path, dict[str, list[Any]]],
) -> None:
    folder, rows = task
    store = open_store(folder / "films" / "store")
    served = load_served(folder / "model", store, folder, "cpu")
    assert served.model.facts.input_specs["bags"].shape == [2, 3]
    assert served.encoder is not None
    numbers = list(range(0, 40))
    stored = served.rows.take(numbers)
    assert stored is not None
    ids = store_ids(store)[:40]
    order = [rows["id"].index(row_id) for row_id in ids]
    values = {name: [rows[name][n] for n in order] for name in served.encoder.columns}
    encoded = served.encoder.encode(values)
    for name, array in stored.items():
        assert np.array_equal(encoded.inputs[name].numpy(), array), name
    z = served.model.activations(encoded)
    few = served.few_rows
    assert few.is_quick(40)
    assert few.activations(stored) == pytest.approx(z.numpy(), abs=1e-5)
    program = torch.export.load(folder / "model" / "bottom.pt2").module()
    inputs = {name: encoded.inputs[name] for name in served.model.facts.inputs}
    assert torch.allclose(program(**inputs), z, atol=1e-5)
    session = onnxruntime.InferenceSession(
        folder / "model" / "bottom.onnx", providers=["CPUExecutionProvider"]
    )
    (output,) = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    assert output == pytest.approx(z.numpy(), abs=1e-5)


def store_ids(store: Store) -> list[str]:
    batches = [batch for part in PARTS for batch in store.batches(part, ["id"])]
    return [row_id for batch in batches for row_id in batch["id"].to_pylist()]


def test_rows_to_predict_are_those_of_the_store(task: tuple[Path, dict[str, list[Any]]]) -> None:
    folder, rows = task
    raw = write(folder / "new.csv", rows, [name for name in rows if name not in ("liked", "shops")])
    invoke("prepare", raw, "--like", folder / "films" / "store", "--out", folder / "new")
    model = load_model(folder / "model")
    new = {}
    for path in (folder / "new", folder / "films" / "store"):
        store = open_store(path)
        chunks = list(StoreRows(store, model, None, 128, unaligned=True).chunks(0, 9))
        new[path.name] = {
            row_id: z
            for chunk in chunks
            for row_id, z in zip(
                chunk.ids.to_pylist(), model.activations(chunk.batch).tolist(), strict=True
            )
        }
    assert len(new["new"]) == ROWS
    assert new["new"] == {i: pytest.approx(z, abs=1e-6) for i, z in new["store"].items()}


def test_inspect_counts_what_was_missing(
    task: tuple[Path, dict[str, list[Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    folder, rows = task
    store = folder / "films" / "store"
    output = invoke("inspect", store)
    assert "no problems found" in output
    lines = {line.split()[1]: line for line in output.splitlines() if line.count("│") > 5}
    for name, kind in {"spent": "6 quantiles", "genres": "bag, 6 codes"}.items():
        assert kind in lines[name]
    opened = open_store(store)
    train = set(store_ids(opened)[: opened.schema.rows["train"]])
    for column, name in {"age": "age", "joined": "joined.year", "spent": "spent"}.items():
        missing = [i for i, cell in zip(rows["id"], rows[column], strict=True) if cell == ""]
        assert f" {len(train & set(missing)) / len(train):.1%} " in lines[name], name
