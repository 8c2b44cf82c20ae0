"""Trained models of small federations, and stores of rows for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import celu
from celu.config.schema import Split
from celu.data.alignment import Alignment, write_alignment
from celu.data.store import PARTS, Store
from celu.data.tags import ascending, make_tags
from celu.serving.model import Model
from federation import Federation
from stores import write_store

SEED = 1
NUMBERS, CODES = ["n0", "n1", "n2", "n3"], ["c0", "c1", "c2"]
SIZES = dict.fromkeys(CODES, 20)


def train(fed: Federation) -> tuple[dict[str, Model], celu.Result]:
    """Each party's part of a trained model, and the result."""
    result = celu.simulate(fed.job, fed.guest, fed.hosts)
    parts = celu.models_of(result, fed.job, fed.guest, fed.hosts)
    return {name: _named(part) for name, part in parts.items()}, result


def _named(part: Model) -> Model:
    """The part with the columns of a store."""
    columns = {"numbers": NUMBERS, "ids": CODES} if part.facts.inputs else {}
    return replace(part, facts=part.facts.model_copy(update={"inputs": columns}))


def for_store(model: Model, store: Store) -> Model:
    """The same part, as if it had been trained on a store with this schema."""
    facts = model.facts.model_copy(update={"schema_digest": store.schema.digest()})
    return replace(model, facts=facts)


def store_of(
    path: Path, ids: Sequence[str], *, test: Sequence[str] = (), by_tag: bool = True, seed: int = 5
) -> Store:
    """A store whose values depend on (id, seed); in the order of the tags, or as given."""
    parts = {"train": list(ids), "test": list(test)}
    if by_tag:
        parts = {
            part: [names[i] for i in ascending(make_tags(names, SEED))] if names else names
            for part, names in parts.items()
        }
    columns = {part: _columns(names, seed) for part, names in parts.items()}
    return write_store(path, columns["train"], SIZES, test=columns["test"], ids=parts, seed=SEED)


def _columns(ids: Sequence[str], seed: int) -> dict[str, Any]:
    randoms = [np.random.default_rng([seed, *name.encode()]) for name in ids]
    x = np.array([r.normal(size=4) for r in randoms], np.float32).reshape(-1, 4)
    c = np.array([r.integers(0, 20, 3) for r in randoms], np.int32).reshape(-1, 3)
    return {name: x[:, i] for i, name in enumerate(NUMBERS)} | {
        name: c[:, i] for i, name in enumerate(CODES)
    }


def align(folder: Path, stores: dict[str, Store]) -> dict[str, Alignment]:
    """The alignments that `celu align` would write."""
    ids = {name: {part: _ids(store, part) for part in PARTS} for name, store in stores.items()}
    split = Split(seed=SEED)
    found = {}
    for name, store in stores.items():
        rows = {}
        for part in PARTS:
            common = set.intersection(*(set(ids[other][part]) for other in stores))
            mine = ids[name][part]
            numbers = np.array([i for i, x in enumerate(mine) if x in common], np.int64)
            tags = make_tags([mine[i] for i in numbers], split.seed)
            rows[part] = numbers[ascending(tags)] if len(numbers) else numbers
        found[name] = write_alignment(
            folder / f"{name}-alignment", store, rows, peers={}, common={}
        )
    return found


def _ids(store: Store, part: Any) -> list[str]:
    return [text for batch in store.batches(part, ["id"]) for text in batch.column(0).to_pylist()]
