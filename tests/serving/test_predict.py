"""Predictions in one process: the same bits as an evaluation, with any rows and any parties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import celu
from celu.data.memory_map import open_datasets
from celu.errors import AlignmentError, ConfigError, ContractMismatch, DataError, ModelError
from celu.metrics.measure import compute
from celu.scores.file import read_scores
from celu.serving.rows import StoreRows
from federation import BATCH, ROWS, federation
from predictions import align, for_store, store_of, train

FEDERATIONS: dict[str, dict[str, Any]] = {
    "binary": {},
    "multiclass": {"loss": "multiclass"},
    "regression": {"loss": "regression"},
    "a guest without features": {"guest_has_features": False},
    "two hosts": {"hosts": {"b": 6, "a": 4}},
    "no host": {"hosts": {}},
    "residual networks": {"is_residual": True},
    "residual networks, two hosts": {"is_residual": True, "hosts": {"b": 6, "a": 4}},
}


def names(prefix: str, *numbers: range) -> list[str]:
    return [f"{prefix}-{n}" for part in numbers for n in part]


@pytest.mark.parametrize("kind", FEDERATIONS)
def test_predictions_are_the_runs_own_evaluation_to_the_bit(kind: str) -> None:
    fed = federation(rounds=15, **FEDERATIONS[kind])
    parts, result = train(fed)
    hosts = {name: (parts[name], host.test) for name, host in fed.hosts.items()}
    found = celu.predict(parts["guest"], fed.guest.test, hosts, chunk_rows=BATCH)
    assert result.scores is not None and result.scores.output == found.output
    assert np.array_equal(found.scores, result.scores.scores)
    assert found.scores.dtype == np.float64
    assert found.ids.tolist() == [str(row) for row in range(ROWS)]
    assert not found.fallback.any()
    if kind == "binary":
        assert fed.guest.test.labels is not None
        measured = compute("binary", found.scores, fed.guest.test.labels.double().numpy())
        assert measured["auc"] == result.metrics["auc"]


@pytest.mark.parametrize("chunk_rows", [1, 7, 500])
@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "4bit+zstd"])
def test_chunks_and_codecs_change_little(chunk_rows: int, codec: str) -> None:
    fed = federation(rounds=15)
    parts, result = train(fed)
    hosts = {"host": (parts["host"], fed.hosts["host"].test)}
    found = celu.predict(parts["guest"], fed.guest.test, hosts, chunk_rows=chunk_rows, codec=codec)
    error = {"fp32": 1e-6, "bf16": 0.01, "int8": 0.01, "4bit+zstd": 0.15}[codec]
    assert result.scores is not None
    assert np.allclose(found.scores, result.scores.scores, atol=error, rtol=0)


def test_a_row_is_scored_from_the_same_z_however_often_it_is_asked_for() -> None:
    fed = federation(rounds=15)
    parts, _ = train(fed)
    hosts = {"host": (parts["host"], fed.hosts["host"].test)}
    first, second = (
        celu.predict(parts["guest"], fed.guest.test, hosts, codec="int8") for _ in range(2)
    )
    assert (first.scores == second.scores).all()


def test_rows_that_the_host_lacks_get_the_mean_z(tmp_path: Path) -> None:
    parts, _ = train(federation(rounds=15))
    common = names("both", range(40))
    own, others = names("guest", range(25)), names("host", range(30))
    stores = {
        "guest": store_of(tmp_path / "guest", common + own, test=names("test", range(9))),
        "host": store_of(tmp_path / "host", common + others, test=names("test", range(5, 20))),
    }
    alignments = align(tmp_path, stores)
    models = {name: for_store(part, stores[name]) for name, part in parts.items()}
    arguments: dict[str, Any] = {
        "hosts": {"host": (models["host"], stores["host"], alignments["host"])},
        "alignment": tmp_path / "guest-alignment",
        "chunk_rows": 16,
    }
    out = tmp_path / "scores.parquet"
    found = celu.predict(models["guest"], stores["guest"], out=out, **arguments)
    by_id = dict(zip(found.ids, zip(found.scores, found.fallback, strict=True), strict=True))
    assert set(by_id) == {*common, *own, *names("test", range(9))}
    lacking = {*own, *names("test", range(5))}
    assert {name for name, (_, is_fallback) in by_id.items() if is_fallback} == lacking
    mean_z = models["guest"].fallback_z(1)["host"]
    datasets = open_datasets(stores["guest"], models["guest"].facts.inputs)
    ids = [x for b in stores["guest"].batches("train", ["id"]) for x in b.column(0).to_pylist()]
    row = ids.index(own[3])
    expected = models["guest"].scores(datasets.train.take(slice(row, row + 1)), [mean_z])
    assert by_id[own[3]][0] == pytest.approx(float(expected), abs=1e-6)
    # The file says the same.
    written = read_scores(out)
    assert written.model == models["guest"].name
    assert written.ids.to_pylist() == found.ids.tolist()
    assert (written.scores == found.scores).all()
    assert (written.fallback == found.fallback).all()
    hosts = written.hosts.cast("string").to_pylist()
    assert hosts == ["" if f else "host" for f in found.fallback]
    # Without the fallback they are left out; the others are the same.
    strict = celu.predict(models["guest"], stores["guest"], fallback="refuse", **arguments)
    assert strict.ids.tolist() == [x for x in found.ids if x not in lacking]
    assert (strict.scores == found.scores[~found.fallback]).all()


@pytest.mark.parametrize("by_tag", [True, False])
def test_the_rows_of_an_alignment_are_those_that_training_would_read(
    tmp_path: Path, by_tag: bool
) -> None:
    parts, _ = train(federation(rounds=15))
    stores = {
        "guest": store_of(
            tmp_path / "guest", names("a", range(300)), test=names("t", range(50)), by_tag=by_tag
        ),
        "host": store_of(tmp_path / "host", names("a", range(100, 280)), test=names("t", range(9))),
    }
    alignment = align(tmp_path, stores)["guest"]
    assert alignment.is_ascending() == by_tag
    model = for_store(parts["guest"], stores["guest"])
    rows = StoreRows(stores["guest"], model, alignment, 16, unaligned=True)
    read = open_datasets(stores["guest"], model.facts.inputs, alignment=alignment)
    assert rows.plan.num_aligned == 12 + 1
    for first in (0, 3, 11, 12):
        number = first
        for chunk in rows.chunks(first, rows.plan.num_aligned):
            assert chunk.number == number
            part, start = (read.train, number * 16) if number < 12 else (read.test, 0)
            expected = part.take(slice(start, start + len(chunk.ids)))
            for name, tensor in expected.inputs.items():
                assert torch.equal(chunk.batch.inputs[name], tensor)
            assert chunk.batch.row_digest == expected.row_digest
            number += 1
        assert number == rows.plan.num_aligned
    everything = [x for c in rows.chunks(0, rows.plan.num_chunks) for x in c.ids.to_pylist()]
    assert len(everything) == 350 and len(set(everything)) == 350
    for first in range(rows.plan.num_chunks):
        resumed = [x for c in rows.chunks(first, rows.plan.num_chunks) for x in c.ids.to_pylist()]
        assert resumed == everything[rows.plan.rows(0, first) :]


@pytest.mark.parametrize(("own", "common"), [(1, 1), (1, 0), (3, 0), (0, 0)])
@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_few_or_no_rows_are_scored_too(tmp_path: Path, own: int, common: int, kind: str) -> None:
    parts, _ = train(federation(rounds=15, loss=kind))
    shared = names("both", range(common))
    stores = {
        "guest": store_of(tmp_path / "guest", shared + names("g", range(own - common))),
        "host": store_of(tmp_path / "host", shared + names("h", range(2))),
    }
    alignments = align(tmp_path, stores)
    found = celu.predict(
        for_store(parts["guest"], stores["guest"]),
        stores["guest"],
        {"host": (for_store(parts["host"], stores["host"]), stores["host"], alignments["host"])},
        alignment=alignments["guest"],
    )
    assert found.scores.shape == ((own,) if kind == "binary" else (own, 3))
    assert found.fallback.sum() == own - common


def test_parts_of_other_models_are_refused_by_name() -> None:
    fed = federation(rounds=15)
    parts, _ = train(fed)
    others, _ = train(federation(rounds=15))
    hosts = {"host": (others["host"], fed.hosts["host"].test)}
    expected = f"model: .*{parts['guest'].name}.*{others['host'].name}.*celu export"
    with pytest.raises(ContractMismatch, match=expected):
        celu.predict(parts["guest"], fed.guest.test, hosts)
    with pytest.raises(ConfigError, match=r"hosts: expected .*, got .*'host'"):
        celu.predict(parts["guest"], fed.guest.test, {})
    with pytest.raises(ConfigError, match=r"party: expected guest.*got host"):
        celu.predict(parts["host"], fed.guest.test, hosts)


def test_rows_in_another_order_are_refused() -> None:
    fed = federation(rounds=15)
    parts, _ = train(fed)
    rows = fed.hosts["host"].test
    tags = np.arange(ROWS * 2, dtype="<u8").view(np.uint8).reshape(-1, 16)
    own = celu.Dataset(fed.guest.test.inputs, fed.guest.test.labels, fed.guest.test.sizes, tags)
    theirs = celu.Dataset(rows.inputs, None, rows.sizes, tags[::-1].copy())
    with pytest.raises(ContractMismatch, match=r"test_ids.*celu align"):
        celu.predict(parts["guest"], own, {"host": (parts["host"], theirs)})


def test_a_store_with_another_schema_is_refused_by_name(tmp_path: Path) -> None:
    fed = federation(rounds=15, hosts={})
    parts, _ = train(fed)
    store = store_of(tmp_path / "store", names("a", range(5)))
    with pytest.raises(DataError, match="was not trained on a store"):
        celu.predict(parts["guest"], store)
    model = for_store(parts["guest"], store)
    changed = model.facts.model_copy(update={"schema_digest": "0" * 64})
    with pytest.raises(DataError, match=r"expected the schema of model .* --like"):
        celu.predict(celu.Model(changed, model.bottom, model.top, None, model.device), store)


def test_rows_that_do_not_fit_the_model_are_refused(tmp_path: Path) -> None:
    fed = federation(rounds=15, hosts={})
    parts, _ = train(fed)
    with pytest.raises(DataError, match="expected the inputs of model"):
        celu.predict(parts["guest"], celu.Dataset({"numbers": torch.zeros(3, 9)}))
    with pytest.raises(DataError, match="ids: expected one for each of 192 rows"):
        celu.predict(parts["guest"], fed.guest.test, ids=["a"])


def test_a_store_that_changed_since_its_alignment_is_refused(tmp_path: Path) -> None:
    parts, _ = train(federation(rounds=15))
    store = store_of(tmp_path / "store", names("a", range(20)))
    alignment = align(tmp_path, {"guest": store})["guest"]
    changed = store_of(tmp_path / "store", names("b", range(20)))
    model = for_store(parts["guest"], changed)
    with pytest.raises(AlignmentError, match="changed since the alignment"):
        StoreRows(changed, model, alignment, 16)


def test_a_store_with_repeated_ids_is_refused(tmp_path: Path) -> None:
    parts, _ = train(federation(rounds=15, hosts={}))
    store = store_of(tmp_path / "store", ["a", "b", "a"])
    with pytest.raises(DataError, match="expected each id once, got 1 repeats"):
        celu.predict(for_store(parts["guest"], store), store)


def test_a_top_model_with_another_output_is_named() -> None:
    fed = federation(rounds=15, hosts={}, loss="multiclass")
    parts, _ = train(fed)
    facts = parts["guest"].facts.model_copy(update={"output": "regression"})
    model = celu.Model(facts, parts["guest"].bottom, parts["guest"].top, None, torch.device("cpu"))
    with pytest.raises(ModelError, match=r"expected regression scores of \[192\].*\[192, 3\]"):
        celu.predict(model, fed.guest.test)
