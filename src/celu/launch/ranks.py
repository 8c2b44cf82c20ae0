"""The ranks of a party that torchrun started: rank 0 runs the party, the others follow it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from celu.checkpoint.generations import Checkpoints
from celu.config.job import Job
from celu.config.party import PartySettings
from celu.data.memory_map import StoreDatasets
from celu.engine.rank_checkpoints import RankCheckpoints
from celu.engine.setup import RunTerms
from celu.errors import ConfigError, ModelError, PeerRestarted
from celu.events import Callback
from celu.launch.loading import load_party, read_datasets
from celu.launch.memory import retain_freed_memory
from celu.launch.precision import matrix_products
from celu.launch.recording import modules_of
from celu.launch.same_party import check_same_settings, check_same_store
from celu.launch.starting import load_start
from celu.model_identity import digest_weights, weights_of
from celu.party import Guest, Host
from celu.privacy.ledger import read_label_key
from celu.privacy.secret_key import LABELS, NOISE, KeyUse, SecretKey
from celu.ranks.environment import local_rank, num_ranks
from celu.ranks.link import RankLink
from celu.ranks.own_rows import sharded_names
from celu.ranks.slices import ONE, Slices
from celu.ranks.whole import pass_on
from celu.session import guest_session, host_session
from celu.transport.link import run_blocking

if TYPE_CHECKING:
    from celu.launch.sharding import Sharding

_MARGIN_S = 120.0  # beyond what the first rank may wait for a peer
_SILENT = 0.5  # of deadline_s, after which the peers give up a party that sends nothing


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

    timeout_s = settings.connect_s + settings.outage_s + settings.deadline_s + _MARGIN_S
    with joined(timeout_s, settings.deadline_s * _SILENT) as group:
        yield group


def check_slices(settings: PartySettings, job: Job, size: int) -> None:
    """Raise ConfigError for what a batch in several slices does not support."""
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


def sharding_of(
    settings: PartySettings, job: Job, ranks: Slices, datasets: StoreDatasets
) -> Sharding | None:
    """What decides which embedding tables are sharded, where there are several ranks."""
    if len(ranks.own) == ranks.size:
        return None
    from celu.launch.sharding import Sharding  # torch.distributed takes a while to import
    from celu.ranks.group import Group

    assert isinstance(ranks, Group)
    return Sharding(ranks, settings, job, validates=datasets.validation is not None)


def rank_checkpoints(ranks: Slices, files: Checkpoints, party: Guest | Host) -> Checkpoints:
    """The checkpoints that a rank uses; `files` are those of the run folder."""
    if len(ranks.own) == ranks.size:
        return files
    from celu.ranks.group import Group  # see above

    assert isinstance(ranks, Group)
    is_sharded = bool(sharded_names(modules_of(party)))
    files.hand_over(ranks.attempt, ranks.is_broken)
    return RankCheckpoints(ranks, files, is_sharded=is_sharded)


def check_same_weights(ranks: Slices, party: Guest | Host) -> None:
    """Raise ModelError unless all ranks start with the same weights, where each has all of them."""
    if len(ranks.own) == ranks.size:
        return
    modules = modules_of(party)
    shards = sharded_names(modules)
    digest = digest_weights({n: t for n, t in weights_of(modules).items() if n not in shards})
    if ranks.any(ranks.share(lambda: digest) != digest):
        raise ModelError(
            "expected the same initial weights at all ranks, got others: use the same modules on "
            "all machines and, with start, copies of the same run; a model must draw its weights "
            "from torch's random numbers, which are seeded, and from nothing else"
        )


def check_same_keys(ranks: Slices, job: Job, party: Guest | Host) -> None:
    """Create the secret keys that a run needs at the first rank, and compare them at all.

    Ranks on other machines may have copies of the store, and a key of their own would randomize
    their labels in another way. Raises ConfigError for a missing or another key.
    """
    if len(ranks.own) == ranks.size:
        return
    for source, use in _keys(job, party):
        fingerprint = ranks.share(partial(_fingerprint, source, use))
        problem: ConfigError | None = None
        if not ranks.is_first:
            problem = _problem_with_key(source, use, fingerprint, ranks.own.start)
        if ranks.any(problem is not None):  # before the first rank waits for a peer
            raise problem or ConfigError(
                f"{use.file}: expected the key of the first rank at all ranks, got none or another "
                "at some, whose output says more; copy the file to their machines, with its mode"
            )


def _problem_with_key(
    source: Path | bytes | str | None, use: KeyUse, fingerprint: str, rank: int
) -> ConfigError | None:
    """What is wrong with the key of another rank than the first, which has this fingerprint."""
    where = source if isinstance(source, Path) else use.argument
    expected = f"{where}: expected the key of the first rank at rank {rank}"
    advice = "copy the file from the first rank's machine, with its mode"
    if isinstance(source, Path) and not source.exists():
        return ConfigError(f"{expected}, got none; {advice}")
    try:
        if _fingerprint(source, use, create=False) == fingerprint:
            return None
    except ConfigError as error:
        return error
    return ConfigError(f"{expected}, got another; {advice}")


def _fingerprint(source: Path | bytes | str | None, use: KeyUse, *, create: bool = True) -> str:
    if create and use is LABELS:
        return read_label_key(source).fingerprint
    return SecretKey.read(source, use, create=create).fingerprint


def _keys(job: Job, party: Guest | Host) -> Iterator[tuple[Path | bytes | str | None, KeyUse]]:
    """The secret keys that a party needs for a job."""
    privacy, is_guest = job.privacy, isinstance(party, Guest)
    if isinstance(party, Guest) and job.hosts and privacy.label_epsilon is not None:
        yield party.label_key, LABELS
    if job.hosts and (privacy.dz_noise if is_guest else privacy.z_noise) is not None:
        yield party.noise_key, NOISE


def follow_party(
    settings: PartySettings,
    job: Job,
    source: Path,
    more: int,
    joined: Callable[[Slices], None],
    emit: Callback,
) -> None:
    """Run a rank other than the first until the party is done; raises CeluError.

    It computes its slice of every batch. It has no link and no run folder; `emit` is called with
    the events of training that all ranks have. `joined` is called once the ranks have met.
    """
    retain_freed_memory()
    settings = with_own_device(settings)
    with slices_of(settings, job) as ranks, matrix_products(settings):
        joined(ranks)
        check_same_settings(ranks, settings, job, more)
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        datasets, terms = read_datasets(settings), RunTerms()
        check_same_store(ranks, settings, datasets)
        sharding = sharding_of(settings, job, ranks, datasets)
        while True:
            party = load_party(settings, job, source, datasets, sharding)
            if settings.start is not None:
                terms = replace(terms, start=load_start(settings.start, settings.name, party))
            if more and terms.total_rounds is None:
                terms = replace(terms, total_rounds=ranks.share(lambda: None))
            check_same_weights(ranks, party)
            check_same_keys(ranks, job, party)
            if not ranks.share(lambda: None):  # the run is done, and the peers did not come
                return
            links = {peer: RankLink(ranks, peer, None) for peer in settings.peers}
            options: dict[str, Any] = {
                "checkpoints": rank_checkpoints(ranks, Checkpoints(settings.run_dir), party),
                "terms": terms,
                "ranks": ranks,
            }
            try:
                if isinstance(party, Guest):
                    session = guest_session(settings.name, party, job, links, emit, **options)
                else:
                    link = links[job.guest]
                    session = host_session(settings.name, party, job, link, emit, **options)
                run_blocking(session)
                pass_on(modules_of(party), ranks)  # while the first rank writes the weights
                return
            except PeerRestarted:
                continue  # as the first rank does
