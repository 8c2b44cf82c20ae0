"""`celu align`: one party's part in private set intersection, from its store to its alignment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from celu import open_files
from celu.config.job import Job
from celu.config.party import PartySettings
from celu.config.schema import Part
from celu.data.alignment import Alignment, write_alignment
from celu.data.shards import Shard, ShardFacts, merge_shards, read_rows, write_shard
from celu.data.store import Store, open_store
from celu.data.tags import Tags, ascending
from celu.errors import ConfigError, PeerLost, PeerRestarted
from celu.events import Callback, Connected, Restarted
from celu.launch.endpoint import endpoint_of
from celu.psi.protocol import AlignmentResources, AlignmentResult, align_guest, align_host
from celu.psi.workers import Workers
from celu.threads import usable_cpus
from celu.transport.connect import open_links
from celu.transport.link import run_blocking
from celu.transport.message import TrafficBothWays

MAX_RESTARTS = 20  # of peers, in one `celu align`; each lets a peer try something else


def align_party(
    settings: PartySettings, job: Job, listening: Callable[[int], None], emit: Callback
) -> tuple[Alignment, dict[str, TrafficBothWays]]:
    """Find the rows that all parties have and write the alignment; also return each link's traffic.

    If it is interrupted, it resumes when it is started again; the peers resume by themselves, up to
    MAX_RESTARTS times. Raises ConfigError, DataError, PeerLost, and what `celu.psi` raises.
    """
    folder, store = _open(settings)
    parts = {part: store.tags(part) for part in store.parts}
    tags = np.concatenate(list(parts.values()))
    order = ascending(tags)
    work = _Work(folder.with_name(f".{folder.name}.work"))
    found, traffic = _align(settings, job, _terms(job, store), tags[order], work, listening, emit)
    alignment = write_alignment(
        folder,
        store,
        _by_part(order[found.rows], {part: len(its_tags) for part, its_tags in parts.items()}),
        peers=found.peer_rows,
        common=found.common,
        answered=found.answered,
    )
    return alignment, traffic


def align_shard(
    settings: PartySettings,
    job: Job,
    shard: Shard,
    listening: Callable[[int], None],
    emit: Callback,
) -> tuple[ShardFacts, dict[str, TrafficBothWays]]:
    """Like `align_party`, of one shard, which `merge_party` merges with the others."""
    folder, store = _open(settings)
    own = read_rows(store, shard)
    tags = np.concatenate(list(own.tags.values()))
    order = ascending(tags)
    shards = shards_of(folder)
    total = sum(store.schema.rows.values())
    work = _Work(shards / f"{shard.folder}.work", shard, total)
    terms = _terms(job, store)
    found, traffic = _align(settings, job, terms, tags[order], work, listening, emit)
    by_part = _by_part(order[found.rows], {part: len(rows) for part, rows in own.tags.items()})
    facts = write_shard(
        shards,
        shard,
        store,
        own,
        by_part,
        terms={**terms, "group": job.alignment.group},
        peers=found.peer_rows,
        common=found.common,
        answered=found.answered,
    )
    return facts, traffic


def merge_party(settings: PartySettings) -> tuple[Alignment, dict[str, int]]:
    """Merge all shards of a party into its alignment; also return how many dummies each peer had.

    Raises as `merge_shards` does.
    """
    folder, store = _open(settings)
    return merge_shards(folder, shards_of(folder), store)


def shards_of(alignment: Path) -> Path:
    """The folder with the shards of an alignment."""
    return alignment.with_name(f".{alignment.name}.shards")


class _Work(NamedTuple):
    """The folder for the progress, and what is aligned in it: all rows, or a shard of `total`."""

    folder: Path
    shard: Shard | None = None
    total: int = 0


def _open(settings: PartySettings) -> tuple[Path, Store]:
    data = settings.require_data()
    if data.alignment is None:
        raise ConfigError("data.alignment: expected a folder to write to, got aligned = true")
    return data.alignment, open_store(data.store)


def _terms(job: Job, store: Store) -> dict[str, Any]:
    split = store.schema.split
    return {
        "guest": job.guest,
        "hosts": sorted(job.hosts),
        "split.seed": split.seed,
        "split.test": split.test,
        **({"split.validation": split.validation} if split.validation else {}),
    }


def _by_part(
    rows: npt.NDArray[np.int64], counts: dict[Part, int]
) -> dict[Part, npt.NDArray[np.int64]]:
    """The row numbers within each part, of rows that are numbered over all parts."""
    by_part, first = {}, 0
    for part, count in counts.items():
        by_part[part] = rows[(rows >= first) & (rows < first + count)] - first
        first += count
    return by_part


def _align(
    settings: PartySettings,
    job: Job,
    terms: dict[str, Any],
    tags: Tags,
    where: _Work,
    listening: Callable[[int], None],
    emit: Callback,
) -> tuple[AlignmentResult, dict[str, TrafficBothWays]]:
    """Run the protocol, over again if a peer restarts."""
    open_files.raise_limit()
    num_restarts = 0
    with Workers(settings.threads or usable_cpus(), job.alignment.group) as workers:
        work = AlignmentResources(where.folder, workers, shard=where.shard, total=where.total)
        while True:
            try:
                with open_links(endpoint_of(settings, emit), listening) as links:
                    emit(Connected(peers=sorted(links), secure=not settings.insecure))
                    if settings.role == "guest":
                        program = align_guest(settings.name, links, tags, terms, work, emit)
                    else:
                        link = links[job.guest]
                        program = align_host(settings.name, link, tags, terms, work, emit)
                    found = run_blocking(program)
                    return found, {name: link.traffic for name, link in links.items()}
            except PeerRestarted as error:
                num_restarts += 1
                if num_restarts > MAX_RESTARTS:
                    raise PeerLost(
                        f"{error}, and peers had restarted {MAX_RESTARTS} times during this "
                        "alignment; ask its operator why, and start again at all parties to resume"
                    ) from error
                emit(Restarted(message=str(error)))
