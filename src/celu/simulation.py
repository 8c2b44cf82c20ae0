"""All parties in one process and one thread, for research.

The same sessions as over a network, the same order of work and so the same bits; a party that
waits for a message lets the next one go on. Nothing is copied or encoded on the way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import nullcontext
from typing import Any

from celu.checkpoint.generations import Checkpoints
from celu.config.job import Job
from celu.config.link import LinkSettings
from celu.engine.observer import Emit
from celu.errors import ConfigError, ProtocolError
from celu.party import Guest, Host
from celu.session import Result, guest_session, host_session
from celu.transport.emulation import LinkEmulator
from celu.transport.memory import MemoryLink, memory_links
from celu.transport.virtual_clock import VirtualClock


def _say_nothing(event: str, fields: dict[str, Any]) -> None:
    """Let an event pass."""


def simulate(
    job: Job,
    guest: Guest,
    hosts: Mapping[str, Host],
    emit: Emit = _say_nothing,
    *,
    link: LinkSettings | None = None,
    speed: float = 1.0,
    timer: Callable[[], float] = time.perf_counter,
    checkpoints: Mapping[str, Checkpoints] | None = None,
    emit_hosts: Mapping[str, Emit] | None = None,
) -> Result:
    """Train all parties' modules in place and return what the guest knows at the end.

    `emit` gets the guest's events, `emit_hosts` those of each host that it names. A job without
    hosts trains the guest alone: the baseline that a federation has to beat. Raises what a party
    raises.

    With a `link`, the seconds in events and evaluations are virtual: what the run would take with
    each party on a machine of its own, `speed` times as fast as this one, and that line in between,
    each way. `timer` tells how long this one computes; on a busy machine, that may better be
    `time.thread_time`. With `checkpoints`, one for each party, the run goes on from them.
    """
    if set(hosts) != set(job.hosts):
        raise ConfigError(f"hosts: expected {sorted(job.hosts)} as in the job, got {sorted(hosts)}")
    clocks = {name: VirtualClock(speed, timer) for name in (job.guest, *job.hosts)}
    pairs = {
        name: memory_links(
            job.guest,
            name,
            clocks=None if link is None else (clocks[job.guest], clocks[name]),
            lines=None
            if link is None
            else (LinkEmulator.of(link, job.seed), LinkEmulator.of(link, job.seed + 1)),
        )
        for name in job.hosts
    }
    programs: dict[str, Coroutine[Any, Any, Result]] = {
        name: host_session(
            name,
            host,
            job,
            pairs[name][1],
            (emit_hosts or {}).get(name, _say_nothing),
            time.monotonic if link is None else clocks[name].now,
            (checkpoints or {}).get(name),
        )
        for name, host in hosts.items()
    }
    to_hosts = {name: pair[0] for name, pair in pairs.items()}
    timer = time.monotonic if link is None else clocks[job.guest].now
    programs[job.guest] = guest_session(
        job.guest, guest, job, to_hosts, emit, timer, (checkpoints or {}).get(job.guest)
    )
    # Where nobody asks for virtual time, nobody waits for an accelerator to be able to tell it.
    timed = None if link is None else clocks
    return _run_together(programs, list(to_hosts.values()), timed)[job.guest]


def _run_together(
    programs: dict[str, Coroutine[Any, Any, Result]],
    links: list[MemoryLink],
    clocks: Mapping[str, VirtualClock] | None = None,
) -> dict[str, Result]:
    results: dict[str, Result] = {}
    try:
        while len(results) < len(programs):
            before = _progress(links) + len(results)
            for name, program in programs.items():
                if name not in results:
                    with clocks[name].running() if clocks else nullcontext():
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
