"""Synthetic clicks: reproducible, with the fields, skew and signal that they should have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from celu.data import click_model, clicks
from celu.data.clicks import Clicks, Shape, click_chunk, field_sizes, write_clicks
from celu.data.store import open_store
from celu.errors import DataError

SHAPES: list[Shape] = ["criteo", "avazu"]
both_shapes = pytest.mark.parametrize("shape", SHAPES)


def columns(chunk: Clicks) -> dict[str, np.ndarray]:
    parts = {"guest": chunk.guest, "host": chunk.host}
    named = {f"{party}.{name}": c for party, part in parts.items() for name, c in part.items()}
    return named | {"label": chunk.label}


def same(left: Clicks, right: Clicks) -> bool:
    a, b = columns(left), columns(right)
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_each_party_has_the_fields_of_the_public_datasets() -> None:
    criteo = click_chunk("criteo", seed=1, chunk=0, rows=10)
    assert list(criteo.guest) == [f"I{i}" for i in range(1, 14)]
    assert list(criteo.host) == [f"C{i}" for i in range(1, 27)]
    avazu = click_chunk("avazu", seed=1, chunk=0, rows=10)
    assert list(avazu.guest) == [f"C{i}" for i in range(14, 22)]
    assert len(avazu.host) == 14
    assert next(iter(avazu.host)) == "hour"
    assert list(avazu.host)[-1] == "device_conn_type"


@both_shapes
@pytest.mark.parametrize("max_codes", [10, 1_000, 1_000_000])
def test_codes_are_below_their_sizes_and_numbers_are_finite(shape: Shape, max_codes: int) -> None:
    chunk = click_chunk(shape, seed=3, chunk=5, rows=50_000, max_codes=max_codes)
    sizes = field_sizes(shape, max_codes=max_codes)
    for party, part in (("guest", chunk.guest), ("host", chunk.host)):
        for name, values in part.items():
            if name in sizes[party]:
                assert values.dtype == np.int32
                assert 0 <= values.min() <= values.max() < sizes[party][name] <= max_codes
            else:
                assert values.dtype == np.float32
                assert np.isfinite(values).all()
                assert values.min() == 0
    assert set(np.unique(chunk.label)) == {0, 1}


@both_shapes
def test_a_chunk_depends_only_on_seed_and_number(shape: Shape) -> None:
    stream = [click_chunk(shape, seed=1, chunk=chunk, rows=1_000) for chunk in range(3)]
    click_model.hidden_model.cache_clear()
    assert same(click_chunk(shape, seed=1, chunk=2, rows=1_000), stream[2])
    assert not same(stream[1], stream[2])
    assert not same(click_chunk(shape, seed=2, chunk=2, rows=1_000), stream[2])


@both_shapes
def test_a_short_chunk_is_a_prefix_of_a_long_one(shape: Shape) -> None:
    short = columns(click_chunk(shape, seed=1, chunk=0, rows=777))
    long = columns(click_chunk(shape, seed=1, chunk=0, rows=2_000))
    assert all(np.array_equal(short[name], long[name][:777]) for name in short)


def test_the_first_rows_of_seed_one_are_pinned() -> None:
    # A change here changes the data of all past runs with this seed.
    chunk = click_chunk("avazu", seed=1, chunk=0, rows=4)
    assert chunk.guest["C14"].tolist() == [0, 31, 109, 1]
    assert chunk.host["device_ip"].tolist() == [1992, 5, 244, 14]
    clicked = {s: int(click_chunk(s, seed=1, chunk=0, rows=10_000).label.sum()) for s in SHAPES}
    assert clicked == {"criteo": 2460, "avazu": 1747}


@both_shapes
def test_ids_are_skewed_with_a_long_tail(shape: Shape) -> None:
    chunk = click_chunk(shape, seed=1, chunk=0, rows=100_000)
    for name, size in field_sizes(shape)["host"].items():
        if size < 1_000:
            continue
        counts = np.sort(np.bincount(chunk.host[name]))[::-1]
        assert 0.15 < counts[:10].sum() / 100_000 < 0.8, name
        assert np.count_nonzero(counts) > min(size, 10_000) / 3, name


@both_shapes
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_click_rate_is_that_of_the_public_dataset(shape: Shape, seed: int) -> None:
    rate = click_chunk(shape, seed=seed, chunk=0, rows=100_000).label.mean()
    assert rate == pytest.approx({"criteo": 0.25, "avazu": 0.17}[shape], abs=0.01)


def one_hot(part: dict[str, np.ndarray], sizes: dict[str, int]) -> sparse.csr_matrix:
    blocks = []
    for name, values in part.items():
        rows = np.arange(len(values))
        position = values if name in sizes else np.zeros_like(rows)
        weight = np.ones(len(values)) if name in sizes else values
        width = sizes.get(name, 1)
        blocks.append(sparse.csr_matrix((weight, (rows, position)), shape=(len(values), width)))
    return sparse.hstack(blocks, format="csr")


def interactions(left: sparse.csr_matrix, right: sparse.csr_matrix) -> sparse.csr_matrix:
    return sparse.hstack(
        [left.multiply(right[:, [j]]) for j in range(right.shape[1])], format="csr"
    )


@both_shapes
def test_the_host_improves_the_auc_and_the_interaction_improves_it_further(shape: Shape) -> None:
    sizes = field_sizes(shape, max_codes=500)
    interacting = click_model._RECIPES[shape].interacting
    train, test = (
        click_chunk(shape, seed=1, chunk=chunk, rows=60_000, max_codes=500) for chunk in (0, 1)
    )

    def inputs(chunk: Clicks) -> dict[str, sparse.csr_matrix]:
        guest, host = one_hot(chunk.guest, sizes["guest"]), one_hot(chunk.host, sizes["host"])
        few = [
            one_hot({n: c for n, c in part.items() if n in interacting}, sizes[party])
            for party, part in (("guest", chunk.guest), ("host", chunk.host))
        ]
        both = sparse.hstack([guest, host], format="csr")
        joint = sparse.hstack([both, interactions(*few)], format="csr")
        return {"guest": guest, "both": both, "joint": joint}

    train_inputs, test_inputs = inputs(train), inputs(test)
    auc = {}
    for name, x in train_inputs.items():
        model = LogisticRegression(C=0.05, max_iter=500, tol=1e-2).fit(x, train.label)
        auc[name] = roc_auc_score(test.label, model.decision_function(test_inputs[name]))
    assert 0.64 < auc["guest"] < 0.72
    assert auc["both"] > auc["guest"] + 0.03
    assert auc["joint"] > auc["both"] + 0.01


def test_an_auc_above_0_78_needs_the_interaction() -> None:
    hidden = click_model.hidden_model("criteo", 1, click_model.MAX_CODES)
    guest, host = (
        {name: replace(field, latent=()) for name, field in party.items()}
        for party in (hidden.guest, hidden.host)
    )
    # Streams as in `click_chunk`: the same rows, scored with and without the interaction.
    chunk = click_chunk("criteo", seed=1, chunk=0, rows=100_000)
    auc = {}
    for name, model in (
        ("all", hidden),
        ("without", click_model.HiddenModel(guest, host, hidden.intercept)),
    ):
        streams = np.random.SeedSequence((1, 0)).spawn(len(guest) + len(host) + 1)
        _, _, logit = click_model.draw_and_score(model, iter(streams), 100_000)
        auc[name] = roc_auc_score(chunk.label, logit)
    assert auc["without"] < 0.78
    assert auc["all"] > 0.81


@both_shapes
def test_the_stores_have_the_chunks_in_order(
    shape: Shape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clicks, "CHUNK_ROWS", 1_000)
    write_clicks(tmp_path, shape, rows=3_000, seed=4, test_fraction=0.2)
    guest, host = (
        pq.read_table(tmp_path / p / "store" / "train.parquet") for p in ("guest", "host")
    )
    assert guest.num_rows == host.num_rows == 2_400
    last = click_chunk(shape, seed=4, chunk=2, rows=400)
    assert np.array_equal(guest["label"].to_numpy()[2_000:], last.label)
    for table, part, party in ((guest, last.guest, "guest"), (host, last.host, "host")):
        schema = open_store(tmp_path / party / "store").schema
        assert {n: c.size for n, c in schema.categories.items()} == field_sizes(shape)[party]
        for name, values in part.items():
            assert np.array_equal(table[name].to_numpy()[2_000:], values)
    assert pq.read_metadata(tmp_path / "host" / "store" / "test.parquet").num_rows == 600
    assert not list(tmp_path.rglob("*.partial"))


def test_files_depend_on_the_seed_and_test_rows_not_on_the_number_of_training_rows(
    tmp_path: Path,
) -> None:
    for name, rows, fraction in (("a", 500, 0.2), ("b", 500, 0.2), ("c", 1_000, 0.1)):
        write_clicks(tmp_path / name, "avazu", rows=rows, seed=1, test_fraction=fraction)
    for file in ("guest/store/train", "guest/store/test", "host/store/train", "host/store/test"):
        first = (tmp_path / "a" / f"{file}.parquet").read_bytes()
        assert first == (tmp_path / "b" / f"{file}.parquet").read_bytes()
        longer = (tmp_path / "c" / f"{file}.parquet").read_bytes()
        assert (first == longer) == file.endswith("test")


def test_invalid_arguments_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least 10 rows, got 9"):
        write_clicks(tmp_path, "criteo", rows=9)
    with pytest.raises(DataError, match="test_fraction"):
        write_clicks(tmp_path, "criteo", rows=100, test_fraction=1.0)
    with pytest.raises(DataError, match="max_codes"):
        field_sizes("criteo", max_codes=2_000_000)
    with pytest.raises(DataError, match="criteo, avazu"):
        field_sizes("movielens")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
