"""All parties in one process and one thread, for research.

It runs the same sessions as over a network, in the same order of work, so the bits are the same. A
party that waits for a message yields to the next party. Messages are passed by reference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from celu.checkpoint.generations import Checkpoints
from celu.config.job import Job
from celu.config.link import LinkSettings, find_link
from celu.engine.auditing import AuditOptions
from celu.engine.extension import check_more, extended_rounds
from celu.engine.setup import RunTerms
from celu.errors import ConfigError
from celu.events import Callback, call_all
from celu.party import Guest, Host
from celu.result import Result
from celu.session import guest_session, host_session
from celu.transport.emulation import LinkEmulator
from celu.transport.memory import memory_links, run_together
from celu.transport.virtual_clock import VirtualClock


def simulate(
    job: Job,
    guest: Guest,
    hosts: Mapping[str, Host],
    *,
    link: LinkSettings | str | None = None,
    speed: float = 1.0,
    timer: Callable[[], float] = time.perf_counter,
    checkpoints: Mapping[str, Checkpoints] | None = None,
    more: int = 0,
    callbacks: Sequence[Callback] = (),
    host_callbacks: Mapping[str, Sequence[Callback]] | None = None,
    graphs: bool | Mapping[str, bool] = True,
    audits: Mapping[str, AuditOptions] | None = None,
) -> Result:
    """Train all parties' modules in place and return the guest's result.

    `callbacks` are called with each of the guest's events, `host_callbacks` with those of the hosts
    that they name. A job without hosts trains the guest alone: the baseline that a federation has
    to beat. Raises the error of the first party that fails; CallbackError if a callback raises.

    With a `link` (a profile such as "wan-300", or settings), the seconds in events and evaluations
    are virtual: the time that the run would take with each party on a machine of its own, `speed`
    times as fast as this one, and that link between them. `timer` measures how long this machine
    computes; on a busy machine `time.thread_time` is more accurate. With `checkpoints`, one for
    each party, the run resumes from them; a finished run continues by `more` rounds. With `graphs`,
    or for the parties for which it is true, steps on a GPU are captured as CUDA graphs, where that
    is possible. Parties that `audits` name measure what the run leaked.
    """
    return simulate_all(
        job,
        guest,
        hosts,
        link=link,
        speed=speed,
        timer=timer,
        checkpoints=checkpoints,
        more=more,
        callbacks=callbacks,
        host_callbacks=host_callbacks,
        graphs=graphs,
        audits=audits,
    )[job.guest]


def simulate_all(
    job: Job,
    guest: Guest,
    hosts: Mapping[str, Host],
    *,
    link: LinkSettings | str | None = None,
    speed: float = 1.0,
    timer: Callable[[], float] = time.perf_counter,
    checkpoints: Mapping[str, Checkpoints] | None = None,
    more: int = 0,
    callbacks: Sequence[Callback] = (),
    host_callbacks: Mapping[str, Sequence[Callback]] | None = None,
    graphs: bool | Mapping[str, bool] = True,
    audits: Mapping[str, AuditOptions] | None = None,
) -> dict[str, Result]:
    """The results of all parties; see `simulate`."""
    _check_roles(guest, hosts)
    if isinstance(link, str):
        link = find_link(link)
    if set(hosts) != set(job.hosts):
        raise ConfigError(f"hosts: expected {sorted(job.hosts)} as in the job, got {sorted(hosts)}")
    clocks = {name: VirtualClock(speed, timer) for name in (job.guest, *job.hosts)}
    pairs = {
        name: memory_links(
            job.guest,
            name,
            clocks=None if link is None else (clocks[job.guest], clocks[name]),
            emulators=None
            if link is None
            else (
                LinkEmulator.from_settings(link, job.seed),
                LinkEmulator.from_settings(link, job.seed + 1),
            ),
        )
        for name in job.hosts
    }
    terms = RunTerms()
    if more != 0:
        check_more(more)
        if checkpoints is None:
            raise ConfigError("more: expected checkpoints of the run to continue, got none")
        own = checkpoints[job.guest]
        total = extended_rounds(job, guest.train.num_rows, own, more)
        terms = RunTerms(total_rounds=total)
    given = graphs if isinstance(graphs, Mapping) else dict.fromkeys(clocks, graphs)
    with_graphs = {name: given.get(name, True) for name in clocks}
    programs: dict[str, Coroutine[Any, Any, Result]] = {
        name: host_session(
            name,
            host,
            job,
            pairs[name][1],
            call_all((host_callbacks or {}).get(name, ())),
            time.monotonic if link is None else clocks[name].now,
            (checkpoints or {}).get(name),
            terms,
            with_graphs[name],
            (audits or {}).get(name),
        )
        for name, host in hosts.items()
    }
    to_hosts = {name: pair[0] for name, pair in pairs.items()}
    guest_clock = time.monotonic if link is None else clocks[job.guest].now
    programs[job.guest] = guest_session(
        job.guest,
        guest,
        job,
        to_hosts,
        call_all(callbacks),
        guest_clock,
        (checkpoints or {}).get(job.guest),
        terms,
        with_graphs[job.guest],
        (audits or {}).get(job.guest),
    )
    # Without virtual time there is no need to synchronize with a GPU to measure it.
    timed = None if link is None else clocks
    return run_together(programs, list(to_hosts.values()), timed)


def _check_roles(guest: Guest, hosts: Mapping[str, Host]) -> None:
    """Raise ConfigError for parties in each other's place."""
    if not isinstance(guest, Guest):
        raise ConfigError(f"guest: expected a celu.Guest, got {type(guest).__name__}")
    for name, host in hosts.items():
        if not isinstance(host, Host):
            raise ConfigError(f"hosts: {name}: expected a celu.Host, got {type(host).__name__}")
