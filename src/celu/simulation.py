"""All parties in one process and one thread, for research.

The same sessions as over a network, the same order of work and so the same bits; a party that
waits for a message lets the next one go on. Nothing is copied or encoded on the way.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

from celu.config.job import Job
from celu.engine.observe import Emit
from celu.errors import ConfigError, ProtocolError
from celu.party import Guest, Host
from celu.session import Result, guest_session, host_session
from celu.transport.memory import MemoryLink, memory_links


def simulate(
    job: Job,
    guest: Guest,
    hosts: Mapping[str, Host],
    emit: Emit = lambda event, fields: None,
) -> Result:
    """Train all parties' modules in place and return what the guest knows at the end.

    `emit` gets the guest's events. A job without hosts trains the guest alone: the baseline that
    a federation has to beat. Raises what a party raises.
    """
    if set(hosts) != set(job.hosts):
        raise ConfigError(f"hosts: expected {sorted(job.hosts)} as in the job, got {sorted(hosts)}")
    pairs = {name: memory_links(job.guest, name) for name in job.hosts}
    programs: dict[str, Coroutine[Any, Any, Result]] = {
        name: host_session(name, host, job, pairs[name][1], lambda event, fields: None)
        for name, host in hosts.items()
    }
    to_hosts = {name: pair[0] for name, pair in pairs.items()}
    programs[job.guest] = guest_session(job.guest, guest, job, to_hosts, emit)
    return _run_together(programs, list(to_hosts.values()))[job.guest]


def _run_together(
    programs: dict[str, Coroutine[Any, Any, Result]], links: list[MemoryLink]
) -> dict[str, Result]:
    results: dict[str, Result] = {}
    try:
        while len(results) < len(programs):
            before = _progress(links) + len(results)
            for name, program in programs.items():
                if name not in results:
                    try:
                        program.send(None)
                    except StopIteration as done:
                        results[name] = done.value
            if _progress(links) + len(results) == before:
                waiting = ", ".join(sorted(programs.keys() - results.keys()))
                raise ProtocolError(f"nobody can go on; waiting for each other: {waiting}")
    finally:
        for program in programs.values():
            program.close()
    return results


def _progress(links: list[MemoryLink]) -> int:
    return sum(link.traffic.sent.messages + link.traffic.received.messages for link in links)
