"""Serving parties in this process: real models, stores and hosts' answers, without a network."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from celu.codecs.registry import find_codec
from celu.config.serving import Serving
from celu.data.store import Store
from celu.errors import AskRefused
from celu.serving.answering import HostSession
from celu.serving.encoding import RowEncoder
from celu.serving.host_link import Result, RowKeys, ZRows
from celu.serving.inference import Inference
from celu.serving.lookup import Lookup
from celu.serving.model import Model
from celu.serving.model_shelf import ServedModel
from celu.serving.quota import Quota
from celu.serving.row_index import NO_ROW, InputRows, ServedRows
from celu.transport.ask import Ask
from federation import federation
from predictions import align, for_store, store_of, train

COMMON = [f"both-{n}" for n in range(60)]
OWN = [f"own-{n}" for n in range(10)]
SLOT = 3


def served_model(model: Model, store: Store) -> ServedModel:
    model = for_store(model, store)
    inputs = model.facts.inputs
    return ServedModel(model, InputRows(store, inputs), RowEncoder(store.schema, inputs))


class OneModel:
    """A shelf with a single model."""

    def __init__(self, served: ServedModel) -> None:
        self._served = served

    def loaded(self, name: str) -> ServedModel | None:
        return self._served if name == self._served.name else None


def host_session(
    served: ServedModel,
    rows: ServedRows,
    folder: Path,
    lookup: Lookup | None = None,
    **contract: Any,
) -> HostSession:
    serving = Serving(guest="guest", hosts=[served.model.facts.party], **contract)
    quota = Quota(folder, rows.num_aligned, "rows")
    shelf: Any = OneModel(served)
    session = HostSession(served.model.facts.party, serving, shelf, rows, quota, lookup)
    session._slots = {served.name: SLOT}
    return session


@dataclass
class DirectHost:
    """Gets Z from a host's session by a call; `is_down`: it gives none."""

    session: HostSession
    width: int
    is_down: bool = False
    asked: list[list[int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.session.name

    def start(self, model: str, keys: RowKeys, deadline_at: float) -> Result:
        has_z = [number != NO_ROW for number in keys.numbers]
        none = ZRows([False] * len(keys), None)
        if self.is_down or not any(has_z):
            return Result(lambda: none)
        numbers = [number for number in keys.numbers if number != NO_ROW]
        self.asked.append(numbers)
        try:
            payload = self.session.answer(Ask(0, SLOT, numbers, deadline_at))
        except AskRefused:
            return Result(lambda: none)
        codec = find_codec(self.session.serving.codec, "codec")
        z_ND = codec.decode(payload.reshape(-1), len(numbers), self.width)
        return Result(lambda: ZRows(has_z, z_ND.numpy()))


@dataclass
class Federated:
    """A guest's inference and its hosts, in this process."""

    inference: Inference
    served: ServedModel
    hosts: dict[str, DirectHost]
    models: dict[str, Model]
    stores: dict[str, Store]
    rows: ServedRows


def federated(folder: Path, fallback: Any = "mean", **options: Any) -> Federated:
    """Parties with 60 rows in common, and 10 each of their own."""
    torch.manual_seed(0)
    fed = federation(rounds=15, **options)
    models, _ = train(fed)
    stores = {
        name: store_of(folder / name, COMMON + [f"{name}-{row}" for row in OWN], seed=number)
        for number, name in enumerate(models)
    }
    alignments = align(folder, stores)
    rows = {name: ServedRows(store, alignments[name]) for name, store in stores.items()}
    hosts = {
        name: DirectHost(
            host_session(served_model(models[name], stores[name]), rows[name], folder),
            terms.z_width,
        )
        for name, terms in fed.job.hosts.items()
    }
    served = served_model(models["guest"], stores["guest"])
    inference = Inference(lambda: served, rows["guest"], list(hosts.values()), fallback)
    return Federated(inference, served, hosts, models, stores, rows["guest"])
