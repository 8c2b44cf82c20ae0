"""Trained models of small federations, and stores of rows for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import celu
from celu.config.schema import Split
from celu.data.alignment import Alignment, write_alignment
from celu.data.store import PARTS, Store
from celu.data.tags import ascending, make_tags
from celu.model_identity import InputSpec
from celu.serving.model import Model
from celu.serving.model_folder import ModelFacts
from federation import Federation
from stores import write_store

SEED = 1
NUMBERS, CODES = ["n0", "n1", "n2", "n3"], ["c0", "c1", "c2"]
SIZES = dict.fromkeys(CODES, 20)


def train(fed: Federation) -> tuple[dict[str, Model], celu.Result, Tensor]:
    """Each party's part of a trained model, the result, and the outputs of the last evaluation."""
    outputs: list[Tensor] = []

    def record(output: Tensor, labels: Tensor) -> dict[str, float]:
        outputs.append(output)
        return metrics(output, labels)

    metrics = fed.guest.loss.metrics
    guest = replace(fed.guest, loss=replace(fed.guest.loss, metrics=record))
    result = celu.simulate(fed.job, guest, fed.hosts)
    parts = {name: _part(name, fed, result) for name in ("guest", *fed.hosts)}
    return parts, result, outputs[-1]


def _part(name: str, fed: Federation, result: celu.Result) -> Model:
    party = fed.guest if name == "guest" else fed.hosts[name]
    is_guest = isinstance(party, celu.Guest)
    has_bottom = party.bottom is not None
    columns = {"numbers": NUMBERS, "ids": CODES} if has_bottom else {}
    facts = ModelFacts(
        party=name,
        role="guest" if is_guest else "host",
        guest="guest",
        hosts={host: terms.z_width for host, terms in fed.job.hosts.items()},
        identity=result.model,
        inputs=columns,
        input_specs={
            name: InputSpec(shape=[len(names)], dtype="float32" if name == "numbers" else "int64")
            for name, names in columns.items()
        },
        sizes={"ids": [20] * len(CODES)} if has_bottom else {},
        z_width=None if is_guest else fed.job.hosts[name].z_width,
        bottom=None,
        top=None,
        output=fed.guest.loss.output if is_guest else None,
        mean_z=result.mean_z if is_guest else {},
        schema_digest=None,
    )
    for module in (party.bottom, getattr(party, "top", None)):
        if module is not None:
            module.eval()
    top = party.top if isinstance(party, celu.Guest) else None
    return Model(facts, party.bottom, top, None, torch.device("cpu"))


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
