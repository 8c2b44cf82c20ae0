"""The ranks of a party that torchrun started: rank 0 runs the party, the others follow it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from celu.config.job import Job
from celu.config.party import PartySettings
from celu.engine.rank_checkpoints import RankCheckpoints
from celu.engine.setup import RunTerms
from celu.errors import ConfigError, ModelError, PeerRestarted
from celu.events import ignore
from celu.launch.loading import load_party, read_datasets
from celu.launch.memory import retain_freed_memory
from celu.launch.recording import modules_of
from celu.launch.starting import load_start
from celu.model_identity import digest_weights, weights_of
from celu.party import Guest, Host
from celu.ranks.environment import local_rank, num_ranks
from celu.ranks.link import RankLink
from celu.ranks.slices import ONE, Slices
from celu.session import guest_session, host_session
from celu.transport.link import run_blocking

_MARGIN_S = 120.0  # beyond what the first rank may wait for a peer


@contextmanager
def slices_of(settings: PartySettings, job: Job) -> Iterator[Slices]:
    """The slices of a party: those of `slices`, or of the ranks that torchrun started.

    Raises ConfigError for what several slices do not support.
    """
    ranks = num_ranks()
    check_slices(settings, job, max(ranks, settings.slices))
    if ranks == 1:
        yield ONE if settings.slices == 1 else Slices(settings.slices)
        return
    from celu.ranks.group import joined  # torch.distributed takes a while to import

    with joined(settings.connect_s + settings.outage_s + settings.deadline_s + _MARGIN_S) as group:
        yield group


def check_slices(settings: PartySettings, job: Job, size: int) -> None:
    """Raise ConfigError for what a batch in so many slices does not support."""
    if num_ranks() > 1 and settings.slices not in (1, size):
        raise ConfigError(
            f"slices: expected 1, or the number of ranks, {num_ranks()}, got {settings.slices}"
        )
    if size > 1 and settings.audit is not None:
        raise ConfigError(
            f"[audit]: expected one process with slices = 1, got {size} slices or ranks: an audit "
            "records whole batches; remove it, or run one process"
        )
    if size > job.batch_size:
        raise ConfigError(
            f"slices: expected at most batch_size, {job.batch_size}, got {size} slices or ranks"
        )


def with_own_device(settings: PartySettings) -> PartySettings:
    """The settings with the GPU of this rank, if they name none of several."""
    if num_ranks() == 1 or settings.device != "cuda" or not torch.cuda.is_available():
        return settings
    device = f"cuda:{local_rank() % torch.cuda.device_count()}"
    return settings.model_copy(update={"device": device})


def check_same_weights(ranks: Slices, party: Guest | Host) -> None:
    """Raise ModelError unless all ranks start with the same weights."""
    if len(ranks.own) == ranks.size:
        return
    digest = digest_weights(weights_of(modules_of(party)))
    if ranks.share(lambda: digest) != digest:
        raise ModelError(
            "expected the same initial weights at all ranks, got others: a model must draw them "
            "from torch's random numbers, which are seeded, and from nothing else"
        )


def follow_party(settings: PartySettings, job: Job, source: Path, more: int) -> None:
    """Run a rank other than the first until the party is done; raises CeluError.

    It computes its slice of every batch. It has no link, no run folder, and emits nothing.
    """
    retain_freed_memory()
    settings = with_own_device(settings)
    with slices_of(settings, job) as ranks:
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        if settings.precision == "tf32":
            torch.set_float32_matmul_precision("high")
        datasets, terms = read_datasets(settings), RunTerms()
        while True:
            party = load_party(settings, job, source, datasets)
            if settings.start is not None:
                terms = replace(terms, start=load_start(settings.start, settings.name, party))
            if more and terms.total_rounds is None:
                terms = replace(terms, total_rounds=ranks.share(lambda: None))
            check_same_weights(ranks, party)
            links = {peer: RankLink(ranks, peer, None) for peer in settings.peers}
            options: dict[str, Any] = {
                "checkpoints": RankCheckpoints(ranks, None),
                "terms": terms,
                "ranks": ranks,
            }
            try:
                if isinstance(party, Guest):
                    session = guest_session(settings.name, party, job, links, ignore, **options)
                else:
                    link = links[job.guest]
                    session = host_session(settings.name, party, job, link, ignore, **options)
                run_blocking(session)
                return
            except PeerRestarted:
                continue  # as the first rank does
