"""`celu predict`: one party's part in a prediction over the network, or all parties in one process.

The guest resumes from the parts of its scores that are on disk, the hosts from the chunk that the
guest names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch

from celu import open_files
from celu.config.party import PartySettings
from celu.config.serving import Serving
from celu.data.alignment import read_alignment
from celu.data.store import open_store
from celu.errors import ConfigError, PeerRestarted
from celu.events import Callback, Connected, Restarted
from celu.launch.endpoint import endpoint_of
from celu.launch.memory import retain_freed_memory
from celu.launch.predict_files import PredictParty
from celu.launch.restarts import Restarts
from celu.serving.model import Model
from celu.serving.model_folder import load_model
from celu.serving.predict_session import (
    check_model,
    predict_guest,
    predict_host,
    score_unaligned,
)
from celu.serving.predicting import Fallback, num_classes, predict_together
from celu.serving.rows import StoreRows
from celu.serving.scoring_parts import ScoringParts
from celu.transport.connect import open_links
from celu.transport.link import run_blocking
from celu.transport.message import TrafficBothWays


@dataclass(frozen=True)
class PredictSummary:
    """What was scored, and the traffic of each link; a host counts the rows that it sent."""

    model: str
    rows: int
    fallback: int = 0
    left_out: int = 0
    seconds: float = 0.0  # since the peers connected
    traffic: Mapping[str, TrafficBothWays] = field(default_factory=dict)


def predict_party(
    party: PredictParty,
    serving: Serving,
    fallback: Fallback,
    listening: Callable[[int], None],
    emit: Callback,
) -> PredictSummary:
    """Predict with the peers, over the network; raises CeluError.

    If a peer's process restarts, it starts over from the last part on disk.
    """
    _prepare_process(party.settings)
    model, rows = _load(party, serving, fallback)
    settings = party.settings
    with ExitStack() as stack:
        parts = None if party.out is None else stack.enter_context(_parts(party.out, model))
        restarts = Restarts("a new part of the scores")
        started = time.monotonic()
        while True:
            try:
                with open_links(endpoint_of(settings, emit), listening) as links:
                    emit(Connected(peers=sorted(links), secure=not settings.insecure))
                    started = time.monotonic()
                    if parts is not None:
                        program = predict_guest(
                            settings.name, model, rows, serving, links, parts, emit
                        )
                    else:
                        link = links[serving.guest]
                        program = predict_host(settings.name, model, rows, serving, link, emit)
                    run_blocking(program)
                    traffic = {name: link.traffic for name, link in links.items()}
                    break
            except PeerRestarted as error:
                restarts.add(error, None if parts is None else parts.next_chunk)
                emit(Restarted(message=str(error)))
        if parts is None:
            sent = rows.plan.rows(0, rows.plan.num_aligned)
            seconds = time.monotonic() - started
            return PredictSummary(model.name, sent, seconds=seconds, traffic=traffic)
        score_unaligned(model, rows, parts, emit)
        return _finish(model, rows, parts, traffic, started)


def predict_parties(
    parties: Mapping[str, PredictParty], serving: Serving, fallback: Fallback, emit: Callback
) -> PredictSummary:
    """Predict with all parties in this process; raises CeluError."""
    missing = {serving.guest, *serving.hosts} - parties.keys()
    if missing:
        raise ConfigError(f"expected the party.toml of every party, got none for {sorted(missing)}")
    guest = parties[serving.guest]
    _prepare_process(guest.settings)
    loaded = {name: _load(party, serving, fallback) for name, party in parties.items()}
    model, rows = loaded.pop(serving.guest)
    assert guest.out is not None  # the caller checks it
    started = time.monotonic()
    with _parts(guest.out, model) as parts:
        predict_together(serving, model, rows, loaded, parts, emit)
        return _finish(model, rows, parts, {}, started)


def _prepare_process(settings: PartySettings) -> None:
    retain_freed_memory()
    open_files.raise_limit()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)


def _load(party: PredictParty, serving: Serving, fallback: Fallback) -> tuple[Model, StoreRows]:
    model = load_model(party.model, modules=party.source, device=party.settings.device)
    check_model(model, serving, party.settings.name)
    store = open_store(party.store)
    alignment = None if party.alignment is None else read_alignment(party.alignment, store)
    is_guest = party.settings.role == "guest"
    unaligned = is_guest and fallback == "mean"
    return model, StoreRows(store, model, alignment, serving.chunk_rows, unaligned=unaligned)


def _parts(out: Path, model: Model) -> ScoringParts:
    assert model.facts.output is not None  # a guest's part has it
    hosts = ",".join(model.facts.hosts)
    return ScoringParts(
        out,
        model=model.name,
        output=model.facts.output,
        hosts=hosts,
        classes=model.facts.label_map.names,
    )


def _finish(
    model: Model,
    rows: StoreRows,
    parts: ScoringParts,
    traffic: Mapping[str, TrafficBothWays],
    started: float,
) -> PredictSummary:
    """Write the scores file."""
    parts.finish(num_classes(model))
    plan = rows.plan
    aligned, total = plan.rows(0, plan.num_aligned), plan.rows(0, plan.num_chunks)
    left_out, seconds = rows.store_rows - total, time.monotonic() - started
    return PredictSummary(model.name, total, total - aligned, left_out, seconds, traffic)
