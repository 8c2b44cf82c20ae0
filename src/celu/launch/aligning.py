"""`celu align`: one party's part in private set intersection, from its store to its alignment."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from celu import open_files
from celu.config.job import Job
from celu.config.party import PartySettings
from celu.data.alignment import Alignment, write_alignment
from celu.data.store import open_store
from celu.data.tags import ascending
from celu.errors import ConfigError, PeerLost, PeerRestarted
from celu.events import Callback, Connected, Restarted
from celu.launch.endpoint import endpoint_of
from celu.psi.protocol import AlignmentResources, align_guest, align_host
from celu.psi.workers import Workers
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
    open_files.raise_limit()
    data = settings.require_data()
    if data.alignment is None:
        raise ConfigError("data.alignment: expected a folder to write to, got aligned = true")
    store = open_store(data.store)
    parts = {part: store.tags(part) for part in store.parts}
    tags = np.concatenate(list(parts.values()))
    order = ascending(tags)
    split = store.schema.split
    terms = {
        "guest": job.guest,
        "hosts": sorted(job.hosts),
        "split.seed": split.seed,
        "split.test": split.test,
        **({"split.validation": split.validation} if split.validation else {}),
    }
    folder = data.alignment
    num_restarts = 0
    with Workers(settings.threads or os.cpu_count() or 1) as workers:
        work = AlignmentResources(folder.with_name(f".{folder.name}.work"), workers)
        while True:
            try:
                with open_links(endpoint_of(settings, emit), listening) as links:
                    emit(Connected(peers=sorted(links), secure=not settings.insecure))
                    if settings.role == "guest":
                        program = align_guest(settings.name, links, tags[order], terms, work, emit)
                    else:
                        link = links[job.guest]
                        program = align_host(settings.name, link, tags[order], terms, work, emit)
                    found = run_blocking(program)
                    traffic = {name: link.traffic for name, link in links.items()}
                    break
            except PeerRestarted as error:
                num_restarts += 1
                if num_restarts > MAX_RESTARTS:
                    raise PeerLost(
                        f"{error}, and peers had restarted {MAX_RESTARTS} times during this "
                        "alignment; ask its operator why, and start again at all parties to resume"
                    ) from error
                emit(Restarted(message=str(error)))
    rows, by_part, first = order[found.rows], {}, 0
    for part, its_tags in parts.items():
        stop = first + len(its_tags)
        by_part[part] = rows[(rows >= first) & (rows < stop)] - first
        first = stop
    alignment = write_alignment(
        folder,
        store,
        by_part,
        peers=found.peer_rows,
        common=found.common,
        answered=found.answered,
    )
    return alignment, traffic
